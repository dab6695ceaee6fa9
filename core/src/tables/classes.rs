//! Request classes: what pods ask for and where they may go, once for all pods that are alike.

use crate::index::{ClassIdx, Col};
use crate::snapshot::{ClassRow, GpuRequest, Snapshot};
use crate::tables::nodes::{CPU, Dim, GPU, MEMORY, Nodes, PODS};
use crate::tables::{gpu_charge, whole_gpus};
use crate::units::{Amounts, MICRO_PER_GPU, portion_mib};

/// One resource that a class asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// Which.
    pub dim: Dim,
    /// How much, > 0.
    pub amount: i64,
}

/// What kind of node a class looks for (semantics.md §5.2, §9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// No GPU of any kind.
    CpuOnly,
    /// Whole GPUs.
    Whole,
    /// Parts of this many cards.
    Shared {
        /// ≥ 1.
        devices: u32,
    },
    /// MIG instances.
    Mig,
}

/// One row a class.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Classes {
    /// As it came. Fixed.
    pub row: Col<ClassIdx, ClassRow>,
    /// What kind of node it looks for. Fixed.
    pub kind: Col<ClassIdx, Kind>,
    /// Its resources, a range of `needs`, by dimension; a shared card is not among them. Fixed.
    needs_at: Col<ClassIdx, (u32, u32)>,
    needs: Vec<Need>,
    /// Cpu and memory it counts for in its queues, and the GPUs of its MIG instances in micro-GPU. Fixed.
    charge: Col<ClassIdx, Amounts>,
    /// A resource that it asks more of than any node offers. Fixed.
    pub too_large: Col<ClassIdx, Option<Need>>,
}

impl Classes {
    pub(crate) fn load(&mut self, rows: &Snapshot, nodes: &Nodes) {
        let largest: Vec<i64> = nodes.total.iter().map(|column| column.iter().copied().max().unwrap_or(0)).collect();
        for row in rows.classes.iter() {
            let start = self.needs.len();
            let extra = row.extra.iter().map(|&(dim, amount)| (Dim::extra(dim), amount));
            let fixed = [(CPU, row.cpu), (MEMORY, row.memory), (GPU, whole_gpus(row.gpu)), (PODS, 1)];
            self.needs.extend(fixed.into_iter().chain(extra).filter(|n| n.1 > 0).map(|(dim, amount)| Need { dim, amount }));
            let needs = &self.needs[start..];
            self.too_large.push(needs.iter().copied().find(|need| need.amount > largest[need.dim.at()]));
            self.needs_at.push((cut(start), cut(self.needs.len())));
            let mig: i64 = row.extra.iter().map(|&(dim, n)| i64::from(rows.dims[dim].mig_gpus).saturating_mul(n / 1000)).sum();
            let most = charge_max(rows.pods.len());
            self.charge.push(Amounts::new(row.cpu, row.memory, mig.saturating_mul(MICRO_PER_GPU)).zip(most, i64::min));
            self.kind.push(kind(row.gpu, mig > 0));
            self.row.push(row.clone());
        }
    }

    /// What a class asks of a node, by dimension; parts of cards are not among it.
    #[must_use]
    pub fn needs(&self, class: ClassIdx) -> &[Need] {
        let (start, end) = self.needs_at[class];
        &self.needs[start as usize..end as usize]
    }

    /// How much of one dimension a class asks for; 0 if it does not.
    #[must_use]
    pub fn need(&self, class: ClassIdx, dim: Dim) -> i64 {
        self.needs(class).iter().find(|need| need.dim == dim).map_or(0, |need| need.amount)
    }

    /// MiB of each card that the class takes on cards of `card_mib`; `None` if it shares no cards.
    #[must_use]
    pub fn mib_on(&self, class: ClassIdx, card_mib: i64) -> Option<i64> {
        match self.row[class].gpu {
            GpuRequest::Fraction { portion, .. } => Some(portion_mib(portion, card_mib)),
            GpuRequest::Memory { mib, .. } => Some(mib),
            GpuRequest::None | GpuRequest::Whole(_) => None,
        }
    }

    /// What a pod counts for in its queues if it is on cards of `card_mib`.
    #[must_use]
    pub fn charge_at(&self, class: ClassIdx, card_mib: i64) -> Amounts {
        let gpu = gpu_charge(self.row[class].gpu, card_mib).min(CHARGE_MAX_AT_LEAST);
        self.charge[class] + Amounts::new(0, 0, gpu)
    }

    /// Whether what a pod counts for depends on the card it gets.
    #[must_use]
    pub fn charge_varies(&self, class: ClassIdx) -> bool {
        matches!(self.row[class].gpu, GpuRequest::Memory { .. })
    }
}

/// No pod's charge is cut below this: 17.6 TB, 17.6 thousand million cores, 17.6 million GPUs.
const CHARGE_MAX_AT_LEAST: i64 = 1 << 44;

/// The most that one pod counts for in its queues, so that the sum over all pods can be counted: otherwise a ledger would be cut
/// off, and what is taken from it would not be what was added.
fn charge_max(pods: usize) -> Amounts {
    let pods = i64::try_from(pods).unwrap_or(i64::MAX - 1) + 1;
    let most = (i64::MAX / 4 / pods).max(CHARGE_MAX_AT_LEAST);
    Amounts([most; 3])
}

const fn kind(gpu: GpuRequest, mig: bool) -> Kind {
    match gpu {
        _ if mig => Kind::Mig,
        GpuRequest::None => Kind::CpuOnly,
        GpuRequest::Whole(_) => Kind::Whole,
        GpuRequest::Fraction { devices, .. } | GpuRequest::Memory { devices, .. } => Kind::Shared { devices },
    }
}

fn cut(i: usize) -> u32 {
    u32::try_from(i).expect("a table has at most u32::MAX rows")
}
