//! One cycle on an input in bytes, and its result in names: what scenarios and the corpus compare with expectations.

use std::collections::BTreeMap;

use muster_api::names::ObjectName;
use muster_api::problem::Failure;
use muster_api::read::{Loaded, Options, load_bytes};
use muster_core::cycle::Scheduler;
use muster_core::index::{GroupIdx, Idx, NodeIdx, PodIdx};
use muster_core::net::Net;
use muster_core::outcome::{Decision, DecisionKind, Outcome};
use muster_core::snapshot::PodStatus;
use muster_core::tables::Tables;
use muster_core::tables::nodes::GPU;

/// A pod when a session ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodAtEnd {
    /// The row.
    pub pod: PodIdx,
    /// What it does; a pod that was bound in this session is `Binding`.
    pub status: PodStatus,
    /// Where.
    pub node: Option<NodeIdx>,
    /// Shared GPUs that it holds or was given.
    pub groups: Vec<String>,
    /// Decided on in this session.
    pub decided: bool,
}

/// What was read and what was decided.
pub struct Session {
    /// Rows and names.
    pub loaded: Loaded,
    /// Decisions and reasons.
    pub outcome: Outcome,
    /// The tables when the session ended.
    pub tables: Tables,
    /// What the decisions come to when they are carried out.
    pub net: Net,
    /// Tells names of new shared GPUs apart between sessions.
    round: usize,
}

impl Session {
    /// Reads an input and runs one cycle on it. `round` goes into the names of new shared GPUs.
    ///
    /// # Errors
    /// If the input cannot be read, or is bad.
    pub fn run(name: &str, bytes: &[u8], options: &Options<'_>, round: usize) -> Result<Self, Failure> {
        let loaded = load_bytes(name, bytes, options)?;
        let mut scheduler = Scheduler::new(&loaded.snapshot);
        let outcome = scheduler.run(&loaded.snapshot.config, &mut |_| {}).clone();
        let tables = scheduler.tables().clone();
        let net = scheduler.net(&loaded.snapshot.config).clone();
        Ok(Self { tables, net, loaded, outcome, round })
    }

    /// The name of a shared GPU, existing or new.
    #[must_use]
    pub fn group_name(&self, group: GroupIdx) -> String {
        let names = &self.loaded.names.groups;
        names.get(group.at()).cloned().unwrap_or_else(|| format!("opened-{}-{}", self.round, group.at() - names.len()))
    }

    /// All pods of the rows as they are when the session ends.
    #[must_use]
    pub fn pods(&self) -> BTreeMap<ObjectName, PodAtEnd> {
        let rows = &self.loaded.snapshot;
        let mut pods: BTreeMap<ObjectName, PodAtEnd> = BTreeMap::new();
        for (pod, row) in rows.pods.entries() {
            let groups = &rows.pod_groups[row.groups.0 as usize..row.groups.1 as usize];
            let groups = groups.iter().map(|&group| self.group_name(group)).collect();
            let at = PodAtEnd { pod, status: row.status, node: row.node, groups, decided: false };
            pods.insert(self.loaded.names.pods[pod].clone(), at);
        }
        for decision in &self.outcome.decisions {
            let at = pods.get_mut(&self.loaded.names.pods[decision.pod]).expect("a decision is about a pod of the rows");
            at.node = Some(decision.node);
            at.decided = true;
            at.status = match decision.kind {
                DecisionKind::Bind => PodStatus::Binding,
                DecisionKind::Pipeline => PodStatus::Pipelined,
                DecisionKind::Evict => PodStatus::Releasing,
            };
            if decision.kind != DecisionKind::Evict {
                at.groups = self.groups_of(decision);
            }
        }
        pods
    }

    /// The shared GPUs of a decision, by name.
    #[must_use]
    pub fn groups_of(&self, decision: &Decision) -> Vec<String> {
        self.outcome.groups_of(decision).iter().map(|&group| self.group_name(group)).collect()
    }

    /// The name of a node.
    #[must_use]
    pub fn node_name(&self, node: NodeIdx) -> &str {
        &self.loaded.names.nodes[node]
    }

    /// Whole GPUs of a node that are idle, and that are being released and not promised, when the session ends.
    #[must_use]
    pub fn gpus_left(&self, node: NodeIdx) -> (i64, i64) {
        let nodes = &self.tables.nodes;
        let (idle, soon) = (nodes.idle[GPU.at()][node], nodes.soon[GPU.at()][node]);
        (idle, soon - idle)
    }
}
