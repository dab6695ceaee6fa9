//! `stalegangeviction`: gangs that fell below their minimum and stayed there too long (semantics.md §6.8).
//!
//! Staleness is judged along the whole tree, so that an optional member that is incomplete does no harm (quirk Q14 mended), and a
//! gang with pods that ended well is finishing, not stale (users.md, 9).

use crate::actions::Plan;
use crate::config::Action;
use crate::index::{GangIdx, Idx};
use crate::outcome::{Eviction, Why};
use crate::search::brake::Brake;
use crate::search::stream::can_go;
use crate::snapshot::PodStatus;
use crate::tables::gangs::Member;
use crate::tables::{Tables, holds_node, is_active};

/// Tells every pod of a stale gang to leave.
pub fn run(plan: &mut Plan<'_>, brake: &mut Brake) {
    for gang in (0..plan.tables.gangs.queue.len()).map(GangIdx::new) {
        if !is_stale(plan.tables, gang) {
            continue;
        }
        let times = plan.tables.gangs.times[gang];
        let grace = times.staleness_grace.unwrap_or(plan.config.victims.staleness_grace);
        let since = times.stale.unwrap_or(plan.config.now);
        if grace < 0 || plan.config.now.saturating_sub(since) < grace {
            continue;
        }
        let pods = plan.tables.gangs.pods[gang];
        // All of it or nobody: what is left would be no better off.
        if pods.iter().any(|pod| plan.tables.pods.kept[pod] && is_active(plan.tables.pods.status[pod])) {
            continue;
        }
        let leaving = pods.iter().filter(|&pod| can_go(plan.tables, pod));
        if brake.refuses_all(plan.tables, plan.config, leaving).is_some() {
            continue;
        }
        let mark = plan.statement.mark(plan.tables);
        for pod in pods.iter() {
            if can_go(plan.tables, pod) {
                plan.statement.evict(plan.tables, pod, Action::StaleGangEviction);
                let why = Why::Stale { since: plan.config.now.saturating_sub(since), grace };
                plan.statement.account(Eviction { asker: None, why });
                brake.count(plan.tables, pod);
            }
        }
        plan.statement.settle_since(plan.tables, mark);
    }
}

/// Whether a gang holds something, has nothing that ended well, and is below its minimum. Pods that are leaving still count.
pub fn is_stale(tables: &Tables, gang: GangIdx) -> bool {
    let used = |pod: crate::index::PodIdx| {
        let status = tables.pods.status[pod];
        is_active(status) || holds_node(status)
    };
    let pods = tables.gangs.pods[gang];
    let succeeded = pods.iter().any(|pod| tables.pods.status[pod] == PodStatus::Succeeded);
    !succeeded && pods.iter().any(used) && !has_minimum(tables, Member::Gang(gang), &used)
}

fn has_minimum(tables: &Tables, of: Member, used: &impl Fn(crate::index::PodIdx) -> bool) -> bool {
    let has = match of {
        Member::Subgroup(subgroup) if tables.gangs.is_pod_set(subgroup) => {
            tables.pods.last_first(subgroup).filter(|&pod| used(pod)).count()
        }
        _ => tables.gangs.members(of).iter().filter(|&&member| has_minimum(tables, Member::Subgroup(member), used)).count(),
    };
    has >= tables.gangs.threshold(of) as usize
}
