//! One try: everybody who was told to leave and the asker look for a place, in the order in which they would be served
//! (semantics.md §6.4.6).
//!
//! All gangs that wait in the queues of these stand in the line too, since a queue is compared with others by the gang at its
//! head; they are passed over when their turn comes. Queues where nobody plays do not matter to anyone and are left out.

use std::cmp::Reverse;

use crate::actions::Plan;
use crate::bounds;
use crate::config::Config;
use crate::index::{Col, GangIdx, Idx, QueueIdx};
use crate::order::{Standing, Turn, first, turn};
use crate::place::gang::{Attempt, next_request};
use crate::search::{Asker, asks};
use crate::tables::Tables;
use crate::units::Amounts;

/// Memory of a try.
#[derive(Clone, Debug, Default)]
pub struct Simulation {
    /// Gangs of each leaf that waited when the action began, first to be served first.
    waiting: Col<QueueIdx, Vec<Turn>>,
    /// What each of them asks for at once.
    asking: Col<QueueIdx, Vec<Amounts>>,
    /// For each of them where the next one stands that asks for something else: a queue does not stand differently before.
    next_other: Col<QueueIdx, Vec<u32>>,
    /// Those before it found their places while the action lasted.
    from: Col<QueueIdx, usize>,
    /// How far each leaf's line has moved up.
    at: Col<QueueIdx, usize>,
    /// The asker and the victims of each leaf; few.
    playing: Col<QueueIdx, Vec<Turn>>,
    standing: Col<QueueIdx, Option<Standing>>,
    /// The gang at the head of a queue or of any below it, and what it asks for.
    best: Col<QueueIdx, Option<(GangIdx, Amounts)>>,
    /// How many gangs of the queue and those below it have still to play.
    players: Col<QueueIdx, u32>,
    gangs: Vec<GangIdx>,
    plays: Col<GangIdx, bool>,
    /// What the asker takes: not what it asks for first if others of its members found places instead.
    taken: Amounts,
}

impl Simulation {
    /// An action begins.
    pub(crate) fn begin(&mut self, tables: &Tables, config: &Config, next: impl Fn(GangIdx) -> Amounts) {
        let queues = tables.queues.parent.len();
        while self.waiting.len() < queues {
            self.waiting.push(Vec::new());
            self.next_other.push(Vec::new());
            self.asking.push(Vec::new());
            self.playing.push(Vec::new());
        }
        self.waiting.as_mut_slice().iter_mut().for_each(Vec::clear);
        self.playing.as_mut_slice().iter_mut().for_each(Vec::clear);
        self.plays.reset(tables.gangs.queue.len(), false);
        self.gangs.clear();
        self.from.reset(queues, 0);
        for gang in (0..tables.gangs.queue.len()).map(GangIdx::new) {
            let Ok(queue) = tables.gangs.queue[gang] else { continue };
            if tables.queues.is_leaf(queue) && tables.gangs.pending(gang) > 0 {
                self.waiting[queue].push(turn(tables, config, gang));
            }
        }
        for queue in self.waiting.indices() {
            self.waiting[queue].sort_unstable();
            let (line, others, asking) = (&self.waiting[queue], &mut self.next_other[queue], &mut self.asking[queue]);
            others.clear();
            others.resize(line.len(), 0);
            asking.clear();
            asking.extend(line.iter().map(|&(.., gang)| next(gang)));
            let mut after: Option<(Amounts, u32)> = None;
            for (at, &asks) in asking.iter().enumerate().rev() {
                let here = u32::try_from(at + 1).expect("gangs are counted in u32");
                let other = after.filter(|&(same, _)| same == asks).map_or(here, |(_, other)| other);
                others[at] = other;
                after = Some((asks, other));
            }
        }
    }

    /// Before which of the gangs that wait in its leaf a gang would be served, once it was told to leave.
    pub(crate) fn place_in_line(&self, plan: &Plan<'_>, leaf: QueueIdx, gang: GangIdx) -> usize {
        let (Reverse(priority), _, gang) = turn(plan.tables, plan.config, gang);
        // A gang of one pod without its pod is below its minimum.
        self.waiting[leaf].partition_point(|&waits| waits < (Reverse(priority), 0, gang))
    }

    /// The asker as it was served in the last try.
    pub(super) fn served(&self, asker: &Asker) -> Asker {
        Asker { asks: self.taken, ..*asker }
    }

    /// Whether the asker starts. Victims that find no place stay told to leave.
    pub(crate) fn run(&mut self, plan: &mut Plan<'_>, asker: &Asker, victims: impl Iterator<Item = GangIdx>) -> bool {
        self.line_up(plan, asker, victims);
        let mut left = self.gangs.len();
        while left > 0 {
            let Some((queue, gang)) = self.pop(plan) else { break };
            if self.plays[gang] {
                left -= 1;
                for above in plan.tables.queues.ancestors(queue) {
                    self.players[above] -= 1;
                }
                if gang != asker.gang {
                    place(plan, asker, gang);
                } else if !self.place_asker(plan, asker) {
                    return false;
                }
            }
            for above in plan.tables.queues.ancestors(queue) {
                self.refresh(plan, above);
            }
        }
        true
    }

    /// The asker's own turn; what it takes is remembered.
    fn place_asker(&mut self, plan: &mut Plan<'_>, asker: &Asker) -> bool {
        let mark = plan.statement.mark(plan.tables);
        let placed = place(plan, asker, asker.gang);
        let tables = &*plan.tables;
        let charge = |pod| tables.classes.charge_at(tables.pods.class[pod], tables.nodes.smallest_card);
        self.taken = plan.statement.since(mark).iter().fold(Amounts::ZERO, |sum, op| sum + charge(op.pod));
        placed
    }

    fn line_up(&mut self, plan: &Plan<'_>, asker: &Asker, victims: impl Iterator<Item = GangIdx>) {
        let (tables, config) = (&*plan.tables, plan.config);
        let queues = tables.queues.parent.len();
        for gang in self.gangs.drain(..) {
            self.plays[gang] = false;
            if let Ok(queue) = tables.gangs.queue[gang] {
                self.playing[queue].clear();
            }
        }
        for gang in victims.chain([asker.gang]) {
            if !std::mem::replace(&mut self.plays[gang], true) {
                self.gangs.push(gang);
                let queue = tables.gangs.queue[gang].expect("whoever plays has a queue");
                self.playing[queue].push(turn(tables, config, gang));
            }
        }
        for line in self.playing.as_mut_slice().iter_mut().filter(|line| line.len() > 1) {
            // Last first, to be popped from the end.
            line.sort_unstable_by_key(|&turn| Reverse(turn));
        }
        self.at.reset(queues, 0);
        for queue in self.waiting.indices() {
            let (line, from) = (&self.waiting[queue], &mut self.from[queue]);
            while line.get(*from).is_some_and(|&(.., gang)| tables.gangs.pending(gang) == 0) {
                *from += 1;
            }
            self.at[queue] = *from;
        }
        self.standing.reset(queues, None);
        self.best.reset(queues, None);
        self.players.reset(queues, 0);
        for &gang in &self.gangs {
            let queue = tables.gangs.queue[gang].expect("whoever plays has a queue");
            for above in tables.queues.ancestors(queue) {
                self.players[above] += 1;
            }
        }
        for &root in &tables.queues.roots {
            self.refresh_below(plan, root);
        }
    }

    fn refresh_below(&mut self, plan: &Plan<'_>, queue: QueueIdx) {
        if self.players[queue] == 0 {
            return;
        }
        for &child in plan.tables.queues.children_of(queue) {
            self.refresh_below(plan, child);
        }
        self.refresh(plan, queue);
    }

    fn refresh(&mut self, plan: &Plan<'_>, queue: QueueIdx) {
        let tables = &*plan.tables;
        self.best[queue] = if self.players[queue] == 0 {
            None
        } else if tables.queues.is_leaf(queue) {
            self.first_of(plan, queue)
        } else {
            first(&self.standing, plan.config, tables.queues.children_of(queue)).and_then(|child| self.best[child])
        };
        self.standing[queue] = self.best[queue].map(|(_, asks)| Standing::of(tables, queue, asks));
    }

    /// The gang at the head of a leaf, and what it asks for.
    fn first_of(&mut self, plan: &Plan<'_>, leaf: QueueIdx) -> Option<(GangIdx, Amounts)> {
        let tables = &*plan.tables;
        let waits = self.head(tables, leaf);
        let playing = self.playing[leaf].last().copied();
        match (waits, playing) {
            (Some(waits), playing) if playing.is_none_or(|playing| waits < playing) => {
                Some((waits.2, self.asking[leaf][self.at[leaf]]))
            }
            (_, Some((.., gang))) => {
                Some((gang, next_request(tables, plan.config, gang, tables.nodes.smallest_card, plan.arena)))
            }
            _ => None,
        }
    }

    /// The first gang of a leaf that waits and does not play.
    fn head(&mut self, tables: &Tables, leaf: QueueIdx) -> Option<Turn> {
        let line = &self.waiting[leaf];
        let at = &mut self.at[leaf];
        while let Some(&head) = line.get(*at) {
            if !self.plays[head.2] && tables.gangs.pending(head.2) > 0 {
                return Some(head);
            }
            *at += 1;
        }
        None
    }

    fn pop(&mut self, plan: &Plan<'_>) -> Option<(QueueIdx, GangIdx)> {
        let mut queue = first(&self.standing, plan.config, &plan.tables.queues.roots)?;
        while !plan.tables.queues.is_leaf(queue) {
            queue = first(&self.standing, plan.config, plan.tables.queues.children_of(queue))?;
        }
        let (gang, _) = self.best[queue]?;
        if self.playing[queue].last().is_some_and(|&(.., last)| last == gang) {
            self.playing[queue].pop();
        } else {
            // The queue stands as before until somebody plays or asks for something else.
            let at = self.at[queue];
            let other = self.next_other[queue][at] as usize;
            let turn = self.playing[queue].last().map_or(other, |&next| self.waiting[queue].partition_point(|&w| w < next));
            self.at[queue] = other.min(turn).max(at + 1);
        }
        Some((queue, gang))
    }
}

/// One turn of one gang, whole or not at all.
pub(super) fn place(plan: &mut Plan<'_>, asker: &Asker, gang: GangIdx) -> bool {
    // What backed off is not tried; told to leave, it is lost.
    if plan.tables.gangs.backed_off[gang] {
        return false;
    }
    let (asked, pods) = asks(plan, gang, plan.tables.nodes.largest_card);
    if pods == 0 || plan.config.plugins.proportion && !bounds::allow(plan.tables, gang, asked) {
        return false;
    }
    let mark = plan.statement.mark(plan.tables);
    let mut attempt = Attempt {
        tables: plan.tables,
        statement: plan.statement,
        search: plan.search,
        config: plan.config,
        arena: plan.arena,
        action: asker.action,
        gang,
        mark,
        miss: None,
    };
    let placed = attempt.place() && !attempt.statement.since(mark).is_empty();
    if placed {
        // Nobody starts now: what is being released for them is not free yet.
        plan.statement.delay_since(plan.tables, mark);
    } else {
        plan.statement.rollback(plan.tables, mark);
    }
    placed
}
