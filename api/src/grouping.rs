//! Which PodGroup a pod belongs to, and what that group has to say: from the pod and the objects that own it
//! (controllers.md §1.2–1.8, the kinds of Kubernetes itself; any other kind is grouped by the same default).
//!
//! Pure: who fetches owners, and who writes, lives in the controller. Not copied from KAI: an owner is the one that controls,
//! not the first in the list; a bare pod is looked at again; the gang size of a Job counts below a CronJob as well.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource as _;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::crds::podgroup::{PodGroup, PodGroupSpec, Preemptibility, TopologyConstraint};
use crate::duration;
use crate::sharing;

/// Names the group of a pod, in the pod's namespace.
pub const POD_GROUP: &str = "pod-group-name";
/// Names the sub-group of a pod.
pub const SUBGROUP: &str = "kai.scheduler/subgroup-name";
/// On a pod or an owner: `"true"` means that somebody else makes the group.
pub const SKIP: &str = "kai.scheduler/skip-podgrouper";

const TOP_OWNER: &str = "kai.scheduler/top-owner-metadata";
const MIN_MEMBER: &str = "kai.scheduler/batch-min-member";
const PREEMPTIBILITY: &str = "kai.scheduler/preemptibility";
const PREEMPTION_DELAY: &str = "kai.scheduler/preemption-delay";
const STALENESS: &str = "kai.scheduler/staleness-grace-period";
const TOPOLOGY: &str = "kai.scheduler/topology";
const TOPOLOGY_REQUIRED: &str = "kai.scheduler/topology-required-placement";
const TOPOLOGY_PREFERRED: &str = "kai.scheduler/topology-preferred-placement";
const PRIORITY_CLASS: &str = "priorityClassName";
const PROJECT: &str = "project";
const USER: &str = "user";
/// Where work goes that names no queue.
const DEFAULT_QUEUE: &str = "default-queue";
/// The whole manifest of the owner: of no use on another object, and kubectl would take it for that object's own.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What can be configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Pods with this `schedulerName` are grouped.
    pub scheduler_name: String,
    /// Label key of queues.
    pub queue_label_key: String,
    /// Label key of node pools.
    pub node_pool_label_key: String,
}

/// An object that owns a pod, or owns an owner of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Owner {
    /// Group and version, e.g. `batch/v1`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Its metadata.
    pub metadata: ObjectMeta,
}

/// What a pod's group has to be.
#[derive(Clone, PartialEq, Debug)]
pub struct Grouping {
    /// The group; its name and namespace are set.
    pub group: PodGroup,
    /// The pod's sub-group.
    pub subgroup: Option<String>,
    /// What users wrote and what does not count, for people.
    pub warnings: Vec<String>,
}

/// Whether a pod has to be grouped at all, as far as the pod itself says.
#[must_use]
pub fn concerns(pod: &Pod, rules: &Rules) -> bool {
    let spec_name = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let ended = matches!(phase, Some("Succeeded" | "Failed")) || pod.metadata.deletion_timestamp.is_some();
    if spec_name != Some(rules.scheduler_name.as_str()) || ended || skips(&pod.metadata) {
        return false;
    }
    // A bare pod in a group that we would not have made is in one that a user made.
    let bare = pod.metadata.owner_references.as_ref().is_none_or(Vec::is_empty);
    let named = annotation(&pod.metadata, POD_GROUP);
    !bare || named.is_none_or(|group| group == group_name(&pod.metadata))
}

/// Whether the object says that somebody else makes the group.
#[must_use]
pub fn skips(metadata: &ObjectMeta) -> bool {
    annotation(metadata, SKIP) == Some("true")
}

/// The owner to follow: the one that controls, else the first.
#[must_use]
pub fn owner_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let owners = metadata.owner_references.as_ref()?;
    owners.iter().find(|owner| owner.controller == Some(true)).or_else(|| owners.first())
}

/// The group of a pod. `owners`: nearest first, the top one last; none for a bare pod. `class_exists` knows PriorityClasses.
///
/// # Errors
/// If an annotation that decides the size of a gang cannot be read; the text names object, field and value.
pub fn group(pod: &Pod, owners: &[Owner], rules: &Rules, class_exists: impl Fn(&str) -> bool) -> Result<Grouping, String> {
    let itself = Owner { api_version: "v1".to_owned(), kind: "Pod".to_owned(), metadata: own_metadata(pod) };
    let top = owners.last().unwrap_or(&itself);
    // Replicas of a Deployment are wanted one by one, those of other kinds together.
    let per_pod = (top.group(), top.kind.as_str()) == ("apps", "Deployment");
    let job = owners.iter().find(|owner| (owner.group(), owner.kind.as_str()) == ("batch", "Job"));
    // Each run of a CronJob is work of its own.
    let cron = (top.group(), top.kind.as_str()) == ("batch", "CronJob");
    let top = job.filter(|_| cron).unwrap_or(top);
    let named_after = if per_pod { &itself } else { top };
    let chain = if owners.is_empty() { std::slice::from_ref(&itself) } else { owners };
    let mut warnings = Vec::new();
    let spec = PodGroupSpec {
        min_member: Some(job.map_or(Ok(1), min_member)?),
        queue: Some(queue(pod, top, rules)),
        priority_class_name: Some(priority_class(pod, chain, top, class_exists, &mut warnings)),
        preemptibility: preemptibility(pod, chain, &mut warnings),
        preemption_delay: period(pod, chain, PREEMPTION_DELAY, false, &mut warnings),
        staleness_grace_period: period(pod, chain, STALENESS, true, &mut warnings),
        topology_constraint: topology(&top.metadata),
        sub_groups: Some(Vec::new()),
        ..PodGroupSpec::default()
    };
    let metadata = ObjectMeta {
        name: Some(group_name(&named_after.metadata)),
        namespace: pod.metadata.namespace.clone(),
        labels: Some(labels(pod, top, rules)),
        annotations: Some(annotations(pod, top)),
        owner_references: Some(vec![named_after.reference()]),
        ..ObjectMeta::default()
    };
    let mut group = PodGroup::new("", spec);
    group.metadata = metadata;
    Ok(Grouping { group, subgroup: None, warnings })
}

/// What has to be changed of a live group so that it says what `wanted` says, as a merge patch that holds only for this version
/// of it; `None`: nothing. What an operator may have set by hand is kept (controllers.md §1.7).
#[must_use]
pub fn update(live: &PodGroup, wanted: &PodGroup, rules: &Rules) -> Option<Value> {
    let mut spec = wanted.spec.clone();
    spec.mark_unschedulable = live.spec.mark_unschedulable;
    spec.scheduling_backoff = live.spec.scheduling_backoff;
    spec.queue.clone_from(&live.spec.queue);
    if spec.topology_constraint.is_none() {
        spec.topology_constraint.clone_from(&live.spec.topology_constraint);
    }
    let mut labels = wanted.metadata.labels.clone().unwrap_or_default();
    labels.remove(&rules.node_pool_label_key);
    if label(&live.metadata, &rules.queue_label_key).is_some() {
        labels.remove(&rules.queue_label_key);
    }
    let mut metadata = Map::new();
    for (field, wanted, live) in [
        ("labels", labels, live.metadata.labels.as_ref()),
        ("annotations", wanted.metadata.annotations.clone().unwrap_or_default(), live.metadata.annotations.as_ref()),
    ] {
        let changed = wanted.into_iter().filter(|(key, value)| live.and_then(|live| live.get(key)) != Some(value));
        let changed: BTreeMap<_, _> = changed.collect();
        if !changed.is_empty() {
            metadata.insert(field.to_owned(), json!(changed));
        }
    }
    let owners = wanted.metadata.owner_references.as_deref().unwrap_or_default();
    if live.metadata.owner_references.as_deref().unwrap_or_default() != owners {
        metadata.insert("ownerReferences".to_owned(), json!(owners));
    }
    let spec = spec_changes(&live.spec, &spec);
    if metadata.is_empty() && spec.is_empty() {
        return None;
    }
    if let Some(version) = &live.metadata.resource_version {
        metadata.insert("resourceVersion".to_owned(), json!(version));
    }
    Some(json!({"metadata": metadata, "spec": spec}))
}

/// What has to be changed of a pod that belongs to the group, as a merge patch for this very pod; `None`: nothing.
#[must_use]
pub fn membership(pod: &Pod, grouping: &Grouping) -> Option<Value> {
    let name = grouping.group.metadata.name.as_deref().unwrap_or_default();
    let mut metadata = Map::new();
    if annotation(&pod.metadata, POD_GROUP) != Some(name) {
        metadata.insert("annotations".to_owned(), json!({POD_GROUP: name}));
    }
    if let Some(subgroup) = &grouping.subgroup
        && label(&pod.metadata, SUBGROUP) != Some(subgroup)
    {
        metadata.insert("labels".to_owned(), json!({SUBGROUP: subgroup}));
    }
    if metadata.is_empty() {
        return None;
    }
    metadata.insert("uid".to_owned(), json!(pod.metadata.uid));
    Some(json!({"metadata": metadata}))
}

/// Fields that differ; one that is not wanted any more is null. Absent and empty mean the same.
fn spec_changes(live: &PodGroupSpec, wanted: &PodGroupSpec) -> Map<String, Value> {
    let fields = |spec: &PodGroupSpec| match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty) || value.as_str() == Some("");
    let (live, wanted) = (fields(live), fields(wanted));
    let mut changes = Map::new();
    for (key, value) in &wanted {
        let now = live.get(key).unwrap_or(&Value::Null);
        if now != value && !(empty(now) && empty(value)) {
            changes.insert(key.clone(), value.clone());
        }
    }
    for (key, _) in live.iter().filter(|(key, value)| !wanted.contains_key(*key) && !empty(value)) {
        changes.insert(key.clone(), Value::Null);
    }
    changes
}

impl Owner {
    /// API group; empty for Kubernetes' core.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    fn version(&self) -> &str {
        self.api_version.split_once('/').map_or(&self.api_version, |(_, version)| version)
    }

    /// As KAI writes it: neither controlling nor holding up a deletion.
    fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            name: self.metadata.name.clone().unwrap_or_default(),
            uid: self.metadata.uid.clone().unwrap_or_default(),
            controller: None,
            block_owner_deletion: None,
        }
    }

    fn describe(&self) -> String {
        format!("{} {}", self.kind, self.metadata.name.as_deref().unwrap_or_default())
    }
}

/// A bare pod hands its labels and annotations down like any owner, without those that grouping puts there, nor what every
/// binding writes.
fn own_metadata(pod: &Pod) -> ObjectMeta {
    let mut metadata = pod.meta().clone();
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(POD_GROUP);
        // Whoever binds the pod writes that: handed down it would cost a write on the group for each pod that is bound.
        annotations.remove(sharing::RECEIVED_TYPE);
    }
    if let Some(labels) = &mut metadata.labels {
        labels.remove(SUBGROUP);
    }
    metadata
}

fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn group_name(metadata: &ObjectMeta) -> String {
    format!("pg-{}-{}", metadata.name.as_deref().unwrap_or_default(), metadata.uid.as_deref().unwrap_or_default())
}

fn queue(pod: &Pod, top: &Owner, rules: &Rules) -> String {
    let either = |key: &str| label(&top.metadata, key).or_else(|| label(&pod.metadata, key)).filter(|name| !name.is_empty());
    if let Some(queue) = either(&rules.queue_label_key) {
        return queue.to_owned();
    }
    match (either(PROJECT), label(&pod.metadata, &rules.node_pool_label_key)) {
        (Some(project), Some(pool)) => format!("{project}-{pool}"),
        (Some(project), None) => project.to_owned(),
        (None, _) => DEFAULT_QUEUE.to_owned(),
    }
}

fn priority_class(pod: &Pod, chain: &[Owner], top: &Owner, exists: impl Fn(&str) -> bool, warnings: &mut Vec<String>) -> String {
    let of_pod = [
        ("Pod's label".to_owned(), label(&pod.metadata, PRIORITY_CLASS)),
        ("Pod's spec".to_owned(), pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref())),
    ];
    // The pod's own wishes come before those of owners farther away.
    let mut wishes = Vec::new();
    for (at, owner) in chain.iter().enumerate() {
        wishes.push((format!("{}'s label", owner.describe()), label(&owner.metadata, PRIORITY_CLASS)));
        if at == 0 {
            wishes.extend(of_pod.clone());
        }
    }
    for (from, wish) in wishes {
        match wish.filter(|name| !name.is_empty()) {
            Some(name) if exists(name) => return name.to_owned(),
            Some(name) => {
                let said = format!("priorityClassName {name:?} ({from}): there is no such PriorityClass");
                if !warnings.contains(&said) {
                    warnings.push(said);
                }
            }
            None => {}
        }
    }
    built_in_class(top.group(), &top.kind).to_owned()
}

/// Controllers.md §1.8, column PC.
fn built_in_class(group: &str, kind: &str) -> &'static str {
    match (group, kind) {
        ("apps", "Deployment") | ("egx.nvidia.io", "SPOTRequest") | ("serving.knative.dev", "Service") => "inference",
        ("kubeflow.org", "Notebook") => "build",
        _ => "train",
    }
}

fn preemptibility(pod: &Pod, chain: &[Owner], warnings: &mut Vec<String>) -> Option<Preemptibility> {
    for metadata in chain.iter().map(|owner| &owner.metadata).chain([&pod.metadata]) {
        match label(metadata, PREEMPTIBILITY) {
            Some("preemptible") => return Some(Preemptibility::Preemptible),
            Some("non-preemptible") => return Some(Preemptibility::NonPreemptible),
            None | Some("") => {}
            Some(other) => warnings.push(format!("{PREEMPTIBILITY} {other:?}: expected preemptible or non-preemptible")),
        }
    }
    None
}

/// The first of the annotations that is a duration.
fn period(pod: &Pod, chain: &[Owner], key: &str, may_be_negative: bool, warnings: &mut Vec<String>) -> Option<String> {
    for metadata in chain.iter().map(|owner| &owner.metadata).chain([&pod.metadata]) {
        let Some(text) = annotation(metadata, key) else { continue };
        match duration::parse_nanoseconds(text, false) {
            Ok(length) if length >= 0 || may_be_negative => return Some(text.to_owned()),
            _ => warnings.push(format!("{key} {text:?}: expected a duration such as 30s or 5m")),
        }
    }
    None
}

fn topology(top: &ObjectMeta) -> Option<TopologyConstraint> {
    let text = |key: &str| annotation(top, key).map(str::to_owned);
    let constraint = TopologyConstraint {
        topology: text(TOPOLOGY),
        required_topology_level: text(TOPOLOGY_REQUIRED),
        preferred_topology_level: text(TOPOLOGY_PREFERRED),
    };
    constraint.topology.is_some().then_some(constraint)
}

fn min_member(job: &Owner) -> Result<i32, String> {
    let Some(text) = annotation(&job.metadata, MIN_MEMBER) else { return Ok(1) };
    let number = text.parse().ok().filter(|&number: &i32| number >= 0);
    number.ok_or_else(|| format!("{}: annotation {MIN_MEMBER}: {text:?}: expected an integer of 0 or more", job.describe()))
}

fn labels(pod: &Pod, top: &Owner, rules: &Rules) -> BTreeMap<String, String> {
    let mut labels = top.metadata.labels.clone().unwrap_or_default();
    for key in [USER, &rules.node_pool_label_key] {
        if let Some(value) = label(&pod.metadata, key) {
            labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    labels
}

fn annotations(pod: &Pod, top: &Owner) -> BTreeMap<String, String> {
    #[derive(Serialize)]
    struct TopOwner<'a> {
        name: &'a str,
        uid: &'a str,
        group: &'a str,
        version: &'a str,
        kind: &'a str,
    }

    let mut annotations = top.metadata.annotations.clone().unwrap_or_default();
    annotations.remove(LAST_APPLIED);
    if let Some(user) = annotation(&pod.metadata, USER) {
        annotations.entry(USER.to_owned()).or_insert_with(|| user.to_owned());
    }
    let described = TopOwner {
        name: top.metadata.name.as_deref().unwrap_or_default(),
        uid: top.metadata.uid.as_deref().unwrap_or_default(),
        group: top.group(),
        version: top.version(),
        kind: &top.kind,
    };
    if let Ok(text) = serde_saphyr::to_string(&described) {
        annotations.entry(TOP_OWNER.to_owned()).or_insert(text);
    }
    annotations
}

#[cfg(test)]
#[path = "grouping_tests.rs"]
mod tests;
