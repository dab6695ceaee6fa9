//! Single objects, sorted by kind, and which reader takes which kind.

use std::collections::BTreeMap;
use std::sync::Arc;

use ahash::AHashSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Ticker;
use super::decode::{Items, Left};
use crate::assemble::{Facts, PriorityFacts};
use crate::crds::topology::TopologySpec;
use crate::names::ObjectName;
use crate::problem::{Findings, Subject, show};
use crate::settings::Settings;
use crate::validate::{cluster_name, is_qualified_name, object_name};
use crate::{gangs, nodes, pods, queues};

/// The kinds that a snapshot holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Pod,
    Node,
    Queue,
    PodGroup,
    BindRequest,
    PriorityClass,
    ConfigMap,
    Topology,
    ResourceSlice,
    NodeResourceTopology,
    /// In a watched cluster only.
    SchedulingShard,
    /// Known, but nothing in it is used yet.
    Unused,
}

impl Kind {
    /// The name in messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::Queue => "Queue",
            Self::PodGroup => "PodGroup",
            Self::BindRequest => "BindRequest",
            Self::PriorityClass => "PriorityClass",
            Self::ConfigMap => "ConfigMap",
            Self::Topology => "Topology",
            Self::ResourceSlice => "ResourceSlice",
            Self::NodeResourceTopology => "NodeResourceTopology",
            Self::SchedulingShard => "SchedulingShard",
            Self::Unused => "object",
        }
    }

    /// The kind of a manifest. The group counts, because `Queue` and `PodGroup` are popular names; the version does not.
    pub(super) fn of(api_version: &str, kind: &str) -> Option<Self> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        Some(match (group, kind) {
            ("", "Pod") => Self::Pod,
            ("", "Node") => Self::Node,
            ("", "ConfigMap") => Self::ConfigMap,
            ("scheduling.run.ai", "Queue") => Self::Queue,
            ("scheduling.run.ai", "PodGroup") => Self::PodGroup,
            ("scheduling.run.ai", "BindRequest") => Self::BindRequest,
            ("scheduling.k8s.io", "PriorityClass") => Self::PriorityClass,
            ("kai.scheduler", "Topology") => Self::Topology,
            ("resource.k8s.io", "ResourceSlice") => Self::ResourceSlice,
            ("topology.node.k8s.io", "NodeResourceTopology") => Self::NodeResourceTopology,
            ("", "PersistentVolume" | "PersistentVolumeClaim")
            | ("resource.k8s.io", "ResourceClaim" | "DeviceClass")
            | ("storage.k8s.io", "StorageClass" | "CSIDriver" | "CSIStorageCapacity") => Self::Unused,
            _ => return None,
        })
    }
}

/// One object that is not decoded yet.
pub(super) enum Item<'a> {
    /// JSON text inside the input.
    Text(&'a RawValue),
    /// Out of YAML.
    Tree(Value),
}

/// Objects by kind.
#[derive(Default)]
pub(super) struct Sorted<'a> {
    pub(super) by_kind: BTreeMap<Kind, Vec<Item<'a>>>,
    /// Unknown kinds with counts.
    pub(super) skipped: BTreeMap<String, usize>,
    /// A `List` was among the documents.
    pub(super) lists: bool,
}

impl<'a> Sorted<'a> {
    /// Whether there was no document at all; an empty `List` is one.
    pub(super) fn is_empty(&self) -> bool {
        self.by_kind.is_empty() && self.skipped.is_empty() && !self.lists
    }

    pub(super) fn add(&mut self, kind: Kind, item: Item<'a>) {
        self.by_kind.entry(kind).or_default().push(item);
    }

    /// Manifests of which none is of a kind that matters here are probably not what was meant.
    pub(super) fn warn_of_nothing_known(&self, findings: &mut Findings) {
        if self.by_kind.is_empty() && !self.skipped.is_empty() {
            let kinds: Vec<&str> = self.skipped.keys().take(5).map(String::as_str).collect();
            let note = "no object of a kind that matters here (Node, Pod, Queue of scheduling.run.ai, …): nothing to plan";
            findings.warn(Subject::setting("manifests"), "kind", kinds.join(", "), note);
        }
    }

    /// Adds what another input held.
    pub(super) fn append(&mut self, other: Self) {
        for (kind, mut items) in other.by_kind {
            self.by_kind.entry(kind).or_default().append(&mut items);
        }
        for (kind, count) in other.skipped {
            *self.skipped.entry(kind).or_default() += count;
        }
        self.lists |= other.lists;
    }

    /// Decodes everything into `facts`; how many objects were left out because they are bad.
    pub(super) fn read(&self, settings: &Settings, facts: &mut Facts, findings: &mut Findings, ticker: &Ticker<'_>) -> usize {
        let of = |kind| Items { kind, list: self.by_kind.get(&kind).map_or(&[][..], Vec::as_slice), ticker };
        let mut left = Left::default();
        facts.nodes = left.count(of(Kind::Node).read(findings, |node: &mut Node, f| nodes::read(node, settings, f)));
        facts.pods = left.count(of(Kind::Pod).read(findings, |pod: &mut Pod, f| pods::read(pod, settings, f).map(Arc::new)));
        let queues = of(Kind::Queue).read(findings, |queue, f| queues::read(queue, settings, f));
        facts.queues = left.count(queues).into_iter().flatten().collect();
        let gangs = of(Kind::PodGroup).read(findings, |group, f| gangs::read(group, settings, f));
        facts.gangs = left.count(gangs).into_iter().flatten().collect();
        let binds = of(Kind::BindRequest).read(findings, pods::read_bind);
        facts.binds = left.count(binds).into_iter().flatten().collect();
        facts.priorities = left.count(of(Kind::PriorityClass).read(findings, priority_class));
        let maps = left.count(of(Kind::ConfigMap).read(findings, config_map));
        facts.config_maps = Some(maps.into_iter().collect::<AHashSet<_>>());
        left.count(of(Kind::Topology).read(findings, topology));
        let slices = left.count(of(Kind::ResourceSlice).read(findings, offers_gpus));
        facts.gpu_slices = slices.into_iter().filter(|gpus| *gpus).count();
        facts.numa_nodes = of(Kind::NodeResourceTopology).list.len();
        left.out
    }
}

/// Reads one PriorityClass; `None` if something in it is bad.
pub(crate) fn priority_class(class: &mut PriorityClass, findings: &mut Findings) -> Option<PriorityFacts> {
    let name = cluster_name("PriorityClass", &mut class.metadata, findings)?;
    Some(PriorityFacts { name, value: class.value.unwrap_or(0), global_default: class.global_default.unwrap_or(false) })
}

/// Of a ConfigMap only the name is used; its data is not even decoded.
fn config_map(map: &mut crate::crds::Object<serde::de::IgnoredAny>, findings: &mut Findings) -> Option<ObjectName> {
    object_name("ConfigMap", &mut map.metadata, findings)
}

/// Topologies are checked by the CRD's rules; placing by them comes later.
fn topology(topology: &mut crate::crds::Object<TopologySpec>, findings: &mut Findings) -> Option<()> {
    const HOSTNAME: &str = "kubernetes.io/hostname";
    let name = cluster_name("Topology", &mut topology.metadata, findings)?;
    let subject = Subject { kind: "Topology", namespace: "", name: &name };
    let before = findings.bad.len();
    let levels = &topology.spec.levels;
    if levels.is_empty() || levels.len() > 16 {
        findings.bad(subject, "spec.levels", format!("{} levels", levels.len()), "1 to 16 levels");
    }
    for (i, level) in levels.iter().enumerate() {
        let field = format!("spec.levels[{i}].nodeLabel");
        let again = levels[..i].iter().any(|other| other.node_label == level.node_label);
        if !is_qualified_name(&level.node_label) {
            findings.bad(subject, &field, show(&level.node_label), "a label key");
        } else if again {
            findings.bad(subject, &field, show(&level.node_label), "a label that no other level has");
        } else if level.node_label == HOSTNAME && i + 1 < levels.len() {
            findings.bad(subject, &field, show(&level.node_label), "this label at the last level only");
        }
        if level.alias.as_ref().is_some_and(|alias| !is_qualified_name(alias)) {
            let alias = level.alias.as_deref().unwrap_or_default();
            findings.bad(subject, &format!("spec.levels[{i}].alias"), show(alias), "a label key");
        }
    }
    (findings.bad.len() == before).then_some(())
}

/// Whether a slice has devices of a GPU driver on one node (semantics.md §1.5).
#[expect(clippy::unnecessary_wraps, reason = "readers of all kinds have one shape")]
fn offers_gpus(slice: &mut ResourceSlice, _: &mut Findings) -> Option<bool> {
    let spec = &slice.spec;
    let devices = spec.devices.as_ref().is_some_and(|devices| !devices.is_empty());
    Some(devices && spec.node_name.is_some() && spec.driver.to_lowercase().contains("gpu"))
}
