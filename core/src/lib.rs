//! The scheduler as a pure function: rows in, decisions and reasons out.
//!
//! Nothing here knows Kubernetes, a client, a clock, randomness, the environment or a log. Read [`cycle`] first: it is one
//! scheduling cycle from top to bottom. Data flows one way:
//! rows ([`snapshot`]) → tables ([`tables`]) → fair share ([`fair_share`]) → plan ([`actions`] over [`place`]) →
//! statement ([`statement`]) → outcome ([`outcome`], [`explain`]).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod actions;
pub mod bounds;
pub mod config;
pub mod cycle;
pub mod explain;
pub mod fair_share;
pub mod feasible;
pub mod index;
pub mod net;
pub mod order;
pub mod outcome;
pub mod pending;
pub mod place;
pub mod search;
pub mod snapshot;
pub mod statement;
pub mod tables;
pub mod units;
pub mod verify;
