//! One try: everybody who was told to leave and the asker look for a place, in the order in which they would be served
//! (semantics.md §6.4.6).

use crate::actions::Plan;
use crate::bounds;
use crate::index::{Col, GangIdx};
use crate::order::Order;
use crate::place::gang::{Attempt, next_request};
use crate::search::Asker;
use crate::search::asks;
use crate::tables::Tables;

/// Memory of a try.
#[derive(Clone, Debug, Default)]
pub struct Simulation {
    order: Order,
    gangs: Vec<GangIdx>,
    listed: Col<GangIdx, bool>,
}

impl Simulation {
    /// Whether the asker starts. Victims that find no place stay told to leave.
    pub(crate) fn run(&mut self, plan: &mut Plan<'_>, asker: &Asker, victims: impl Iterator<Item = GangIdx>) -> bool {
        while self.listed.len() < plan.tables.gangs.queue.len() {
            self.listed.push(false);
        }
        for gang in self.gangs.drain(..) {
            self.listed[gang] = false;
        }
        for gang in victims.chain([asker.gang]) {
            if !std::mem::replace(&mut self.listed[gang], true) {
                self.gangs.push(gang);
            }
        }
        let (config, arena, card) = (plan.config, plan.arena, plan.tables.nodes.smallest_card);
        let next = |tables: &Tables, gang| next_request(tables, config, gang, card, arena);
        self.order.begin(plan.tables, config, self.gangs.iter().copied(), |gang| next(plan.tables, gang));
        let mut started = false;
        while let Some(gang) = self.order.pop(plan.tables, config) {
            let placed = place(plan, asker, gang);
            if gang == asker.gang {
                if !placed {
                    return false;
                }
                started = true;
            }
            self.order.settle(plan.tables, config, gang, |gang| next(plan.tables, gang));
        }
        started
    }
}

/// One turn of one gang, whole or not at all.
fn place(plan: &mut Plan<'_>, asker: &Asker, gang: GangIdx) -> bool {
    if plan.config.plugins.proportion {
        let (asked, pods) = asks(plan, gang, plan.tables.nodes.largest_card);
        if pods == 0 || !bounds::allow(plan.tables, gang, asked) {
            return false;
        }
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
