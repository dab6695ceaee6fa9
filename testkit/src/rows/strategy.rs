//! How drafts are drawn. Weights are set so that most gangs can be placed and every special case turns up in a few hundred draws.

use muster_core::config::{
    Action, CardOrder, Config, MinRuntime, NodePlacement, Plugins, ReclaimProtection, Strategy as Placement, VictimRules,
};
use muster_core::index::{DimIdx, Idx, KeyIdx, LabelIdx, NodeIdx, TaintIdx};
use muster_core::snapshot::{
    Blocked, ClassRow, GangTimes, GpuRequest, Mig, NodeRow, PodStatus, QueueRow, Requirement, TaskPriority,
};
use muster_core::units::{Amounts, MICRO_PER_GPU, UNLIMITED};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Draft, GangDraft, MIG_GPUS, NodeDraft, PodDraft, QueueDraft, QueuePick, SIZES, TAINTS, TreeDraft, ZONES};

pub(super) const GIB: i64 = 1 << 30;
/// The instant of every cycle: what happened, happened between 0 and this.
const NOW: i64 = 100;

/// Clusters with everything that rows can say.
pub fn drafts() -> impl Strategy<Value = Draft> {
    (config(), vec(node(), 1..=40), vec(queue(), 1..=8), vec(class(), 1..=10), vec(gang(), 0..=16), vec(pod(Loose::Yes), 0..=8))
        .prop_map(|(config, nodes, queues, classes, gangs, loose)| Draft { config, nodes, queues, classes, gangs, loose })
}

pub(super) fn config() -> impl Strategy<Value = Config> {
    let placement = || prop_oneof![3 => Just(Placement::Binpack), 1 => Just(Placement::Spread)];
    let actions = prop_oneof![
        12 => Just(Action::DEFAULT.to_vec()),
        4 => Just(vec![Action::Allocate]),
        1 => Just(vec![Action::Reclaim]),
        1 => Just(vec![Action::Allocate, Action::Preempt, Action::Allocate]),
    ];
    (
        actions,
        prop_oneof![5 => Just(None), 1 => (1u32..4).prop_map(Some)],
        plugins(),
        prop_oneof![6 => (placement(), placement()).prop_map(|(gpu, cpu)| Some(NodePlacement { gpu, cpu })), 1 => Just(None)],
        prop_oneof![3 => Just(CardOrder::Pack), 1 => Just(CardOrder::Spread), 1 => Just(CardOrder::Index)],
        0.0..2.0f64,
        prop_oneof![6 => Just(false), 1 => Just(true)],
        victim_rules(),
    )
        .prop_map(|(actions, depth, plugins, node_placement, card_order, k_value, restrict_nodes, victims)| Config {
            actions,
            now: NOW,
            depth: [depth; 5],
            victims,
            plugins,
            node_placement,
            card_order,
            k_value,
            restrict_nodes,
        })
}

fn victim_rules() -> impl Strategy<Value = VictimRules> {
    let by = prop_oneof![Just(ReclaimProtection::CommonAncestor), Just(ReclaimProtection::OwnQueue)];
    let least =
        (0..NOW / 2, 0..NOW / 2, by).prop_map(|(preempt, reclaim, reclaim_by)| MinRuntime { preempt, reclaim, reclaim_by });
    (
        0u8..20,
        prop_oneof![6 => Just(Some(16)), 1 => (0u32..3).prop_map(Some), 1 => Just(None)],
        prop_oneof![3 => Just(true), 1 => Just(false)],
        prop_oneof![3 => Just(1.0), 1 => 1.0..2.0f64],
        prop_oneof![1 => Just(None), 3 => least.prop_map(Some)],
        -1..NOW,
        prop_oneof![6 => Just(1000u32), 1 => 1u32..5],
        // Mostly off: a brake cuts away what the other laws are about.
        prop::array::uniform2(prop_oneof![30 => Just(None), 1 => (0u32..6).prop_map(Some)]),
    )
        .prop_map(|(search, moved, consolidating_reclaim, saturation_multiplier, min_runtime, grace, tries, brakes)| {
            VictimRules {
                search: search > 0,
                consolidation_jobs_max: moved,
                consolidating_reclaim,
                saturation_multiplier,
                min_runtime,
                staleness_grace: grace,
                simulations_max: tries,
                evictions_max: brakes[0],
                queue_evictions_max: brakes[1],
                fewest: false,
                shortcuts: true,
            }
        })
}

fn times() -> impl Strategy<Value = GangTimes> {
    let when = || prop_oneof![2 => Just(None), 1 => (0..NOW).prop_map(Some)];
    let (delay, grace) = (prop_oneof![4 => Just(0i64), 1 => 0..NOW], prop_oneof![4 => Just(None), 1 => (-1..NOW).prop_map(Some)]);
    (0..NOW, when(), when(), when(), delay, grace).prop_map(
        |(created, started, evicted, stale, preemption_delay, staleness_grace)| GangTimes {
            created,
            started,
            evicted,
            stale,
            preemption_delay,
            staleness_grace,
        },
    )
}

fn plugins() -> impl Strategy<Value = Plugins> {
    let some = any::<[u8; 12]>().prop_map(|draws| {
        let on = draws.map(|draw| draw >= 64);
        Plugins {
            predicates: on[0],
            proportion: on[1],
            priority: on[2],
            elastic: on[3],
            kubeflow: on[4],
            ray: on[5],
            task_order: on[6],
            subgroup_order: on[7],
            nominated_node: on[8],
            gpu_sharing_order: on[9],
            node_availability: on[10],
            resource_type: on[11],
        }
    });
    prop_oneof![2 => Just(Plugins::ALL), 1 => some]
}

fn node() -> impl Strategy<Value = NodeDraft> {
    let (gpus, slots) = (prop_oneof![1 => Just(0i64), 4 => 1i64..=8], prop_oneof![1 => 0i64..=4, 3 => 5i64..=30]);
    let size = (0i64..=64, 0i64..=128, gpus, slots);
    let cards = prop_oneof![
        3 => Just(Some(40_000)),
        2 => Just(Some(46_068)),
        3 => Just(Some(10_000)),
        1 => Just(Some(100)),
        2 => Just(None),
    ];
    let mig = prop_oneof![12 => Just(Mig::Off), 1 => Just(Mig::Single), 1 => Just(Mig::Mixed), 1 => Just(Mig::Unknown)];
    let flags = (0u8..10, any::<bool>(), any::<bool>());
    (size, cards, mig, extra(8), flags, option(ZONES), option(SIZES.len()), prop_oneof![5 => Just(0u8), 1 => 0u8..4]).prop_map(
        |((cpu, memory, gpus, pods), card_mib, mig, extra, (ready, gpu_worker, cpu_worker), zone, size, taints)| {
            let row = NodeRow {
                cpu: cpu * 1000,
                memory: memory * GIB,
                gpus,
                pods,
                extra,
                gpu_count: gpus,
                card_mib,
                mig,
                ready: ready > 0,
                gpu_worker,
                cpu_worker,
            };
            NodeDraft { row, zone, size, taints }
        },
    )
}

fn option(below: usize) -> impl Strategy<Value = Option<usize>> {
    prop_oneof![1 => Just(None), 3 => (0..below).prop_map(Some)]
}

/// Amounts of the resources beside the four, most often none; MIG on some.
fn extra(most: i64) -> impl Strategy<Value = Vec<(DimIdx, i64)>> {
    let amount = move || prop_oneof![4 => Just(0i64), 1 => 1..=most];
    [amount(), amount(), amount()].prop_map(|amounts| {
        let some = amounts.into_iter().enumerate().filter(|&(_, amount)| amount > 0);
        some.map(|(dim, amount)| (DimIdx::new(dim), amount * 1000)).collect()
    })
}

pub(super) fn queue() -> impl Strategy<Value = QueueDraft> {
    let bound = || (bounded(0..40i64, 1000), bounded(0..64i64, GIB), bounded(0..80i64, MICRO_PER_GPU / 8));
    let numbers = (0i32..3, [0u8..4, 0..4, 0..4], [0u8..4, 0..4, 0..4], 0u8..3, any::<prop::sample::Index>());
    let least = || prop_oneof![3 => Just(None), 1 => (0..NOW).prop_map(Some)];
    let least = (least(), least());
    (bound(), bound(), numbers, least).prop_map(|(quota, limit, (priority, weight, usage, level, parent), least)| QueueDraft {
        row: QueueRow {
            parent: None,
            priority,
            quota: Amounts::new(quota.0, quota.1, quota.2),
            limit: Amounts::new(limit.0, limit.1, limit.2),
            weight: weight.map(f64::from),
            usage: usage.map(|parts| f64::from(parts) / 8.0),
            preempt_min_runtime: least.0,
            reclaim_min_runtime: least.1,
        },
        level,
        parent: parent.index(1 << 16),
    })
}

fn bounded(of: std::ops::Range<i64>, unit: i64) -> impl Strategy<Value = i64> {
    // One less than what pods add up to is a bound like any other.
    let odd = prop_oneof![2 => Just(0i64), 1 => Just(1)];
    prop_oneof![2 => Just(UNLIMITED), 1 => (of, odd).prop_map(move |(n, less)| (n * unit - less).max(0))]
}

fn class() -> impl Strategy<Value = ClassRow> {
    let portion = prop_oneof![Just(500_000i64), Just(250_000), Just(333_333), Just(62_500), Just(1_000_000), 1i64..1_000_000];
    let mib = prop_oneof![3 => 1i64..=10_000, 1 => 1i64..=50_000];
    let gpu = prop_oneof![
        3 => Just(GpuRequest::None),
        4 => (1u32..=4).prop_map(GpuRequest::Whole),
        3 => (portion, devices()).prop_map(|(portion, devices)| GpuRequest::Fraction { portion, devices }),
        2 => (mib, devices()).prop_map(|(mib, devices)| GpuRequest::Memory { mib, devices }),
    ];
    let mig = prop_oneof![8 => Just(vec![]), 1 => extra(2)];
    let blocked = prop_oneof![Just(Blocked::MissingConfigMap), Just(Blocked::LegacyMig)];
    let blocked = prop_oneof![10 => Just(None), 1 => blocked.prop_map(Some)];
    let places = (few(requirement()), prop_oneof![4 => Just(None), 1 => vec(vec(requirement(), 0..3), 0..3).prop_map(Some)]);
    (0i64..=16, 0i64..=16, gpu, mig, places, 0u8..4, blocked).prop_map(
        |(cpu, memory, gpu, extra, (selector, affinity), tolerated, blocked)| {
            let counted = extra.iter().any(|&(dim, _)| MIG_GPUS[dim.at()] > 0);
            ClassRow {
                cpu: cpu * 250,
                memory: memory * GIB / 2,
                gpu: if counted { GpuRequest::None } else { gpu },
                extra,
                selector,
                affinity,
                tolerated: (0..TAINTS).filter(|taint| tolerated >> taint & 1 == 1).map(TaintIdx::new).collect(),
                blocked,
            }
        },
    )
}

fn devices() -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(1u32), 1 => 2u32..=3]
}

fn few<T: std::fmt::Debug + Clone>(of: impl Strategy<Value = T> + 'static) -> impl Strategy<Value = Vec<T>> {
    prop_oneof![4 => Just(0usize), 1 => 1usize..3].prop_flat_map({
        let of = of.boxed();
        move |n| vec(of.clone(), n)
    })
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let labels = || vec((0..ZONES + SIZES.len()).prop_map(LabelIdx::new), 0..3);
    let key = || prop_oneof![1 => Just(None), 6 => (0usize..2).prop_map(|key| Some(KeyIdx::new(key)))];
    let nodes = || vec((0usize..40).prop_map(NodeIdx::new), 0..20);
    prop_oneof![
        4 => labels().prop_map(Requirement::In),
        2 => labels().prop_map(Requirement::NotIn),
        1 => key().prop_map(Requirement::Exists),
        1 => key().prop_map(Requirement::DoesNotExist),
        1 => (key(), 0i64..9).prop_map(|(key, bound)| Requirement::Greater(key, bound)),
        1 => (key(), 0i64..9).prop_map(|(key, bound)| Requirement::Less(key, bound)),
        1 => nodes().prop_map(Requirement::NodeIn),
        1 => nodes().prop_map(Requirement::NodeNotIn),
    ]
}

pub(super) fn gang() -> impl Strategy<Value = GangDraft> {
    let queue = prop_oneof![
        20 => (0usize..100).prop_map(QueuePick::Leaf),
        2 => (0usize..100).prop_map(QueuePick::Any),
        1 => Just(QueuePick::Missing),
        1 => Just(QueuePick::MissingAncestor),
    ];
    let tree = prop_oneof![5 => single_tree(), 3 => tree()];
    (queue, 0i32..3, any::<bool>(), 0u8..20, tree, 0usize..100, vec(pod(Loose::No), 0..=8), times()).prop_map(
        |(queue, priority, preemptible, backed_off, tree, class, pods, times)| GangDraft {
            queue,
            priority,
            preemptible,
            backed_off: backed_off == 0,
            tree,
            class,
            pods,
            times,
        },
    )
}

fn single_tree() -> impl Strategy<Value = TreeDraft> {
    (0u32..=4).prop_map(|min| TreeDraft { leaves: vec![min], sets: vec![], required: 0, sets_first: false })
}

fn tree() -> impl Strategy<Value = TreeDraft> {
    (vec(0u32..=2, 0..=3), vec((1u32..=3, vec(0u32..=2, 1..=3)), 0..=2), 0u32..=3, any::<bool>()).prop_map(
        |(mut leaves, sets, required, sets_first)| {
            if leaves.is_empty() && sets.is_empty() {
                leaves.push(1);
            }
            TreeDraft { leaves, sets, required, sets_first }
        },
    )
}

#[derive(Clone, Copy, PartialEq)]
enum Loose {
    Yes,
    No,
}

fn pod(loose: Loose) -> impl Strategy<Value = PodDraft> {
    use PodStatus::{Binding, Bound, Gated, Other, Pending, Releasing, Running, StuckInReleasing, Succeeded};
    let waiting = if loose == Loose::Yes { 1 } else { 20 };
    let status = prop_oneof![
        waiting => Just(Pending),
        6 => Just(Running),
        1 => Just(Binding),
        1 => Just(Bound),
        3 => Just(Releasing),
        1 => Just(StuckInReleasing),
        1 => Just(Gated),
        1 => Just(Succeeded),
        1 => Just(Other),
    ];
    let place = (
        prop_oneof![15 => (0usize..100).prop_map(Some), 1 => Just(None)],
        prop_oneof![12 => Just(false), 1 => Just(true)],
        0usize..100,
        prop_oneof![6 => Just(None), 1 => (0usize..100).prop_map(Some)],
    );
    let task_priority = prop_oneof![
        4 => Just(TaskPriority::Absent),
        2 => (-2i64..3).prop_map(TaskPriority::Number),
        1 => Just(TaskPriority::Unparsable),
    ];
    let leaf = prop_oneof![20 => (0usize..100).prop_map(Some), 1 => Just(None)];
    let class = prop_oneof![6 => Just(None), 1 => (0usize..100).prop_map(Some)];
    (leaf, class, status, place, [0u8..10, 0..10, 0..10, 0..10], task_priority).prop_map(
        move |(leaf, class, status, (node, forced, cards, nominated), flags, task_priority)| PodDraft {
            leaf,
            class: class.or(if loose == Loose::Yes { Some(cards) } else { None }),
            status,
            node,
            forced,
            cards,
            nominated,
            foreign: flags[0] == 0 || loose == Loose::Yes && flags[0] < 6,
            reservation: loose == Loose::Yes && flags[1] == 0,
            leader: flags[2] == 0,
            ray_head: flags[3] == 0,
            task_priority,
        },
    )
}
