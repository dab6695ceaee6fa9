//! The role that carries out BindRequests: holds shared GPUs, tells pods which they were given, binds, and says how it went
//! (wire-contract.md §4).
//!
//! Every step can be repeated, so a binder that was killed goes on where it was: reservations have names that follow from what
//! they are for, a pod that is bound is not bound again, and what was left half done is found from labels. What KAI does
//! differently is corrected here: a request that waits for its next attempt is not called bound, counted failures reach the
//! server, and a reservation that has not said which GPU it has is waited for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use futures::future::join;
use k8s_openapi::api::core::v1::{Binding, ConfigMap, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use muster_api::crds::bindrequest::BindRequest;
use muster_api::live::{Seen, Watched};
use muster_api::names::ObjectName;
use muster_api::sharing::{self, NUMA_PREDICTED, RECEIVED_TYPE};
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::binder_known::{Known, Request};
use crate::binder_report::Reporter;
use crate::calls::{Failed, Writer, read, settled};
use crate::events::Events;
use crate::lease::Lead;
use crate::reservations::{Reservations, Unheld};
use crate::run::{Context, Options, Stop};
use crate::watch::{Told, follow};
use crate::work::{Backoff, Ended, Work};

/// Of requests to a server that does not answer, and of a pod that cannot be bound to a node (wire-contract.md §4.2).
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// Requests that are under way, most of them waiting for a GPU to be told.
const MOST_UNDER_WAY: usize = 4096;
/// Of these, how many speak with the server at once.
const MOST_SPEAKING: usize = 32;
/// Groups that are brought in order at once.
const MOST_SYNCS: usize = 4;
/// Every group is looked at this often, whatever was told.
const LOOK_AROUND: Duration = Duration::from_secs(60);
/// How long a failure counts against a pod and node.
const REMEMBER: Duration = Duration::from_secs(600);
const FAKE_NODE: &str = "run.ai/fake.gpu";

/// How often a pod could not be bound to a node lately.
#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

struct Binder {
    client: Client,
    writer: Writer,
    known: Arc<Known>,
    reservations: Reservations,
    reporter: Reporter,
    speaking: Semaphore,
    /// By uid of the pod, and node.
    failures: Mutex<HashMap<(String, String), Failures>>,
    requests: Work<ObjectName, Arc<Request>>,
    syncs: Work<String, ()>,
}

/// Why a pod was not bound.
enum Unbound {
    /// Nobody wants it any more.
    Moot,
    /// The request was made for an earlier pod of that name.
    Stale,
    /// It is bound to another node.
    Elsewhere(String),
    /// It cannot be bound like this; for people.
    Failed(String),
    /// Whether it is bound is not known, or the server cannot be reached: to be looked at again.
    Unclear(String),
}

impl From<Failed> for Unbound {
    fn from(failed: Failed) -> Self {
        if failed.is_final() { Self::Failed(failed.to_string()) } else { Self::Unclear(failed.to_string()) }
    }
}

impl From<Unheld> for Unbound {
    fn from(unheld: Unheld) -> Self {
        match unheld {
            Unheld::Refused(said) => Self::Failed(said),
            Unheld::Failed(failed) => failed.into(),
            Unheld::Passing(said) => Self::Unclear(said),
        }
    }
}

/// Runs until told to stop.
///
/// # Errors
/// None so far: what fails is tried again.
pub async fn run(context: Context) -> Result<()> {
    serve(context.client, context.lead, context.stop, &context.options).await
}

/// The same, for whoever has no more than this.
///
/// # Errors
/// As [`run`].
pub async fn serve(client: Client, lead: Lead, stop: Stop, options: &Options) -> Result<()> {
    if options.observe {
        stop.stopped().await;
        return Ok(());
    }
    let (writer, mut tasks) = (Writer::new(lead, stop.clone()), JoinSet::new());
    let events = Events::start(client.clone(), "binder", &writer, &mut tasks);
    let binder = Arc::new(Binder::new(client, writer, events, options));
    let (pods, requests) = (watch::channel(false), watch::channel(false));
    let told = |kind: Watched, listed: watch::Sender<bool>| {
        let (binder, client) = (Arc::clone(&binder), binder.client.clone());
        async move { follow(client, kind, move |told| binder.take(kind, told, &listed)).await }
    };
    let watches = join(told(Watched::Pod, pods.0), told(Watched::BindRequest, requests.0));
    let works = async {
        // What is cleared away is what nobody names: so all names have to be known.
        for mut known in [pods.1, requests.1] {
            let _ = known.wait_for(|listed| *listed).await;
        }
        let look_around = async {
            loop {
                binder.sync_all(binder.known.groups());
                tokio::time::sleep(LOOK_AROUND).await;
            }
        };
        let carry_out = |_: ObjectName, request: Arc<Request>| {
            let binder = Arc::clone(&binder);
            async move { binder.carry_out(request).await }
        };
        let sync = |group: String, (): ()| {
            let binder = Arc::clone(&binder);
            async move { binder.sync(&group).await }
        };
        join(look_around, join(binder.requests.drain(MOST_UNDER_WAY, carry_out), binder.syncs.drain(MOST_SYNCS, sync))).await;
    };
    tokio::select! {
        () = stop.stopped() => {}
        _ = watches => {}
        () = works => {}
    }
    Ok(())
}

impl Binder {
    fn new(client: Client, writer: Writer, events: Events, options: &Options) -> Self {
        let known = Arc::new(Known::new());
        let reservations = Reservations {
            client: client.clone(),
            writer: writer.clone(),
            known: Arc::clone(&known),
            settings: options.reservation.clone(),
            events: events.clone(),
            spare: options.pause_evictions,
            locks: Mutex::default(),
        };
        Self {
            reporter: Reporter { client: client.clone(), writer: writer.clone(), events },
            client,
            writer,
            known,
            reservations,
            speaking: Semaphore::new(MOST_SPEAKING),
            failures: Mutex::default(),
            requests: Work::new(BACKOFF),
            syncs: Work::new(BACKOFF),
        }
    }

    fn take(&self, kind: Watched, told: Told, listed: &watch::Sender<bool>) -> bool {
        let namespace = &self.reservations.settings.namespace;
        let pods = kind == Watched::Pod;
        let touched = match told {
            Told::Put(Seen::Pod(pod)) => self.known.put_pod(&pod, namespace),
            Told::Put(Seen::Ours(_, tree)) => {
                let (request, touched) = self.known.put_request(tree);
                if let Some(request) = request {
                    self.requests.put(request.name.clone(), request);
                }
                touched
            }
            Told::Gone { namespace: of, name } => {
                let name = ObjectName { namespace: of, name };
                if pods {
                    self.known.remove_pod(&name, namespace)
                } else {
                    self.requests.forget(&name);
                    self.known.remove_request(&name)
                }
            }
            Told::ListBegins => {
                self.known.begin(pods, namespace);
                Vec::new()
            }
            Told::ListEnds => {
                let touched = self.known.finish(pods, namespace);
                listed.send_replace(true);
                touched
            }
            Told::Put(_) | Told::Resumed | Told::Lost(_) => Vec::new(),
        };
        self.sync_all(touched);
        true
    }

    fn sync_all(&self, groups: impl IntoIterator<Item = String>) {
        groups.into_iter().for_each(|group| self.syncs.put(group, ()));
    }

    async fn sync(&self, group: &str) -> Ended<()> {
        match self.reservations.sync(group).await {
            Ok(()) => Ended::Done,
            Err(error) => {
                tracing::warn!(group, %error, "a GPU group could not be brought in order yet");
                Ended::Failed(())
            }
        }
    }

    async fn speak(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.speaking.acquire().await.ok()
    }

    async fn carry_out(&self, request: Arc<Request>) -> Ended<Arc<Request>> {
        let key = (request.pod_uid.clone().unwrap_or_else(|| request.uid.clone()), request.node().to_owned());
        if let Some(pause) = self.hold_off(&key) {
            return Ended::Later(request, pause);
        }
        let bound = {
            let _attempt = self.known.attempt(request.groups());
            self.bind(&request).await
        };
        // While it was under way its groups were left alone.
        self.sync_all(request.groups().iter().cloned());
        let _permit = self.speak().await;
        match bound {
            Ok(pod) => {
                self.lock_failures().remove(&key);
                match self.reporter.succeeded(&request, &pod).await {
                    Ok(()) => Ended::Done,
                    Err(failed) => again(request, &failed.to_string()),
                }
            }
            Err(Unbound::Moot) => Ended::Done,
            Err(Unbound::Stale) => match self.withdraw(&request).await {
                Ok(()) => Ended::Done,
                Err(failed) => again(request, &failed.to_string()),
            },
            Err(Unbound::Unclear(said)) => again(request, &said),
            Err(Unbound::Elsewhere(said)) => self.fail(request, &said, false).await,
            Err(Unbound::Failed(said)) => {
                self.remember(key);
                self.fail(request, &said, true).await
            }
        }
    }

    /// Says that an attempt failed, and tries again if the request allows it.
    async fn fail(&self, request: Arc<Request>, said: &str, tell_pod: bool) -> Ended<Arc<Request>> {
        let attempts = request.failed_attempts.saturating_add(1);
        tracing::warn!(request = %request.name, node = request.node(), attempts, said, "not bound");
        if let Err(failed) = self.reporter.failed(&request, attempts, said, tell_pod).await {
            return again(request, &failed.to_string());
        }
        if request.spec.backoff_limit.is_none_or(|limit| attempts >= limit) {
            return Ended::Done;
        }
        let pause = BACKOFF.after(u32::try_from(attempts).unwrap_or(u32::MAX));
        Ended::Later(Arc::new(Request { failed_attempts: attempts, ..(*request).clone() }), pause)
    }

    fn lock_failures(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Failures>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a pod that could not be bound to this node has to wait still.
    fn hold_off(&self, key: &(String, String)) -> Option<Duration> {
        let failures = *self.lock_failures().get(key)?;
        BACKOFF.after(failures.count).checked_sub(failures.last.elapsed()).filter(|pause| !pause.is_zero())
    }

    fn remember(&self, key: (String, String)) {
        let mut all = self.lock_failures();
        all.retain(|_, failures| failures.last.elapsed() < REMEMBER);
        let failures = all.entry(key).or_insert(Failures { count: 0, last: Instant::now() });
        *failures = Failures { count: failures.count + 1, last: Instant::now() };
    }

    /// Whether the request that is being carried out is still there.
    fn is_wanted(&self, request: &Request) -> bool {
        self.known.request(&request.name).is_some_and(|now| now.uid == request.uid && !now.deleting)
    }

    async fn withdraw(&self, request: &Request) -> Result<(), Failed> {
        let api: Api<BindRequest> = Api::namespaced(self.client.clone(), &request.name.namespace);
        let preconditions = Preconditions { uid: Some(request.uid.clone()), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        settled(self.writer.once(api.delete(&request.name.name, &parameters)).await)
    }

    /// The whole way; the pod as it was before, once it is bound.
    async fn bind(&self, request: &Request) -> Result<Pod, Unbound> {
        let permit = self.speak().await;
        if !self.is_wanted(request) {
            return Err(Unbound::Moot);
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &request.name.namespace);
        let Some(pod) = read(pods.get_opt(request.pod())).await? else {
            return Err(Unbound::Failed(format!("there is no pod {}", request.pod())));
        };
        if request.pod_uid.as_ref().is_some_and(|uid| pod.metadata.uid.as_ref() != Some(uid)) {
            return Err(Unbound::Stale);
        }
        match node_of(&pod) {
            Some(node) if node == request.node() => return Ok(pod),
            Some(node) => return Err(Unbound::Elsewhere(format!("the pod is bound to node {node} already"))),
            None => {}
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return Err(Unbound::Elsewhere("the pod is being deleted".to_owned()));
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let Some(node) = read(nodes.get_opt(request.node())).await? else {
            return Err(Unbound::Failed(format!("there is no node {}", request.node())));
        };
        let claims = request.spec.resource_claim_allocations.as_ref().is_some_and(|claims| !claims.is_empty());
        if claims || request.spec.extended_resource_claim_allocation.is_some() {
            return Err(Unbound::Failed("resource claims are not bound by this version of Muster".to_owned()));
        }
        let given = if request.shares() {
            drop(permit);
            let given = self.prepare(request, &pod, is_fake(&node)).await;
            let _permit = self.speak().await;
            match given {
                Ok(given) => given,
                Err(unbound) => return Err(self.roll_back(request, &pod, unbound).await),
            }
        } else {
            drop(permit);
            Prepared::default()
        };
        let _permit = self.speak().await;
        match self.commit(request, &pod, &pods, &given).await {
            Ok(()) => Ok(pod),
            Err(unbound) => Err(self.roll_back(request, &pod, unbound).await),
        }
    }

    /// Holds the cards, and writes what the containers of the pod will read. The permit to speak is not kept while a card has
    /// not said which it is.
    async fn prepare(&self, request: &Request, pod: &Pod, fake: bool) -> Result<Prepared, Unbound> {
        if request.groups().is_empty() {
            return Err(Unbound::Failed("the request is for a share of a GPU but names no GPU group".to_owned()));
        }
        let wiring = match sharing::wiring(pod) {
            Ok(wiring) => Some(wiring),
            // A node that only plays has nothing that containers could see too much of.
            Err(_) if fake => None,
            Err(said) => return Err(Unbound::Failed(said)),
        };
        let mut names = Vec::new();
        for group in request.groups() {
            let _permit = self.speak().await;
            names.push((self.reservations.ensure(request.node(), group, pod, fake).await?, group));
        }
        let mut gpus: Vec<String> = Vec::new();
        for (name, group) in names {
            let gpu = self.reservations.gpu(&name, group).await?;
            if gpus.contains(&gpu) {
                return Err(Unbound::Failed(format!("GPU {gpu} was given twice")));
            }
            gpus.push(gpu);
        }
        let portion = request.spec.received_gpu.as_ref().and_then(|gpu| gpu.portion.clone()).unwrap_or_default();
        let _permit = self.speak().await;
        if let Some(wiring) = &wiring {
            for wanted in sharing::config_maps(pod, wiring, &gpus, &portion, false) {
                self.upsert(&wanted).await?;
            }
        }
        Ok(Prepared { labels: sharing::label_changes(&pod.metadata, request.groups()) })
    }

    async fn upsert(&self, wanted: &ConfigMap) -> Result<(), Failed> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), wanted.metadata.namespace.as_deref().unwrap_or_default());
        let name = wanted.metadata.name.as_deref().unwrap_or_default();
        match self.writer.once(api.create(&PostParams::default(), wanted)).await {
            Ok(_) => return Ok(()),
            Err(failed) if failed.is_already_exists() => {}
            Err(failed) => return Err(failed),
        }
        let there = read(api.get(name)).await?;
        if let Some(after) = sharing::merged(&there, wanted) {
            self.writer.once(api.replace(name, &PostParams::default(), &after)).await?;
        }
        Ok(())
    }

    /// Labels first, so that the card is held for whoever is bound; then the binding itself, once, for this very pod.
    async fn commit(&self, request: &Request, pod: &Pod, pods: &Api<Pod>, given: &Prepared) -> Result<(), Unbound> {
        let (name, uid) = (request.pod(), pod.metadata.uid.clone());
        if !given.labels.is_empty() {
            let patch = Patch::Merge(json!({"metadata": {"labels": given.labels, "uid": uid}}));
            self.writer.once(pods.patch(name, &PatchParams::default(), &patch)).await?;
        }
        if !self.is_wanted(request) {
            return Err(Unbound::Moot);
        }
        let mut annotations = std::collections::BTreeMap::new();
        if let Some(received) = &request.spec.received_resource_type {
            annotations.insert(RECEIVED_TYPE.to_owned(), received.clone());
        }
        if let Some(zones) = request.spec.predicted_numa_zones.as_ref().filter(|zones| !zones.is_empty()) {
            annotations.insert(NUMA_PREDICTED.to_owned(), json!(zones).to_string());
        }
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(request.name.namespace.clone()),
                uid: uid.clone(),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(request.node().to_owned()),
                ..ObjectReference::default()
            },
        };
        let parameters = PostParams::default();
        let sent = pods.create_subresource::<_, serde_json::Value>("binding", name, &parameters, &binding);
        let Err(failed) = self.writer.once(sent).await else { return Ok(()) };
        // It may be bound all the same, by this attempt or by an earlier one whose answer was lost.
        match read(pods.get_opt(name)).await {
            Ok(Some(now)) if now.metadata.uid == uid => match node_of(&now) {
                Some(node) if node == request.node() => Ok(()),
                Some(node) => Err(Unbound::Elsewhere(format!("the pod is bound to node {node} already"))),
                // A conflict with a pod that is not bound: its uid is right, so it is being deleted, or gated.
                None if failed.is_final() || failed.is_conflict() => Err(Unbound::Failed(failed.to_string())),
                None => Err(Unbound::Unclear(failed.to_string())),
            },
            Ok(_) => Err(Unbound::Moot),
            Err(_) => Err(Unbound::Unclear(failed.to_string())),
        }
    }

    /// Takes back what was written for a pod that is not bound. What cannot be taken back now is found later: ConfigMaps go
    /// with the pod, labels and reservations when the group is brought in order.
    async fn roll_back(&self, request: &Request, pod: &Pod, why: Unbound) -> Unbound {
        if !request.shares() || !matches!(why, Unbound::Failed(_) | Unbound::Elsewhere(_) | Unbound::Moot) {
            return why;
        }
        if let Ok(wiring) = sharing::wiring(pod) {
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &request.name.namespace);
            let elsewhere = matches!(why, Unbound::Elsewhere(_));
            for name in [&wiring.capabilities, &wiring.direct].into_iter().filter(|_| !elsewhere) {
                if let Err(failed) = self.writer.once(api.delete(name, &DeleteParams::default())).await
                    && !failed.is_not_found()
                {
                    tracing::debug!(config_map = name, %failed, "left to the pod's end");
                }
            }
        }
        why
    }
}

/// The same again, after a while.
fn again(request: Arc<Request>, said: &str) -> Ended<Arc<Request>> {
    tracing::warn!(request = %request.name, node = request.node(), said, "not bound yet");
    Ended::Failed(request)
}

/// What has to be on a pod before it is bound.
#[derive(Default)]
struct Prepared {
    labels: serde_json::Map<String, serde_json::Value>,
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

fn is_fake(node: &Node) -> bool {
    node.metadata.labels.as_ref().and_then(|labels| labels.get(FAKE_NODE)).is_some_and(|value| value == "true")
}
