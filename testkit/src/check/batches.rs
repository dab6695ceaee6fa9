//! Decisions that belong together: some evictions, then the placements that they make possible, all by one action.
//!
//! The order of the decisions tells: a batch ends where the action changes or where an eviction follows a placement. For whom it
//! is, the plan says with each eviction; a victim's own waiting pods may be placed before (semantics.md §6.4.6).

use std::collections::BTreeSet;

use muster_core::config::Action;
use muster_core::index::{GangIdx, PodIdx};
use muster_core::outcome::DecisionKind;

use super::After;

/// A run of evictions and the placements made thanks to them.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) action: Action,
    /// The gang that the first eviction names.
    said: Option<GangIdx>,
    /// In the order in which they were told to leave.
    pub(super) victims: Vec<PodIdx>,
    /// In the order in which they were placed.
    pub(super) placed: Vec<PodIdx>,
    /// The decisions that it is made of.
    pub(super) decisions: (usize, usize),
}

impl Batch {
    /// Gangs that lost pods.
    pub(super) fn losers(&self, after: &After<'_>) -> BTreeSet<GangIdx> {
        self.victims.iter().filter_map(|&pod| after.rows.pods[pod].gang).collect()
    }

    /// The gang that the evictions are for, if it is placed and lost nothing. Whoever else is placed needed no eviction.
    pub(super) fn asker(&self, after: &After<'_>) -> Option<GangIdx> {
        let losers = self.losers(after);
        let mut placed = self.placed.iter().filter_map(|&pod| after.rows.pods[pod].gang);
        placed.find(|gang| self.said == Some(*gang) && !losers.contains(gang))
    }
}

/// All batches with victims.
pub(super) fn batches(after: &After<'_>) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let mut said = after.outcome.evictions.iter().map(|eviction| eviction.asker);
    for (at, decision) in after.outcome.decisions.iter().enumerate() {
        let evicts = decision.kind == DecisionKind::Evict;
        let asker = if evicts { said.next().expect("each eviction says for whom") } else { None };
        let goes_on = batches.last().is_some_and(|batch| batch.action == decision.action && (!evicts || batch.placed.is_empty()));
        if !goes_on {
            batches.push(Batch { action: decision.action, said: asker, victims: vec![], placed: vec![], decisions: (at, at) });
        }
        let batch = batches.last_mut().expect("there is one now");
        if evicts { &mut batch.victims } else { &mut batch.placed }.push(decision.pod);
        batch.decisions.1 = at + 1;
    }
    batches.retain(|batch| !batch.victims.is_empty());
    batches
}
