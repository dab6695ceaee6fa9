//! How fast, and at what cost, on a cluster of some size. What must hold is asserted (all bound, nothing over-committed);
//! times and bytes are figures, for `cargo xtask live-bench` and docs/perf/README.md, "Live".

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use muster_e2e::cluster::{Cluster, Options, wait};
use muster_e2e::process::Process;
use serde_json::{Value, json};

use crate::scale_load::{Figures, Load, Usage, check_places, setting};
use crate::scheduler::Muster;
use crate::support::{Shared, apply_crds, node};
use crate::writes::Writes;

/// Pods of one Job, or of one pod group.
const TOGETHER: usize = 100;
const GPUS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(900);

/// A cluster with our kinds and this many ready nodes.
fn cluster(shared: &Shared, nodes: usize) -> Result<(Cluster, Load)> {
    let mut cluster = Cluster::start(shared.tools()?, Options { kwok: false, ..Options::default() })?;
    cluster.start_kwok_with_lasting_jobs()?;
    apply_crds(&cluster)?;
    let load = Load::on(&cluster)?;
    load.create("nodes", (0..nodes).map(|i| node(&format!("gpu-{i}"), 8)).collect())?;
    let ready = r#"jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#;
    wait("nodes to be ready", PATIENCE, || {
        Ok(cluster.kubectl(["get", "nodes", "-o", ready])?.split_whitespace().filter(|status| *status == "True").count() == nodes)
    })?;
    Ok((cluster, load))
}

fn everything<'a>(cluster: &'a Cluster, muster: &'a Muster) -> impl Iterator<Item = &'a Process> {
    std::iter::once(&muster.process).chain(cluster.processes())
}

fn pod_spec(gpus: usize) -> Value {
    let mut limits = json!({"cpu": "1", "memory": "1Gi"});
    if gpus > 0 {
        limits["nvidia.com/gpu"] = json!(gpus.to_string());
    }
    json!({"schedulerName": "kai-scheduler", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "none", "resources": {"limits": limits}}]})
}

fn job(name: &str, pods: usize) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"},
        "spec": {"parallelism": pods, "completions": pods, "template": {
            "metadata": {"labels": {"kai.scheduler/queue": "default-queue"}},
            "spec": pod_spec(1)}}})
}

/// A pod for the default queue; in a pod group, if one is named.
pub(crate) fn pod(name: &str, group: Option<&str>, gpus: usize) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"kai.scheduler/queue": "default-queue"}},
        "spec": pod_spec(gpus)});
    if let Some(group) = group {
        pod["metadata"]["annotations"] = json!({"pod-group-name": group});
    }
    pod
}

fn pod_group(name: &str) -> Value {
    json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"minMember": 1, "queue": "default-queue"}})
}

/// Waits for `pods` binds; when the first was seen, and the last.
fn await_binds(muster: &Muster, pods: usize) -> Result<(Instant, Instant)> {
    let (mut first, mut last) = (None, Instant::now());
    let (mut said, all) = (Instant::now(), f64::from(u32::try_from(pods)?));
    wait(&format!("{pods} pods to be bound"), PATIENCE, || {
        let bound = muster.metric("kai_binds_total")?;
        last = Instant::now();
        if bound > 0.0 {
            first = first.or(Some(last));
        }
        if said.elapsed() > Duration::from_secs(5) {
            said = last;
            eprintln!("e2e: {bound} of {pods} bound …");
        }
        Ok(bound >= all)
    })
    .with_context(|| muster.said())?;
    Ok((first.unwrap_or(last), last))
}

fn add_times(figures: &mut Figures, muster: &Muster) -> Result<()> {
    let metrics = muster.metrics()?;
    figures.add_histogram("decide: cycle", &metrics, "kai_cycle_duration_seconds");
    figures.add_histogram("bind: decision to answer", &metrics, "kai_bind_duration_seconds");
    figures.add("binds that failed", muster.metric("kai_bind_failures_total")?, "");
    figures.add("memory (VmHWM)", mebibytes(muster.process.memory("VmHWM")?), "MiB");
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "shown")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[expect(clippy::cast_precision_loss, reason = "shown")]
fn per_second(pods: usize, time: Duration) -> f64 {
    pods as f64 / time.as_secs_f64()
}

/// Pods come while everything runs, in Jobs that the controller manager makes pods of.
pub(crate) fn jobs_while_running(shared: &Shared) -> Result<()> {
    let pods = setting("MUSTER_E2E_PODS", 4000)?;
    let jobs = (0..pods.div_ceil(TOGETHER)).map(|i| job(&format!("job-{i}"), TOGETHER.min(pods - i * TOGETHER)));
    while_running(shared, Figures::of("submitted while running: Jobs of 100"), jobs.collect(), pods)
}

/// Pods come while everything runs, each by itself, so that each gets a pod group of its own.
pub(crate) fn pods_while_running(shared: &Shared) -> Result<()> {
    let pods = setting("MUSTER_E2E_PODS", 4000)?;
    let objects = (0..pods).map(|i| pod(&format!("pod-{i}"), None, 1)).collect();
    while_running(shared, Figures::of("submitted while running: plain pods"), objects, pods)
}

fn while_running(shared: &Shared, mut figures: Figures, objects: Vec<Value>, pods: usize) -> Result<()> {
    let (cluster, load) = cluster(shared, setting("MUSTER_E2E_NODES", 500)?)?;
    let muster = Muster::start(&cluster, "muster", &[])?;
    let written = Writes::until_now(&cluster)?;
    let (began, before) = (Instant::now(), Usage::now(everything(&cluster, &muster))?);
    load.create("submitting", objects)?;
    let submitted = began.elapsed();
    let (_, last) = await_binds(&muster, pods)?;
    let after = Usage::now(everything(&cluster, &muster))?;
    figures.add("pods per second", per_second(pods, last - began), "/s");
    figures.add("submitted after", submitted.as_secs_f64(), "s");
    figures.add("all bound after", (last - began).as_secs_f64(), "s");
    figures.add_processors(&before, &after);
    add_times(&mut figures, &muster)?;
    for (of, count) in Writes::until_now(&cluster)?.since(&written) {
        figures.add(format!("writes: {of}"), f64::from(u32::try_from(count)?), "");
    }
    let placed = load.pods()?;
    ensure!(placed.len() == pods, "{} pods", placed.len());
    check_places(&placed, GPUS)?;
    figures.tell()?;
    muster.stop()
}

/// Pods are there already, and nobody else works: how fast they are bound; and how fast the same server answers to whoever
/// decides nothing.
pub(crate) fn all_at_once(shared: &Shared) -> Result<()> {
    let pods = setting("MUSTER_E2E_PODS", 4000)?;
    let nodes = setting("MUSTER_E2E_NODES", 500)?;
    let mut figures = Figures::of("pods exist already, kwok stopped");
    let (mut cluster, load) = cluster(shared, nodes)?;
    // It makes the default queue.
    Muster::start(&cluster, "first", &["--roles=scheduler"])?.stop()?;
    let group = |i: usize| format!("group-{}", i / TOGETHER);
    load.create("pod groups", (0..pods.div_ceil(TOGETHER)).map(|i| pod_group(&group(i * TOGETHER))).collect())?;
    load.create("pods", (0..pods).map(|i| pod(&format!("pod-{i}"), Some(&group(i)), 1)).collect())?;
    cluster.stop_kwok()?;
    let began = Instant::now();
    let muster = Muster::start(&cluster, "muster", &[])?;
    let before = Usage::now(everything(&cluster, &muster))?;
    let (first, last) = await_binds(&muster, pods)?;
    let after = Usage::now(everything(&cluster, &muster))?;
    figures.add("binds per second, first to last", per_second(pods, last - first), "/s");
    figures.add("binds per second, from the start of muster", per_second(pods, last - began), "/s");
    figures.add_processors(&before, &after);
    add_times(&mut figures, &muster)?;
    check_places(&load.pods()?, GPUS)?;
    muster.stop()?;
    let plain = |i: usize| {
        let mut pod = pod(&format!("plain-{i}"), None, 0);
        pod["spec"]["schedulerName"] = json!("nobody");
        pod
    };
    load.create("plain pods", (0..pods).map(plain).collect())?;
    let began = Instant::now();
    load.bind((0..pods).map(|i| (format!("plain-{i}"), format!("gpu-{}", i % nodes))).collect())?;
    figures.add("the server alone: plain POSTs of pods/binding", per_second(pods, began.elapsed()), "/s");
    figures.tell()
}

/// How large the cluster is whose scheduler's memory is measured, and how long.
struct Large {
    nodes: usize,
    pods: usize,
    cycles: usize,
    idle: Duration,
}

/// Bytes: after a tenth of the cycles, after all of them, and the most at any time.
struct Resident {
    early: u64,
    late: u64,
    most: u64,
}

/// Memory with everything running, while nothing happens, and cycle after cycle.
pub(crate) fn memory_and_idle(shared: &Shared) -> Result<()> {
    let large = Large {
        nodes: setting("MUSTER_E2E_NODES", 1250)?,
        pods: setting("MUSTER_E2E_PODS", 20_000)?,
        cycles: setting("MUSTER_E2E_CYCLES", 1000)?,
        idle: Duration::from_secs(setting("MUSTER_E2E_IDLE_SECONDS", 90)?.try_into()?),
    };
    let mut figures = Figures::of("memory and idle");
    let resident = resident(shared, &large, &mut figures)?;
    figures.tell()?;
    let goal = large.nodes > 1250 || large.pods > 20_000 || resident.most < 150 << 20;
    ensure!(goal, "{} bytes of memory, more than 150 MiB", resident.most);
    ensure!(resident.late < resident.early + resident.early / 10, "{} bytes, then {}", resident.early, resident.late);
    Ok(())
}

/// Whatever a cycle makes, the next ones do not add to it. What is kept of each by mistake would be seen: the rows of this many
/// pods, a hundred kilobytes and more, 270 times.
pub(crate) fn cycles_leave_nothing_behind(shared: &Shared) -> Result<()> {
    let large = Large { nodes: 40, pods: 300, cycles: 300, idle: Duration::from_secs(1) };
    let resident = resident(shared, &large, &mut Figures::of("memory of a small cluster"))?;
    ensure!(resident.late < resident.early + (20 << 20), "{} bytes, then {}", resident.early, resident.late);
    Ok(())
}

fn resident(shared: &Shared, large: &Large, figures: &mut Figures) -> Result<Resident> {
    let (mut cluster, load) = cluster(shared, large.nodes)?;
    Muster::start(&cluster, "first", &["--roles=scheduler"])?.stop()?;
    fill(&load, large.nodes, large.pods)?;
    wait("all pods to run", PATIENCE, || Ok(load.pods()?.iter().filter(|pod| pod.runs).count() == large.pods))?;
    cluster.stop_kwok()?;
    let muster = Muster::start(&cluster, "muster", &[])?;
    let bytes = |line: &str| muster.process.memory(line);
    wait("statuses of queues", PATIENCE, || settled(&cluster))?;
    figures.add("resident after the start", mebibytes(bytes("VmRSS")?), "MiB");
    figures.add("of it without pages of files", mebibytes(bytes("RssAnon")?), "MiB");
    let (before, from) = (Usage::now(everything(&cluster, &muster))?, muster.metric("kai_cycles_total")?);
    std::thread::sleep(large.idle);
    figures.add_processors(&before, &Usage::now(everything(&cluster, &muster))?);
    figures.add("cycles while idle", muster.metric("kai_cycles_total")? - from, "");
    figures.add("resident when idle", mebibytes(bytes("VmRSS")?), "MiB");
    let mut after = [0; 2];
    for (at, step) in [large.cycles / 10, large.cycles].into_iter().enumerate() {
        run_cycles(&load, &muster, step)?;
        after[at] = bytes("VmRSS")?;
        figures.add(format!("resident after {step} cycles"), mebibytes(after[at]), "MiB");
    }
    add_times(figures, &muster)?;
    let most = bytes("VmHWM")?;
    muster.stop()?;
    Ok(Resident { early: after[0], late: after[1], most })
}

/// Pods where a scheduler has put them: eight of one GPU on each node, the rest without.
fn fill(load: &Load, nodes: usize, pods: usize) -> Result<()> {
    let group = |i: usize| format!("group-{}", i / GPUS);
    load.create("pod groups", (0..pods.div_ceil(GPUS)).map(|i| pod_group(&group(i * GPUS))).collect())?;
    let placed = |i: usize| {
        let mut pod = pod(&format!("pod-{i}"), Some(&group(i)), usize::from(i < nodes * GPUS));
        pod["spec"]["nodeName"] = json!(format!("gpu-{}", (i / GPUS) % nodes));
        pod
    };
    load.create("pods", (0..pods).map(placed).collect())
}

/// Whether whoever writes statuses has come to an end: no write within two seconds.
fn settled(cluster: &Cluster) -> Result<bool> {
    let before = Writes::until_now(cluster)?;
    std::thread::sleep(Duration::from_secs(2));
    let written = Writes::until_now(cluster)?.since(&before);
    Ok(["PATCH podgroups/status", "PATCH queues/status"].iter().all(|of| !written.contains_key(*of)))
}

/// Cycles up to this number since the start, each for a reason.
fn run_cycles(load: &Load, muster: &Muster, up_to: usize) -> Result<()> {
    let (up_to, mut said) = (f64::from(u32::try_from(up_to)?), Instant::now());
    loop {
        let from = muster.metric("kai_cycles_total")?;
        if from >= up_to {
            return Ok(());
        }
        if said.elapsed() > Duration::from_secs(5) {
            said = Instant::now();
            eprintln!("e2e: {from} of {up_to} cycles …");
        }
        load.touch_node("gpu-0", &format!("after-{from}"))?;
        wait("a cycle to pass", PATIENCE, || Ok(muster.metric("kai_cycles_total")? > from))?;
    }
}
