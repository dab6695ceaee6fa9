//! Kubernetes quantities, exactly: sign, decimal and binary suffixes, exponents, rounding up.
//!
//! A value is kept in nano-units, which is Kubernetes' own finest step; what is finer is rounded up, away from zero. Larger
//! than 2⁶³ − 1 is an error here, where Kubernetes silently caps: a capped node or request is a wrong decision.

use std::fmt;
use std::str::FromStr;

/// Nano-units in one.
const NANO: i128 = 1_000_000_000;
/// Digits kept of a mantissa. 10³⁶ fits a `u128` with room to double.
const DIGITS: usize = 36;

/// An amount in nano-units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Quantity(i128);

/// Why a text is no quantity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuantityError {
    /// Not of the form number + suffix.
    Form,
    /// Beyond ±(2⁶³ − 1).
    Range,
}

impl QuantityError {
    /// What was expected, for a message.
    #[must_use]
    pub const fn expected(self) -> &'static str {
        match self {
            Self::Form => "a quantity such as 4, 500m, 1.5Gi or 2e3",
            Self::Range => "a quantity below 2^63 (about 9.2E)",
        }
    }
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.expected())
    }
}

impl std::error::Error for QuantityError {}

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// In whole units, rounded up. The range is checked when a quantity is made; a sum may exceed it: `None`.
    #[must_use]
    pub fn units(self) -> Option<i64> {
        i64::try_from(divide_up(self.0, NANO)).ok()
    }

    /// In thousandths, rounded up; `None` beyond an `i64`.
    #[must_use]
    pub fn milli(self) -> Option<i64> {
        i64::try_from(divide_up(self.0, NANO / 1000)).ok()
    }

    /// In whole units, rounded up, of any size.
    #[must_use]
    pub const fn ceil(self) -> i128 {
        divide_up(self.0, NANO)
    }

    /// Whether it is a whole number of units.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.0 % NANO == 0
    }

    /// Below zero.
    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum. Cannot overflow for fewer than 2³⁰ quantities; saturates beyond.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// That many of it; saturates.
    #[must_use]
    pub const fn times(self, count: u32) -> Self {
        Self(self.0.saturating_mul(count as i128))
    }

    /// As Kubernetes' own programs write it: `2`, `500m`; exact.
    #[must_use]
    pub fn to_wire(self) -> String {
        match self.milli() {
            Some(milli) if !self.is_whole() && i128::from(milli) * (NANO / 1000) == self.0 => format!("{milli}m"),
            _ => self.to_string(),
        }
    }
}

/// As a decimal number of units, exactly.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let (whole, rest) = (self.0.unsigned_abs() / NANO.unsigned_abs(), self.0.unsigned_abs() % NANO.unsigned_abs());
        write!(f, "{sign}{whole}")?;
        if rest > 0 {
            write!(f, ".{}", format!("{rest:09}").trim_end_matches('0'))?;
        }
        Ok(())
    }
}

/// `a / b` rounded away from zero, b > 0.
const fn divide_up(a: i128, b: i128) -> i128 {
    let (quotient, rest) = (a / b, a % b);
    quotient + rest.signum()
}

/// Power of ten and of two that a suffix stands for.
struct Scale {
    tens: i64,
    twos: u32,
}

fn scale_of(suffix: &str) -> Result<Scale, QuantityError> {
    let decimal = |tens| Ok(Scale { tens, twos: 0 });
    let binary = |twos| Ok(Scale { tens: 0, twos });
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => exponent(suffix).map(|tens| Scale { tens, twos: 0 }),
    }
}

/// `e3`, `E-3`, `e+3`. Exponents beyond a few hundred are clamped: they are out of range or round up to one nano-unit anyway.
fn exponent(suffix: &str) -> Result<i64, QuantityError> {
    let digits = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Form)?;
    let (negative, digits) = match digits.as_bytes().first() {
        Some(b'-') => (true, &digits[1..]),
        Some(b'+') => (false, &digits[1..]),
        _ => (false, digits),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(QuantityError::Form);
    }
    let size = digits.bytes().fold(0_i64, |sum, b| (sum * 10 + i64::from(b - b'0')).min(100_000));
    Ok(if negative { -size } else { size })
}

/// Significant digits of a number: `mantissa` × 10^`tens`, and whether digits below were cut off.
#[derive(Default)]
struct Digits {
    mantissa: u128,
    tens: i64,
    more: bool,
}

impl Digits {
    fn read(integer: &str, fraction: &str) -> Self {
        let mut digits = Self::default();
        let mut kept = 0;
        for (b, whole) in integer.bytes().map(|b| (b, true)).chain(fraction.bytes().map(|b| (b, false))) {
            let digit = u128::from(b - b'0');
            if kept < DIGITS {
                digits.mantissa = digits.mantissa * 10 + digit;
                kept += usize::from(digits.mantissa > 0);
                digits.tens -= i64::from(!whole);
            } else {
                digits.more |= digit > 0;
                digits.tens += i64::from(whole);
            }
        }
        digits
    }

    /// In nano-units, rounded up; `None` if out of any range.
    fn nano(&self, scale: &Scale) -> Option<u128> {
        let tens = self.tens + scale.tens + 9;
        let mut value = self.mantissa;
        if value == 0 {
            return Some(0);
        }
        if tens >= 0 {
            let factor = 10_u128.checked_pow(u32::try_from(tens).ok()?)?;
            value = value.checked_mul(factor)?.checked_mul(1 << scale.twos)?;
            return value.checked_add(u128::from(self.more));
        }
        // Long division by a power of ten, then doubling of quotient and rest: exact without wider integers.
        let Some(divisor) = u32::try_from(-tens).ok().filter(|&t| t <= 37).map(|t| 10_u128.pow(t)) else {
            return self.tiny(tens, scale);
        };
        let (mut quotient, mut rest) = (value / divisor, value % divisor);
        for _ in 0..scale.twos {
            quotient = quotient.checked_mul(2)?.checked_add(u128::from(rest >= divisor - rest))?;
            rest = if rest >= divisor - rest { rest - (divisor - rest) } else { rest * 2 };
        }
        quotient.checked_add(u128::from(rest > 0 || self.more))
    }

    /// As [`Self::nano`] for numbers with more than 37 decimals below a nano-unit: cut to what matters.
    fn tiny(&self, tens: i64, scale: &Scale) -> Option<u128> {
        let cut = u32::try_from(-tens - 37).ok()?;
        let factor = 10_u128.checked_pow(cut.min(38))?;
        let (mantissa, rest) = (self.mantissa / factor, self.mantissa % factor);
        if mantissa == 0 {
            // Below 10⁻³⁷ nano-units × 2⁶⁰: less than one nano-unit.
            return Some(1);
        }
        let shorter = Self { mantissa, tens: -37 - 9 - scale.tens, more: self.more || rest > 0 };
        shorter.nano(scale)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (negative, number) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let digits_of = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
        let (integer, rest) = number.split_at(digits_of(number));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits_of(rest)),
            None => ("", rest),
        };
        if integer.is_empty() && fraction.is_empty() {
            return Err(QuantityError::Form);
        }
        let scale = scale_of(suffix)?;
        let nano = Digits::read(integer, fraction).nano(&scale).ok_or(QuantityError::Range)?;
        let nano = i128::try_from(nano).map_err(|_| QuantityError::Range)?;
        if divide_up(nano, NANO) > i128::from(i64::MAX) {
            return Err(QuantityError::Range);
        }
        Ok(Self(if negative { -nano } else { nano }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nano(text: &str) -> Result<i128, QuantityError> {
        text.parse::<Quantity>().map(|q| q.0)
    }

    #[test]
    fn suffixes_signs_and_exponents() {
        for (text, expected) in [
            ("0", 0),
            ("4", 4 * NANO),
            ("+4", 4 * NANO),
            ("-4", -4 * NANO),
            ("500m", NANO / 2),
            ("1n", 1),
            ("1u", 1000),
            ("1k", 1000 * NANO),
            ("1.5Gi", (3 << 29) * NANO),
            ("2Ki", 2048 * NANO),
            ("2e3", 2000 * NANO),
            ("2E3", 2000 * NANO),
            ("2E", 2_000_000_000_000_000_000 * NANO),
            ("5e-1", NANO / 2),
            ("5e+1", 50 * NANO),
            (".5", NANO / 2),
            ("5.", 5 * NANO),
            ("0.1n", 1),
            ("-0.1n", -1),
            ("1e-300", 1),
            ("0e999999999999", 0),
            ("0.00000000000000000000000000000000000000000000000000001Ki", 1),
            ("9223372036854775807", i128::from(i64::MAX) * NANO),
            ("9223372036854775806.999999999", (i128::from(i64::MAX) - 1) * NANO + 999_999_999),
            ("0.0000000000000000000000000000000001Ei", 1),
        ] {
            assert_eq!(nano(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity() {
        for text in
            ["", "+", ".", "-.", "x", "1 Gi", "1gi", "1K", "1mi", "1e", "1e+", "1e1.5", "1+1", "1.1.M", "--1", "∞", "1é", "0x10"]
        {
            assert_eq!(nano(text), Err(QuantityError::Form), "{text}");
        }
        for text in ["9223372036854775808", "9223372036854775807.1", "8Ei", "10E", "1e19", "-1e100", "1e99999999999999999999"] {
            assert_eq!(nano(text), Err(QuantityError::Range), "{text}");
        }
    }

    #[test]
    fn rounding_is_up_to_the_unit() {
        let units = |t: &str| t.parse::<Quantity>().ok().and_then(Quantity::units);
        let milli = |t: &str| t.parse::<Quantity>().ok().and_then(Quantity::milli);
        assert_eq!(units("0.5"), Some(1));
        assert_eq!(units("100m"), Some(1));
        assert_eq!(milli("0.0001"), Some(1));
        assert_eq!(milli("1500m"), Some(1500));
        assert_eq!(milli("9E"), None);
        assert_eq!(units("-0.5"), Some(-1));
    }

    proptest! {
        #[test]
        fn any_text_parses_or_not_without_panic(text in "\\PC{0,60}") {
            let _ = text.parse::<Quantity>();
        }

        #[test]
        fn numbers_like_text_never_panic(text in "[+-]?[0-9]{0,50}\\.?[0-9]{0,60}([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,4})?") {
            let _ = text.parse::<Quantity>();
        }

        #[test]
        fn binary_fractions_are_exact(mantissa in 0_u64..1 << 40, decimals in 0_usize..9, twos in 0_u32..3) {
            let power = 10_u128.pow(u32::try_from(decimals).unwrap_or(0));
            let text = format!("{}.{:0width$}{}", u128::from(mantissa) / power, u128::from(mantissa) % power,
                ["", "Ki", "Mi"][twos as usize], width = decimals.max(1));
            // The fraction has `decimals` digits (one zero if none).
            let expected = (u128::from(mantissa) * 1_000_000_000 * (1 << (10 * twos))).div_ceil(power);
            prop_assert_eq!(nano(&text), Ok(i128::try_from(expected).unwrap_or(0)), "{}", text);
        }
    }
}
