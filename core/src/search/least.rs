//! A lower bound: how many pods have to leave at least, whoever they are, so that an asker fits.
//!
//! A relaxation: GPUs only, each class of the asker by itself, pods one by one, a part of a card frees all of it, no rule but who
//! may be a victim. On each node the largest go first; every place on a node costs what places there cost at best.
//!
//! What each node offers is kept from asker to asker, and looked at again where something changed.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use crate::actions::Plan;
use crate::index::{ClassIdx, Col, GangIdx, Idx, NodeIdx, PodIdx, QueueIdx};
use crate::search::SearchMemory;
use crate::search::counting::{Places, Victims, next_to_go};
use crate::search::leaf::Visit;
use crate::search::stream::{Stream, can_go};
use crate::tables::Tables;
use crate::tables::classes::Kind;
use crate::tables::nodes::GPU;
use muster_kernels::mask;

/// Parts of a pod that places are counted in.
const PARTS: i64 = 1 << 20;

/// Tables of offers that are kept, for classes and sets of victims: at least so many, more if nodes are few.
const KEPT: usize = 16;
/// So many rows all of them may have together then.
const ROWS_KEPT: usize = 1 << 20;

/// No next one.
const END: u32 = u32::MAX;

/// What one node has to offer to pods of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Offer {
    /// Places that are free.
    free: i64,
    /// Places that victims could win, and parts of a pod that one of them costs at best.
    won: i64,
    cost: i64,
}

/// What all nodes have to offer, given who may go.
#[derive(Clone, Debug)]
struct Offers {
    class: ClassIdx,
    victims: Victims,
    /// How much of [`Nodes::changes`](crate::tables::nodes::Nodes::changes) it knows.
    seen: usize,
    on: Col<NodeIdx, Offer>,
    /// Free places on all nodes.
    free: i64,
    /// Places by what each costs, cheapest first; few.
    costs: Vec<(i64, i64)>,
}

/// Memory of the bound.
#[derive(Clone, Debug, Default)]
pub struct Least {
    /// The lists of this action are made: once somebody needs them.
    has_lists: bool,
    /// Possible victims node by node, a list each: where it begins, and for each of them where the next one stands. Who went or
    /// moved is passed over.
    first: Col<NodeIdx, u32>,
    links: Vec<(PodIdx, u32)>,
    /// Who stands in a list: had a place before this turn.
    is_listed: Col<PodIdx, bool>,
    kept: Vec<Offers>,
    /// Counted anew, to compare with in tests.
    anew: Offers,
    oldest: usize,
    /// The tables of this asker, and how many pods it has of each class.
    asked: Vec<(usize, i64)>,
    gives: Col<QueueIdx, bool>,
    /// Whole GPUs that were free on each node before the search, and how many changes of nodes there had been.
    free: Col<NodeIdx, i64>,
    changes: usize,
    /// What each victim frees, with the next one on its node; and the first of each node.
    gathered: Vec<(i64, u32)>,
    first_gathered: Col<NodeIdx, u32>,
    /// What the victims on one node free.
    sizes: Vec<Reverse<i64>>,
}

impl SearchMemory {
    /// At least so many pods have to leave for the asker that was helped; not less than 1. [`Least::remember`] came before
    /// anybody was told to leave.
    pub(super) fn least_evictions(&mut self, plan: &Plan<'_>) -> u32 {
        // That it does not fit without anybody was tried first.
        if self.units.iter().map(|unit| unit.pods.1 - unit.pods.0).sum::<usize>() <= 1 {
            return 1;
        }
        self.least.count(plan, &self.stream, &self.places);
        let bounds = self.least.asked.iter().map(|&(at, pods)| self.least.kept[at].bound(pods));
        u32::try_from(bounds.max().unwrap_or(1).max(1)).unwrap_or(u32::MAX)
    }
}

impl Least {
    /// An action begins.
    pub(super) fn begin(&mut self) {
        self.has_lists = false;
        for offers in &mut self.kept {
            offers.seen = usize::MAX;
        }
        self.asked.clear();
    }

    /// Lists everybody who could be a victim. Many actions end without it.
    fn list_all(&mut self, tables: &Tables, stream: &Stream) {
        self.first.reset(tables.nodes.len(), END);
        self.links.clear();
        self.is_listed.reset(tables.pods.status.len(), false);
        self.has_lists = true;
        for gang in (0..tables.gangs.queue.len()).map(GangIdx::new).filter(|&gang| stream.is_listed(gang)) {
            tables.gangs.pods[gang].iter().for_each(|pod| self.list(tables, pod));
        }
    }

    /// A pod of a gang that may be a victim has a place.
    pub(super) fn list(&mut self, tables: &Tables, pod: PodIdx) {
        if !self.has_lists {
            return;
        }
        let Some(node) = tables.pods.node[pod].filter(|_| can_go(tables, pod)) else { return };
        // Most have no place but this one.
        if std::mem::replace(&mut self.is_listed[pod], true) && self.on(node).any(|listed| listed == pod) {
            return;
        }
        let at = u32::try_from(self.links.len()).expect("pods are counted in u32");
        self.links.push((pod, std::mem::replace(&mut self.first[node], at)));
    }

    /// Who is listed on a node.
    fn on(&self, node: NodeIdx) -> impl Iterator<Item = PodIdx> + '_ {
        let mut at = self.first[node];
        std::iter::from_fn(move || {
            let &(pod, next) = self.links.get(at as usize)?;
            at = next;
            Some(pod)
        })
    }

    /// Nobody is told to leave for an asker yet.
    pub(super) fn remember(&mut self, tables: &Tables, stream: &Stream) {
        if !self.has_lists {
            self.list_all(tables, stream);
        }
        self.free.clone_from(&tables.nodes.soon[GPU.at()]);
        self.changes = tables.nodes.changes.len();
    }

    /// Counts what there was then.
    fn count(&mut self, plan: &Plan<'_>, stream: &Stream, places: &Places) {
        let victims = stream.victims();
        self.gives.reset(plan.tables.queues.parent.len(), false);
        for &leaf in &victims.leaves {
            self.gives[leaf] = true;
        }
        self.asked.clear();
        for (class, pods) in places.needs().filter(|&(class, _)| plan.tables.classes.need(class, GPU) > 0) {
            let at = self.position(class, victims);
            self.asked.push((at, pods));
            let mut offers = std::mem::take(&mut self.kept[at]);
            let victims = |visit: &mut Visit<'_>| stream.every_victim(plan, visit);
            offers.refresh(plan, self, victims);
            debug_assert!(self.says_the_same(plan, &offers), "what is kept equals what is counted anew");
            self.kept[at] = offers;
        }
    }

    /// The table for a class and some victims; if there is none, the oldest that this asker does not need makes room.
    fn position(&mut self, class: ClassIdx, victims: &Victims) -> usize {
        let kept = self.kept.iter().position(|offers| offers.class == class && offers.victims == *victims);
        let at = kept.unwrap_or_else(|| {
            let most = KEPT.max(ROWS_KEPT / self.first.len().max(1)).max(self.asked.len() + 1);
            if self.kept.len() < most {
                self.kept.push(Offers::default());
                return self.kept.len() - 1;
            }
            next_to_go(&mut self.oldest, self.kept.len(), &self.asked)
        });
        if kept.is_none() {
            let offers = &mut self.kept[at];
            (offers.class, offers.seen) = (class, usize::MAX);
            offers.victims.clone_from(victims);
        }
        at
    }

    /// What a node has to offer.
    fn offer(&mut self, plan: &Plan<'_>, class: ClassIdx, below: Option<i32>, node: NodeIdx) -> Offer {
        let tables = &*plan.tables;
        let mut sizes = std::mem::take(&mut self.sizes);
        sizes.clear();
        sizes.extend(self.on(node).filter_map(|pod| {
            // Whoever was told to leave in this turn stood at home before.
            let (home, goes) = match tables.pods.evicted_from[pod] {
                Some(home) => (home.node, true),
                None => (tables.pods.node[pod], can_go(tables, pod)),
            };
            let gpus = gpus_freed(tables, tables.pods.class[pod]);
            (gpus > 0 && home == Some(node) && goes && self.may_go(tables, pod, below)).then_some(Reverse(gpus))
        }));
        self.sizes = sizes;
        self.offer_of_sizes(plan, class, node)
    }

    /// What a node has to offer, given what its victims free.
    fn offer_of_sizes(&mut self, plan: &Plan<'_>, class: ClassIdx, node: NodeIdx) -> Offer {
        let each = plan.tables.classes.need(class, GPU);
        let places = |free: i64| free.max(0) / each;
        let before = self.free[node];
        let free = if mask::get(plan.search.feasible.mask(class), node.at()) { places(before) } else { 0 };
        self.sizes.sort_unstable();
        let (mut freed, mut cost, mut won) = (0, 0, 0);
        for (gone, Reverse(gpus)) in (1..).zip(&self.sizes) {
            freed += gpus;
            let more = places(before + freed) - places(before);
            if more > 0 {
                let here = gone * PARTS / more;
                cost = if won == 0 { here } else { cost.min(here) };
                won = more;
            }
        }
        Offer { free, won, cost }
    }

    /// Whether a table equals what is counted anew, node by node.
    fn says_the_same(&mut self, plan: &Plan<'_>, known: &Offers) -> bool {
        let mut anew = std::mem::take(&mut self.anew);
        anew.class = known.class;
        anew.victims.clone_from(&known.victims);
        anew.clear(plan);
        for node in (0..plan.tables.nodes.len()).map(NodeIdx::new) {
            let now = self.offer(plan, known.class, known.victims.below, node);
            anew.set(node, now);
        }
        let same = anew.free == known.free && *anew.on == *known.on && anew.costs().eq(known.costs());
        self.anew = anew;
        same
    }

    fn may_go(&self, tables: &Tables, pod: PodIdx, below: Option<i32>) -> bool {
        tables.pods.gang[pod].is_some_and(|gang| {
            let gives = tables.gangs.queue[gang].is_ok_and(|leaf| self.gives[leaf]);
            gives && below.is_none_or(|below| tables.gangs.priority[gang] < below)
        })
    }
}

impl Default for Offers {
    /// Nothing known.
    fn default() -> Self {
        let victims = Victims { leaves: Vec::new(), below: None };
        Self { class: ClassIdx::new(0), victims, seen: usize::MAX, on: Col::new(), free: 0, costs: Vec::new() }
    }
}

impl Offers {
    /// Counts anew what changed, or everything if too much did.
    fn refresh(&mut self, plan: &Plan<'_>, least: &mut Least, victims: impl Fn(&mut Visit<'_>)) {
        match plan.tables.nodes.changes_since(self.seen) {
            Some(changes) => {
                for &node in changes {
                    let now = least.offer(plan, self.class, self.victims.below, node);
                    self.set(node, now);
                }
            }
            None => self.fill(plan, least, victims),
        }
        // What changed since then is looked at again.
        self.seen = least.changes;
    }

    /// Counts all nodes anew: what is free, and then what victims free.
    fn fill(&mut self, plan: &Plan<'_>, least: &mut Least, victims: impl Fn(&mut Visit<'_>)) {
        let tables = &*plan.tables;
        self.clear(plan);
        let each = tables.classes.need(self.class, GPU);
        for node in mask::ones(plan.search.feasible.mask(self.class)).map(NodeIdx::new) {
            self.on[node].free = least.free[node].max(0) / each;
            self.free += self.on[node].free;
        }
        least.gathered.clear();
        least.first_gathered.reset(tables.nodes.len(), END);
        let (gathered, first, is_listed) = (&mut least.gathered, &mut least.first_gathered, &least.is_listed);
        victims(&mut |victim| {
            let gpus = gpus_freed(tables, victim.class);
            // Who was given a place in this turn had none before.
            if gpus > 0 && is_listed[victim.pod] {
                let at = u32::try_from(gathered.len()).expect("pods are counted in u32");
                gathered.push((gpus, std::mem::replace(&mut first[victim.node], at)));
            }
            ControlFlow::Continue(())
        });
        for node in least.first_gathered.indices() {
            let mut at = least.first_gathered[node];
            if at == END {
                continue;
            }
            least.sizes.clear();
            while let Some(&(gpus, next)) = least.gathered.get(at as usize) {
                least.sizes.push(Reverse(gpus));
                at = next;
            }
            let now = least.offer_of_sizes(plan, self.class, node);
            self.set(node, now);
        }
    }

    fn clear(&mut self, plan: &Plan<'_>) {
        self.on.reset(plan.tables.nodes.len(), Offer::default());
        self.costs.clear();
        self.free = 0;
    }

    fn set(&mut self, node: NodeIdx, now: Offer) {
        let known = std::mem::replace(&mut self.on[node], now);
        self.free += now.free - known.free;
        for (offer, sign) in [(known, -1), (now, 1)] {
            if offer.won == 0 {
                continue;
            }
            match self.costs.binary_search_by_key(&offer.cost, |&(cost, _)| cost) {
                Ok(at) => self.costs[at].1 += sign * offer.won,
                Err(at) => self.costs.insert(at, (offer.cost, offer.won)),
            }
        }
    }

    /// Places by what each costs, cheapest first.
    fn costs(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.costs.iter().copied().filter(|&(_, places)| places > 0)
    }

    /// The bound for so many pods.
    fn bound(&self, pods: i64) -> i64 {
        let (mut missing, mut parts) = (pods - self.free, 0);
        for (cost, places) in self.costs() {
            let taken = places.min(missing.max(0));
            parts += cost * taken;
            missing -= taken;
        }
        (parts + PARTS - 1) / PARTS
    }
}

/// GPUs of a node that a pod of a class frees at most; a part of a card counts as all of it.
fn gpus_freed(tables: &Tables, class: ClassIdx) -> i64 {
    let whole = tables.classes.need(class, GPU);
    match tables.classes.kind[class] {
        Kind::Shared { devices } => whole + i64::from(devices),
        _ => whole,
    }
}
