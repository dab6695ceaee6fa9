//! Manifests: YAML or JSON documents, single objects or `List`s, as people write them and `kubectl get -o yaml` prints them.

use std::borrow::Cow;

use rayon::prelude::*;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::objects::{Item, Kind, Sorted};
use super::unpack;
use crate::problem::{Failure, Findings, Subject, plain, show, show_json};

/// Levels of a YAML document. Schemas of CRDs, which may lie beside manifests, reach 60.
const MAX_DEPTH: usize = 120;
/// Enough for [`MAX_DEPTH`] in a build without optimisation.
const STACK_BYTES: usize = 64 << 20;

/// `List`s inside `List`s that are unfolded.
const MAX_LISTS: usize = 16;

/// What says which kind an object is of.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    #[serde(borrow, default)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    items: Option<&'a RawValue>,
}

/// Sorts the objects of a JSON text: one document, or several after another.
pub(super) fn split_json<'a>(name: &str, text: &'a [u8], sorted: &mut Sorted<'a>) -> Result<(), Failure> {
    let text = unpack::utf8(name, text)?;
    for document in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        let document = document.map_err(|error| Failure::Unreadable(format!("{name}: not JSON: {error}")))?;
        sort_text(name, document, List::default(), sorted)?;
    }
    Ok(())
}

/// The list that an object is in.
#[derive(Clone, Copy, Default)]
struct List<'a> {
    /// What items of a typed list have where they do not say it themselves.
    version: &'a str,
    kind: &'a str,
    /// How many lists there are around the object.
    depth: usize,
}

impl List<'_> {
    /// Whether an object of `kind` with items is a list to be unfolded.
    fn unfolds(self, kind: &str) -> bool {
        kind.ends_with("List") && self.depth < MAX_LISTS
    }
}

fn sort_text<'a>(name: &str, text: &'a RawValue, list: List<'_>, sorted: &mut Sorted<'a>) -> Result<(), Failure> {
    let refuse = |what: &str| Failure::Unreadable(format!("{name}: {what}"));
    if !text.get().starts_with('{') {
        let value = serde_json::from_str(text.get()).map_or_else(|_| show(text.get()), |value| show_json(&value));
        return Err(refuse(&format!("{value}: expected a Kubernetes object")));
    }
    let head: Head<'a> = serde_json::from_str(text.get())
        .map_err(|_| refuse("not a Kubernetes object: expected texts as apiVersion and kind, each once"))?;
    let version = head.api_version.as_deref().unwrap_or(list.version);
    let kind = head.kind.as_deref().unwrap_or(list.kind);
    match head.items {
        Some(items) if list.unfolds(kind) => {
            sorted.lists = true;
            let items: Option<Vec<&RawValue>> =
                serde_json::from_str(items.get()).map_err(|_| refuse(&format!("items of {}: expected a list", plain(kind))))?;
            let inner = List { version, kind: kind.trim_end_matches("List"), depth: list.depth + 1 };
            for item in items.unwrap_or_default() {
                sort_text(name, item, inner, sorted)?;
            }
        }
        _ => sort_one(version, kind, Item::Text(text), sorted),
    }
    Ok(())
}

fn sort_one<'a>(version: &str, kind: &str, item: Item<'a>, sorted: &mut Sorted<'a>) {
    match Kind::of(version, kind) {
        Some(kind) => sorted.add(kind, item),
        None => {
            let name = match (version.split_once('/'), kind) {
                (_, "") => "(no kind)".to_owned(),
                (Some((group, _)), kind) => format!("{}.{}", plain(kind), plain(group)),
                (None, kind) => plain(kind),
            };
            *sorted.skipped.entry(name).or_default() += 1;
        }
    }
}

/// Sorts the objects of a YAML text. A document that is no YAML is one bad object.
pub(super) fn split_yaml<'a>(name: &str, text: &'a str, sorted: &mut Sorted<'a>, findings: &mut Findings) {
    let documents = documents(text);
    // The parser recurses, up to `MAX_DEPTH`: further than the stack of an ordinary thread allows.
    let pool = rayon::ThreadPoolBuilder::new().stack_size(STACK_BYTES).build();
    let trees: Vec<_> = match pool {
        Ok(pool) => pool.install(|| documents.par_iter().map(|document| parse(document, MAX_DEPTH)).collect()),
        // No threads to be had: documents as deep as this thread can bear.
        Err(_) => documents.iter().map(|document| parse(document, MAX_DEPTH / 4)).collect(),
    };
    for (number, tree) in trees.into_iter().enumerate() {
        match tree {
            Ok(tree) => sort_tree(name, number + 1, tree, List::default(), sorted, findings),
            Err(message) => refuse(name, number + 1, &message, findings),
        }
    }
}

/// `number`: 1 for the first document.
fn refuse(name: &str, number: usize, message: &str, findings: &mut Findings) {
    let object = format!("{number} of {name}");
    let subject = Subject { kind: "document", namespace: "", name: &object };
    findings.bad(subject, "", String::new(), format!("a Kubernetes object, in YAML or JSON ({message})"));
}

fn parse(document: &str, max_depth: usize) -> Result<Value, String> {
    let mut budget = serde_saphyr::Budget::default();
    // A List of a whole cluster is one document; anchors stay at their default bounds, so that aliases cannot multiply.
    budget.max_events = usize::MAX;
    budget.max_nodes = usize::MAX;
    budget.max_total_scalar_bytes = usize::MAX;
    budget.max_depth = max_depth;
    let mut options = serde_saphyr::Options::default();
    options.budget = Some(budget);
    options.with_snippet = false;
    options.strict_booleans = true;
    serde_saphyr::from_str_with_options(document, options).map_err(|error| {
        let message = error.to_string();
        match message.split_once("budget breached: ") {
            Some((_, what)) if what.starts_with("Depth") => format!("it nests deeper than {max_depth} levels"),
            Some(_) => "its aliases multiply it beyond what is read".to_owned(),
            None => plain(message.lines().next().unwrap_or_default()),
        }
    })
}

fn sort_tree<'a>(name: &str, number: usize, tree: Value, list: List<'_>, sorted: &mut Sorted<'a>, findings: &mut Findings) {
    let Value::Object(mut fields) = tree else {
        if !tree.is_null() {
            refuse(name, number, "neither a mapping nor empty", findings);
        }
        return;
    };
    let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
    let version = text("apiVersion").unwrap_or_else(|| list.version.to_owned());
    let kind = text("kind").unwrap_or_else(|| list.kind.to_owned());
    if list.unfolds(&kind) && fields.get("items").is_some_and(|items| items.is_array() || items.is_null()) {
        sorted.lists = true;
        let inner = List { version: &version, kind: kind.trim_end_matches("List"), depth: list.depth + 1 };
        let Some(Value::Array(items)) = fields.remove("items") else { return };
        for item in items {
            sort_tree(name, number, item, inner, sorted, findings);
        }
        return;
    }
    sort_one(&version, &kind, Item::Tree(Value::Object(fields)), sorted);
}

/// Whether a text has several YAML documents, by its markers.
pub(super) fn has_markers(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"---") && line.get(3).is_none_or(u8::is_ascii_whitespace))
}

/// Documents of a YAML stream: `---` and `...` at the start of a line part them, whatever is around. Pieces that hold only
/// comments, directives or nothing are left out.
fn documents(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let marker = line.as_bytes().get(..3).unwrap_or_default();
        let ends = line.as_bytes().get(3).is_none_or(u8::is_ascii_whitespace);
        if ends && (marker == b"---" || marker == b"...") {
            pieces.push(&text[start..at]);
            start = if marker == b"---" { at + 3 } else { at + line.len() };
        }
        at += line.len();
    }
    pieces.push(&text[start..]);
    let says = |line: &&str| !line.trim().is_empty() && !line.starts_with(['#', '%']) && !line.trim_start().starts_with('#');
    pieces.retain(|piece| piece.lines().any(|line| says(&line)));
    pieces
}
