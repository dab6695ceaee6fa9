//! How KAI's users ask for GPUs: resource names, annotations, labels (semantics.md §1.4, §2.3; wire-contract.md §3.1).

use std::collections::BTreeMap;

use muster_core::snapshot::GpuRequest;
use muster_core::units::MICRO_PER_GPU;

use crate::problem::{Findings, Subject, show};

/// Resources that count as whole GPUs. Any other name is an ordinary resource, even if it ends in "gpu" (KAI quirk Q5, fixed).
pub(crate) const WHOLE: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];
/// What all MIG resources begin with.
pub(crate) const MIG_PREFIX: &str = "nvidia.com/mig-";

const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";
const DEVICES: &str = "gpu-fraction-num-devices";
pub(crate) const GROUP_LABEL: &str = "runai-gpu-group";

/// GPUs of quota that one piece of a MIG resource stands for: g of `nvidia.com/mig-<g>g.<m>gb`. Variants with a suffix such as
/// `nvidia.com/mig-1g.10gb.me` count the same, where KAI lets them pass for nothing. Zero for any other name.
pub(crate) fn mig_gpus(resource: &str) -> u32 {
    let parse = || {
        let (slices, memory) = resource.strip_prefix(MIG_PREFIX)?.split_once("g.")?;
        let gigabytes = memory.split('.').next()?.strip_suffix("gb")?;
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        (digits(slices) && digits(gigabytes)).then(|| slices.parse().ok()).flatten()
    };
    parse().unwrap_or(0)
}

/// What annotations say about GPUs; `whole` is what containers request. The order of precedence is KAI's: a fraction overrides
/// memory, both override whole GPUs. With `refuse`, what admission refuses is bad, else it is warned about and ignored.
pub(crate) fn request_of(
    subject: Subject<'_>,
    annotations: &BTreeMap<String, String>,
    whole: u32,
    refuse: bool,
    findings: &mut Findings,
) -> GpuRequest {
    let devices = read(subject, annotations, DEVICES, refuse, "an integer of 1 or more, at most 4294967295", findings, |text| {
        text.parse().ok().filter(|&n: &u32| n >= 1)
    });
    let memory = read(subject, annotations, MEMORY, refuse, "MiB as an integer of 1 or more", findings, |text| {
        text.parse().ok().filter(|&mib: &i64| mib >= 1)
    });
    let fraction = read(subject, annotations, FRACTION, refuse, "a decimal above 0, at most 1", findings, portion);
    let shared = match (fraction, memory) {
        (Some(portion), _) => GpuRequest::Fraction { portion, devices: devices.unwrap_or(1) },
        (None, Some(mib)) => GpuRequest::Memory { mib, devices: devices.unwrap_or(1) },
        (None, None) => {
            if devices.is_some() {
                let field = format!("metadata.annotations.{DEVICES}");
                let note = "ignored: it needs gpu-fraction or gpu-memory beside it";
                findings.warn(subject, &field, String::new(), note);
            }
            return if whole == 0 { GpuRequest::None } else { GpuRequest::Whole(whole) };
        }
    };
    if whole > 0 {
        let note = "ignored: the annotation for a shared GPU decides";
        findings.warn(subject, "spec.containers.resources", format!("{whole} whole GPUs"), note);
    }
    shared
}

fn read<T>(
    subject: Subject<'_>,
    annotations: &BTreeMap<String, String>,
    key: &str,
    refuse: bool,
    expected: &str,
    findings: &mut Findings,
    parse: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let text = annotations.get(key)?;
    let value = parse(text);
    if value.is_none() {
        findings.judge(refuse, subject, &format!("metadata.annotations.{key}"), show(text), expected);
    }
    value
}

/// Micro-GPU, to the nearest, at least one.
#[expect(clippy::cast_possible_truncation, reason = "within 0..=MICRO_PER_GPU")]
fn portion(text: &str) -> Option<i64> {
    let fraction: f64 = text.parse().ok()?;
    #[expect(clippy::cast_precision_loss, reason = "a million is exact")]
    let scale = MICRO_PER_GPU as f64;
    (fraction > 0.0 && fraction <= 1.0).then(|| ((fraction * scale).round() as i64).max(1))
}

/// The shared GPUs that labels name, sorted: `runai-gpu-group` and every `runai-gpu-group/<group>`, whichever is there (KAI reads
/// the second form only beside the first: quirk Q4, fixed).
pub(crate) fn groups_of_labels(labels: &BTreeMap<String, String>) -> Vec<String> {
    let ours = labels.range(GROUP_LABEL.to_owned()..).take_while(|(key, _)| key.starts_with(GROUP_LABEL));
    let named = ours.filter(|(key, _)| key.len() == GROUP_LABEL.len() || key.as_bytes()[GROUP_LABEL.len()] == b'/');
    let mut groups: Vec<_> = named.map(|(_, group)| group.clone()).filter(|group| !group.is_empty()).collect();
    groups.sort();
    groups.dedup();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(pairs: &[(&str, &str)], whole: u32) -> (GpuRequest, usize, usize) {
        let annotations = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut findings = Findings::default();
        let subject = Subject { kind: "Pod", namespace: "ns", name: "p" };
        let request = request_of(subject, &annotations, whole, true, &mut findings);
        (request, findings.bad.len(), findings.warnings.len())
    }

    #[test]
    fn kinds_of_requests() {
        use GpuRequest::{Fraction, Memory, None, Whole};
        let fraction = |portion, devices| Fraction { portion, devices };
        for (annotations, whole, expected) in [
            (vec![], 0, (None, 0, 0)),
            (vec![], 2, (Whole(2), 0, 0)),
            (vec![(FRACTION, "0.125")], 0, (fraction(125_000, 1), 0, 0)),
            (vec![(FRACTION, "0.33333333")], 0, (fraction(333_333, 1), 0, 0)),
            (vec![(FRACTION, "1")], 0, (fraction(1_000_000, 1), 0, 0)),
            (vec![(FRACTION, "1e-9")], 0, (fraction(1, 1), 0, 0)),
            (vec![(FRACTION, "0.5"), (DEVICES, "2")], 0, (fraction(500_000, 2), 0, 0)),
            (vec![(MEMORY, "2000"), (DEVICES, "3")], 0, (Memory { mib: 2000, devices: 3 }, 0, 0)),
            (vec![(MEMORY, "2000"), (FRACTION, "0.5")], 0, (fraction(500_000, 1), 0, 0)),
            (vec![(FRACTION, "0.5")], 1, (fraction(500_000, 1), 0, 1)),
            (vec![(DEVICES, "2")], 1, (Whole(1), 0, 1)),
        ] {
            assert_eq!(request(&annotations, whole), expected, "{annotations:?}");
        }
    }

    #[test]
    fn refused_annotations() {
        for bad in [
            (FRACTION, "0"),
            (FRACTION, "1.5"),
            (FRACTION, "-0.5"),
            (FRACTION, "NaN"),
            (FRACTION, "inf"),
            (FRACTION, "half"),
            (FRACTION, ""),
            (FRACTION, "500m"),
            (MEMORY, "0"),
            (MEMORY, "-1"),
            (MEMORY, "1.5"),
            (MEMORY, "4Gi"),
            (MEMORY, "99999999999999999999"),
        ] {
            assert_eq!(request(&[bad], 0), (GpuRequest::None, 1, 0), "{bad:?}");
        }
        for devices in ["0", "-1", "x", "4294967296"] {
            assert_eq!(request(&[(FRACTION, "0.5"), (DEVICES, devices)], 0).1, 1, "{devices}");
        }
    }

    #[test]
    fn mig_names() {
        for (name, gpus) in [
            ("nvidia.com/mig-1g.10gb", 1),
            ("nvidia.com/mig-7g.80gb", 7),
            ("nvidia.com/mig-1g.10gb.me", 1),
            ("nvidia.com/mig-xg.10gb", 0),
            ("nvidia.com/mig-1g.gb", 0),
            ("nvidia.com/mig-99999999999g.1gb", 0),
            ("nvidia.com/gpu", 0),
        ] {
            assert_eq!(mig_gpus(name), gpus, "{name}");
        }
    }

    #[test]
    fn group_labels_of_both_forms() {
        let labels = |keys: &[(&str, &str)]| keys.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        assert_eq!(groups_of_labels(&labels(&[("runai-gpu-group", "b"), ("runai-gpu-group/a", "a")])), ["a", "b"]);
        assert_eq!(groups_of_labels(&labels(&[("runai-gpu-group/a", "a"), ("runai-gpu-group/c", "c"), ("z", "z")])), ["a", "c"]);
        assert!(groups_of_labels(&labels(&[("runai-gpu-groups", "x"), ("app", "y")])).is_empty());
    }
}
