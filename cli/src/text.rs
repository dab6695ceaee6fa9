//! Text for a terminal of 80 columns: wrapping, cutting, aligning, and nothing in it that steers the terminal. Knows nothing
//! of scheduling.

use muster_api::sentences::visible;

/// Columns of the readable output.
pub(crate) const WIDTH: usize = 80;

/// Appends `text`, made visible, wrapped to [`WIDTH`]: the first line after `lead`, the others below it.
pub(crate) fn wrap_into(out: &mut String, lead: &str, text: &str) {
    let indent = lead.chars().count();
    out.push_str(lead);
    let mut column = indent;
    for word in visible(text).split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > WIDTH {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

/// `text`, made visible, if it has at most `width` characters, else its start and its end with `…` between: the end of a name
/// tells more.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let text = visible(text);
    let length = text.chars().count();
    if length <= width {
        return text.into_owned();
    }
    let head = (width - 1) / 2;
    let tail = width - 1 - head;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

/// `1 pod`, `2,000 pods`.
pub(crate) fn plural(number: usize, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// A number with thousands separated.
pub(crate) fn count(number: usize) -> String {
    muster_api::report_amount::count(i64::try_from(number).unwrap_or(i64::MAX))
}

/// A time with three significant digits: `0.412 ms`, `12.3 ms`, `1,234 ms`.
pub(crate) fn milliseconds(duration: std::time::Duration) -> String {
    let ms = duration.as_secs_f64() * 1000.0;
    match ms {
        ..1.0 => format!("{ms:.3} ms"),
        ..10.0 => format!("{ms:.2} ms"),
        ..100.0 => format!("{ms:.1} ms"),
        _ => format!("{ms:.0} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_hangs_below_its_lead() {
        let mut out = String::new();
        wrap_into(&mut out, "  12 gangs  ", &"word ".repeat(30));
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{out}");
        assert!(lines[1].starts_with("            word"), "{out}");
        assert_eq!(out.split_whitespace().filter(|&word| word == "word").count(), 30);
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(cut("short", 10), "short");
        assert_eq!(cut("a-very-long-name-0001", 11), "a-ver…-0001");
        assert_eq!(cut("äöüäöüäöü", 5), "äö…öü");
    }
}
