//! A lower bound: how many pods have to leave at least, whoever they are, so that an asker fits.
//!
//! A relaxation: GPUs only, each class of the asker by itself, pods one by one, a part of a card frees all of it, no rule but who
//! may be a victim. On each node the largest go first; every place on a node costs what places there cost at best.

use std::cmp::Reverse;

use crate::actions::Plan;
use crate::index::{ClassIdx, Col, NodeIdx, PodIdx};
use crate::search::{Asker, SearchMemory};
use crate::statement::Mark;
use crate::tables::classes::Kind;
use crate::tables::nodes::GPU;
use crate::tables::{Tables, keeps_node};

/// Parts of a pod that places are counted in.
const PARTS: i64 = 1 << 20;

/// Memory of the bound.
#[derive(Clone, Debug, Default)]
pub struct Least {
    /// What was free on each node before the search, whole GPUs.
    free: Col<NodeIdx, i64>,
    /// Every pod that could go, as (node, GPUs), and each node's in a row, largest first.
    victims: Vec<(NodeIdx, Reverse<i64>)>,
    /// Parts of a pod that a place costs on a node, and how many places.
    offers: Vec<(i64, i64)>,
}

impl SearchMemory {
    /// At least so many pods have to leave for the asker, who was helped since `mark`; not less than 1.
    pub(super) fn least_evictions(&mut self, plan: &Plan<'_>, asker: &Asker, mark: Mark) -> u32 {
        // That it does not fit without anybody was tried first.
        if self.units.iter().map(|unit| unit.pods.1 - unit.pods.0).sum::<usize>() <= 1 {
            return 1;
        }
        let least = &mut self.least;
        least.rewind(plan, mark);
        least.victims.clear();
        let tables = &*plan.tables;
        let mut list = |pod: PodIdx| {
            let home = tables.pods.evicted_from[pod].map_or(tables.pods.node[pod], |home| home.node);
            let gpus = gpus(tables, tables.pods.class[pod]);
            if let Some(node) = home.filter(|_| gpus > 0) {
                least.victims.push((node, Reverse(gpus)));
            }
        };
        self.stream.every_victim(plan, asker, &mut list);
        least.victims.sort_unstable();
        let needs = self.places.needs().map(|(class, pods)| self.least.bound(plan, class, pods));
        u32::try_from(needs.max().unwrap_or(1).max(1)).unwrap_or(u32::MAX)
    }
}

impl Least {
    /// What was free before the search: what is free now, without what happened since.
    fn rewind(&mut self, plan: &Plan<'_>, mark: Mark) {
        let tables = &*plan.tables;
        self.free.clone_from(&tables.nodes.soon[GPU.at()]);
        for op in plan.statement.since(mark) {
            let gpus = gpus(tables, tables.pods.class[op.pod]);
            for (place, sign) in [(op.before, -1), (op.after, 1)] {
                if let Some(node) = place.node.filter(|_| keeps_node(place.status)) {
                    self.free[node] += sign * gpus;
                }
            }
        }
    }

    /// The bound for `pods` of one class.
    fn bound(&mut self, plan: &Plan<'_>, class: ClassIdx, pods: i64) -> i64 {
        let each = plan.tables.classes.needs(class).iter().find(|need| need.dim == GPU).map_or(0, |need| need.amount);
        if each == 0 {
            return 1;
        }
        let nodes = plan.search.feasible.mask(class);
        let places = |free: i64| free.max(0) / each;
        let there: i64 = muster_kernels::mask::ones(nodes).map(|node| places(self.free[crate::index::Idx::new(node)])).sum();
        let mut missing = pods - there;
        self.offers.clear();
        for on_node in self.victims.chunk_by(|a, b| a.0 == b.0) {
            let node = on_node[0].0;
            let before = self.free[node];
            let (mut freed, mut cheapest, mut most) = (0, i64::MAX, 0);
            for (gone, (_, Reverse(gpus))) in (1..).zip(on_node) {
                freed += gpus;
                let won = places(before + freed) - places(before);
                if won > 0 {
                    cheapest = cheapest.min(gone * PARTS / won);
                    most = won;
                }
            }
            if most > 0 {
                self.offers.push((cheapest, most));
            }
        }
        self.offers.sort_unstable();
        let mut parts = 0;
        for &(cost, most) in &self.offers {
            let taken = most.min(missing.max(0));
            parts += cost * taken;
            missing -= taken;
        }
        (parts + PARTS - 1) / PARTS
    }
}

/// GPUs of a node that a pod of a class frees at most; a part of a card counts as all of it.
fn gpus(tables: &Tables, class: ClassIdx) -> i64 {
    let whole = tables.classes.needs(class).iter().find(|need| need.dim == GPU).map_or(0, |need| need.amount);
    match tables.classes.kind[class] {
        Kind::Shared { devices } => whole + i64::from(devices),
        _ => whole,
    }
}
