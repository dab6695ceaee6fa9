//! A cluster that changes: what watches tell, object by object, folded into the facts that a snapshot is read into, and
//! forgotten.
//!
//! [`Live::load`] makes rows of the facts of this moment, by the same code that makes them of a snapshot: whatever the order of
//! events, the rows are those of a fresh list. Not known here: where events come from, and what a connection is.

use ahash::AHashMap;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::assemble::{Facts, PriorityFacts, assemble};
use crate::crds::Object;
use crate::crds::shard::SchedulingShardSpec;
use crate::gangs::GangFacts;
use crate::names::ObjectName;
use crate::nodes::NodeRead;
use crate::pods::{BindFacts, PodFacts};
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
}

impl Watched {
    /// All of them.
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
    fn put(&mut self, name: ObjectName, read: impl FnOnce(&mut Findings) -> Option<F>) {
        let mut findings = Findings::default();
        let facts = read(&mut findings);
        let any = !findings.bad.is_empty() || !findings.warnings.is_empty();
        let findings = any.then(|| Box::new(findings));
        self.entries.insert(name, Entry { facts, findings, list: self.list });
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

/// Everything that is known of a cluster, for the scheduler of one shard.
#[derive(Debug, Default)]
pub struct Live {
    settings: Settings,
    pods: Table<Box<PodFacts>>,
    nodes: Table<NodeRead>,
    priorities: Table<PriorityFacts>,
    queues: Table<Option<QueueFacts>>,
    gangs: Table<Option<GangFacts>>,
    binds: Table<Option<BindFacts>>,
    shards: Table<(String, SchedulingShardSpec)>,
}

impl Live {
    /// Nothing known yet. Settings are those of a snapshot (`config` and `schedulerParams`, wire-contract.md §10.2); absent:
    /// KAI's defaults. Also returns what is odd about them.
    ///
    /// # Errors
    /// If a setting is wrong.
    pub fn new(config: Option<&Value>, params: Option<&Value>) -> Result<(Self, Vec<Problem>), Failure> {
        let mut findings = Findings::default();
        let settings = Settings::read(config, params, None, &mut findings);
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

    /// An object was added or has changed.
    pub fn put(&mut self, seen: Seen) {
        let settings = &self.settings;
        match seen {
            Seen::Pod(mut pod) => self.pods.put(name_of(&pod.metadata), |f| pods::read(&mut pod, settings, f)),
            Seen::Node(mut node) => self.nodes.put(name_of(&node.metadata), |f| nodes::read(&mut node, settings, f)),
            Seen::PriorityClass(mut class) => {
                self.priorities.put(name_of(&class.metadata), |f| read_priority_class(&mut class, f));
            }
            Seen::Ours(kind, tree) => self.put_ours(kind, tree),
        }
    }

    fn put_ours(&mut self, kind: Watched, tree: Value) {
        let settings = &self.settings;
        let text = |field: &str| tree["metadata"][field].as_str().unwrap_or_default().to_owned();
        let name = ObjectName { namespace: text("namespace"), name: text("name") };
        match kind {
            Watched::Queue => self.queues.put(name, |f| queues::read(&mut decode_tree(Kind::Queue, tree, f)?, settings, f)),
            Watched::PodGroup => self.gangs.put(name, |f| gangs::read(&mut decode_tree(Kind::PodGroup, tree, f)?, settings, f)),
            Watched::BindRequest => self.binds.put(name, |f| pods::read_bind(&mut decode_tree(Kind::BindRequest, tree, f)?, f)),
            Watched::SchedulingShard => self.shards.put(name, |f| {
                let mut shard: Object<SchedulingShardSpec> = decode_tree(Kind::SchedulingShard, tree, f)?;
                Some((cluster_name("SchedulingShard", &mut shard.metadata, f)?, shard.spec))
            }),
            // Of Kubernetes' own kinds there is a variant each.
            Watched::Pod | Watched::Node | Watched::PriorityClass => {}
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
        let (mut findings, mut left_out) = (Findings::default(), 0);
        let facts = Facts {
            nodes: self.nodes.collect(&mut findings, &mut left_out),
            queues: self.queues.collect(&mut findings, &mut left_out).into_iter().flatten().collect(),
            gangs: self.gangs.collect(&mut findings, &mut left_out).into_iter().flatten().collect(),
            pods: self.pods.collect(&mut findings, &mut left_out),
            binds: self.binds.collect(&mut findings, &mut left_out).into_iter().flatten().collect(),
            priorities: self.priorities.collect(&mut findings, &mut left_out),
            ..Facts::default()
        };
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
        found.sort();
        found
    }
}

fn name_of(metadata: &ObjectMeta) -> ObjectName {
    ObjectName { namespace: metadata.namespace.clone().unwrap_or_default(), name: metadata.name.clone().unwrap_or_default() }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
