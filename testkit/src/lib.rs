//! What tests, benches and `muster generate` share: seeded clusters, and slow checkers of what the fast core decides.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod check;
pub mod fixture;
pub mod generate;
#[cfg(feature = "rows")]
pub mod rows;
pub mod session;
