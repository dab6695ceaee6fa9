//! `allocate`: pending gangs into what is idle or being released (semantics.md §6.1).
//!
//! It never looks at fair share, only at limits and quotas; fairness acts through the order of queues.

use bumpalo::collections::Vec as BumpVec;

use crate::actions::Plan;
use crate::bounds;
use crate::config::Action;
use crate::index::{ClassIdx, GangIdx, Idx, PodIdx};
use crate::pending::Failures;
use crate::place::gang::{Attempt, Miss, next_pods, next_request};
use crate::snapshot::GpuRequest;
use crate::statement::Mark;
use crate::tables::Tables;
use crate::tables::classes::Kind;
use crate::tables::gangs::Member;
use crate::units::Amounts;

/// Gives gangs their turns until nobody is left in line. A gang that got something and still has pods that wait lines up again;
/// one that got nothing is done for this cycle.
pub fn run(plan: &mut Plan<'_>) {
    let (smallest_card, arena, config) = (plan.tables.nodes.smallest_card, plan.arena, plan.config);
    let gangs = (0..plan.tables.gangs.queue.len()).map(GangIdx::new);
    let eligible = BumpVec::from_iter_in(gangs.filter(|&gang| is_eligible(plan.tables, gang)), arena);
    let next = |tables: &Tables, gang| next_request(tables, config, gang, smallest_card, arena);
    prefill(plan, &eligible);
    plan.order.begin(plan.tables, config, eligible.iter().copied(), |gang| next(plan.tables, gang));
    if let Some(depth) = config.depth[Action::Allocate as usize] {
        plan.order.cut(depth as usize, |queue, gang| plan.failures.beyond_depth(gang, queue, depth));
    }
    while let Some(gang) = plan.order.pop(plan.tables, config) {
        if take_turn(plan, gang) && plan.tables.gangs.pending(gang) > 0 {
            plan.order.push(plan.tables, config, gang);
        }
        plan.order.settle(plan.tables, config, gang, |gang| next(plan.tables, gang));
    }
    plan.failures.look(plan.tables, plan.statement, config, plan.search);
}

/// Whether a gang lines up: it has a leaf queue, pods that wait, and enough of them (semantics.md §4.4).
pub(crate) fn is_eligible(tables: &Tables, gang: GangIdx) -> bool {
    let gangs = &tables.gangs;
    gangs.queue[gang].is_ok_and(|queue| tables.queues.is_leaf(queue))
        && !gangs.backed_off[gang]
        && gangs.pending(gang) > 0
        && gangs.ready(Member::Gang(gang))
}

/// Looks up where the classes that are about to be asked for can go, on all threads.
fn prefill(plan: &mut Plan<'_>, gangs: &[GangIdx]) {
    let tables = &*plan.tables;
    let mut asked = BumpVec::from_iter_in(std::iter::repeat_n(false, tables.classes.row.len()), plan.arena);
    let mut classes = BumpVec::new_in(plan.arena);
    for &gang in gangs {
        for subgroup in tables.gangs.subgroups[gang].iter().filter(|&s| tables.gangs.counts[s].pending > 0) {
            for pod in tables.pods.waiting(subgroup) {
                let class = tables.pods.class[pod];
                if !std::mem::replace(&mut asked[class.at()], true) && tables.classes.row[class].blocked.is_none() {
                    classes.push(class);
                }
            }
        }
    }
    for &class in &classes {
        plan.search.feasible.prepare(tables, plan.config, class);
    }
    plan.search.index.prefill(tables, plan.config, &plan.search.feasible, &classes);
}

/// One turn: bounds first, then places; whole or not at all. Whether the gang got anything.
fn take_turn(plan: &mut Plan<'_>, gang: GangIdx) -> bool {
    let turn = Turn::of(plan, gang);
    if plan.config.plugins.proportion {
        let failures = &mut *plan.failures;
        let mut broken = 0;
        failures.begin(gang);
        bounds::broken(plan.tables, gang, turn.asks, |reason| {
            broken += 1;
            failures.push(reason);
        });
        if broken > 0 {
            failures.end(gang);
            return false;
        }
    }
    if let Some((class, first)) = turn.alike
        && plan.failures.known_miss(gang, class, first, turn.pods)
    {
        return false;
    }
    let mark = plan.statement.mark(plan.tables);
    let mut attempt = Attempt {
        tables: plan.tables,
        statement: plan.statement,
        search: plan.search,
        config: plan.config,
        arena: plan.arena,
        action: Action::Allocate,
        gang,
        mark,
        miss: None,
    };
    if attempt.place() && !attempt.statement.since(mark).is_empty() {
        settle(plan, gang, mark);
        return true;
    }
    match (attempt.miss, turn.alike) {
        (Some(miss), _) if miss.bound => attempt.record_bound(miss, plan.failures),
        (Some(_), Some((class, first))) => plan.failures.refuse_alike(gang, class, first, turn.pods),
        (Some(miss), None) => plan.failures.no_node(&attempt, miss, turn.pods),
        (None, _) => {}
    }
    plan.statement.rollback(plan.tables, mark);
    false
}

/// A gang starts as a whole: if a pod set would have promises while it lacks pods that start now, all of the turn are promises.
fn settle(plan: &mut Plan<'_>, gang: GangIdx, mark: Mark) {
    if !plan.tables.gangs.starts_whole(gang) {
        plan.statement.delay_since(plan.tables, mark);
    }
    for subgroup in plan.tables.gangs.subgroups[gang].iter() {
        plan.tables.pods.move_up(subgroup);
    }
}

impl Attempt<'_> {
    /// Writes down the bounds that a pod in the middle of a turn would break. The turn is rolled back: what the gang got so far
    /// is not held, it belongs to what is asked for.
    fn record_bound(&mut self, miss: Miss, failures: &mut Failures) {
        let tables = &mut *self.tables;
        let charge = tables.classes.charge_at(tables.pods.class[miss.pod], tables.nodes.largest_card);
        let placed = self.statement.since(self.mark).iter().filter_map(|op| Some((tables.pods.class[op.pod], op.after.node?)));
        let asked = placed.fold(charge, |sum, (class, node)| sum + tables.queue_charge(class, node));
        self.statement.rollback(tables, self.mark);
        failures.begin(self.gang);
        bounds::broken(tables, self.gang, asked, |reason| failures.push(reason));
        failures.end(self.gang);
    }
}

/// What a gang is about to ask for.
struct Turn {
    /// Sum, MiB counted by the largest card.
    asks: Amounts,
    /// How many pods.
    pods: u32,
    /// Their class and the first of them, if they are all alike and being refused once means being refused until something is
    /// freed.
    alike: Option<(ClassIdx, PodIdx)>,
}

impl Turn {
    fn of(plan: &Plan<'_>, gang: GangIdx) -> Self {
        let tables = &*plan.tables;
        let mut turn = Self { asks: Amounts::ZERO, pods: 0, alike: None };
        // With one pod set there is no other member to try instead.
        let mut alike = tables.gangs.subgroups[gang].len() == 1;
        next_pods(tables, plan.config, gang, plan.arena, |pod| {
            let class = tables.pods.class[pod];
            turn.asks += tables.classes.charge_at(class, tables.nodes.largest_card);
            turn.pods += 1;
            let (known, _) = *turn.alike.get_or_insert((class, pod));
            alike &= known == class && tables.pods.nominated[pod].is_none();
        });
        turn.alike = turn.alike.filter(|&(class, _)| alike && is_monotone(tables, class));
        turn
    }
}

/// Whether as many pods of a class as fit are placed by placing one after the other, and no queue decides about single cards.
fn is_monotone(tables: &Tables, class: ClassIdx) -> bool {
    !matches!(tables.classes.kind[class], Kind::Shared { devices: 2.. })
        && !matches!(tables.classes.row[class].gpu, GpuRequest::Memory { .. })
}
