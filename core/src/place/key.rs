//! The key of a (class, node) pair: 0 if the class cannot be placed there, else larger is better. Ties go to the first node.
//!
//! KAI adds up scores of very different size (semantics.md §5.2), which is a lexicographic order; here the parts are bits of one
//! `i64`. From the top: a shared GPU has room, nothing has to be waited for, CPU-only node for a CPU-only pod, placement level
//! (at least 1). The nominated node comes before all of these and is looked at first, so it needs no bit.

use muster_kernels::{fit, mask, score};

use crate::config::{Config, Strategy};
use crate::index::{ClassIdx, Idx, NodeIdx};
use crate::place::cards::CardBuffer;
use crate::tables::Tables;
use crate::tables::classes::Kind;
use crate::tables::nodes::{CPU, Dim, GPU};

/// One above the largest placement level.
const LEVELS: i64 = 1 << 55;
const RIGHT_KIND: i64 = 1 << 56;
const AVAILABLE: i64 = 1 << 57;
const SHARES: i64 = 1 << 58;

/// Everything that the keys of one class depend on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// What is free.
    pub tables: &'a Tables,
    /// Which preferences are on.
    pub config: &'a Config,
    /// Where the class may go at all ([`crate::feasible`]).
    pub mask: &'a [u64],
    /// The class.
    pub class: ClassIdx,
}

impl View<'_> {
    /// The key of one node: the reference for [`View::fill`].
    #[must_use]
    pub fn key(&self, node: NodeIdx) -> i64 {
        let (tables, plugins) = (self.tables, &self.config.plugins);
        if !mask::get(self.mask, node.at()) || !fits(tables, self.class, node, &tables.nodes.soon) {
            return 0;
        }
        let mut key = self.level(node);
        let available = match tables.classes.kind[self.class] {
            Kind::Shared { devices } => {
                let mib = tables.classes.mib_on(self.class, tables.nodes.card_mib[node]).unwrap_or(0);
                let Some(choice) = CardBuffer::judge(tables, self.config.card_order, self.class, node, devices) else { return 0 };
                if plugins.gpu_sharing_order && tables.gpus.room[node] >= mib {
                    key += SHARES;
                }
                !choice.waits
            }
            kind => {
                if kind == Kind::CpuOnly && plugins.gpu_sharing_order && tables.gpus.room[node] >= 0 {
                    key += SHARES;
                }
                fits_now(tables, self.class, node)
            }
        };
        if plugins.node_availability && available {
            key += AVAILABLE;
        }
        if plugins.resource_type && self.is_cpu_only() && mask::get(&tables.nodes.cpu_only, node.at()) {
            key += RIGHT_KIND;
        }
        key
    }

    /// The keys of all nodes, by whole columns. `out` is indexed by node; `scratch` is overwritten.
    pub fn fill(&self, out: &mut [i64], scratch: &mut Scratch) {
        let (tables, plugins) = (self.tables, &self.config.plugins);
        scratch.soon.clear();
        scratch.soon.extend_from_slice(self.mask);
        self.keep_fitting(&mut scratch.soon, &tables.nodes.soon);
        if let Kind::Shared { .. } = tables.classes.kind[self.class] {
            out.fill(0);
            for node in mask::ones(&scratch.soon) {
                out[node] = self.key(NodeIdx::new(node));
            }
            return;
        }
        scratch.now.clear();
        scratch.now.extend_from_slice(&scratch.soon);
        self.keep_fitting(&mut scratch.now, &tables.nodes.idle);
        scratch.sharing.clear();
        scratch.sharing.extend_from_slice(&scratch.soon);
        fit::at_least(&mut scratch.sharing, &tables.gpus.room, 0);
        let cpu_only = self.is_cpu_only();
        let on = |switch: bool, value: i64| if switch { value } else { 0 };
        let flags = [
            (&scratch.sharing[..], on(cpu_only && plugins.gpu_sharing_order, SHARES)),
            (&scratch.now[..], on(plugins.node_availability, AVAILABLE)),
            (&tables.nodes.cpu_only[..], on(cpu_only && plugins.resource_type, RIGHT_KIND)),
        ];
        scratch.levels.resize(out.len(), 0);
        self.fill_levels(&mut scratch.levels);
        score::keys(out, &scratch.soon, &flags, &scratch.levels);
    }

    fn keep_fitting(&self, nodes: &mut [u64], free: &[crate::index::Col<NodeIdx, i64>]) {
        for need in self.tables.classes.needs(self.class) {
            fit::at_least(nodes, &free[need.dim.at()], need.amount);
        }
    }

    fn is_cpu_only(&self) -> bool {
        self.tables.classes.kind[self.class] == Kind::CpuOnly
    }

    /// What the placement strategy looks at, and the strategy; `None`: no preference.
    fn strategy(&self) -> Option<(Dim, Strategy)> {
        let placement = self.config.node_placement?;
        Some(if self.is_cpu_only() { (CPU, placement.cpu) } else { (GPU, placement.gpu) })
    }

    fn fill_levels(&self, levels: &mut [i64]) {
        match self.strategy() {
            Some((dim, Strategy::Binpack)) => score::pack_levels(levels, &self.tables.nodes.soon[dim.at()], LEVELS - 1),
            Some((_, Strategy::Spread)) => {
                for (node, level) in levels.iter_mut().enumerate() {
                    *level = self.level(NodeIdx::new(node));
                }
            }
            None => levels.fill(1),
        }
    }

    /// Semantics.md §5.2, `nodeplacement`, as an integer in `1..LEVELS`.
    ///
    /// Binpack: KAI normalises over the node set, which keeps the order of free amounts; free amounts below zero (over-committed
    /// nodes) count as none. Spread: free / total, compared as KAI compares floats.
    fn level(&self, node: NodeIdx) -> i64 {
        let nodes = &self.tables.nodes;
        match self.strategy() {
            None => 1,
            Some((dim, Strategy::Binpack)) => LEVELS - 1 - nodes.soon[dim.at()][node].clamp(0, LEVELS - 2),
            Some((dim, Strategy::Spread)) => {
                let of = if dim == GPU { nodes.gpu_count[node] } else { nodes.total[dim.at()][node] };
                let free = nodes.soon[dim.at()][node];
                if of <= 0 || free <= 0 { 1 } else { 1 + ratio_level(free, of) }
            }
        }
    }
}

/// A positive ratio as an integer of the same order: its bits, less the seven lowest.
fn ratio_level(free: i64, of: i64) -> i64 {
    #[expect(clippy::cast_precision_loss, reason = "KAI's rule is a ratio of floats")]
    let ratio = free as f64 / of as f64;
    i64::try_from(ratio.to_bits() >> 8).expect("a positive float has a clear sign bit")
}

/// Whether a node has what a class needs, shared cards apart, in the given columns.
fn fits(tables: &Tables, class: ClassIdx, node: NodeIdx, free: &[crate::index::Col<NodeIdx, i64>]) -> bool {
    tables.classes.needs(class).iter().all(|need| free[need.dim.at()][node] >= need.amount)
}

/// Whether a node has what a class needs at this moment, shared cards apart.
#[must_use]
pub fn fits_now(tables: &Tables, class: ClassIdx, node: NodeIdx) -> bool {
    fits(tables, class, node, &tables.nodes.idle)
}

/// Buffers of [`View::fill`].
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    soon: Vec<u64>,
    now: Vec<u64>,
    sharing: Vec<u64>,
    levels: Vec<i64>,
}
