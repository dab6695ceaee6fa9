//! What must hold whatever fails, judged by what the API server says happened: every change of every pod, in its order.
//!
//! Some things must hold at every moment ([`Audit::wrong`]): a pod is bound once, a node holds no more than it has, a card no
//! more than itself. Others must hold once it is calm again ([`calm`]). Not known here: which faults there were.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use muster_api::quantity::Quantity;
use muster_api::sharing;
use muster_e2e::cluster::Cluster;
use serde_json::Value;

use crate::roles::{RESERVATIONS, admin, api};

/// Amounts by resource, in thousandths.
type Amounts = BTreeMap<String, i64>;

const GPU: &str = "nvidia.com/gpu";
/// Of a card, in thousandths.
const CARD: i64 = 1000;

/// A pod as it is.
#[derive(Clone, Debug)]
pub(crate) struct There {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) node: Option<String>,
    pub(crate) gang: String,
    /// It is going.
    pub(crate) leaves: bool,
    asks: Amounts,
    /// Of each of its cards, in thousandths.
    share: i64,
    groups: Vec<String>,
}

/// All that is known of one uid, for ever.
#[derive(Clone, Debug, Default)]
struct Life {
    name: String,
    /// Where it was bound.
    nodes: BTreeSet<String>,
    gone: bool,
}

#[derive(Default)]
struct Seen {
    capacity: BTreeMap<String, Amounts>,
    /// By uid.
    there: BTreeMap<String, There>,
    lives: BTreeMap<String, Life>,
    wrong: BTreeSet<String>,
    /// Changes and lists.
    changes: u64,
    lists: u64,
}

/// Sees every change of every pod.
pub(crate) struct Audit(Arc<Mutex<Seen>>);

impl Audit {
    /// Begins, in tasks of the calling runtime. The nodes are those of this moment.
    pub(crate) async fn start(cluster: &Cluster) -> Result<Self> {
        let client = admin(cluster).await?;
        let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?.items;
        let capacity = nodes.into_iter().map(|node| {
            let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
            Ok((node.metadata.name.unwrap_or_default(), amounts(allocatable.iter())?))
        });
        let seen = Seen { capacity: capacity.collect::<Result<_>>()?, ..Seen::default() };
        ensure!(!seen.capacity.is_empty(), "no nodes");
        let seen = Arc::new(Mutex::new(seen));
        let told = Arc::clone(&seen);
        tokio::spawn(async move {
            let pods = Api::all(client);
            loop {
                // An API server that is gone comes back, and is listed anew.
                let _ = follow(&pods, &told).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Ok(Self(seen))
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        lock(&self.0)
    }

    /// What was ever wrong.
    pub(crate) fn wrong(&self) -> Result<()> {
        let seen = self.lock();
        ensure!(seen.wrong.is_empty(), "at some moment: {:#?}", seen.wrong);
        Ok(())
    }

    /// All pods that are there, by uid.
    pub(crate) fn there(&self) -> BTreeMap<String, There> {
        self.lock().there.clone()
    }

    /// GPUs that nobody has asked for, shared ones counted as used.
    pub(crate) fn idle_gpus(&self) -> i64 {
        let seen = self.lock();
        let all: i64 = seen.capacity.values().filter_map(|node| node.get(GPU)).sum();
        let held = seen.there.values().filter(|pod| pod.node.is_some()).filter_map(|pod| pod.asks.get(GPU));
        (all - held.sum::<i64>()) / CARD
    }

    /// How many pods were ever bound.
    pub(crate) fn binds(&self) -> usize {
        self.lock().lives.values().filter(|life| !life.nodes.is_empty()).count()
    }

    /// Bound pods of a namespace that are gone or going, by uid: their names.
    fn departed(&self, namespace: &str) -> BTreeMap<String, String> {
        let seen = self.lock();
        let of = |life: &Life| life.name.starts_with(&format!("{namespace}/")) && !life.nodes.is_empty();
        let leaves = |uid: &str| seen.there.get(uid).is_some_and(|pod| pod.leaves);
        let departed = seen.lives.iter().filter(|(uid, life)| of(life) && (life.gone || leaves(uid)));
        departed.map(|(uid, life)| (uid.clone(), life.name.clone())).collect()
    }

    /// Every pod that had a place and has lost it was told so in the journal before, or was taken away by the test (`ours`).
    /// Returns how many the journals tell of.
    pub(crate) fn evictions_are_recorded(&self, journals: &[&Path], ours: &BTreeSet<String>) -> Result<usize> {
        let mut recorded = BTreeSet::new();
        for journal in journals {
            for (at, line) in std::fs::read_to_string(journal).unwrap_or_default().lines().enumerate() {
                let place = || format!("{}, line {}: {line}", journal.display(), at + 1);
                let record: Value = serde_json::from_str(line).with_context(place)?;
                let uid = record["pod"]["uid"].as_str().with_context(place)?;
                ensure!(record["rule"]["sentence"].is_string() && record["action"].is_string(), "{}", place());
                ensure!(self.lock().lives.contains_key(uid), "of a pod that never was: {}", place());
                if record["what"] == "evict" {
                    recorded.insert(uid.to_owned());
                }
            }
        }
        let unrecorded: Vec<_> = self.departed("default").into_iter().filter(|(uid, _)| !recorded.contains(uid)).collect();
        let unrecorded: Vec<_> = unrecorded.into_iter().filter(|(uid, _)| !ours.contains(uid)).collect();
        ensure!(unrecorded.is_empty(), "left without a line in the journal: {unrecorded:?}");
        Ok(recorded.len())
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow(pods: &Api<Pod>, seen: &Mutex<Seen>) -> Result<()> {
    let list = pods.list(&ListParams::default()).await?;
    {
        let mut seen = lock(seen);
        let now: BTreeSet<_> = list.items.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        let gone: Vec<_> = seen.there.keys().filter(|uid| !now.contains(*uid)).cloned().collect();
        gone.iter().for_each(|uid| seen.remove(uid));
        seen.lists += 1;
        for pod in &list.items {
            seen.put(pod)?;
        }
        seen.judge();
    }
    let mut version = list.metadata.resource_version.unwrap_or_default();
    loop {
        let mut events = pods.watch(&WatchParams::default(), &version).await?.boxed();
        while let Some(event) = events.next().await {
            let (pod, gone) = match event? {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
                WatchEvent::Deleted(pod) => (pod, true),
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => return Err(anyhow::anyhow!("{}", status.message)),
            };
            let mut seen = lock(seen);
            seen.put(&pod)?;
            if gone {
                seen.remove(pod.metadata.uid.as_deref().unwrap_or_default());
            }
            seen.judge();
            version = pod.metadata.resource_version.unwrap_or_default();
        }
    }
}

fn amounts<'a>(
    of: impl Iterator<Item = (&'a String, &'a k8s_openapi::apimachinery::pkg::api::resource::Quantity)>,
) -> Result<Amounts> {
    of.map(|(resource, amount)| {
        let amount: Quantity = amount.0.parse().with_context(|| format!("{resource}: {}", amount.0))?;
        Ok((resource.clone(), amount.milli().with_context(|| format!("{resource} is too much"))?))
    })
    .collect()
}

impl There {
    fn of(pod: &Pod) -> Result<Self> {
        let metadata = &pod.metadata;
        let spec = pod.spec.as_ref().context("a pod without spec")?;
        let mut asks = Amounts::from([("pods".to_owned(), CARD)]);
        for container in &spec.containers {
            let asked = container.resources.as_ref().and_then(|resources| resources.requests.clone()).unwrap_or_default();
            for (resource, amount) in amounts(asked.iter())? {
                *asks.entry(resource).or_default() += amount;
            }
        }
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
        let share: Option<Quantity> = annotation("gpu-fraction").and_then(|share| share.parse().ok());
        Ok(Self {
            name: metadata.name.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            node: spec.node_name.clone().filter(|node| !node.is_empty()),
            gang: annotation("pod-group-name").cloned().unwrap_or_default(),
            leaves: metadata.deletion_timestamp.is_some(),
            asks,
            share: share.and_then(Quantity::milli).unwrap_or(0),
            groups: sharing::groups(metadata),
        })
    }

    fn is_reservation(&self) -> bool {
        self.namespace == RESERVATIONS
    }
}

impl Seen {
    fn put(&mut self, pod: &Pod) -> Result<()> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let there = There::of(pod)?;
        let life = self.lives.entry(uid.clone()).or_default();
        life.name = format!("{}/{}", there.namespace, there.name);
        life.nodes.extend(there.node.clone());
        if life.nodes.len() > 1 {
            self.wrong.insert(format!("{} ({uid}) was bound to {:?}", life.name, life.nodes));
        }
        let ended = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(ended, Some("Succeeded" | "Failed")) {
            self.there.remove(&uid);
        } else {
            self.there.insert(uid, there);
        }
        Ok(())
    }

    fn remove(&mut self, uid: &str) {
        self.there.remove(uid);
        if let Some(life) = self.lives.get_mut(uid) {
            life.gone = true;
        }
    }

    /// Nodes and cards, at this moment.
    fn judge(&mut self) {
        self.changes += 1;
        let mut held: BTreeMap<&str, Amounts> = BTreeMap::new();
        let mut shares: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        let mut reserved: BTreeSet<(&str, &str)> = BTreeSet::new();
        for pod in self.there.values() {
            let Some(node) = pod.node.as_deref() else { continue };
            let on_node = held.entry(node).or_default();
            for (resource, amount) in &pod.asks {
                *on_node.entry(resource.clone()).or_default() += amount;
            }
            for group in &pod.groups {
                if pod.is_reservation() {
                    reserved.insert((node, group));
                } else {
                    *shares.entry((node, group)).or_default() += pod.share;
                }
            }
        }
        let mut wrong = Vec::new();
        for (&(node, group), &share) in &shares {
            if share > CARD {
                wrong.push(format!("{share} thousandths of GPU group {group} on {node} are taken"));
            }
            // A card is taken though nobody holds it.
            if !reserved.contains(&(node, group)) {
                *held.entry(node).or_default().entry(GPU.to_owned()).or_default() += CARD;
            }
        }
        for (node, held) in held {
            let Some(capacity) = self.capacity.get(node) else {
                wrong.push(format!("pods are on {node}, which is no node"));
                continue;
            };
            for (resource, amount) in held.iter().filter(|(resource, amount)| **amount > *capacity.get(*resource).unwrap_or(&0)) {
                let on: Vec<_> =
                    self.there.values().filter(|pod| pod.node.as_deref() == Some(node)).map(|pod| &pod.name).collect();
                wrong.push(format!("{node}: {amount} thousandths of {resource} are taken, by {on:?}"));
            }
        }
        self.wrong.extend(wrong);
    }
}

/// Why it is not calm yet: what is wrong now and may pass. `gangs`: minimum members by pod group. Everything that is there has to
/// be bound, and nothing else may be left.
pub(crate) async fn calm(client: &Client, audit: &Audit, gangs: &BTreeMap<String, usize>) -> Result<Option<String>> {
    let there = audit.there();
    let work: Vec<_> = there.values().filter(|pod| pod.namespace == "default").collect();
    if let Some(pod) = work.iter().find(|pod| pod.leaves) {
        return Ok(Some(format!("{} is leaving", pod.name)));
    }
    for (gang, &least) in gangs {
        let bound = work.iter().filter(|pod| pod.gang == *gang && pod.node.is_some()).count();
        if (1..least).contains(&bound) {
            return Ok(Some(format!("{bound} of gang {gang} are bound, it needs {least}")));
        }
    }
    let waiting: Vec<_> = work.iter().filter(|pod| pod.node.is_none()).map(|pod| pod.name.as_str()).collect();
    if !waiting.is_empty() {
        return Ok(Some(format!("{} of {} pods are not bound: {waiting:?}", waiting.len(), work.len())));
    }
    if let Some(why) = cards(&there) {
        return Ok(Some(why));
    }
    let requests = api(client, "default", "scheduling.run.ai/v1alpha2", "BindRequest");
    let requests = requests.list(&ListParams::default()).await?.items;
    Ok(requests.iter().find_map(|request| left_over(request, &there)))
}

/// Each group that is used has one reservation, each reservation is used.
fn cards(there: &BTreeMap<String, There>) -> Option<String> {
    let mut held: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut used: BTreeSet<(&str, &str)> = BTreeSet::new();
    for pod in there.values() {
        let Some(node) = pod.node.as_deref() else { continue };
        for group in &pod.groups {
            if pod.is_reservation() {
                *held.entry((node, group)).or_default() += 1;
            } else {
                used.insert((node, group));
            }
        }
    }
    let leaked: Vec<_> = held.keys().filter(|group| !used.contains(*group)).collect();
    let twice: Vec<_> = held.iter().filter(|(_, count)| **count > 1).collect();
    let lost: Vec<_> = used.iter().filter(|group| !held.contains_key(*group)).collect();
    let wrong = !(leaked.is_empty() && twice.is_empty() && lost.is_empty());
    wrong.then(|| format!("reservations: leaked {leaked:?}, twice {twice:?}, lost {lost:?}"))
}

/// A BindRequest may outlive its success, but not its pod.
fn left_over(request: &DynamicObject, there: &BTreeMap<String, There>) -> Option<String> {
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let owner = request.metadata.owner_references.iter().flatten().find(|owner| owner.kind == "Pod");
    let Some(pod) = owner.and_then(|owner| there.get(&owner.uid)) else {
        return Some(format!("BindRequest {name} is of no pod"));
    };
    let phase = &request.data["status"]["phase"];
    let node = request.data["spec"]["selectedNode"].as_str();
    let right = phase == "Succeeded" && node == pod.node.as_deref();
    (!right).then(|| format!("BindRequest {name} to {node:?} is {phase}, its pod is on {:?}", pod.node))
}
