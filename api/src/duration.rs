//! Durations as Go writes them (`1h30m`, `-5s`, `250ms`), plus the day and week suffixes that KAI's plugins accept.

/// Nanoseconds of a Go duration text, e.g. `1h30m`. With `days`, the suffixes `d` and `w` are known as well.
///
/// # Errors
/// A text saying what was expected.
pub fn parse_nanoseconds(text: &str, days: bool) -> Result<i64, &'static str> {
    const FORM: &str = "a duration such as 30s, 5m or 1h30m";
    const RANGE: &str = "a duration below 292 years";
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(FORM);
    }
    let mut sum = 0_i128;
    while !rest.is_empty() {
        let number = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, after) = rest.split_at(number);
        let unit = after.bytes().take_while(|b| !b.is_ascii_digit() && *b != b'.').count();
        let (unit, after) = after.split_at(unit);
        rest = after;
        let nanoseconds = unit_nanoseconds(unit, days).ok_or(FORM)?;
        let part = scaled(number, nanoseconds).ok_or(FORM)?.ok_or(RANGE)?;
        sum = sum.checked_add(part).ok_or(RANGE)?;
    }
    let sum = if negative { -sum } else { sum };
    i64::try_from(sum).map_err(|_| RANGE)
}

fn unit_nanoseconds(unit: &str, days: bool) -> Option<i128> {
    const SECOND: i128 = 1_000_000_000;
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1000,
        "ms" => 1_000_000,
        "s" => SECOND,
        "m" => 60 * SECOND,
        "h" => 3600 * SECOND,
        "d" if days => 24 * 3600 * SECOND,
        "w" if days => 7 * 24 * 3600 * SECOND,
        _ => return None,
    })
}

/// `number` × `unit`: outer `None` for a malformed number, inner for one out of range. Cut below a nanosecond, as Go does.
fn scaled(number: &str, unit: i128) -> Option<Option<i128>> {
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if integer.len() + fraction.len() == 0 || !digits(integer) || !digits(fraction) {
        return None;
    }
    let whole = integer.bytes().try_fold(0_i128, |n, b| n.checked_mul(10)?.checked_add(i128::from(b - b'0')));
    let Some(whole) = whole.and_then(|n| n.checked_mul(unit)) else {
        return Some(None);
    };
    let (mut part, mut place) = (0, unit);
    for b in fraction.bytes().take(18) {
        // Keeps the remainder of each place: unit has at most nine zeros to give.
        place /= 10;
        part += i128::from(b - b'0') * place;
    }
    Some(Some(whole + part))
}

#[cfg(test)]
mod tests {
    use super::parse_nanoseconds;

    #[test]
    fn durations() {
        for (text, expected) in [
            ("0", 0),
            ("30s", 30_000_000_000),
            ("5m0s", 300_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("-2s", -2_000_000_000),
            ("250ms", 250_000_000),
        ] {
            assert_eq!(parse_nanoseconds(text, false), Ok(expected), "{text}");
        }
        assert_eq!(parse_nanoseconds("1d", true), Ok(86_400_000_000_000));
        for text in ["", "5", "s", "-", "5 s", "1d", "..s", "1h-3m", "é", "99999999999999999999999999999999999999999h"] {
            assert!(parse_nanoseconds(text, false).is_err(), "{text}");
        }
    }
}
