//! A scheduler's snapshot: `config`, `schedulerParams`, `rawObjects`, `now` (wire-contract.md §10.2).

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::objects::{Item, Kind, Sorted};
use super::{Input, Loaded, Options, Ticker, finish, unpack};
use crate::problem::{Failure, Findings, Subject, show};

/// What a JSON text is.
pub(super) enum Split<'a> {
    Snapshot(Box<Parts<'a>>),
    /// A Kubernetes object, or several; not sorted yet.
    Manifests(Sorted<'a>),
}

/// What is used of a snapshot; one pass over the text finds the bounds of every object.
#[derive(Default)]
pub(super) struct Parts<'a> {
    config: Option<Value>,
    scheduler_params: Option<Value>,
    now: Option<Value>,
    raw: Option<Raw<'a>>,
    /// The key marks a snapshot, nothing else.
    discovery: bool,
    /// The key marks a manifest.
    kind: bool,
    unknown: Vec<String>,
}

/// Lists of undecoded objects.
#[derive(Default)]
struct Raw<'a> {
    lists: Vec<(Kind, List<'a>)>,
    unknown: Vec<String>,
    /// It is no object, but this.
    wrong: Option<String>,
}

enum List<'a> {
    Objects(Vec<&'a RawValue>),
    /// It is no list, but this.
    Wrong(String),
}

/// Keys of a snapshot.
const KEYS: [&str; 5] = ["config", "schedulerParams", "rawObjects", "discovery", "now"];

/// Keys of `rawObjects`; without kind: known, and nothing in it is used.
const LISTS: [(&str, Option<Kind>); 17] = [
    ("pods", Some(Kind::Pod)),
    ("nodes", Some(Kind::Node)),
    ("queues", Some(Kind::Queue)),
    ("podGroups", Some(Kind::PodGroup)),
    ("bindRequests", Some(Kind::BindRequest)),
    ("priorityClasses", Some(Kind::PriorityClass)),
    ("configMaps", Some(Kind::ConfigMap)),
    ("topologies", Some(Kind::Topology)),
    ("resourceSlices", Some(Kind::ResourceSlice)),
    ("nodeResourceTopologies", Some(Kind::NodeResourceTopology)),
    ("persistentVolumes", None),
    ("persistentVolumeClaims", None),
    ("csiStorageCapacities", None),
    ("storageClasses", None),
    ("csiDrivers", None),
    ("resourceClaims", None),
    ("deviceClasses", None),
];

/// Unknown keys that are kept to be looked at.
const MOST_UNKNOWN: usize = 100;

impl<'de: 'a, 'a> Deserialize<'de> for Parts<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(PartsVisitor)
    }
}

struct PartsVisitor;

impl<'de> Visitor<'de> for PartsVisitor {
    type Value = Parts<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parts<'de>, A::Error> {
        let mut parts = Parts::default();
        let mut seen: Vec<&str> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if let Some(known) = KEYS.iter().find(|known| **known == key) {
                if seen.contains(known) {
                    return Err(A::Error::custom(format!("key {known} twice")));
                }
                seen.push(known);
            }
            match key.as_str() {
                "config" => parts.config = map.next_value()?,
                "schedulerParams" => parts.scheduler_params = map.next_value()?,
                "now" => parts.now = map.next_value()?,
                "rawObjects" => parts.raw = map.next_value_seed(Any::<RawOf>::default())?,
                "discovery" => parts.discovery = map.next_value::<Option<IgnoredAny>>()?.is_some(),
                "kind" => parts.kind = map.next_value::<Option<IgnoredAny>>()?.is_some(),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    if parts.unknown.len() < MOST_UNKNOWN {
                        parts.unknown.push(key);
                    }
                }
            }
        }
        Ok(parts)
    }
}

/// How to take a value of which the type is not sure: objects and lists as they are meant, anything else as text to show.
trait Take<'de> {
    type Taken;
    fn wrong(shown: String) -> Self::Taken;
    fn object<A: MapAccess<'de>>(mut map: A) -> Result<Self::Taken, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::wrong("{…}".to_owned()))
    }
    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self::Taken, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::wrong("[…]".to_owned()))
    }
}

struct RawOf;

impl<'de> Take<'de> for RawOf {
    type Taken = Raw<'de>;

    fn wrong(shown: String) -> Raw<'de> {
        Raw { wrong: Some(shown), ..Raw::default() }
    }

    fn object<A: MapAccess<'de>>(mut map: A) -> Result<Raw<'de>, A::Error> {
        let mut raw = Raw::default();
        while let Some(key) = map.next_key::<String>()? {
            let Some((known, kind)) = LISTS.iter().find(|(known, _)| *known == key) else {
                map.next_value::<IgnoredAny>()?;
                if raw.unknown.len() < MOST_UNKNOWN {
                    raw.unknown.push(key);
                }
                continue;
            };
            let Some(kind) = *kind else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if raw.lists.iter().any(|(other, _)| *other == kind) {
                return Err(A::Error::custom(format!("key rawObjects.{known} twice")));
            }
            let list = map.next_value_seed(Any::<ListOf>::default())?.unwrap_or_else(|| List::Objects(Vec::new()));
            raw.lists.push((kind, list));
        }
        Ok(raw)
    }
}

struct ListOf;

impl<'de> Take<'de> for ListOf {
    type Taken = List<'de>;

    fn wrong(shown: String) -> List<'de> {
        List::Wrong(shown)
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<List<'de>, A::Error> {
        let mut objects = Vec::new();
        while let Some(object) = list.next_element()? {
            objects.push(object);
        }
        Ok(List::Objects(objects))
    }
}

/// Reads any value as `T` takes it; null is `None`.
struct Any<T>(PhantomData<T>);

impl<T> Default for Any<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<'de, T: Take<'de>> DeserializeSeed<'de> for Any<T> {
    type Value = Option<T::Taken>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Take<'de>> Visitor<'de> for Any<T> {
    type Value = Option<T::Taken>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Some(T::wrong(value.to_string())))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Some(T::wrong(value.to_string())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(T::wrong(value.to_string())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Some(T::wrong(format!("{value:e}"))))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Some(T::wrong(show(value))))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::object(map).map(Some)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        T::list(list).map(Some)
    }
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
        || parts.raw.is_some()
        || parts.discovery
        || parts.now.is_some();
    if parts.kind && parts.raw.is_none() {
        return Ok(Split::Manifests(Sorted::default()));
    }
    let rest = text[documents.byte_offset()..].trim_ascii();
    if !rest.is_empty() {
        return Err(Failure::Unreadable(format!(
            "{name}: {} {} the snapshot; expected the end",
            rest.len(),
            if rest.len() == 1 { "byte follows" } else { "bytes follow" }
        )));
    }
    // Any key may be missing, but something of a snapshot must be there unless the object is empty.
    if !marked && text.trim_ascii() != b"{}" && text.trim_ascii().len() > 2 && !is_empty_object(text) {
        let message = "neither a snapshot (config, schedulerParams, rawObjects, discovery) nor a Kubernetes object (kind)";
        let hints: Vec<String> = parts.unknown.iter().filter_map(|key| top_hint(key)).collect();
        let hints = if hints.is_empty() { String::new() } else { format!("; {}", hints.join("; ")) };
        return Err(Failure::Unreadable(format!("{name}: {message}{hints}")));
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
        let mut findings = Findings::default();
        let mut sorted = Sorted::default();
        self.warn_of_unknown(&mut findings);
        let raw = self.raw.unwrap_or_default();
        if let Some(wrong) = raw.wrong {
            findings.bad(Subject::setting("rawObjects"), "", wrong, "an object");
        }
        for (kind, list) in raw.lists {
            match list {
                List::Objects(objects) => {
                    sorted.by_kind.insert(kind, objects.into_iter().map(Item::Text).collect());
                }
                List::Wrong(shown) => {
                    findings.bad(
                        Subject::setting("rawObjects"),
                        key_of(kind),
                        shown,
                        format!("a list of {} objects", kind.name()),
                    );
                }
            }
        }
        let (config, params) = (self.config, self.scheduler_params);
        let input = Input { sorted, config, params, now: self.now, manifests: false };
        finish(name, options, input, &mut findings, ticker)
    }

    /// Keys that look misspelled, and a snapshot without any object. Further keys are legal.
    fn warn_of_unknown(&self, findings: &mut Findings) {
        for key in &self.unknown {
            if let Some(hint) = top_hint(key) {
                findings.warn(Subject::setting("snapshot"), "", String::new(), hint);
            }
        }
        let Some(raw) = &self.raw else {
            findings.warn(Subject::setting("snapshot"), "rawObjects", String::new(), "absent: the cluster is empty");
            return;
        };
        for key in &raw.unknown {
            if let Some(known) = LISTS.iter().map(|(known, _)| *known).find(|known| alike(key, known)) {
                let note = format!("unknown key {}, ignored; did you mean {known}?", show(key));
                findings.warn(Subject::setting("rawObjects"), "", String::new(), note);
            }
        }
        if raw.lists.is_empty() && raw.wrong.is_none() {
            let note = "none of nodes, pods, queues and podGroups is there: the cluster is empty";
            findings.warn(Subject::setting("rawObjects"), "", String::new(), note);
        }
    }
}

fn key_of(kind: Kind) -> &'static str {
    LISTS.iter().find(|(_, other)| *other == Some(kind)).map_or("", |(key, _)| key)
}

/// What an unknown key of a snapshot was probably meant to be.
fn top_hint(key: &str) -> Option<String> {
    if LISTS.iter().any(|(known, _)| *known == key) {
        return Some(format!("key {key}, ignored; expected inside rawObjects"));
    }
    let known = KEYS.iter().find(|known| alike(key, known))?;
    Some(format!("unknown key {}, ignored; did you mean {known}?", show(key)))
}

/// Whether one is the other but for case, punctuation, or a typing error or two.
fn alike(key: &str, known: &str) -> bool {
    const LONG: usize = 6;
    if key.len() > 2 * known.len() {
        return false;
    }
    let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect::<Vec<_>>();
    let (a, b) = (letters(key), letters(known));
    // Levenshtein's distance, one row at a time.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()] <= if b.len() >= LONG { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_alike_and_other_words_are_not() {
        for (key, known) in
            [("rawObject", "rawObjects"), ("Pods", "pods"), ("pod_groups", "podGroups"), ("rawObejcts", "rawObjects")]
        {
            assert!(alike(key, known), "{key}");
        }
        for (key, known) in [("resourceClaims", "resourceSlices"), ("node", "now"), ("version", "config"), ("", "now")] {
            assert!(!alike(key, known), "{key}");
        }
        for (i, (a, _)) in LISTS.iter().enumerate() {
            assert!(LISTS[..i].iter().all(|(b, _)| !alike(a, b)), "{a}");
        }
    }
}
