//! Drafts about one thing: cards that are shared, clusters that are full, room in pieces, and plain counting.

use muster_core::config::{Action, Config, Plugins};
use muster_core::index::{Idx, TaintIdx};
use muster_core::snapshot::{ClassRow, GangTimes, GpuRequest, Mig, NodeRow, PodStatus, QueueRow, TaskPriority};
use muster_core::units::{Amounts, MICRO_PER_GPU, UNLIMITED};
use proptest::collection::vec;
use proptest::prelude::*;

use super::strategy::{GIB, config, drafts, gang, queue};
use super::{Draft, GangDraft, NodeDraft, PodDraft, QueueDraft, QueuePick, TAINTS, TreeDraft};

/// Clusters where all work shares cards of different sizes, below small quotas and limits: what a pod counts for depends on the
/// card that it gets.
pub fn shared_drafts() -> impl Strategy<Value = Draft> {
    let portions = vec((1i64..=40, prop_oneof![3 => Just(1u32), 1 => Just(2u32)], any::<bool>()), 10);
    (drafts(), portions).prop_map(|(mut draft, portions)| {
        draft.config.plugins = Plugins::ALL;
        draft.config.restrict_nodes = false;
        for node in &mut draft.nodes {
            node.row = NodeRow { ready: true, mig: Mig::Off, gpus: node.row.gpus.max(1), pods: 30, ..node.row.clone() };
            node.taints = 0;
        }
        for (class, (part, devices, sized)) in draft.classes.iter_mut().zip(portions) {
            let gpu = if sized {
                GpuRequest::Memory { mib: part * 250, devices }
            } else {
                GpuRequest::Fraction { portion: part * MICRO_PER_GPU / 40, devices }
            };
            *class = ClassRow { gpu, ..ClassRow::default() };
        }
        for queue in &mut draft.queues {
            for bounds in [&mut queue.row.quota, &mut queue.row.limit] {
                let gpus = &mut bounds.0[2];
                *gpus = if *gpus == UNLIMITED { UNLIMITED } else { *gpus % (3 * MICRO_PER_GPU) };
                (bounds.0[0], bounds.0[1]) = (UNLIMITED, UNLIMITED);
            }
        }
        draft
    })
}

/// Clusters so full that gangs start only if others go or move: few nodes of few GPUs, gangs that mostly run or wait as a whole,
/// in queues that hold more or less than is theirs.
pub fn contended_drafts() -> impl Strategy<Value = Draft> {
    let node = (1i64..=8, prop_oneof![3 => Just(0u8), 1 => 1u8..4]).prop_map(|(gpus, taints)| NodeDraft {
        row: NodeRow {
            cpu: 64_000,
            memory: 64 * GIB,
            gpus,
            pods: 30,
            gpu_count: gpus,
            card_mib: Some(40_000),
            ready: true,
            ..NodeRow::default()
        },
        zone: None,
        size: None,
        taints,
    });
    let gpu = prop_oneof![
        6 => (1u32..=3).prop_map(GpuRequest::Whole),
        2 => (1i64..=3).prop_map(|part| GpuRequest::Fraction { portion: part * MICRO_PER_GPU / 4, devices: 1 }),
        1 => (1i64..=3).prop_map(|part| GpuRequest::Memory { mib: part * 10_000, devices: 1 }),
    ];
    let class = (gpu, 0u8..4).prop_map(|(gpu, tolerated)| ClassRow {
        cpu: 100,
        gpu,
        tolerated: (0..TAINTS).filter(|taint| tolerated >> taint & 1 == 1).map(TaintIdx::new).collect(),
        ..ClassRow::default()
    });
    let gang = (gang(), any::<[bool; 2]>(), 0u8..4).prop_map(|(mut gang, [runs, plain], mixed)| {
        gang.preemptible |= mixed > 0;
        for (n, pod) in gang.pods.iter_mut().enumerate() {
            if mixed > 0 && pod.status != PodStatus::Succeeded {
                pod.status = if runs { PodStatus::Running } else { PodStatus::Pending };
            }
            (pod.foreign, pod.forced, pod.class) = (false, false, None);
            pod.node = Some(pod.node.unwrap_or(n));
        }
        if plain {
            let min = u32::try_from(gang.pods.len()).expect("few pods").min(2);
            gang.tree = TreeDraft { leaves: vec![min], sets: vec![], required: 0, sets_first: false };
        }
        gang
    });
    let queue = (queue(), any::<[bool; 2]>(), 0i64..6).prop_map(|(mut queue, [quota, limit], gpus)| {
        queue.row.quota = Amounts::new(UNLIMITED, UNLIMITED, if quota { gpus * MICRO_PER_GPU } else { queue.row.quota.0[2] });
        if limit {
            queue.row.limit = Amounts::UNLIMITED;
        }
        queue.row.weight = queue.row.weight.map(|weight| weight + 1.0);
        queue
    });
    (config(), vec(node, 1..=5), vec(queue, 1..=6), vec(class, 1..=4), vec(gang, 1..=16)).prop_map(
        |(config, nodes, queues, classes, gangs)| {
            let config = Config { restrict_nodes: false, plugins: Plugins::ALL, actions: Action::DEFAULT.to_vec(), ..config };
            Draft { config, nodes, queues, classes, gangs, loose: vec![] }
        },
    )
}

/// Clusters with room in pieces: small gangs run here and there, large ones wait, queues are no obstacle.
pub fn fragmented_drafts() -> impl Strategy<Value = Draft> {
    let classes: Vec<ClassRow> = (1..=4).map(|gpus| ClassRow { gpu: GpuRequest::Whole(gpus), ..ClassRow::default() }).collect();
    (contended_drafts(), 2usize..=6, vec((0usize..6, any::<bool>()), 16)).prop_map(move |(mut draft, nodes, sizes)| {
        draft.nodes.truncate(1);
        draft.nodes[0].taints = 0;
        (draft.nodes[0].row.gpus, draft.nodes[0].row.gpu_count) = (4, 4);
        draft.nodes = vec![draft.nodes[0].clone(); nodes];
        draft.classes.clone_from(&classes);
        for queue in &mut draft.queues {
            (queue.row.quota, queue.row.limit) = (Amounts::UNLIMITED, Amounts::UNLIMITED);
        }
        for (n, (gang, (at, large))) in draft.gangs.iter_mut().zip(sizes).enumerate() {
            let runs = n < nodes + nodes / 2;
            (gang.class, gang.backed_off, gang.preemptible) = (usize::from(large) + if runs { 0 } else { 2 }, false, true);
            gang.tree = TreeDraft { leaves: vec![1], sets: vec![], required: 0, sets_first: false };
            gang.pods.truncate(1);
            for pod in &mut gang.pods {
                (pod.status, pod.node) = (if runs { PodStatus::Running } else { PodStatus::Pending }, Some(at + n));
            }
        }
        draft
    })
}

/// Tiny clusters of whole GPUs where a gang's chance does not depend on where others went: one class, one unlimited queue, pod
/// sets without running pods.
pub fn plain_drafts() -> impl Strategy<Value = Draft> {
    let node = (0i64..=8, 1i64..=10).prop_map(|(gpus, pods)| NodeDraft {
        row: NodeRow { cpu: 64_000, memory: 64 * GIB, gpus, pods, gpu_count: gpus, ready: true, ..NodeRow::default() },
        zone: None,
        size: None,
        taints: 0,
    });
    let gang = (1u32..=7, 0i32..3).prop_flat_map(|(min, priority)| {
        vec(pending_pod(), min as usize).prop_map(move |pods| GangDraft {
            queue: QueuePick::Leaf(0),
            priority,
            preemptible: true,
            backed_off: false,
            tree: TreeDraft { leaves: vec![min], sets: vec![], required: 0, sets_first: false },
            class: 0,
            pods,
            times: GangTimes::default(),
        })
    });
    (vec(node, 1..=6), 1u32..=3, vec(gang, 1..=8)).prop_map(|(nodes, gpus, gangs)| Draft {
        config: Config { actions: vec![Action::Allocate], ..Config::kai_default() },
        nodes,
        queues: vec![QueueDraft {
            row: QueueRow { quota: Amounts::UNLIMITED, limit: Amounts::UNLIMITED, weight: [1.0; 3], ..QueueRow::default() },
            level: 0,
            parent: 0,
        }],
        classes: vec![ClassRow { gpu: GpuRequest::Whole(gpus), ..ClassRow::default() }],
        gangs,
        loose: vec![],
    })
}

fn pending_pod() -> impl Strategy<Value = PodDraft> {
    Just(PodDraft {
        leaf: Some(0),
        class: None,
        status: PodStatus::Pending,
        node: Some(0),
        forced: false,
        cards: 0,
        nominated: None,
        foreign: false,
        reservation: false,
        leader: false,
        ray_head: false,
        task_priority: TaskPriority::Absent,
    })
}
