//! The grouping role on a real API server: workloads as users write them are grouped, and told what is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, Client};
use muster_controller::grouping::serve;
use muster_controller::run::Options;
use muster_e2e::cluster::Cluster;
use serde_json::{Value, json};

use crate::roles::{Killable, admin, api, create, namespaces, pod, pod_spec, runtime, until};
use crate::support::Shared;

const PATIENCE: Duration = Duration::from_secs(60);

fn grouper(cluster: &Cluster) -> Result<Killable> {
    Killable::start(&cluster.kubeconfig(), &Options::default(), move |client, lead, stop, options| async move {
        serve(client, lead, stop, &options).await
    })
}

fn groups(client: &Client, namespace: &str) -> Api<DynamicObject> {
    api(client, namespace, "scheduling.run.ai/v2alpha2", "PodGroup")
}

/// Names of groups by pod; empty where there is none.
async fn membership(client: &Client, namespace: &str, selector: &str) -> Result<BTreeMap<String, String>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&ListParams::default().labels(selector)).await?.items.into_iter();
    let named = |pod: &Pod| Some(pod.metadata.annotations.as_ref()?.get("pod-group-name")?.clone());
    Ok(pods.map(|pod| (pod.metadata.name.clone().unwrap_or_default(), named(&pod).unwrap_or_default())).collect())
}

/// Waits until `count` pods are grouped; the groups.
async fn grouped(client: &Client, namespace: &str, selector: &str, count: usize) -> Result<BTreeSet<String>> {
    until(PATIENCE, async || {
        let named = membership(client, namespace, selector).await?;
        let done = named.len() == count && named.values().all(|group| !group.is_empty());
        Ok((!done).then(|| format!("{selector}: {named:?}")))
    })
    .await?;
    Ok(membership(client, namespace, selector).await?.into_values().collect())
}

fn writes(cluster: &Cluster) -> Result<[f64; 2]> {
    let count = |resource: &str, verb: &str| cluster.api_metric("apiserver_request_total", &[resource, verb]);
    let groups = [r#"verb="POST""#, r#"verb="PATCH""#, r#"verb="PUT""#].map(|verb| count(r#"resource="podgroups""#, verb));
    let sum = groups.into_iter().sum::<Result<f64>>()?;
    Ok([
        sum,
        cluster.api_metric("apiserver_request_total", &[r#"resource="pods",scope="resource",subresource="",verb="PATCH""#])?,
    ])
}

/// A newcomer's Job: eight pods with a GPU each, no label at all. One group, one write on each pod, in the default queue.
pub(crate) fn a_plain_job_is_grouped(shared: &Shared) -> Result<()> {
    const NAMESPACE: &str = "newcomer";
    let cluster = shared.with_crds()?;
    namespaces(cluster, NAMESPACE)?;
    let role = grouper(cluster)?;
    let runtime = runtime()?;
    let before = writes(cluster)?;
    let (client, group) = runtime.block_on(async {
        let client = admin(cluster).await?;
        let template = json!({"metadata": {"labels": {"work": "plain"}}, "spec": pod_spec()});
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "plain", "namespace": NAMESPACE},
            "spec": {"completions": 8, "parallelism": 8, "template": template}});
        let job = create(&client, job).await?;
        let uid = job.metadata.uid.context("a uid")?;
        let all = grouped(&client, NAMESPACE, "work=plain", 8).await?;
        let group = format!("pg-plain-{uid}");
        ensure!(all == BTreeSet::from([group.clone()]), "{all:?}");
        let found = groups(&client, NAMESPACE).list(&ListParams::default()).await?.items;
        ensure!(found.len() == 1, "{} groups", found.len());
        let spec = &found[0].data["spec"];
        let said = json!([spec["queue"], spec["minMember"], spec["priorityClassName"]]);
        ensure!(said == json!(["default-queue", 1, "train"]), "{spec}");
        let owner = &found[0].metadata.owner_references.as_ref().context("an owner")?[0];
        ensure!((owner.kind.as_str(), &owner.uid) == ("Job", &uid) && owner.controller.is_none(), "{owner:?}");
        anyhow::Ok((client, group))
    })?;
    let after = writes(cluster)?;
    ensure!(after[0] - before[0] <= 1.5, "writes on PodGroups: {}", after[0] - before[0]);
    ensure!((after[1] - before[1] - 8.0).abs() < 0.5, "writes on pods: {}", after[1] - before[1]);
    // A new one finds everything in order.
    drop(role);
    let _role = grouper(cluster)?;
    runtime.block_on(async {
        // Proof that it has worked: a pod that comes now is grouped, after all that it has listed.
        let mut bare = pod(NAMESPACE, "bare");
        bare["metadata"]["labels"] = json!({"work": "bare", "kai.scheduler/queue": "team"});
        let bare = create(&client, bare).await?;
        let all = grouped(&client, NAMESPACE, "work=bare", 1).await?;
        ensure!(all == BTreeSet::from([format!("pg-bare-{}", bare.metadata.uid.unwrap_or_default())]), "{all:?}");
        // Whoever deletes a group gets it back, for the pods are there still.
        let first = groups(&client, NAMESPACE).get(&group).await?;
        groups(&client, NAMESPACE).delete(&group, &DeleteParams::default()).await?;
        until(PATIENCE, async || {
            let again = groups(&client, NAMESPACE).get_opt(&group).await?;
            let again = again.is_some_and(|again| again.metadata.uid != first.metadata.uid);
            Ok((!again).then(|| "the group was not made anew".to_owned()))
        })
        .await
    })?;
    let last = writes(cluster)?;
    ensure!((last[1] - after[1] - 1.0).abs() < 0.5, "writes on pods after a restart: {}", last[1] - after[1]);
    cluster.kubectl(["delete", "namespace", NAMESPACE, "--wait=false"])?;
    Ok(())
}

/// Deployments pod by pod, StatefulSets as one, groups of others left alone; and what cannot be understood is said on the pod.
pub(crate) fn each_kind_says_what_is_wrong(shared: &Shared) -> Result<()> {
    const NAMESPACE: &str = "kinds";
    let cluster = shared.with_crds()?;
    namespaces(cluster, NAMESPACE)?;
    let _role = grouper(cluster)?;
    runtime()?.block_on(async {
        let client = admin(cluster).await?;
        let workload = |api_version: &str, kind: &str, name: &str, replicas: u32, metadata: Value| {
            let labels = json!({"work": name});
            let mut spec = json!({"replicas": replicas, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod_spec()}});
            spec["template"]["spec"]["restartPolicy"] = json!("Always");
            if kind == "StatefulSet" {
                spec["podManagementPolicy"] = json!("Parallel");
                spec["serviceName"] = json!(name);
            }
            let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec});
            object["metadata"]["name"] = json!(name);
            object["metadata"]["namespace"] = json!(NAMESPACE);
            object
        };
        let queue = json!({"labels": {"kai.scheduler/queue": "team"}});
        create(&client, workload("apps/v1", "Deployment", "web", 3, queue.clone())).await?;
        create(&client, workload("apps/v1", "StatefulSet", "db", 2, queue)).await?;
        let web = grouped(&client, NAMESPACE, "work=web", 3).await?;
        ensure!(web.len() == 3, "one for each replica: {web:?}");
        let db = grouped(&client, NAMESPACE, "work=db", 2).await?;
        ensure!(db.len() == 1, "one for all replicas: {db:?}");
        for (name, owner, class) in [(web.first(), "Pod", "inference"), (db.first(), "StatefulSet", "train")] {
            let group = groups(&client, NAMESPACE).get(name.context("a group")?).await?;
            let owners = group.metadata.owner_references.context("an owner")?;
            let said = json!([owners[0].kind, group.data["spec"]["queue"], group.data["spec"]["priorityClassName"]]);
            ensure!(said == json!([owner, "team", class]), "{said}");
        }
        let mut external = pod(NAMESPACE, "external");
        external["metadata"]["annotations"] = json!({"pod-group-name": "by-hand"});
        let mut foreign = pod(NAMESPACE, "foreign");
        foreign["spec"]["schedulerName"] = json!("default-scheduler");
        let mut skipped = pod(NAMESPACE, "skipped");
        skipped["metadata"]["annotations"] = json!({"kai.scheduler/skip-podgrouper": "true"});
        for object in [external, foreign, skipped] {
            create(&client, object).await?;
        }
        let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {
            "template": {"metadata": {"labels": {"work": "bad"}}, "spec": pod_spec()}}});
        job["metadata"] = json!({"name": "bad", "namespace": NAMESPACE, "labels": {"priorityClassName": "no-such-class"},
            "annotations": {"kai.scheduler/batch-min-member": "all"}});
        create(&client, job).await?;
        said(&client, NAMESPACE, "batch-min-member").await?;
        let mended = json!({"metadata": {"annotations": {"kai.scheduler/batch-min-member": "1"}}});
        let jobs = api(&client, NAMESPACE, "batch/v1", "Job");
        jobs.patch("bad", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(mended)).await?;
        grouped(&client, NAMESPACE, "work=bad", 1).await?;
        said(&client, NAMESPACE, "no-such-class").await?;
        for (name, group) in membership(&client, NAMESPACE, "!work").await? {
            let expected = if name == "external" { "by-hand" } else { "" };
            ensure!(group == expected, "{name} is none of ours: {group}");
        }
        ensure!(groups(&client, NAMESPACE).list(&ListParams::default()).await?.items.len() == 5, "and no group for them");
        anyhow::Ok(())
    })?;
    cluster.kubectl(["delete", "namespace", NAMESPACE, "--wait=false"])?;
    Ok(())
}

async fn said(client: &Client, namespace: &str, what: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    until(PATIENCE, async || {
        let events = events.list(&ListParams::default()).await?.items;
        let ours = events.iter().filter(|event| event.reason.as_deref() == Some("PodGrouperWarning"));
        let messages: Vec<_> = ours.filter_map(|event| event.message.clone()).collect();
        Ok((!messages.iter().any(|message| message.contains(what))).then(|| format!("not said: {what}; but {messages:?}")))
    })
    .await
}
