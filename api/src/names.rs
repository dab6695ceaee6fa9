//! The names that the rows of a snapshot leave out, by index: for output and sentences.

use std::fmt;

use muster_core::index::{ClassIdx, Col, DimIdx, GangIdx, GroupIdx, NodeIdx, PodIdx, QueueIdx, SubgroupIdx, TaintIdx};

/// Name of a namespaced object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ObjectName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ObjectName {
    /// Namespace and name.
    #[must_use]
    pub fn parts(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a class asks for, as text.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct ClassText {
    /// ConfigMaps that the pods need and that do not exist, sorted.
    pub missing_config_maps: Vec<String>,
    /// `nodeSelector`, e.g. `pool=a, zone=b`; empty if there is none.
    pub selector: String,
    /// Required node affinity, e.g. `gpu in (a100, h100) or name in (n1)`; empty if there is none.
    pub affinity: String,
}

/// One column for each table of [`muster_core::snapshot::Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    /// `metadata.name`.
    pub nodes: Col<NodeIdx, String>,
    /// `metadata.name`.
    pub queues: Col<QueueIdx, String>,
    /// `spec.displayName`; empty if there is none.
    pub queue_titles: Col<QueueIdx, String>,
    /// Namespace and name.
    pub gangs: Col<GangIdx, ObjectName>,
    /// `spec.queue` as written, whether it exists or not.
    pub gang_queues: Col<GangIdx, String>,
    /// Names within their gang; `default` for the implied one.
    pub subgroups: Col<SubgroupIdx, String>,
    /// Namespace and name.
    pub pods: Col<PodIdx, ObjectName>,
    /// `metadata.uid`; may be empty in manifests.
    pub pod_uids: Col<PodIdx, String>,
    /// Ids of shared GPUs.
    pub groups: Col<GroupIdx, String>,
    /// Resource names.
    pub dims: Col<DimIdx, String>,
    /// `key=value:Effect`.
    pub taints: Col<TaintIdx, String>,
    /// What each class is about.
    pub classes: Col<ClassIdx, ClassText>,
}
