//! The status of PodGroups and Queues on a real API server: what pods hold and ask for is added up to the top, and written only
//! where it differs.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use muster_api::live::Watched;
use muster_controller::queue_status::serve;
use muster_controller::run::Options;
use muster_controller::watch::resource_of;
use serde_json::{Value, json};

use crate::roles::{Killable, admin, create, namespaces, pod, runtime, until};
use crate::support::{Shared, list, node};

const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "sums";

async fn status(client: &Client, kind: Watched, name: &str) -> Result<Value> {
    let (resource, client) = (resource_of(kind), client.clone());
    let api: Api<DynamicObject> = match kind {
        Watched::PodGroup => Api::namespaced_with(client, NAMESPACE, &resource),
        _ => Api::all_with(client, &resource),
    };
    Ok(api.get(name).await?.data["status"].clone())
}

/// Waits until GPUs requested, allocated, and allocated for good are these.
async fn gpus(client: &Client, kind: Watched, name: &str, expected: [&str; 3]) -> Result<()> {
    until(PATIENCE, async || {
        let status = status(client, kind, name).await?;
        let status = if kind == Watched::PodGroup { &status["resourcesStatus"] } else { &status };
        let found = ["requested", "allocated", "allocatedNonPreemptible"]
            .map(|field| status[field]["nvidia.com/gpu"].as_str().unwrap_or("-").to_owned());
        Ok((found != expected).then(|| format!("{name}: {found:?}, expected {expected:?}: {status}")))
    })
    .await
}

/// Two leaves below one queue: groups that run, wait and end; one turns non-preemptible; one moves to the other queue.
pub(crate) fn sums_reach_the_top(shared: &Shared) -> Result<()> {
    let cluster = shared.with_crds()?;
    namespaces(cluster, NAMESPACE)?;
    cluster.kubectl_with(&["create", "-f", "-"], &list(vec![node("sums-0", 8)]))?;
    let role = |groups: bool| {
        Killable::start(&cluster.kubeconfig(), &Options::default(), move |client, lead, stop, options| async move {
            serve(client, lead, stop, &options, groups).await
        })
    };
    let roles = (role(true)?, role(false)?);
    let writes = || cluster.api_metric("apiserver_request_total", &[r#"subresource="status",verb="PATCH",version="v2""#]);
    let runtime = runtime()?;
    let client = runtime.block_on(async {
        let client = admin(cluster).await?;
        for (name, parent) in [("sums-top", ""), ("sums-left", "sums-top"), ("sums-right", "sums-top")] {
            let queue = json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name},
                "spec": {"parentQueue": parent}});
            cluster.kubectl_with(&["create", "-f", "-"], &queue.to_string())?;
        }
        for (name, queue) in [("one", "sums-left"), ("two", "sums-right")] {
            create(
                &client,
                json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
                "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"queue": queue, "minMember": 1}}),
            )
            .await?;
        }
        for (name, group, on) in
            [("a", "one", Some("sums-0")), ("b", "one", Some("sums-0")), ("c", "one", None), ("d", "two", Some("sums-0"))]
        {
            let mut pod = pod(NAMESPACE, name);
            pod["metadata"]["annotations"] = json!({"pod-group-name": group});
            if let Some(node) = on {
                pod["spec"]["nodeName"] = json!(node);
            }
            create(&client, pod).await?;
        }
        gpus(&client, Watched::PodGroup, "one", ["3", "2", "-"]).await?;
        gpus(&client, Watched::Queue, "sums-left", ["3", "2", "-"]).await?;
        gpus(&client, Watched::Queue, "sums-top", ["4", "3", "-"]).await?;
        ensure!(
            status(&client, Watched::Queue, "sums-top").await?["childQueues"] == json!(["sums-left", "sums-right"]),
            "children"
        );
        let groups: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource_of(Watched::PodGroup));
        let change = async |spec: Value| groups.patch("one", &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await;
        change(json!({"preemptibility": "non-preemptible"})).await?;
        gpus(&client, Watched::Queue, "sums-top", ["4", "3", "2"]).await?;
        change(json!({"preemptibility": "preemptible", "queue": "sums-right"})).await?;
        gpus(&client, Watched::Queue, "sums-right", ["4", "3", "-"]).await?;
        gpus(&client, Watched::Queue, "sums-left", ["-", "-", "-"]).await?;
        gpus(&client, Watched::Queue, "sums-top", ["4", "3", "-"]).await?;
        anyhow::Ok(client)
    })?;
    let before = writes()?;
    ensure!(before > 3.0, "the server counts {before} writes of statuses");
    // New ones find everything in order; then a pod ends.
    drop(roles);
    let _roles = (role(true)?, role(false)?);
    runtime.block_on(async {
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        pods.delete("d", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
        gpus(&client, Watched::Queue, "sums-right", ["3", "2", "-"]).await?;
        gpus(&client, Watched::Queue, "sums-top", ["3", "2", "-"]).await
    })?;
    let wrote = writes()? - before;
    ensure!(wrote <= 2.5, "{wrote} writes for one pod that ended: its queue and the one above");
    cluster.kubectl(["delete", "queue", "sums-left", "sums-right", "sums-top"])?;
    cluster.kubectl(["delete", "namespace", NAMESPACE, "--wait=false"]).map(drop)
}
