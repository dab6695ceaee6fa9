//! Objects of one kind → facts, in parallel, each by itself.
//!
//! The fast path decodes without tracking where it is; only what fails is decoded again with the path, to name field and value.

use rayon::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Ticker;
use super::objects::{Item, Kind};
use crate::problem::{Findings, Subject, show_json};

/// Objects per piece of parallel work: some hundred microseconds each.
const PIECE: usize = 64;

/// Undecoded objects of one kind.
pub(super) struct Items<'a> {
    pub(super) kind: Kind,
    pub(super) list: &'a [Item<'a>],
    pub(super) ticker: &'a Ticker<'a>,
}

/// Facts in the order of the objects, and how many objects gave none.
pub(super) struct Read<F> {
    facts: Vec<F>,
    left_out: usize,
}

/// Sums up what was left out.
#[derive(Default)]
pub(super) struct Left {
    pub(super) out: usize,
}

impl Left {
    pub(super) fn count<F>(&mut self, read: Read<F>) -> Vec<F> {
        self.out += read.left_out;
        read.facts
    }
}

impl Items<'_> {
    /// Decodes each object as a `T` and makes facts of it.
    pub(super) fn read<T, F>(&self, findings: &mut Findings, facts: impl Fn(&mut T, &mut Findings) -> Option<F> + Sync) -> Read<F>
    where
        T: DeserializeOwned,
        F: Send,
    {
        let piece = |(p, items): (usize, &[Item<'_>])| {
            let (mut made, mut found) = (Vec::with_capacity(items.len()), Findings::default());
            let mut bytes = 0;
            for (i, item) in items.iter().enumerate() {
                let before = found.bad.len();
                bytes += item.len();
                let number = p * PIECE + i;
                // In place: a Pod is 2.4 KB, and moving it costs as much as reading it.
                match item.decode::<T>() {
                    Ok(mut object) => made.extend(facts(&mut object, &mut found)),
                    Err(()) => {
                        if let Some(mut object) = item.decode_again::<T>(self.kind, number, &mut found) {
                            made.extend(facts(&mut object, &mut found));
                        }
                    }
                }
                for problem in &mut found.bad[before..] {
                    // An object without name is told by its place in the list.
                    if problem.object.is_empty() || problem.object.ends_with('?') {
                        problem.object = format!("{}#{number}", problem.object.trim_end_matches('?'));
                    }
                }
            }
            self.ticker.tick(bytes);
            (made, found)
        };
        let pieces: Vec<_> = if self.list.len() <= PIECE {
            // Not worth waking threads for.
            self.list.chunks(PIECE).enumerate().map(piece).collect()
        } else {
            self.list.par_chunks(PIECE).enumerate().map(piece).collect()
        };
        let mut all = Vec::with_capacity(self.list.len());
        for (mut made, found) in pieces {
            all.append(&mut made);
            findings.append(found);
        }
        Read { left_out: self.list.len() - all.len(), facts: all }
    }
}

impl Item<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.get().len(),
            Self::Tree(_) => 0,
        }
    }

    #[inline]
    fn decode<T: DeserializeOwned>(&self) -> Result<T, ()> {
        match self {
            // Derived readers would take a list for an object, field by field.
            Self::Text(text) if !text.get().starts_with('{') => Err(()),
            Self::Text(text) => serde_json::from_str(text.get()).map_err(drop),
            Self::Tree(tree) => T::deserialize(tree).map_err(drop),
        }
    }

    /// Slow, to say exactly what is wrong.
    #[cold]
    fn decode_again<T: DeserializeOwned>(&self, kind: Kind, at: usize, findings: &mut Findings) -> Option<T> {
        let parsed;
        let tree = match self {
            Self::Tree(tree) => tree,
            Self::Text(text) => match serde_json::from_str::<Value>(text.get()) {
                Ok(tree) => {
                    parsed = tree;
                    &parsed
                }
                Err(error) => {
                    let name = format!("#{at}");
                    let subject = Subject { kind: kind.name(), namespace: "", name: &name };
                    findings.bad(subject, "", String::new(), format!("an object that can be read ({})", cause(&error)));
                    return None;
                }
            },
        };
        if !tree.is_object() {
            let name = format!("#{at}");
            findings.bad(Subject { kind: kind.name(), namespace: "", name: &name }, "", show_json(tree), "an object");
            return None;
        }
        match serde_path_to_error::deserialize::<_, T>(tree) {
            Ok(object) => Some(object),
            Err(error) => {
                let text = |field: &str| tree.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_str);
                let number = format!("#{at}");
                let (namespace, name) = (text("namespace").unwrap_or_default(), text("name").unwrap_or(&number));
                let subject = Subject { kind: kind.name(), namespace, name };
                let path = error.path().to_string();
                let (field, value) = shown(tree, &path);
                findings.bad(subject, &field, value, expectation(&path, &error.inner().to_string()));
                None
            }
        }
    }
}

/// The path without what serde says for the root, and the value there.
fn shown(tree: &Value, path: &str) -> (String, String) {
    let mut at = Some(tree);
    let mut rest = path;
    while let (Some(value), false) = (at, rest.is_empty()) {
        at = match value {
            Value::Array(items) => {
                let inner = rest.trim_start_matches('[');
                let (number, after) = inner.split_once(']').unwrap_or((inner, ""));
                rest = after.trim_start_matches('.');
                number.parse::<usize>().ok().and_then(|i| items.get(i))
            }
            Value::Object(fields) => {
                // Keys may hold dots: the longest key that the path begins with.
                let fits = |key: &&String| {
                    rest.strip_prefix(key.as_str()).is_some_and(|after| after.is_empty() || after.starts_with(['.', '[']))
                };
                let key = fields.keys().filter(fits).max_by_key(|key| key.len());
                key.and_then(|key| {
                    rest = rest[key.len()..].trim_start_matches('.');
                    fields.get(key)
                })
            }
            _ => None,
        };
    }
    let field = if path == "." { "" } else { path };
    let value = if path == "." { Some(tree) } else { at };
    (field.to_owned(), value.map(show_json).unwrap_or_default())
}

/// What serde expected, in a user's words.
fn expectation(path: &str, message: &str) -> String {
    const TIME: &str = "a time such as 2026-01-01T00:00:00Z (RFC 3339)";
    // The time library says which character it stumbled over.
    if path.ends_with("Timestamp") || path.ends_with("Time") {
        return TIME.to_owned();
    }
    let message = message.split(" at line ").next().unwrap_or(message);
    let Some((_, expected)) = message.rsplit_once("expected ") else {
        return match message {
            m if m.starts_with("missing field") => format!("the required {}", m.trim_start_matches("missing ").replace('`', "")),
            m => format!("a valid value ({m})"),
        };
    };
    match expected {
        "i32" => format!("an integer from {} to {}", i32::MIN, i32::MAX),
        "u32" => format!("an integer from 0 to {}", u32::MAX),
        "i64" | "isize" => format!("an integer from {} to {}", i64::MIN, i64::MAX),
        "u64" | "usize" => "an integer of 0 or more".to_owned(),
        "f64" => "a number".to_owned(),
        "a boolean" | "bool" => "true or false".to_owned(),
        "Quantity" => "a quantity such as 4, 500m, 1.5Gi or 2e3".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        variants if variants.contains('`') => variants.replace('`', ""),
        other if other.starts_with("struct ") || other.starts_with(char::is_uppercase) => "an object".to_owned(),
        other => other.to_owned(),
    }
}

/// A parser's message without its position, which is relative to the object.
fn cause(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split(" at line ").next().unwrap_or(&message).to_owned()
}
