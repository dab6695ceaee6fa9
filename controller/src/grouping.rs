//! The role that makes a PodGroup for each workload: follows pods, walks up to who owns them, makes or mends the group, and
//! writes its name on the pod. What a group says is decided in [`muster_api::grouping`].
//!
//! Each step may be repeated: a group that is there is compared, a pod that knows its group is left alone. The group is made
//! before a pod names it, so that a pod never names one that is not there.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::join;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use muster_api::crds::podgroup::PodGroup;
use muster_api::grouping::{self, Grouping, Owner, POD_GROUP, Rules};
use muster_api::live::{Seen, Watched};
use muster_api::names::ObjectName;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::calls::{Failed, Writer, read};
use crate::events::{About, Events, Happened, Tone};
use crate::grouping_owners::{Owners, Walk};
use crate::lease::Lead;
use crate::run::{Context, Options, Stop};
use crate::watch::{Told, follow};
use crate::work::{Backoff, Ended, Work};

const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(60) };
/// Pods that are looked at at a time.
const CONCURRENCY: usize = 16;
/// What was found in order is believed for this long; then the next event looks again, since owners are not followed.
const TRUST: Duration = Duration::from_secs(30);
/// An owner may be made, or unmade, at the same time as the pod: only who fails this often is told.
const QUIET_FAILURES: u32 = 2;
/// KAI's reason of such events (wire-contract.md §6.1).
const WARNING: &str = "PodGrouperWarning";

/// A pod to be looked at, and how often that has failed.
struct Task {
    pod: Box<Pod>,
    failures: u32,
}

/// What was in order: hash of what mattered, and since when.
#[derive(Clone, Copy)]
struct InOrder {
    hash: u64,
    since: Instant,
}

impl InOrder {
    fn now(hash: u64) -> Self {
        Self { hash, since: Instant::now() }
    }

    fn holds(self, hash: u64) -> bool {
        self.hash == hash && self.since.elapsed() < TRUST
    }
}

#[derive(Default)]
struct Memory {
    pods: HashMap<ObjectName, InOrder>,
    groups: HashMap<ObjectName, InOrder>,
    /// All PodGroups that are there, made by whomever.
    there: HashSet<ObjectName>,
    /// Pods by the group that they were put into.
    members: HashMap<ObjectName, HashSet<String>>,
    classes: HashSet<String>,
}

struct Grouper {
    client: Client,
    writer: Writer,
    rules: Rules,
    owners: Owners,
    events: Events,
    memory: Mutex<Memory>,
    /// Groups that are being made.
    turns: Mutex<HashMap<ObjectName, Arc<tokio::sync::Mutex<()>>>>,
    work: Work<ObjectName, Task>,
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
    let events = Events::start(client.clone(), "pod-grouper", &writer, &mut tasks);
    let grouper = Arc::new(Grouper {
        client: client.clone(),
        writer,
        rules: Rules {
            scheduler_name: options.scheduler_name.clone(),
            queue_label_key: options.queue_label_key.clone(),
            node_pool_label_key: options.node_pool_label_key.clone(),
        },
        owners: Owners::new(client.clone()),
        events,
        memory: Mutex::default(),
        turns: Mutex::default(),
        work: Work::new(BACKOFF),
    });
    // Which classes and groups there are has to be known first.
    let (classes, groups) = (watch::channel(false), watch::channel(false));
    let told = |at: &Arc<Grouper>, kind: Watched, listed: watch::Sender<bool>| {
        let (at, client) = (Arc::clone(at), client.clone());
        async move { follow(client, kind, move |told| at.take(kind, told, &listed)).await }
    };
    let listed = watch::channel(false).0;
    let watches = join(
        join(told(&grouper, Watched::PriorityClass, classes.0), told(&grouper, Watched::PodGroup, groups.0)),
        told(&grouper, Watched::Pod, listed),
    );
    let works = async {
        for mut known in [classes.1, groups.1] {
            let _ = known.wait_for(|listed| *listed).await;
        }
        let handle = |name: ObjectName, task: Task| {
            let grouper = Arc::clone(&grouper);
            async move { grouper.attend(name, task).await }
        };
        grouper.work.drain(CONCURRENCY, handle).await;
    };
    tokio::select! {
        () = stop.stopped() => {}
        _ = watches => {}
        () = works => {}
    }
    Ok(())
}

impl Grouper {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, kind: Watched, told: Told, listed: &watch::Sender<bool>) -> bool {
        match told {
            Told::Put(Seen::Pod(pod)) => self.see(pod),
            Told::Put(Seen::PriorityClass(class)) => {
                self.memory().classes.extend(class.metadata.name);
            }
            Told::Put(Seen::Ours(Watched::PodGroup, tree)) => {
                let text = |field: &str| tree["metadata"][field].as_str().unwrap_or_default().to_owned();
                self.memory().there.insert(ObjectName { namespace: text("namespace"), name: text("name") });
            }
            Told::Gone { namespace, name } => self.lose(kind, ObjectName { namespace, name }),
            // What vanished while nobody watched: a group that is believed to be there is found missing when it is read.
            Told::ListEnds => drop(listed.send_replace(true)),
            Told::Put(_) | Told::ListBegins | Told::Resumed | Told::Lost(_) => {}
        }
        true
    }

    fn see(&self, pod: Box<Pod>) {
        let name = name_of(&pod.metadata);
        if !grouping::concerns(&pod, &self.rules) {
            self.work.forget(&name);
            self.memory().pods.remove(&name);
            return;
        }
        if self.memory().pods.get(&name).is_some_and(|known| known.holds(fingerprint(&pod))) {
            return;
        }
        self.work.put(name, Task { pod, failures: 0 });
    }

    fn lose(self: &Arc<Self>, kind: Watched, name: ObjectName) {
        match kind {
            Watched::Pod => {
                self.work.forget(&name);
                let mut memory = self.memory();
                memory.pods.remove(&name);
                memory.members.retain(|group, pods| {
                    if group.namespace == name.namespace {
                        pods.remove(&name.name);
                    }
                    !pods.is_empty()
                });
            }
            Watched::PriorityClass => drop(self.memory().classes.remove(&name.name)),
            Watched::PodGroup => {
                let mut memory = self.memory();
                memory.there.remove(&name);
                memory.groups.remove(&name);
                let members = memory.members.remove(&name).unwrap_or_default();
                let members: Vec<_> =
                    members.into_iter().map(|pod| ObjectName { namespace: name.namespace.clone(), name: pod }).collect();
                for pod in &members {
                    memory.pods.remove(pod);
                }
                drop(memory);
                self.look_again(members);
            }
            _ => {}
        }
    }

    /// A group that somebody deleted is made anew for the pods that are still there.
    fn look_again(self: &Arc<Self>, pods: Vec<ObjectName>) {
        if pods.is_empty() {
            return;
        }
        let grouper = Arc::clone(self);
        tokio::spawn(async move {
            for name in pods {
                let api: Api<Pod> = Api::namespaced(grouper.client.clone(), &name.namespace);
                match read(api.get_opt(&name.name)).await {
                    Ok(Some(pod)) => grouper.see(Box::new(pod)),
                    Ok(None) => {}
                    Err(error) => tracing::warn!(pod = %name, %error, "not looked at again until it changes"),
                }
            }
        });
    }

    async fn attend(&self, name: ObjectName, task: Task) -> Ended<Task> {
        let Task { pod, failures } = task;
        let (said, visible) = match self.settle(&pod).await {
            Ok(()) => return Ended::Done,
            // A write for something that has changed meanwhile, or a server that is not there: the next attempt will see.
            Err(Problem::Server(failed)) => (failed.to_string(), failed.is_final()),
            Err(Problem::Owner(text)) => (text, failures >= QUIET_FAILURES),
            Err(Problem::User(text)) => (text, true),
        };
        tracing::debug!(pod = %name, failures, said, "not grouped");
        if visible {
            self.events.say(Happened::new(About::this_pod(&pod.metadata), Tone::Warning, WARNING, said));
        }
        Ended::Failed(Task { pod, failures: failures + 1 })
    }

    async fn settle(&self, pod: &Pod) -> Result<(), Problem> {
        let owners = match self.owners.of(pod).await {
            Walk::Found(owners) => owners,
            Walk::Skipped => return Ok(()),
            Walk::Missing(text) => return Err(Problem::Owner(text)),
            Walk::Failed(failed) => return Err(Problem::Server(failed)),
        };
        let grouping = self.grouping(pod, &owners).map_err(Problem::User)?;
        for warning in &grouping.warnings {
            self.events.say(Happened::new(About::this_pod(&pod.metadata), Tone::Warning, WARNING, warning));
        }
        self.ensure(&grouping.group).await.map_err(Problem::Server)?;
        let name = name_of(&pod.metadata);
        if let Some(patch) = grouping::membership(pod, &grouping) {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &name.namespace);
            match self.writer.once(api.patch(&name.name, &PatchParams::default(), &Patch::Merge(&patch))).await {
                Ok(_) => {}
                // Gone, or another pod of that name is there: nothing to be done for this one.
                Err(failed) if failed.is_over() => return Ok(()),
                Err(failed) => return Err(Problem::Server(failed)),
            }
        }
        let group = name_of(&grouping.group.metadata);
        let hash = fingerprint_in(pod, &group.name);
        let mut memory = self.memory();
        memory.members.entry(group).or_default().insert(name.name.clone());
        memory.pods.insert(name, InOrder::now(hash));
        Ok(())
    }

    fn grouping(&self, pod: &Pod, owners: &[Owner]) -> Result<Grouping, String> {
        let memory = self.memory();
        grouping::group(pod, owners, &self.rules, |class| memory.classes.contains(class))
    }

    /// Makes the group, or mends what is there; once for all of its pods, which come together.
    async fn ensure(&self, wanted: &PodGroup) -> Result<(), Failed> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever has or awaits a turn has a copy.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(name_of(&wanted.metadata)).or_default())
        };
        let _turn = turn.lock().await;
        self.make_or_mend(wanted).await
    }

    async fn make_or_mend(&self, wanted: &PodGroup) -> Result<(), Failed> {
        let name = name_of(&wanted.metadata);
        let hash = hash_of(&serde_json::to_string(wanted).unwrap_or_default());
        let mut there = {
            let memory = self.memory();
            if memory.groups.get(&name).is_some_and(|known| known.holds(hash)) {
                return Ok(());
            }
            memory.there.contains(&name)
        };
        let api: Api<PodGroup> = Api::namespaced(self.client.clone(), &name.namespace);
        if !there {
            match self.writer.once(api.create(&PostParams::default(), wanted)).await {
                Ok(_) => {}
                Err(failed) if failed.is_already_exists() => there = true,
                Err(failed) => return Err(failed),
            }
        }
        if there {
            let Some(live) = read(api.get_opt(&name.name)).await? else {
                self.memory().there.remove(&name);
                return Box::pin(self.make_or_mend(wanted)).await;
            };
            if let Some(patch) = grouping::update(&live, wanted, &self.rules) {
                self.writer.once(api.patch(&name.name, &PatchParams::default(), &Patch::Merge(&patch))).await?;
            }
        }
        self.memory().groups.insert(name, InOrder::now(hash));
        Ok(())
    }
}

/// Why a pod could not be grouped.
enum Problem {
    /// Its owner is not there (yet, or any more).
    Owner(String),
    /// Something that was written cannot be understood.
    User(String),
    /// A request failed.
    Server(Failed),
}

pub(crate) fn name_of(metadata: &ObjectMeta) -> ObjectName {
    ObjectName { namespace: metadata.namespace.clone().unwrap_or_default(), name: metadata.name.clone().unwrap_or_default() }
}

fn hash_of(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// What of a pod decides its group, and whether it knows it.
fn fingerprint(pod: &Pod) -> u64 {
    let group = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(POD_GROUP));
    fingerprint_in(pod, group.map_or("", String::as_str))
}

fn fingerprint_in(pod: &Pod, group: &str) -> u64 {
    let metadata = &pod.metadata;
    let annotations: Vec<_> = metadata.annotations.iter().flatten().filter(|(key, _)| *key != POD_GROUP).collect();
    let owners: Vec<_> = metadata.owner_references.iter().flatten().map(|owner: &OwnerReference| &owner.uid).collect();
    let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
    hash_of(&(&metadata.uid, &metadata.labels, annotations, owners, class, group))
}
