//! A newcomer's path: `muster manifests`, `muster run` from a laptop, a Job that runs, and Jobs that do not: each says why, in
//! the places where people look.

use anyhow::{Context as _, Result, ensure};
use muster_e2e::cluster::{Cluster, Options, wait};
use muster_e2e::http::Endpoint;
use serde_json::{Value, json};

use crate::scheduler::{Muster, PATIENCE, create, queue};
use crate::support::{Shared, get, muster, node};

/// A Job as a newcomer writes it: of our kinds only the name of a queue is in it.
fn job(name: &str, queue: &str, pods: usize, gpus: u32) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"},
        "spec": {"parallelism": pods, "completions": pods, "template": {
            "metadata": {"labels": {"job": name, "kai.scheduler/queue": queue}},
            "spec": {"schedulerName": "kai-scheduler", "restartPolicy": "Never",
                "containers": [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]}}}})
}

fn pods_of(cluster: &Cluster, job: &str) -> Result<Vec<Value>> {
    let pods = get(cluster, &["pods", "-n", "default", "-l", &format!("job={job}")])?;
    Ok(pods["items"].as_array().context("a list")?.clone())
}

/// The condition of a type of a pod.
fn condition(pod: &Value, kind: &str) -> Value {
    let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|condition| condition["type"] == kind).unwrap_or(Value::Null)
}

/// From nothing to a running Job, and to the reasons of those that wait.
pub(crate) fn from_manifests_to_a_running_job(shared: &Shared) -> Result<()> {
    let cluster = Cluster::start(shared.tools()?, Options::default())?;
    cluster.kubectl_with(&["apply", "-f", "-"], &muster(&["manifests"])?)?;
    create(&cluster, vec![node("gpu-0", 8), node("gpu-1", 8)])?;
    // All roles, as `muster run` does without a word about them.
    let muster = Muster::start(&cluster, "muster", &[])?;
    create(&cluster, vec![job("hello", "default-queue", 8, 1)])?;
    // Pods of Jobs run as soon as they are bound, and end well a moment later: kwok has nothing to compute.
    let ended = || get(&cluster, &["job", "-n", "default", "hello"]).map(|job| job["status"]["succeeded"].clone());
    wait("8 pods to run", PATIENCE, || Ok(ended()? == 8)).with_context(|| muster.said())?;
    for pod in pods_of(&cluster, "hello")? {
        ensure!(pod["spec"]["nodeName"].is_string() && condition(&pod, "PodScheduled")["status"] == "True", "{pod}");
    }
    let groups = get(&cluster, &["podgroups", "-n", "default"])?;
    ensure!(groups["items"].as_array().is_some_and(|all| all.len() == 1), "one PodGroup for the Job: {groups}");
    create(&cluster, vec![job("large", "default-queue", 1, 9)])?;
    says_why(&cluster, &muster, "large", "Unschedulable", "too-large", "9 GPUs")?;
    // Held by a bound of its queue: nodes would not help, and autoscalers must not add any.
    create(&cluster, vec![queue("small", Some("default-parent-queue"), 0, 2), job("bounded", "small", 1, 4)])?;
    says_why(&cluster, &muster, "bounded", "OverLimit", "over-limit", "queue small")?;
    create(&cluster, vec![job("lost", "no-such-queue", 1, 1)])?;
    says_why(&cluster, &muster, "lost", "QueueDoesNotExist", "queue-missing", "no-such-queue")?;
    // Once its bound is raised it runs, and nothing says any longer that it does not.
    cluster.kubectl(["patch", "queue", "small", "--type=merge", "-p", r#"{"spec":{"resources":{"gpu":{"limit":8}}}}"#])?;
    wait("the bounded one to run", PATIENCE, || Ok(pods_of(&cluster, "bounded")?[0]["status"]["phase"] == "Succeeded"))
        .with_context(|| muster.said())?;
    let pod = &pods_of(&cluster, "bounded")?[0];
    ensure!(condition(pod, "PodScheduled")["status"] == "True", "{pod}");
    muster.stop()
}

/// On the pod, in its events, on its PodGroup, and when asked.
fn says_why(cluster: &Cluster, muster: &Muster, job: &str, reason: &str, code: &str, part: &str) -> Result<()> {
    let scheduled = || Ok(pods_of(cluster, job)?.first().map_or(Value::Null, |pod| condition(pod, "PodScheduled")));
    let context = || format!("{:?}\n{}", scheduled().map_err(|error: anyhow::Error| error.to_string()), muster.said());
    wait(&format!("PodScheduled of {job} to say why"), PATIENCE, || Ok(scheduled()?["reason"] == reason))
        .with_context(context)?;
    let condition = scheduled()?;
    let message = condition["message"].as_str().unwrap_or_default();
    ensure!(condition["status"] == "False" && message.contains(part), "{condition}");
    let pod = pods_of(cluster, job)?[0]["metadata"].clone();
    let pod_name = pod["name"].as_str().unwrap_or_default();
    let group = pod["annotations"]["pod-group-name"].as_str().context("a pod group")?;
    let told = || get(cluster, &["podgroup", group]).map(|group| group["status"]["schedulingConditions"][0].clone());
    wait(&format!("a scheduling condition of {group}"), PATIENCE, || Ok(!told()?.is_null())).with_context(|| muster.said())?;
    let told = told()?;
    ensure!(told["type"] == "UnschedulableOnNodePool" && told["status"] == "True", "{told}");
    ensure!(told["message"].as_str().is_some_and(|said| said.contains(part)), "{told}");
    let asked = |what: &str| -> Result<Value> {
        let answer = Endpoint::plain(muster.inspect).get(what)?;
        ensure!(answer.status == 200, "{what}: {answer:?}");
        serde_json::from_str(&answer.body).with_context(|| answer.body.clone())
    };
    for what in [format!("/explain?podgroup=default/{group}"), format!("/explain?pod=default/{pod_name}")] {
        let said = asked(&what)?;
        let reasons = said["podGroups"][0]["reasons"].as_array().cloned().unwrap_or_default();
        ensure!(said["podGroups"][0]["podGroup"] == group && said["podGroups"][0]["waiting"] == 1, "{said}");
        ensure!(reasons.iter().any(|reason| reason["code"] == code), "{what}: no {code} in {said}");
    }
    let field = format!("involvedObject.name={pod_name},reason=Unschedulable");
    wait(&format!("an event about {pod_name}"), PATIENCE, || {
        let events = get(cluster, &["events", "-n", "default", "--field-selector", &field])?;
        let events = events["items"].as_array().cloned().unwrap_or_default();
        Ok(events.iter().any(|event| event["message"].as_str().is_some_and(|said| said.contains(part))))
    })
    .with_context(|| muster.said())
}
