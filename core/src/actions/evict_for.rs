//! `reclaim`, `preempt` and `consolidation`: waiting gangs for whom others have to go or to move (semantics.md §6.2, §6.5–6.7).
//!
//! One loop for the three: gangs in their order, each asked once. Who may ask differs here, who may go in [`crate::search`].

use bumpalo::collections::Vec as BumpVec;

use crate::actions::Plan;
use crate::actions::allocate::is_eligible;
use crate::bounds;
use crate::config::Action;
use crate::index::{ClassIdx, GangIdx, Idx, QueueIdx};
use crate::place::gang::{next_pods, next_request};
use crate::search::{Asker, SearchMemory, Verdict, asks, rules};
use crate::tables::Tables;
use crate::units::Amounts;

/// Gives every gang that waits its one turn to ask.
pub fn run(plan: &mut Plan<'_>, memory: &mut SearchMemory, action: Action) {
    let rules = &plan.config.victims;
    if !rules.search || action == Action::Consolidation && rules.consolidation_jobs_max == Some(0) {
        return;
    }
    let (arena, config, card) = (plan.arena, plan.config, plan.tables.nodes.smallest_card);
    let gangs = (0..plan.tables.gangs.queue.len()).map(GangIdx::new);
    let eligible = BumpVec::from_iter_in(gangs.filter(|&gang| may_line_up(plan, gang, action)), arena);
    if eligible.is_empty() {
        return;
    }
    let next = |tables: &Tables, gang| next_request(tables, config, gang, card, arena);
    plan.order.begin(plan.tables, config, eligible.iter().copied(), |gang| next(plan.tables, gang));
    if let Some(depth) = config.depth[action as usize] {
        plan.order.cut(depth as usize, |_, _| {});
    }
    memory.begin(plan);
    let mut hopeless = Hopeless::default();
    while let Some(gang) = plan.order.pop(plan.tables, config) {
        take_turn(plan, memory, &mut hopeless, action, gang);
        plan.order.settle(plan.tables, config, gang, |gang| next(plan.tables, gang));
    }
}

fn may_line_up(plan: &Plan<'_>, gang: GangIdx, action: Action) -> bool {
    let times = plan.tables.gangs.times[gang];
    let since = times.evicted.map_or(times.created, |evicted| evicted.max(times.created));
    is_eligible(plan.tables, gang)
        && plan.config.now >= since.saturating_add(times.preemption_delay)
        && (action != Action::Consolidation || plan.tables.gangs.preemptible[gang])
}

fn take_turn(plan: &mut Plan<'_>, memory: &mut SearchMemory, hopeless: &mut Hopeless, action: Action, gang: GangIdx) {
    let Ok(queue) = plan.tables.gangs.queue[gang] else { return };
    let (amount, pods) = asks(plan, gang, plan.tables.nodes.smallest_card);
    let asker = Asker { gang, queue, action, asks: amount };
    if pods == 0 || !may_ask(plan, &asker) {
        return;
    }
    let twin = Twin::of(plan, &asker);
    if twin.is_some() && hopeless.twin == twin {
        return;
    }
    if memory.solve(plan, &asker) == Verdict::Solved {
        hopeless.twin = None;
        if plan.tables.gangs.pending(gang) == 0 {
            plan.failures.forget(gang);
        }
        for subgroup in plan.tables.gangs.subgroups[gang].iter() {
            plan.tables.pods.move_up(subgroup);
        }
    } else {
        hopeless.twin = twin;
    }
}

fn may_ask(plan: &Plan<'_>, asker: &Asker) -> bool {
    if !plan.config.plugins.proportion {
        return true;
    }
    let most = asks(plan, asker.gang, plan.tables.nodes.largest_card).0;
    bounds::quotas_allow(plan.tables, asker.gang, most) && (asker.action != Action::Reclaim || rules::may_ask(plan.tables, asker))
}

/// The last gang that found no room, if nothing changed since: whoever is like it finds none either.
#[derive(Default)]
struct Hopeless {
    twin: Option<Twin>,
}

/// What the answer to a gang of like pods depends on, beside the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Twin {
    queue: QueueIdx,
    class: ClassIdx,
    asks: Amounts,
    priority: i32,
    preemptible: bool,
}

impl Twin {
    fn of(plan: &Plan<'_>, asker: &Asker) -> Option<Self> {
        let gangs = &plan.tables.gangs;
        let mut class = None;
        let mut alike = gangs.subgroups[asker.gang].len() == 1 && gangs.active(asker.gang) == 0;
        next_pods(plan.tables, plan.config, asker.gang, plan.arena, |pod| {
            let this = plan.tables.pods.class[pod];
            alike &= *class.get_or_insert(this) == this && plan.tables.pods.nominated[pod].is_none();
        });
        Some(Self {
            queue: asker.queue,
            class: class.filter(|_| alike)?,
            asks: asker.asks,
            priority: gangs.priority[asker.gang],
            preemptible: gangs.preemptible[asker.gang],
        })
    }
}
