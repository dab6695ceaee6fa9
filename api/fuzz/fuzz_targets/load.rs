//! Any bytes load or fail with a message; a lenient reader loads whatever a strict one does.
#![no_main]

use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use muster_api::read::{Options, load_bytes};

fuzz_target!(|bytes: &[u8]| {
    let now = Some(Timestamp::UNIX_EPOCH);
    let strict = load_bytes("in", bytes, &Options { now, ..Options::default() });
    let lenient = load_bytes("in", bytes, &Options { now, lenient: true, ..Options::default() });
    if let Ok(strict) = strict {
        assert_eq!(Ok(strict), lenient);
    }
});
