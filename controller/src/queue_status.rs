//! The roles that keep the status of PodGroups and of Queues: what their pods hold and ask for, added up (controllers.md §2.1,
//! §2.2). How it is added up is in [`muster_api::usage`]; here it is collected, and written where it differs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use muster_api::crds::podgroup::{PodGroupSpec, ResourcesStatus};
use muster_api::grouping::POD_GROUP;
use muster_api::live::{Seen, Watched};
use muster_api::names::ObjectName;
use muster_api::once::Once;
use muster_api::usage::{self, Usage};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::calls::{Failed, Writer};
use crate::grouping::name_of;
use crate::lease::Lead;
use crate::run::{Context, Options, Stop};
use crate::watch::{Told, follow, resource_of};
use crate::work::{Backoff, Ended, Work};

const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(60) };
const CONCURRENCY: usize = 64;
/// Pods come, start and end in crowds: their group is added up once for all that happen within this time.
const SETTLE: Duration = Duration::from_millis(200);

/// A pod of ours, and the group that it is in.
struct Counted {
    group: ObjectName,
    node: Option<String>,
    usage: Arc<Usage>,
    /// Asks for GPU memory: counted anew when its node says how much a card has.
    pod: Option<Box<Pod>>,
}

#[derive(Default)]
struct Group {
    spec: PodGroupSpec,
    /// `status.resourcesStatus`.
    status: Arc<Value>,
}

#[derive(Default)]
struct Class {
    value: i32,
    global: bool,
}

/// What both roles know. Names that a list has begun to show and not shown yet are in `unseen`.
#[derive(Default)]
struct Tables {
    pods: HashMap<ObjectName, Counted>,
    usages: Once<Usage>,
    statuses: Once<Value>,
    members: HashMap<ObjectName, HashSet<ObjectName>>,
    groups: HashMap<ObjectName, Group>,
    nodes: HashMap<String, Option<i64>>,
    classes: HashMap<String, Class>,
    /// Parent and status.
    queues: BTreeMap<String, (Option<String>, Value)>,
    unseen: HashMap<Watched, HashSet<ObjectName>>,
}

struct Keeper {
    client: Client,
    writer: Writer,
    scheduler_name: String,
    tables: Mutex<Tables>,
    /// Whether PodGroups or Queues are kept.
    groups: bool,
    /// Groups to be looked at.
    work: Work<ObjectName, ()>,
    /// Queues are looked at all at once.
    changed: watch::Sender<u64>,
}

/// Keeps `status.resourcesStatus` of PodGroups until told to stop.
///
/// # Errors
/// None so far: what fails is tried again.
pub async fn run_groups(context: Context) -> Result<()> {
    serve(context.client, context.lead, context.stop, &context.options, true).await
}

/// Keeps the status of Queues until told to stop.
///
/// # Errors
/// None so far: what fails is tried again.
pub async fn run_queues(context: Context) -> Result<()> {
    serve(context.client, context.lead, context.stop, &context.options, false).await
}

/// The same, for whoever has no more than this; `groups`: PodGroups, else Queues.
///
/// # Errors
/// As above.
pub async fn serve(client: Client, lead: Lead, stop: Stop, options: &Options, groups: bool) -> Result<()> {
    if options.observe {
        stop.stopped().await;
        return Ok(());
    }
    let keeper = Arc::new(Keeper {
        client,
        writer: Writer::new(lead, stop.clone()),
        scheduler_name: options.scheduler_name.clone(),
        tables: Mutex::default(),
        groups,
        work: Work::new(BACKOFF),
        changed: watch::channel(0).0,
    });
    let kinds: &[Watched] = if groups {
        &[Watched::Node, Watched::PriorityClass, Watched::PodGroup, Watched::Pod]
    } else {
        &[Watched::PodGroup, Watched::Queue]
    };
    let (followers, listed): (Vec<_>, Vec<_>) = kinds.iter().map(|&kind| keeper.follow(kind)).unzip();
    let works = async {
        // A sum over a part is wrong.
        for mut listed in listed {
            let _ = listed.wait_for(|listed| *listed).await;
        }
        if groups { keeper.keep_groups().await } else { keeper.keep_queues().await }
    };
    tokio::select! {
        () = stop.stopped() => {}
        _ = join_all(followers) => {}
        () = works => {}
    }
    Ok(())
}

impl Keeper {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(self: &Arc<Self>, kind: Watched) -> (impl Future<Output = ()> + use<>, watch::Receiver<bool>) {
        let (sender, receiver) = watch::channel(false);
        let keeper = Arc::clone(self);
        let client = self.client.clone();
        let tell = move |told| {
            let ends = matches!(told, Told::ListEnds);
            keeper.take(kind, told);
            if ends {
                sender.send_replace(true);
            }
            true
        };
        (follow(client, kind, tell), receiver)
    }

    fn take(&self, kind: Watched, told: Told) {
        let touched = match told {
            Told::Put(seen) => self.tables().put(seen, &self.scheduler_name),
            Told::Gone { namespace, name } => self.tables().remove(kind, &ObjectName { namespace, name }),
            Told::ListBegins => {
                self.tables().begin(kind);
                return;
            }
            Told::ListEnds => {
                let mut tables = self.tables();
                let unseen = tables.unseen.remove(&kind).unwrap_or_default();
                unseen.iter().flat_map(|name| tables.remove(kind, name)).collect()
            }
            Told::Resumed | Told::Lost(_) => return,
        };
        if self.groups {
            touched.into_iter().for_each(|group| self.work.put(group, ()));
        } else {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    async fn keep_groups(self: &Arc<Self>) {
        let handle = |name: ObjectName, (): ()| {
            let keeper = Arc::clone(self);
            async move {
                tokio::time::sleep(SETTLE).await;
                match keeper.write_group(&name).await {
                    Ok(()) => Ended::Done,
                    Err(error) => {
                        tracing::warn!(group = %name, %error, "the status of a PodGroup is late");
                        Ended::Failed(())
                    }
                }
            }
        };
        self.work.drain(CONCURRENCY, handle).await;
    }

    async fn write_group(&self, name: &ObjectName) -> Result<(), Failed> {
        let Some(changes) = self.tables().group_changes(name) else { return Ok(()) };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &name.namespace, &resource_of(Watched::PodGroup));
        let patch = Patch::Merge(json!({"status": {"resourcesStatus": changes}}));
        or_gone(self.writer.once(api.patch_status(&name.name, &PatchParams::default(), &patch)).await)
    }

    async fn keep_queues(&self) {
        let mut changed = self.changed.subscribe();
        let mut failures = 0;
        loop {
            changed.borrow_and_update();
            let late = self.write_queues().await;
            failures = if late { failures + 1 } else { 0 };
            if late {
                tokio::time::sleep(BACKOFF.after(failures)).await;
            } else if changed.changed().await.is_err() {
                return;
            }
            tokio::time::sleep(SETTLE).await;
        }
    }

    /// Whether some could not be written.
    async fn write_queues(&self) -> bool {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource_of(Watched::Queue));
        let changes = self.tables().queue_changes();
        let writes = changes.into_iter().map(async |(name, changes)| {
            let patch = Patch::Merge(json!({"status": changes}));
            let written = or_gone(self.writer.once(api.patch_status(&name, &PatchParams::default(), &patch)).await);
            written.inspect_err(|error| tracing::warn!(queue = name, %error, "the status of a Queue is late")).is_err()
        });
        join_all(writes).await.into_iter().any(|late| late)
    }
}

/// Who is gone needs no status.
fn or_gone<T>(answer: Result<T, Failed>) -> Result<(), Failed> {
    match answer {
        Err(failed) if !failed.is_not_found() => Err(failed),
        _ => Ok(()),
    }
}

impl Tables {
    /// Folds an object; the groups that may need another status.
    fn put(&mut self, seen: Seen, scheduler_name: &str) -> Vec<ObjectName> {
        match seen {
            Seen::Pod(pod) => self.put_pod(pod, scheduler_name),
            Seen::Node(node) => {
                let name = name_of(&node.metadata);
                self.seen(Watched::Node, &name);
                let mebibytes = usage::gpu_mebibytes(&node);
                if self.nodes.insert(name.name.clone(), mebibytes) == Some(mebibytes) {
                    return Vec::new();
                }
                self.count_anew(&name.name)
            }
            Seen::PriorityClass(class) => {
                let name = name_of(&class.metadata);
                self.seen(Watched::PriorityClass, &name);
                let now = Class { value: class.value.unwrap_or(0), global: class.global_default.unwrap_or(false) };
                self.classes.insert(name.name, now);
                self.groups.keys().cloned().collect()
            }
            Seen::Ours(Watched::PodGroup, tree) => {
                let name = tree_name(&tree);
                self.seen(Watched::PodGroup, &name);
                let spec = serde_json::from_value(tree["spec"].clone()).unwrap_or_default();
                let status = self.statuses.keep(Arc::new(tree["status"]["resourcesStatus"].clone()));
                self.groups.insert(name.clone(), Group { spec, status });
                vec![name]
            }
            Seen::Ours(Watched::Queue, tree) => {
                let name = tree_name(&tree);
                self.seen(Watched::Queue, &name);
                let parent = tree["spec"]["parentQueue"].as_str().filter(|parent| !parent.is_empty()).map(str::to_owned);
                self.queues.insert(name.name, (parent, tree["status"].clone()));
                Vec::new()
            }
            Seen::Ours(..) | Seen::Budget(_) => Vec::new(),
        }
    }

    fn put_pod(&mut self, pod: Box<Pod>, scheduler_name: &str) -> Vec<ObjectName> {
        let name = name_of(&pod.metadata);
        let mut touched = self.remove(Watched::Pod, &name);
        let Some(spec) = pod.spec.as_ref().filter(|spec| spec.scheduler_name.as_deref() == Some(scheduler_name)) else {
            return touched;
        };
        let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key);
        let Some(group) = annotation(POD_GROUP) else { return touched };
        let group = ObjectName { namespace: name.namespace.clone(), name: group.clone() };
        let node = spec.node_name.clone();
        let mebibytes = node.as_ref().and_then(|node| *self.nodes.get(node)?);
        let counted = self.usages.keep(Arc::new(usage::of_pod(&pod, mebibytes)));
        let by_memory = annotation("gpu-memory").is_some();
        self.members.entry(group.clone()).or_default().insert(name.clone());
        let counted = Counted { group: group.clone(), node, usage: counted, pod: by_memory.then_some(pod) };
        self.pods.insert(name, counted);
        touched.push(group);
        touched
    }

    /// The node says something else about its cards.
    fn count_anew(&mut self, node: &str) -> Vec<ObjectName> {
        let mebibytes = self.nodes.get(node).copied().flatten();
        let usages = &mut self.usages;
        let here = self.pods.values_mut().filter(|counted| counted.node.as_deref() == Some(node));
        let touched = here.filter_map(|counted| {
            counted.usage = usages.keep(Arc::new(usage::of_pod(counted.pod.as_deref()?, mebibytes)));
            Some(counted.group.clone())
        });
        touched.collect()
    }

    fn remove(&mut self, kind: Watched, name: &ObjectName) -> Vec<ObjectName> {
        self.seen(kind, name);
        match kind {
            Watched::Pod => {
                let Some(gone) = self.pods.remove(name) else { return Vec::new() };
                if let Some(members) = self.members.get_mut(&gone.group) {
                    members.remove(name);
                    if members.is_empty() {
                        self.members.remove(&gone.group);
                    }
                }
                return vec![gone.group];
            }
            Watched::PodGroup => drop(self.groups.remove(name)),
            Watched::Node => drop(self.nodes.remove(&name.name)),
            Watched::PriorityClass => {
                self.classes.remove(&name.name);
                return self.groups.keys().cloned().collect();
            }
            Watched::Queue => drop(self.queues.remove(&name.name)),
            _ => {}
        }
        Vec::new()
    }

    fn seen(&mut self, kind: Watched, name: &ObjectName) {
        if let Some(unseen) = self.unseen.get_mut(&kind) {
            unseen.remove(name);
        }
    }

    fn begin(&mut self, kind: Watched) {
        let plain = |name: &String| ObjectName { namespace: String::new(), name: name.clone() };
        let all = match kind {
            Watched::Pod => self.pods.keys().cloned().collect(),
            Watched::PodGroup => self.groups.keys().cloned().collect(),
            Watched::Node => self.nodes.keys().map(plain).collect(),
            Watched::PriorityClass => self.classes.keys().map(plain).collect(),
            Watched::Queue => self.queues.keys().map(plain).collect(),
            _ => HashSet::new(),
        };
        self.unseen.insert(kind, all);
    }

    fn group_changes(&self, name: &ObjectName) -> Option<Value> {
        let group = self.groups.get(name)?;
        let mut sum = Usage::default();
        for counted in self.members.get(name).into_iter().flatten().filter_map(|pod| self.pods.get(pod)) {
            sum.add(&counted.usage);
        }
        let global = self.classes.values().filter(|class| class.global).map(|class| class.value).min();
        let value = |class: &str| self.classes.get(class).map(|class| class.value);
        let wanted = sum.status(usage::is_preemptible(&group.spec, value, global));
        usage::changes(&group.status, &json!(wanted))
    }

    fn queue_changes(&self) -> Vec<(String, Value)> {
        let queues = self.queues.iter().map(|(name, (parent, _))| (name.clone(), parent.clone())).collect();
        let groups: Vec<(&str, ResourcesStatus)> = self
            .groups
            .values()
            .filter_map(|group| {
                Some((group.spec.queue.as_deref()?, ResourcesStatus::deserialize(&*group.status).unwrap_or_default()))
            })
            .collect();
        let rolled_up = usage::roll_up(&queues, groups.iter().map(|(queue, status)| (*queue, status)));
        let changed = rolled_up.into_iter().filter_map(|(name, wanted)| {
            let live = &self.queues.get(&name)?.1;
            Some((name, usage::changes(live, &json!(wanted))?))
        });
        changed.collect()
    }
}

fn tree_name(tree: &Value) -> ObjectName {
    let text = |field: &str| tree["metadata"][field].as_str().unwrap_or_default().to_owned();
    ObjectName { namespace: text("namespace"), name: text("name") }
}
