//! Rules that need nothing but lines: length, the opening sentence, marks of unfinished work.

use super::Offence;
use super::ratchet::{Kind, Ratchet};

/// Columns of a line of Rust, in characters (rustfmt leaves strings and comments alone).
const COLUMNS_MAX: usize = 130;

/// Marks that need an issue number. Written in two parts so that this file does not hold them.
const MARKS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

/// Lines, length and opening of a Rust file.
pub(super) fn check_rust(path: &str, text: &str, ratchet: &mut Ratchet, offences: &mut Vec<Offence>) {
    if !text.starts_with("//!") {
        let message = "a file opens with `//!`: what it holds, why, and what it must not know";
        offences.push(Offence::new(path, 1, message));
    }
    for (i, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            offences.push(Offence::new(path, i + 1, format!("{columns} columns, at most {COLUMNS_MAX} allowed")));
        }
    }
    ratchet.measure(Kind::File, path, text.lines().count(), (path, 1), offences);
}

/// Marks of unfinished work without the number of an issue: `(#12)` must follow.
pub(super) fn check_marks(path: &str, text: &str, offences: &mut Vec<Offence>) {
    for (i, line) in text.lines().enumerate() {
        for mark in MARKS {
            let Some(at) = line.find(mark) else { continue };
            let is_word_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            let (before, after) = (&line[..at], &line[at + mark.len()..]);
            let inside_a_word = is_word_part(before.chars().next_back()) || is_word_part(after.chars().next());
            let number = after.strip_prefix("(#").and_then(|rest| rest.split_once(')'));
            let numbered = number.is_some_and(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
            if !inside_a_word && !numbered {
                offences.push(Offence::new(path, i + 1, format!("{mark} without an issue: write {mark}(#number), or do it")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: &str) -> Vec<(usize, String)> {
        let mut offences = Vec::new();
        let mut ratchet = Ratchet::parse("", "", &mut offences);
        check_rust("a.rs", text, &mut ratchet, &mut offences);
        check_marks("a.rs", text, &mut offences);
        offences.into_iter().map(|o| (o.line, o.message)).collect()
    }

    #[test]
    fn a_file_opens_with_what_it_holds() {
        assert!(rust("//! Things.\n").is_empty());
        assert_eq!(rust("use x;\n//! Late.\n")[0].0, 1);
        assert_eq!(rust("").len(), 1);
    }

    #[test]
    fn lines_are_counted_in_characters() {
        assert!(rust(&format!("//! {}\n", "ä".repeat(126))).is_empty());
        assert_eq!(rust(&format!("//! x\n// {}\n", "ä".repeat(128))), [(2, "131 columns, at most 130 allowed".into())]);
    }

    #[test]
    fn files_are_bounded() {
        assert!(rust(&format!("//! x\n{}", "\n".repeat(699))).is_empty());
        assert_eq!(rust(&format!("//! x\n{}", "\n".repeat(700))).len(), 1);
    }

    #[test]
    fn marks_carry_an_issue() {
        for mark in MARKS {
            assert_eq!(rust(&format!("//! x\n// {mark}: later\n")).len(), 1);
            assert_eq!(rust(&format!("//! x\n// {mark}(#)\n")).len(), 1);
            assert!(rust(&format!("//! x\n// {mark}(#12): later\n")).is_empty());
            assert!(rust(&format!("//! x\nconst {mark}S: u8 = 1;\n")).is_empty());
        }
    }
}
