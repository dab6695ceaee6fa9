//! Facts of all objects → the rows of [`Snapshot`], sorted and linked, and their names.
//!
//! Everything that needs more than one object is decided here: duplicates, queue tree, gangs of pods, BindRequests, priorities,
//! missing ConfigMaps, GPU groups. The result does not depend on the order in which objects arrived.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use jiff::Timestamp;
use muster_core::index::{Col, GangIdx, GroupIdx, Idx, NodeIdx, PodIdx, QueueIdx, Span, SubgroupIdx};
use muster_core::snapshot::{
    GangRow, GpuRequest, NoQueue, NodeRow, PodRow, PodStatus, QueueRow, Snapshot, SubgroupKind, SubgroupRow,
};

use crate::budgets::{self, BudgetFacts};
use crate::classes::{Shape, Shapes, Tables, tables};
use crate::gangs::{self, DEFAULT_SUBGROUP, GangFacts};
use crate::names::{Names, ObjectName};
use crate::nodes::{NodeFacts, NodeRead};
use crate::overcommit;
use crate::pods::{BindFacts, Phase, PodFacts};
use crate::problem::{Findings, Subject, show};
use crate::queues::{QueueFacts, Tree, tree};
use crate::settings::Settings;

/// Priority of a gang whose class is unknown (wire-contract.md §1.2).
const DEFAULT_PRIORITY: i32 = 50;
/// From here on a gang is not preemptible, unless it says so.
const NON_PREEMPTIBLE_PRIORITY: i32 = 100;

/// A PriorityClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PriorityFacts {
    pub(crate) name: String,
    pub(crate) value: i32,
    pub(crate) global_default: bool,
}

/// Facts of all objects.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) nodes: Vec<NodeRead>,
    pub(crate) queues: Vec<QueueFacts>,
    pub(crate) gangs: Vec<GangFacts>,
    /// Of a cluster that changes they are kept from cycle to cycle.
    pub(crate) pods: Vec<Arc<PodFacts>>,
    pub(crate) binds: Vec<BindFacts>,
    pub(crate) priorities: Vec<PriorityFacts>,
    pub(crate) budgets: Vec<BudgetFacts>,
    /// `None`: unknown, so that none counts as missing.
    pub(crate) config_maps: Option<AHashSet<ObjectName>>,
    /// ResourceSlices that offer GPUs.
    pub(crate) gpu_slices: usize,
    /// NodeResourceTopologies.
    pub(crate) numa_nodes: usize,
}

/// Rows and names; `left_out`: objects that are bad together with others.
pub(crate) struct Assembled {
    pub(crate) snapshot: Snapshot,
    pub(crate) names: Names,
    pub(crate) left_out: usize,
}

/// Links all facts.
pub(crate) fn assemble(mut facts: Facts, settings: &Settings, now: Timestamp, findings: &mut Findings) -> Assembled {
    let mut left_out = facts.drop_duplicates(findings);
    let nodes = facts.our_nodes();
    let tree = tree(std::mem::take(&mut facts.queues), settings.full_hierarchy, findings);
    left_out += tree.cyclic;
    let priorities = Priorities::of(&facts.priorities);
    let mut builder = Builder { settings, now, nodes: &nodes, tree: &tree, rows: Rows::default() };
    builder.add_gangs(std::mem::take(&mut facts.gangs), &priorities, findings);
    builder.add_pods(&mut facts, findings);
    let Builder { rows, .. } = builder;
    let (mut snapshot, names) = rows.finish(nodes, tree, settings, &facts.budgets);
    snapshot.config.now = gangs::nanoseconds(now);
    overcommit::warn(&snapshot, &names, findings);
    Assembled { snapshot, names, left_out }
}

impl Facts {
    /// Of objects of one kind and name, the oldest stays. Returns how many went.
    fn drop_duplicates(&mut self, findings: &mut Findings) -> usize {
        // Nodes and BindRequests go in order of name from here on.
        self.nodes.sort_by(|a, b| a.name().cmp(b.name()));
        self.binds.sort_by(|a, b| (&a.name, &a.pod, &a.node).cmp(&(&b.name, &b.pod, &b.node)));
        unique("Node", &mut self.nodes, |node| ("", node.name()), |_, _| Ordering::Equal, findings)
            + unique("BindRequest", &mut self.binds, |bind| bind.name.parts(), |_, _| Ordering::Equal, findings)
            + unique("Queue", &mut self.queues, |queue| ("", &queue.name), |a, b| a.created.cmp(&b.created), findings)
            + unique("PodGroup", &mut self.gangs, |gang| gang.name.parts(), |a, b| a.created.cmp(&b.created), findings)
            + unique("Pod", &mut self.pods, |pod| pod.name.parts(), |a, b| age(a).cmp(&age(b)), findings)
            + unique("PriorityClass", &mut self.priorities, |class| ("", &class.name), |a, b| a.value.cmp(&b.value), findings)
    }

    /// Nodes of this shard, by name.
    fn our_nodes(&mut self) -> Vec<NodeFacts> {
        let ours = std::mem::take(&mut self.nodes).into_iter().filter_map(|node| match node {
            NodeRead::Ours(node) => Some(*node),
            NodeRead::Elsewhere(_) => None,
        });
        ours.collect()
    }
}

impl NodeRead {
    fn name(&self) -> &str {
        match self {
            Self::Ours(node) => &node.name,
            Self::Elsewhere(name) => name,
        }
    }
}

fn age(pod: &PodFacts) -> (Option<Timestamp>, &str) {
    (pod.created, &pod.uid)
}

/// Of objects with one name the first by `order` stays, at its place.
fn unique<T>(
    kind: &str,
    list: &mut Vec<T>,
    name: impl Fn(&T) -> (&str, &str),
    order: impl Fn(&T, &T) -> Ordering,
    findings: &mut Findings,
) -> usize {
    let mut first: AHashMap<(&str, &str), usize> = AHashMap::with_capacity(list.len());
    let mut losers = Vec::new();
    for (i, object) in list.iter().enumerate() {
        let (namespace, own) = name(object);
        let Some(other) = first.insert((namespace, own), i) else { continue };
        let subject = Subject { kind, namespace, name: own };
        findings.bad(subject, "metadata.name", show(own), format!("a name that no other {kind} has"));
        let loser = if order(object, &list[other]) == Ordering::Less { other } else { i };
        losers.push(loser);
        first.insert((namespace, own), other + i - loser);
    }
    losers.sort_unstable();
    let mut i = 0;
    list.retain(|_| {
        i += 1;
        losers.binary_search(&(i - 1)).is_err()
    });
    losers.len()
}

/// PriorityClasses by name, and the default.
struct Priorities<'a> {
    by_name: BTreeMap<&'a str, i32>,
    default: i32,
}

impl<'a> Priorities<'a> {
    /// Of several global defaults the lowest counts, as in Kubernetes' admission.
    fn of(classes: &'a [PriorityFacts]) -> Self {
        let default = classes.iter().filter(|class| class.global_default).map(|class| class.value).min();
        let by_name = classes.iter().map(|class| (class.name.as_str(), class.value)).collect();
        Self { by_name, default: default.unwrap_or(DEFAULT_PRIORITY) }
    }
}

/// Rows in the making.
#[derive(Default)]
struct Rows {
    gangs: Col<GangIdx, GangRow>,
    gang_facts: Vec<GangFacts>,
    /// First sub-group of each gang.
    first_subgroup: Vec<usize>,
    subgroups: Col<SubgroupIdx, SubgroupRow>,
    subgroup_names: Col<SubgroupIdx, String>,
    shapes: Shapes,
    /// By address of the wish, and whether the pod is in a gang.
    shape_of: AHashMap<(usize, bool), usize>,
    pods: Vec<Draft>,
    groups: Vec<(String, NodeIdx)>,
}

/// A pod on its way to a row.
struct Draft {
    facts: Arc<PodFacts>,
    gang: Option<GangIdx>,
    status: PodStatus,
    node: Option<NodeIdx>,
    shape: usize,
    groups: Vec<String>,
}

struct Builder<'a> {
    settings: &'a Settings,
    now: Timestamp,
    nodes: &'a [NodeFacts],
    tree: &'a Tree,
    rows: Rows,
}

impl Builder<'_> {
    fn add_gangs(&mut self, mut gangs: Vec<GangFacts>, priorities: &Priorities<'_>, findings: &mut Findings) {
        gangs.sort_by(|a, b| (a.created, &a.name.name, &a.name.namespace).cmp(&(b.created, &b.name.name, &b.name.namespace)));
        let mut unknown: BTreeMap<&str, usize> = BTreeMap::new();
        for gang in &gangs {
            let class = gang.priority_class.as_str();
            let priority = priorities.by_name.get(class).copied();
            if priority.is_none() && !class.is_empty() {
                *unknown.entry(class).or_default() += 1;
            }
            let priority = priority.unwrap_or(priorities.default);
            let queue = self.queue_of(&gang.queue);
            let first = self.rows.subgroups.len();
            for member in &gang.members {
                let parent = member.parent.map(|at| SubgroupIdx::new(first + at));
                self.rows.subgroups.push(SubgroupRow { parent, kind: member.kind });
                self.rows.subgroup_names.push(member.name.clone());
            }
            self.rows.first_subgroup.push(first);
            self.rows.gangs.push(GangRow {
                priority,
                preemptible: queue.is_ok() && gang.preemptible.unwrap_or(priority < NON_PREEMPTIBLE_PRIORITY),
                queue,
                subgroups: Span::new(first, self.rows.subgroups.len()),
                required: gang.required,
                pods: Span::EMPTY,
                backed_off: gang.backed_off,
                times: gang.times,
            });
        }
        for (class, count) in unknown {
            let subject = Subject { kind: "PriorityClass", namespace: "", name: class };
            let note = format!("does not exist, but {count} PodGroups name it: they have priority {}", priorities.default);
            findings.warn(subject, "", String::new(), note);
        }
        self.rows.gang_facts = gangs;
    }

    fn queue_of(&self, name: &str) -> Result<QueueIdx, NoQueue> {
        match self.tree.by_name.get(name) {
            Some(&at) => Ok(QueueIdx::new(at)),
            None if self.tree.orphans.binary_search_by(|orphan| orphan.as_str().cmp(name)).is_ok() => {
                Err(NoQueue::MissingAncestor)
            }
            None => Err(NoQueue::Missing),
        }
    }

    fn add_pods(&mut self, facts: &mut Facts, findings: &mut Findings) {
        let gang_facts = std::mem::take(&mut self.rows.gang_facts);
        let gangs: AHashMap<(&str, &str), GangIdx> =
            gang_facts.iter().enumerate().map(|(g, gang)| (gang.name.parts(), GangIdx::new(g))).collect();
        let nodes: AHashMap<&str, NodeIdx> =
            self.nodes.iter().enumerate().map(|(n, node)| (node.name.as_str(), NodeIdx::new(n))).collect();
        let binds = live_binds(std::mem::take(&mut facts.binds), &nodes);
        let mut unconsidered = Unconsidered::default();
        let mut strays = Strays::default();
        for pod in std::mem::take(&mut facts.pods) {
            if pod.phase == Phase::Failed {
                continue;
            }
            let gang = pod.gang.as_ref().and_then(|gang| gangs.get(&(pod.name.namespace.as_str(), gang.as_str())).copied());
            let bind = if binds.is_empty() { None } else { binds.get(&pod.name) };
            // A request that an earlier pod of the same name left behind says nothing of this one.
            let bind = bind.filter(|(bind, _)| bind.owner.as_ref().is_none_or(|owner| pod.uid.is_empty() || *owner == pod.uid));
            let status = pod.status(bind.is_some(), self.now, self.settings.stuck_after);
            let node = match &pod.node {
                Some(node) => nodes.get(node.as_str()).copied(),
                None => bind.map(|(_, node)| *node),
            };
            let holds = node.is_some() && is_active(status);
            if gang.is_none() && !holds {
                strays.count(&pod, status);
                continue;
            }
            unconsidered.count(&pod, gang, status);
            let groups = self.groups_of(&pod, bind.map(|(bind, _)| bind), holds, findings);
            if let (Some(node), false) = (node, groups.is_empty()) {
                self.rows.groups.extend(groups.iter().map(|group| (group.clone(), node)));
            }
            let draft = self.draft(pod, gang, status, node, groups, facts.config_maps.as_ref());
            self.rows.pods.push(draft);
        }
        unconsidered.report(facts, &gang_facts, self.settings, findings);
        strays.report(findings);
        self.rows.gang_facts = gang_facts;
    }

    /// The shared GPUs that a pod holds.
    fn groups_of(&self, pod: &PodFacts, bind: Option<&BindFacts>, holds: bool, findings: &mut Findings) -> Vec<String> {
        let shared = matches!(pod.wish.gpu, GpuRequest::Fraction { .. } | GpuRequest::Memory { .. });
        if !shared || !holds || pod.reservation {
            return Vec::new();
        }
        let mut groups = match bind {
            Some(bind) if !bind.groups.is_empty() => bind.groups.clone(),
            _ => pod.groups.clone(),
        };
        groups.sort();
        groups.dedup();
        if groups.is_empty() {
            let subject = Subject { kind: "Pod", namespace: &pod.name.namespace, name: &pod.name.name };
            let note = "it shares a GPU, but no label says which: what it holds of the node's GPUs is not counted";
            findings.warn(subject, "metadata.labels.runai-gpu-group", String::new(), note);
        }
        groups
    }

    fn draft(
        &mut self,
        pod: Arc<PodFacts>,
        gang: Option<GangIdx>,
        status: PodStatus,
        node: Option<NodeIdx>,
        groups: Vec<String>,
        config_maps: Option<&AHashSet<ObjectName>>,
    ) -> Draft {
        let waits = matches!(status, PodStatus::Pending | PodStatus::Gated);
        let wish = &pod.wish;
        let missing = wish.config_maps.iter().filter(|name| {
            let wanted = ObjectName { namespace: pod.name.namespace.clone(), name: (*name).clone() };
            waits && config_maps.is_some_and(|known| !known.contains(&wanted))
        });
        let missing: Vec<String> = missing.cloned().collect();
        // On a live cluster most pods share their wish with others. It is held by its pod, so that no other gets its address.
        let shared = missing.is_empty() && Arc::strong_count(wish) > 1;
        let key = shared.then(|| (Arc::as_ptr(wish).addr(), gang.is_some()));
        let known = key.and_then(|key| self.rows.shape_of.get(&key).copied());
        let shape = known.unwrap_or_else(|| {
            self.rows.shapes.intern(Shape {
                requests: wish.requests.clone(),
                gpu: wish.gpu,
                // Nothing is decided about a pod without gang: fewer classes.
                constraints: if gang.is_some() { wish.constraints.clone() } else { Default::default() },
                // Of pods that hold a node too: who asks for MIG by name stays away from them (semantics.md §9.2).
                legacy_mig: wish.legacy_mig,
                claims: gang.is_some() && wish.needs.claims,
                missing_config_maps: missing,
            })
        });
        if let Some(key) = key {
            self.rows.shape_of.insert(key, shape);
        }
        Draft { gang, status, node, shape, groups, facts: pod }
    }
}

/// Statuses that charge a node (semantics.md §1.3).
pub(crate) const fn is_active(status: PodStatus) -> bool {
    matches!(
        status,
        PodStatus::Binding | PodStatus::Bound | PodStatus::Running | PodStatus::Releasing | PodStatus::StuckInReleasing
    )
}

/// BindRequests to nodes of this shard by pod; of several for one pod the first by name.
fn live_binds(binds: Vec<BindFacts>, nodes: &AHashMap<&str, NodeIdx>) -> AHashMap<ObjectName, (BindFacts, NodeIdx)> {
    let mut live = AHashMap::new();
    for bind in binds {
        if let Some(node) = nodes.get(bind.node.as_str()) {
            let pod = ObjectName { namespace: bind.name.namespace.clone(), name: bind.pod.clone() };
            live.entry(pod).or_insert((bind, *node));
        }
    }
    live
}

/// Pending pods whose pod group is not there: nobody would ever place them, and nobody would say so (users.md, 24).
#[derive(Default)]
struct Strays {
    pods: usize,
    groups: BTreeSet<ObjectName>,
}

impl Strays {
    /// Pod groups that the warning names.
    const NAMED: usize = 3;

    fn count(&mut self, pod: &PodFacts, status: PodStatus) {
        if let (Some(group), PodStatus::Pending, false) = (&pod.gang, status, pod.foreign) {
            self.pods += 1;
            self.groups.insert(ObjectName { namespace: pod.name.namespace.clone(), name: group.clone() });
        }
    }

    fn report(&self, findings: &mut Findings) {
        if self.pods == 0 {
            return;
        }
        let mut named: Vec<String> = self.groups.iter().take(Self::NAMED).map(ToString::to_string).collect();
        if self.groups.len() > Self::NAMED {
            named.push("…".to_owned());
        }
        let subject = Subject { kind: "Pod", namespace: "", name: "" };
        let note = format!(
            "pending pods name pod groups ({} pods, {} groups) that are not in this shard, and are not placed: create them, \
             or give them this shard's node-pool label",
            self.pods,
            self.groups.len()
        );
        findings.warn(subject, "metadata.annotations.pod-group-name", named.join(", "), note);
    }
}

/// What pending pods need and this version does not consider: one warning for each kind of thing.
#[derive(Default)]
struct Unconsidered {
    volumes: usize,
    claims: usize,
    pod_affinity: usize,
    host_ports: usize,
    config_maps: usize,
    waiting_gangs: AHashSet<GangIdx>,
}

impl Unconsidered {
    fn count(&mut self, pod: &PodFacts, gang: Option<GangIdx>, status: PodStatus) {
        let Some(gang) = gang.filter(|_| status == PodStatus::Pending) else { return };
        self.volumes += usize::from(pod.wish.needs.volumes);
        self.claims += usize::from(pod.wish.needs.claims);
        self.pod_affinity += usize::from(pod.wish.needs.pod_affinity);
        self.host_ports += usize::from(pod.wish.needs.host_ports);
        self.config_maps += usize::from(!pod.wish.config_maps.is_empty());
        self.waiting_gangs.insert(gang);
    }

    fn report(&self, facts: &Facts, gangs: &[GangFacts], settings: &Settings, findings: &mut Findings) {
        let topology = self.waiting_gangs.iter().filter(|gang| gangs[gang.at()].topology).count();
        let numa = if settings.numa { facts.numa_nodes } else { 0 };
        let maps = if facts.config_maps.is_none() { self.config_maps } else { 0 };
        for (kind, field, count, what) in [
            ("Pod", "spec.volumes", self.volumes, "pending pods use volume claims, which this version does not consider"),
            (
                "Pod",
                "spec.resourceClaims",
                self.claims,
                "pending pods use resource claims (DRA): this version does not place them",
            ),
            ("Pod", "spec.affinity", self.pod_affinity, "pending pods have pod affinity, which this version does not consider"),
            (
                "Pod",
                "spec.containers.ports",
                self.host_ports,
                "pending pods use host ports, which this version does not consider",
            ),
            ("Pod", "spec", maps, "pending pods need ConfigMaps; no ConfigMap is among the manifests, so all count as there"),
            (
                "PodGroup",
                "spec.topologyConstraint",
                topology,
                "pending groups have topology constraints, which this version does not consider",
            ),
            ("ResourceSlice", "spec.devices", facts.gpu_slices, "slices offer GPUs, which this version does not consider"),
            (
                "NodeResourceTopology",
                "zones",
                numa,
                "objects are there and plugin numa is on, which this version does not consider",
            ),
        ] {
            if count > 0 {
                findings.warn(Subject::setting(kind), field, count.to_string(), what);
            }
        }
    }
}

impl Rows {
    fn finish(mut self, nodes: Vec<NodeFacts>, tree: Tree, settings: &Settings, budgets: &[BudgetFacts]) -> (Snapshot, Names) {
        self.sort_pods();
        let kept = self.kept(budgets);
        let mut tables = tables(std::mem::take(&mut self.shapes), &nodes);
        let mut snapshot = Snapshot { config: settings.config.clone(), ..Snapshot::default() };
        let mut names = Names::default();
        self.groups.sort_unstable();
        self.groups.dedup();
        snapshot.groups = self.groups.iter().map(|(_, node)| *node).collect();
        self.fill_pods(&tables, (&nodes, settings.reservations_hold), &kept, &mut snapshot, &mut names);
        names.groups = self.groups.into_iter().map(|(group, _)| group).collect();
        let extra = std::mem::take(&mut tables.node_extra);
        for (node, extra) in nodes.into_iter().zip(extra) {
            snapshot.nodes.push(NodeRow { extra, ..node.row });
            names.nodes.push(node.name);
        }
        for (queue, parent) in tree.kept.into_iter().zip(tree.parents) {
            snapshot.queues.push(QueueRow {
                parent: parent.map(QueueIdx::new),
                priority: queue.priority,
                quota: queue.quota,
                limit: queue.limit,
                weight: queue.weight,
                usage: [0.0; 3],
                preempt_min_runtime: queue.preempt_min_runtime,
                reclaim_min_runtime: queue.reclaim_min_runtime,
            });
            names.queues.push(queue.name);
            names.queue_titles.push(queue.title);
        }
        snapshot.gangs = self.gangs;
        for gang in self.gang_facts {
            names.gangs.push(gang.name);
            names.gang_queues.push(gang.queue);
        }
        snapshot.subgroups = self.subgroups;
        names.subgroups = self.subgroup_names;
        let Tables { dims, dim_names, labels, keys, taints, taint_names, classes, class_texts, .. } = tables;
        (snapshot.dims, snapshot.labels, snapshot.keys) = (dims, labels, keys);
        (snapshot.taints, snapshot.classes) = (taints, classes);
        (names.dims, names.taints, names.classes) = (dim_names, taint_names, class_texts);
        (snapshot, names)
    }

    /// By gang (pods without last), creation, uid; then name, for objects without uid.
    fn sort_pods(&mut self) {
        self.pods.sort_by(|a, b| {
            let key = |draft: &Draft| (draft.gang.is_none(), draft.gang, draft.facts.created);
            key(a).cmp(&key(b)).then_with(|| a.facts.uid.cmp(&b.facts.uid)).then_with(|| a.facts.name.cmp(&b.facts.name))
        });
        self.shapes.renumber(self.pods.iter_mut().map(|draft| &mut draft.shape));
    }

    /// Which pods their budgets keep, in the order of rows; empty without budgets.
    fn kept(&self, budgets: &[BudgetFacts]) -> Vec<bool> {
        if budgets.is_empty() {
            return Vec::new();
        }
        let drafts = self.pods.iter();
        let pods: Vec<_> =
            drafts.map(|draft| budgets::Member { gang: draft.gang, status: draft.status, facts: &draft.facts }).collect();
        let least = |gang: GangIdx| {
            let kinds = self.gangs[gang].subgroups.iter().map(|subgroup| self.subgroups[subgroup].kind);
            kinds.map(|kind| if let SubgroupKind::PodSet { min } = kind { min as usize } else { 0 }).sum()
        };
        budgets::kept(budgets, &pods, &self.gangs, least)
    }

    /// Where [`Settings::reservations_hold`] says so, a reservation whose GPU nobody shares (any more) still holds it: the device
    /// plugin gives it to nobody else before that pod is gone. It is cleared away by the binder, so it counts as leaving.
    fn fill_pods(
        &mut self,
        tables: &Tables,
        (nodes, hold): (&[NodeFacts], bool),
        kept: &[bool],
        snapshot: &mut Snapshot,
        names: &mut Names,
    ) {
        let mut ends = vec![0; self.gangs.len()];
        for (at, draft) in std::mem::take(&mut self.pods).into_iter().enumerate() {
            let first = snapshot.pod_groups.len();
            snapshot.pod_groups.extend(draft.groups.iter().filter_map(|group| self.group_index(group, draft.node)));
            let cut = |i: usize| u32::try_from(i).unwrap_or(u32::MAX);
            let pod = draft.facts;
            let stands_for = !hold || pod.groups.iter().any(|group| self.group_index(group, draft.node).is_some());
            let reservation = pod.reservation && stands_for;
            let status = match draft.status {
                PodStatus::Bound | PodStatus::Running if pod.reservation && !stands_for => PodStatus::Releasing,
                other => other,
            };
            let by_name = |name: &str| nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok().map(NodeIdx::new);
            let row = PodRow {
                gang: draft.gang,
                subgroup: draft.gang.and_then(|gang| self.subgroup_of(gang, pod.subgroup.as_deref())),
                class: tables.class_of[draft.shape],
                status,
                node: draft.node,
                nominated: pod.nominated.as_deref().and_then(by_name),
                groups: (cut(first), cut(snapshot.pod_groups.len())),
                foreign: pod.foreign,
                reservation,
                kept: kept.get(at).copied().unwrap_or(false),
                leader: pod.leader,
                ray_head: pod.ray_head,
                task_priority: pod.task_priority,
            };
            let index: PodIdx = snapshot.pods.push(row);
            if let Some(gang) = draft.gang {
                ends[gang.at()] = index.at() + 1;
            }
            let (name, uid) = match Arc::try_unwrap(pod) {
                Ok(pod) => (pod.name, pod.uid),
                Err(kept) => (kept.name.clone(), kept.uid.clone()),
            };
            names.pods.push(name);
            names.pod_uids.push(uid);
        }
        let mut start = 0;
        for (gang, end) in self.gangs.as_mut_slice().iter_mut().zip(ends) {
            let end = end.max(start);
            gang.pods = Span::new(start, end);
            start = end;
        }
    }

    fn group_index(&self, group: &str, node: Option<NodeIdx>) -> Option<GroupIdx> {
        let node = node?;
        let at = self.groups.binary_search_by(|(name, on)| (name.as_str(), *on).cmp(&(group, node))).ok()?;
        Some(GroupIdx::new(at))
    }

    /// The leaf that a pod's label names; without label, the one called `default`.
    fn subgroup_of(&self, gang: GangIdx, label: Option<&str>) -> Option<SubgroupIdx> {
        let leaf = self.gang_facts[gang.at()].leaf(label.unwrap_or(DEFAULT_SUBGROUP))?;
        Some(SubgroupIdx::new(self.first_subgroup[gang.at()] + leaf))
    }
}
