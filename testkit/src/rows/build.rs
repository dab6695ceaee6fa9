//! Draft → rows.

use muster_core::index::{ClassIdx, Col, GangIdx, GroupIdx, Idx, LabelIdx, NodeIdx, PodIdx, QueueIdx, Span, SubgroupIdx};
use muster_core::snapshot::{
    ClassRow, ExtraDim, GangRow, GpuRequest, LabelRow, NoQueue, PodRow, PodStatus, QueueRow, Requirement, Snapshot, SubgroupKind,
    SubgroupRow,
};

use super::{Draft, GangDraft, MIG_GPUS, PodDraft, QueueDraft, QueuePick, SIZES, TAINTS, TreeDraft, ZONES};

impl Draft {
    /// The rows. Pods that are to have a node get the first one from theirs on that has room, or theirs if it is forced on them;
    /// without one they wait.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut rows = Snapshot { config: self.config.clone(), ..Snapshot::default() };
        rows.dims = MIG_GPUS.iter().map(|&mig_gpus| ExtraDim { mig_gpus }).collect();
        self.add_nodes(&mut rows);
        rows.classes = self.classes.iter().map(|class| self.class_row(class)).collect();
        rows.queues = queues(&self.queues);
        let mut filling = Filling::of(&rows);
        let classes = rows.classes.len();
        for gang in &self.gangs {
            let index: GangIdx = rows.gangs.push(gang_row(gang, &rows.queues));
            let leaves = add_tree(&gang.tree, &mut rows.subgroups);
            let start = rows.pods.len();
            for pod in &gang.pods {
                let leaf = pod.leaf.map(|leaf| leaves[leaf % leaves.len()]);
                let class = ClassIdx::new(pod.class.unwrap_or(gang.class) % classes);
                let row = filling.pod(&mut rows, pod, class, Some(index), leaf);
                rows.pods.push(row);
            }
            let row = &mut rows.gangs[index];
            row.pods = Span::new(start, rows.pods.len());
            row.subgroups = Span::new(rows.subgroups.len() - leaves.len() - gang.tree.sets.len(), rows.subgroups.len());
        }
        for pod in &self.loose {
            let class = ClassIdx::new(pod.class.unwrap_or(0) % classes);
            let row = filling.pod(&mut rows, pod, class, None, None);
            if row.node.is_some() {
                rows.pods.push(row);
            }
        }
        rows
    }

    fn add_nodes(&self, rows: &mut Snapshot) {
        let with = |good: &dyn Fn(&super::NodeDraft) -> bool| {
            let nodes = self.nodes.iter().enumerate().filter(|(_, node)| good(node));
            nodes.map(|(i, _)| NodeIdx::new(i)).collect::<Vec<NodeIdx>>()
        };
        rows.nodes = self.nodes.iter().map(|node| node.row.clone()).collect();
        for zone in 0..ZONES {
            rows.labels.push(LabelRow { number: None, nodes: with(&|node| node.zone == Some(zone)) });
        }
        for (size, &number) in SIZES.iter().enumerate() {
            rows.labels.push(LabelRow { number: Some(number), nodes: with(&|node| node.size == Some(size)) });
        }
        rows.keys.push((0..ZONES).map(LabelIdx::new).collect());
        rows.keys.push((ZONES..ZONES + SIZES.len()).map(LabelIdx::new).collect());
        for taint in 0..TAINTS {
            rows.taints.push(with(&|node| node.taints >> taint & 1 == 1));
        }
    }

    /// The class with its node names brought into range.
    fn class_row(&self, class: &ClassRow) -> ClassRow {
        let mut row = class.clone();
        let count = self.nodes.len();
        for requirement in row.selector.iter_mut().chain(row.affinity.iter_mut().flatten().flatten()) {
            if let Requirement::NodeIn(nodes) | Requirement::NodeNotIn(nodes) = requirement {
                for node in nodes.iter_mut() {
                    *node = NodeIdx::new(node.at() % count);
                }
                nodes.sort_unstable();
                nodes.dedup();
            }
        }
        row
    }
}

fn queues(drafts: &[QueueDraft]) -> Col<QueueIdx, QueueRow> {
    // A queue without a queue on each level above it is a root.
    let has = |level: u8| drafts.iter().any(|draft| draft.level == level);
    let level = |draft: &QueueDraft| if (0..draft.level).all(has) { draft.level } else { 0 };
    let levels: Vec<u8> = drafts.iter().map(level).collect();
    let rows = drafts.iter().enumerate().map(|(at, draft)| {
        let above: Vec<usize> = (0..drafts.len()).filter(|&other| levels[at] > 0 && levels[other] == levels[at] - 1).collect();
        let parent = if above.is_empty() { None } else { Some(QueueIdx::new(above[draft.parent % above.len()])) };
        QueueRow { parent, ..draft.row.clone() }
    });
    rows.collect()
}

fn gang_row(gang: &GangDraft, queues: &Col<QueueIdx, QueueRow>) -> GangRow {
    let leaves: Vec<QueueIdx> = queues.indices().filter(|&q| queues.iter().all(|row| row.parent != Some(q))).collect();
    let queue = match gang.queue {
        QueuePick::Leaf(pick) => Ok(leaves[pick % leaves.len()]),
        QueuePick::Any(pick) => Ok(QueueIdx::new(pick % queues.len())),
        QueuePick::Missing => Err(NoQueue::Missing),
        QueuePick::MissingAncestor => Err(NoQueue::MissingAncestor),
    };
    let members = u32::try_from(gang.tree.leaves.len() + gang.tree.sets.len()).expect("few members");
    GangRow {
        queue,
        priority: gang.priority,
        preemptible: gang.preemptible && queue.is_ok(),
        subgroups: Span::EMPTY,
        required: all_or(gang.tree.required, members),
        pods: Span::EMPTY,
        backed_off: gang.backed_off,
        times: gang.times,
    }
}

fn all_or(required: u32, members: u32) -> u32 {
    if required == 0 { members } else { required.min(members) }
}

/// Appends a gang's sub-groups and returns its leaves.
fn add_tree(tree: &TreeDraft, subgroups: &mut Col<SubgroupIdx, SubgroupRow>) -> Vec<SubgroupIdx> {
    let mut leaves = Vec::new();
    let leaf = |min: u32, parent| SubgroupRow { parent, kind: SubgroupKind::PodSet { min } };
    let set = |required: u32, minima: &[u32]| {
        let members = u32::try_from(minima.len()).expect("few members");
        SubgroupRow { parent: None, kind: SubgroupKind::Set { required: all_or(required, members) } }
    };
    let mut sets = Vec::new();
    if tree.sets_first {
        sets.extend(tree.sets.iter().map(|(required, minima)| subgroups.push(set(*required, minima))));
    }
    leaves.extend(tree.leaves.iter().map(|&min| subgroups.push(leaf(min, None))));
    // Sets after their members by name, if they are not first: the parent's index is known beforehand.
    let inner: usize = tree.sets.iter().map(|(_, minima)| minima.len()).sum();
    if !tree.sets_first {
        let first = subgroups.len() + inner;
        sets.extend((0..tree.sets.len()).map(|at| SubgroupIdx::new(first + at)));
    }
    for ((_, minima), &parent) in tree.sets.iter().zip(&sets) {
        leaves.extend(minima.iter().map(|&min| subgroups.push(leaf(min, Some(parent)))));
    }
    if !tree.sets_first {
        for (required, minima) in &tree.sets {
            subgroups.push(set(*required, minima));
        }
    }
    leaves
}

/// What the pods so far hold: enough to put pods where they mostly fit.
struct Filling {
    /// Cpu, memory, GPUs, pods that are left on each node.
    left: Vec<[i64; 4]>,
    /// Shared cards of each node.
    cards: Vec<Vec<GroupIdx>>,
}

impl Filling {
    fn of(rows: &Snapshot) -> Self {
        let left = rows.nodes.iter().map(|node| [node.cpu, node.memory, node.gpus, node.pods]).collect();
        Self { left, cards: vec![Vec::new(); rows.nodes.len()] }
    }

    fn pod(
        &mut self,
        rows: &mut Snapshot,
        draft: &PodDraft,
        class: ClassIdx,
        gang: Option<GangIdx>,
        subgroup: Option<SubgroupIdx>,
    ) -> PodRow {
        use PodStatus::{Binding, Bound, Releasing, Running, StuckInReleasing};
        let on_node = matches!(draft.status, Running | Binding | Bound | Releasing | StuckInReleasing);
        let request = rows.classes[class].clone();
        let mut status = draft.status;
        let mut node = None;
        if on_node && let Some(wanted) = draft.node {
            node = self.node_for(&request, wanted, draft.forced);
            if node.is_none() {
                status = PodStatus::Pending;
            }
        }
        let start = cut(rows.pod_groups.len());
        if let Some(node) = node {
            let devices = devices(request.gpu);
            self.take_cards(rows, node, devices, draft.cards);
        }
        PodRow {
            gang,
            subgroup,
            class,
            status,
            node,
            nominated: draft.nominated.map(|nominated| NodeIdx::new(nominated % rows.nodes.len())),
            groups: (start, cut(rows.pod_groups.len())),
            foreign: draft.foreign && !draft.reservation,
            reservation: draft.reservation && matches!(request.gpu, GpuRequest::Whole(_)),
            kept: false,
            leader: draft.leader,
            ray_head: draft.ray_head,
            task_priority: draft.task_priority,
        }
    }

    /// A node with room, and takes it.
    fn node_for(&mut self, request: &ClassRow, wanted: usize, forced: bool) -> Option<NodeIdx> {
        let nodes = self.left.len();
        let gpus = match request.gpu {
            GpuRequest::None => 0,
            GpuRequest::Whole(gpus) => i64::from(gpus),
            // A new card now and then; where there is one, it is mostly joined.
            GpuRequest::Fraction { .. } | GpuRequest::Memory { .. } => 1,
        };
        let needs = [request.cpu, request.memory, gpus, 1];
        let fits = |node: &usize| self.left[*node].iter().zip(needs).all(|(&left, need)| left >= need);
        let found = (0..nodes).map(|i| (wanted + i) % nodes).find(fits).or(forced.then_some(wanted % nodes))?;
        for (left, need) in self.left[found].iter_mut().zip(needs) {
            *left -= need;
        }
        Some(NodeIdx::new(found))
    }

    /// Lists `devices` different cards of the node for the next pod: joined or new, as `pick` says.
    fn take_cards(&mut self, rows: &mut Snapshot, node: NodeIdx, devices: usize, pick: usize) {
        let start = rows.pod_groups.len();
        for device in 0..devices {
            let here = &mut self.cards[node.at()];
            let free: Vec<GroupIdx> = here.iter().copied().filter(|card| !rows.pod_groups[start..].contains(card)).collect();
            let card = if free.is_empty() || (pick + device).is_multiple_of(3) {
                let card = rows.groups.push(node);
                here.push(card);
                card
            } else {
                free[pick % free.len()]
            };
            rows.pod_groups.push(card);
        }
    }
}

fn devices(gpu: GpuRequest) -> usize {
    match gpu {
        GpuRequest::None | GpuRequest::Whole(_) => 0,
        GpuRequest::Fraction { devices, .. } | GpuRequest::Memory { devices, .. } => devices as usize,
    }
}

fn cut(i: usize) -> u32 {
    u32::try_from(PodIdx::new(i).at()).expect("an index is a u32")
}
