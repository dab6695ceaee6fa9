//! What a pod asks for, by kubelet's formula: containers and native sidecars against the rolling maximum of init containers,
//! pod-level resources over that, overhead on top.
//!
//! <https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers>,
//! <https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#pod-level-resource-specification>.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::api::resource as wire;

use crate::gpu::WHOLE;
use crate::problem::{Findings, Subject, show};
use crate::quantity::Quantity;
use crate::validate::is_qualified_name;

/// Amounts by resource name, sorted: a handful, so that a list beats a tree.
#[derive(Debug, Default)]
pub(crate) struct Resources(Vec<(String, Quantity)>);

impl Resources {
    /// The amount of a resource.
    pub(crate) fn get(&self, name: &str) -> Option<Quantity> {
        self.find(name).ok().map(|at| self.0[at].1)
    }

    /// All of them.
    pub(crate) fn into_amounts(self) -> impl Iterator<Item = (String, Quantity)> {
        self.0.into_iter()
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.as_str().cmp(name))
    }

    /// Sets an amount: `joined` of the old and the new one, where there is an old one.
    fn join(&mut self, name: String, amount: Quantity, joined: impl Fn(Quantity, Quantity) -> Quantity) {
        match self.find(&name) {
            Ok(at) => self.0[at].1 = joined(self.0[at].1, amount),
            Err(at) => self.0.insert(at, (name, amount)),
        }
    }
}
type Listed = Option<BTreeMap<String, wire::Quantity>>;

/// A pod's effective requests in the units of rows. No zero amounts.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Requests {
    /// Millicores.
    pub(crate) cpu: i64,
    /// Bytes.
    pub(crate) memory: i64,
    /// Whole GPUs of all vendors.
    pub(crate) gpus: u32,
    /// Other resources by name, value × 1000.
    pub(crate) extra: Vec<(String, i64)>,
}

/// Reads a list of quantities: none negative, all in range.
pub(crate) fn read_list(subject: Subject<'_>, field: fmt::Arguments<'_>, list: Listed, findings: &mut Findings) -> Resources {
    let mut read = Resources::default();
    for (name, wire::Quantity(text)) in list.unwrap_or_default() {
        let path = || format!("{field}.{name}");
        if !is_qualified_name(&name) {
            findings.bad(subject, &field.to_string(), show(&name), "a resource name");
            continue;
        }
        match text.parse::<Quantity>() {
            Err(error) => findings.bad(subject, &path(), show(&text), error.expected()),
            Ok(amount) if amount.is_negative() => findings.bad(subject, &path(), show(&text), "a quantity of 0 or more"),
            // Extended resources are counted in pieces.
            Ok(amount) if is_extended(&name) && !amount.is_whole() => {
                findings.bad(subject, &path(), show(&text), "a whole number for an extended resource");
            }
            // The wire's map is sorted already.
            Ok(amount) => read.0.push((name, amount)),
        }
    }
    read
}

/// A resource of a vendor, not one of Kubernetes' own.
fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// A container's requests: a missing entry is its limit, as the API server fills in; a request above its limit is refused.
fn container_requests(
    subject: Subject<'_>,
    field: fmt::Arguments<'_>,
    resources: Option<k8s::ResourceRequirements>,
    findings: &mut Findings,
) -> Resources {
    let Some(k8s::ResourceRequirements { requests, limits, .. }) = resources else { return Resources::default() };
    let mut requests = read_list(subject, format_args!("{field}.requests"), requests, findings);
    for (name, limit) in read_list(subject, format_args!("{field}.limits"), limits, findings).0 {
        if requests.get(&name).is_some_and(|request| request > limit) {
            let expected = format!("at most the limit of {name}");
            findings.bad(subject, &format!("{field}.requests.{name}"), String::new(), expected);
        }
        requests.join(name, limit, |request, _| request);
    }
    requests
}

/// The largest amount of a resource that a row can hold, in units of the resource.
fn most(name: &str) -> i128 {
    match name {
        "memory" | "pods" => i128::from(i64::MAX),
        name if WHOLE.contains(&name) => i128::from(u32::MAX),
        _ => i128::from(i64::MAX / 1000),
    }
}

/// Takes out, as bad, what is beyond a row's range by itself.
fn countable(subject: Subject<'_>, field: fmt::Arguments<'_>, mut amounts: Resources, findings: &mut Findings) -> Resources {
    amounts.0.retain(|(name, amount)| {
        let fits = amount.ceil() <= most(name);
        if !fits {
            findings.bad(subject, &format!("{field}.{name}"), amount.to_string(), format!("at most {}", most(name)));
        }
        fits
    });
    amounts
}

fn add(sum: &mut Resources, more: &Resources) {
    for (name, amount) in &more.0 {
        sum.join(name.clone(), *amount, Quantity::plus);
    }
}

fn raise(most: &mut Resources, other: Resources) {
    for (name, amount) in other.0 {
        most.join(name, amount, Ord::max);
    }
}

/// The effective requests of a pod, all resources.
pub(crate) fn effective(subject: Subject<'_>, spec: &mut k8s::PodSpec, findings: &mut Findings) -> Resources {
    let mut sum = Resources::default();
    for (i, container) in spec.containers.iter_mut().enumerate() {
        let field = format_args!("spec.containers[{i}].resources");
        let requests = container_requests(subject, field, container.resources.take(), findings);
        let requests = countable(subject, format_args!("{field}.requests"), requests, findings);
        if sum.0.is_empty() {
            sum = requests;
        } else {
            add(&mut sum, &requests);
        }
    }
    if let Some(containers) = &mut spec.init_containers {
        let (mut sidecars, mut most) = (Resources::default(), Resources::default());
        for (i, container) in containers.iter_mut().enumerate() {
            let field = format_args!("spec.initContainers[{i}].resources");
            let requests = container_requests(subject, field, container.resources.take(), findings);
            let mut requests = countable(subject, format_args!("{field}.requests"), requests, findings);
            if container.restart_policy.as_deref() == Some("Always") {
                add(&mut sum, &requests);
                add(&mut sidecars, &requests);
                requests = Resources(sidecars.0.clone());
            } else {
                add(&mut requests, &sidecars);
            }
            raise(&mut most, requests);
        }
        raise(&mut sum, most);
    }
    pod_level(subject, spec.resources.take(), &mut sum, findings);
    if let Some(overhead) = spec.overhead.take() {
        add(&mut sum, &read_list(subject, format_args!("spec.overhead"), Some(overhead), findings));
    }
    sum
}

/// Pod-level requests replace the sum for the resources that may be given there; a pod-level limit without request stands in
/// only where no container says anything.
fn pod_level(subject: Subject<'_>, resources: Option<k8s::ResourceRequirements>, sum: &mut Resources, findings: &mut Findings) {
    let Some(k8s::ResourceRequirements { requests, limits, .. }) = resources else { return };
    let supported = |name: &str| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    let requests = read_list(subject, format_args!("spec.resources.requests"), requests, findings);
    let limits = read_list(subject, format_args!("spec.resources.limits"), limits, findings);
    for (name, _) in requests.0.iter().chain(&limits.0).filter(|(name, _)| !supported(name)) {
        findings.bad(subject, "spec.resources", show(name), "cpu, memory or hugepages-* at pod level");
    }
    for (name, limit) in limits.0 {
        if supported(&name) && requests.get(&name).is_none() {
            sum.join(name, limit, |containers, _| containers);
        }
    }
    for (name, request) in requests.0 {
        if supported(&name) {
            sum.join(name, request, |_, request| request);
        }
    }
}

/// Converts amounts to the units of rows; amounts beyond an `i64` are bad.
pub(crate) fn in_row_units(subject: Subject<'_>, field: &str, amounts: Resources, findings: &mut Findings) -> Requests {
    let mut row = Requests::default();
    for (name, amount) in amounts.0 {
        if amount.is_zero() || name == "pods" {
            continue;
        }
        let converted = match name.as_str() {
            "cpu" => amount.milli().map(|milli| row.cpu = milli),
            "memory" => amount.units().map(|bytes| row.memory = bytes),
            name if WHOLE.contains(&name) => {
                amount.units().and_then(|n| u32::try_from(n).ok()?.checked_add(row.gpus)).map(|n| row.gpus = n)
            }
            _ => match amount.milli() {
                Some(milli) => {
                    row.extra.push((name, milli));
                    continue;
                }
                None => None,
            },
        };
        if converted.is_none() {
            let expected = format!("at most {} in all", most(&name));
            findings.bad(subject, &format!("{field}.{name}"), amount.to_string(), expected);
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn requests(spec: serde_json::Value) -> (Requests, Vec<String>) {
        let mut spec: k8s::PodSpec = serde_json::from_value(spec).expect("a pod spec");
        let mut findings = Findings::default();
        let subject = Subject { kind: "Pod", namespace: "ns", name: "p" };
        let amounts = effective(subject, &mut spec, &mut findings);
        let row = in_row_units(subject, "requests", amounts, &mut findings);
        (row, findings.bad.iter().map(ToString::to_string).collect())
    }

    fn asks(list: serde_json::Value) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": list}})
    }

    fn sidecar(list: serde_json::Value) -> serde_json::Value {
        json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": list}})
    }

    #[test]
    fn kubelets_formula() {
        for (what, spec, cpu) in [
            ("containers add up", json!({"containers": [asks(json!({"cpu": "1"})), asks(json!({"cpu": "500m"}))]}), 1500),
            (
                "the largest init container",
                json!({"containers": [asks(json!({"cpu": "1"}))],
                "initContainers": [asks(json!({"cpu": "3"})), asks(json!({"cpu": "2"}))]}),
                3000,
            ),
            (
                "a sidecar adds to the containers",
                json!({"containers": [asks(json!({"cpu": "1"}))],
                "initContainers": [sidecar(json!({"cpu": "2"}))]}),
                3000,
            ),
            (
                "a sidecar adds to init containers after it only",
                json!({"containers": [asks(json!({"cpu": "1"}))],
                "initContainers": [asks(json!({"cpu": "5"})), sidecar(json!({"cpu": "2"})), asks(json!({"cpu": "4"}))]}),
                6000,
            ),
            ("overhead on top", json!({"containers": [asks(json!({"cpu": "1"}))], "overhead": {"cpu": "250m"}}), 1250),
            (
                "pod-level requests replace",
                json!({"containers": [asks(json!({"cpu": "1"}))],
                "resources": {"requests": {"cpu": "4"}}, "overhead": {"cpu": "1"}}),
                5000,
            ),
            (
                "pod-level limits stand in only where nothing is asked",
                json!({"containers": [asks(json!({"cpu": "1"}))],
                "resources": {"limits": {"cpu": "4"}}}),
                1000,
            ),
            ("limits stand in for requests", json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}), 2000),
            ("rounded up to millicores", json!({"containers": [asks(json!({"cpu": "0.0001"}))]}), 1),
        ] {
            let (row, bad) = requests(spec);
            assert!(bad.is_empty(), "{what}: {bad:?}");
            assert_eq!(row.cpu, cpu, "{what}");
        }
    }

    #[test]
    fn resources_go_where_they_belong() {
        let (row, bad) = requests(json!({"containers": [asks(json!({
            "cpu": 2, "memory": "0.5", "nvidia.com/gpu": "2", "amd.com/gpu": 1, "x.com/gpu": "3", "ephemeral-storage": "1Gi",
            "nvidia.com/mig-1g.10gb": "2", "example.com/zero": "0"}))]}));
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!((row.cpu, row.memory, row.gpus), (2000, 1, 3));
        let extra: Vec<_> = row.extra.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
        let expected = [("ephemeral-storage", (1 << 30) * 1000), ("nvidia.com/mig-1g.10gb", 2000), ("x.com/gpu", 3000)];
        assert_eq!(extra, expected);
    }

    #[test]
    fn bad_amounts_are_named() {
        for (list, part) in [
            (json!({"cpu": "-1"}), "0 or more"),
            (json!({"cpu": "x"}), "a quantity such as"),
            (json!({"memory": "99999999999999999999"}), "below 2^63"),
            (json!({"nvidia.com/gpu": "0.5"}), "a whole number"),
            (
                json!({"nvidia.com/gpu": "5000000000"}),
                "spec.containers[0].resources.requests.nvidia.com/gpu: 5000000000: expected at most 4294967295",
            ),
            (json!({"ephemeral-storage": "9E"}), "9000000000000000000: expected at most 9223372036854775"),
            (json!({"a b": "1"}), "a resource name"),
        ] {
            let (_, bad) = requests(json!({"containers": [asks(list.clone())]}));
            assert!(bad.len() == 1 && bad[0].contains(part), "{list}: {bad:?}");
        }
        let (_, sum) = requests(json!({"containers": [asks(json!({"memory": "9E"})), asks(json!({"memory": "9E"}))]}));
        assert_eq!(sum, ["Pod ns/p: requests.memory: 18000000000000000000: expected at most 9223372036854775807 in all"]);
        let above = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]});
        assert_eq!(requests(above).1.len(), 1);
        let level = json!({"containers": [], "resources": {"requests": {"nvidia.com/gpu": "1"}}});
        assert_eq!(requests(level).1.len(), 1);
    }
}
