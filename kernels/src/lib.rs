//! Numbers in, numbers out: the loops over columns that the scheduler's speed hangs on.
//!
//! Every kernel is a free function over slices and exists twice: the obviously right version in [`mod@reference`], and the fast
//! one in [`mask`], [`fit`], [`select`], [`score`], [`scan`]. The tests hold the two equal for every length around a word and
//! every alignment; the benches (`cargo bench -p muster-benches --bench kernels`) say what the fast one wins. "Measured" in the
//! doc comments: fastest of 800 runs over 16,384 rows, x86-64-v3, on a shared 2-core Intel Xeon with 2 MiB L2; "n times the
//! reference" is the reference's time divided by the kernel's.
//!
//! A column is `&[i64]`, row `i` is cell `i`. A mask is `&[u64]`: bit `i % 64` of word `i / 64` is row `i`. The mask of a
//! column has [`mask::words`]`(column.len())` words, neither more nor less (kernels panic otherwise). Bits at or beyond the
//! number of rows are 0 in every result and ignored in every argument that comes with a column.
//!
//! Not known here: nodes, pods, GPUs, or what any number means. Lanes are chosen when the crate is compiled ([`level`]).
//! There is no `unsafe`: `wide` loads from arrays, and no block of it would have paid.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod lanes;

pub mod fit;
pub mod mask;
pub mod reference;
pub mod scan;
pub mod score;
pub mod select;

/// The vector instructions this build uses: `"avx2"`, `"sse2"`, `"neon"`, `"simd128"` or `"scalar"`.
#[must_use]
pub const fn level() -> &'static str {
    if cfg!(target_feature = "avx2") {
        "avx2"
    } else if cfg!(target_feature = "sse2") {
        "sse2"
    } else if cfg!(all(target_feature = "neon", target_arch = "aarch64")) {
        "neon"
    } else if cfg!(target_feature = "simd128") {
        "simd128"
    } else {
        "scalar"
    }
}
