//! A Pod object → facts: what it asks for, where it may go, what it is doing (semantics.md §1.3, §1.4); and BindRequests.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as k8s;
use muster_core::snapshot::{GpuRequest, PodStatus, TaskPriority};

use crate::crds::Object;
use crate::crds::bindrequest::{BindRequestSpec, BindRequestStatus};
use crate::gpu::{MIG_PREFIX, groups_of_labels, request_of};
use crate::names::ObjectName;
use crate::problem::{Findings, Subject, show};
use crate::requests::{Requests, effective, in_row_units};
use crate::selector::{Constraints, constraints_of};
use crate::settings::Settings;
use crate::validate::object_name;

const GANG: &str = "pod-group-name";
const SUBGROUP: &str = "kai.scheduler/subgroup-name";
const TASK_PRIORITY: &str = "kai.scheduler/task-priority";
const SHARED_CONFIG_MAP: &str = "runai/shared-gpu-configmap";
const RESERVATION_APP: &str = "kai-resource-reservation";
const SCALING_APP: &str = "scaling-pod";
const NO_LABELS: &BTreeMap<String, String> = &BTreeMap::new();

/// `status.phase`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Other,
}

/// Things that pods need and this version does not consider.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each kind of thing")]
pub(crate) struct Needs {
    pub(crate) volumes: bool,
    pub(crate) claims: bool,
    pub(crate) pod_affinity: bool,
    pub(crate) host_ports: bool,
}

/// What a pod asks for, and where it may go: of pods made from one template the same, so that whoever keeps many keeps it once.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Wish {
    /// What it asks for besides shared GPUs.
    pub(crate) requests: Requests,
    pub(crate) gpu: GpuRequest,
    /// Empty for pods that name no gang: nothing is decided about them.
    pub(crate) constraints: Constraints,
    /// ConfigMaps it cannot start without, sorted.
    pub(crate) config_maps: Vec<String>,
    /// Asks for MIG by annotation.
    pub(crate) legacy_mig: bool,
    pub(crate) needs: Needs,
}

/// A pod without indices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodFacts {
    pub(crate) name: ObjectName,
    pub(crate) uid: String,
    pub(crate) created: Option<Timestamp>,
    pub(crate) deleted: Option<Timestamp>,
    pub(crate) phase: Phase,
    /// `spec.nodeName`.
    pub(crate) node: Option<String>,
    pub(crate) nominated: Option<String>,
    pub(crate) gated: bool,
    /// The PodGroup it names, in its own namespace.
    pub(crate) gang: Option<String>,
    pub(crate) subgroup: Option<String>,
    pub(crate) wish: Arc<Wish>,
    /// Shared GPUs by its labels.
    pub(crate) groups: Vec<String>,
    pub(crate) foreign: bool,
    pub(crate) reservation: bool,
    pub(crate) leader: bool,
    pub(crate) ray_head: bool,
    pub(crate) task_priority: TaskPriority,
    /// Where budgets are followed, of pods that they may keep.
    #[expect(clippy::box_collection, reason = "most pods have none here: 8 bytes instead of 24")]
    pub(crate) labels: Option<Box<BTreeMap<String, String>>>,
    /// We told it to leave, and it is not to be seen yet.
    pub(crate) told: bool,
}

impl PodFacts {
    /// Semantics.md §1.3. `binding`: a live BindRequest exists.
    pub(crate) fn status(&self, binding: bool, now: Timestamp, stuck_after: i64) -> PodStatus {
        match self.phase {
            Phase::Running => match self.deleted {
                None => PodStatus::Running,
                Some(deleted) if nanoseconds_between(deleted, now) > i128::from(stuck_after) => PodStatus::StuckInReleasing,
                Some(_) => PodStatus::Releasing,
            },
            Phase::Pending if self.deleted.is_some() => PodStatus::Releasing,
            Phase::Pending if self.node.is_some() => PodStatus::Bound,
            Phase::Pending if binding => PodStatus::Binding,
            Phase::Pending if self.gated => PodStatus::Gated,
            Phase::Pending => PodStatus::Pending,
            Phase::Succeeded => PodStatus::Succeeded,
            Phase::Failed | Phase::Other => PodStatus::Other,
        }
    }
}

fn nanoseconds_between(from: Timestamp, to: Timestamp) -> i128 {
    to.as_nanosecond() - from.as_nanosecond()
}

/// Whether a change of a pod may change a decision: being bound, and beginning to run there, does not.
pub(crate) fn matters(old: &PodFacts, new: &PodFacts) -> bool {
    let waits = old.phase == Phase::Pending && matches!(new.phase, Phase::Pending | Phase::Running);
    let bound = waits && (old.node == new.node || old.node.is_none()) && old.deleted == new.deleted;
    // Each field by name, so that a new one has to be thought of here.
    #[rustfmt::skip]
    let PodFacts {
        name, uid, created, deleted, gated, gang, subgroup, wish, foreign, reservation, leader, ray_head, task_priority, told,
        phase: _, node: _, nominated: _, groups: _, labels: _,
    } = old;
    let Wish { requests, gpu, legacy_mig, constraints: _, config_maps: _, needs: _ } = &**wish;
    let same = (name, uid, created, deleted) == (&new.name, &new.uid, &new.created, &new.deleted)
        && (gated, gang, subgroup, foreign) == (&new.gated, &new.gang, &new.subgroup, &new.foreign)
        && (reservation, leader, ray_head) == (&new.reservation, &new.leader, &new.ray_head)
        && (task_priority, told) == (&new.task_priority, &new.told)
        && (requests, gpu, legacy_mig) == (&new.wish.requests, &new.wish.gpu, &new.wish.legacy_mig);
    !bound || !same
}

/// Reads one pod; `None` if something in it is bad.
pub(crate) fn read(pod: &mut k8s::Pod, settings: &Settings, findings: &mut Findings) -> Option<PodFacts> {
    let name = object_name("Pod", &mut pod.metadata, findings)?;
    let subject = Subject { kind: "Pod", namespace: &name.namespace, name: &name.name };
    let before = findings.bad.len();
    let metadata = &mut pod.metadata;
    let labels = metadata.labels.as_ref().unwrap_or(NO_LABELS);
    let annotations = metadata.annotations.as_ref().unwrap_or(NO_LABELS);
    let spec = pod.spec.get_or_insert_default();
    let status = pod.status.get_or_insert_default();
    let phase = phase_of(subject, status.phase.as_deref(), findings);
    let node = spec.node_name.take().filter(|node| !node.is_empty());
    let waits = phase == Phase::Pending && node.is_none();
    let gang = annotations.get(GANG).filter(|gang| !gang.is_empty()).cloned();

    let constraints = constraints_of(subject, spec, findings);
    let amounts = effective(subject, spec, findings);
    let mut requests = in_row_units(subject, "spec.containers.resources.requests", amounts, findings);
    let legacy_mig = add_legacy_mig(subject, annotations, &mut requests, waits, findings);
    let mut gpu = request_of(subject, annotations, requests.gpus, waits, findings);
    if requests.extra.iter().any(|(name, _)| name.starts_with(MIG_PREFIX)) {
        gpu = GpuRequest::None;
    }
    let config_maps = if gang.is_some() && waits { config_maps_of(spec, annotations) } else { Vec::new() };
    let needs = if gang.is_some() && waits { needs_of(spec) } else { Needs::default() };
    if findings.bad.len() > before {
        return None;
    }
    let app = labels.get("app").map_or("", String::as_str);
    let utility = app == RESERVATION_APP || app == SCALING_APP;
    let scheduler = spec.scheduler_name.as_deref().unwrap_or("default-scheduler");
    let constraints = if gang.is_some() { constraints } else { Constraints::default() };
    Some(PodFacts {
        uid: metadata.uid.take().unwrap_or_default(),
        created: metadata.creation_timestamp.as_ref().map(|time| time.0),
        deleted: metadata.deletion_timestamp.as_ref().map(|time| time.0),
        phase,
        node,
        nominated: status.nominated_node_name.take().filter(|node| !node.is_empty()),
        gated: spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()),
        subgroup: labels.get(SUBGROUP).filter(|name| !name.is_empty()).cloned(),
        groups: groups_of_labels(labels),
        labels: (settings.budgets && gang.is_some()).then(|| Box::new(labels.clone())),
        told: false,
        gang,
        wish: Arc::new(Wish { requests, gpu, constraints, config_maps, legacy_mig, needs }),
        foreign: !utility && scheduler != settings.scheduler_name,
        reservation: app == RESERVATION_APP,
        leader: labels.get("training.kubeflow.org/job-role").is_some_and(|role| role == "master" || role == "launcher"),
        ray_head: labels.get("ray.io/node-type").is_some_and(|kind| kind == "head"),
        task_priority: labels
            .get(TASK_PRIORITY)
            .map_or(TaskPriority::Absent, |text| text.parse().map_or(TaskPriority::Unparsable, TaskPriority::Number)),
        name,
    })
}

fn phase_of(subject: Subject<'_>, text: Option<&str>, findings: &mut Findings) -> Phase {
    match text {
        // What the API server gives a new pod.
        None | Some("" | "Pending") => Phase::Pending,
        Some("Running") => Phase::Running,
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        Some("Unknown") => Phase::Other,
        Some(other) => {
            findings.warn(subject, "status.phase", show(other), "not a phase of Kubernetes: the pod counts as holding nothing");
            Phase::Other
        }
    }
}

/// Adds MIG instances asked for by annotation; whether there are any.
fn add_legacy_mig(
    subject: Subject<'_>,
    annotations: &BTreeMap<String, String>,
    requests: &mut Requests,
    refuse: bool,
    findings: &mut Findings,
) -> bool {
    let mut any = false;
    let named = annotations.range(MIG_PREFIX.to_owned()..).take_while(|(key, _)| key.starts_with(MIG_PREFIX));
    for (key, text) in named {
        any = true;
        match text.parse::<i64>().ok().filter(|n| *n >= 0).and_then(|n| n.checked_mul(1000)) {
            Some(0) => {}
            Some(milli) => match requests.extra.iter_mut().find(|(name, _)| name == key) {
                Some((_, amount)) => *amount = amount.saturating_add(milli),
                None => requests.extra.push((key.clone(), milli)),
            },
            None => {
                let expected = "an integer of 0 or more, at most 9223372036854775";
                findings.judge(refuse, subject, &format!("metadata.annotations.{key}"), show(text), expected);
            }
        }
    }
    requests.extra.sort();
    any
}

fn needs_of(spec: &k8s::PodSpec) -> Needs {
    let affinity = spec.affinity.as_ref();
    let volumes = spec.volumes.iter().flatten();
    let ports = spec.containers.iter().chain(spec.init_containers.iter().flatten()).flat_map(|c| c.ports.iter().flatten());
    Needs {
        volumes: volumes.into_iter().any(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some()),
        claims: spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()),
        pod_affinity: affinity.is_some_and(|a| a.pod_affinity.is_some() || a.pod_anti_affinity.is_some()),
        host_ports: ports.into_iter().any(|port| port.host_port.is_some_and(|port| port != 0)),
    }
}

/// ConfigMaps that must exist (semantics.md §9.2): mounted or in the environment, not optional; without those that the binder
/// will make for a shared GPU. A volume that no container mounts keeps no pod from starting.
fn config_maps_of(spec: &k8s::PodSpec, annotations: &BTreeMap<String, String>) -> Vec<String> {
    let mut names = Vec::new();
    let mut need = |name: &str, optional: Option<bool>| {
        if !name.is_empty() && optional != Some(true) {
            names.push(name.to_owned());
        }
    };
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mounted = |volume: &str| containers().flat_map(|c| c.volume_mounts.iter().flatten()).any(|mount| mount.name == volume);
    for volume in spec.volumes.iter().flatten().filter(|volume| mounted(&volume.name)) {
        if let Some(map) = &volume.config_map {
            need(&map.name, map.optional);
        }
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            if let Some(map) = &source.config_map {
                need(&map.name, map.optional);
            }
        }
    }
    for container in containers() {
        for from in container.env_from.iter().flatten() {
            if let Some(map) = &from.config_map_ref {
                need(&map.name, map.optional);
            }
        }
        for from in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            if let Some(key) = &from.config_map_key_ref {
                need(&key.name, key.optional);
            }
        }
    }
    if let Some(prefix) = annotations.get(SHARED_CONFIG_MAP).filter(|prefix| !prefix.is_empty()) {
        names.retain(|name| !name.starts_with(prefix.as_str()));
    }
    names.sort();
    names.dedup();
    names
}

/// A live wish to bind a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BindFacts {
    /// Namespace and name of the request.
    pub(crate) name: ObjectName,
    pub(crate) pod: String,
    pub(crate) node: String,
    pub(crate) groups: Vec<String>,
    /// Uid of the pod that it was made for, if it says so.
    pub(crate) owner: Option<String>,
}

/// Reads one BindRequest: `None` if something in it is bad, `Some(None)` if it failed for good, which counts as absent
/// (semantics.md §1.2).
pub(crate) fn read_bind(
    request: &mut Object<BindRequestSpec, BindRequestStatus>,
    findings: &mut Findings,
) -> Option<Option<BindFacts>> {
    let name = object_name("BindRequest", &mut request.metadata, findings)?;
    let spec = std::mem::take(&mut request.spec);
    let owners = request.metadata.owner_references.take().unwrap_or_default();
    let owner = owners.into_iter().find(|owner| owner.kind == "Pod").map(|owner| owner.uid).filter(|uid| !uid.is_empty());
    let status = request.status.take().unwrap_or_default();
    let tried = status.failed_attempts.unwrap_or(0);
    let failed = status.phase.as_deref() == Some("Failed") && spec.backoff_limit.is_none_or(|limit| tried >= limit);
    Some((!failed).then(|| BindFacts {
        pod: spec.pod_name.unwrap_or_default(),
        node: spec.selected_node.unwrap_or_default(),
        groups: spec.selected_gpu_groups.unwrap_or_default(),
        owner,
        name,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: &Value, spec: &Value, status: &Value) -> (Option<PodFacts>, Findings) {
        let mut object = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec, "status": status});
        for (key, value) in metadata.as_object().into_iter().flatten() {
            object["metadata"][key] = value.clone();
        }
        let mut findings = Findings::default();
        let facts = read(&mut serde_json::from_value(object).expect("a pod"), &Settings::default(), &mut findings);
        (facts, findings)
    }

    fn good(metadata: &Value, spec: &Value, status: &Value) -> PodFacts {
        let (facts, findings) = pod(metadata, spec, status);
        assert!(findings.bad.is_empty(), "{findings:?}");
        facts.expect("a pod")
    }

    #[test]
    fn statuses_follow_the_table() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().expect("a time");
        let gone = |text: &str| json!({"deletionTimestamp": text});
        let (old, fresh) = (gone("2026-01-01T00:00:00Z"), gone("2026-01-01T00:09:00Z"));
        let on = json!({"nodeName": "n"});
        let gated = json!({"schedulingGates": [{"name": "g"}]});
        let phase = |phase: &str| json!({"phase": phase});
        for (metadata, spec, status, binding, expected) in [
            (&json!({}), &on, phase("Running"), false, PodStatus::Running),
            (&old, &on, phase("Running"), false, PodStatus::StuckInReleasing),
            (&fresh, &on, phase("Running"), false, PodStatus::Releasing),
            (&old, &on, phase("Pending"), false, PodStatus::Releasing),
            (&json!({}), &on, phase("Pending"), false, PodStatus::Bound),
            (&json!({}), &gated, phase("Pending"), true, PodStatus::Binding),
            (&json!({}), &gated, phase("Pending"), false, PodStatus::Gated),
            (&json!({}), &json!({}), phase("Pending"), false, PodStatus::Pending),
            (&json!({}), &json!({}), json!({}), false, PodStatus::Pending),
            (&json!({}), &on, phase("Succeeded"), false, PodStatus::Succeeded),
            (&json!({}), &on, phase("Unknown"), false, PodStatus::Other),
        ] {
            let facts = good(metadata, spec, &status);
            assert_eq!(facts.status(binding, now, 120_000_000_000), expected, "{metadata} {spec} {status}");
        }
    }

    #[test]
    fn who_a_pod_belongs_to() {
        let of = |scheduler: &str, app: &str| {
            let facts = good(&json!({"labels": {"app": app}}), &json!({"schedulerName": scheduler}), &json!({}));
            (facts.foreign, facts.reservation)
        };
        assert_eq!(of("kai-scheduler", "x"), (false, false));
        assert_eq!(of("default-scheduler", "x"), (true, false));
        assert_eq!(of("default-scheduler", "kai-resource-reservation"), (false, true));
        assert_eq!(of("default-scheduler", "scaling-pod"), (false, false));
        assert!(good(&json!({}), &json!({}), &json!({})).foreign);
    }

    #[test]
    fn order_markers() {
        let facts = good(
            &json!({"labels": {"kai.scheduler/task-priority": "3", "ray.io/node-type": "head",
                "training.kubeflow.org/job-role": "launcher", "kai.scheduler/subgroup-name": "w"}}),
            &json!({}),
            &json!({"nominatedNodeName": "n"}),
        );
        assert_eq!((facts.task_priority, facts.ray_head, facts.leader), (TaskPriority::Number(3), true, true));
        assert_eq!((facts.subgroup.as_deref(), facts.nominated.as_deref()), (Some("w"), Some("n")));
        let odd = good(&json!({"labels": {"kai.scheduler/task-priority": "high"}}), &json!({}), &json!({}));
        assert_eq!(odd.task_priority, TaskPriority::Unparsable);
    }

    #[test]
    fn mig_wins_over_other_markers() {
        let mig = json!({"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/mig-1g.10gb": "2"}}}]});
        let facts = good(&json!({"annotations": {"gpu-fraction": "0.5"}}), &mig, &json!({}));
        assert_eq!((facts.wish.gpu, facts.wish.legacy_mig), (GpuRequest::None, false));
        let facts = good(&json!({"annotations": {"nvidia.com/mig-1g.10gb": "1"}}), &mig, &json!({}));
        assert!(facts.wish.legacy_mig);
        assert_eq!(facts.wish.requests.extra, [("nvidia.com/mig-1g.10gb".to_owned(), 3000)]);
    }

    #[test]
    fn bad_annotations_refuse_waiting_pods_only() {
        let annotated = json!({"annotations": {"gpu-fraction": "1.5"}});
        let (facts, findings) = pod(&annotated, &json!({}), &json!({}));
        assert!(facts.is_none());
        let line = r#"Pod ns/p: metadata.annotations.gpu-fraction: "1.5": expected a decimal above 0, at most 1"#;
        assert_eq!(findings.bad[0].to_string(), line);
        let (facts, findings) = pod(&annotated, &json!({"nodeName": "n"}), &json!({"phase": "Running"}));
        assert_eq!((facts.map(|f| f.wish.gpu), findings.bad.len(), findings.warnings.len()), (Some(GpuRequest::None), 0, 1));
    }

    #[test]
    fn config_maps_that_must_exist() {
        let spec = json!({
            "volumes": [{"name": "a", "configMap": {"name": "mounted"}},
                {"name": "b", "configMap": {"name": "maybe", "optional": true}},
                {"name": "c", "projected": {"sources": [{"configMap": {"name": "projected"}}]}},
                {"name": "d", "configMap": {"name": "gpu-x1-shared-gpu-0"}},
                {"name": "e", "configMap": {"name": "not-mounted"}}],
            "initContainers": [{"name": "i", "volumeMounts": [{"name": "c", "mountPath": "/c"}]}],
            "containers": [{"name": "c", "volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"},
                    {"name": "d", "mountPath": "/d"}], "envFrom": [{"configMapRef": {"name": "env"}}],
                "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "key", "key": "k"}}}]}]});
        let annotations = json!({"annotations": {"pod-group-name": "g", "runai/shared-gpu-configmap": "gpu-x1-shared-gpu"}});
        assert_eq!(good(&annotations, &spec, &json!({})).wish.config_maps, ["env", "key", "mounted", "projected"]);
    }

    #[test]
    fn failed_bind_requests_count_as_absent() {
        let bind = |spec: Value, status: Value| {
            let object = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec, "status": status});
            let mut object = serde_json::from_value(object).expect("a bind request");
            read_bind(&mut object, &mut Findings::default()).flatten().is_some()
        };
        assert!(bind(json!({"podName": "p"}), Value::Null));
        assert!(bind(json!({"podName": "p"}), json!({"phase": "Succeeded"})));
        assert!(!bind(json!({"podName": "p"}), json!({"phase": "Failed"})));
        assert!(bind(json!({"podName": "p", "backoffLimit": 3}), json!({"phase": "Failed", "failedAttempts": 2})));
        assert!(!bind(json!({"podName": "p", "backoffLimit": 3}), json!({"phase": "Failed", "failedAttempts": 3})));
    }
}
