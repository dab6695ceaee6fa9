//! The scheduler as a pure function: rows in, decisions and reasons out.
//!
//! Nothing here knows Kubernetes, a client, a clock, randomness, the environment or a log. Read [`cycle`] first: it is one
//! scheduling cycle from top to bottom. Data flows one way:
//! rows ([`snapshot`]) → tables ([`tables`]) → fair share ([`fair_share`]) → plan ([`actions`] over [`place`]) →
//! statement ([`statement`]) → outcome ([`outcome`], [`explain`]).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod config;
pub mod explain;
pub mod index;
pub mod outcome;
pub mod snapshot;
pub mod tables;
pub mod units;
