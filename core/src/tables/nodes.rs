//! Nodes: what each offers, what is idle now, and what will be idle soon.
//!
//! *Idle* is what nobody holds at this moment. *Soon* is what will be free once everything that is being released is gone and
//! everything that was promised has come (KAI's "idle + releasing", semantics.md §1.5). A pod that holds takes from idle, a pod
//! that keeps takes from soon. Both may be negative: a node can be over-committed before we look.

use muster_kernels::mask;

use crate::index::{Col, DimIdx, Idx, NodeIdx};
use crate::snapshot::{Blocked, Mig, Snapshot};
use crate::units::NOMINAL_CARD_MIB;

/// A resource of a node, as a position in [`Nodes::total`], [`Nodes::idle`] and [`Nodes::soon`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Dim(u16);

/// Millicores.
pub const CPU: Dim = Dim(0);
/// Bytes.
pub const MEMORY: Dim = Dim(1);
/// Whole GPUs that are not shared.
pub const GPU: Dim = Dim(2);
/// Pod slots.
pub const PODS: Dim = Dim(3);
const FIRST_EXTRA: usize = 4;

impl Dim {
    /// The dimension of another resource, its value × 1000.
    ///
    /// # Panics
    /// Beyond 65,531 different resources.
    #[must_use]
    pub fn extra(dim: DimIdx) -> Self {
        Self(u16::try_from(dim.at() + FIRST_EXTRA).expect("fewer than 65,532 kinds of resources"))
    }

    /// The other resource that this dimension is, if it is one.
    #[must_use]
    pub fn as_extra(self) -> Option<DimIdx> {
        (self.at() >= FIRST_EXTRA).then(|| DimIdx::new(self.at() - FIRST_EXTRA))
    }

    /// Position among the dimensions.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// One row a node.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Nodes {
    /// Allocatable, per dimension ([`Dim`]). Fixed.
    pub total: Vec<Col<NodeIdx, i64>>,
    /// GPUs of queue quota that a piece of a dimension stands for (MIG), per dimension. Fixed.
    pub quota_gpus: Vec<i64>,
    /// Held by nobody, per dimension. Written by `tables` and the statement.
    pub idle: Vec<Col<NodeIdx, i64>>,
    /// Free once everything that is leaving is gone, per dimension. Written by `tables` and the statement.
    pub soon: Vec<Col<NodeIdx, i64>>,
    /// MiB of one card; [`NOMINAL_CARD_MIB`] where unknown. Fixed.
    pub card_mib: Col<NodeIdx, i64>,
    /// GPUs that the spread score divides by. Fixed.
    pub gpu_count: Col<NodeIdx, i64>,
    /// MIG. Fixed.
    pub mig: Col<NodeIdx, Mig>,
    /// Mask: the size of the cards is known. Fixed.
    pub card_known: Vec<u64>,
    /// Mask: schedulable and healthy. Fixed.
    pub ready: Vec<u64>,
    /// Mask: has no GPU of any kind (semantics.md §1.5). Fixed.
    pub cpu_only: Vec<u64>,
    /// Mask: some pod there holds MIG instances by annotation, so that who asks for them by name stays away. Fixed.
    pub legacy_mig: Vec<u64>,
    /// Mask: has the gpu-worker label. Fixed.
    pub gpu_worker: Vec<u64>,
    /// Mask: has the cpu-worker label. Fixed.
    pub cpu_worker: Vec<u64>,
    /// MiB of the smallest and the largest card in the cluster; nominal if none is known. Fixed.
    pub smallest_card: i64,
    /// See `smallest_card`.
    pub largest_card: i64,
    /// Nodes whose ledger changed, in order, since the cycle began: what an index has to look at again. Written by the ledger.
    pub changes: Vec<NodeIdx>,
}

impl Nodes {
    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.card_mib.len()
    }

    /// What changed since so much of [`Nodes::changes`] was known, if that is less to look at than all nodes; `usize::MAX` is
    /// nothing known.
    #[must_use]
    pub fn changes_since(&self, seen: usize) -> Option<&[NodeIdx]> {
        self.changes.get(seen..).filter(|changes| changes.len() <= self.len())
    }

    /// Whether there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.card_mib.is_empty()
    }

    /// Whether a node is schedulable and healthy.
    #[must_use]
    pub fn ready(&self, node: NodeIdx) -> bool {
        mask::get(&self.ready, node.at())
    }

    pub(crate) fn load(&mut self, rows: &Snapshot) {
        let n = rows.nodes.len();
        self.total = vec![Col::from(vec![0; n]); FIRST_EXTRA + rows.dims.len()];
        self.quota_gpus = vec![0; FIRST_EXTRA];
        self.quota_gpus.extend(rows.dims.iter().map(|dim| i64::from(dim.mig_gpus)));
        for masks in [&mut self.card_known, &mut self.ready, &mut self.cpu_only, &mut self.gpu_worker, &mut self.cpu_worker] {
            *masks = super::empty_mask(n);
        }
        for (node, row) in rows.nodes.entries() {
            self.total[CPU.at()][node] = row.cpu;
            self.total[MEMORY.at()][node] = row.memory;
            self.total[GPU.at()][node] = row.gpus;
            self.total[PODS.at()][node] = row.pods;
            for &(dim, amount) in &row.extra {
                self.total[Dim::extra(dim).at()][node] = amount;
            }
            self.card_mib.push(row.card_mib.unwrap_or(NOMINAL_CARD_MIB));
            self.gpu_count.push(row.gpu_count);
            self.mig.push(row.mig);
            for (on, bits) in [
                (row.card_mib.is_some(), &mut self.card_known),
                (row.ready, &mut self.ready),
                (row.mig == Mig::Off && row.gpus <= 0, &mut self.cpu_only),
                (row.gpu_worker, &mut self.gpu_worker),
                (row.cpu_worker, &mut self.cpu_worker),
            ] {
                if on {
                    mask::set(bits, node.at());
                }
            }
        }
        self.legacy_mig = super::empty_mask(n);
        for row in rows.pods.iter().filter(|row| rows.classes[row.class].blocked == Some(Blocked::LegacyMig)) {
            if let Some(node) = row.node.filter(|_| super::holds_node(row.status)) {
                mask::set(&mut self.legacy_mig, node.at());
            }
        }
        self.idle.clone_from(&self.total);
        self.soon.clone_from(&self.total);
        let known = rows.nodes.iter().filter_map(|row| row.card_mib);
        self.smallest_card = known.clone().min().unwrap_or(NOMINAL_CARD_MIB);
        self.largest_card = known.max().unwrap_or(NOMINAL_CARD_MIB);
    }

    /// Takes `amount` (negative: gives back) from what is idle and from what will be. A node does not account for what it does
    /// not offer (semantics.md §1.5).
    pub(crate) fn take(&mut self, dim: Dim, node: NodeIdx, amount: i64, holds: bool, keeps: bool) {
        if self.total[dim.at()][node] == 0 {
            return;
        }
        if holds {
            self.idle[dim.at()][node] -= amount;
        }
        if keeps {
            self.soon[dim.at()][node] -= amount;
        }
    }
}
