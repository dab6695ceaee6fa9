//! From failed turns to reasons: what is remembered during the cycle, and what is worked out when it ends.
//!
//! A turn that failed with nothing placed is explained when `allocate` ends, against what is left then, once for each class. A
//! turn that failed with some members placed is explained on the spot, before they are taken back. Actions that evict add why
//! they did not help.

use muster_kernels::{fit, mask};
use rayon::prelude::*;

use crate::config::{Action, CardOrder, Config};
use crate::explain::{Nearest, Reason, Refusal, Scarce, Shortage, Tally, Unhelped};
use crate::feasible::Feasible;
use crate::index::{ClassIdx, Col, GangIdx, Idx, NodeIdx, PodIdx, QueueIdx};
use crate::outcome::{Outcome, PendingGang};
use crate::place::NodeSearch;
use crate::place::cards::CardBuffer;
use crate::place::gang::{Attempt, Miss};
use crate::snapshot::{PodStatus, SubgroupKind};
use crate::statement::Statement;
use crate::tables::Tables;
use crate::tables::classes::{Kind, Need};
use crate::tables::gangs::Member;
use crate::tables::nodes::{CPU, Dim, GPU, MEMORY, PODS};
use crate::tables::pods::Placement;

/// Nodes × classes below which looking at them is not worth several threads (a node costs about 10 ns).
const PARALLEL_CELLS_MIN: usize = 1 << 13;

/// Why a gang's last turn failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    /// A range of [`Failures::reasons`].
    Reasons(u32, u32),
    /// This pod found no node and none was placed before it; if all its members are `alike`, then too few of them.
    NoNode { pod: PodIdx, members: u32, alike: bool },
}

/// What the nodes say to a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Seen {
    refusals: Tally,
    nearest: Option<Nearest>,
}

/// A class that found no node, to be looked at when `allocate` ends.
#[derive(Clone, Debug)]
struct Look {
    class: ClassIdx,
    /// The largest gang of pods alike that was refused: its first pod, and how many it must have at once.
    largest: (PodIdx, u32),
    /// How many of them fit at once.
    placed: u32,
    seen: Seen,
    scratch: Vec<u64>,
}

/// What is remembered of failed turns. Reused from cycle to cycle.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    of: Col<GangIdx, Option<Failure>>,
    reasons: Vec<Reason>,
    start: usize,
    /// Pods that were given a place in this cycle and lost it again; memory.
    taken_back: Vec<PodIdx>,
    /// Why nobody was evicted for a gang, or that it was helped, with a number that orders them.
    help: Vec<(GangIdx, u32, Reason)>,
    /// Gangs of this many pods alike, or more, cannot be placed until something is freed.
    refused: Col<ClassIdx, u32>,
    looks: Vec<Look>,
    look_of: Col<ClassIdx, Option<u32>>,
    scratch: Vec<u64>,
}

impl Failures {
    /// A cycle begins.
    pub fn clear(&mut self, tables: &Tables) {
        self.of.reset(tables.gangs.queue.len(), None);
        self.reasons.clear();
        self.help.clear();
        self.refused.reset(tables.classes.row.len(), u32::MAX);
    }

    /// Reasons pushed from here on belong to a gang.
    pub fn begin(&mut self, gang: GangIdx) {
        self.start = self.reasons.len();
        self.of[gang] = None;
    }

    /// A reason.
    pub fn push(&mut self, reason: Reason) {
        self.reasons.push(reason);
    }

    /// The gang's reasons are complete.
    pub fn end(&mut self, gang: GangIdx) {
        self.of[gang] = Some(Failure::Reasons(cut(self.start), cut(self.reasons.len())));
    }

    /// An action evicted or moved nobody for the gang.
    pub fn not_helped(&mut self, gang: GangIdx, action: Action, why: Unhelped) {
        self.help.push((gang, cut(self.help.len()), Reason::NotHelped { action, why }));
    }

    /// An action found places for the gang after all: what was said of it before does not matter any more.
    pub fn helped(&mut self, tables: &Tables, gang: GangIdx) {
        self.of[gang] = None;
        if tables.gangs.pending(gang) > 0 {
            self.help.push((gang, cut(self.help.len()), Reason::OneStep));
        }
    }

    /// The gang was not tried.
    pub fn beyond_depth(&mut self, gang: GangIdx, queue: QueueIdx, depth: u32) {
        self.begin(gang);
        self.push(Reason::BeyondQueueDepth { queue, depth });
        self.end(gang);
    }

    /// Whether a gang of `members` pods, all of `class`, is known to find no place; then that is its failure too.
    pub fn known_miss(&mut self, gang: GangIdx, class: ClassIdx, first: PodIdx, members: u32) -> bool {
        let known = members >= self.refused[class];
        if known {
            self.of[gang] = Some(Failure::NoNode { pod: first, members, alike: true });
        }
        known
    }

    /// A gang whose pods are all alike could not be placed: it cannot until something is freed, so it is explained at the end.
    pub fn refuse_alike(&mut self, gang: GangIdx, class: ClassIdx, first: PodIdx, members: u32) {
        self.refused[class] = self.refused[class].min(members);
        self.of[gang] = Some(Failure::NoNode { pod: first, members, alike: true });
    }

    /// A pod of a gang found no node. Must be called before the turn is rolled back.
    pub fn no_node(&mut self, plan: &Attempt<'_>, miss: Miss, members: u32) {
        let (tables, gang) = (&*plan.tables, plan.gang);
        let class = tables.pods.class[miss.pod];
        if miss.placed == 0 || is_hopeless(tables, class) {
            self.of[gang] = Some(Failure::NoNode { pod: miss.pod, members, alike: false });
            return;
        }
        let Seen { refusals, nearest } = refuse(tables, &plan.search.feasible, class, &mut self.scratch);
        self.begin(gang);
        self.push(Reason::NoNode { pod: miss.pod, placed: miss.placed, members, refusals, nearest });
        self.end(gang);
    }

    /// `allocate` is done: works out why those found no node who found none, against what it left. The tables are as before.
    pub fn look(&mut self, tables: &mut Tables, statement: &mut Statement, config: &Config, search: &mut NodeSearch) {
        self.look_of.reset(tables.classes.row.len(), None);
        let looks = self.list_classes(tables, config, search);
        for look in &mut self.looks[..looks] {
            look.try_together(tables, statement, config, search);
        }
        self.look_at_nodes(tables, &search.feasible, looks);
        for gang in self.of.indices() {
            if let Some(Failure::NoNode { pod, members, .. }) = self.of[gang] {
                let reason = self.explain_pod(tables, pod, members);
                self.begin(gang);
                self.push(reason);
                self.end(gang);
            }
        }
    }

    /// Writes why each gang with waiting pods waits, at the end of a cycle.
    pub fn explain(&mut self, tables: &Tables, statement: &Statement, config: &Config, outcome: &mut Outcome) {
        self.list_taken_back(tables, statement);
        self.help.sort_unstable_by_key(|&(gang, number, _)| (gang, number));
        let mut help = &self.help[..];
        for gang in (0..tables.gangs.queue.len()).map(GangIdx::new) {
            let (of_gang, rest) = help.split_at(help.partition_point(|&(of, ..)| of <= gang));
            help = rest;
            let taken_back = of_gang.iter().filter(|(.., reason)| matches!(reason, Reason::TakenBack { .. })).count();
            let taken_back = u32::try_from(taken_back).expect("pods are counted in u32");
            let waiting = waiting_pods(tables, gang) + taken_back;
            if waiting == 0 {
                continue;
            }
            let start = outcome.reasons.len();
            self.explain_gang(tables, config, gang, waiting, &mut outcome.reasons);
            let since = of_gang.iter().rposition(|(.., reason)| *reason == Reason::OneStep).unwrap_or(0);
            let is_taken_back = |reason: &Reason| matches!(reason, Reason::TakenBack { .. });
            outcome.reasons.extend(of_gang[since..].iter().map(|&(.., reason)| reason).filter(|reason| !is_taken_back(reason)));
            if taken_back > 0 {
                outcome.reasons.push(Reason::TakenBack { pods: taken_back });
            }
            if outcome.reasons.len() == start {
                // The gang has what it must have, and what waits belongs to optional members that lack pods.
                explain_optional(tables, Member::Gang(gang), &mut outcome.reasons);
            }
            debug_assert!(outcome.reasons.len() > start, "every gang that waits has a reason");
            let reasons = (cut(start), cut(outcome.reasons.len()));
            outcome.pending.push(PendingGang { gang, pods: waiting, reasons });
        }
    }

    /// Pods that were given a place in this cycle and lost it again never started: they wait.
    fn list_taken_back(&mut self, tables: &Tables, statement: &Statement) {
        let never_ran =
            |before: Placement| matches!(before.status, PodStatus::Allocated | PodStatus::Pipelined) && before.leaves.is_none();
        let lost = statement.ops().iter().filter(|op| op.after.status == PodStatus::Releasing && never_ran(op.before));
        self.taken_back.clear();
        self.taken_back.extend(lost.map(|op| op.pod).filter(|&pod| tables.pods.status[pod] == PodStatus::Releasing));
        // A promise may be moved before it is lost.
        self.taken_back.sort_unstable();
        self.taken_back.dedup();
        for &pod in &self.taken_back {
            if let Some(gang) = tables.pods.gang[pod] {
                self.help.push((gang, cut(self.help.len()), Reason::TakenBack { pods: 1 }));
            }
        }
    }

    /// Lists the classes that found no node, each with the largest gang of pods alike that was refused. Returns how many.
    fn list_classes(&mut self, tables: &Tables, config: &Config, search: &mut NodeSearch) -> usize {
        let mut used = 0;
        for failure in self.of.iter().flatten() {
            let Failure::NoNode { pod, members, alike } = *failure else { continue };
            let class = tables.pods.class[pod];
            if is_hopeless(tables, class) {
                continue;
            }
            let members = if alike { members } else { 0 };
            let Some(look) = self.look_of[class] else {
                search.feasible.prepare(tables, config, class);
                if used == self.looks.len() {
                    self.looks.push(Look::of(class, pod));
                }
                let look = &mut self.looks[used];
                (look.class, look.largest, look.placed) = (class, (pod, members), 0);
                self.look_of[class] = Some(cut(used));
                used += 1;
                continue;
            };
            let largest = &mut self.looks[look as usize].largest;
            if members > largest.1 {
                *largest = (pod, members);
            }
        }
        used
    }

    /// Which nodes refuse the classes of which not even one pod fits, on all threads.
    fn look_at_nodes(&mut self, tables: &Tables, feasible: &Feasible, looks: usize) {
        let look = |look: &mut Look| {
            if look.placed == 0 {
                look.seen = refuse(tables, feasible, look.class, &mut look.scratch);
            }
        };
        if looks * tables.nodes.len() >= PARALLEL_CELLS_MIN {
            self.looks[..looks].par_iter_mut().for_each(look);
        } else {
            self.looks[..looks].iter_mut().for_each(look);
        }
    }

    fn explain_gang(&self, tables: &Tables, config: &Config, gang: GangIdx, waiting: u32, reasons: &mut Vec<Reason>) {
        let gangs = &tables.gangs;
        let start = reasons.len();
        if let Err(missing) = gangs.queue[gang] {
            reasons.push(Reason::NoQueue(missing));
        }
        if let Some(queue) = gangs.queue[gang].ok().filter(|&queue| !tables.queues.is_leaf(queue)) {
            reasons.push(Reason::QueueNotLeaf(queue));
        }
        if gangs.backed_off[gang] {
            reasons.push(Reason::BackedOff);
        }
        explain_members(tables, Member::Gang(gang), reasons);
        let gated = gangs.subgroups[gang].iter().map(|s| gangs.counts[s].gated).sum();
        if gated == waiting {
            reasons.push(Reason::Gated { pods: gated });
        }
        let strays = stray_pods(tables, gang);
        if strays > 0 {
            reasons.push(Reason::UnknownSubgroup { pods: strays });
        }
        match self.of[gang] {
            Some(Failure::Reasons(from, to)) => reasons.extend_from_slice(&self.reasons[from as usize..to as usize]),
            Some(Failure::NoNode { .. }) => unreachable!("`look` has explained those"),
            None => {}
        }
        if reasons.len() == start && !config.actions.contains(&Action::Allocate) {
            reasons.push(Reason::ActionNotRun(Action::Allocate));
        }
    }

    fn explain_pod(&self, tables: &Tables, pod: PodIdx, members: u32) -> Reason {
        let class = tables.pods.class[pod];
        if let Some(why) = tables.classes.row[class].blocked {
            return Reason::Blocked { pod, why };
        }
        if let Some(Need { dim, amount }) = tables.classes.too_large[class] {
            let free = tables.nodes.total[dim.at()].iter().copied().max().unwrap_or(0);
            return Reason::TooLarge { pod, short: Shortage { what: scarce(dim), asked: amount, free } };
        }
        let look = self.look_of[class].expect("every class that found no node was looked at");
        let Look { placed, seen: Seen { refusals, nearest }, .. } = self.looks[look as usize];
        let subgroup = tables.pods.subgroup[pod].expect("a pod that takes a turn is in a pod set");
        // With `placed` of them somewhere, the next one is the first that finds no node.
        let pod = tables.pods.waiting(subgroup).nth(placed as usize).unwrap_or(pod);
        Reason::NoNode { pod, placed, members, refusals, nearest }
    }
}

impl Look {
    fn of(class: ClassIdx, pod: PodIdx) -> Self {
        Self { class, largest: (pod, 0), placed: 0, seen: Seen::default(), scratch: Vec::new() }
    }

    /// Places as many pods of the largest refused gang as fit, sees what then stands in the way, and takes them back.
    fn try_together(&mut self, tables: &mut Tables, statement: &mut Statement, config: &Config, search: &mut NodeSearch) {
        let (first, members) = self.largest;
        let Some(subgroup) = tables.pods.subgroup[first].filter(|_| members > 1) else { return };
        let mark = statement.mark(tables);
        while self.placed < members {
            let Some(pod) = tables.pods.waiting(subgroup).next() else { break };
            if !search.place(tables, statement, config, pod, Action::Allocate) {
                break;
            }
            self.placed += 1;
        }
        if self.placed > 0 {
            self.seen = refuse(tables, &search.feasible, self.class, &mut self.scratch);
            statement.rollback(tables, mark);
        }
    }
}

/// Pods that no node can take, whatever is free.
fn is_hopeless(tables: &Tables, class: ClassIdx) -> bool {
    tables.classes.row[class].blocked.is_some() || tables.classes.too_large[class].is_some()
}

/// Pods of a gang that wait, gated ones and those of unknown sub-groups included.
fn waiting_pods(tables: &Tables, gang: GangIdx) -> u32 {
    let gangs = &tables.gangs;
    let counted: u32 = gangs.subgroups[gang].iter().map(|s| gangs.counts[s].pending + gangs.counts[s].gated).sum();
    counted + stray_pods(tables, gang)
}

fn stray_pods(tables: &Tables, gang: GangIdx) -> u32 {
    let gangs = &tables.gangs;
    let known: u32 = gangs.subgroups[gang].iter().map(|s| gangs.counts[s].pods).sum();
    if known as usize == gangs.pods[gang].len() {
        return 0;
    }
    let stray = |pod: &PodIdx| {
        tables.pods.subgroup[*pod].is_none() && matches!(tables.pods.status[*pod], PodStatus::Pending | PodStatus::Gated)
    };
    count(gangs.pods[gang].iter().filter(stray).count())
}

/// Members that lack pods, as far as the gang lacks members because of them.
fn explain_members(tables: &Tables, of: Member, reasons: &mut Vec<Reason>) {
    let gangs = &tables.gangs;
    if gangs.ready(of) {
        return;
    }
    if let Member::Subgroup(subgroup) = of
        && let SubgroupKind::PodSet { min } = gangs.kind[subgroup]
    {
        let gated = gangs.counts[subgroup].gated;
        reasons.push(Reason::TooFewPods { subgroup, present: gangs.attainable(of), gated, min });
        return;
    }
    let members = gangs.members(of);
    // With one member, what that one lacks says it all, unless more members are asked for than there are.
    if members.len() > 1 || gangs.threshold(of) as usize > members.len() {
        let set = if let Member::Subgroup(subgroup) = of { Some(subgroup) } else { None };
        reasons.push(Reason::TooFewMembers { set, ready: gangs.attainable(of), required: gangs.threshold(of) });
    }
    for &member in members {
        explain_members(tables, Member::Subgroup(member), reasons);
    }
}

/// The same for the members of sets that have enough others.
fn explain_optional(tables: &Tables, of: Member, reasons: &mut Vec<Reason>) {
    for &member in tables.gangs.members(of) {
        let member = Member::Subgroup(member);
        if tables.gangs.ready(member) {
            explain_optional(tables, member, reasons);
        } else {
            explain_members(tables, member, reasons);
        }
    }
}

/// The nodes that refuse a class now, by the first test that each fails, and the one that came nearest. The class must be
/// prepared.
fn refuse(tables: &Tables, feasible: &Feasible, class: ClassIdx, left: &mut Vec<u64>) -> Seen {
    let mut refusals = feasible.tally(class);
    left.clear();
    left.extend_from_slice(feasible.mask(class));
    let nearest = nearest(tables, class, left);
    let mut keep = |refusal: Refusal, test: &dyn Fn(&mut [u64])| {
        let before = mask::count(left);
        test(left);
        refusals.add(refusal, count(before - mask::count(left)));
    };
    keep(Refusal::Gpu, &|nodes| {
        if let Kind::Shared { devices } = tables.classes.kind[class] {
            mask::retain(nodes, |node| cards_with_room(tables, class, NodeIdx::new(node)) >= i64::from(devices));
        }
    });
    for (refusal, of) in [
        (Refusal::Gpu, Some(GPU)),
        (Refusal::Cpu, Some(CPU)),
        (Refusal::Memory, Some(MEMORY)),
        (Refusal::Extra, None),
        (Refusal::Pods, Some(PODS)),
    ] {
        keep(refusal, &|nodes| {
            for need in tables.classes.needs(class).iter().filter(|need| group_of(need.dim) == of) {
                fit::at_least(nodes, &tables.nodes.soon[need.dim.at()], need.amount);
            }
        });
    }
    keep(Refusal::Pods, &|nodes| {
        if let Kind::Shared { devices } = tables.classes.kind[class] {
            // A card that is newly shared costs a slot for its reservation pod as well.
            mask::retain(nodes, |node| CardBuffer::judge(tables, CardOrder::Pack, class, NodeIdx::new(node), devices).is_some());
        }
    });
    keep(Refusal::CardQuota, &|nodes| {
        if tables.classes.charge_varies(class) {
            nodes.fill(0);
        }
    });
    Seen { refusals, nearest }
}

/// The dimension itself if it has a test of its own, else none: one test for all others.
fn group_of(dim: Dim) -> Option<Dim> {
    dim.as_extra().is_none().then_some(dim)
}

/// Cards of a node that could take a pod's part: shared ones with room, and whole GPUs.
fn cards_with_room(tables: &Tables, class: ClassIdx, node: NodeIdx) -> i64 {
    let card = tables.nodes.card_mib[node];
    let Some(mib) = tables.classes.mib_on(class, card).filter(|&mib| mib <= card) else { return 0 };
    let shared = tables.gpus.on(node).filter(|&group| tables.gpus.room_soon(group, card) >= mib).count();
    let whole = tables.nodes.soon[GPU.at()][node];
    if whole < 0 { 0 } else { i64::from(count(shared)) + whole }
}

/// The node of `nodes` that lacks least: the fewest scarce resources, then the smallest missing share of the first one.
fn nearest(tables: &Tables, class: ClassIdx, nodes: &[u64]) -> Option<Nearest> {
    let mut best: Option<(u32, i64, Nearest)> = None;
    for node in mask::ones(nodes).map(NodeIdx::new) {
        let Some(found) = shortage(tables, class, node) else { continue };
        // Missing share in parts of 2^20, so that the comparison is one of integers.
        let missing = i128::from(found.short.asked - found.short.free) << 20;
        let share = i64::try_from(missing / i128::from(found.short.asked.max(1))).unwrap_or(i64::MAX);
        if best.is_none_or(|(scarce, least, _)| (found.scarce, share) < (scarce, least)) {
            best = Some((found.scarce, share, found));
        }
    }
    best.map(|(.., nearest)| nearest)
}

/// What a node lacks for a class; `None` if nothing.
fn shortage(tables: &Tables, class: ClassIdx, node: NodeIdx) -> Option<Nearest> {
    let mut first = None;
    let mut scarce_count = 0;
    let mut lacks = |short: Shortage| {
        first = first.or(Some(short));
        scarce_count += 1;
    };
    if let Kind::Shared { devices } = tables.classes.kind[class]
        && cards_with_room(tables, class, node) < i64::from(devices)
    {
        let mib = tables.classes.mib_on(class, tables.nodes.card_mib[node]).unwrap_or(0);
        lacks(Shortage { what: Scarce::CardMib, asked: mib, free: tables.gpus.room[node].max(0) });
    }
    let needs = tables.classes.needs(class);
    for need in needs.iter().filter(|n| n.dim == GPU).chain(needs.iter().filter(|n| n.dim != GPU)) {
        let free = tables.nodes.soon[need.dim.at()][node];
        if free < need.amount {
            lacks(Shortage { what: scarce(need.dim), asked: need.amount, free });
        }
    }
    first.map(|short| Nearest { node, short, scarce: scarce_count })
}

fn scarce(dim: Dim) -> Scarce {
    match dim {
        CPU => Scarce::Cpu,
        MEMORY => Scarce::Memory,
        GPU => Scarce::Gpus,
        PODS => Scarce::Pods,
        _ => Scarce::Extra(dim.as_extra().expect("every other dimension is an extra one")),
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("rows are counted in u32")
}

fn cut(i: usize) -> u32 {
    u32::try_from(i).expect("there are fewer reasons than u32::MAX")
}
