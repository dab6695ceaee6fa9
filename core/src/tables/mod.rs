//! The cluster as columns: one file a table, one column a line with its unit and who writes it.
//!
//! Loaded from rows once; after that only the [`crate::statement`] writes ledgers, and [`crate::fair_share`] shares.

pub mod classes;
pub mod gangs;
pub mod gpus;
pub mod labels;
pub mod nodes;
pub mod pods;
pub mod queues;

use crate::index::{ClassIdx, Idx, NodeIdx, PodIdx};
use crate::snapshot::{GpuRequest, PodStatus, Snapshot};
use crate::units::{Amounts, MICRO_PER_GPU, mib_share};

/// All tables.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tables {
    /// Nodes: what they offer, what is idle, what will be.
    pub nodes: nodes::Nodes,
    /// Shared GPUs.
    pub gpus: gpus::Gpus,
    /// Request classes.
    pub classes: classes::Classes,
    /// Which nodes carry which labels and taints.
    pub labels: labels::Labels,
    /// Pods.
    pub pods: pods::Pods,
    /// Gangs and the members of their trees.
    pub gangs: gangs::Gangs,
    /// Queues.
    pub queues: queues::Queues,
    /// What the queues share: ready nodes without what foreign pods hold (semantics.md §3.1).
    pub pie: Amounts,
}

impl Tables {
    /// Rows → columns, every pod charged to its node, its gang and its queues.
    ///
    /// # Panics
    /// If an index in a row points beyond its table: a bug of whoever made the rows.
    #[must_use]
    pub fn load(rows: &Snapshot) -> Self {
        let mut tables = Self::default();
        tables.nodes.load(rows);
        tables.gpus.load(rows);
        tables.classes.load(rows, &tables.nodes);
        tables.labels.load(rows);
        tables.queues.load(&rows.queues);
        tables.gangs.load(rows);
        tables.pods.load(rows);
        tables.pie = Self::ready_capacity(rows);
        for pod in tables.pods.class.indices() {
            tables.count_in_at_load(pod, rows.pods[pod].reservation, rows.pods[pod].foreign);
        }
        // What is held is asked for too (semantics.md §3.2).
        for (requested, &allocated) in tables.queues.requested.as_mut_slice().iter_mut().zip(tables.queues.allocated.iter()) {
            *requested += allocated;
        }
        tables
    }

    /// Charges a pod where it is when the cycle begins.
    fn count_in_at_load(&mut self, pod: PodIdx, reservation: bool, foreign: bool) {
        let place = self.pods.placement(pod);
        let class = self.pods.class[pod];
        if let Some(node) = place.node {
            let groups = std::mem::take(&mut self.pods.group_list);
            let held = &groups[place.groups.0 as usize..place.groups.1 as usize];
            self.charge_node(class, node, place.status, held, reservation, 1);
            self.pods.group_list = groups;
            if foreign && holds_node(place.status) && self.nodes.ready(node) {
                self.pie -= self.queue_charge(class, node);
            }
        }
        if let Some(subgroup) = self.pods.subgroup[pod] {
            self.gangs.count(subgroup, place.status, 1);
            self.charge_queues(pod, place.node, place.status, 1);
            if place.status == PodStatus::Pending {
                self.request_pending(pod);
            }
        }
    }

    /// What the ready nodes offer together. A node without the gpu-worker label adds no GPU where scheduling is restricted.
    fn ready_capacity(rows: &Snapshot) -> Amounts {
        let mut pie = Amounts::ZERO;
        for row in rows.nodes.iter().filter(|row| row.ready) {
            let mig: i64 = row.extra.iter().map(|&(dim, n)| i64::from(rows.dims[dim].mig_gpus) * (n / 1000)).sum();
            let gpus = if rows.config.restrict_nodes && !row.gpu_worker { 0 } else { row.gpus + mig };
            pie += Amounts::new(row.cpu, row.memory, gpus * MICRO_PER_GPU);
        }
        pie
    }

    /// Adds a waiting pod to what its queues ask for; MiB are turned into GPUs by the smallest card (semantics.md §2.6).
    fn request_pending(&mut self, pod: PodIdx) {
        let Some(queue) = self.queue_of(pod) else { return };
        let amount = self.classes.charge_at(self.pods.class[pod], self.nodes.smallest_card);
        let mut at = Some(queue);
        while let Some(q) = at {
            self.queues.requested[q] += amount;
            at = self.queues.parent[q];
        }
    }

    fn queue_of(&self, pod: PodIdx) -> Option<crate::index::QueueIdx> {
        self.pods.gang[pod].and_then(|gang| self.gangs.queue[gang].ok())
    }

    /// What a pod of `class` on `node` counts for in its queues.
    #[must_use]
    pub fn queue_charge(&self, class: ClassIdx, node: NodeIdx) -> Amounts {
        self.classes.charge_at(class, self.nodes.card_mib[node])
    }

    /// Adds (`sign` 1) or removes (-1) a pod's charge on all queues of its path, if its status counts there.
    pub(crate) fn charge_queues(&mut self, pod: PodIdx, node: Option<NodeIdx>, status: PodStatus, sign: i64) {
        let (Some(node), true) = (node, is_active(status)) else { return };
        let Some(gang) = self.pods.gang[pod] else { return };
        let Ok(queue) = self.gangs.queue[gang] else { return };
        let charge = self.queue_charge(self.pods.class[pod], node);
        let preemptible = self.gangs.preemptible[gang];
        let mut at = Some(queue);
        while let Some(q) = at {
            add_signed(&mut self.queues.allocated[q], charge, sign);
            if !preemptible {
                add_signed(&mut self.queues.non_preemptible[q], charge, sign);
            }
            at = self.queues.parent[q];
        }
    }

    /// Adds (`sign` 1) or removes (-1) what a pod in `status` takes from `node` (semantics.md §1.5): a holder takes from what
    /// is idle, a keeper from what will be. A reservation pod's GPU is its group's, not its own.
    pub(crate) fn charge_node(
        &mut self,
        class: ClassIdx,
        node: NodeIdx,
        status: PodStatus,
        groups: &[crate::index::GroupIdx],
        reservation: bool,
        sign: i64,
    ) {
        let (holds, keeps) = (holds_node(status), keeps_node(status));
        if !holds && !keeps {
            return;
        }
        self.nodes.changes.push(node);
        for need in self.classes.needs(class) {
            if reservation && need.dim == nodes::GPU {
                continue;
            }
            self.nodes.take(need.dim, node, need.amount * sign, holds, keeps);
        }
        if let Some(mib) = self.classes.mib_on(class, self.nodes.card_mib[node]) {
            for &group in groups {
                let taken = self.gpus.charge(group, mib, holds, keeps, sign);
                let slot = self.gpus.awaits_reservation(group).then_some(nodes::PODS);
                for dim in std::iter::once(nodes::GPU).chain(slot) {
                    self.nodes.take(dim, node, taken.held, true, false);
                    self.nodes.take(dim, node, taken.kept, false, true);
                }
            }
            self.gpus.refresh_room(node, self.nodes.card_mib[node]);
        }
    }
}

/// Whether a pod in this status occupies its node at this moment.
#[must_use]
pub const fn holds_node(status: PodStatus) -> bool {
    use PodStatus::{Allocated, Binding, Bound, Releasing, Running, StuckInReleasing};
    matches!(status, Allocated | Binding | Bound | Running | Releasing | StuckInReleasing)
}

/// Whether a pod in this status will occupy its node once everything that is leaving is gone.
#[must_use]
pub const fn keeps_node(status: PodStatus) -> bool {
    use PodStatus::{Allocated, Binding, Bound, Pipelined, Running, StuckInReleasing};
    matches!(status, Allocated | Binding | Bound | Running | Pipelined | StuckInReleasing)
}

/// Whether a pod in this status counts for its gang's minimum and in its queues ("active-allocated", semantics.md §1.3).
#[must_use]
pub const fn is_active(status: PodStatus) -> bool {
    use PodStatus::{Allocated, Binding, Bound, Pipelined, Running};
    matches!(status, Allocated | Binding | Bound | Running | Pipelined)
}

/// Adds (`sign` 1) or removes (-1) an amount.
pub(crate) fn add_signed(to: &mut Amounts, amount: Amounts, sign: i64) {
    if sign > 0 {
        *to += amount;
    } else {
        *to -= amount;
    }
}

/// GPUs of a request that counts whole devices, in devices.
#[must_use]
pub(crate) const fn whole_gpus(request: GpuRequest) -> i64 {
    match request {
        GpuRequest::Whole(n) => n as i64,
        _ => 0,
    }
}

/// Micro-GPU of a request on a card of `card_mib`.
#[must_use]
pub(crate) fn gpu_charge(request: GpuRequest, card_mib: i64) -> i64 {
    match request {
        GpuRequest::None => 0,
        GpuRequest::Whole(n) => i64::from(n) * MICRO_PER_GPU,
        GpuRequest::Fraction { portion, devices } => portion.saturating_mul(i64::from(devices)),
        GpuRequest::Memory { mib, devices } => mib_share(mib, card_mib).saturating_mul(i64::from(devices)),
    }
}

/// A mask of `rows` rows, none of them set.
#[must_use]
pub(crate) fn empty_mask(rows: usize) -> Vec<u64> {
    vec![0; muster_kernels::mask::words(rows)]
}

/// Row `i` as an index, for loops over masks.
#[must_use]
pub(crate) fn at<I: Idx>(i: usize) -> I {
    I::new(i)
}
