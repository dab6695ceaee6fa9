//! The scheduler beside other parts of Muster: with the binder, and as several shards in one process.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::roles::Kubelet;
use crate::scheduler::{Muster, await_bound, cluster, create, group, places};
use crate::support::{Shared, get, node};

/// Scheduler and binder together: sixteen halves in one burst fill eight cards.
pub(crate) fn a_burst_of_halves(shared: &Shared) -> Result<()> {
    let cluster = cluster(shared, 1)?;
    let kubelet = Kubelet::start(&cluster.kubeconfig(), 8)?;
    cluster.kubectl(["create", "namespace", "kai-resource-reservation"])?;
    cluster.kubectl(["create", "serviceaccount", "-n", "kai-resource-reservation", "kai-resource-reservation"])?;
    let muster = Muster::start(&cluster, "muster", &["--roles=scheduler,binder"])?;
    let mut objects = group("half", "default-queue", "", 16, 1, false);
    for pod in &mut objects[1..] {
        pod["metadata"]["annotations"]["gpu-fraction"] = json!("0.5");
        pod["metadata"]["annotations"]["runai/shared-gpu-configmap"] =
            json!(format!("{}-gpu", pod["metadata"]["name"].as_str().unwrap_or("p")));
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "1"}});
    }
    create(&cluster, objects)?;
    await_bound(&cluster, &muster, "half", 16)?;
    let pods = get(&cluster, &["pods", "-n", "default", "-l", "group=half"])?;
    let mut groups = std::collections::BTreeMap::new();
    for pod in pods["items"].as_array().context("a list")? {
        *groups.entry(pod["metadata"]["labels"]["runai-gpu-group"].as_str().unwrap_or_default().to_owned()).or_insert(0) += 1;
    }
    ensure!(groups.len() == 8 && groups.values().all(|pods| *pods == 2), "{groups:?}");
    ensure!(kubelet.wrong().is_empty(), "{:?}", kubelet.wrong());
    muster.stop()
}

/// Two shards in one process, each with its nodes and its queue.
pub(crate) fn two_shards(shared: &Shared) -> Result<()> {
    let cluster = cluster(shared, 1)?;
    let mut other = node("pool-0", 8);
    other["metadata"]["labels"]["kai.scheduler/node-pool"] = json!("a");
    let in_pool = |mut object: serde_json::Value| {
        object["metadata"]["labels"]["kai.scheduler/node-pool"] = json!("a");
        object
    };
    let free = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
    let queue = json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "pool"},
        "spec": {"resources": {"cpu": free, "memory": free, "gpu": free}}});
    let shard = |name: &str, pool: &str| {
        json!({"apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard", "metadata": {"name": name},
            "spec": {"partitionLabelValue": pool}})
    };
    create(&cluster, vec![other, in_pool(queue), shard("default", ""), shard("a", "a")])?;
    let muster = Muster::start(&cluster, "muster", &["--roles=scheduler"])?;
    let free = json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "open"},
        "spec": {"resources": {"cpu": free, "memory": free, "gpu": free}}});
    create(&cluster, vec![free])?;
    let mut there = group("there", "pool", "", 4, 2, true);
    there[0] = in_pool(there[0].clone());
    create(&cluster, there)?;
    create(&cluster, group("here", "open", "", 4, 2, true))?;
    await_bound(&cluster, &muster, "there", 4)?;
    await_bound(&cluster, &muster, "here", 4)?;
    ensure!(places(&cluster, "there")?.values().all(|node| node == "pool-0"), "{:?}", places(&cluster, "there")?);
    ensure!(places(&cluster, "here")?.values().all(|node| node == "gpu-0"), "{:?}", places(&cluster, "here")?);
    let pods = get(&cluster, &["pods", "-n", "default", "-l", "group=there"])?;
    for pod in pods["items"].as_array().context("a list")? {
        ensure!(pod["metadata"]["labels"]["kai.scheduler/node-pool"] == "a", "{pod}");
    }
    muster.stop()
}
