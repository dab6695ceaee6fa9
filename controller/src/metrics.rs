//! What is counted, under the names that KAI's dashboards know (wire-contract.md §9). Each role has a struct of its own, made
//! once: a role that is started again, after a lost lease, counts on.

use prometheus::Registry;

/// Everything that `/metrics` shows.
#[derive(Debug, Default)]
pub struct Metrics {
    /// What the parts below are registered in.
    pub registry: Registry,
}
