//! Amounts as people read them: GPUs and CPU cores with up to three decimals, memory in binary units, counts with thousands
//! separated. The only place where an amount becomes text.

use muster_core::explain::Scarce;
use muster_core::units::{MICRO_PER_GPU, Resource, UNLIMITED};

use crate::names::Names;

/// `1234567` as `1,234,567`.
#[must_use]
pub fn count(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if number < 0 {
        text.push('-');
    }
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `amount / 10^decimals` with up to three decimals, or as many as it takes to tell it from 0.
fn decimal(amount: i64, decimals: u32) -> String {
    // In 128 bits, where no product below leaves its range.
    let one = 10_u128.pow(decimals);
    let magnitude = u128::from(amount.unsigned_abs());
    let keep = if decimals > 3 && (magnitude + one / 2000) * 1000 / one == 0 { decimals } else { decimals.min(3) };
    let step = 10_u128.pow(decimals - keep);
    let rounded = (magnitude + step / 2) / step;
    let unit = 10_u128.pow(keep);
    let whole = count(i64::try_from(rounded / unit).unwrap_or(i64::MAX));
    let part = format!("{:0width$}", rounded % unit, width = keep as usize);
    let part = part.trim_end_matches('0');
    let sign = if amount < 0 { "-" } else { "" };
    if part.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") }
}

/// Bytes in the largest binary unit that leaves a number of at least 1, with up to two decimals.
#[must_use]
pub fn memory(bytes: i64) -> String {
    const UNITS: [(&str, u32); 5] = [("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let magnitude = u128::from(bytes.unsigned_abs());
    let sign = if bytes < 0 { "-" } else { "" };
    let Some((unit, shift)) = UNITS.into_iter().find(|&(_, shift)| magnitude >> shift > 0) else {
        return format!("{sign}{magnitude} bytes");
    };
    let hundredths = (magnitude * 100 + (1 << (shift - 1))) >> shift;
    let (whole, part) = (hundredths / 100, format!("{:02}", hundredths % 100));
    let whole = count(i64::try_from(whole).unwrap_or(i64::MAX));
    let part = part.trim_end_matches('0');
    if part.is_empty() { format!("{sign}{whole}{unit}") } else { format!("{sign}{whole}.{part}{unit}") }
}

/// An amount of a queue's resource, without its noun: `2.5`, `64Gi`, `unlimited`.
#[must_use]
pub fn bare(resource: Resource, amount: i64) -> String {
    match resource {
        _ if amount == UNLIMITED => "unlimited".to_owned(),
        Resource::Cpu => decimal(amount, 3),
        Resource::Memory => memory(amount),
        Resource::Gpu => decimal(amount, 6),
    }
}

/// The same with its noun: `2.5 GPUs`, `1 CPU core`, `64Gi of memory`.
#[must_use]
pub fn full(resource: Resource, amount: i64) -> String {
    let bare = bare(resource, amount);
    match resource {
        Resource::Cpu if amount == 1000 => format!("{bare} CPU core"),
        Resource::Cpu => format!("{bare} CPU cores"),
        Resource::Memory => format!("{bare} of memory"),
        Resource::Gpu if amount == MICRO_PER_GPU => format!("{bare} GPU"),
        Resource::Gpu => format!("{bare} GPUs"),
    }
}

/// An amount of something a node has too little of, without its noun.
#[must_use]
pub fn scarce_bare(what: Scarce, amount: i64) -> String {
    match what {
        Scarce::Cpu => decimal(amount, 3),
        Scarce::Memory => memory(amount),
        Scarce::Gpus | Scarce::Pods => count(amount),
        Scarce::CardMib => format!("{} MiB", count(amount)),
        Scarce::Extra(_) => decimal(amount, 3),
    }
}

/// The same with its noun: `8 GPUs`, `8,192 MiB of GPU memory`, `1 pod slot`, `2 of nvidia.com/mig-1g.10gb`.
#[must_use]
pub fn scarce_full(what: Scarce, amount: i64, names: &Names) -> String {
    let bare = scarce_bare(what, amount);
    match what {
        Scarce::Cpu if amount == 1000 => format!("{bare} CPU core"),
        Scarce::Cpu => format!("{bare} CPU cores"),
        Scarce::Memory => format!("{bare} of memory"),
        Scarce::Gpus if amount == 1 => format!("{bare} GPU"),
        Scarce::Gpus => format!("{bare} GPUs"),
        Scarce::CardMib => format!("{bare} of GPU memory"),
        Scarce::Pods if amount == 1 => format!("{bare} pod slot"),
        Scarce::Pods => format!("{bare} pod slots"),
        Scarce::Extra(dim) => format!("{bare} of {}", names.dims[dim]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_well() {
        let cases = [
            (bare(Resource::Gpu, 2_500_000), "2.5"),
            (bare(Resource::Gpu, 333_333), "0.333"),
            (bare(Resource::Gpu, 999_999), "1"),
            (bare(Resource::Gpu, 40), "0.00004"),
            (bare(Resource::Gpu, 0), "0"),
            (bare(Resource::Gpu, UNLIMITED), "unlimited"),
            (bare(Resource::Gpu, 100_000_000_000), "100,000"),
            (bare(Resource::Gpu, 100_000_000_000_000_000), "100,000,000,000"),
            (bare(Resource::Gpu, i64::MAX - 1), "9,223,372,036,854.776"),
            (bare(Resource::Cpu, i64::MAX - 1), "9,223,372,036,854,775.806"),
            (full(Resource::Gpu, 1_000_000), "1 GPU"),
            (full(Resource::Cpu, 1000), "1 CPU core"),
            (full(Resource::Cpu, 12_500), "12.5 CPU cores"),
            (full(Resource::Memory, 64 << 30), "64Gi of memory"),
            (memory(1_610_612_736), "1.5Gi"),
            (memory(1_000_000_000), "953.67Mi"),
            (memory(1023), "1023 bytes"),
            (memory(1 << 40), "1Ti"),
            (memory(-(1 << 20)), "-1Mi"),
            (memory(i64::MAX), "8,192Pi"),
            (count(-1_234_567), "-1,234,567"),
            (count(999), "999"),
        ];
        for (text, expected) in cases {
            assert_eq!(text, expected);
        }
    }
}
