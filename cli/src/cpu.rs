//! Whether this processor can run this build, asked before anything else runs.
//!
//! `is_x86_feature_detected!` answers yes without asking in a build for AVX2, so the processor itself is asked.

use crate::fault::Fault;

/// The level of vector instructions this build uses, for `--version`.
pub(crate) const fn level() -> &'static str {
    muster_kernels::level()
}

/// Fails with what the processor lacks and how to build without it.
#[inline(never)]
pub(crate) fn check() -> Result<(), Fault> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Fault::failed(format!(
        "this muster was built for processors with AVX2 (x86-64-v3); this one lacks {}.\n\
         Build for any 64-bit processor with:\n    \
         cargo build --release --config 'target.\"cfg(target_arch = \\\"x86_64\\\")\".rustflags=[\"-Ctarget-cpu=x86-64\"]'",
        missing.join(", ")
    )))
}

#[cfg(not(all(target_arch = "x86_64", target_feature = "avx2")))]
const fn missing() -> Vec<&'static str> {
    Vec::new()
}

/// The part of x86-64-v3 that compilers use, by leaf of the `cpuid` instruction.
#[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
fn missing() -> Vec<&'static str> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let leaves = __cpuid(0).eax;
    let basic = __cpuid(1).ecx;
    let more = if leaves >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
    let extended = if __cpuid(0x8000_0000).eax >= 0x8000_0001 { __cpuid(0x8000_0001).ecx } else { 0 };
    let tests = [
        ("FMA", basic, 12),
        ("MOVBE", basic, 22),
        ("OSXSAVE", basic, 27),
        ("AVX", basic, 28),
        ("F16C", basic, 29),
        ("BMI1", more, 3),
        ("AVX2", more, 5),
        ("BMI2", more, 8),
        ("LZCNT", extended, 5),
    ];
    tests.into_iter().filter(|&(_, word, bit)| word >> bit & 1 == 0).map(|(name, ..)| name).collect()
}
