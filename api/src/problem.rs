//! What is wrong with an input, as lines a user can act on: object, field, value, what was expected.
//!
//! Two degrees: *bad* (cannot be parsed, or violates the CRD's or Kubernetes' own validation) refuses the input, or leaves
//! the object out when reading is lenient; a *warning* is odd but legal. Nothing here knows a particular kind of object.

use std::fmt::{self, Write as _};
use std::ops::Deref;

use serde_json::Value;

/// How many characters of a value are shown.
const SHOWN_CHARS: usize = 80;
/// How many of a name or a field's path: all of a legal one.
const NAME_CHARS: usize = 260;

/// One thing that is wrong, or odd.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Problem {
    /// Kind of object, e.g. `PodGroup`; `config` and `schedulerParams` for settings.
    pub kind: String,
    /// `namespace/name`, `name`, or empty for settings.
    pub object: String,
    /// Path of the field, e.g. `spec.minMember`; may be empty.
    pub field: String,
    /// The value as JSON, shortened, control characters escaped; may be empty.
    pub value: String,
    /// What is accepted; empty when nothing is refused.
    pub expected: String,
    /// What follows from it, or what to do; may be empty.
    pub note: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if !self.object.is_empty() {
            write!(f, " {}", self.object)?;
        }
        for part in [&self.field, &self.value] {
            if !part.is_empty() {
                write!(f, ": {part}")?;
            }
        }
        if !self.expected.is_empty() {
            write!(f, ": expected {}", self.expected)?;
        }
        match (self.note.is_empty(), self.expected.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => write!(f, ": {}", self.note),
            (false, false) => write!(f, "; {}", self.note),
        }
    }
}

/// The problems of one input, sorted by kind, object and field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems {
    list: Vec<Problem>,
    input: String,
}

impl Problems {
    /// Sorts `list`, the problems of the input called `input`.
    #[must_use]
    pub fn new(mut list: Vec<Problem>, input: &str) -> Self {
        list.sort();
        list.dedup();
        Self { list, input: input.to_owned() }
    }
}

impl Deref for Problems {
    type Target = [Problem];
    fn deref(&self) -> &[Problem] {
        &self.list
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.list {
            writeln!(f, "{problem}")?;
        }
        let errors = if self.list.len() == 1 { "error" } else { "errors" };
        write!(f, "{} {errors} in {}", self.list.len(), self.input)
    }
}

/// Why nothing could be loaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The input as a whole cannot be read: no such file, truncated archive, not JSON or YAML, empty. One line that names
    /// the input, then a summary line.
    #[error("{0}")]
    Unreadable(String),
    /// Objects or settings are wrong: one line each, then a summary line.
    #[error("{0}")]
    Bad(Problems),
}

impl Failure {
    /// With a summary line where there is none yet: every failure ends in one.
    pub(crate) fn summed_up(self, input: &str) -> Self {
        match self {
            Self::Unreadable(message) => Self::Unreadable(format!("{message}\n1 error in {input}")),
            bad @ Self::Bad(_) => bad,
        }
    }
}

/// Who a finding is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) kind: &'a str,
    /// Empty for cluster-scoped objects.
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl Subject<'_> {
    /// A setting: `config` or `schedulerParams`.
    pub(crate) const fn setting(kind: &str) -> Subject<'_> {
        Subject { kind, namespace: "", name: "" }
    }

    fn object(&self) -> String {
        match (self.namespace.is_empty(), self.name.is_empty()) {
            (true, _) => plain(self.name),
            (false, true) => format!("{}/?", plain(self.namespace)),
            (false, false) => format!("{}/{}", plain(self.namespace), plain(self.name)),
        }
    }
}

/// What was found so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) bad: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
}

impl Findings {
    /// `value` is already in shown form ([`show`], [`show_json`]).
    pub(crate) fn bad(&mut self, subject: Subject<'_>, field: &str, value: String, expected: impl Into<String>) {
        self.bad.push(Problem {
            kind: subject.kind.to_owned(),
            object: subject.object(),
            field: plain(field),
            value,
            expected: expected.into(),
            note: String::new(),
        });
    }

    /// Odd but legal: `note` says what follows.
    pub(crate) fn warn(&mut self, subject: Subject<'_>, field: &str, value: String, note: impl Into<String>) {
        self.warnings.push(Problem {
            kind: subject.kind.to_owned(),
            object: subject.object(),
            field: plain(field),
            value,
            expected: String::new(),
            note: note.into(),
        });
    }

    /// A value that is refused where it decides something and ignored where it no longer does.
    pub(crate) fn judge(&mut self, refuse: bool, subject: Subject<'_>, field: &str, value: String, expected: &str) {
        if refuse {
            self.bad(subject, field, value, expected);
        } else {
            self.warn(subject, field, value, format!("ignored; expected {expected}"));
        }
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.bad.append(&mut other.bad);
        self.warnings.append(&mut other.warnings);
    }
}

/// Text as a JSON string, shortened.
pub(crate) fn show(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(SHOWN_CHARS) + 2);
    shown.push('"');
    escape_into(&mut shown, text, SHOWN_CHARS);
    shown.push('"');
    shown
}

/// A JSON value, shortened.
pub(crate) fn show_json(value: &Value) -> String {
    match value {
        Value::String(text) => show(text),
        Value::Array(items) if items.len() > 8 => format!("a list of {} items", items.len()),
        Value::Object(fields) if fields.len() > 8 => format!("an object of {} fields", fields.len()),
        other => {
            let mut shown = String::new();
            escape_into(&mut shown, &other.to_string(), SHOWN_CHARS);
            shown.replace("\\\"", "\"")
        }
    }
}

/// A name inside a line: shortened, control characters escaped, no quotes.
pub(crate) fn plain(text: &str) -> String {
    let short = text.len() <= NAME_CHARS;
    if short && !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    let mut shown = String::new();
    escape_into(&mut shown, text, NAME_CHARS);
    shown
}

fn escape_into(shown: &mut String, text: &str, most: usize) {
    for (i, c) in text.chars().enumerate() {
        if i == most {
            let _ = write!(shown, "… ({} bytes)", text.len());
            return;
        }
        match c {
            '"' => shown.push_str("\\\""),
            '\\' => shown.push_str("\\\\"),
            // Control characters and text direction marks would garble the terminal.
            c if c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                let _ = write!(shown, "{}", c.escape_default());
            }
            c => shown.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_reads_like_the_contract() {
        let mut findings = Findings::default();
        let subject = Subject { kind: "PodGroup", namespace: "ml", name: "train" };
        findings.bad(subject, "spec.minMember", show("two"), "an integer");
        findings.bad(Subject::setting("config"), "actions", show("alocate"), "one of allocate, reclaim");
        findings.warn(Subject::setting("config"), "", String::new(), "odd");
        assert_eq!(findings.bad[0].to_string(), r#"PodGroup ml/train: spec.minMember: "two": expected an integer"#);
        assert_eq!(findings.bad[1].to_string(), r#"config: actions: "alocate": expected one of allocate, reclaim"#);
        assert_eq!(findings.warnings[0].to_string(), "config: odd");
        let text = Failure::Bad(Problems::new(findings.bad, "s.json")).to_string();
        assert_eq!(text.lines().last(), Some("2 errors in s.json"));
    }

    #[test]
    fn long_and_hostile_values_stay_on_one_short_line() {
        let shown = show(&format!("\u{1b}[31m\n{}", "x".repeat(1 << 20)));
        assert!(shown.len() < 200, "{} bytes", shown.len());
        assert!(!shown.chars().any(char::is_control), "{shown}");
        assert!(shown.contains("1048582 bytes"), "{shown}");
        assert_eq!(show_json(&serde_json::json!({"a": "b"})), r#"{"a":"b"}"#);
    }
}
