//! What the binder knows of the cluster: BindRequests, and the few pods that have to do with shared GPUs. Folded from watches;
//! everything that deletes looks at the server again first.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kube::Resource as _;
use muster_api::crds::bindrequest::{BindRequest, BindRequestSpec};
use muster_api::names::ObjectName;
use muster_api::sharing::{self, RESERVED_GPU};
use serde_json::Value;
use tokio::sync::watch;

use crate::grouping::name_of;

/// Pods here ask a cluster autoscaler for nodes (wire-contract.md §3.8).
const SCALE_NAMESPACE: &str = "kai-scale-adjust";

/// A BindRequest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) name: ObjectName,
    pub(crate) uid: String,
    /// Uid of the pod that it was made for, if it says so.
    pub(crate) pod_uid: Option<String>,
    pub(crate) spec: BindRequestSpec,
    pub(crate) phase: String,
    pub(crate) failed_attempts: i32,
    pub(crate) deleting: bool,
}

impl Request {
    fn read(tree: Value) -> Option<Self> {
        let name = ObjectName {
            namespace: tree["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(),
            name: tree["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        };
        let request: BindRequest = match serde_json::from_value(tree) {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(request = %name, %error, "a BindRequest that cannot be read is left alone");
                return None;
            }
        };
        let status = request.status.unwrap_or_default();
        let owners = request.metadata.owner_references.unwrap_or_default();
        Some(Self {
            name,
            uid: request.metadata.uid.unwrap_or_default(),
            pod_uid: owners.into_iter().find(|owner| owner.kind == "Pod").map(|owner| owner.uid).filter(|uid| !uid.is_empty()),
            spec: request.spec,
            phase: status.phase.unwrap_or_default(),
            failed_attempts: status.failed_attempts.unwrap_or(0),
            deleting: request.metadata.deletion_timestamp.is_some(),
        })
    }

    pub(crate) fn pod(&self) -> &str {
        self.spec.pod_name.as_deref().unwrap_or_default()
    }

    pub(crate) fn node(&self) -> &str {
        self.spec.selected_node.as_deref().unwrap_or_default()
    }

    pub(crate) fn groups(&self) -> &[String] {
        self.spec.selected_gpu_groups.as_deref().unwrap_or_default()
    }

    pub(crate) fn shares(&self) -> bool {
        self.spec.received_resource_type.as_deref() == Some("Fraction")
    }

    /// Whether the binder still has to do something about it. A failed one may be tried as often as its limit says; without one
    /// a single failure is final (wire-contract.md §4.1).
    pub(crate) fn is_active(&self) -> bool {
        let again = self.spec.backoff_limit.is_some_and(|limit| self.failed_attempts < limit);
        !self.deleting && (self.phase.is_empty() || self.phase == "Pending" || (self.phase == "Failed" && again))
    }
}

/// A pod that shares a GPU, or is about to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: ObjectName,
    pub(crate) uid: String,
    pub(crate) node: Option<String>,
    pub(crate) running: bool,
    pub(crate) ended: bool,
    pub(crate) groups: Vec<String>,
}

/// A reservation pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) node: String,
    pub(crate) group: String,
    /// UUID of its GPU, once it has said so.
    pub(crate) gpu: Option<String>,
    pub(crate) ended: bool,
    pub(crate) deleting: bool,
}

/// What a pod is to the binder.
#[derive(Debug)]
pub(crate) enum Part {
    Member(Member),
    Holder(Holder),
    /// It waits for a node to be added.
    Scaling {
        waits: bool,
    },
    Nothing,
}

impl Part {
    pub(crate) fn of(pod: &Pod, reservation_namespace: &str) -> Self {
        let metadata = pod.meta();
        let name = name_of(metadata);
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let ended = matches!(phase, "Succeeded" | "Failed");
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty());
        let uid = metadata.uid.clone().unwrap_or_default();
        if name.namespace == SCALE_NAMESPACE {
            let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
            let placed = conditions.filter(|c| c.type_ == "PodScheduled").any(|condition| condition.status == "True");
            return Self::Scaling { waits: !placed && !ended };
        }
        let groups = sharing::groups(metadata);
        if name.namespace == reservation_namespace {
            let Some(group) = groups.into_iter().next() else { return Self::Nothing };
            let gpu = metadata.annotations.as_ref().and_then(|a| a.get(RESERVED_GPU)).filter(|gpu| !gpu.is_empty());
            let deleting = metadata.deletion_timestamp.is_some();
            let node = node.unwrap_or_default();
            return Self::Holder(Holder { name: name.name, uid, node, group, gpu: gpu.cloned(), ended, deleting });
        }
        if groups.is_empty() {
            return Self::Nothing;
        }
        Self::Member(Member { name, uid, node, running: phase == "Running", ended, groups })
    }
}

#[derive(Default)]
struct Tables {
    requests: HashMap<ObjectName, Arc<Request>>,
    members: HashMap<ObjectName, Member>,
    holders: HashMap<String, Holder>,
    /// Requests and members that name a group.
    requests_of: HashMap<String, BTreeSet<ObjectName>>,
    members_of: HashMap<String, BTreeSet<ObjectName>>,
    holders_of: HashMap<String, BTreeSet<String>>,
    scaling: HashSet<String>,
    /// How many attempts are under way for a group.
    attempts: HashMap<String, u32>,
    /// What a list that has begun has not shown yet.
    unseen_requests: HashSet<ObjectName>,
    unseen_pods: HashSet<ObjectName>,
}

/// The tables, and a number that grows with each change of them.
pub(crate) struct Known {
    tables: Mutex<Tables>,
    changes: watch::Sender<u64>,
}

/// Keeps a group from being cleared away while a request for it is carried out.
pub(crate) struct Attempt<'a> {
    known: &'a Known,
    groups: Vec<String>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut tables = self.known.lock();
        for group in &self.groups {
            if let Some(count) = tables.attempts.get_mut(group) {
                *count -= 1;
                if *count == 0 {
                    tables.attempts.remove(group);
                }
            }
        }
    }
}

/// Everything known about one group.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) holders: Vec<Holder>,
    pub(crate) members: Vec<Member>,
    /// A request that names it is active, or being carried out.
    pub(crate) wanted: bool,
    /// Pods of active requests that name it.
    pub(crate) asking: HashSet<ObjectName>,
}

impl Known {
    pub(crate) fn new() -> Self {
        Self { tables: Mutex::default(), changes: watch::channel(0).0 }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To wait for the next change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(crate) fn request(&self, name: &ObjectName) -> Option<Arc<Request>> {
        self.lock().requests.get(name).cloned()
    }

    pub(crate) fn holder(&self, name: &str) -> Option<Holder> {
        self.lock().holders.get(name).cloned()
    }

    /// Whether an autoscaler is at work: then no card is taken.
    pub(crate) fn scales_up(&self) -> bool {
        !self.lock().scaling.is_empty()
    }

    pub(crate) fn attempt(&self, groups: &[String]) -> Attempt<'_> {
        let mut tables = self.lock();
        for group in groups {
            *tables.attempts.entry(group.clone()).or_default() += 1;
        }
        Attempt { known: self, groups: groups.to_vec() }
    }

    pub(crate) fn group(&self, group: &str) -> Group {
        let tables = self.lock();
        let requests = tables.requests_of.get(group).into_iter().flatten();
        let active = requests.filter_map(|name| tables.requests.get(name)).filter(|request| request.is_active());
        let asking: HashSet<_> = active
            .map(|request| ObjectName { namespace: request.name.namespace.clone(), name: request.pod().to_owned() })
            .collect();
        Group {
            holders: tables.holders_of.get(group).into_iter().flatten().filter_map(|n| tables.holders.get(n)).cloned().collect(),
            members: tables.members_of.get(group).into_iter().flatten().filter_map(|n| tables.members.get(n)).cloned().collect(),
            wanted: !asking.is_empty() || tables.attempts.contains_key(group),
            asking,
        }
    }

    /// All groups that anything names.
    pub(crate) fn groups(&self) -> BTreeSet<String> {
        let tables = self.lock();
        tables.requests_of.keys().chain(tables.members_of.keys()).chain(tables.holders_of.keys()).cloned().collect()
    }

    /// Another group whose reservation holds the same GPU of the same node.
    pub(crate) fn other_with(&self, holder: &Holder) -> Option<String> {
        let tables = self.lock();
        let same = |other: &&Holder| other.node == holder.node && other.gpu == holder.gpu && other.group != holder.group;
        tables.holders.values().filter(|other| !other.ended).find(same).map(|other| other.group.clone())
    }

    /// A request was made or has changed; returns it if there is something new to be done, and the groups that it touches.
    pub(crate) fn put_request(&self, tree: Value) -> (Option<Arc<Request>>, Vec<String>) {
        let Some(request) = Request::read(tree) else { return (None, Vec::new()) };
        let request = Arc::new(request);
        let mut tables = self.lock();
        tables.unseen_requests.remove(&request.name);
        let before = tables.drop_request(&request.name);
        let news = match &before {
            // What the binder itself wrote is no news.
            Some(before) => before.uid != request.uid || before.spec != request.spec || !before.is_active(),
            None => true,
        };
        let mut touched: Vec<_> = before.iter().flat_map(|before| before.groups()).cloned().collect();
        touched.extend(request.groups().iter().cloned());
        for group in request.groups() {
            tables.requests_of.entry(group.clone()).or_default().insert(request.name.clone());
        }
        tables.requests.insert(request.name.clone(), Arc::clone(&request));
        drop(tables);
        self.changed();
        ((news && request.is_active()).then_some(request), touched)
    }

    /// A request is gone; the groups that it named.
    pub(crate) fn remove_request(&self, name: &ObjectName) -> Vec<String> {
        let mut tables = self.lock();
        tables.unseen_requests.remove(name);
        let gone = tables.drop_request(name);
        drop(tables);
        self.changed();
        gone.map(|request| request.groups().to_vec()).unwrap_or_default()
    }

    /// A pod is there, new or changed; the groups that it touches.
    pub(crate) fn put_pod(&self, pod: &Pod, reservation_namespace: &str) -> Vec<String> {
        let name = name_of(&pod.metadata);
        let part = Part::of(pod, reservation_namespace);
        let mut tables = self.lock();
        tables.unseen_pods.remove(&name);
        let (mut touched, differs) = tables.change_pod(&name, part, reservation_namespace);
        drop(tables);
        if differs {
            self.changed();
        } else {
            touched.clear();
        }
        touched
    }

    /// A reservation pod that the server has just shown: known from now on, unless the watch has told of it already.
    pub(crate) fn meet_holder(&self, pod: &Pod, reservation_namespace: &str) {
        let name = name_of(&pod.metadata);
        let mut tables = self.lock();
        let same = tables.holders.get(&name.name).is_some_and(|holder| pod.metadata.uid.as_deref() == Some(&holder.uid));
        if !same {
            tables.change_pod(&name, Part::of(pod, reservation_namespace), reservation_namespace);
            drop(tables);
            self.changed();
        }
    }

    /// A pod is gone; the groups that it touched.
    pub(crate) fn remove_pod(&self, name: &ObjectName, reservation_namespace: &str) -> Vec<String> {
        let mut tables = self.lock();
        tables.unseen_pods.remove(name);
        let (touched, differs) = tables.change_pod(name, Part::Nothing, reservation_namespace);
        drop(tables);
        if differs {
            self.changed();
        }
        touched
    }

    /// A list of pods or of requests begins.
    pub(crate) fn begin(&self, pods: bool, reservation_namespace: &str) {
        let mut tables = self.lock();
        let tables = &mut *tables;
        if pods {
            let holders = tables.holders.keys();
            let holders = holders.map(|name| ObjectName { namespace: reservation_namespace.to_owned(), name: name.clone() });
            let scaling = tables.scaling.iter();
            let scaling = scaling.map(|name| ObjectName { namespace: SCALE_NAMESPACE.to_owned(), name: name.clone() });
            tables.unseen_pods = tables.members.keys().cloned().chain(holders).chain(scaling).collect();
        } else {
            tables.unseen_requests = tables.requests.keys().cloned().collect();
        }
    }

    /// It is complete: what was not in it is gone. The groups that this touches.
    pub(crate) fn finish(&self, pods: bool, reservation_namespace: &str) -> Vec<String> {
        if pods {
            let unseen = std::mem::take(&mut self.lock().unseen_pods);
            unseen.iter().flat_map(|name| self.remove_pod(name, reservation_namespace)).collect()
        } else {
            let unseen = std::mem::take(&mut self.lock().unseen_requests);
            unseen.iter().flat_map(|name| self.remove_request(name)).collect()
        }
    }
}

impl Tables {
    fn drop_request(&mut self, name: &ObjectName) -> Option<Arc<Request>> {
        let gone = self.requests.remove(name)?;
        for group in gone.groups() {
            remove_from(&mut self.requests_of, group, name);
        }
        Some(gone)
    }

    /// Puts a pod in its place; the groups that it names or named, and whether anything is different now.
    fn change_pod(&mut self, name: &ObjectName, part: Part, reservation_namespace: &str) -> (Vec<String>, bool) {
        let mut touched = Vec::new();
        if name.namespace == SCALE_NAMESPACE {
            let waits = matches!(part, Part::Scaling { waits: true });
            let differs = if waits { self.scaling.insert(name.name.clone()) } else { self.scaling.remove(&name.name) };
            return (touched, differs);
        }
        if name.namespace == reservation_namespace {
            let before = self.holders.remove(&name.name);
            if let Some(before) = &before {
                remove_from(&mut self.holders_of, &before.group, &name.name);
                touched.push(before.group.clone());
            }
            let Part::Holder(holder) = part else { return (touched, before.is_some()) };
            let differs = before.as_ref() != Some(&holder);
            touched.push(holder.group.clone());
            self.holders_of.entry(holder.group.clone()).or_default().insert(name.name.clone());
            self.holders.insert(name.name.clone(), holder);
            return (touched, differs);
        }
        let before = self.members.remove(name);
        for group in before.iter().flat_map(|before| &before.groups) {
            remove_from(&mut self.members_of, group, name);
            touched.push(group.clone());
        }
        let Part::Member(member) = part else { return (touched, before.is_some()) };
        let differs = before.as_ref() != Some(&member);
        for group in &member.groups {
            touched.push(group.clone());
            self.members_of.entry(group.clone()).or_default().insert(name.clone());
        }
        self.members.insert(name.clone(), member);
        (touched, differs)
    }
}

fn remove_from<T: Ord>(index: &mut HashMap<String, BTreeSet<T>>, group: &str, name: &T) {
    if let Some(names) = index.get_mut(group) {
        names.remove(name);
        if names.is_empty() {
            index.remove(group);
        }
    }
}
