//! PodDisruptionBudgets: whom of those that run they let go in this cycle.
//!
//! A budget says how many more of its pods may go (`status.disruptionsAllowed`). Which ones is settled here, before anybody asks,
//! since a row can only say of a pod whether it may go: gangs of low priority before others, younger ones first; a whole gang
//! where its budgets let all of it go, else as many of its pods as are above its minimum. All others are kept. So no choice of
//! victims exceeds a budget; what may be missed is one that would take others of the same budget, which matters only where one
//! budget spans several gangs.
//!
//! Rules of the Eviction API: a pod that does not run yet, or has ended, is not counted; one that several budgets cover may never
//! go; a budget whose status lags behind its spec lets nobody go.

use std::cmp::Reverse;

use ahash::AHashMap;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::{Selector, SelectorExt as _};
use muster_core::index::{Col, GangIdx};
use muster_core::snapshot::{GangRow, PodStatus};

use crate::assemble::is_active;
use crate::names::ObjectName;
use crate::pods::PodFacts;
use crate::problem::{Findings, Subject};
use crate::validate::object_name;

/// A budget.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BudgetFacts {
    pub(crate) name: ObjectName,
    /// `None`: it covers no pod.
    pub(crate) selector: Option<Selector>,
    /// How many more of its pods may go.
    pub(crate) allowed: u32,
}

/// Reads one; `None` if something in it is bad.
pub(crate) fn read(budget: &mut PodDisruptionBudget, findings: &mut Findings) -> Option<BudgetFacts> {
    let generation = budget.metadata.generation.unwrap_or(0);
    let name = object_name("PodDisruptionBudget", &mut budget.metadata, findings)?;
    let selector = match budget.spec.take().and_then(|spec| spec.selector).map(Selector::try_from).transpose() {
        Ok(selector) => selector,
        Err(error) => {
            let subject = Subject { kind: "PodDisruptionBudget", namespace: &name.namespace, name: &name.name };
            findings.bad(subject, "spec.selector", String::new(), format!("a label selector ({error})"));
            return None;
        }
    };
    let status = budget.status.take().unwrap_or_default();
    let current = status.observed_generation.unwrap_or(0) >= generation;
    let allowed = status.disruptions_allowed.filter(|_| current).map_or(0, |pods| u32::try_from(pods).unwrap_or(0));
    Some(BudgetFacts { name, selector, allowed })
}

/// A pod in the order of rows: by gang, then age.
pub(crate) struct Member<'a> {
    pub(crate) gang: Option<GangIdx>,
    pub(crate) status: PodStatus,
    pub(crate) facts: &'a PodFacts,
}

/// What a pod's budgets say of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cover {
    None,
    One(usize),
    Several,
}

/// Which pods are kept. `least`: how many pods a gang must have at least.
pub(crate) fn kept(
    budgets: &[BudgetFacts],
    pods: &[Member<'_>],
    gangs: &Col<GangIdx, GangRow>,
    least: impl Fn(GangIdx) -> usize,
) -> Vec<bool> {
    let mut left: Vec<u32> = budgets.iter().map(|budget| budget.allowed).collect();
    let covers: Vec<Cover> = cover(budgets, pods);
    for (member, cover) in pods.iter().zip(&covers) {
        // Told to leave, and not yet counted as gone.
        if let (true, Cover::One(budget)) = (member.facts.told, *cover) {
            left[budget] = left[budget].saturating_sub(1);
        }
    }
    let mut kept: Vec<bool> =
        pods.iter().zip(&covers).map(|(member, cover)| member.status == PodStatus::Running && *cover != Cover::None).collect();
    for (gang, members) in in_turn(pods, gangs) {
        let counted: Vec<usize> = members.clone().filter(|&at| kept[at]).rev().collect();
        let mut after = left.clone();
        let fits = counted.iter().all(|&at| spend(&mut after, covers[at]));
        if fits {
            left = after;
            counted.iter().for_each(|&at| kept[at] = false);
            continue;
        }
        let active = members.filter(|&at| is_active(pods[at].status)).count();
        let mut surplus = active.saturating_sub(least(gang));
        for at in counted {
            if surplus > 0 && spend(&mut left, covers[at]) {
                kept[at] = false;
                surplus -= 1;
            }
        }
    }
    kept
}

/// Whether one more pod may go, and then one fewer.
fn spend(left: &mut [u32], cover: Cover) -> bool {
    match cover {
        Cover::None => true,
        Cover::Several => false,
        Cover::One(budget) => {
            let may = left[budget] > 0;
            left[budget] = left[budget].saturating_sub(1);
            may
        }
    }
}

fn cover(budgets: &[BudgetFacts], pods: &[Member<'_>]) -> Vec<Cover> {
    let mut by_namespace: AHashMap<&str, Vec<usize>> = AHashMap::new();
    for (at, budget) in budgets.iter().enumerate().filter(|(_, budget)| budget.selector.is_some()) {
        by_namespace.entry(budget.name.namespace.as_str()).or_default().push(at);
    }
    let of = |member: &Member<'_>| {
        let (Some(labels), Some(near)) = (&member.facts.labels, by_namespace.get(member.facts.name.namespace.as_str())) else {
            return Cover::None;
        };
        let covers = |at: &&usize| budgets[**at].selector.as_ref().is_some_and(|selector| selector.matches(labels));
        let mut found = near.iter().filter(covers);
        match (found.next(), found.next()) {
            (None, _) => Cover::None,
            (Some(&budget), None) => Cover::One(budget),
            (Some(_), Some(_)) => Cover::Several,
        }
    };
    pods.iter().map(of).collect()
}

/// Gangs in the order in which their pods may spend, with their pods: who may be evicted for others first, then by priority, then
/// by age.
fn in_turn(pods: &[Member<'_>], gangs: &Col<GangIdx, GangRow>) -> Vec<(GangIdx, std::ops::Range<usize>)> {
    let mut turns = Vec::new();
    let mut start = 0;
    for chunk in pods.chunk_by(|a, b| a.gang == b.gang) {
        let end = start + chunk.len();
        if let Some(gang) = chunk[0].gang {
            turns.push((gang, start..end));
        }
        start = end;
    }
    turns.sort_by_key(|(gang, _)| (!gangs[*gang].preemptible, gangs[*gang].priority, Reverse(*gang)));
    turns
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::live::{Live, Seen, Watched};

    fn budget(name: &str, selector: &Value, allowed: i32) -> Seen {
        let object = json!({"metadata": {"name": name, "namespace": "ns", "generation": 2},
            "spec": {"selector": selector}, "status": {"disruptionsAllowed": allowed, "observedGeneration": 2,
                "currentHealthy": 4, "desiredHealthy": 4 - allowed, "expectedPods": 4}});
        Seen::Budget(Box::new(serde_json::from_value(object).expect("a budget")))
    }

    /// Gang `low` (4 pods, at least 2), gang `high` (2 of 2), both run; each pod has the label `app` of its gang.
    fn cluster() -> Live {
        let mut live = Live::default().keep_budgets();
        let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}]}});
        live.put(Seen::Node(Box::new(serde_json::from_value(node).expect("a node"))));
        for (class, value) in [("low", 10), ("high", 90)] {
            let class = json!({"metadata": {"name": class}, "value": value});
            live.put(Seen::PriorityClass(Box::new(serde_json::from_value(class).expect("a class"))));
        }
        let ours = |kind: Watched, metadata: Value, spec: Value| {
            Seen::Ours(kind, json!({"apiVersion": "v1", "kind": kind.name(), "metadata": metadata, "spec": spec}))
        };
        let free = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
        let queue = json!({"resources": {"cpu": free, "memory": free, "gpu": free}});
        live.put(ours(Watched::Queue, json!({"name": "q"}), queue));
        for (name, min, pods) in [("low", 2, 4), ("high", 2, 2)] {
            let spec = json!({"queue": "q", "minMember": min, "priorityClassName": name});
            live.put(ours(Watched::PodGroup, json!({"name": name, "namespace": "ns"}), spec));
            for at in 0..pods {
                let pod = json!({"metadata": {"name": format!("{name}-{at}"), "namespace": "ns", "uid": format!("{name}-{at}"),
                    "labels": {"app": name}, "annotations": {"pod-group-name": name},
                    "creationTimestamp": format!("2026-01-01T00:00:0{at}Z")},
                    "spec": {"schedulerName": "kai-scheduler", "nodeName": "n", "containers": []},
                    "status": {"phase": "Running"}});
                live.put(Seen::Pod(Box::new(serde_json::from_value(pod).expect("a pod"))));
            }
        }
        live
    }

    fn kept_pods(live: &Live) -> Vec<String> {
        let loaded = live.load("2026-01-01T01:00:00Z".parse().expect("a time"));
        assert_eq!(loaded.warnings, Vec::new());
        let rows = loaded.snapshot.pods.entries();
        rows.filter(|(_, row)| row.kept).map(|(pod, _)| loaded.names.pods[pod].name.clone()).collect()
    }

    #[test]
    fn as_many_go_as_the_budget_lets() {
        let of = |app: &str| json!({"matchLabels": {"app": app}});
        let all = json!({});
        for (selector, allowed, expected) in [
            (of("low"), 0, vec!["low-0", "low-1", "low-2", "low-3"]),
            // The youngest above the minimum.
            (of("low"), 1, vec!["low-0", "low-1", "low-2"]),
            (of("low"), 2, vec!["low-0", "low-1"]),
            // Two pods are above the minimum; a third could only go with the fourth.
            (of("low"), 3, vec!["low-0", "low-1"]),
            (of("low"), 4, vec![]),
            // Of a gang that has to be whole one alone is of no use.
            (of("high"), 1, vec!["high-0", "high-1"]),
            (of("high"), 2, vec![]),
            (of("none"), 0, vec![]),
            // One budget for both: the lower priority first, whole if it can.
            (all.clone(), 4, vec!["high-0", "high-1"]),
            (all.clone(), 5, vec!["high-0", "high-1"]),
            (all, 6, vec![]),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["low"]}]}), 4, vec![]),
        ] {
            let mut live = cluster();
            live.put(budget("b", &selector, allowed));
            let mut found = kept_pods(&live);
            found.sort();
            assert_eq!(found, expected, "{selector} {allowed}");
        }
    }

    #[test]
    fn what_is_on_its_way_counts() {
        let mut live = cluster();
        live.put(budget("b", &json!({"matchLabels": {"app": "low"}}), 1));
        let mut assumed = crate::assumed::Assumed::default();
        let name = ObjectName { namespace: "ns".to_owned(), name: "low-3".to_owned() };
        let now = "2026-01-01T01:00:00Z".parse().expect("a time");
        assumed.pod(name, "low-3".to_owned(), crate::assumed::Becomes::Leaves { since: now });
        let loaded = live.load_with(now, &assumed);
        let kept = loaded.snapshot.pods.entries().filter(|(_, row)| row.kept).count();
        assert_eq!(kept, 3, "the one that was told to leave has used the budget up");
    }

    #[test]
    fn two_budgets_keep_and_a_stale_status_keeps() {
        let mut live = cluster();
        live.put(budget("a", &json!({"matchLabels": {"app": "high"}}), 9));
        live.put(budget("b", &json!({"matchLabels": {"app": "high"}}), 9));
        assert_eq!(kept_pods(&live), ["high-0", "high-1"]);
        live.remove(Watched::PodDisruptionBudget, "ns", "a");
        assert_eq!(kept_pods(&live), Vec::<String>::new());
        let Seen::Budget(mut lagging) = budget("b", &json!({"matchLabels": {"app": "high"}}), 9) else { unreachable!() };
        lagging.metadata.generation = Some(3);
        live.put(Seen::Budget(lagging));
        assert_eq!(kept_pods(&live), ["high-0", "high-1"]);
        // Without the option budgets mean nothing.
        let mut blind = Live::default();
        blind.put(budget("a", &json!({}), 0));
        assert_eq!(kept_pods(&blind), Vec::<String>::new());
    }
}
