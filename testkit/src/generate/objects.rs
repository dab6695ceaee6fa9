//! A cluster snapshot in KAI's layout (wire-contract.md §10.2), written object by object to any sink.
//!
//! Only what a scheduler reads of an object is written, as ordinary Kubernetes JSON. The caller hands over one list after the
//! other, so that a cluster of any size needs no more memory than its own compact plan.
//! Not known here: where the objects come from (the generator, an imported trace).

use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::json;

/// The instant of every written snapshot, in seconds since 1970: 2026-01-01T00:00:00Z. Fixed, so that the same settings give
/// the same bytes.
pub const NOW_SECOND: i64 = 1_767_225_600;

/// The lists that `rawObjects` always has.
const LISTS: [&str; 17] = [
    "pods",
    "nodes",
    "queues",
    "podGroups",
    "bindRequests",
    "priorityClasses",
    "configMaps",
    "persistentVolumes",
    "persistentVolumeClaims",
    "csiStorageCapacities",
    "storageClasses",
    "csiDrivers",
    "resourceClaims",
    "resourceSlices",
    "deviceClasses",
    "topologies",
    "nodeResourceTopologies",
];

/// The plugins of KAI's built-in configuration, in its order (wire-contract.md §7.3).
const PLUGINS: [&str; 20] = [
    "predicates",
    "proportion",
    "priority",
    "elastic",
    "kubeflow",
    "ray",
    "nodeavailability",
    "gpusharingorder",
    "gpupack",
    "resourcetype",
    "subgrouporder",
    "taskorder",
    "nominatednode",
    "dynamicresources",
    "nodeplacement",
    "minruntime",
    "topology",
    "snapshot",
    "sg-nodelocalgreedy",
    "sg-multinodegang",
];

/// The actions of KAI's built-in configuration.
pub const DEFAULT_ACTIONS: &str = "allocate, consolidation, reclaim, preempt, stalegangeviction";

/// Key and value, written as a JSON map in this order.
type Pairs<'a> = &'a [(&'a str, String)];

struct Map<'a>(Pairs<'a>);

impl Serialize for Map<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// `metadata` of an object.
#[derive(Clone, Debug, Default)]
pub struct Meta<'a> {
    /// Its name.
    pub name: String,
    /// Its namespace; empty: it has none.
    pub namespace: &'a str,
    /// Its uid.
    pub uid: String,
    /// Its labels.
    pub labels: Vec<(&'a str, String)>,
    /// Its annotations.
    pub annotations: Vec<(&'a str, String)>,
    /// When it was created, in seconds since 1970.
    pub created_second: i64,
}

impl Serialize for Meta<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        if !self.namespace.is_empty() {
            map.serialize_entry("namespace", self.namespace)?;
        }
        map.serialize_entry("uid", &self.uid)?;
        map.serialize_entry("creationTimestamp", &rfc3339(self.created_second))?;
        if !self.labels.is_empty() {
            map.serialize_entry("labels", &Map(&self.labels))?;
        }
        if !self.annotations.is_empty() {
            map.serialize_entry("annotations", &Map(&self.annotations))?;
        }
        map.end()
    }
}

/// A node.
#[derive(Clone, Debug, Default)]
pub struct Node<'a> {
    /// Name, labels.
    pub meta: Meta<'a>,
    /// Allocatable millicores.
    pub cpu_milli: u64,
    /// Allocatable MiB.
    pub memory_mib: u64,
    /// Allocatable GPUs; 0: the node has none and does not offer the resource.
    pub gpus: u32,
    /// Pod slots.
    pub pods: u32,
    /// Takes no new pods.
    pub cordoned: bool,
}

impl Serialize for Node<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut resources =
            vec![("cpu", cpu_text(self.cpu_milli)), ("memory", memory_text(self.memory_mib)), ("pods", self.pods.to_string())];
        if self.gpus > 0 {
            resources.push(("nvidia.com/gpu", self.gpus.to_string()));
        }
        let spec = if self.cordoned { json!({"unschedulable": true}) } else { json!({}) };
        let conditions = json!([{"type": "Ready", "status": "True"}]);
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("metadata", &self.meta)?;
        map.serialize_entry("spec", &spec)?;
        map.serialize_entry("status", &NodeStatus { resources: &resources, conditions })?;
        map.end()
    }
}

struct NodeStatus<'a> {
    resources: Pairs<'a>,
    conditions: serde_json::Value,
}

impl Serialize for NodeStatus<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("capacity", &Map(self.resources))?;
        map.serialize_entry("allocatable", &Map(self.resources))?;
        map.serialize_entry("conditions", &self.conditions)?;
        map.end()
    }
}

/// A queue. Only its GPUs may be bounded.
#[derive(Clone, Debug, Default)]
pub struct Queue<'a> {
    /// Name, creation.
    pub meta: Meta<'a>,
    /// The queue above.
    pub parent: Option<String>,
    /// GPUs that it deserves; `None`: no bound.
    pub gpu_quota: Option<u64>,
    /// GPUs that it may hold at most; `None`: no bound.
    pub gpu_limit: Option<u64>,
}

impl Serialize for Queue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bound = |gpus: Option<u64>| gpus.map_or(json!(-1), |gpus| json!(gpus));
        let free = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
        let gpu = json!({"quota": bound(self.gpu_quota), "limit": bound(self.gpu_limit), "overQuotaWeight": 1});
        let mut spec = json!({"displayName": self.meta.name, "resources": {"gpu": gpu, "cpu": free, "memory": free}});
        if let Some(parent) = &self.parent {
            spec["parentQueue"] = json!(parent);
        }
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("metadata", &self.meta)?;
        map.serialize_entry("spec", &spec)?;
        map.serialize_entry("status", &json!({}))?;
        map.end()
    }
}

/// A pod group without sub-groups.
#[derive(Clone, Debug, Default)]
pub struct PodGroup<'a> {
    /// Name, creation, annotations.
    pub meta: Meta<'a>,
    /// Its queue.
    pub queue: &'a str,
    /// Its PriorityClass; empty: the default.
    pub priority_class: &'a str,
    /// Pods that must be placed together.
    pub min_member: u32,
}

impl Serialize for PodGroup<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut spec = json!({"minMember": self.min_member, "queue": self.queue});
        if !self.priority_class.is_empty() {
            spec["priorityClassName"] = json!(self.priority_class);
        }
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("metadata", &self.meta)?;
        map.serialize_entry("spec", &spec)?;
        map.serialize_entry("status", &json!({}))?;
        map.end()
    }
}

/// A pod with one container.
#[derive(Clone, Debug, Default)]
pub struct Pod<'a> {
    /// Name, labels (queue, GPU group), annotations (pod group, `gpu-fraction`).
    pub meta: Meta<'a>,
    /// Millicores asked for.
    pub cpu_milli: u64,
    /// MiB asked for.
    pub memory_mib: u64,
    /// Whole GPUs asked for.
    pub gpus: u32,
    /// Where it runs; `None`: it is pending.
    pub node: Option<String>,
    /// Required node affinity: this label has one of these values.
    pub required_label: Option<(&'a str, Vec<&'a str>)>,
}

impl Serialize for Pod<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut requests = vec![("cpu", cpu_text(self.cpu_milli)), ("memory", memory_text(self.memory_mib))];
        let mut limits = Vec::new();
        if self.gpus > 0 {
            requests.push(("nvidia.com/gpu", self.gpus.to_string()));
            limits.push(("nvidia.com/gpu", self.gpus.to_string()));
        }
        let status = match self.node {
            Some(_) => json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
            None => json!({"phase": "Pending"}),
        };
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("metadata", &self.meta)?;
        map.serialize_entry("spec", &PodSpec { pod: self, requests: &requests, limits: &limits })?;
        map.serialize_entry("status", &status)?;
        map.end()
    }
}

struct PodSpec<'a> {
    pod: &'a Pod<'a>,
    requests: Pairs<'a>,
    limits: Pairs<'a>,
}

impl Serialize for PodSpec<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("schedulerName", "kai-scheduler")?;
        if let Some(node) = &self.pod.node {
            map.serialize_entry("nodeName", node)?;
        }
        if let Some((key, values)) = &self.pod.required_label {
            let term = json!({"matchExpressions": [{"key": key, "operator": "In", "values": values}]});
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
            map.serialize_entry("affinity", &json!({"nodeAffinity": required}))?;
        }
        map.serialize_entry("containers", &[Container { requests: self.requests, limits: self.limits }])?;
        map.end()
    }
}

struct Container<'a> {
    requests: Pairs<'a>,
    limits: Pairs<'a>,
}

impl Serialize for Container<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Resources<'a>(&'a Container<'a>);
        impl Serialize for Resources<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("requests", &Map(self.0.requests))?;
                if !self.0.limits.is_empty() {
                    map.serialize_entry("limits", &Map(self.0.limits))?;
                }
                map.end()
            }
        }
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("name", "main")?;
        map.serialize_entry("resources", &Resources(self))?;
        map.end()
    }
}

/// Writes one snapshot: [`begin`](Self::begin), any [`list`](Self::list) at most once each, [`finish`](Self::finish).
pub struct SnapshotWriter<W: Write> {
    out: W,
    written: Vec<&'static str>,
}

impl<W: Write> SnapshotWriter<W> {
    /// Opens the document with KAI's default settings and these actions. Fails when the sink does.
    pub fn begin(mut out: W, actions: &str) -> io::Result<Self> {
        let plugins: Vec<_> = PLUGINS
            .iter()
            .map(|&name| match name {
                "nodeplacement" => json!({"name": name, "arguments": {"cpu": "binpack", "gpu": "binpack"}}),
                _ => json!({"name": name}),
            })
            .collect();
        let config = json!({"actions": actions, "tiers": [{"plugins": plugins}]});
        let second = 1_000_000_000_i64;
        let params = json!({
            "schedulerName": "kai-scheduler",
            "partitionParams": {"NodePoolLabelKey": "", "NodePoolLabelValue": ""},
            "maxNumberConsolidationPreemptees": 16,
            "useSchedulingSignatures": true,
            "fullHierarchyFairness": true,
            "allowConsolidatingReclaim": true,
            "numOfStatusRecordingWorkers": 5,
            "globalDefaultStalenessGracePeriod": 60 * second,
            "schedulePeriod": second,
            "stuckInReleasingThreshold": 120 * second,
            "queueLabelKey": "kai.scheduler/queue",
        });
        let now = rfc3339(NOW_SECOND);
        write!(out, "{{\"now\":\"{now}\",\n\"config\":{config},\n\"schedulerParams\":{params},\n\"rawObjects\":{{")?;
        Ok(Self { out, written: Vec::new() })
    }

    /// Writes one list of `rawObjects`, an object a line. Panics on a key that KAI does not have or that was written already.
    pub fn list<T: Serialize>(&mut self, key: &str, items: impl Iterator<Item = T>) -> io::Result<()> {
        let key = *LISTS.iter().find(|&&known| known == key).expect("one of KAI's lists");
        assert!(!self.written.contains(&key), "{key} is written once");
        self.separate(key)?;
        for (i, item) in items.enumerate() {
            self.out.write_all(if i == 0 { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut self.out, &item)?;
        }
        self.out.write_all(b"]")
    }

    /// Writes the lists that are still missing, empty, and closes the document. Returns the sink, not flushed.
    pub fn finish(mut self) -> io::Result<W> {
        for key in LISTS {
            if !self.written.contains(&key) {
                self.separate(key)?;
                self.out.write_all(b"]")?;
            }
        }
        let version = json!({"major": "1", "minor": "34", "gitVersion": "v1.34.0", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
        let core = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": []});
        let discovery = json!({"serverVersion": version, "resources": [core]});
        write!(self.out, "}},\n\"discovery\":{discovery}}}\n")?;
        Ok(self.out)
    }

    fn separate(&mut self, key: &'static str) -> io::Result<()> {
        let comma = if self.written.is_empty() { "" } else { "," };
        self.written.push(key);
        write!(self.out, "{comma}\n\"{key}\":[")
    }
}

/// A PriorityClass as JSON.
#[must_use]
pub fn priority_class(name: &str, value: i32) -> serde_json::Value {
    json!({"metadata": {"name": name}, "value": value})
}

/// A Topology as JSON: label keys from the widest level to the narrowest.
#[must_use]
pub fn topology(name: &str, levels: &[&str]) -> serde_json::Value {
    let levels: Vec<_> = levels.iter().map(|label| json!({"nodeLabel": label})).collect();
    json!({"metadata": {"name": name, "uid": name}, "spec": {"levels": levels}})
}

/// A uid in the form of a UUID that sorts like `number` among the objects of one kind.
#[must_use]
pub fn uid(kind: u32, number: usize) -> String {
    format!("{kind:08x}-0000-4000-8000-{number:012x}")
}

fn cpu_text(milli: u64) -> String {
    if milli.is_multiple_of(1000) { (milli / 1000).to_string() } else { format!("{milli}m") }
}

fn memory_text(mib: u64) -> String {
    if mib.is_multiple_of(1024) { format!("{}Gi", mib / 1024) } else { format!("{mib}Mi") }
}

/// Date and time of a second since 1970.
pub(super) fn rfc3339(second: i64) -> String {
    jiff::Timestamp::from_second(second).unwrap_or_default().to_string()
}
