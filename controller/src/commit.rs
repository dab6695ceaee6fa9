//! Carries out what a cycle decided: binds, deletions, times.
//!
//! A pod is assumed to be where it was decided before the first byte is sent; a write that failed takes that back, and the next
//! cycle decides anew. Any write may be lost, late or done twice: binds name the pod's uid, and a conflict after an unclear
//! answer is looked into before it counts as a failure.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use muster_api::assumed::{Assumed, Becomes, GangBecomes};
use muster_api::live::Watched;
use muster_api::names::ObjectName;
use serde_json::{Value, json};

use crate::calls::{Failed, Writer, read};
use crate::events::{About, Events, Happened, Tone};
use crate::metrics::Metrics;
use crate::orders::{Bind, Marks, Orders};
use crate::run::{BindMode, Options};
use crate::watch::resource_of;

/// A pod that could not be bound is not tried for this long, twice as long after each further failure.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);
/// So long after an unclear answer nothing is decided about the pod: the server may still carry it out.
const UNCLEAR_REST: Duration = Duration::from_secs(5);
/// So often it is asked what came of it.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What the next cycle assumes.
pub type Ledger = Arc<Mutex<Assumed>>;

pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What commits need. Copies share everything.
#[derive(Clone)]
pub struct Committer {
    /// The API server.
    pub client: Client,
    /// Settings.
    pub options: Arc<Options>,
    /// Whether, when and how fast to write.
    pub writer: Writer,
    /// What the next cycle assumes.
    pub ledger: Ledger,
    /// Where events go.
    pub events: Events,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The shard's node pool, to be put on pods: key and value; `None`: the pool without value.
    pub pool: Option<(String, String)>,
    /// Whether `pods/binding` copies labels.
    pub binding_copies_labels: bool,
    /// Pods that could not be bound, by uid: how often.
    pub failures: Arc<Mutex<HashMap<String, u32>>>,
}

/// How a bind ended.
enum Bound {
    /// The pod is bound, or its request is there (with this uid).
    Yes(Option<String>),
    /// Not by us.
    No(Failed),
}

impl Committer {
    /// Assumes everything, then writes it, in tasks of `tasks`. Must be called within a runtime.
    pub fn commit(&self, orders: &Orders, now: Timestamp) -> Vec<impl Future<Output = ()> + Send + use<>> {
        self.assume(orders, now);
        orders.binds.iter().map(|bind| self.clone().bind(bind.clone())).collect()
    }

    fn assume(&self, orders: &Orders, now: Timestamp) {
        let mut ledger = lock(&self.ledger);
        for bind in &orders.binds {
            let becomes = Becomes::Placed { node: bind.node.clone(), groups: bind.groups.clone() };
            ledger.pod(bind.pod.clone(), bind.uid.clone(), becomes);
        }
        for leave in &orders.leaves {
            ledger.pod(leave.pod.clone(), leave.uid.clone(), Becomes::Leaves { since: now });
        }
        let nanoseconds = i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX);
        for (gang, marks) in &orders.marks {
            let becomes = GangBecomes {
                // Annotations hold whole seconds: what is seen later must not seem older than what was assumed.
                started: marks.starts.then_some(whole_seconds(nanoseconds)),
                evicted: marks.evicted.then_some(whole_seconds(nanoseconds)),
            };
            if becomes != GangBecomes::default() {
                ledger.gang(gang.clone(), becomes);
            }
        }
    }

    /// One pod, to the end.
    async fn bind(self, bind: Bind) {
        let began = Instant::now();
        let direct = bind.groups.is_empty() && self.options.bind_mode == BindMode::Direct;
        let bound = if direct { self.bind_directly(&bind).await } else { self.request(&bind).await };
        match bound {
            Bound::Yes(request) => {
                lock(&self.ledger).written(&bind.pod, &bind.uid, Timestamp::now(), request);
                lock(&self.failures).remove(&bind.uid);
                self.metrics.scheduler.bound(began.elapsed());
                if direct {
                    self.say_scheduled(&bind);
                }
            }
            Bound::No(failed) => self.not_bound(&bind, failed).await,
        }
    }

    async fn bind_directly(&self, bind: &Bind) -> Bound {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &bind.pod.namespace);
        let name = bind.pod.name.as_str();
        let mut metadata = json!({"name": name, "namespace": bind.pod.namespace, "uid": bind.uid,
            "annotations": {"received-resource-type": bind.received.kind}});
        if let Some((key, value)) = &self.pool {
            let labels = json!({key: value});
            if self.binding_copies_labels {
                metadata["labels"] = labels;
            } else {
                let patch = json!({"metadata": {"uid": bind.uid, "labels": labels}});
                let patched = self
                    .writer
                    .write(|| async { pods.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await })
                    .await;
                if let Err((failed, _)) = patched {
                    return Bound::No(failed);
                }
            }
        }
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node}});
        let parameters = PostParams::default();
        let written = self
            .writer
            .write(|| async { pods.create_subresource::<_, Value>("binding", name, &parameters, &binding).await })
            .await;
        match written {
            Ok(_) => Bound::Yes(None),
            // Somebody bound it: we ourselves, if an earlier try was carried out.
            Err((failed, unclear)) if unclear || failed.code() == Some(409) => self.look(bind, failed).await,
            Err((failed, _)) => Bound::No(failed),
        }
    }

    /// After an unclear answer: whether the pod is where it should be.
    async fn look(&self, bind: &Bind, failed: Failed) -> Bound {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &bind.pod.namespace);
        self.let_land(&failed).await;
        let Some(there) = self.find_out(|| pods.get_opt(&bind.pod.name)).await else { return Bound::No(Failed::Abandoned) };
        let ours = there.filter(|pod| pod.metadata.uid.as_deref() == Some(&bind.uid));
        let node = ours.and_then(|pod| pod.spec?.node_name);
        if node.as_deref() == Some(&bind.node) { Bound::Yes(None) } else { Bound::No(failed) }
    }

    /// A write without an answer may be carried out still.
    async fn let_land(&self, failed: &Failed) {
        if matches!(failed, Failed::Unknown(_)) {
            self.pause(UNCLEAR_REST).await;
        }
    }

    /// Asks until there is an answer, however long the server is away: as long as nobody knows where a pod is, its place stays
    /// taken. Given to another pod, both could end there. `None`: this process ends, or leads no longer.
    async fn find_out<T, F>(&self, ask: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        loop {
            if self.writer.stop().is_stopped() {
                return None;
            }
            match read(ask()).await {
                Ok(answer) => return Some(answer),
                Err(failed) => tracing::debug!(%failed, "whether a pod is bound is not known yet"),
            }
            self.pause(ASK_AGAIN).await;
        }
    }

    async fn pause(&self, duration: Duration) {
        tokio::select! {
            () = tokio::time::sleep(duration) => {}
            () = self.writer.stop().stopped() => {}
        }
    }

    /// A BindRequest, for the binder to carry out.
    async fn request(&self, bind: &Bind) -> Bound {
        let api = self.requests(&bind.pod.namespace);
        let Ok(request) = serde_json::from_value::<DynamicObject>(self.request_of(bind)) else {
            return Bound::No(Failed::refused(0, "a BindRequest that is none"));
        };
        // Once more after something old was removed.
        for _ in 0..2 {
            let parameters = PostParams::default();
            match self.writer.write(|| async { api.create(&parameters, &request).await }).await {
                Ok(made) => return Bound::Yes(made.metadata.uid),
                Err((failed, _)) if failed.code() == Some(409) => match self.there_already(&api, bind).await {
                    Some(Bound::No(_)) | None => tracing::debug!(pod = %bind.pod, %failed, "a BindRequest was in the way"),
                    Some(yes) => return yes,
                },
                Err((failed, true)) => {
                    self.let_land(&failed).await;
                    return match self.there_already(&api, bind).await {
                        Some(bound) => bound,
                        None => Bound::No(failed),
                    };
                }
                Err((failed, false)) => return Bound::No(failed),
            }
        }
        Bound::No(Failed::refused(409, "another BindRequest is in the way"))
    }

    /// A request of that name exists: ours is as good as made; one that failed, or of an earlier pod, is removed (`None`).
    async fn there_already(&self, api: &Api<DynamicObject>, bind: &Bind) -> Option<Bound> {
        let Some(there) = self.find_out(|| api.get_opt(&bind.pod.name)).await else { return Some(Bound::No(Failed::Abandoned)) };
        let there = there?;
        let owner = there.metadata.owner_references.iter().flatten().find(|owner| owner.kind == "Pod");
        let ours = owner.is_some_and(|owner| owner.uid == bind.uid);
        let failed = there.data["status"]["phase"] == "Failed";
        if ours && !failed {
            let same = there.data["spec"]["selectedNode"] == bind.node.as_str()
                && there.data["spec"].get("selectedGPUGroups").is_none_or(|groups| *groups == json!(bind.groups));
            let other = || Bound::No(Failed::refused(409, "a request for another node is under way"));
            return Some(if same { Bound::Yes(there.metadata.uid) } else { other() });
        }
        let uid = there.metadata.uid?;
        self.remove_request(&bind.pod, uid).await;
        None
    }

    /// Removes a request that failed, so that its pod is tried again.
    pub async fn remove_request(&self, name: &ObjectName, uid: String) {
        let api = self.requests(&name.namespace);
        let only_this = Preconditions { uid: Some(uid), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
        match self.writer.write(|| async { api.delete(&name.name, &parameters).await }).await {
            Ok(_) => {}
            Err((failed, _)) if failed.is_over() => {}
            Err((failed, _)) => tracing::warn!(request = %name, %failed, "a BindRequest that failed was not removed"),
        }
    }

    fn requests(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &resource_of(Watched::BindRequest))
    }

    fn request_of(&self, bind: &Bind) -> Value {
        let mut labels = json!({"selected-node": bind.node});
        if let Some((key, value)) = &self.pool {
            labels[key] = json!(value);
        }
        let mut spec = json!({"podName": bind.pod.name, "selectedNode": bind.node,
            "receivedResourceType": bind.received.kind,
            "receivedGPU": {"count": bind.received.count, "portion": bind.received.portion}});
        if !bind.groups.is_empty() {
            spec["selectedGPUGroups"] = json!(bind.groups);
        }
        json!({"apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest",
            "metadata": {"name": bind.pod.name, "namespace": bind.pod.namespace, "labels": labels,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": bind.pod.name, "uid": bind.uid}]},
            "spec": spec})
    }

    /// The pod is free again, but not at once: who cannot be bound must not keep others from being placed.
    async fn not_bound(self, bind: &Bind, failed: Failed) {
        self.metrics.scheduler.bind_failures.inc();
        if failed.is_not_found() || failed == Failed::Abandoned {
            return lock(&self.ledger).forget(&bind.pod, &bind.uid);
        }
        tracing::warn!(pod = %bind.pod, node = bind.node, %failed, "a pod was not bound");
        let text = format!("{}: not bound to {}: {failed}", bind.pod, bind.node);
        let about = About::pod(&bind.pod, &bind.uid);
        self.events.say(Happened::new(about, Tone::Warning, "FailedBinding", text.clone()));
        self.mark_failed(bind, text).await;
        let failures = {
            let mut failures = lock(&self.failures);
            let times = failures.entry(bind.uid.clone()).or_default();
            *times = times.saturating_add(1);
            *times
        };
        let rest = FIRST_REST.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_REST);
        lock(&self.ledger).pod(bind.pod.clone(), bind.uid.clone(), Becomes::Waits);
        self.pause(rest).await;
        lock(&self.ledger).forget(&bind.pod, &bind.uid);
    }

    async fn mark_failed(&self, bind: &Bind, message: String) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &bind.pod.namespace);
        let patch = json!({"metadata": {"uid": bind.uid}, "status": {"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "BindingError", "message": message, "lastTransitionTime": Timestamp::now().to_string()}]}});
        let patched = self
            .writer
            .write(|| async { pods.patch_status(&bind.pod.name, &PatchParams::default(), &Patch::Strategic(&patch)).await })
            .await;
        if let Err((failed, _)) = patched {
            tracing::debug!(pod = %bind.pod, %failed, "its condition was not written");
        }
    }

    fn say_scheduled(&self, bind: &Bind) {
        let pool = self.pool.as_ref().map_or("default", |(_, value)| value.as_str());
        let said = format!("Bound {} to node {} of node pool {pool}", bind.pod, bind.node);
        self.events.say(Happened::new(About::pod(&bind.pod, &bind.uid), Tone::Normal, "Scheduled", said).always());
    }

    /// The times of one pod group, in one write.
    pub async fn mark(self, gang: ObjectName, marks: Marks, now: Timestamp) {
        let time = second(now).to_string();
        let mut annotations = serde_json::Map::new();
        let mut set = |name: &str, value: Value| annotations.insert(format!("kai.scheduler/{name}"), value);
        if marks.starts {
            set("last-start-timestamp", json!(time));
        }
        if marks.evicted {
            set("last-eviction-timestamp", json!(time));
        }
        match marks.stale {
            Some(true) => drop(set("stale-podgroup-timestamp", json!(time))),
            Some(false) => drop(set("stale-podgroup-timestamp", Value::Null)),
            None => {}
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &gang.namespace, &resource_of(Watched::PodGroup));
        let patch = json!({"metadata": {"annotations": annotations}});
        let patched = self
            .writer
            .write(|| async { api.patch_metadata(&gang.name, &PatchParams::default(), &Patch::Merge(&patch)).await })
            .await;
        match patched {
            Ok(_) => {}
            Err((failed, _)) if failed.is_not_found() => {}
            Err((failed, _)) => tracing::warn!(gang = %gang, %failed, "times of a pod group were not written"),
        }
    }
}

/// Nanoseconds, cut to seconds.
const fn whole_seconds(nanoseconds: i64) -> i64 {
    nanoseconds - nanoseconds.rem_euclid(1_000_000_000)
}

fn second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
