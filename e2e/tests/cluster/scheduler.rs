//! `muster run` itself, as a process, on a real API server: what comes is placed, what may leave leaves, within the brake.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use muster_e2e::cluster::{Cluster, Options, wait};
use muster_e2e::http::Endpoint;
use muster_e2e::process::Process;
use serde_json::{Value, json};

use crate::support::{Shared, apply_crds, get, list, node};
use crate::writes::Writes;

pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// `muster run`, with its addresses.
pub(crate) struct Muster {
    pub(crate) process: Process,
    journal: PathBuf,
    log: PathBuf,
    metrics: SocketAddr,
    health: SocketAddr,
    pub(crate) inspect: SocketAddr,
}

impl Muster {
    pub(crate) fn start(cluster: &Cluster, name: &str, arguments: &[&str]) -> Result<Self> {
        Self::start_through(cluster, &cluster.kubeconfig(), name, arguments)
    }

    /// With a kubeconfig of its own.
    pub(crate) fn start_through(cluster: &Cluster, kubeconfig: &Path, name: &str, arguments: &[&str]) -> Result<Self> {
        let muster = Self::start_unready(cluster, kubeconfig, name, arguments)?;
        wait(&format!("{name} to be ready"), PATIENCE, || {
            let answer = Endpoint::plain(muster.health).get("/readyz");
            Ok(answer.is_ok_and(|answer| answer.status == 200))
        })
        .with_context(|| muster.said())?;
        Ok(muster)
    }

    /// Without waiting for it.
    pub(crate) fn start_unready(cluster: &Cluster, kubeconfig: &Path, name: &str, arguments: &[&str]) -> Result<Self> {
        let program = std::env::var_os("MUSTER_E2E_PROGRAM").context("MUSTER_E2E_PROGRAM: run these with `cargo xtask e2e`")?;
        let [metrics, health, inspect] = ports()?;
        let journal = cluster.folder().join(format!("{name}-evictions.jsonl"));
        let log = cluster.folder().join(format!("{name}.log"));
        let mut command = Command::new(program);
        command.arg("run").arg("--kubeconfig").arg(kubeconfig).arg("--eviction-journal").arg(&journal);
        command.arg(format!("--listen-address={metrics}")).arg(format!("--health-address={health}"));
        if !arguments.iter().any(|argument| argument.starts_with("--inspect-address")) {
            command.arg(format!("--inspect-address={inspect}"));
        }
        command.args(arguments);
        let process = Process::start(name, &mut command, &log)?;
        Ok(Self { process, journal, log, metrics, health, inspect })
    }

    pub(crate) fn said(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// All of `/metrics`.
    pub(crate) fn metrics(&self) -> Result<String> {
        Ok(Endpoint::plain(self.metrics).get("/metrics")?.body)
    }

    pub(crate) fn metric(&self, name: &str) -> Result<f64> {
        let text = self.metrics()?;
        let values = text.lines().filter(|line| line.starts_with(name) && line[name.len()..].starts_with(['{', ' ']));
        Ok(values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
    }

    /// Where evictions are recorded.
    pub(crate) fn journal(&self) -> &Path {
        &self.journal
    }

    /// Where it logs.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// Lines of the journal.
    pub(crate) fn evictions(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(&self.journal).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).context("a line of the journal")).collect()
    }

    /// Stops it as a node would, and checks that it goes in good order.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.process.ask_to_stop()?;
        let mut status = None;
        wait("muster to end", Duration::from_secs(30), || {
            status = self.process.ended()?;
            Ok(status.is_some())
        })?;
        ensure!(status.is_some_and(|status| status.success()), "it ended with {status:?}:\n{}", self.said());
        Ok(())
    }
}

fn ports<const N: usize>() -> Result<[SocketAddr; N]> {
    let mut held = Vec::new();
    let mut found = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for port in &mut found {
        let listener = TcpListener::bind(*port)?;
        *port = listener.local_addr()?;
        held.push(listener);
    }
    Ok(found)
}

/// A cluster of its own with our kinds, and `nodes` ready nodes of 8 GPUs.
pub(crate) fn cluster(shared: &Shared, nodes: usize) -> Result<Cluster> {
    let cluster = Cluster::start(shared.tools()?, Options::default())?;
    apply_crds(&cluster)?;
    create(&cluster, (0..nodes).map(|i| node(&format!("gpu-{i}"), 8)).collect())?;
    let ready = r#"jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#;
    wait("nodes to be ready", PATIENCE, || {
        Ok(cluster.kubectl(["get", "nodes", "-o", ready])?.split_whitespace().filter(|status| *status == "True").count() == nodes)
    })?;
    Ok(cluster)
}

pub(crate) fn create(cluster: &Cluster, objects: Vec<Value>) -> Result<()> {
    cluster.kubectl_with(&["create", "-f", "-"], &list(objects)).map(drop)
}

pub(crate) fn queue(name: &str, parent: Option<&str>, gpus: i64, limit: i64) -> Value {
    let free = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
    let mut spec = json!({"resources": {"cpu": free, "memory": free,
        "gpu": {"quota": gpus, "limit": limit, "overQuotaWeight": 1}}});
    if let Some(parent) = parent {
        spec["parentQueue"] = json!(parent);
    }
    json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec})
}

pub(crate) fn priority(name: &str, value: i32) -> Value {
    json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value})
}

/// A pod group of `pods` pods with `gpus` GPUs each, all of which must run together if `gang`.
pub(crate) fn group(name: &str, queue: &str, class: &str, pods: usize, gpus: u32, gang: bool) -> Vec<Value> {
    let min = if gang { pods } else { 1 };
    let mut all = vec![json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": min, "queue": queue, "priorityClassName": class}})];
    let limits = json!({"nvidia.com/gpu": gpus.to_string(), "cpu": "1"});
    all.extend((0..pods).map(|i| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{name}-{i}"), "namespace": "default", "labels": {"group": name},
                "annotations": {"pod-group-name": name}},
            "spec": {"schedulerName": "kai-scheduler", "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "none", "resources": {"limits": limits}}]}})
    }));
    all
}

/// Node by pod of a group, of those that are bound and not leaving.
pub(crate) fn places(cluster: &Cluster, group: &str) -> Result<BTreeMap<String, String>> {
    let pods = get(cluster, &["pods", "-n", "default", "-l", &format!("group={group}")])?;
    let place = |pod: &Value| {
        let node = pod["spec"]["nodeName"].as_str()?;
        pod["metadata"]["deletionTimestamp"].is_null().then(|| (pod["metadata"]["name"].to_string(), node.to_owned()))
    };
    Ok(pods["items"].as_array().context("a list")?.iter().filter_map(place).collect())
}

pub(crate) fn await_bound(cluster: &Cluster, muster: &Muster, group: &str, pods: usize) -> Result<()> {
    wait(&format!("{pods} pods of {group} to be bound"), PATIENCE, || Ok(places(cluster, group)?.len() == pods))
        .with_context(|| muster.said())
}

/// Lets cycles go by: a scheduler with nothing to do is given a reason for each of them.
pub(crate) fn let_pass(cluster: &Cluster, muster: &Muster, cycles: u32) -> Result<()> {
    for _ in 0..cycles {
        let from = muster.metric("kai_cycles_total")?;
        let reason = format!("reason=after-{from}");
        cluster.kubectl(["label", "node", "gpu-0", reason.as_str(), "--overwrite"])?;
        wait("a cycle to pass", PATIENCE, || Ok(muster.metric("kai_cycles_total")? > from))?;
    }
    Ok(())
}

/// What comes is placed, all of it or nothing; what does not fit is told why; pods of others are not touched; a plain pod costs
/// one write.
pub(crate) fn places_what_comes(shared: &Shared) -> Result<()> {
    let mut cluster = cluster(shared, 2)?;
    let muster = Muster::start(&cluster, "muster", &["--roles=scheduler,pod-grouper"])?;
    newcomer(&cluster, &muster)?;
    cluster.kubectl(["delete", "job", "hello", "--wait=true", "--cascade=foreground"])?;
    too_large(&cluster, &muster)?;
    foreign(&cluster, &muster)?;
    muster.stop()?;
    let muster = Muster::start(&cluster, "again", &["--roles=scheduler"])?;
    budget(&mut cluster, &muster)?;
    muster.stop()
}

/// A fresh installation has a queue, and a plain Job runs in it.
fn newcomer(cluster: &Cluster, muster: &Muster) -> Result<()> {
    get(cluster, &["queue", "default-queue"])?;
    create(
        cluster,
        vec![json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "hello", "namespace": "default"},
        "spec": {"parallelism": 8, "completions": 8, "template": {
            "metadata": {"labels": {"group": "hello", "kai.scheduler/queue": "default-queue"}},
            "spec": {"schedulerName": "kai-scheduler", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}}})],
    )?;
    await_bound(cluster, muster, "hello", 8)?;
    let pods = get(cluster, &["pods", "-n", "default", "-l", "group=hello"])?;
    for pod in pods["items"].as_array().context("a list")? {
        ensure!(pod["metadata"]["annotations"]["received-resource-type"] == "Regular", "{pod}");
    }
    Ok(())
}

/// A gang that cannot fit stays out as a whole, and says so on itself, on its pods, and when asked; once it fits it runs, and
/// says it no longer.
fn too_large(cluster: &Cluster, muster: &Muster) -> Result<()> {
    create(cluster, group("large", "default-queue", "", 3, 8, true))?;
    let condition = || get(cluster, &["podgroup", "large"]).map(|group| group["status"]["schedulingConditions"][0].clone());
    wait("a scheduling condition", PATIENCE, || Ok(!condition()?.is_null())).with_context(|| muster.said())?;
    let condition = condition()?;
    ensure!(condition["type"] == "UnschedulableOnNodePool" && condition["nodePool"] == "default", "{condition}");
    ensure!(condition["reasons"][0]["reason"] == "PodSchedulingErrors", "{condition}");
    let scheduled = r#"jsonpath={.items[*].status.conditions[?(@.type=="PodScheduled")].reason}"#;
    wait("conditions of pods", PATIENCE, || {
        let said = cluster.kubectl(["get", "pods", "-l", "group=large", "-o", scheduled])?;
        Ok(said.split_whitespace().filter(|reason| *reason == "Unschedulable").count() == 3)
    })
    .with_context(|| muster.said())?;
    ensure!(places(cluster, "large")?.is_empty(), "none of it may run");
    let answer = Endpoint::plain(muster.inspect).get("/explain?podgroup=default/large")?;
    let said: Value = serde_json::from_str(&answer.body).with_context(|| answer.body.clone())?;
    ensure!(said["podGroups"][0]["waiting"] == 3 && said["podGroups"][0]["reasons"][0]["code"] == "no-node", "{said}");
    let snapshot = Endpoint::plain(muster.inspect).request("GET", "/get-job-order", "")?;
    ensure!(snapshot.body.contains("\"id\": \"large\""), "{}", snapshot.body);
    create(cluster, vec![node("gpu-2", 8)])?;
    await_bound(cluster, muster, "large", 3)?;
    wait("the condition to go", PATIENCE, || {
        Ok(get(cluster, &["podgroup", "large"])?["status"]["schedulingConditions"].is_null())
    })
    .with_context(|| muster.said())?;
    cluster.kubectl(["delete", "pods", "-l", "group=large", "--wait=true"])?;
    Ok(())
}

/// Pods of other schedulers wait for those.
fn foreign(cluster: &Cluster, muster: &Muster) -> Result<()> {
    let mut objects = group("foreign", "default-queue", "", 2, 1, false);
    for pod in &mut objects[1..] {
        pod["spec"]["schedulerName"] = json!("default-scheduler");
    }
    create(cluster, objects)?;
    let_pass(cluster, muster, 3)?;
    let pods = get(cluster, &["pods", "-n", "default", "-l", "group=foreign"])?;
    for pod in pods["items"].as_array().context("a list")? {
        let conditions = pod["status"]["conditions"].as_array().map_or(0, Vec::len);
        ensure!(pod["spec"]["nodeName"].is_null() && conditions == 0, "it was touched: {pod}");
    }
    Ok(())
}

/// From the decision to bound, a plain pod costs one write on itself, one event, and its group one write in all. Counted by the
/// API server, with kwok stopped, so that nobody else writes on pods.
fn budget(cluster: &mut Cluster, muster: &Muster) -> Result<()> {
    const PODS: usize = 24;
    let_pass(cluster, muster, 2)?;
    cluster.stop_kwok()?;
    let before = Writes::until_now(cluster)?;
    // It sees the gang whole: on a slow machine it would else have said meanwhile what was still missing.
    muster.process.freeze()?;
    create(cluster, group("budget", "default-queue", "", PODS, 1, true))?;
    muster.process.thaw()?;
    await_bound(cluster, muster, "budget", PODS)?;
    let_pass(cluster, muster, 3)?;
    let spent = Writes::until_now(cluster)?.since(&before);
    eprintln!("e2e: writes for {PODS} plain pods: {spent:?}");
    let of = |writes: &[&str]| writes.iter().filter_map(|write| spent.get(*write)).sum::<u64>();
    let (pods, groups) = (u64::try_from(PODS)?, ["PATCH podgroups", "PATCH podgroups/status"]);
    let counted = [of(&["POST pods/binding"]), of(&["PATCH pods"]), of(&["PATCH pods/status"]), of(&groups)];
    ensure!(counted == [pods, 0, 0, 1] && of(&["POST bindrequests"]) == 0, "{spent:?}\n{}", muster.said());
    ensure!(of(&["POST events"]) <= pods + 2, "{spent:?}");
    cluster.start_kwok()
}

/// A scheduler, and queues `a` and `b` that are due one half of the GPUs each; 8 a node.
pub(crate) fn two_queues(shared: &Shared, nodes: usize) -> Result<(Cluster, Muster)> {
    let cluster = cluster(shared, nodes)?;
    let gpus = 8 * i64::try_from(nodes)?;
    let mut objects = vec![priority("low", 10), priority("high", 90), queue("all", None, gpus, -1)];
    objects.extend(["a", "b"].map(|name| queue(name, Some("all"), gpus / 2, -1)));
    create(&cluster, objects)?;
    let muster = Muster::start(&cluster, "muster", &["--roles=scheduler"])?;
    Ok((cluster, muster))
}

/// Work leaves for work that has a better right, by real deletions, each of them recorded.
pub(crate) fn takes_for_others(shared: &Shared) -> Result<()> {
    let (cluster, muster) = two_queues(shared, 2)?;
    // Everything is a's, half of it beyond what a is due: b takes its own back.
    create(&cluster, group("a-low", "a", "low", 16, 1, false))?;
    await_bound(&cluster, &muster, "a-low", 16)?;
    create(&cluster, group("b-gang", "b", "low", 8, 1, true))?;
    await_bound(&cluster, &muster, "b-gang", 8)?;
    wait("a to be left with its own", PATIENCE, || Ok(places(&cluster, "a-low")?.len() == 8))?;
    let taken = muster.evictions()?;
    ensure!(taken.len() == 8, "{taken:?}");
    for record in &taken {
        ensure!(record["action"] == "reclaim" && record["for"]["name"] == "b-gang" && record["forQueue"] == "b", "{record}");
        ensure!(record["rule"]["sentence"].as_str().is_some_and(|said| said.contains("Queue a held")), "{record}");
    }
    ensure!((muster.metric("kai_pod_group_evicted_pods_total")? - 8.0).abs() < 0.5);
    let marked = get(&cluster, &["podgroup", "a-low"])?["metadata"]["annotations"].clone();
    ensure!(marked["kai.scheduler/last-eviction-timestamp"].is_string(), "{marked}");
    ensure!(marked["kai.scheduler/last-start-timestamp"].is_string(), "{marked}");
    // Within a the higher priority goes first.
    create(&cluster, group("a-high", "a", "high", 4, 1, true))?;
    await_bound(&cluster, &muster, "a-high", 4)?;
    wait("the lower priority to make room", PATIENCE, || Ok(places(&cluster, "a-low")?.len() == 4))?;
    let taken = muster.evictions()?;
    ensure!(taken.len() == 12 && taken[8..].iter().all(|record| record["action"] == "preempt"), "{taken:?}");
    let events = get(&cluster, &["events", "-n", "default"])?;
    let reasons: Vec<_> = events["items"].as_array().context("a list")?.iter().map(|event| event["reason"].clone()).collect();
    ensure!(reasons.iter().filter(|reason| *reason == "Evict").count() == 12, "{reasons:?}");
    // The API server knows of no other deletions: 12 evictions and nothing else.
    let deleted = cluster.api_metric("apiserver_request_total", &[r#"resource="pods""#, r#"verb="DELETE""#, r#"code="200""#])?;
    ensure!(deleted >= 12.0, "{deleted}");
    cluster.kubectl(["delete", "pods", "--all", "--wait=true"])?;
    cluster.kubectl(["delete", "podgroups", "--all", "--wait=true"])?;
    consolidates(&cluster, &muster)?;
    muster.stop()
}

/// Free GPUs lie on two nodes, and a gang needs them on one: running work is moved. Its owner makes it anew.
fn consolidates(cluster: &Cluster, muster: &Muster) -> Result<()> {
    let before = muster.evictions()?.len();
    for (name, at) in [("left", "gpu-0"), ("right", "gpu-1")] {
        let mut objects = group(name, "a", "low", 1, 4, true);
        objects[1]["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": at});
        if name == "right" {
            objects[1]["spec"]["nodeSelector"] = Value::Null;
            objects[1]["spec"]["nodeName"] = json!(at);
        }
        create(cluster, objects)?;
        await_bound(cluster, muster, name, 1)?;
    }
    create(cluster, group("whole", "b", "low", 1, 8, true))?;
    await_bound(cluster, muster, "whole", 1)?;
    let taken = muster.evictions()?;
    ensure!(taken.len() == before + 1, "{taken:?}");
    let last = &taken[before];
    ensure!(last["action"] == "consolidation" && last["movesTo"] == "gpu-0" && last["pod"]["name"] == "right-0", "{last}");
    create(cluster, vec![group("right", "a", "low", 1, 4, true).remove(1)])?;
    await_bound(cluster, muster, "right", 1)
}

/// Paused, nobody leaves; with a brake, no more than it lets; observing, nothing is written; beside KAI, it refuses.
pub(crate) fn keeps_within_bounds(shared: &Shared) -> Result<()> {
    let cluster = cluster(shared, 2)?;
    let mut objects = vec![queue("all", None, 16, -1), queue("a", Some("all"), 8, -1), queue("b", Some("all"), 8, -1)];
    objects.push(json!({"apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard", "metadata": {"name": "default"},
        "spec": {"args": {"pause-evictions": "true", "max-evictions-per-minute": "3"}}}));
    create(&cluster, objects)?;
    observes(&cluster)?;
    let muster = Muster::start(&cluster, "muster", &["--roles=scheduler"])?;
    await_bound(&cluster, &muster, "a", 16)?;
    create(&cluster, (0..5).flat_map(|i| group(&format!("b-{i}"), "b", "", 1, 1, true)).collect())?;
    let_pass(&cluster, &muster, 4)?;
    ensure!(places(&cluster, "a")?.len() == 16 && muster.evictions()?.is_empty(), "paused, but {:?}", muster.evictions()?);
    let why = Endpoint::plain(muster.inspect).get("/explain?podgroup=default/b-0")?.body;
    ensure!(why.contains("brake"), "{why}");
    let go_on = r#"{"spec":{"args":{"pause-evictions":"false"}}}"#;
    cluster.kubectl(["patch", "schedulingshard", "default", "--type=merge", "-p", go_on])?;
    wait("evictions up to the brake", PATIENCE, || Ok(muster.evictions()?.len() >= 3)).with_context(|| muster.said())?;
    let_pass(&cluster, &muster, 4)?;
    ensure!(muster.evictions()?.len() == 3 && places(&cluster, "a")?.len() == 13, "{:?}", muster.evictions()?);
    let faster = r#"{"spec":{"args":{"max-evictions-per-minute":"-1"}}}"#;
    cluster.kubectl(["patch", "schedulingshard", "default", "--type=merge", "-p", faster])?;
    wait("the others", PATIENCE, || Ok(places(&cluster, "a")?.len() == 11)).with_context(|| muster.said())?;
    muster.stop()?;
    refuses_beside_kai(&cluster)
}

fn observes(cluster: &Cluster) -> Result<()> {
    let writes = |cluster: &Cluster| -> Result<f64> {
        let count = |resource: &str, verb: &str| cluster.api_metric("apiserver_request_total", &[resource, verb]);
        Ok(count(r#"subresource="binding""#, r#"verb="POST""#)? + count(r#"resource="podgroups""#, r#"verb="PATCH""#)?)
    };
    create(cluster, group("a", "a", "", 16, 1, false))?;
    let before = writes(cluster)?;
    let muster = Muster::start(cluster, "observer", &["--observe"])?;
    let_pass(cluster, &muster, 3)?;
    ensure!(places(cluster, "a")?.is_empty() && writes(cluster)? <= before, "it only observes\n{}", muster.said());
    ensure!(muster.said().contains("would bind"), "{}", muster.said());
    muster.stop()
}

fn refuses_beside_kai(cluster: &Cluster) -> Result<()> {
    create(
        cluster,
        vec![json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kai", "namespace": "default",
            "labels": {"app": "kai-scheduler-default"}}, "spec": {"containers": [{"name": "c", "image": "none"}]}})],
    )?;
    let mut muster = Muster::start_unready(cluster, &cluster.kubeconfig(), "refused", &["--roles=scheduler"])?;
    wait("muster to refuse", PATIENCE, || Ok(muster.process.ended()?.is_some()))?;
    let said = muster.said();
    if !said.contains("pod default/kai looks like KAI's scheduler") {
        bail!("{said}");
    }
    let observer = Muster::start(cluster, "beside", &["--observe"])?;
    observer.stop()
}
