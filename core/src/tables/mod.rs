//! The cluster as columns.
pub mod queues;
