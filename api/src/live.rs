//! A cluster that changes: what watches tell, object by object, folded into the facts that a snapshot is read into, and
//! forgotten.
//!
//! [`Live::load`] makes rows of the facts of this moment, by the same code that makes them of a snapshot: whatever the order of
//! events, the rows are those of a fresh list. Not known here: where events come from, and what a connection is.

use std::sync::Arc;

use ahash::AHashMap;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use muster_core::snapshot::GangTimes;
use serde_json::Value;

use crate::assemble::{Facts, PriorityFacts, assemble};
use crate::assumed::Assumed;
use crate::budgets::{self, BudgetFacts};
use crate::crds::Object;
use crate::crds::shard::SchedulingShardSpec;
use crate::gangs::GangFacts;
use crate::names::ObjectName;
use crate::nodes::NodeRead;
use crate::once::Once;
use crate::pods::{BindFacts, Phase, PodFacts, Wish};
use crate::problem::{Failure, Findings, Problem, Problems};
use crate::queues::QueueFacts;
use crate::read::{Kind, Loaded, decode_tree, read_priority_class};
use crate::settings::Settings;
use crate::validate::cluster_name;
use crate::{gangs, nodes, pods, queues};

/// The kinds of objects that a cycle needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Watched {
    /// `v1`.
    Pod,
    /// `v1`.
    Node,
    /// `scheduling.k8s.io/v1`.
    PriorityClass,
    /// `scheduling.run.ai/v2`.
    Queue,
    /// `scheduling.run.ai/v2alpha2`.
    PodGroup,
    /// `scheduling.run.ai/v1alpha2`.
    BindRequest,
    /// `kai.scheduler/v1`.
    SchedulingShard,
    /// `policy/v1`; only where budgets are followed ([`Live::keep_budgets`]).
    PodDisruptionBudget,
}

impl Watched {
    /// All that every cycle needs.
    pub const ALL: [Self; 7] =
        [Self::Pod, Self::Node, Self::PriorityClass, Self::Queue, Self::PodGroup, Self::BindRequest, Self::SchedulingShard];

    /// The kind, as manifests spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::PriorityClass => "PriorityClass",
            Self::Queue => "Queue",
            Self::PodGroup => "PodGroup",
            Self::BindRequest => "BindRequest",
            Self::SchedulingShard => "SchedulingShard",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
        }
    }
}

/// One object as it is now. Kubernetes' own kinds are always well-formed, the server sees to that; ours are read with care.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A Pod.
    Pod(Box<Pod>),
    /// A Node.
    Node(Box<Node>),
    /// A PriorityClass.
    PriorityClass(Box<PriorityClass>),
    /// A PodDisruptionBudget.
    Budget(Box<PodDisruptionBudget>),
    /// An object of this project, as JSON: Queue, PodGroup, BindRequest or SchedulingShard.
    Ours(Watched, Value),
}

/// What is known of one object.
#[derive(Debug)]
struct Entry<F> {
    /// `None`: it is bad, `findings` say why.
    facts: Option<F>,
    findings: Option<Box<Findings>>,
    /// Number of the list that it was last seen in or after.
    list: u64,
}

/// All objects of a kind.
#[derive(Debug)]
struct Table<F> {
    entries: AHashMap<ObjectName, Entry<F>>,
    list: u64,
}

impl<F> Default for Table<F> {
    fn default() -> Self {
        Self { entries: AHashMap::new(), list: 0 }
    }
}

impl<F: Clone + PartialEq> Table<F> {
    /// Whether what is known has changed, as far as `matters` says of the old facts and the new ones.
    fn put(
        &mut self,
        name: ObjectName,
        read: impl FnOnce(&mut Findings) -> Option<F>,
        matters: impl FnOnce(&F, &F) -> bool,
    ) -> bool {
        let mut findings = Findings::default();
        let facts = read(&mut findings);
        let any = !findings.bad.is_empty() || !findings.warnings.is_empty();
        let findings = any.then(|| Box::new(findings));
        let new = Entry { facts, findings, list: self.list };
        match self.entries.get_mut(&name) {
            Some(entry) => {
                let old = std::mem::replace(entry, new);
                match (&old.facts, &entry.facts) {
                    (Some(old), Some(new)) => old != new && matters(old, new),
                    (old, new) => old != new,
                }
            }
            None => {
                self.entries.insert(name, new);
                true
            }
        }
    }

    fn facts(&self, name: &ObjectName) -> Option<&F> {
        self.entries.get(name)?.facts.as_ref()
    }

    fn finish(&mut self) {
        self.entries.retain(|_, entry| entry.list == self.list);
    }

    /// Copies of all facts; what was found goes into `findings`. Counts what is bad.
    fn collect(&self, findings: &mut Findings, left_out: &mut usize) -> Vec<F> {
        for found in self.entries.values().filter_map(|entry| entry.findings.as_deref()) {
            findings.append(found.clone());
        }
        let all: Vec<F> = self.entries.values().filter_map(|entry| entry.facts.clone()).collect();
        *left_out += self.entries.len() - all.len();
        all
    }

    fn differences(&self, other: &Self, kind: Watched, found: &mut Vec<String>) {
        let kind = kind.name();
        for (name, entry) in &self.entries {
            match other.entries.get(name) {
                None => found.push(format!("{kind} {name}: only in the first")),
                Some(same) if same.facts == entry.facts && same.findings == entry.findings => {}
                Some(_) => found.push(format!("{kind} {name}: differs")),
            }
        }
        let missing = other.entries.keys().filter(|name| !self.entries.contains_key(name));
        found.extend(missing.map(|name| format!("{kind} {name}: only in the second")));
    }
}

/// A BindRequest.
#[derive(Clone, PartialEq, Debug)]
struct LiveBind {
    uid: String,
    /// `None`: it failed for good.
    facts: Option<BindFacts>,
}

/// Everything that is known of a cluster, for the scheduler of one shard.
#[derive(Debug, Default)]
pub struct Live {
    settings: Settings,
    pods: Table<Arc<PodFacts>>,
    /// What pods ask for.
    wishes: Once<Wish>,
    nodes: Table<NodeRead>,
    priorities: Table<PriorityFacts>,
    queues: Table<Option<QueueFacts>>,
    gangs: Table<Option<GangFacts>>,
    binds: Table<LiveBind>,
    shards: Table<(String, SchedulingShardSpec)>,
    budgets: Table<BudgetFacts>,
}

impl Live {
    /// Nothing known yet. Settings are those of a snapshot (`config` and `schedulerParams`, wire-contract.md §10.2); absent:
    /// KAI's defaults. Also returns what is odd about them.
    ///
    /// # Errors
    /// If a setting is wrong.
    pub fn new(config: Option<&Value>, params: Option<&Value>) -> Result<(Self, Vec<Problem>), Failure> {
        let mut findings = Findings::default();
        let settings = Settings { reservations_hold: true, ..Settings::read(config, params, None, &mut findings) };
        if !findings.bad.is_empty() {
            return Err(Failure::Bad(Problems::new(findings.bad, "the settings")));
        }
        Ok((Self { settings, ..Self::default() }, findings.warnings))
    }

    /// With the same settings, and nothing known.
    #[must_use]
    pub fn blank(&self) -> Self {
        Self { settings: self.settings.clone(), ..Self::default() }
    }

    /// Follows PodDisruptionBudgets, too: whom they keep no cycle tells to leave.
    #[must_use]
    pub fn keep_budgets(mut self) -> Self {
        self.settings.budgets = true;
        self
    }

    /// The kinds to be told of.
    #[must_use]
    pub fn kinds(&self) -> Vec<Watched> {
        let mut kinds = Watched::ALL.to_vec();
        if self.settings.budgets {
            kinds.push(Watched::PodDisruptionBudget);
        }
        kinds
    }

    /// An object was added or has changed. Whether that may change a decision: a pod that is bound, begins to run, or whose
    /// state is written again does not, since whoever bound it knows.
    pub fn put(&mut self, seen: Seen) -> bool {
        let settings = &self.settings;
        match seen {
            Seen::Pod(mut pod) => {
                let (name, wishes) = (name_of(&pod.metadata), &mut self.wishes);
                let read = |f: &mut Findings| {
                    let mut facts = pods::read(&mut pod, settings, f)?;
                    facts.wish = wishes.keep(facts.wish);
                    // A pod of another scheduler is never ours to place or to evict, whatever group it names.
                    facts.gang = facts.gang.filter(|_| !facts.foreign);
                    Some(Arc::new(facts))
                };
                self.pods.put(name, read, |a, b| pods::matters(a, b))
            }
            Seen::Node(mut node) => self.nodes.put(name_of(&node.metadata), |f| nodes::read(&mut node, settings, f), always),
            Seen::PriorityClass(mut class) => {
                self.priorities.put(name_of(&class.metadata), |f| read_priority_class(&mut class, f), always)
            }
            Seen::Budget(mut budget) => {
                self.budgets.put(name_of(&budget.metadata), |f| budgets::read(&mut budget, f), |a, b| a.allowed < b.allowed)
            }
            Seen::Ours(kind, tree) => self.put_ours(kind, tree),
        }
    }

    fn put_ours(&mut self, kind: Watched, tree: Value) -> bool {
        let settings = &self.settings;
        let text = |field: &str| tree["metadata"][field].as_str().unwrap_or_default().to_owned();
        let name = ObjectName { namespace: text("namespace"), name: text("name") };
        match kind {
            Watched::Queue => {
                self.queues.put(name, |f| queues::read(&mut decode_tree(Kind::Queue, tree, f)?, settings, f), always)
            }
            Watched::PodGroup => {
                self.gangs.put(name, |f| gangs::read(&mut decode_tree(Kind::PodGroup, tree, f)?, settings, f), gang_matters)
            }
            Watched::BindRequest => {
                let uid = tree["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                let read = |f: &mut Findings| {
                    let facts = pods::read_bind(&mut decode_tree(Kind::BindRequest, tree, f)?, f)?;
                    Some(LiveBind { uid, facts })
                };
                self.binds.put(name, read, bind_matters)
            }
            Watched::SchedulingShard => {
                let read = |f: &mut Findings| {
                    let mut shard: Object<SchedulingShardSpec> = decode_tree(Kind::SchedulingShard, tree, f)?;
                    Some((cluster_name("SchedulingShard", &mut shard.metadata, f)?, shard.spec))
                };
                self.shards.put(name, read, always)
            }
            // Of Kubernetes' own kinds there is a variant each.
            Watched::Pod | Watched::Node | Watched::PriorityClass | Watched::PodDisruptionBudget => false,
        }
    }

    /// An object is gone. `namespace` is empty for kinds without.
    pub fn remove(&mut self, kind: Watched, namespace: &str, name: &str) {
        let name = ObjectName { namespace: namespace.to_owned(), name: name.to_owned() };
        match kind {
            Watched::Pod => drop(self.pods.entries.remove(&name)),
            Watched::Node => drop(self.nodes.entries.remove(&name)),
            Watched::PriorityClass => drop(self.priorities.entries.remove(&name)),
            Watched::Queue => drop(self.queues.entries.remove(&name)),
            Watched::PodGroup => drop(self.gangs.entries.remove(&name)),
            Watched::BindRequest => drop(self.binds.entries.remove(&name)),
            Watched::SchedulingShard => drop(self.shards.entries.remove(&name)),
            Watched::PodDisruptionBudget => drop(self.budgets.entries.remove(&name)),
        }
    }

    /// A list of a kind begins. What is known stays known until [`Live::finish`], so that there is no moment without.
    pub fn begin(&mut self, kind: Watched) {
        *self.list(kind) += 1;
    }

    /// The list is complete: what was not in it is gone.
    pub fn finish(&mut self, kind: Watched) {
        match kind {
            Watched::Pod => self.pods.finish(),
            Watched::Node => self.nodes.finish(),
            Watched::PriorityClass => self.priorities.finish(),
            Watched::Queue => self.queues.finish(),
            Watched::PodGroup => self.gangs.finish(),
            Watched::BindRequest => self.binds.finish(),
            Watched::SchedulingShard => self.shards.finish(),
            Watched::PodDisruptionBudget => self.budgets.finish(),
        }
    }

    fn list(&mut self, kind: Watched) -> &mut u64 {
        match kind {
            Watched::Pod => &mut self.pods.list,
            Watched::Node => &mut self.nodes.list,
            Watched::PriorityClass => &mut self.priorities.list,
            Watched::Queue => &mut self.queues.list,
            Watched::PodGroup => &mut self.gangs.list,
            Watched::BindRequest => &mut self.binds.list,
            Watched::SchedulingShard => &mut self.shards.list,
            Watched::PodDisruptionBudget => &mut self.budgets.list,
        }
    }

    /// How many objects of a kind are known, bad ones included.
    #[must_use]
    pub fn count(&self, kind: Watched) -> usize {
        match kind {
            Watched::Pod => self.pods.entries.len(),
            Watched::Node => self.nodes.entries.len(),
            Watched::PriorityClass => self.priorities.entries.len(),
            Watched::Queue => self.queues.entries.len(),
            Watched::PodGroup => self.gangs.entries.len(),
            Watched::BindRequest => self.binds.entries.len(),
            Watched::SchedulingShard => self.shards.entries.len(),
            Watched::PodDisruptionBudget => self.budgets.entries.len(),
        }
    }

    /// The shards, by name.
    #[must_use]
    pub fn shards(&self) -> Vec<(String, SchedulingShardSpec)> {
        let mut all: Vec<_> = self.shards.entries.values().filter_map(|entry| entry.facts.clone()).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Rows and names of this moment. Bad objects are left out and told among the warnings, as a lenient reader does.
    #[must_use]
    pub fn load(&self, now: Timestamp) -> Loaded {
        self.load_with(now, &Assumed::default())
    }

    /// The same, with what was decided and is not to be seen yet.
    #[must_use]
    pub fn load_with(&self, now: Timestamp, assumed: &Assumed) -> Loaded {
        let (mut findings, mut left_out) = (Findings::default(), 0);
        let mut facts = Facts {
            nodes: self.nodes.collect(&mut findings, &mut left_out),
            queues: self.queues.collect(&mut findings, &mut left_out).into_iter().flatten().collect(),
            gangs: self.gangs.collect(&mut findings, &mut left_out).into_iter().flatten().collect(),
            pods: self.pods.collect(&mut findings, &mut left_out),
            binds: self.binds.collect(&mut findings, &mut left_out).into_iter().filter_map(|bind| bind.facts).collect(),
            priorities: self.priorities.collect(&mut findings, &mut left_out),
            budgets: self.kept_budgets(&mut findings, &mut left_out),
            ..Facts::default()
        };
        assumed.apply(&mut facts.pods, &mut facts.gangs, &mut facts.binds);
        let assembled = assemble(facts, &self.settings, now, &mut findings);
        let mut warnings = findings.warnings;
        warnings.append(&mut findings.bad);
        warnings.sort();
        Loaded {
            snapshot: assembled.snapshot,
            names: assembled.names,
            now,
            warnings,
            skipped: Vec::new(),
            left_out: left_out + assembled.left_out,
        }
    }

    /// By name, so that rows do not depend on the order of events; none where they are not followed.
    fn kept_budgets(&self, findings: &mut Findings, left_out: &mut usize) -> Vec<BudgetFacts> {
        if !self.settings.budgets {
            return Vec::new();
        }
        let mut all = self.budgets.collect(findings, left_out);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Forgets what was assumed and is to be seen by now, or can no longer come true.
    pub fn settle(&self, now: Timestamp, assumed: &mut Assumed) {
        assumed.settle(
            now,
            |name| self.pods.facts(name).map(AsRef::as_ref),
            |name| self.gangs.facts(name).and_then(Option::as_ref),
            |name, uid| self.binds.facts(name).is_some_and(|bind| bind.uid == uid),
        );
    }

    /// What whoever writes on a pod group has to know of it.
    #[must_use]
    pub fn gang(&self, name: &ObjectName) -> Option<GangNote> {
        self.gangs.facts(name)?.as_ref().map(|gang| GangNote { uid: gang.uid.clone(), mark: gang.mark, told: gang.told })
    }

    /// Pod groups that carry a scheduling condition of this shard's pool.
    #[must_use]
    pub fn told_gangs(&self) -> Vec<ObjectName> {
        let gangs = self.gangs.entries.values().filter_map(|entry| entry.facts.as_ref()?.as_ref());
        gangs.filter(|gang| gang.told).map(|gang| gang.name.clone()).collect()
    }

    /// BindRequests that failed for good, with their uid: to be removed, so that their pods are tried again.
    #[must_use]
    pub fn failed_binds(&self) -> Vec<(ObjectName, String)> {
        let binds = self.binds.entries.iter();
        let failed = |bind: &LiveBind| bind.facts.is_none().then(|| bind.uid.clone());
        binds.filter_map(|(name, entry)| Some((name.clone(), failed(entry.facts.as_ref()?)?))).collect()
    }

    /// When a pod was made.
    #[must_use]
    pub fn created(&self, pod: &ObjectName) -> Option<Timestamp> {
        self.pods.facts(pod)?.created
    }

    /// Pods of this scheduler that wait and are in no pod group of any shard; and the group that they name.
    #[must_use]
    pub fn strays(&self) -> Vec<Stray> {
        let pods = self.pods.entries.values().filter_map(|entry| entry.facts.as_deref());
        let waits = |pod: &&PodFacts| {
            !pod.foreign && !pod.reservation && pod.node.is_none() && pod.deleted.is_none() && pod.phase == Phase::Pending
        };
        let stray = |pod: &PodFacts| {
            let group = |gang: &String| ObjectName { namespace: pod.name.namespace.clone(), name: gang.clone() };
            let missing = pod.gang.as_ref().is_none_or(|gang| !self.gangs.entries.contains_key(&group(gang)));
            missing.then(|| Stray { pod: pod.name.clone(), uid: pod.uid.clone(), group: pod.gang.clone() })
        };
        pods.filter(waits).filter_map(stray).collect()
    }

    /// Objects whose facts differ between the two, a line each, sorted; none if both know the same.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        self.pods.differences(&other.pods, Watched::Pod, &mut found);
        self.nodes.differences(&other.nodes, Watched::Node, &mut found);
        self.priorities.differences(&other.priorities, Watched::PriorityClass, &mut found);
        self.queues.differences(&other.queues, Watched::Queue, &mut found);
        self.gangs.differences(&other.gangs, Watched::PodGroup, &mut found);
        self.binds.differences(&other.binds, Watched::BindRequest, &mut found);
        self.shards.differences(&other.shards, Watched::SchedulingShard, &mut found);
        self.budgets.differences(&other.budgets, Watched::PodDisruptionBudget, &mut found);
        found.sort();
        found
    }
}

/// Of a pod group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GangNote {
    /// `metadata.uid`.
    pub uid: String,
    /// Whether its pods may be marked as unschedulable (`spec.markUnschedulable`).
    pub mark: bool,
    /// Whether it carries a scheduling condition of this shard's pool.
    pub told: bool,
}

/// A pod that nobody will place.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stray {
    /// Which pod.
    pub pod: ObjectName,
    /// Its uid.
    pub uid: String,
    /// The pod group that it names, and that does not exist; `None`: it names none.
    pub group: Option<String>,
}

fn always<F>(_: &F, _: &F) -> bool {
    true
}

/// The scheduler's own writes, conditions and times, are no news to it.
fn gang_matters(old: &Option<GangFacts>, new: &Option<GangFacts>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => {
            let plain = |gang: &GangFacts| GangFacts { told: false, times: GangTimes::default(), ..gang.clone() };
            let asked = |gang: &GangFacts| (gang.times.preemption_delay, gang.times.staleness_grace);
            plain(old) != plain(new) || asked(old) != asked(new)
        }
        (old, new) => old.is_some() != new.is_some(),
    }
}

/// A request that comes is the scheduler's own; one that fails frees its pod.
fn bind_matters(_: &LiveBind, new: &LiveBind) -> bool {
    new.facts.is_none()
}

fn name_of(metadata: &ObjectMeta) -> ObjectName {
    ObjectName { namespace: metadata.namespace.clone().unwrap_or_default(), name: metadata.name.clone().unwrap_or_default() }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
