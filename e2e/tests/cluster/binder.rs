//! The binder on a real API server: requests as a scheduler writes them, a kubelet that only says which GPU it gave out, and a
//! binder that is killed at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, Client};
use muster_controller::binder::serve;
use muster_controller::run::Options;
use muster_e2e::proxy::Faults;
use serde_json::{Value, json};

use crate::roles::{Killable, Kubelet, RESERVATIONS, admin, api, bind_request, create, half, namespaces, pod, runtime, until};
use crate::support::{Shared, list, node};

const PATIENCE: Duration = Duration::from_secs(90);
const FAILING: &str = "failing";
const FAILING_NODE: &str = "failing-0";
const FAILING_MUTE: &str = "failing-mute";

fn binder(kubeconfig: &Path, options: &Options) -> Result<Killable> {
    Killable::start(kubeconfig, options, |client, lead, stop, options| async move { serve(client, lead, stop, &options).await })
}

fn requests(client: &Client, namespace: &str) -> Api<DynamicObject> {
    api(client, namespace, "scheduling.run.ai/v1alpha2", "BindRequest")
}

fn group_id(at: usize) -> String {
    format!("00000000-0000-4000-8000-{at:012}")
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn bound(pod: &Pod) -> Option<(String, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == "PodBound")?;
    Some((condition.status.clone(), condition.message.clone().unwrap_or_default()))
}

async fn pods(client: &Client, namespace: &str) -> Result<Vec<Pod>> {
    Ok(Api::<Pod>::namespaced(client.clone(), namespace).list(&ListParams::default()).await?.items)
}

/// Reservation pods of a node.
async fn reservations(client: &Client, node: &str) -> Result<Vec<Pod>> {
    let all = pods(client, RESERVATIONS).await?;
    Ok(all.into_iter().filter(|pod| node_of(pod) == Some(node)).collect())
}

async fn phase(client: &Client, namespace: &str, name: &str) -> Result<Value> {
    let request = requests(client, namespace).get_opt(name).await?;
    Ok(request.map_or(Value::Null, |request| request.data["status"].clone()))
}

/// Pods of half a GPU, two for each group, and what a scheduler asks for them: all at once.
async fn halves(client: &Client, namespace: &str, node: &str, names: &[String], first_group: usize) -> Result<()> {
    let all = names.iter().enumerate().map(async |(at, name)| {
        let pod = create(client, half(namespace, name)).await?;
        create(client, bind_request(&pod, node, Some(&group_id(first_group + at / 2)))).await?;
        anyhow::Ok(())
    });
    for made in all.collect::<Vec<_>>() {
        made.await?;
    }
    Ok(())
}

async fn all_bound(client: &Client, namespace: &str, node: &str, count: usize) -> Result<Option<String>> {
    let pods = pods(client, namespace).await?;
    let there = pods.iter().filter(|pod| node_of(pod) == Some(node)).count();
    let said = pods.iter().filter(|pod| bound(pod).is_some_and(|(status, _)| status == "True")).count();
    let requests = requests(client, namespace).list(&ListParams::default()).await?.items;
    let done = requests.iter().filter(|request| request.data["status"]["phase"] == "Succeeded").count();
    let right = (there, said, done) == (count, count, count);
    Ok((!right).then(|| format!("of {count} pods {there} are bound, {said} say so, {done} requests succeeded")))
}

/// Every pod is told the GPU that the reservation of its own group holds, no two groups hold the same, and nothing is left over.
async fn in_order(client: &Client, namespace: &str, node: &str, per_group: usize) -> Result<()> {
    let held = reservations(client, node).await?;
    let mut gpus = BTreeMap::new();
    for holder in &held {
        let group = label(holder, "runai-gpu-group").context("a group")?;
        let gpu = annotation(holder, "run.ai/reserve_for_gpu_index").context("a GPU")?;
        ensure!(gpus.insert(group.to_owned(), gpu.to_owned()).is_none(), "two reservations for {group}");
    }
    ensure!(gpus.values().collect::<BTreeSet<_>>().len() == gpus.len(), "a GPU is held twice: {gpus:?}");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mut members: BTreeMap<String, usize> = BTreeMap::new();
    let pods = pods(client, namespace).await?;
    for pod in &pods {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let group = label(pod, "runai-gpu-group").with_context(|| format!("{name} has no group"))?;
        let request = requests(client, namespace).get(name).await?;
        ensure!(request.data["spec"]["selectedGPUGroups"] == json!([group]), "{name} was asked for {}", request.data["spec"]);
        ensure!(annotation(pod, "received-resource-type") == Some("Fraction"), "{name}");
        let map = maps.get(&format!("{}-0", annotation(pod, "runai/shared-gpu-configmap").unwrap_or_default())).await?;
        let data = map.data.unwrap_or_default();
        ensure!(
            data.get("NVIDIA_VISIBLE_DEVICES") == gpus.get(group),
            "{name} was told {data:?}, {group} is {:?}",
            gpus.get(group)
        );
        ensure!(data.get("GPU_PORTION").is_some_and(|portion| portion == "0.50"), "{data:?}");
        maps.get(&format!("{}-0-evar", annotation(pod, "runai/shared-gpu-configmap").unwrap_or_default())).await?;
        *members.entry(group.to_owned()).or_default() += 1;
    }
    ensure!(members.len() == gpus.len() && members.values().all(|count| *count == per_group), "{members:?} of {gpus:?}");
    let ours = maps.list(&ListParams::default()).await?.items;
    let ours = ours.iter().filter(|map| map.metadata.name.as_deref().is_some_and(|name| name.contains("shared-gpu"))).count();
    ensure!(ours == 2 * pods.len(), "{ours} ConfigMaps for {} pods", pods.len());
    Ok(())
}

async fn delete(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    pods.delete(name, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    Ok(())
}

/// Sixteen halves on eight cards in one burst are eight groups of two. Cards are given back when the last half has gone, and not
/// before; halves whose card is held no longer are ended.
pub(crate) fn a_burst_of_halves(shared: &Shared) -> Result<()> {
    const NAMESPACE: &str = "halves";
    const NODE: &str = "halves-0";
    let cluster = shared.with_crds()?;
    namespaces(cluster, NAMESPACE)?;
    cluster.kubectl_with(&["create", "-f", "-"], &list(vec![node(NODE, 8)]))?;
    let kubelet = Kubelet::start(&cluster.kubeconfig(), 8)?;
    let _binder = binder(&cluster.kubeconfig(), &Options::default())?;
    runtime()?.block_on(async {
        let client = admin(cluster).await?;
        let names: Vec<_> = (0..16).map(|at| format!("half-{at}")).collect();
        let began = Instant::now();
        halves(&client, NAMESPACE, NODE, &names, 0).await?;
        until(PATIENCE, async || all_bound(&client, NAMESPACE, NODE, 16).await).await?;
        eprintln!("e2e: 16 halves were bound after {:.1} s", began.elapsed().as_secs_f64());
        ensure!(reservations(&client, NODE).await?.len() == 8, "eight cards");
        in_order(&client, NAMESPACE, NODE, 2).await?;
        let running = async || {
            let running = pods(&client, NAMESPACE).await?.into_iter();
            let running =
                running.filter(|pod| pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running"))).count();
            anyhow::Ok((running < 16).then(|| format!("{running} of 16 run")))
        };
        until(PATIENCE, running).await?;
        // Both of the first group, one of the second.
        for at in [0, 1, 2] {
            delete(&client, NAMESPACE, &names[at]).await?;
        }
        until(PATIENCE, async || {
            let count = reservations(&client, NODE).await?.len();
            Ok((count != 7).then(|| format!("{count} cards are held, expected 7")))
        })
        .await?;
        let holders = reservations(&client, NODE).await?;
        let of = |at: usize| holders.iter().find(|holder| label(holder, "runai-gpu-group") == Some(group_id(at).as_str()));
        ensure!(of(0).is_none() && of(1).is_some(), "the second group is still used");
        // Somebody takes the card of the third.
        let third = of(2).and_then(|holder| holder.metadata.name.clone()).context("the third group")?;
        delete(&client, RESERVATIONS, &third).await?;
        until(PATIENCE, async || {
            let left = pods(&client, NAMESPACE).await?;
            let left = left.iter().filter(|pod| label(pod, "runai-gpu-group") == Some(group_id(2).as_str())).count();
            Ok((left > 0).then(|| format!("{left} pods run on a card that is not held")))
        })
        .await?;
        ensure!(pods(&client, NAMESPACE).await?.len() == 11, "no other pod is touched");
        ensure!(kubelet.wrong().is_empty(), "{:?}", kubelet.wrong());
        for at in 0..8 {
            ensure!(kubelet.made(NODE, &group_id(at)) == 1, "reservations made for group {at}");
        }
        anyhow::Ok(())
    })?;
    cluster.kubectl(["delete", "namespace", NAMESPACE, "--wait=false"])?;
    Ok(())
}

/// Requests that fail, each for a reason of its own; one of the pods.
async fn ask_for_failures(client: &Client) -> Result<DynamicObject> {
    // More than may speak with the server at once wait for a card that never says which it is.
    for at in 0..40 {
        let pod = create(client, half(FAILING, &format!("mute-{at}"))).await?;
        create(client, bind_request(&pod, FAILING_MUTE, Some(&group_id(100 + at)))).await?;
    }
    let nowhere = create(client, pod(FAILING, "nowhere")).await?;
    create(client, bind_request(&nowhere, "no-such-node", None)).await?;
    let again = create(client, pod(FAILING, "again")).await?;
    let mut patient = bind_request(&again, "no-such-node", None);
    patient["spec"]["backoffLimit"] = json!(3);
    create(client, patient).await?;
    let unprepared = create(client, {
        let mut pod = half(FAILING, "unprepared");
        pod["metadata"]["annotations"] = json!({"gpu-fraction": "0.5"});
        pod
    })
    .await?;
    create(client, bind_request(&unprepared, FAILING_NODE, Some(&group_id(99)))).await?;
    let stale = create(client, pod(FAILING, "stale")).await?;
    let mut of_the_past = bind_request(&stale, FAILING_NODE, None);
    // Whoever is first, the binder or the garbage collector: nothing may be bound for it.
    of_the_past["metadata"]["ownerReferences"][0]["uid"] = json!("00000000-0000-4000-8000-00000000dead");
    create(client, of_the_past).await?;
    Ok(nowhere)
}

/// They say so on the request and on the pod, and leave nothing behind.
async fn failures_are_said(client: &Client) -> Result<()> {
    for (name, attempts, why) in [
        ("nowhere", 1, "no node no-such-node"),
        ("again", 3, "no node no-such-node"),
        ("unprepared", 1, "runai/shared-gpu-configmap"),
    ] {
        until(PATIENCE, async || {
            let status = phase(client, FAILING, name).await?;
            let right = status["phase"] == "Failed" && status["failedAttempts"] == attempts;
            let right = right && status["reason"].as_str().is_some_and(|said| said.contains(why));
            Ok((!right).then(|| format!("{name}: {status}")))
        })
        .await?;
        let pod = Api::<Pod>::namespaced(client.clone(), FAILING).get(name).await?;
        let (status, said) = bound(&pod).context("a condition")?;
        ensure!(status == "False" && said.contains(why) && node_of(&pod).is_none(), "{name}: {status} {said}");
    }
    until(PATIENCE, async || Ok(requests(client, FAILING).get_opt("stale").await?.map(|_| "a stale request".to_owned()))).await?;
    ensure!(node_of(&Api::<Pod>::namespaced(client.clone(), FAILING).get("stale").await?).is_none(), "bound for a past pod");
    until(PATIENCE, async || {
        let status = phase(client, FAILING, "mute-39").await?;
        let held = reservations(client, FAILING_MUTE).await?.len();
        let right = status["reason"].as_str().is_some_and(|said| said.contains("within 6 s")) && held == 0;
        Ok((!right).then(|| format!("mute-39: {status}, {held} cards are held")))
    })
    .await?;
    Ok(())
}

/// Binds that fail say so, wait longer each time, and hold nobody up; a request for a pod of the past is withdrawn.
pub(crate) fn one_that_fails_does_not_starve_others(shared: &Shared) -> Result<()> {
    let cluster = shared.with_crds()?;
    namespaces(cluster, FAILING)?;
    cluster.kubectl_with(&["create", "-f", "-"], &list(vec![node(FAILING_NODE, 64), node(FAILING_MUTE, 64)]))?;
    let _kubelet = Kubelet::start(&cluster.kubeconfig(), 64)?;
    let mut options = Options::default();
    options.reservation.patience = Duration::from_secs(6);
    let _binder = binder(&cluster.kubeconfig(), &options)?;
    runtime()?.block_on(async {
        let client = admin(cluster).await?;
        let nowhere = ask_for_failures(&client).await?;
        let began = Instant::now();
        for at in 0..30 {
            let pod = create(&client, pod(FAILING, &format!("good-{at}"))).await?;
            create(&client, bind_request(&pod, FAILING_NODE, None)).await?;
        }
        until(PATIENCE, async || {
            let good = pods(&client, FAILING).await?.iter().filter(|pod| node_of(pod) == Some(FAILING_NODE)).count();
            Ok((good < 30).then(|| format!("{good} of 30 are bound")))
        })
        .await?;
        eprintln!("e2e: 30 good ones were bound after {:.1} s beside 40 that wait", began.elapsed().as_secs_f64());
        failures_are_said(&client).await?;
        // A scheduler that asks for the same again at once does not get its way at once.
        let attempts = async || {
            requests(&client, FAILING).delete("nowhere", &DeleteParams::default()).await?;
            create(&client, bind_request(&nowhere, "no-such-node", None)).await?;
            let asked = Instant::now();
            until(PATIENCE, async || {
                let status = phase(&client, FAILING, "nowhere").await?;
                Ok((status["phase"] != "Failed").then(|| format!("nowhere: {status}")))
            })
            .await?;
            anyhow::Ok(asked.elapsed())
        };
        let times = [attempts().await?, attempts().await?, attempts().await?];
        ensure!(times[2] > Duration::from_millis(1500), "three failures in a row took {times:?}");
        anyhow::Ok(())
    })?;
    cluster.kubectl(["delete", "namespace", FAILING, "--wait=false"])?;
    Ok(())
}

/// A binder that is killed again and again, while writes are lost and answers as well: each group has one reservation, each pod
/// is bound once and told the right card, and in the end nothing is left behind.
pub(crate) fn killed_at_any_moment(shared: &Shared) -> Result<()> {
    const NAMESPACE: &str = "killed";
    const NODE: &str = "killed-0";
    let cluster = shared.with_crds()?;
    namespaces(cluster, NAMESPACE)?;
    cluster.kubectl_with(&["create", "-f", "-"], &list(vec![node(NODE, 8)]))?;
    let kubelet = Kubelet::start(&cluster.kubeconfig(), 8)?;
    let (proxy, through_proxy) = cluster.proxy(7)?;
    let runtime = runtime()?;
    let client = runtime.block_on(admin(cluster))?;
    let mut random = 12345_u64;
    let mut kills = 0;
    for batch in 0..4 {
        let names: Vec<_> = (0..16).map(|at| format!("half-{batch}-{at}")).collect();
        let first_group = 1000 + 8 * batch;
        runtime.block_on(halves(&client, NAMESPACE, NODE, &names, first_group))?;
        proxy.set(Faults { lost_writes_percent: 5, lost_answers_percent: 5, ..Faults::default() });
        for _ in 0..13 {
            let binder = binder(&through_proxy, &Options::default())?;
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_millis(20 + (random >> 33) % 400));
            drop(binder);
            kills += 1;
        }
        proxy.set(Faults::default());
        let _binder = binder(&through_proxy, &Options::default())?;
        runtime.block_on(async {
            until(PATIENCE, async || all_bound(&client, NAMESPACE, NODE, 16).await).await?;
            ensure!(kubelet.wrong().is_empty(), "{:?}", kubelet.wrong());
            in_order(&client, NAMESPACE, NODE, 2).await?;
            for at in first_group..first_group + 8 {
                ensure!(kubelet.made(NODE, &group_id(at)) == 1, "one reservation for group {at}, for ever");
            }
            for name in &names {
                delete(&client, NAMESPACE, name).await?;
            }
            until(PATIENCE, async || {
                let held = reservations(&client, NODE).await?.len();
                let asked = requests(&client, NAMESPACE).list(&ListParams::default()).await?.items.len();
                Ok((held + asked > 0).then(|| format!("{held} cards are held for nobody, {asked} requests are left")))
            })
            .await
        })?;
    }
    eprintln!("e2e: killed {kills} times, {} of {} writes were hit", proxy.counts().faults, proxy.counts().writes);
    ensure!(proxy.counts().faults > 10, "no faults: {:?}", proxy.counts());
    cluster.kubectl(["delete", "namespace", NAMESPACE, "--wait=false"])?;
    Ok(())
}
