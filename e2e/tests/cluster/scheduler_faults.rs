//! The scheduler among failures: writes that get lost, answers that get lost, processes that are killed or frozen. In the end
//! everything that fits runs, no node is over-committed, no gang is left in part.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use muster_e2e::cluster::{Cluster, wait};
use muster_e2e::proxy::Faults;
use serde_json::json;

use crate::roles::Kubelet;
use crate::scheduler::{Muster, PATIENCE, await_bound, cluster, create, group, places};
use crate::support::{Shared, get, node};

/// GPUs that bound pods hold, by node, at most 8 each.
fn no_node_is_over_committed(cluster: &Cluster) -> Result<()> {
    let pods = get(cluster, &["pods", "-A"])?;
    let mut held = std::collections::BTreeMap::new();
    for pod in pods["items"].as_array().context("a list")? {
        let gpus = pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"].as_str().unwrap_or("0");
        if let Some(node) = pod["spec"]["nodeName"].as_str() {
            *held.entry(node.to_owned()).or_insert(0) += gpus.parse::<u32>()?;
        }
    }
    ensure!(held.values().all(|gpus| *gpus <= 8), "{held:?}");
    Ok(())
}

/// A tenth of the writes is lost, or their answers are, or these come too late; and the scheduler is killed in between.
pub(crate) fn lost_writes_and_kills(shared: &Shared) -> Result<()> {
    let cluster = cluster(shared, 6)?;
    let (proxy, through) = cluster.proxy(7)?;
    let mut muster = Muster::start_through(&cluster, &through, "muster", &["--roles=scheduler"])?;
    proxy.set(Faults {
        lost_writes_percent: 4,
        lost_answers_percent: 4,
        late_answers_percent: 2,
        late_by: Duration::from_secs(6),
        ..Faults::default()
    });
    for round in 0..4 {
        create(&cluster, group(&format!("gang-{round}"), "default-queue", "", 8, 1, true))?;
        std::thread::sleep(Duration::from_millis(50 + 90 * round));
        muster.process.kill()?;
        let name = format!("muster-{round}");
        muster = Muster::start_through(&cluster, &through, &name, &["--roles=scheduler"])?;
    }
    for round in 0..4 {
        await_bound(&cluster, &muster, &format!("gang-{round}"), 8)?;
    }
    no_node_is_over_committed(&cluster)?;
    let counts = proxy.counts();
    ensure!(counts.faults > 0, "nothing went wrong: {counts:?}");
    muster.stop()
}

/// Two processes, one leads. Frozen for longer than its lease, it has lost it when it wakes, and does no harm.
pub(crate) fn a_frozen_leader(shared: &Shared) -> Result<()> {
    let cluster = cluster(shared, 2)?;
    let flags = ["--roles=scheduler", "--leader-elect", "--namespace=default"];
    let first = Muster::start(&cluster, "first", &flags)?;
    create(&cluster, group("before", "default-queue", "", 2, 1, true))?;
    await_bound(&cluster, &first, "before", 2)?;
    let second = Muster::start(&cluster, "second", &flags)?;
    let holder = || -> Result<String> {
        let lease = get(&cluster, &["lease", "kai-scheduler", "-n", "default"])?;
        Ok(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
    };
    let was = holder()?;
    first.process.freeze()?;
    create(&cluster, group("during", "default-queue", "", 4, 1, true))?;
    await_bound(&cluster, &second, "during", 4)?;
    ensure!(holder()? != was, "the lease has changed hands");
    first.process.thaw()?;
    create(&cluster, group("after", "default-queue", "", 4, 1, true))?;
    await_bound(&cluster, &second, "after", 4)?;
    wait("the first to notice", PATIENCE, || Ok(first.said().contains("leads no longer")))?;
    ensure!((first.metric("kai_binds_total")? - 2.0).abs() < 0.5, "only the leader binds\n{}", first.said());
    no_node_is_over_committed(&cluster)?;
    // The second goes in good order, and the first takes over at once.
    second.stop()?;
    create(&cluster, group("later", "default-queue", "", 2, 1, true))?;
    await_bound(&cluster, &first, "later", 2)?;
    first.stop()
}

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
