//! A scheduler's snapshot: `config`, `schedulerParams`, `rawObjects`, `now` (wire-contract.md §10.2).

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::objects::{Item, Kind, Sorted};
use super::{Input, Loaded, Options, Ticker, finish, unpack};
use crate::problem::{Failure, Findings};

/// What a JSON text is.
pub(super) enum Split<'a> {
    Snapshot(Box<Parts<'a>>),
    /// A Kubernetes object, or several.
    Manifests,
}

/// The keys that are used; one pass over the text finds the bounds of every object.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct Parts<'a> {
    config: Option<Value>,
    scheduler_params: Option<Value>,
    now: Option<Value>,
    #[serde(borrow)]
    raw_objects: Option<RawObjects<'a>>,
    /// Marks a snapshot, nothing else.
    #[serde(borrow)]
    discovery: Option<&'a RawValue>,
    /// Marks a manifest.
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
}

type List<'a> = Option<Vec<&'a RawValue>>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct RawObjects<'a> {
    #[serde(borrow)]
    pods: List<'a>,
    #[serde(borrow)]
    nodes: List<'a>,
    #[serde(borrow)]
    queues: List<'a>,
    #[serde(borrow)]
    pod_groups: List<'a>,
    #[serde(borrow)]
    bind_requests: List<'a>,
    #[serde(borrow)]
    priority_classes: List<'a>,
    #[serde(borrow)]
    config_maps: List<'a>,
    #[serde(borrow)]
    topologies: List<'a>,
    #[serde(borrow)]
    resource_slices: List<'a>,
    #[serde(borrow)]
    node_resource_topologies: List<'a>,
}

/// Finds the parts of a JSON text that begins with `{`.
pub(super) fn split<'a>(name: &str, text: &'a [u8]) -> Result<Split<'a>, Failure> {
    let mut documents = serde_json::Deserializer::from_slice(text).into_iter::<Parts<'a>>();
    let parts = match documents.next() {
        None => return Err(Failure::Unreadable(format!("{name}: the input is empty"))),
        Some(Ok(parts)) => parts,
        Some(Err(error)) => {
            unpack::utf8(name, text)?;
            return Err(Failure::Unreadable(explain(name, &error)));
        }
    };
    let marked = parts.config.is_some()
        || parts.scheduler_params.is_some()
        || parts.raw_objects.is_some()
        || parts.discovery.is_some()
        || parts.now.is_some();
    if parts.kind.is_some() && parts.raw_objects.is_none() {
        return Ok(Split::Manifests);
    }
    let rest = text[documents.byte_offset()..].trim_ascii();
    if !rest.is_empty() {
        return Err(Failure::Unreadable(format!("{name}: {} bytes follow the snapshot", rest.len())));
    }
    // Any key may be missing, but something of a snapshot must be there unless the object is empty.
    if !marked && text.trim_ascii() != b"{}" && text.trim_ascii().len() > 2 && !is_empty_object(text) {
        let message = "neither a snapshot (config, schedulerParams, rawObjects, discovery) nor a Kubernetes object (kind)";
        return Err(Failure::Unreadable(format!("{name}: {message}")));
    }
    Ok(Split::Snapshot(Box::new(parts)))
}

fn is_empty_object(text: &[u8]) -> bool {
    text.iter().filter(|b| !b.is_ascii_whitespace()).eq(b"{}".iter())
}

fn explain(name: &str, error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Eof => format!("{name}: the JSON text ends too early (truncated?): {error}"),
        serde_json::error::Category::Data => format!("{name}: not a snapshot: {error}"),
        _ => format!("{name}: not JSON: {error}"),
    }
}

impl Parts<'_> {
    /// Everything after splitting.
    pub(super) fn load(self, name: &str, options: &Options<'_>, ticker: &Ticker<'_>) -> Result<Loaded, Failure> {
        let mut sorted = Sorted::default();
        let raw = self.raw_objects.unwrap_or_default();
        for (kind, list) in [
            (Kind::Pod, raw.pods),
            (Kind::Node, raw.nodes),
            (Kind::Queue, raw.queues),
            (Kind::PodGroup, raw.pod_groups),
            (Kind::BindRequest, raw.bind_requests),
            (Kind::PriorityClass, raw.priority_classes),
            (Kind::ConfigMap, raw.config_maps),
            (Kind::Topology, raw.topologies),
            (Kind::ResourceSlice, raw.resource_slices),
            (Kind::NodeResourceTopology, raw.node_resource_topologies),
        ] {
            let items = list.unwrap_or_default().into_iter().map(Item::Text).collect();
            sorted.by_kind.insert(kind, items);
        }
        let (config, params) = (self.config, self.scheduler_params);
        let input = Input { sorted, config, params, now: self.now, manifests: false };
        finish(name, options, input, &mut Findings::default(), ticker)
    }
}
