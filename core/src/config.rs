//! What an operator can set, as types. `api` parses and refuses; here every value is already legal.

/// The five things a cycle can do, in KAI's names (semantics.md §0.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Action {
    /// Places pending gangs into what is idle or being released.
    Allocate,
    /// Moves running work to make room.
    Consolidation,
    /// Takes from queues above their fair share.
    Reclaim,
    /// Takes from lower priorities of the same queue.
    Preempt,
    /// Removes gangs that fell below their minimum.
    StaleGangEviction,
}

impl Action {
    /// All actions in KAI's default order.
    pub const DEFAULT: [Self; 5] = [Self::Allocate, Self::Consolidation, Self::Reclaim, Self::Preempt, Self::StaleGangEviction];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Consolidation => "consolidation",
            Self::Reclaim => "reclaim",
            Self::Preempt => "preempt",
            Self::StaleGangEviction => "stalegangeviction",
        }
    }
}

/// Which node is preferred among those that fit (plugin `nodeplacement`, semantics.md §5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strategy {
    /// The fullest.
    Binpack,
    /// The emptiest.
    Spread,
}

/// Which shared GPU of a node is preferred (plugins `gpupack`, `gpuspread`, semantics.md §5.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CardOrder {
    /// The fullest shared card first, an unshared one last.
    Pack,
    /// An unshared card first, then the emptiest shared one.
    Spread,
    /// Shared cards in index order, an unshared one last (neither plugin is on).
    Index,
}

/// Settings of the `nodeplacement` plugin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodePlacement {
    /// For pods that ask for any kind of GPU.
    pub gpu: Strategy,
    /// For all other pods.
    pub cpu: Strategy,
}

/// Plugins that are switched on and off by name and have no settings here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one switch for each of KAI's plugins")]
pub struct Plugins {
    /// Selectors, taints, node state, node kind, pod slots (semantics.md §9.2).
    pub predicates: bool,
    /// Fair share, queue order, limits and quotas (semantics.md §3, §4.1, §6.3).
    pub proportion: bool,
    /// Gang order by priority (semantics.md §4.2).
    pub priority: bool,
    /// Gang order by "below its minimum" (semantics.md §4.2).
    pub elastic: bool,
    /// Pod order: `training.kubeflow.org/job-role` (semantics.md §4.3).
    pub kubeflow: bool,
    /// Pod order: `ray.io/node-type` (semantics.md §4.3).
    pub ray: bool,
    /// Pod order: `kai.scheduler/task-priority` (semantics.md §4.3).
    pub task_order: bool,
    /// Sub-group order (semantics.md §7.2).
    pub subgroup_order: bool,
    /// Prefer the node named in `status.nominatedNodeName`.
    pub nominated_node: bool,
    /// Prefer nodes where a shared GPU has room.
    pub gpu_sharing_order: bool,
    /// Prefer nodes where nothing has to be waited for.
    pub node_availability: bool,
    /// Prefer CPU-only nodes for CPU-only pods.
    pub resource_type: bool,
}

impl Plugins {
    /// Everything on.
    pub const ALL: Self = Self {
        predicates: true,
        proportion: true,
        priority: true,
        elastic: true,
        kubeflow: true,
        ray: true,
        task_order: true,
        subgroup_order: true,
        nominated_node: true,
        gpu_sharing_order: true,
        node_availability: true,
        resource_type: true,
    };
}

/// From which of its queues a running gang takes its protection against reclaim (plugin `minruntime`, semantics.md §9.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReclaimProtection {
    /// From where the two queues' paths part, upwards.
    CommonAncestor,
    /// From its own queue upwards.
    OwnQueue,
}

/// Times for which a gang that started is not evicted, in nanoseconds, where no queue says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MinRuntime {
    /// Against `preempt`.
    pub preempt: i64,
    /// Against `reclaim`.
    pub reclaim: i64,
    /// Where `reclaim` looks for it.
    pub reclaim_by: ReclaimProtection,
}

/// Who may be evicted, for whom, and when.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct VictimRules {
    /// A generator of scenarios is on (plugins `sg-nodelocalgreedy`, `sg-multinodegang`); without one nobody is evicted for
    /// others.
    pub search: bool,
    /// Gangs that `consolidation` may move for one asker: 0 turns it off, `None` is no bound.
    pub consolidation_jobs_max: Option<u32>,
    /// Victims of `reclaim` that find another place do not count as taken (semantics.md §6.6.3).
    pub consolidating_reclaim: bool,
    /// How much a reclaimer must stay below the relative holdings of those it takes from, ≥ 1 (semantics.md §6.6.3).
    pub saturation_multiplier: f64,
    /// `None`: plugin `minruntime` is off.
    pub min_runtime: Option<MinRuntime>,
    /// How long a gang may be below its minimum, in nanoseconds; negative: for ever.
    pub staleness_grace: i64,
    /// Simulations for one asker before its search is given up, and says so.
    pub simulations_max: u32,
    /// The eviction brake: pods told to leave in one cycle, moved ones included; `None`: no bound.
    pub evictions_max: Option<u32>,
    /// The same for the pods of one leaf queue.
    pub queue_evictions_max: Option<u32>,
    /// Among those who may be lost for a gang, in place of the order of queues: lowest priority first, then least GPU time lost,
    /// then fewest pods (for very large fleets; off by default).
    pub fewest: bool,
    /// Proofs by counting and what is remembered of other askers. They change no decision; tests switch them off to show that.
    pub shortcuts: bool,
}

impl VictimRules {
    /// KAI's defaults (semantics.md §0.5).
    pub const KAI_DEFAULT: Self = Self {
        search: true,
        consolidation_jobs_max: Some(16),
        consolidating_reclaim: true,
        saturation_multiplier: 1.0,
        min_runtime: Some(MinRuntime { preempt: 0, reclaim: 0, reclaim_by: ReclaimProtection::CommonAncestor }),
        staleness_grace: 60_000_000_000,
        simulations_max: 128,
        evictions_max: None,
        queue_evictions_max: None,
        fewest: false,
        shortcuts: true,
    };
}

/// Settings of one cycle.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// The actions to run, in this order.
    pub actions: Vec<Action>,
    /// The instant of the cycle, nanoseconds since 1970.
    pub now: i64,
    /// At most this many gangs of each leaf queue are tried by an action in a cycle, by [`Action`]; `None`: all.
    pub depth: [Option<u32>; Action::DEFAULT.len()],
    /// Who may be evicted, for whom, and when.
    pub victims: VictimRules,
    /// Switches.
    pub plugins: Plugins,
    /// `None`: plugin `nodeplacement` is off, equally good nodes are taken by name.
    pub node_placement: Option<NodePlacement>,
    /// Order of the cards inside a node.
    pub card_order: CardOrder,
    /// Weight of historical usage in fair share, ≥ 0 (argument `kValue`, semantics.md §3.5).
    pub k_value: f64,
    /// GPU pods only on `gpu-worker` nodes, others only on `cpu-worker` nodes.
    pub restrict_nodes: bool,
}

impl Config {
    /// KAI's defaults (semantics.md §0.2, §0.3).
    #[must_use]
    pub fn kai_default() -> Self {
        Self {
            actions: Action::DEFAULT.to_vec(),
            now: 0,
            depth: [None; Action::DEFAULT.len()],
            victims: VictimRules::KAI_DEFAULT,
            plugins: Plugins::ALL,
            node_placement: Some(NodePlacement { gpu: Strategy::Binpack, cpu: Strategy::Binpack }),
            card_order: CardOrder::Pack,
            k_value: 1.0,
            restrict_nodes: false,
        }
    }
}
