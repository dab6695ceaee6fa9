//! A Queue object → facts (semantics.md §1.6), and the tree: missing parents, cycles, the synthetic root.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_core::units::{Amounts, MICRO_PER_GPU, Resource, UNLIMITED};

use crate::crds::Object;
use crate::crds::queue::{QueueResource, QueueSpec};
use crate::duration::parse_nanoseconds;
use crate::forest::{Above, above};
use crate::problem::{Findings, Subject, plain, show};
use crate::settings::Settings;
use crate::validate::cluster_name;

/// Bytes in the unit of a queue's memory.
const MEGABYTE: f64 = 1_000_000.0;
/// The parent of all queues when full hierarchy is off (semantics.md §1.6).
const SYNTHETIC_ROOT: &str = "default";

/// A queue without indices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QueueFacts {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) created: Option<Timestamp>,
    /// Name of the queue above; empty for a root.
    pub(crate) parent: String,
    pub(crate) priority: i32,
    pub(crate) quota: Amounts,
    pub(crate) limit: Amounts,
    pub(crate) weight: [f64; 3],
    pub(crate) preempt_min_runtime: Option<i64>,
    pub(crate) reclaim_min_runtime: Option<i64>,
}

/// Reads one queue: `None` if something in it is bad, `Some(None)` if it belongs to another shard.
pub(crate) fn read(queue: &mut Object<QueueSpec>, settings: &Settings, findings: &mut Findings) -> Option<Option<QueueFacts>> {
    let name = cluster_name("Queue", &mut queue.metadata, findings)?;
    let subject = Subject { kind: "Queue", namespace: "", name: &name };
    let before = findings.bad.len();
    let spec = std::mem::take(&mut queue.spec);
    let [preempt_min_runtime, reclaim_min_runtime] =
        [("preemptMinRuntime", &spec.preempt_min_runtime), ("reclaimMinRuntime", &spec.reclaim_min_runtime)].map(
            |(field, text)| match text.as_ref().map(|text| parse_nanoseconds(text, true)) {
                Some(Ok(nanoseconds)) => Some(nanoseconds),
                Some(Err(expected)) => {
                    findings.bad(subject, &format!("spec.{field}"), show(text.as_deref().unwrap_or_default()), expected);
                    None
                }
                None => None,
            },
        );
    if spec.resources.is_none() {
        let note = "absent: quota, limit and weight are 0, so that nothing can run in it";
        findings.warn(subject, "spec.resources", String::new(), note);
    }
    let resources = spec.resources.unwrap_or_default();
    let (mut quota, mut limit, mut weight) = (Amounts::ZERO, Amounts::ZERO, [0.0; 3]);
    for (r, field, block) in [
        (Resource::Cpu, "cpu", resources.cpu),
        (Resource::Memory, "memory", resources.memory),
        (Resource::Gpu, "gpu", resources.gpu),
    ] {
        let QueueResource { quota: q, over_quota_weight: w, limit: l } = block.unwrap_or_default();
        quota[r] = amount(subject, r, &format!("spec.resources.{field}.quota"), q, findings);
        limit[r] = amount(subject, r, &format!("spec.resources.{field}.limit"), l, findings);
        weight[r as usize] = w.unwrap_or(0.0);
        if weight[r as usize] < 0.0 {
            let note = "negative: such a queue gets nothing over its quota and lowers the sum that its siblings are weighed by";
            findings.warn(subject, &format!("spec.resources.{field}.overQuotaWeight"), weight[r as usize].to_string(), note);
        }
    }
    if findings.bad.len() > before {
        return None;
    }
    Some(settings.shard.holds(queue.metadata.labels.as_ref()).then(|| QueueFacts {
        title: spec.display_name.unwrap_or_default(),
        created: queue.metadata.creation_timestamp.take().map(|time| time.0),
        parent: spec.parent_queue.unwrap_or_default(),
        priority: spec.priority.unwrap_or(100),
        quota,
        limit,
        weight,
        preempt_min_runtime,
        reclaim_min_runtime,
        name,
    }))
}

/// Absent is 0, -1 is unlimited (KAI quirk Q1, kept: queues depend on it).
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "the range is checked; micro-GPU are exact")]
fn amount(subject: Subject<'_>, resource: Resource, field: &str, given: Option<f64>, findings: &mut Findings) -> i64 {
    let given = given.unwrap_or(0.0);
    let factor = match resource {
        Resource::Cpu => 1.0,
        Resource::Memory => MEGABYTE,
        Resource::Gpu => MICRO_PER_GPU as f64,
    };
    let scaled = (given * factor).round();
    if (given + 1.0).abs() < f64::EPSILON {
        UNLIMITED
    } else if given < 0.0 {
        findings.bad(subject, field, given.to_string(), "a number of 0 or more, or -1 for no bound");
        0
    } else if scaled >= (i64::MAX / 2) as f64 {
        findings.bad(subject, field, given.to_string(), "a number that can be counted (it overflows), or -1 for no bound");
        0
    } else {
        scaled as i64
    }
}

/// The queues of a shard as a tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Those whose ancestors all exist, by creation, then name.
    pub(crate) kept: Vec<QueueFacts>,
    /// Position in `kept` of each one's parent.
    pub(crate) parents: Vec<Option<usize>>,
    /// Position in `kept` by name.
    pub(crate) by_name: BTreeMap<String, usize>,
    /// Names of queues that exist but lack an ancestor, sorted.
    pub(crate) orphans: Vec<String>,
    /// Left out because they are bad: cyclic.
    pub(crate) cyclic: usize,
}

/// Builds the tree. Names are unique. Cyclic queues are bad; queues below a missing one are warned about and dropped.
pub(crate) fn tree(mut queues: Vec<QueueFacts>, full_hierarchy: bool, findings: &mut Findings) -> Tree {
    let synthetic = !full_hierarchy && !queues.is_empty();
    if synthetic {
        queues.retain(|queue| !queue.parent.is_empty());
        for queue in &mut queues {
            SYNTHETIC_ROOT.clone_into(&mut queue.parent);
        }
        queues.retain(|queue| queue.name != SYNTHETIC_ROOT);
        queues.push(synthetic_root());
    }
    queues.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    let all: BTreeMap<&str, usize> = queues.iter().enumerate().map(|(i, queue)| (queue.name.as_str(), i)).collect();
    let parent_of = |i: usize| all.get(queues[i].parent.as_str()).copied().filter(|_| !queues[i].parent.is_empty());
    let parents: Vec<Option<usize>> = (0..queues.len()).map(parent_of).collect();
    let fates = above(&parents);
    let rooted = |fate: &Above| matches!(fate, Above::Root(top) if queues[*top].parent.is_empty());
    let mut tree = Tree::default();
    for (queue, fate) in queues.iter().zip(&fates) {
        let subject = Subject { kind: "Queue", namespace: "", name: &queue.name };
        let parent = show(&queue.parent);
        match fate {
            Above::Root(top) if queues[*top].parent.is_empty() => {}
            Above::Root(top) => {
                let missing = plain(&queues[*top].parent);
                let note = format!("queue {missing} does not exist in this shard: nothing is served in this queue");
                findings.warn(subject, "spec.parentQueue", parent, note);
                tree.orphans.push(queue.name.clone());
            }
            // Only the cycle itself is at fault.
            Above::BelowCycle => {
                let note = "a queue further up is below itself: nothing is served in this queue";
                findings.warn(subject, "spec.parentQueue", parent, note);
                tree.orphans.push(queue.name.clone());
            }
            Above::Cycle => {
                findings.bad(subject, "spec.parentQueue", parent, "a queue that is not below this one");
                tree.cyclic += 1;
            }
        }
    }
    tree.orphans.sort_unstable();
    let mut rooted: Vec<QueueFacts> =
        queues.iter().zip(&fates).filter(|(_, fate)| rooted(fate)).map(|(queue, _)| queue.clone()).collect();
    tree.by_name = rooted.iter().enumerate().map(|(i, queue)| (queue.name.clone(), i)).collect();
    tree.parents = rooted.iter().map(|queue| tree.by_name.get(&queue.parent).copied()).collect();
    if synthetic {
        // Nothing can ask for the synthetic root by name.
        tree.by_name.remove(SYNTHETIC_ROOT);
    }
    tree.kept.append(&mut rooted);
    tree
}

fn synthetic_root() -> QueueFacts {
    QueueFacts {
        name: SYNTHETIC_ROOT.to_owned(),
        title: String::new(),
        created: None,
        parent: String::new(),
        priority: 100,
        quota: Amounts::UNLIMITED,
        limit: Amounts::UNLIMITED,
        weight: [1.0; 3],
        preempt_min_runtime: None,
        reclaim_min_runtime: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn queue(name: &str, spec: &Value) -> (Option<QueueFacts>, Findings) {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        let mut findings = Findings::default();
        let facts = read(&mut serde_json::from_value(object).expect("a queue"), &Settings::default(), &mut findings);
        (facts.flatten(), findings)
    }

    #[test]
    fn units_and_defaults() {
        let spec = json!({"priority": null, "resources": {"gpu": {"quota": 1.125, "limit": -1, "overQuotaWeight": 2},
            "memory": {"quota": 1.5}}});
        let (facts, findings) = queue("q", &spec);
        assert!(findings.bad.is_empty() && findings.warnings.is_empty(), "{findings:?}");
        let facts = facts.expect("a queue");
        assert_eq!(facts.quota, Amounts::new(0, 1_500_000, 1_125_000));
        assert_eq!(facts.limit, Amounts::new(0, 0, UNLIMITED));
        assert_eq!((facts.weight, facts.priority), ([0.0, 0.0, 2.0], 100));
        let (facts, findings) = queue("q", &json!({}));
        assert_eq!((facts.map(|q| q.quota), findings.warnings.len()), (Some(Amounts::ZERO), 1));
    }

    #[test]
    fn bad_queues() {
        for (spec, part) in [
            (json!({"resources": {"gpu": {"quota": -2}}}), "spec.resources.gpu.quota: -2"),
            (json!({"resources": {"cpu": {"limit": 1e300}}}), "overflows"),
            (json!({"resources": {}, "preemptMinRuntime": "soon"}), "spec.preemptMinRuntime"),
        ] {
            let (facts, findings) = queue("q", &spec);
            assert!(facts.is_none() && findings.bad.len() == 1, "{findings:?}");
            assert!(findings.bad[0].to_string().contains(part), "{findings:?}");
        }
        assert_eq!(queue("Q", &json!({})).1.bad.len(), 1);
    }

    fn build(pairs: &[(&str, &str)], full: bool) -> (Tree, Findings) {
        let mut findings = Findings::default();
        let facts =
            |&(name, parent): &(&str, &str)| QueueFacts { name: name.to_owned(), parent: parent.to_owned(), ..synthetic_root() };
        let tree = tree(pairs.iter().map(facts).collect(), full, &mut findings);
        (tree, findings)
    }

    fn names(tree: &Tree) -> Vec<&str> {
        tree.kept.iter().map(|queue| queue.name.as_str()).collect()
    }

    #[test]
    fn the_tree_keeps_what_is_rooted() {
        let (tree, findings) = build(&[("leaf", "root"), ("root", ""), ("lost", "gone"), ("below", "lost")], true);
        assert_eq!(names(&tree), ["leaf", "root"]);
        assert_eq!(tree.parents, [Some(1), None]);
        assert_eq!(tree.orphans, ["below", "lost"]);
        assert_eq!((findings.bad.len(), findings.warnings.len()), (0, 2));
    }

    #[test]
    fn cycles_are_bad_and_what_hangs_below_them_is_not() {
        let (tree, findings) = build(&[("a", "b"), ("b", "a"), ("c", "c"), ("d", "a")], true);
        assert!(tree.kept.is_empty());
        assert_eq!((tree.cyclic, tree.orphans.as_slice()), (3, ["d".to_owned()].as_slice()));
        assert_eq!(findings.bad.len(), 3, "{findings:?}");
    }

    #[test]
    fn without_full_hierarchy_everything_hangs_below_one_root() {
        let (tree, _) = build(&[("root", ""), ("mid", "root"), ("leaf", "mid")], false);
        assert_eq!(names(&tree), ["default", "leaf", "mid"]);
        assert_eq!(tree.parents, [None, Some(0), Some(0)]);
        assert!(!tree.by_name.contains_key("default") && !tree.by_name.contains_key("root"));
    }
}
