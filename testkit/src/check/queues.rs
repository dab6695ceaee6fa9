//! Limits, and quotas of work that may not be evicted, hold at every level (semantics.md §6.3), and the report says what queues
//! hold (semantics.md §3.1, §3.2).

use muster_core::index::{Col, GangIdx, PodIdx, QueueIdx};
use muster_core::outcome::DecisionKind;
use muster_core::snapshot::{PodStatus, Snapshot};
use muster_core::units::{Amounts, MICRO_PER_GPU, Resource, UNLIMITED};

use super::nodes::at_start;
use super::{After, At, active, holds};

/// What queues hold.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) allocated: Col<QueueIdx, Amounts>,
    pub(super) non_preemptible: Col<QueueIdx, Amounts>,
}

pub(super) fn check(after: &After<'_>, wrong: &mut Vec<String>) {
    let (start, end) = (held(after, &at_start(after)), held(after, &after.pods));
    if after.rows.config.plugins.proportion {
        check_bounds(after, &start, wrong);
    }
    for queue in after.rows.queues.indices() {
        let report = &after.outcome.queues[queue];
        if report.allocated != end.allocated[queue] || report.non_preemptible != end.non_preemptible[queue] {
            wrong.push(format!("{queue:?}: holds {:?}, the report says {report:?}", end.allocated[queue]));
        }
        let requested = requested(after, queue, start.allocated[queue]);
        if report.requested != requested {
            wrong.push(format!("{queue:?}: asks for {requested:?}, the report says {report:?}"));
        }
    }
    if after.outcome.pie != pie(after) {
        wrong.push(format!("the queues share {:?}, the report says {:?}", pie(after), after.outcome.pie));
    }
}

/// Decision by decision: no placement lifts a queue above a bound, or above what it held at the start if that is more.
fn check_bounds(after: &After<'_>, start: &Held, wrong: &mut Vec<String>) {
    let mut then = After::start(after.rows, after.outcome);
    for decision in &after.outcome.decisions {
        then.apply(decision, &mut Vec::new());
        let (pod, Some(gang)) = (decision.pod, after.rows.pods[decision.pod].gang) else { continue };
        if decision.kind == DecisionKind::Evict {
            continue;
        }
        let now = held(&then, &then.pods);
        let charge = after.charge(after.class(pod), after.card_mib(decision.node));
        for queue in path(after.rows, gang) {
            let row = &after.rows.queues[queue];
            let mut bounds = vec![("limit", row.limit, start.allocated[queue], now.allocated[queue])];
            if !after.rows.gangs[gang].preemptible {
                bounds.push(("quota", row.quota, start.non_preemptible[queue], now.non_preemptible[queue]));
            }
            for (name, bound, before, now) in bounds {
                for r in Resource::ALL.into_iter().filter(|&r| charge[r] > 0 && bound[r] != UNLIMITED) {
                    if now[r] > before[r].max(bound[r]) {
                        let what = format!("holds {} with a {name} of {}, {} at the start", now[r], bound[r], before[r]);
                        wrong.push(format!("{pod:?} by {:?}: {queue:?}: {r:?}: {what}", decision.action));
                    }
                }
            }
        }
    }
}

/// The queue and all above it.
pub(super) fn path(rows: &Snapshot, gang: GangIdx) -> Vec<QueueIdx> {
    let mut path = Vec::new();
    let mut next = rows.gangs[gang].queue.ok();
    while let Some(queue) = next {
        path.push(queue);
        next = rows.queues[queue].parent;
    }
    path
}

pub(super) fn held(after: &After<'_>, pods: &Col<PodIdx, At>) -> Held {
    let zero = || Col::from(vec![Amounts::ZERO; after.rows.queues.len()]);
    let mut held = Held { allocated: zero(), non_preemptible: zero() };
    for (pod, at) in pods.entries().filter(|(_, at)| active(at.status)) {
        let row = &after.rows.pods[pod];
        // A pod of a sub-group that does not exist counts nowhere, one on a node outside the shard holds nothing here.
        let (Some(gang), Some(_), Some(node)) = (row.gang, row.subgroup, at.node) else { continue };
        let charge = after.charge(row.class, after.card_mib(node));
        for queue in path(after.rows, gang) {
            held.allocated[queue] += charge;
            if !after.rows.gangs[gang].preemptible {
                held.non_preemptible[queue] += charge;
            }
        }
    }
    held
}

fn requested(after: &After<'_>, queue: QueueIdx, held: Amounts) -> Amounts {
    let (smallest, _) = after.card_range();
    let mut sum = held;
    for row in after.rows.pods.iter().filter(|row| row.status == PodStatus::Pending && row.subgroup.is_some()) {
        if row.gang.is_some_and(|gang| path(after.rows, gang).contains(&queue)) {
            sum += after.charge(row.class, smallest);
        }
    }
    sum
}

fn pie(after: &After<'_>) -> Amounts {
    let mut pie = Amounts::ZERO;
    for row in after.rows.nodes.iter().filter(|row| row.ready) {
        let mig: i64 = row.extra.iter().map(|&(dim, n)| i64::from(after.rows.dims[dim].mig_gpus) * (n / 1000)).sum();
        let counts = !after.rows.config.restrict_nodes || row.gpu_worker;
        pie += Amounts::new(row.cpu, row.memory, if counts { (row.gpus + mig) * MICRO_PER_GPU } else { 0 });
    }
    for row in after.rows.pods.iter().filter(|row| row.foreign && holds(row.status)) {
        if let Some(node) = row.node.filter(|&node| after.rows.nodes[node].ready) {
            pie -= after.charge(row.class, after.card_mib(node));
        }
    }
    pie
}
