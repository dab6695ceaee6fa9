//! Tests of grouping: each kind, each rule, and that what is in order is left alone. No server.

use serde_json::json;

use super::*;

fn rules() -> Rules {
    Rules {
        scheduler_name: "kai-scheduler".to_owned(),
        queue_label_key: "kai.scheduler/queue".to_owned(),
        node_pool_label_key: "kai.scheduler/node-pool".to_owned(),
    }
}

fn pod(metadata: Value) -> Pod {
    let mut metadata = metadata;
    metadata["name"] = json!("web-x1");
    metadata["namespace"] = json!("team");
    metadata["uid"] = json!("u-pod");
    serde_json::from_value(json!({"metadata": metadata, "spec": {"schedulerName": "kai-scheduler", "containers": []}}))
        .expect("a pod")
}

fn owner(api_version: &str, kind: &str, metadata: Value) -> Owner {
    let mut metadata: ObjectMeta = serde_json::from_value(metadata).expect("metadata");
    metadata.name = Some(kind.to_lowercase());
    metadata.uid = Some(format!("u-{}", kind.to_lowercase()));
    Owner { api_version: api_version.to_owned(), kind: kind.to_owned(), metadata }
}

fn grouped(pod: &Pod, owners: &[Owner]) -> Grouping {
    group(pod, owners, &rules(), |class| ["train", "build", "gold"].contains(&class)).expect("a group")
}

fn spec(grouping: &Grouping) -> &PodGroupSpec {
    &grouping.group.spec
}

#[test]
fn each_kind_has_its_group() {
    let job = || owner("batch/v1", "Job", json!({"annotations": {"kai.scheduler/batch-min-member": "4"}}));
    let replicas = || owner("apps/v1", "ReplicaSet", json!({}));
    for (owners, name, owned_by, min_member, class) in [
        (vec![], "pg-web-x1-u-pod", "Pod", 1, "train"),
        (vec![job()], "pg-job-u-job", "Job", 4, "train"),
        (vec![job(), owner("batch/v1", "CronJob", json!({}))], "pg-job-u-job", "Job", 4, "train"),
        (vec![replicas(), owner("apps/v1", "Deployment", json!({}))], "pg-web-x1-u-pod", "Pod", 1, "inference"),
        (vec![replicas()], "pg-replicaset-u-replicaset", "ReplicaSet", 1, "train"),
        (vec![owner("apps/v1", "StatefulSet", json!({}))], "pg-statefulset-u-statefulset", "StatefulSet", 1, "train"),
        (vec![owner("example.org/v1", "Thing", json!({}))], "pg-thing-u-thing", "Thing", 1, "train"),
    ] {
        let grouping = grouped(&pod(json!({})), &owners);
        let metadata = &grouping.group.metadata;
        assert_eq!((metadata.name.as_deref(), metadata.namespace.as_deref()), (Some(name), Some("team")));
        let references = metadata.owner_references.as_ref().expect("an owner");
        assert_eq!((references.len(), references[0].kind.as_str(), references[0].controller), (1, owned_by, None), "{name}");
        let spec = spec(&grouping);
        assert_eq!((spec.min_member, spec.priority_class_name.as_deref()), (Some(min_member), Some(class)), "{name}");
        assert_eq!(spec.queue.as_deref(), Some("default-queue"));
        assert_eq!(spec.sub_groups.as_ref().map(Vec::len), Some(0));
        assert!(grouping.warnings.is_empty(), "{:?}", grouping.warnings);
    }
}

#[test]
fn the_queue_is_the_first_that_is_named() {
    let on_owner = |labels: Value| vec![owner("batch/v1", "Job", json!({"labels": labels}))];
    for (owner_labels, pod_labels, queue) in [
        (json!({"kai.scheduler/queue": "a"}), json!({"kai.scheduler/queue": "b"}), "a"),
        (json!({"project": "p"}), json!({"kai.scheduler/queue": "b"}), "b"),
        (json!({"project": "p"}), json!({"project": "q"}), "p"),
        (json!({}), json!({"project": "q", "kai.scheduler/node-pool": "blue"}), "q-blue"),
        (json!({"kai.scheduler/queue": ""}), json!({}), "default-queue"),
    ] {
        let grouping = grouped(&pod(json!({"labels": pod_labels})), &on_owner(owner_labels));
        assert_eq!(spec(&grouping).queue.as_deref(), Some(queue));
    }
}

#[test]
fn what_the_owner_says_is_handed_down() {
    let job = owner(
        "batch/v1",
        "Job",
        json!({"labels": {"app": "x", "kai.scheduler/preemptibility": "non-preemptible"}, "annotations": {
            "kai.scheduler/topology": "racks", "kai.scheduler/topology-required-placement": "rack",
            "kai.scheduler/preemption-delay": "-3s", "kai.scheduler/staleness-grace-period": "-1s",
            "kubectl.kubernetes.io/last-applied-configuration": "{}"}}),
    );
    let pod = pod(json!({"labels": {"user": "ann", "kai.scheduler/node-pool": "blue"},
        "annotations": {"kai.scheduler/preemption-delay": "2m"}}));
    let grouping = grouped(&pod, &[job]);
    let spec = spec(&grouping);
    assert_eq!(spec.preemptibility, Some(Preemptibility::NonPreemptible));
    assert_eq!(spec.preemption_delay.as_deref(), Some("2m"), "the job's is negative");
    assert_eq!(spec.staleness_grace_period.as_deref(), Some("-1s"));
    assert_eq!(spec.topology_constraint.as_ref().and_then(|c| c.required_topology_level.as_deref()), Some("rack"));
    let metadata = &grouping.group.metadata;
    for (key, value) in [("app", "x"), ("user", "ann"), ("kai.scheduler/node-pool", "blue")] {
        assert_eq!(label(metadata, key), Some(value));
    }
    assert_eq!(annotation(metadata, "kubectl.kubernetes.io/last-applied-configuration"), None);
    let top = annotation(metadata, TOP_OWNER).expect("the top owner");
    let top: Value = serde_saphyr::from_str(top).expect("YAML");
    assert_eq!(top, json!({"name": "job", "uid": "u-job", "group": "batch", "version": "v1", "kind": "Job"}));
    assert_eq!(grouping.warnings.len(), 1, "{:?}", grouping.warnings);
    assert!(grouping.warnings[0].contains(r#"preemption-delay "-3s""#));
}

#[test]
fn priority_classes_have_to_exist() {
    let labelled = |kind: &str, class: &str| owner("example.org/v1", kind, json!({"labels": {"priorityClassName": class}}));
    let with = |label: &str| pod(json!({"labels": {"priorityClassName": label}}));
    for (pod, owners, class, warnings) in [
        (with("gold"), vec![labelled("Inner", "build"), labelled("Outer", "train")], "build", 0),
        (with("gold"), vec![labelled("Inner", "none"), labelled("Outer", "build")], "gold", 1),
        (with("none"), vec![labelled("Inner", "none"), labelled("Outer", "build")], "build", 2),
        (with("none"), vec![], "train", 2),
    ] {
        let grouping = grouped(&pod, &owners);
        assert_eq!(spec(&grouping).priority_class_name.as_deref(), Some(class));
        assert_eq!(grouping.warnings.len(), warnings, "{:?}", grouping.warnings);
    }
}

#[test]
fn a_gang_size_that_is_no_number_is_an_error() {
    for text in ["many", "-1", "1.5", ""] {
        let job = owner("batch/v1", "Job", json!({"annotations": {"kai.scheduler/batch-min-member": text}}));
        let error = group(&pod(json!({})), &[job], &rules(), |_| true).expect_err("a bad size");
        assert!(error.starts_with("Job job: annotation kai.scheduler/batch-min-member"), "{error}");
    }
}

#[test]
fn whom_it_concerns() {
    let owned = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}]);
    let of_user = json!({"pod-group-name": "mine"});
    assert!(concerns(&pod(json!({})), &rules()));
    assert!(!concerns(&pod(json!({"annotations": of_user})), &rules()), "a user's own group");
    assert!(concerns(&pod(json!({"annotations": {"pod-group-name": "pg-web-x1-u-pod"}})), &rules()), "ours");
    assert!(concerns(&pod(json!({"annotations": of_user, "ownerReferences": owned})), &rules()));
    assert!(!concerns(&pod(json!({"annotations": {"kai.scheduler/skip-podgrouper": "true"}})), &rules()));
    assert!(concerns(&pod(json!({"annotations": {"kai.scheduler/skip-podgrouper": "yes"}})), &rules()));
    let mut other = pod(json!({}));
    other.spec.as_mut().expect("a spec").scheduler_name = Some("default-scheduler".to_owned());
    assert!(!concerns(&other, &rules()));
    let mut ended = pod(json!({}));
    ended.status = serde_json::from_value(json!({"phase": "Succeeded"})).expect("a status");
    assert!(!concerns(&ended, &rules()));
}

#[test]
fn the_owner_that_controls_is_followed() {
    let reference = |name: &str, controller: bool| {
        let controller = json!(controller);
        json!({"apiVersion": "v1", "kind": "K", "name": name, "uid": name, "controller": controller})
    };
    let metadata =
        |owners: Vec<Value>| -> ObjectMeta { serde_json::from_value(json!({"ownerReferences": owners})).expect("metadata") };
    let name = |owners| owner_of(&metadata(owners)).map(|owner| owner.name.clone());
    assert_eq!(name(vec![]), None);
    assert_eq!(name(vec![reference("a", false), reference("b", false)]).as_deref(), Some("a"));
    assert_eq!(name(vec![reference("a", false), reference("b", true)]).as_deref(), Some("b"));
}

#[test]
fn a_group_that_says_it_all_is_left_alone() {
    let job = owner("batch/v1", "Job", json!({"labels": {"app": "x"}}));
    let wanted = grouped(&pod(json!({})), &[job]).group;
    let mut live = wanted.clone();
    live.metadata.resource_version = Some("7".to_owned());
    assert_eq!(update(&live, &wanted, &rules()), None);
    // As a server gives it back, or an operator changed it.
    live.spec.sub_groups = None;
    live.spec.queue = Some("moved".to_owned());
    live.spec.mark_unschedulable = Some(false);
    live.spec.scheduling_backoff = Some(1);
    live.spec.topology_constraint = Some(TopologyConstraint { topology: Some("racks".to_owned()), ..Default::default() });
    let more = [("kai.scheduler/last-start-timestamp".to_owned(), "now".to_owned())];
    live.metadata.annotations.as_mut().expect("annotations").extend(more);
    assert_eq!(update(&live, &wanted, &rules()), None);
}

#[test]
fn a_group_that_says_something_else_is_changed_there() {
    let job = owner("batch/v1", "Job", json!({"labels": {"app": "x", "kai.scheduler/queue": "a"}}));
    let wanted = grouped(&pod(json!({"labels": {"kai.scheduler/node-pool": "blue"}})), &[job]).group;
    let mut live = wanted.clone();
    live.metadata.resource_version = Some("7".to_owned());
    live.metadata.labels = serde_json::from_value(json!({"app": "y", "kai.scheduler/queue": "b"})).expect("labels");
    live.metadata.owner_references = None;
    live.spec.min_member = Some(3);
    live.spec.preemption_delay = Some("1s".to_owned());
    let patch = update(&live, &wanted, &rules()).expect("changes");
    let owners = json!(wanted.metadata.owner_references);
    let expected = json!({
        "metadata": {"labels": {"app": "x"}, "ownerReferences": owners, "resourceVersion": "7"},
        "spec": {"minMember": 1, "preemptionDelay": null},
    });
    assert_eq!(patch, expected);
}

#[test]
fn a_pod_is_told_its_group_once() {
    let bare = pod(json!({}));
    let grouping = grouped(&bare, &[]);
    let patch = membership(&bare, &grouping).expect("a patch");
    assert_eq!(patch, json!({"metadata": {"annotations": {"pod-group-name": "pg-web-x1-u-pod"}, "uid": "u-pod"}}));
    let told = pod(json!({"annotations": {"pod-group-name": "pg-web-x1-u-pod"}}));
    let again = grouped(&told, &[]);
    assert_eq!(membership(&told, &again), None);
    assert_eq!(again.group, grouping.group, "what grouping writes on a pod does not change its group");
}
