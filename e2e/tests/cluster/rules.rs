//! Rules that no other test here shows on a real API server: elastic groups, requests in MiB, and whose pods are left alone.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use muster_e2e::cluster::{Cluster, Options, wait};
use muster_e2e::http::Endpoint;
use serde_json::json;

use crate::roles::Kubelet;
use crate::scheduler::{Muster, PATIENCE, await_bound, create, group, let_pass, places, two_queues};
use crate::support::{Shared, apply_crds, get, node};

/// A group with a minimum below its size starts once the minimum fits, not before; takes what comes free; and gives what is
/// above the minimum pod by pod, the minimum only as a whole.
pub(crate) fn elastic_groups_grow_and_shrink(shared: &Shared) -> Result<()> {
    let (cluster, muster) = two_queues(shared, 1)?;
    foreign_pods_hold(&cluster)?;
    let elastic = |name: &str, queue: &str, class: &str, pods: usize, min: usize| {
        let mut objects = group(name, queue, class, pods, 1, false);
        objects[0]["spec"]["minMember"] = json!(min);
        objects
    };
    // Others hold 3 of 8 GPUs.
    create(&cluster, elastic("all-or-none", "a", "low", 8, 6))?;
    create(&cluster, elastic("grows", "a", "low", 8, 3))?;
    await_bound(&cluster, &muster, "grows", 5)?;
    let_pass(&cluster, &muster, 3)?;
    ensure!(places(&cluster, "all-or-none")?.is_empty(), "less than its minimum started");
    create(&cluster, vec![node("gpu-1", 2)])?;
    await_bound(&cluster, &muster, "grows", 7)?;
    // b asks for 2 of its own 4, for which a shrinks by two pods; then for 2 more.
    create(&cluster, group("b-first", "b", "low", 2, 1, true))?;
    await_bound(&cluster, &muster, "b-first", 2)?;
    wait("a to shrink", PATIENCE, || Ok(places(&cluster, "grows")?.len() == 5)).with_context(|| muster.said())?;
    // A higher priority in a takes what is above the minimum, two pods of five, and no more than it needs.
    create(&cluster, group("a-high", "a", "high", 2, 1, true))?;
    await_bound(&cluster, &muster, "a-high", 2)?;
    wait("a to shrink to the minimum", PATIENCE, || Ok(places(&cluster, "grows")?.len() == 3)).with_context(|| muster.said())?;
    // One more takes the minimum, all of it.
    create(&cluster, group("a-higher", "a", "high", 1, 1, true))?;
    await_bound(&cluster, &muster, "a-higher", 1)?;
    wait("the minimum to go as a whole", PATIENCE, || Ok(places(&cluster, "grows")?.is_empty()))
        .with_context(|| muster.said())?;
    let taken = muster.evictions()?;
    let by = |action: &str| taken.iter().filter(|record| record["action"] == action).count();
    ensure!((by("reclaim"), by("preempt")) == (2, 5), "{taken:?}");
    ensure!(taken.iter().all(|record| record["podGroup"]["name"] == "grows"), "{taken:?}");
    foreign_pods_are_untouched(&cluster)?;
    muster.stop()
}

/// Pods of another scheduler that run, one of them in a pod group of ours with the lowest priority there is.
fn foreign_pods_hold(cluster: &Cluster) -> Result<()> {
    let mut objects = group("foreign", "a", "low", 3, 1, false);
    for pod in &mut objects[1..] {
        pod["spec"]["schedulerName"] = json!("default-scheduler");
        pod["spec"]["nodeName"] = json!("gpu-0");
    }
    objects[3]["metadata"]["annotations"] = json!({});
    create(cluster, objects)?;
    wait("pods of others to run", PATIENCE, || Ok(foreign(cluster)?.values().all(|state| state.0 == "Running")))
}

/// Phase, and how many annotations of ours, by name.
fn foreign(cluster: &Cluster) -> Result<BTreeMap<String, (String, usize)>> {
    let pods = get(cluster, &["pods", "-n", "default", "-l", "group=foreign"])?;
    let state = |pod: &serde_json::Value| {
        let ours = pod["metadata"]["annotations"].as_object().map_or(0, serde_json::Map::len);
        let phase = pod["status"]["phase"].as_str().unwrap_or_default().to_owned();
        (pod["metadata"]["name"].to_string(), (phase, ours))
    };
    Ok(pods["items"].as_array().context("a list")?.iter().map(state).collect())
}

fn foreign_pods_are_untouched(cluster: &Cluster) -> Result<()> {
    let found = foreign(cluster)?;
    ensure!(found.len() == 3 && found.values().all(|(phase, ours)| phase == "Running" && *ours <= 1), "{found:?}");
    Ok(())
}

/// Requests in MiB share cards as long as their memory lasts; who finds none is told what is short.
pub(crate) fn memory_requests_share_cards(shared: &Shared) -> Result<()> {
    const RESERVATIONS: &str = "kai-resource-reservation";
    let cluster = Cluster::start(shared.tools()?, Options::default())?;
    apply_crds(&cluster)?;
    // Two cards of 80 GiB.
    create(&cluster, vec![node("gpu-0", 2)])?;
    let kubelet = Kubelet::start(&cluster.kubeconfig(), 2)?;
    cluster.kubectl(["create", "namespace", RESERVATIONS])?;
    cluster.kubectl(["create", "serviceaccount", "-n", RESERVATIONS, RESERVATIONS])?;
    let muster = Muster::start(&cluster, "muster", &["--roles=scheduler,binder"])?;
    let in_mib = |name: &str, pods: usize, mib: u32| {
        let mut objects = group(name, "default-queue", "", pods, 1, false);
        for pod in &mut objects[1..] {
            pod["metadata"]["annotations"]["gpu-memory"] = json!(mib.to_string());
            let map = format!("{}-gpu", pod["metadata"]["name"].as_str().unwrap_or("p"));
            pod["metadata"]["annotations"]["runai/shared-gpu-configmap"] = json!(map);
            pod["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "1"}});
        }
        objects
    };
    // 3 × 30,000 MiB on two cards of 81,920, then 25,000 on the fuller one's rest or the other's.
    create(&cluster, in_mib("thirty", 4, 30_000))?;
    await_bound(&cluster, &muster, "thirty", 4)?;
    create(&cluster, in_mib("rest", 2, 21_000))?;
    await_bound(&cluster, &muster, "rest", 2)?;
    let mut held: BTreeMap<String, u32> = BTreeMap::new();
    for (name, mib) in [("thirty", 30_000), ("rest", 21_000)] {
        let pods = get(&cluster, &["pods", "-n", "default", "-l", &format!("group={name}")])?;
        for pod in pods["items"].as_array().context("a list")? {
            let group = pod["metadata"]["labels"]["runai-gpu-group"].as_str().context("a GPU group")?;
            *held.entry(group.to_owned()).or_default() += mib;
            let portion = pod["metadata"]["annotations"]["received-resource-type"].as_str();
            ensure!(portion == Some("Fraction"), "{pod}");
        }
    }
    ensure!(held.len() == 2 && held.values().all(|mib| *mib == 81_000), "{held:?}");
    create(&cluster, in_mib("none", 1, 1_000))?;
    let explained = || -> Result<String> { Ok(Endpoint::plain(muster.inspect).get("/explain?podgroup=default/none")?.body) };
    wait("the last one to be told", PATIENCE, || Ok(explained()?.contains("\"code\": \"no-node\"")))
        .with_context(|| explained().unwrap_or_default())?;
    ensure!(places(&cluster, "none")?.is_empty() && kubelet.wrong().is_empty(), "{:?}", kubelet.wrong());
    // Whoever goes makes room for it.
    cluster.kubectl(["delete", "pod", "rest-0", "--wait=true"])?;
    await_bound(&cluster, &muster, "none", 1)?;
    muster.stop()
}
