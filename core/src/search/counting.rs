//! What can be known without trying: how many pods of each class of a gang could be placed, node by node.

use std::ops::ControlFlow;

use muster_kernels::{fit, mask, scan};

use crate::actions::Plan;
use crate::explain::Unhelped;
use crate::index::{ClassIdx, Idx, NodeIdx, PodIdx, QueueIdx};
use crate::place::gang::{candidates, next_pods};
use crate::search::leaf::{Alone, Visit};
use crate::search::offers::Offered;
use crate::search::{Asker, Unit, asks, rules};
use crate::tables::Tables;
use crate::tables::classes::Kind;
use crate::tables::gangs::Member;
use crate::tables::nodes::{Dim, GPU};
use crate::units::{Amounts, MICRO_PER_GPU, Resource, UNLIMITED, mib_share};

/// How many pods of a class each node could take at most, kept up to date from asker to asker.
#[derive(Clone, Debug)]
struct Need {
    class: ClassIdx,
    /// Whole GPUs for each.
    gpus: i64,
    copies: Vec<i64>,
    sum: i64,
    /// Nodes where it came to take more while something was offered, some of them twice.
    won: Vec<NodeIdx>,
    /// How much of [`Nodes::changes`](crate::tables::nodes::Nodes::changes) it knows.
    seen: usize,
    /// More than so many pods will not fit while this action lasts, whoever of these victims goes: what is free or could be freed
    /// only becomes less.
    promises: Vec<Promise>,
    /// The promise that is written over next once there are [`PROMISES_KEPT`].
    oldest: usize,
}

/// That no more pods will fit, whoever of these victims goes.
#[derive(Clone, Debug)]
struct Promise {
    victims: Victims,
    most: i64,
    /// False: so many were enough for who asked, and who else could go was not looked at. Then more may fit.
    saw_all: bool,
    /// How long the log was when it was worked out; [`usize::MAX`]: it does not hold any more.
    log: usize,
}

/// Promises of a class that are kept, for askers with other victims.
const PROMISES_KEPT: usize = 32;

/// Who could go for an asker: the gangs of some leaves, for `preempt` those below its priority.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Victims {
    pub(crate) leaves: Vec<QueueIdx>,
    pub(crate) below: Option<i32>,
}

impl Clone for Victims {
    fn clone(&self) -> Self {
        Self { leaves: self.leaves.clone(), below: self.below }
    }

    /// Uses the memory again.
    fn clone_from(&mut self, source: &Self) {
        self.leaves.clone_from(&source.leaves);
        self.below = source.below;
    }
}

/// Classes that are kept; a real asker has few.
const CLASSES_KEPT: usize = 64;

/// What the nodes could take of each class of an asker.
#[derive(Clone, Debug, Default)]
pub struct Places {
    known: Vec<Need>,
    /// The classes of this asker, as positions in `known`, and how many pods of each it has.
    asked: Vec<(usize, i64)>,
    oldest: usize,
    freed: Freed,
    /// What units are counted to free that are not told to leave yet.
    offered: Offered,
    /// Queues of the asker that would exceed a limit with what they hold now.
    limits: Vec<Limit>,
}

/// How far a queue would be above its limits with the asker, if nobody below it went.
#[derive(Clone, Copy, Debug)]
struct Limit {
    queue: QueueIdx,
    /// What it may hold beside the asker.
    room: Amounts,
    /// What is offered below it.
    offered: Amounts,
}

impl Places {
    /// An action begins: the log of changes may have been cleared, and other victims may go.
    pub(crate) fn forget(&mut self) {
        for need in &mut self.known {
            need.seen = usize::MAX;
            need.promises.iter_mut().for_each(|promise| promise.log = usize::MAX);
        }
    }

    /// Counts for the next turn of a gang.
    pub(crate) fn begin(&mut self, plan: &mut Plan<'_>, asker: &Asker) {
        self.asked.clear();
        self.find_limits(plan, asker);
        if has_alternatives(plan, Member::Gang(asker.gang)) {
            return;
        }
        let (tables, asked, known, oldest) = (&*plan.tables, &mut self.asked, &mut self.known, &mut self.oldest);
        next_pods(tables, plan.config, asker.gang, plan.arena, |pod| {
            let class = tables.pods.class[pod];
            if let Some((_, pods)) = asked.iter_mut().find(|(at, _)| known[*at].class == class) {
                *pods += 1;
                return;
            }
            let at = known.iter().position(|need| need.class == class).unwrap_or_else(|| {
                if known.len() < CLASSES_KEPT.max(asked.len() + 1) {
                    known.push(Need::of(tables, class, Vec::new()));
                    return known.len() - 1;
                }
                // One that this asker has not asked for makes room.
                let at = next_to_go(oldest, known.len(), asked);
                known[at] = Need::of(tables, class, std::mem::take(&mut known[at].copies));
                at
            });
            asked.push((at, 1));
        });
        for &(at, _) in &self.asked {
            plan.search.feasible.prepare(plan.tables, plan.config, self.known[at].class);
        }
        self.refresh(plan);
    }

    /// Looks again at the nodes that changed.
    pub(crate) fn refresh(&mut self, plan: &Plan<'_>) {
        for &(at, _) in &self.asked {
            self.known[at].refresh(plan, &self.offered);
        }
    }

    /// Nothing is offered. Must be called before a search, and after one that offered something.
    pub(crate) fn clear_offers(&mut self, plan: &Plan<'_>) {
        if !self.offered.is_for(plan.tables) {
            self.offered.reset(plan.tables);
            return;
        }
        self.limits.iter_mut().for_each(|limit| limit.offered = Amounts::ZERO);
        while let Some(node) = self.offered.clear_next() {
            for &(at, _) in &self.asked {
                self.known[at].look_at(plan, &self.offered, node);
            }
        }
    }

    /// Whether pods can be offered: the asker wants no part of a card, so that what they free adds up.
    pub(crate) fn can_offer(&self, tables: &Tables) -> bool {
        self.asked.iter().all(|&(at, _)| !matches!(tables.classes.kind[self.known[at].class], Kind::Shared { .. }))
    }

    /// Counts pods as gone (`sign` 1) that are not told to leave yet, or no longer (-1).
    pub(crate) fn offer(&mut self, plan: &Plan<'_>, pods: &[PodIdx], sign: i64) {
        for &pod in pods {
            // A pod that only has a promise frees it as well.
            if let Some(node) = plan.tables.pods.node[pod] {
                self.offer_alone(plan, Alone { pod, node, class: plan.tables.pods.class[pod] }, sign);
            }
        }
    }

    /// [`Places::offer`] for one pod.
    pub(crate) fn offer_alone(&mut self, plan: &Plan<'_>, alone: Alone, sign: i64) {
        self.offered.add(plan.tables, alone, sign);
        for &(at, _) in &self.asked {
            self.known[at].look_at(plan, &self.offered, alone.node);
        }
        self.offer_to_limits(plan.tables, alone.pod, sign);
    }

    fn offer_to_limits(&mut self, tables: &Tables, pod: PodIdx, sign: i64) {
        if self.limits.is_empty() {
            return;
        }
        let Some(Ok(leaf)) = tables.pods.gang[pod].map(|gang| tables.gangs.queue[gang]) else { return };
        let held = rules::held_before(tables, pod);
        for limit in self.limits.iter_mut().filter(|limit| tables.queues.ancestors(leaf).any(|above| above == limit.queue)) {
            limit.offered = limit.offered.zip(held, |offered, held| offered + sign * held);
        }
    }

    /// Which limits stand in the asker's way as long as nobody goes.
    fn find_limits(&mut self, plan: &Plan<'_>, asker: &Asker) {
        self.limits.clear();
        if !plan.config.plugins.proportion {
            return;
        }
        let queues = &plan.tables.queues;
        let (asked, _) = asks(plan, asker.gang, plan.tables.nodes.largest_card);
        for queue in queues.ancestors(asker.queue) {
            let room = queues.limit[queue]
                .zip(asked, |limit, asked| if asked > 0 && limit != UNLIMITED { limit - asked } else { i64::MAX });
            if !queues.allocated[queue].fits(room) {
                self.limits.push(Limit { queue, room, offered: Amounts::ZERO });
            }
        }
    }

    fn limits_allow(&self, tables: &Tables) -> bool {
        self.limits.iter().all(|limit| (tables.queues.allocated[limit.queue] - limit.offered).fits(limit.room))
    }

    /// Looks again; whether every class by itself has places enough and no limit stands in the way. If not, the gang cannot
    /// start: exact for the relaxation in which each class has the cluster to itself.
    pub(crate) fn enough_now(&mut self, plan: &Plan<'_>) -> bool {
        self.refresh(plan);
        self.asked.iter().all(|&(at, pods)| self.known[at].sum >= pods) && self.limits_allow(plan.tables)
    }

    /// Whether a unit more can have made a difference: there were so many places before, or limits stand in the way.
    pub(crate) fn may_win(&self, places_before: i64) -> bool {
        self.counts() && (self.total() != places_before || !self.limits.is_empty())
    }

    /// Whether limits stand in the asker's way.
    pub(crate) const fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }

    /// Appends the nodes where offers have won a place.
    pub(crate) fn list_won(&mut self, plan: &Plan<'_>, nodes: &mut Vec<NodeIdx>) {
        for &(at, _) in &self.asked {
            let Need { class, copies: places, won, .. } = &mut self.known[at];
            won.sort_unstable();
            won.dedup();
            won.retain(|node| places[node.at()] > 0);
            nodes.extend(won.iter().filter(|&&node| places[node.at()] > copies(plan.tables, *class, node, None)));
        }
        if self.asked.len() > 1 {
            nodes.sort_unstable();
            nodes.dedup();
        }
    }

    /// Whether anything is counted: of a gang that can start in several ways nothing is known without trying.
    pub(crate) const fn counts(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether offers have won a place on a node of one of these pods, or the gang holds part of what a limit is about.
    pub(crate) fn wins_at(&self, plan: &Plan<'_>, unit: &Unit, pods: &[PodIdx]) -> bool {
        let tables = &*plan.tables;
        let wins = |node: NodeIdx| {
            self.asked.iter().any(|&(at, _)| {
                let need = &self.known[at];
                need.copies[node.at()] > 0 && need.copies[node.at()] > copies(tables, need.class, node, None)
            })
        };
        let below =
            |limit: &Limit| tables.gangs.queue[unit.gang].is_ok_and(|q| tables.queues.ancestors(q).any(|q| q == limit.queue));
        self.limits.iter().any(below)
            || match unit.alone {
                Some(alone) => wins(alone.node),
                None => unit.of(pods).iter().filter_map(|&pod| tables.pods.node[pod]).any(wins),
            }
    }

    /// Places for all pods of the asker's classes.
    pub(crate) fn total(&self) -> i64 {
        self.asked.iter().map(|&(at, _)| self.known[at].sum).sum()
    }

    /// The classes of the asker, and how many pods it has of each.
    pub(crate) fn needs(&self) -> impl Iterator<Item = (ClassIdx, i64)> + '_ {
        self.asked.iter().map(|&(at, pods)| (self.known[at].class, pods))
    }

    /// Whether a pod of the asker may go to a node, whatever is free there.
    pub(crate) fn may_take(&self, plan: &Plan<'_>, node: NodeIdx) -> bool {
        self.asked.iter().any(|&(at, _)| mask::get(plan.search.feasible.mask(self.known[at].class), node.at()))
    }

    /// The one class of which places are missing, and how many; `None` if there is not exactly one, or it takes parts of cards.
    pub(crate) fn only_need(&self, tables: &Tables) -> Option<(ClassIdx, i64)> {
        let mut short = self.asked.iter().filter(|&&(at, pods)| self.known[at].sum < pods);
        let &(at, pods) = short.next()?;
        let need = &self.known[at];
        let countable = !matches!(tables.classes.kind[need.class], Kind::Shared { .. });
        (short.next().is_none() && countable).then_some((need.class, pods - need.sum))
    }

    /// A search came to nothing: bounds that were worked out before others got their places are to be worked out anew.
    pub(crate) fn promise_nothing(&mut self, plan: &Plan<'_>, victims: &Victims) {
        let log = plan.statement.ops().len();
        for &(at, _) in &self.asked {
            let stale = |promise: &&mut Promise| promise.log < log && promise.victims == *victims;
            self.known[at].promises.iter_mut().filter(stale).for_each(|promise| promise.log = usize::MAX);
        }
    }

    /// Whether everything that may ever be freed would be too little: then how many pods are asked for, and how many would fit.
    /// `everybody` is called with a way to add one pod that could go. Exact for the relaxation in which every victim goes, each
    /// class has the cluster to itself, and a part of a card frees all of it.
    pub(crate) fn too_little(
        &mut self,
        plan: &Plan<'_>,
        victims: &Victims,
        everybody: impl Fn(&mut Visit<'_>),
    ) -> Option<(u32, u32)> {
        for &(at, pods) in &self.asked {
            let need = &mut self.known[at];
            if need.sum >= pods {
                continue;
            }
            let known = need.promises.iter().position(|promise| promise.victims == *victims);
            let most = match known.map(|at| &need.promises[at]) {
                Some(promise) if promise.log != usize::MAX && (promise.saw_all || promise.most >= pods) => promise.most,
                _ => {
                    let (most, saw_all) = need.most(plan, pods, &mut self.freed, &everybody);
                    let promise = need.promise_for(known, victims);
                    (promise.most, promise.saw_all, promise.log) = (most, saw_all, plan.statement.ops().len());
                    most
                }
            };
            if most < pods {
                let count = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
                return Some((count(pods), count(most)));
            }
        }
        None
    }
}

/// Of so many things that are kept the one that makes room: the oldest that this asker does not need; it has `asked` for fewer.
pub(super) fn next_to_go(oldest: &mut usize, kept: usize, asked: &[(usize, i64)]) -> usize {
    while asked.iter().any(|&(at, _)| at == *oldest) {
        *oldest = (*oldest + 1) % kept;
    }
    std::mem::replace(oldest, (*oldest + 1) % kept)
}

/// Whether a gang could start with other members than those that it asks for first.
fn has_alternatives(plan: &Plan<'_>, of: Member) -> bool {
    if let Member::Subgroup(subgroup) = of
        && plan.tables.gangs.is_pod_set(subgroup)
    {
        return false;
    }
    let (missing, members) = candidates(plan.tables, plan.config, of, plan.arena);
    members.len() > missing || members.iter().any(|&member| has_alternatives(plan, Member::Subgroup(member)))
}

impl Need {
    /// Nothing known.
    fn of(tables: &Tables, class: ClassIdx, copies: Vec<i64>) -> Self {
        Self {
            class,
            gpus: tables.classes.need(class, GPU),
            copies,
            sum: 0,
            won: Vec::new(),
            seen: usize::MAX,
            promises: Vec::new(),
            oldest: 0,
        }
    }

    fn refresh(&mut self, plan: &Plan<'_>, offered: &Offered) {
        let tables = &*plan.tables;
        match tables.nodes.changes_since(self.seen) {
            Some(changes) => changes.iter().for_each(|&node| self.look_at(plan, offered, node)),
            None => self.fill(tables, plan.search.feasible.mask(self.class), offered),
        }
        self.seen = tables.nodes.changes.len();
    }

    /// Counts all nodes anew: by whole columns where nothing is offered and no parts of cards are asked for.
    fn fill(&mut self, tables: &Tables, nodes: &[u64], offered: &Offered) {
        self.won.clear();
        self.won.extend(offered.nodes());
        self.copies.clear();
        let shared = matches!(tables.classes.kind[self.class], Kind::Shared { .. });
        if shared || !offered.is_empty() {
            self.copies.resize(tables.nodes.len(), 0);
            for node in mask::ones(nodes) {
                self.copies[node] = copies(tables, self.class, NodeIdx::new(node), Some(offered));
            }
        } else {
            self.copies.resize(tables.nodes.len(), i64::MAX);
            for need in tables.classes.needs(self.class) {
                fit::copies(&mut self.copies, nodes, &tables.nodes.soon[need.dim.at()], need.amount);
            }
        }
        self.sum = scan::sum(&self.copies);
    }

    /// Counts one node anew.
    fn look_at(&mut self, plan: &Plan<'_>, offered: &Offered, node: NodeIdx) {
        if mask::get(plan.search.feasible.mask(self.class), node.at()) {
            let now = self.copies_on(plan.tables, node, offered);
            if now > self.copies[node.at()] {
                self.won.push(node);
            }
            self.sum += now - self.copies[node.at()];
            self.copies[node.at()] = now;
        }
    }

    /// [`copies`], but GPUs are looked at first: most often they are what is missing.
    fn copies_on(&self, tables: &Tables, node: NodeIdx, offered: &Offered) -> i64 {
        if self.gpus > 0 && tables.nodes.soon[GPU.at()][node] + offered.at(tables, GPU, node) < self.gpus {
            return 0;
        }
        copies(tables, self.class, node, Some(offered))
    }

    /// Where a promise for these victims goes, in place of one that there was for the same victims.
    fn promise_for(&mut self, known: Option<usize>, victims: &Victims) -> &mut Promise {
        let at = known.unwrap_or_else(|| {
            if self.promises.len() < PROMISES_KEPT {
                self.promises.push(Promise { victims: victims.clone(), most: 0, saw_all: false, log: usize::MAX });
                return self.promises.len() - 1;
            }
            self.oldest = (self.oldest + 1) % PROMISES_KEPT;
            self.promises[self.oldest].victims.clone_from(victims);
            self.oldest
        });
        &mut self.promises[at]
    }

    /// How many pods would fit if everybody went, and whether everybody was looked at: as many as are asked for are enough.
    fn most(&self, plan: &Plan<'_>, asked: i64, freed: &mut Freed, everybody: &impl Fn(&mut Visit<'_>)) -> (i64, bool) {
        let can_take = plan.search.feasible.mask(self.class);
        let mut most = self.sum;
        everybody(&mut |victim| {
            if mask::get(can_take, victim.node.at()) {
                most += freed.add(plan.tables, self.class, &self.copies, victim);
            }
            if most >= asked { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        freed.clear(plan.tables, self.class);
        (most, most < asked)
    }
}

/// What victims free on each node, as far as pods of one class need it.
#[derive(Clone, Debug, Default)]
struct Freed {
    /// For each node what is freed of each of the class's needs, in their order, and then of cards if it shares them. Nothing but
    /// zeros between two counts.
    amounts: Vec<i64>,
    /// How many pods fit on the nodes of `touched` with that; indexed by node.
    copies: Vec<i64>,
    touched: Vec<NodeIdx>,
}

impl Freed {
    /// One more pod could go: so many more pods of the class fit on its node, where `copies` fit if nobody goes.
    fn add(&mut self, tables: &Tables, class: ClassIdx, copies: &[i64], victim: Alone) -> i64 {
        let (node, at) = (victim.node, victim.node.at());
        let needs = tables.classes.needs(class);
        let width = needs.len() + 1;
        // They only grow: zeros serve classes of any width.
        self.amounts.resize(self.amounts.len().max(tables.nodes.len() * width), 0);
        self.copies.resize(self.copies.len().max(tables.nodes.len()), 0);
        let amounts = &mut self.amounts[at * width..][..width];
        if amounts.iter().all(|&amount| amount == 0) {
            self.touched.push(node);
            self.copies[at] = copies[at];
        }
        let freed = |dim: Dim| {
            let in_parts = matches!(tables.classes.kind[victim.class], Kind::Shared { .. });
            tables.classes.need(victim.class, dim) + if dim == GPU && in_parts { i64::from(u8::MAX) } else { 0 }
        };
        for (amount, need) in amounts.iter_mut().zip(needs) {
            *amount += freed(need.dim);
        }
        let there = |dim: Dim, freed: i64| (tables.nodes.soon[dim.at()][node] + freed).max(0);
        let by_needs = needs.iter().zip(&*amounts).map(|(need, &freed)| there(need.dim, freed) / need.amount).min();
        let mut now = by_needs.unwrap_or(0);
        if let Kind::Shared { devices } = tables.classes.kind[class] {
            amounts[needs.len()] += freed(GPU);
            let whole = tables.nodes.soon[GPU.at()][node];
            let soon = whole + amounts[needs.len()];
            // How many parts would fit is not looked at: a card that is freed is enough for this bound, and a node that held more
            // than it has takes parts once it does no longer.
            if soon < 0 || soon == 0 && whole == 0 {
                now = now.min(parts(tables, class, devices, node));
            }
        }
        now - std::mem::replace(&mut self.copies[at], now)
    }

    /// Nobody goes, after pods of a class were counted.
    fn clear(&mut self, tables: &Tables, class: ClassIdx) {
        let width = tables.classes.needs(class).len() + 1;
        for node in self.touched.drain(..) {
            self.amounts[node.at() * width..][..width].fill(0);
        }
    }
}

/// Why moving work around cannot help: fewer GPUs are free on all nodes together than are asked for.
#[must_use]
pub fn too_little_free(plan: &Plan<'_>, asker: &Asker) -> Option<Unhelped> {
    let (free, asked) = (free_in_all(plan.tables), asker.asks[Resource::Gpu]);
    (asked > free && !depends_on_card(plan, asker)).then_some(Unhelped::TooLittleFree { asked, free })
}

/// Whether what an asker takes depends on the cards it gets, so that it cannot be held against what is free.
pub(crate) fn depends_on_card(plan: &Plan<'_>, asker: &Asker) -> bool {
    let tables = &*plan.tables;
    let mut depends = false;
    next_pods(tables, plan.config, asker.gang, plan.arena, |pod| depends |= tables.classes.charge_varies(tables.pods.class[pod]));
    depends
}

/// Micro-GPU that will be free on a node, whole and parts.
pub(crate) fn free_on(tables: &Tables, node: NodeIdx) -> i64 {
    let card = tables.nodes.card_mib[node];
    let parts = tables.gpus.on(node).map(|group| mib_share(tables.gpus.room_soon(group, card).max(0), card));
    tables.nodes.soon[GPU.at()][node].max(0) * MICRO_PER_GPU + parts.sum::<i64>()
}

/// Micro-GPU that are free somewhere, on whichever nodes: moving work around frees no more than that.
pub(crate) fn free_in_all(tables: &Tables) -> i64 {
    let whole: i64 = tables.nodes.soon[GPU.at()].iter().map(|&free| free.max(0)).sum();
    let shared = tables.gpus.node.entries().map(|(group, &node)| {
        let card = tables.nodes.card_mib[node];
        mib_share(tables.gpus.room_soon(group, card).max(0), card)
    });
    let mig: i64 = tables
        .nodes
        .soon
        .iter()
        .zip(&tables.nodes.quota_gpus)
        .map(|(free, each)| if *each == 0 { 0 } else { free.iter().map(|f| f.max(&0) / 1000 * each).sum() })
        .sum();
    (whole + mig).saturating_mul(MICRO_PER_GPU).saturating_add(shared.sum())
}

/// How many pods of a class a node could take, of what will be free there and what is offered.
pub(super) fn copies(tables: &Tables, class: ClassIdx, node: NodeIdx, offered: Option<&Offered>) -> i64 {
    let mut most = i64::MAX;
    for need in tables.classes.needs(class) {
        let offered = offered.map_or(0, |offered| offered.at(tables, need.dim, node));
        let there = tables.nodes.soon[need.dim.at()][node] + offered;
        // Most often so, and dividing is slow.
        if there < need.amount {
            return 0;
        }
        most = most.min(there / need.amount);
    }
    match tables.classes.kind[class] {
        Kind::Shared { devices } => most.min(parts(tables, class, devices, node)),
        _ => most,
    }
}

/// How many pods that take parts of so many cards each could have them on a node.
fn parts(tables: &Tables, class: ClassIdx, devices: u32, node: NodeIdx) -> i64 {
    let card = tables.nodes.card_mib[node];
    let whole = tables.nodes.soon[GPU.at()][node];
    let Some(mib) = tables.classes.mib_on(class, card).filter(|&mib| mib <= card && whole >= 0) else { return 0 };
    let parts = |free: i64| if free < 0 { 0 } else { free.checked_div(mib).unwrap_or(i64::from(u32::MAX)) };
    let shared: i64 = tables.gpus.on(node).map(|group| parts(tables.gpus.room_soon(group, card))).sum();
    (shared + whole * parts(card)) / i64::from(devices)
}
