//! `reclaim`, `preempt` and `consolidation`: waiting gangs for whom others have to go or to move (semantics.md §6.2, §6.5–6.7).
//!
//! One loop for the three: gangs in their order, each asked once. Who may ask differs here, who may go in [`crate::search`].
//! When the last of the three ends, whoever was refused gets a second look: what those who asked have left may be enough.

use bumpalo::collections::Vec as BumpVec;

use crate::actions::Plan;
use crate::actions::allocate::is_eligible;
use crate::bounds;
use crate::config::{Action, Config};
use crate::explain::{Reason, Unhelped};
use crate::index::{ClassIdx, GangIdx, Idx};
use crate::place::gang::{next_pods, next_request};
use crate::search::{Asker, SearchMemory, asks, rules};
use crate::tables::Tables;
use crate::units::Amounts;

/// Gives every gang that waits its one turn to ask.
pub fn run(plan: &mut Plan<'_>, memory: &mut SearchMemory, action: Action) {
    let (arena, config, card) = (plan.arena, plan.config, plan.tables.nodes.smallest_card);
    let mut eligible = BumpVec::new_in(arena);
    for gang in (0..plan.tables.gangs.queue.len()).map(GangIdx::new).filter(|&gang| is_eligible(plan.tables, gang)) {
        match may_not_line_up(plan, gang, action) {
            Some(why) => plan.failures.not_helped(gang, action, why),
            None => eligible.push(gang),
        }
    }
    if eligible.is_empty() {
        return;
    }
    let next = |tables: &Tables, gang| next_request(tables, config, gang, card, arena);
    plan.order.begin(plan.tables, config, eligible.iter().copied(), |gang| next(plan.tables, gang));
    if let Some(depth) = config.depth[action as usize] {
        let why = Unhelped::BeyondQueueDepth { depth };
        plan.order.cut(depth as usize, |_, gang| plan.failures.not_helped(gang, action, why));
    }
    let mut turns = Turns { begun: false, refused: BumpVec::new_in(arena), second_look: BumpVec::new_in(arena) };
    turns.refused.resize(plan.tables.queues.parent.len(), None);
    while let Some(gang) = plan.order.pop(plan.tables, config) {
        turns.take(plan, memory, action, gang);
        plan.order.settle(plan.tables, config, gang, |gang| next(plan.tables, gang));
    }
    if turns.begun && is_last(config, action) {
        turns.look_again(plan, memory, action);
    }
}

/// Whether no later action of the cycle places anybody.
fn is_last(config: &Config, action: Action) -> bool {
    let mut places = config.actions.iter().rev().filter(|&&action| action != Action::StaleGangEviction);
    places.next() == Some(&action) && places.all(|&before| before != action)
}

/// Why a gang that waits does not even line up.
fn may_not_line_up(plan: &Plan<'_>, gang: GangIdx, action: Action) -> Option<Unhelped> {
    let rules = &plan.config.victims;
    if !rules.search || action == Action::Consolidation && rules.consolidation_jobs_max == Some(0) {
        return Some(Unhelped::SwitchedOff);
    }
    let times = plan.tables.gangs.times[gang];
    let since = times.evicted.map_or(times.created, |evicted| evicted.max(times.created));
    let left = since.saturating_add(times.preemption_delay).saturating_sub(plan.config.now);
    if left > 0 {
        return Some(Unhelped::Delayed { left });
    }
    (action == Action::Consolidation && !plan.tables.gangs.preemptible[gang]).then_some(Unhelped::NotPreemptible)
}

/// The turns of one action.
struct Turns<'b> {
    /// Victims are listed once somebody needs them.
    begun: bool,
    /// The last gang of each leaf that was refused, and the length of the log then: whoever is like it is refused too.
    refused: BumpVec<'b, Option<(Twin, usize, Unhelped)>>,
    /// Whoever was refused, in order.
    second_look: BumpVec<'b, GangIdx>,
}

impl Turns<'_> {
    fn take(&mut self, plan: &mut Plan<'_>, memory: &mut SearchMemory, action: Action, gang: GangIdx) {
        let Ok(queue) = plan.tables.gangs.queue[gang] else { return };
        let (amount, pods) = asks(plan, gang, plan.tables.nodes.smallest_card);
        let asker = Asker { gang, queue, action, asks: amount };
        if pods == 0 {
            return;
        }
        let twin = Twin::of(plan, &asker);
        let log = plan.statement.ops().len();
        if let Some((known, at, why)) = self.refused[queue.at()]
            && Some(known) == twin
            && at == log
            && plan.config.victims.shortcuts
        {
            plan.failures.not_helped(gang, action, why);
            self.second_look.push(gang);
            return;
        }
        match self.ask(plan, memory, &asker) {
            Ok(()) => served(plan, gang),
            Err(why) => {
                plan.failures.not_helped(gang, action, why);
                self.refused[queue.at()] = twin.map(|twin| (twin, log, why));
                self.second_look.push(gang);
            }
        }
    }

    /// Who fits without victims is promised its place (architecture.md, "The search for victims"), after all who had to ask: no
    /// promise of this kind stands in anybody's way.
    fn look_again(&self, plan: &mut Plan<'_>, memory: &mut SearchMemory, action: Action) {
        for &gang in &self.second_look {
            let Ok(queue) = plan.tables.gangs.queue[gang] else { continue };
            let asker = Asker { gang, queue, action, asks: asks(plan, gang, plan.tables.nodes.smallest_card).0 };
            if may_not_ask(plan, &asker).is_none() && memory.promise(plan, &asker) {
                served(plan, gang);
            }
        }
    }

    fn ask(&mut self, plan: &mut Plan<'_>, memory: &mut SearchMemory, asker: &Asker) -> Result<(), Unhelped> {
        if let Some(why) = may_not_ask(plan, asker) {
            return Err(why);
        }
        if !self.begun {
            memory.begin(plan);
            self.begun = true;
        }
        memory.solve(plan, asker)
    }
}

/// A gang got something.
fn served(plan: &mut Plan<'_>, gang: GangIdx) {
    plan.failures.helped(plan.tables, gang);
    for subgroup in plan.tables.gangs.subgroups[gang].iter() {
        plan.tables.pods.move_up(subgroup);
    }
}

/// What its queues say to a gang that asks.
fn may_not_ask(plan: &Plan<'_>, asker: &Asker) -> Option<Unhelped> {
    if !plan.config.plugins.proportion {
        return None;
    }
    let most = asks(plan, asker.gang, plan.tables.nodes.largest_card).0;
    let mut why = None;
    bounds::broken(plan.tables, asker.gang, most, |reason| {
        if let Reason::OverQuota(bound) = reason {
            why.get_or_insert(Unhelped::AboveQuota(bound));
        }
    });
    why.or_else(|| if asker.action == Action::Reclaim { rules::may_not_ask(plan.tables, asker) } else { None })
        .or_else(|| rules::over_limit(plan.tables, asker))
}

/// What the answer to a gang of like pods depends on, beside the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Twin {
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
            class: class.filter(|_| alike)?,
            asks: asker.asks,
            priority: gangs.priority[asker.gang],
            preemptible: gangs.preemptible[asker.gang],
        })
    }
}
