//! How many GPUs are held of how many there are, fractions and MIG instances included.

use muster_core::index::{DimIdx, NodeIdx};
use muster_core::outcome::{DecisionKind, Outcome};
use muster_core::snapshot::{GpuRequest, PodRow, PodStatus, Snapshot};
use muster_core::units::{MICRO_PER_GPU, NOMINAL_CARD_MIB, mib_share};

/// All amounts in micro-GPU. Absurd sums stop at the largest number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct GpuUse {
    /// GPUs of all nodes, whether ready or not.
    pub(crate) capacity: i64,
    /// Held at the start by pods that are not leaving.
    pub(crate) before: i64,
    /// Held at the end: the same, with what was bound and without what was evicted.
    pub(crate) after: i64,
    /// Promised to pods that wait for others to leave.
    pub(crate) promised: i64,
}

impl GpuUse {
    /// Counts one cycle.
    pub(crate) fn new(snapshot: &Snapshot, outcome: &Outcome) -> Self {
        let mut gpus = Self::default();
        for node in snapshot.nodes.iter() {
            let mig = mig_sum(snapshot, &node.extra);
            let whole = node.gpus.saturating_mul(MICRO_PER_GPU);
            gpus.capacity = gpus.capacity.saturating_add(whole).saturating_add(mig);
        }
        for pod in snapshot.pods.iter().filter(|pod| !pod.reservation) {
            let holds = matches!(pod.status, PodStatus::Binding | PodStatus::Bound | PodStatus::Running);
            if let Some(node) = pod.node.filter(|_| holds) {
                gpus.before = gpus.before.saturating_add(micro(snapshot, pod, node));
            }
        }
        gpus.after = gpus.before;
        for decision in &outcome.decisions {
            let amount = micro(snapshot, &snapshot.pods[decision.pod], decision.node);
            match decision.kind {
                DecisionKind::Bind => gpus.after = gpus.after.saturating_add(amount),
                DecisionKind::Evict => gpus.after = gpus.after.saturating_sub(amount),
                DecisionKind::Pipeline => gpus.promised = gpus.promised.saturating_add(amount),
            }
        }
        gpus
    }

    /// Held at the end, of all, in percent.
    pub(crate) fn percent(amount: i64, capacity: i64) -> f64 {
        if capacity == 0 { 0.0 } else { amount as f64 / capacity as f64 * 100.0 }
    }
}

/// The MIG instances among other resources.
fn mig_sum(snapshot: &Snapshot, extra: &[(DimIdx, i64)]) -> i64 {
    let micro = extra.iter().map(|&(dim, amount)| mig_micro(snapshot.dims[dim].mig_gpus, amount));
    micro.fold(0, i64::saturating_add)
}

fn mig_micro(gpus_a_piece: u32, thousandths: i64) -> i64 {
    i64::from(gpus_a_piece).saturating_mul(thousandths).saturating_mul(MICRO_PER_GPU / 1000)
}

fn micro(snapshot: &Snapshot, pod: &PodRow, node: NodeIdx) -> i64 {
    let class = &snapshot.classes[pod.class];
    let regular = match class.gpu {
        GpuRequest::None => 0,
        GpuRequest::Whole(count) => i64::from(count) * MICRO_PER_GPU,
        GpuRequest::Fraction { portion, devices } => portion.saturating_mul(i64::from(devices)),
        GpuRequest::Memory { mib, devices } => {
            mib_share(mib, snapshot.nodes[node].card_mib.unwrap_or(NOMINAL_CARD_MIB)).saturating_mul(i64::from(devices))
        }
    };
    let mig = mig_sum(snapshot, &class.extra);
    regular.saturating_add(mig)
}
