//! Kubernetes objects ⇄ core rows. No client, no clock of its own beyond the wall clock default of [`read::Options::now`].
//!
//! Start at [`read::load`]: bytes → objects → rows ([`muster_core::snapshot::Snapshot`]) and the names that rows leave out
//! ([`names::Names`]). Objects flow one way, each stage by itself:
//!
//! | stage | module | knows |
//! |---|---|---|
//! | bytes → text of single objects | [`read`] | archives, JSON, YAML, folders |
//! | text → facts | `pods`, `nodes`, `queues`, `gangs`, `settings` | one object at a time |
//! | facts → rows | `assemble`, `classes` | all objects, indices |
//!
//! A cluster that is watched goes the same way, object by object: [`live::Live`]; what was decided about it and is not to be
//! seen in it yet is in [`assumed`].
//!
//! Kubernetes' own arithmetic is in [`quantity`], `requests`, `selector`; KAI's GPU vocabulary in `gpu`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod assumed;
pub mod crds;
pub mod duration;
pub mod evictions;
pub mod grouping;
pub mod live;
pub mod manifests;
pub mod names;
pub mod once;
pub mod problem;
pub mod quantity;
pub mod read;
pub mod report;
pub mod report_amount;
pub mod sentences;
pub mod sharing;
pub mod usage;

mod assemble;
mod budgets;
mod classes;
mod forest;
mod gangs;
mod gpu;
mod nodes;
mod overcommit;
mod plugins;
mod pods;
mod queues;
mod requests;
mod selector;
mod settings;
mod unhelped;
mod validate;
