//! A PodGroup object → facts: its tree, minimum, priority, and whether it is set aside (semantics.md §1.7, §7.1).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use muster_core::snapshot::{GangTimes, SubgroupKind};

use crate::crds::Object;
use crate::crds::podgroup::{PodGroupSpec, PodGroupStatus, Preemptibility, SchedulingCondition, SubGroup, TopologyConstraint};
use crate::duration::parse_nanoseconds;
use crate::forest::{Above, above};
use crate::names::ObjectName;
use crate::problem::{Findings, Subject, show};
use crate::settings::Settings;
use crate::validate::object_name;

/// The pod set of gangs without sub-groups, and of pods that name none.
pub(crate) const DEFAULT_SUBGROUP: &str = "default";
const SUBGROUP_NAME: &str = "lower-case letters, digits and '-', letters or digits at both ends";
const AT_LEAST_0: &str = "an integer of 0 or more, at most 2147483647";

/// A gang without indices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GangFacts {
    pub(crate) name: ObjectName,
    pub(crate) created: Option<Timestamp>,
    pub(crate) queue: String,
    /// Empty: none named.
    pub(crate) priority_class: String,
    /// `None`: by priority.
    pub(crate) preemptible: Option<bool>,
    /// Top-level members that must have their minimum.
    pub(crate) required: u32,
    /// By name. Never empty.
    pub(crate) members: Vec<Member>,
    pub(crate) backed_off: bool,
    pub(crate) times: GangTimes,
    /// Has a topology constraint somewhere.
    pub(crate) topology: bool,
    pub(crate) uid: String,
    /// Its pending pods may be marked as unschedulable.
    pub(crate) mark: bool,
    /// Carries a scheduling condition of this shard's pool.
    pub(crate) told: bool,
}

/// A member of a gang's tree.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Position in [`GangFacts::members`].
    pub(crate) parent: Option<usize>,
    pub(crate) kind: SubgroupKind,
}

impl GangFacts {
    /// The leaf of that name.
    pub(crate) fn leaf(&self, name: &str) -> Option<usize> {
        let at = self.members.binary_search_by(|member| member.name.as_str().cmp(name)).ok()?;
        matches!(self.members[at].kind, SubgroupKind::PodSet { .. }).then_some(at)
    }
}

/// Reads one pod group: `None` if something in it is bad, `Some(None)` if it belongs to another shard.
pub(crate) fn read(
    group: &mut Object<PodGroupSpec, PodGroupStatus>,
    settings: &Settings,
    findings: &mut Findings,
) -> Option<Option<GangFacts>> {
    let name = object_name("PodGroup", &mut group.metadata, findings)?;
    let subject = Subject { kind: "PodGroup", namespace: &name.namespace, name: &name.name };
    let before = findings.bad.len();
    let labels = group.metadata.labels.as_ref();
    let spec = std::mem::take(&mut group.spec);
    let delays = [("preemptionDelay", &spec.preemption_delay), ("stalenessGracePeriod", &spec.staleness_grace_period)].map(
        |(field, text)| match text.as_ref().map(|text| parse_nanoseconds(text, false)) {
            Some(Ok(nanoseconds)) => Some(nanoseconds),
            Some(Err(expected)) => {
                findings.bad(subject, &format!("spec.{field}"), show(text.as_deref().unwrap_or_default()), expected);
                None
            }
            None => None,
        },
    );
    let min_member = at_least_0(subject, "spec.minMember", spec.min_member, findings);
    let min_subgroup = at_least_0(subject, "spec.minSubGroup", spec.min_sub_group, findings);
    let subgroups = spec.sub_groups.unwrap_or_default();
    check_subgroups(subject, &subgroups, findings);
    if findings.bad.len() > before {
        return None;
    }
    if !settings.shard.holds(labels) {
        return Some(None);
    }
    if min_member.is_some() && min_subgroup.is_some() {
        let note = "minMember is set as well, which KAI's admission refuses: minSubGroup counts members, minMember pods";
        findings.warn(subject, "spec.minSubGroup", String::new(), note);
    }
    let topology = has_topology(spec.topology_constraint.as_ref())
        || subgroups.iter().any(|member| has_topology(member.topology_constraint.as_ref()));
    let times = times_of(subject, &group.metadata, delays, findings);
    let members = members_of(subject, &subgroups, min_member, findings);
    let top = members.iter().filter(|member| member.parent.is_none()).count();
    let top = u32::try_from(top).unwrap_or(u32::MAX);
    if min_subgroup.is_some_and(|min| min > top) {
        let note = format!("there are only {top} top-level members: the group can never form");
        findings.warn(subject, "spec.minSubGroup", min_subgroup.unwrap_or(0).to_string(), note);
    }
    let conditions = group.status.take().and_then(|status| status.scheduling_conditions).unwrap_or_default();
    let backed_off = spec.scheduling_backoff.is_some_and(|times| times != -1)
        && last_pool(&conditions).is_some_and(|pool| pool == settings.shard.pool_of(labels));
    let told = conditions.iter().any(|told| told.node_pool.as_deref().unwrap_or_default() == settings.shard.pool_of(labels));
    Some(Some(GangFacts {
        uid: group.metadata.uid.clone().unwrap_or_default(),
        mark: spec.mark_unschedulable != Some(false),
        told,
        created: group.metadata.creation_timestamp.as_ref().map(|time| time.0),
        queue: spec.queue.unwrap_or_default(),
        priority_class: spec.priority_class_name.unwrap_or_default(),
        preemptible: spec.preemptibility.map(|p| p == Preemptibility::Preemptible),
        required: min_subgroup.unwrap_or(top),
        members,
        backed_off,
        times,
        topology,
        name,
    }))
}

/// Instants of the group's annotations (wire-contract.md §2.3); one that is no instant is ignored, as in KAI.
fn times_of(subject: Subject<'_>, metadata: &ObjectMeta, delays: [Option<i64>; 2], findings: &mut Findings) -> GangTimes {
    let mut instant = |key: &str| {
        let text = metadata.annotations.as_ref()?.get(key).filter(|text| !text.is_empty())?;
        let instant = text.parse::<Timestamp>().ok().map(nanoseconds);
        if instant.is_none() {
            let note = "no RFC 3339 time, ignored".to_owned();
            findings.warn(subject, &format!("metadata.annotations.{key}"), show(text), note);
        }
        instant
    };
    let [preemption_delay, staleness_grace] = delays;
    GangTimes {
        created: metadata.creation_timestamp.as_ref().map_or(0, |time| nanoseconds(time.0)),
        started: instant("kai.scheduler/last-start-timestamp"),
        evicted: instant("kai.scheduler/last-eviction-timestamp"),
        stale: instant("kai.scheduler/stale-podgroup-timestamp"),
        preemption_delay: preemption_delay.unwrap_or(0),
        staleness_grace,
    }
}

/// Since 1970; what lies outside of the years 1678 to 2261 counts as their ends.
pub(crate) fn nanoseconds(instant: Timestamp) -> i64 {
    i64::try_from(instant.as_nanosecond()).unwrap_or(if instant.as_second() < 0 { i64::MIN } else { i64::MAX })
}

fn at_least_0(subject: Subject<'_>, field: &str, given: Option<i32>, findings: &mut Findings) -> Option<u32> {
    let given = given?;
    let min = u32::try_from(given).ok();
    if min.is_none() {
        findings.bad(subject, field, given.to_string(), AT_LEAST_0);
    }
    min
}

fn has_topology(constraint: Option<&TopologyConstraint>) -> bool {
    constraint.and_then(|constraint| constraint.topology.as_ref()).is_some_and(|topology| !topology.is_empty())
}

/// The CRD's own rules for sub-groups.
fn check_subgroups(subject: Subject<'_>, subgroups: &[SubGroup], findings: &mut Findings) {
    for (i, member) in subgroups.iter().enumerate() {
        let field = |part: &str| format!("spec.subGroups[{i}].{part}");
        if !is_subgroup_name(&member.name) {
            findings.bad(subject, &field("name"), show(&member.name), SUBGROUP_NAME);
        }
        let parent = member.parent.as_deref().unwrap_or_default();
        if !parent.is_empty() && !is_subgroup_name(&parent.to_lowercase()) {
            findings.bad(subject, &field("parent"), show(parent), SUBGROUP_NAME);
        }
        at_least_0(subject, &field("minMember"), member.min_member, findings);
        at_least_0(subject, &field("minSubGroup"), member.min_sub_group, findings);
    }
}

/// `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
fn is_subgroup_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    bytes.first().is_some_and(plain) && bytes.last().is_some_and(plain) && bytes.iter().all(|b| plain(b) || *b == b'-')
}

/// The tree, by name. A forest that does not hold together (duplicate name, missing parent, cycle) counts as one pod set of
/// minimum 1, as in KAI (semantics.md §1.7).
fn members_of(subject: Subject<'_>, subgroups: &[SubGroup], min: Option<u32>, findings: &mut Findings) -> Vec<Member> {
    let flat = |min| vec![Member { name: DEFAULT_SUBGROUP.to_owned(), parent: None, kind: SubgroupKind::PodSet { min } }];
    if subgroups.is_empty() {
        return flat(min.unwrap_or(1));
    }
    let mut sorted: Vec<&SubGroup> = subgroups.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    match linked(&sorted) {
        Err(fault) => {
            findings.warn(subject, "spec.subGroups", String::new(), format!("{fault}: planned as one set of at least 1 pod"));
            flat(1)
        }
        Ok(parents) => {
            let mut children = vec![0; sorted.len()];
            for parent in parents.iter().flatten() {
                children[*parent] += 1;
            }
            let kinds = sorted.iter().zip(&children).map(|(member, children)| kind_of(subject, member, *children, findings));
            let kinds: Vec<_> = kinds.collect();
            let parts = sorted.iter().zip(&parents).zip(kinds);
            parts.map(|((member, &parent), kind)| Member { name: member.name.clone(), parent, kind }).collect()
        }
    }
}

/// Positions of parents, or what is wrong with the forest.
fn linked(sorted: &[&SubGroup]) -> Result<Vec<Option<usize>>, String> {
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(format!("duplicate name {}", pair[0].name));
    }
    let mut parents = Vec::with_capacity(sorted.len());
    for member in sorted {
        let parent = member.parent.as_deref().unwrap_or_default().to_lowercase();
        parents.push(if parent.is_empty() {
            None
        } else {
            let at = sorted.binary_search_by(|other| other.name.as_str().cmp(&parent));
            Some(at.map_err(|_| format!("parent {parent} of {} does not exist", member.name))?)
        });
    }
    if let Some(at) = above(&parents).iter().position(|above| *above == Above::Cycle) {
        return Err(format!("{} is above itself", sorted[at].name));
    }
    Ok(parents)
}

/// `children`: how many members are right below this one.
fn kind_of(subject: Subject<'_>, member: &SubGroup, children: u32, findings: &mut Findings) -> SubgroupKind {
    let count = |given: Option<i32>| given.and_then(|n| u32::try_from(n).ok());
    let mut odd = |part: &str, note: &str| {
        findings.warn(subject, &format!("spec.subGroups.{}.{part}", member.name), String::new(), note);
    };
    if children == 0 {
        if member.min_sub_group.is_some() {
            odd("minSubGroup", "ignored: it has no sub-groups below it");
        }
        return SubgroupKind::PodSet { min: count(member.min_member).unwrap_or(0) };
    }
    if member.min_member.is_some() {
        odd("minMember", "ignored: it has sub-groups below it");
    }
    let required = count(member.min_sub_group).unwrap_or(children);
    if required > children {
        odd("minSubGroup", "larger than the number of sub-groups below it: it can never form");
    }
    SubgroupKind::Set { required }
}

/// The node pool of the scheduling condition with the highest transition number.
fn last_pool(conditions: &[SchedulingCondition]) -> Option<&str> {
    let number = |condition: &SchedulingCondition| condition.transition_id.as_ref().and_then(|id| id.parse::<u64>().ok());
    let last = conditions.iter().max_by_key(|condition| number(condition))?;
    Some(last.node_pool.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gang(spec: &Value, status: &Value) -> (Option<GangFacts>, Findings) {
        let object = json!({"metadata": {"name": "g", "namespace": "ns"}, "spec": spec, "status": status});
        let mut findings = Findings::default();
        let facts = read(&mut serde_json::from_value(object).expect("a pod group"), &Settings::default(), &mut findings);
        (facts.flatten(), findings)
    }

    fn good(spec: &Value) -> GangFacts {
        let (facts, findings) = gang(spec, &Value::Null);
        assert!(findings.bad.is_empty() && findings.warnings.is_empty(), "{findings:?}");
        facts.expect("a gang")
    }

    #[test]
    fn flat_groups() {
        for (spec, min) in [(json!({}), 1), (json!({"minMember": 4}), 4), (json!({"minMember": 0, "subGroups": []}), 0)] {
            let facts = good(&spec);
            assert_eq!((facts.members.len(), facts.required), (1, 1));
            assert_eq!(facts.members[0].kind, SubgroupKind::PodSet { min }, "{spec}");
            assert_eq!((facts.leaf("default"), facts.leaf("x")), (Some(0), None));
        }
    }

    #[test]
    fn trees_by_name() {
        let facts = good(&json!({"subGroups": [
            {"name": "z", "parent": "ALL", "minMember": 2}, {"name": "all", "minSubGroup": 1}, {"name": "b", "parent": "all"},
            {"name": "c", "minMember": 3}]}));
        let names: Vec<_> = facts.members.iter().map(|m| (m.name.as_str(), m.parent, m.kind)).collect();
        let leaf = |min| SubgroupKind::PodSet { min };
        let expected = [
            ("all", None, SubgroupKind::Set { required: 1 }),
            ("b", Some(0), leaf(0)),
            ("c", None, leaf(3)),
            ("z", Some(0), leaf(2)),
        ];
        assert_eq!(names, expected);
        assert_eq!((facts.required, facts.leaf("all"), facts.leaf("z")), (2, None, Some(3)));
        let facts = good(&json!({"minSubGroup": 1, "subGroups": [{"name": "a", "minMember": 1}, {"name": "b", "minMember": 1}]}));
        assert_eq!(facts.required, 1);
    }

    #[test]
    fn forests_that_do_not_hold_are_flat_with_a_warning() {
        for subgroups in [
            json!([{"name": "a"}, {"name": "a"}]),
            json!([{"name": "a", "parent": "gone"}]),
            json!([{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]),
            json!([{"name": "a", "parent": "a"}]),
        ] {
            let (facts, findings) = gang(&json!({"minMember": 3, "subGroups": subgroups}), &Value::Null);
            let facts = facts.expect("a gang");
            assert_eq!((facts.members.len(), facts.members[0].kind), (1, SubgroupKind::PodSet { min: 1 }));
            assert_eq!((findings.bad.len(), findings.warnings.len()), (0, 1), "{findings:?}");
        }
    }

    #[test]
    fn bad_groups() {
        for (spec, part) in [
            (json!({"minMember": -1}), "spec.minMember: -1: expected an integer of 0 or more"),
            (json!({"minSubGroup": -1}), "spec.minSubGroup"),
            (json!({"subGroups": [{"name": "A_b"}]}), r#"spec.subGroups[0].name: "A_b""#),
            (json!({"subGroups": [{"name": ""}]}), "spec.subGroups[0].name"),
            (json!({"subGroups": [{"name": "a", "minMember": -2}]}), "spec.subGroups[0].minMember"),
            (json!({"preemptionDelay": "soon"}), "spec.preemptionDelay"),
        ] {
            let (facts, findings) = gang(&spec, &Value::Null);
            assert!(facts.is_none() && findings.bad.len() == 1, "{findings:?}");
            assert!(findings.bad[0].to_string().contains(part), "{findings:?}");
        }
    }

    #[test]
    fn odd_groups_are_warned_about() {
        for spec in [
            json!({"minMember": 1, "minSubGroup": 1}),
            json!({"minSubGroup": 2}),
            json!({"subGroups": [{"name": "a", "minSubGroup": 1}]}),
            json!({"subGroups": [{"name": "a", "minMember": 1}, {"name": "b", "parent": "a"}]}),
            json!({"subGroups": [{"name": "a", "minSubGroup": 2}, {"name": "b", "parent": "a"}]}),
        ] {
            let (facts, findings) = gang(&spec, &Value::Null);
            assert!(facts.is_some() && findings.bad.is_empty() && findings.warnings.len() == 1, "{spec}: {findings:?}");
        }
    }

    #[test]
    fn backing_off_needs_the_last_condition_to_be_for_this_pool() {
        let conditions = json!({"schedulingConditions": [
            {"nodePool": "default", "transitionID": "9"}, {"nodePool": "other", "transitionID": "10"}]});
        let backs_off = |spec: Value, status: &Value| gang(&spec, status).0.map(|facts| facts.backed_off);
        assert_eq!(backs_off(json!({"schedulingBackoff": 1}), &conditions), Some(false));
        let here = json!({"schedulingConditions": [
            {"nodePool": "default", "transitionID": "11"}, {"nodePool": "other", "transitionID": "10"}]});
        assert_eq!(backs_off(json!({"schedulingBackoff": 1}), &here), Some(true));
        assert_eq!(backs_off(json!({"schedulingBackoff": -1}), &here), Some(false));
        assert_eq!(backs_off(json!({}), &here), Some(false));
        assert_eq!(backs_off(json!({"schedulingBackoff": 1}), &Value::Null), Some(false));
    }
}
