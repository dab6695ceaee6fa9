//! Any text is a quantity or is refused; rounding never goes down, and a finer unit never loses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_api::quantity::Quantity;

fuzz_target!(|text: &str| {
    if let Ok(quantity) = text.parse::<Quantity>() {
        let units = quantity.units().expect("the range is checked when it is parsed");
        if let Some(milli) = quantity.milli() {
            let back = milli / 1000 + (milli % 1000).signum();
            assert_eq!(back, units, "{text}");
        }
    }
});
