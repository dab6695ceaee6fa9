//! Clusters as rows, for benches that measure the core alone: the shapes of `gen_cluster.py` without objects around them.

use muster_core::index::{ClassIdx, Col, Idx, NodeIdx, PodIdx, QueueIdx, Span, SubgroupIdx};
use muster_core::snapshot::{
    ClassRow, GangRow, GangTimes, GpuRequest, NodeRow, PodRow, PodStatus, QueueRow, Snapshot, SubgroupKind, SubgroupRow,
    TaskPriority,
};
use muster_core::tables::queues::Queues;
use muster_core::units::{Amounts, MICRO_PER_GPU, UNLIMITED};

const GIB: i64 = 1 << 30;
pub(crate) const GPUS_PER_NODE: u32 = 8;
/// Queues of the first level.
pub(crate) const DEPARTMENTS: usize = 4;
/// Queues below each of them.
pub(crate) const TEAMS: usize = 8;

/// One class of pods.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// What each pod asks of GPUs.
    pub gpu: GpuRequest,
    /// Pods of a gang.
    pub pods: usize,
}

/// An empty cluster of 8-GPU nodes and 32 queues.
#[must_use]
pub fn empty(nodes: usize) -> Snapshot {
    let mut rows = idle_nodes(nodes);
    let gpus = i64::try_from(nodes).unwrap_or(i64::MAX) * i64::from(GPUS_PER_NODE) * MICRO_PER_GPU;
    let share = |queues: usize| i64::try_from(queues).unwrap_or(i64::MAX);
    for _ in 0..DEPARTMENTS {
        let parent = add_queue(&mut rows, None, gpus / share(DEPARTMENTS));
        for _ in 0..TEAMS {
            add_queue(&mut rows, Some(parent), gpus / share(DEPARTMENTS * TEAMS));
        }
    }
    rows
}

/// 8-GPU nodes, and nothing else.
pub(crate) fn idle_nodes(nodes: usize) -> Snapshot {
    let mut rows = Snapshot::default();
    for _ in 0..nodes {
        rows.nodes.push(NodeRow {
            cpu: 192_000,
            memory: 2048 * GIB,
            gpus: i64::from(GPUS_PER_NODE),
            pods: 250,
            gpu_count: i64::from(GPUS_PER_NODE),
            card_mib: Some(81_559),
            ready: true,
            ..NodeRow::default()
        });
    }
    rows
}

/// Adds a queue that deserves `quota` micro-GPU, and any amount of cpu and memory.
pub(crate) fn add_queue(rows: &mut Snapshot, parent: Option<QueueIdx>, quota: i64) -> QueueIdx {
    rows.queues.push(QueueRow {
        parent,
        priority: 100,
        quota: Amounts::new(UNLIMITED, UNLIMITED, quota),
        limit: Amounts::UNLIMITED,
        weight: [1.0; 3],
        ..QueueRow::default()
    })
}

/// The `i`-th of the team queues of [`empty`].
pub(crate) fn team(i: usize) -> QueueIdx {
    QueueIdx::new(i / TEAMS * (TEAMS + 1) + 1 + i % TEAMS)
}

/// Adds `count` pending gangs of each shape in turn, over all team queues.
pub fn add_pending(rows: &mut Snapshot, shapes: &[Shape], count: usize) {
    let classes: Vec<ClassIdx> = shapes.iter().map(|shape| add_class(rows, shape.gpu)).collect();
    for i in 0..count {
        let (shape, class) = (&shapes[i % shapes.len()], classes[i % shapes.len()]);
        add_gang(rows, team(i % (DEPARTMENTS * TEAMS)), class, LOW_PRIORITY, Pods::Pending(shape.pods));
    }
}

/// `roots` queues with `below` queues each, all of them asking for more than they deserve; weights and quotas vary.
#[must_use]
pub fn nested_queues(roots: usize, below: usize) -> Queues {
    let mut rows = Col::new();
    let row = |parent, i: usize| {
        let i = i64::try_from(i).unwrap_or(0);
        QueueRow {
            parent,
            quota: Amounts::new(i * 1000, i << 30, i * MICRO_PER_GPU),
            limit: Amounts::UNLIMITED,
            #[expect(clippy::cast_precision_loss, reason = "a small weight")]
            weight: [1.0 + (i % 7) as f64; 3],
            ..QueueRow::default()
        }
    };
    for root in 0..roots {
        let parent = rows.push(row(None, root));
        for i in 0..below {
            rows.push(row(Some(parent), i));
        }
    }
    let mut queues = Queues::default();
    queues.load(&rows);
    for requested in queues.requested.as_mut_slice() {
        *requested = Amounts::new(1 << 36, 1 << 46, 5000 * MICRO_PER_GPU);
    }
    queues
}

/// Priority of a gang unless its scenario says otherwise.
pub(crate) const LOW_PRIORITY: i32 = 50;

/// What the pods of a gang are doing.
#[derive(Clone, Copy)]
pub(crate) enum Pods {
    /// So many wait, all or none.
    Pending(usize),
    /// One runs here.
    On(NodeIdx),
}

/// Adds a class of pods that differ in GPUs only.
pub(crate) fn add_class(rows: &mut Snapshot, gpu: GpuRequest) -> ClassIdx {
    rows.classes.push(ClassRow { cpu: 4000, memory: 32 * GIB, gpu, ..ClassRow::default() })
}

/// Adds a preemptible gang of one pod set.
pub(crate) fn add_gang(rows: &mut Snapshot, queue: QueueIdx, class: ClassIdx, priority: i32, pods: Pods) {
    let (pods, status, node) = match pods {
        Pods::Pending(pods) => (pods, PodStatus::Pending, None),
        Pods::On(node) => (1, PodStatus::Running, Some(node)),
    };
    let min = u32::try_from(pods).unwrap_or(u32::MAX);
    let subgroup = rows.subgroups.push(SubgroupRow { parent: None, kind: SubgroupKind::PodSet { min } });
    let start = rows.pods.len();
    let gang = rows.gangs.push(GangRow {
        queue: Ok(queue),
        priority,
        preemptible: true,
        subgroups: Span::<SubgroupIdx>::new(subgroup.at(), subgroup.at() + 1),
        required: 1,
        pods: Span::<PodIdx>::new(start, start + pods),
        backed_off: false,
        times: GangTimes::default(),
    });
    for _ in 0..pods {
        rows.pods.push(PodRow {
            gang: Some(gang),
            subgroup: Some(subgroup),
            class,
            status,
            node,
            nominated: None,
            groups: (0, 0),
            foreign: false,
            reservation: false,
            kept: false,
            leader: false,
            ray_head: false,
            task_priority: TaskPriority::Absent,
        });
    }
}
