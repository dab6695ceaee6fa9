//! The ratchet: what is longer than allowed is tolerated up to the size written down, and may only shrink. An entry that is no
//! longer needed, or larger than the thing, is an offence too, so that the list cannot outlive its reasons.

use std::collections::BTreeMap;

use super::Offence;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// Lines of a function's body, braces included.
    Function,
    /// Lines of a file.
    File,
}

impl Kind {
    /// Lines that need no entry.
    pub(super) const fn limit(self) -> usize {
        match self {
            Self::Function => 70,
            Self::File => 700,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::File => "file",
        }
    }
}

struct Entry {
    line: usize,
    allowed: usize,
    /// The largest that was measured.
    measured: usize,
}

/// The list, and what was measured against it.
pub(super) struct Ratchet {
    path: String,
    entries: BTreeMap<(Kind, String), Entry>,
}

impl Ratchet {
    /// Reads lines `function PATH::NAME LINES` and `file PATH LINES`; `#` begins a comment.
    pub(super) fn parse(path: &str, text: &str, offences: &mut Vec<Offence>) -> Self {
        let mut entries = BTreeMap::new();
        for (i, line) in text.lines().enumerate() {
            let words: Vec<_> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            let parsed = match words[..] {
                [] => continue,
                ["function", key, lines] => lines.parse().ok().map(|lines| (Kind::Function, key, lines)),
                ["file", key, lines] => lines.parse().ok().map(|lines| (Kind::File, key, lines)),
                _ => None,
            };
            match parsed {
                Some((kind, key, allowed)) => {
                    entries.insert((kind, key.to_owned()), Entry { line: i + 1, allowed, measured: 0 });
                }
                None => offences.push(Offence::new(path, i + 1, "expected `function PATH::NAME LINES` or `file PATH LINES`")),
            }
        }
        Self { path: path.into(), entries }
    }

    /// Takes one measurement; `path` and `line` say where the thing is.
    pub(super) fn measure(
        &mut self,
        kind: Kind,
        key: &str,
        lines: usize,
        (path, line): (&str, usize),
        offences: &mut Vec<Offence>,
    ) {
        let mut allowed = kind.limit();
        if let Some(entry) = self.entries.get_mut(&(kind, key.to_owned())) {
            entry.measured = entry.measured.max(lines);
            allowed = allowed.max(entry.allowed);
        }
        if lines > allowed {
            offences.push(Offence::new(
                path,
                line,
                format!("{} {key} has {lines} lines, at most {allowed} allowed", kind.name()),
            ));
        }
    }

    /// Entries that say more than is needed.
    pub(super) fn finish(self, offences: &mut Vec<Offence>) {
        for ((kind, key), entry) in self.entries {
            let message = if entry.measured <= kind.limit() {
                format!("{} {key} no longer needs its entry: delete it", kind.name())
            } else if entry.measured < entry.allowed {
                format!("{} {key} has {} lines now: lower its entry", kind.name(), entry.measured)
            } else {
                continue;
            };
            offences.push(Offence::new(&self.path, entry.line, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages after measuring one function `a.rs::f`.
    fn judge(ratchet: &str, lines: usize) -> Vec<String> {
        let mut offences = Vec::new();
        let mut list = Ratchet::parse("r.txt", ratchet, &mut offences);
        list.measure(Kind::Function, "a.rs::f", lines, ("a.rs", 1), &mut offences);
        list.finish(&mut offences);
        offences.into_iter().map(|o| o.message).collect()
    }

    #[test]
    fn limit_without_an_entry() {
        assert!(judge("", 70).is_empty());
        assert_eq!(judge("", 71), ["function a.rs::f has 71 lines, at most 70 allowed"]);
    }

    #[test]
    fn entry_holds_only_at_its_size() {
        assert!(judge("function a.rs::f 90 # older than the rule", 90).is_empty());
        assert_eq!(judge("function a.rs::f 90", 91), ["function a.rs::f has 91 lines, at most 90 allowed"]);
        assert_eq!(judge("function a.rs::f 90", 80), ["function a.rs::f has 80 lines now: lower its entry"]);
        assert_eq!(judge("function a.rs::f 90", 70), ["function a.rs::f no longer needs its entry: delete it"]);
        assert_eq!(judge("function gone.rs::f 90", 1), ["function gone.rs::f no longer needs its entry: delete it"]);
    }

    #[test]
    fn malformed_entries_are_offences() {
        assert_eq!(judge("function a.rs::f many\nfunktion x 3\n# comment\n\n", 1).len(), 2);
    }
}
