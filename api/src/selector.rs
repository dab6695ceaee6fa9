//! Where a pod may go, as Kubernetes defines it: `nodeSelector`, required node affinity, tolerations; and the taints they face.
//!
//! Names only; `classes` resolves them to indices. Preferred terms decide nothing in KAI (semantics.md §9.2) and are left out.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use k8s_openapi::api::core::v1 as k8s;

use crate::problem::{Findings, Subject, show};
use crate::validate::{check_labels, is_dns_subdomain, is_qualified_name};

/// Constraints of a pod on its node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Constraints {
    pub(crate) selector: BTreeMap<String, String>,
    pub(crate) affinity: Option<Vec<Term>>,
    pub(crate) tolerations: Vec<Toleration>,
}

/// A conjunction; empty matches nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Term {
    pub(crate) labels: Vec<Expression>,
    pub(crate) names: Vec<NameIs>,
}

/// A condition on a label.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Expression {
    pub(crate) key: String,
    pub(crate) test: Test,
}

/// Kubernetes' operators with what they compare to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    Greater(i64),
    Less(i64),
}

/// A condition on `metadata.name`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NameIs {
    pub(crate) name: String,
    pub(crate) not: bool,
}

/// The taint effects that keep pods away. `PreferNoSchedule` decides nothing in KAI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Effect {
    NoSchedule,
    NoExecute,
}

/// A taint that keeps pods away.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Taint {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) effect: Effect,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}:{:?}", self.key, self.value, self.effect)
    }
}

/// A toleration; only those that can concern a [`Taint`] are kept.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Toleration {
    /// `None`: all keys.
    key: Option<String>,
    /// `None`: all effects.
    effect: Option<Effect>,
    value: Tolerated,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Tolerated {
    Any,
    Equal(String),
    /// Taint values above.
    Greater(i64),
    /// Taint values below.
    Less(i64),
}

impl Toleration {
    /// Kubernetes' `ToleratesTaint`.
    pub(crate) fn tolerates(&self, taint: &Taint) -> bool {
        self.effect.is_none_or(|effect| effect == taint.effect)
            && self.key.as_ref().is_none_or(|key| *key == taint.key)
            && match &self.value {
                Tolerated::Any => true,
                Tolerated::Equal(value) => *value == taint.value,
                Tolerated::Greater(bound) => plain_integer(&taint.value).is_some_and(|v| v > *bound),
                Tolerated::Less(bound) => plain_integer(&taint.value).is_some_and(|v| v < *bound),
            }
    }
}

/// An integer as numeric tolerations write it: no plus sign, no leading zeros.
fn plain_integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical = digits == "0" || !digits.starts_with(['0', '+']);
    text.parse().ok().filter(|_| canonical && text != "-0")
}

/// Reads the constraints of a pod.
pub(crate) fn constraints_of(subject: Subject<'_>, spec: &mut k8s::PodSpec, findings: &mut Findings) -> Constraints {
    let selector = spec.node_selector.take().unwrap_or_default();
    check_labels(subject, "spec.nodeSelector", &selector, findings);
    let required = spec
        .affinity
        .as_mut()
        .and_then(|affinity| affinity.node_affinity.as_mut())
        .and_then(|node| node.required_during_scheduling_ignored_during_execution.take());
    let affinity = required.map(|required| terms_of(subject, required.node_selector_terms, findings));
    let tolerations = spec.tolerations.take().unwrap_or_default();
    let tolerations = tolerations
        .into_iter()
        .enumerate()
        .filter_map(|(i, toleration)| toleration_of(subject, i, toleration, findings))
        .collect();
    Constraints { selector, affinity, tolerations }
}

const TERMS: &str = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";

fn terms_of(subject: Subject<'_>, terms: Vec<k8s::NodeSelectorTerm>, findings: &mut Findings) -> Vec<Term> {
    if terms.is_empty() {
        findings.bad(subject, TERMS, "[]".to_owned(), "at least one term");
    }
    let read = |(t, term): (usize, k8s::NodeSelectorTerm)| {
        let labels = term.match_expressions.unwrap_or_default().into_iter().enumerate();
        let names = term.match_fields.unwrap_or_default().into_iter().enumerate();
        Term {
            labels: labels
                .filter_map(|(e, one)| expression_of(subject, &format!("{TERMS}[{t}].matchExpressions[{e}]"), one, findings))
                .collect(),
            names: names
                .filter_map(|(e, one)| name_of(subject, &format!("{TERMS}[{t}].matchFields[{e}]"), one, findings))
                .collect(),
        }
    };
    terms.into_iter().enumerate().map(read).collect()
}

fn expression_of(
    subject: Subject<'_>,
    field: &str,
    requirement: k8s::NodeSelectorRequirement,
    findings: &mut Findings,
) -> Option<Expression> {
    let k8s::NodeSelectorRequirement { key, operator, values } = requirement;
    let values = values.unwrap_or_default();
    let mut refuse = |part: &str, value: String, expected: &str| {
        findings.bad(subject, &format!("{field}.{part}"), value, expected);
        None
    };
    if !is_qualified_name(&key) {
        return refuse("key", show(&key), "a label key");
    }
    let test = match operator.as_str() {
        "In" | "NotIn" if values.is_empty() => return refuse("values", "[]".to_owned(), "at least one value"),
        "In" => Test::In(values),
        "NotIn" => Test::NotIn(values),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            return refuse("values", show(&values.join(", ")), "no values for this operator");
        }
        "Exists" => Test::Exists,
        "DoesNotExist" => Test::DoesNotExist,
        "Gt" | "Lt" => {
            let [value] = values.as_slice() else {
                return refuse("values", show(&values.join(", ")), "exactly one integer");
            };
            let Ok(bound) = value.parse() else {
                return refuse("values", show(value), "an integer");
            };
            if operator == "Gt" { Test::Greater(bound) } else { Test::Less(bound) }
        }
        other => return refuse("operator", show(other), "one of In, NotIn, Exists, DoesNotExist, Gt, Lt"),
    };
    Some(Expression { key, test })
}

fn name_of(
    subject: Subject<'_>,
    field: &str,
    requirement: k8s::NodeSelectorRequirement,
    findings: &mut Findings,
) -> Option<NameIs> {
    let k8s::NodeSelectorRequirement { key, operator, values } = requirement;
    let mut refuse = |part: &str, value: String, expected: &str| {
        findings.bad(subject, &format!("{field}.{part}"), value, expected);
        None
    };
    if key != "metadata.name" {
        return refuse("key", show(&key), "metadata.name");
    }
    let not = match operator.as_str() {
        "In" => false,
        "NotIn" => true,
        other => return refuse("operator", show(other), "one of In, NotIn"),
    };
    let values = values.unwrap_or_default();
    let Ok([name]) = <[String; 1]>::try_from(values.clone()) else {
        return refuse("values", show(&values.join(", ")), "exactly one node name");
    };
    if !is_dns_subdomain(&name) {
        return refuse("values", show(&name), "a node name");
    }
    Some(NameIs { name, not })
}

/// `None` for tolerations that are bad or concern no [`Taint`].
fn toleration_of(subject: Subject<'_>, i: usize, toleration: k8s::Toleration, findings: &mut Findings) -> Option<Toleration> {
    let mut refuse = |part: &str, value: &str, expected: &str| {
        findings.bad(subject, &format!("spec.tolerations[{i}].{part}"), show(value), expected);
        None
    };
    let key = toleration.key.filter(|key| !key.is_empty());
    let value = toleration.value.unwrap_or_default();
    let operator = toleration.operator.unwrap_or_default();
    let effect = toleration.effect.unwrap_or_default();
    if key.as_ref().is_some_and(|key| !is_qualified_name(key)) {
        return refuse("key", key.as_deref().unwrap_or_default(), "a taint key");
    }
    if key.is_none() && operator != "Exists" {
        return refuse("operator", &operator, "Exists when the key is empty");
    }
    let tolerated = match operator.as_str() {
        "" | "Equal" => Tolerated::Equal(value),
        "Exists" if value.is_empty() => Tolerated::Any,
        "Exists" => return refuse("value", &value, "no value for operator Exists"),
        "Gt" | "Lt" => match plain_integer(&value) {
            Some(bound) if operator == "Gt" => Tolerated::Greater(bound),
            Some(bound) => Tolerated::Less(bound),
            None => return refuse("value", &value, "an integer"),
        },
        other => return refuse("operator", other, "one of Equal, Exists, Gt, Lt"),
    };
    let keeps_away = match effect.as_str() {
        "" => None,
        "NoSchedule" => Some(Effect::NoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        "PreferNoSchedule" => return None,
        other => return refuse("effect", other, "one of NoSchedule, PreferNoSchedule, NoExecute"),
    };
    if toleration.toleration_seconds.is_some() && keeps_away != Some(Effect::NoExecute) {
        return refuse("effect", &effect, "NoExecute when tolerationSeconds is set");
    }
    Some(Toleration { key, effect: keeps_away, value: tolerated })
}

/// The taints of a node that keep pods away, sorted.
pub(crate) fn taints_of(subject: Subject<'_>, taints: Vec<k8s::Taint>, findings: &mut Findings) -> Vec<Taint> {
    let mut kept = Vec::new();
    for (i, taint) in taints.into_iter().enumerate() {
        let effect = match taint.effect.as_str() {
            "NoSchedule" => Effect::NoSchedule,
            "NoExecute" => Effect::NoExecute,
            "PreferNoSchedule" => continue,
            other => {
                let field = format!("spec.taints[{i}].effect");
                findings.bad(subject, &field, show(other), "one of NoSchedule, PreferNoSchedule, NoExecute");
                continue;
            }
        };
        if !is_qualified_name(&taint.key) {
            findings.bad(subject, &format!("spec.taints[{i}].key"), show(&taint.key), "a taint key");
            continue;
        }
        kept.push(Taint { key: taint.key, value: taint.value.unwrap_or_default(), effect });
    }
    kept.sort();
    kept.dedup();
    kept
}

impl Constraints {
    /// `nodeSelector` as text.
    pub(crate) fn selector_text(&self) -> String {
        let pairs: Vec<_> = self.selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(", ")
    }

    /// Required node affinity as text.
    pub(crate) fn affinity_text(&self) -> String {
        let Some(terms) = &self.affinity else { return String::new() };
        let terms: Vec<_> = terms.iter().map(Term::text).collect();
        terms.join(" or ")
    }
}

impl Term {
    fn text(&self) -> String {
        let mut parts: Vec<_> = self.labels.iter().map(Expression::text).collect();
        parts.extend(self.names.iter().map(|n| format!("name {} {}", if n.not { "is not" } else { "is" }, n.name)));
        match parts.as_slice() {
            [] => "nothing (an empty term)".to_owned(),
            parts => parts.join(" and "),
        }
    }
}

impl Expression {
    fn text(&self) -> String {
        let mut text = self.key.clone();
        let _ = match &self.test {
            Test::In(values) => write!(text, " in ({})", values.join(", ")),
            Test::NotIn(values) => write!(text, " not in ({})", values.join(", ")),
            Test::Exists => write!(text, " exists"),
            Test::DoesNotExist => write!(text, " does not exist"),
            Test::Greater(bound) => write!(text, " > {bound}"),
            Test::Less(bound) => write!(text, " < {bound}"),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: serde_json::Value) -> (Constraints, Vec<String>) {
        let mut spec: k8s::PodSpec = serde_json::from_value(spec).expect("a pod spec");
        let mut findings = Findings::default();
        let subject = Subject { kind: "Pod", namespace: "ns", name: "p" };
        let constraints = constraints_of(subject, &mut spec, &mut findings);
        (constraints, findings.bad.iter().map(ToString::to_string).collect())
    }

    fn tolerates(toleration: serde_json::Value, taint: (&str, &str, Effect)) -> bool {
        let (constraints, bad) = read(json!({"tolerations": [toleration]}));
        assert!(bad.is_empty(), "{bad:?}");
        let taint = Taint { key: taint.0.to_owned(), value: taint.1.to_owned(), effect: taint.2 };
        constraints.tolerations.iter().any(|t| t.tolerates(&taint))
    }

    #[test]
    fn tolerations_follow_kubernetes() {
        use Effect::{NoExecute, NoSchedule};
        let gpu = ("gpu", "a100", NoSchedule);
        for (toleration, taint, expected) in [
            (json!({"operator": "Exists"}), gpu, true),
            (json!({"operator": "Exists"}), ("x", "", NoExecute), true),
            (json!({"operator": "Exists", "effect": "NoExecute"}), gpu, false),
            (json!({"key": "gpu", "value": "a100"}), gpu, true),
            (json!({"key": "gpu", "operator": "Equal", "value": "h100"}), gpu, false),
            (json!({"key": "gpu"}), gpu, false),
            (json!({"key": "gpu"}), ("gpu", "", NoSchedule), true),
            (json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}), gpu, true),
            (json!({"key": "gpu", "operator": "Exists", "effect": "PreferNoSchedule"}), gpu, false),
            (json!({"key": "risk", "operator": "Lt", "value": "5"}), ("risk", "4", NoSchedule), true),
            (json!({"key": "risk", "operator": "Lt", "value": "5"}), ("risk", "5", NoSchedule), false),
            (json!({"key": "score", "operator": "Gt", "value": "800"}), ("score", "801", NoSchedule), true),
            (json!({"key": "score", "operator": "Gt", "value": "800"}), ("score", "0801", NoSchedule), false),
            (json!({"key": "score", "operator": "Gt", "value": "-1"}), ("score", "high", NoSchedule), false),
        ] {
            assert_eq!(tolerates(toleration.clone(), taint), expected, "{toleration} against {taint:?}");
        }
    }

    #[test]
    fn affinity_terms_are_read() {
        let (constraints, bad) = read(json!({
            "nodeSelector": {"pool": "a"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [
                    {"key": "gpu", "operator": "In", "values": ["a", "b"]}, {"key": "n", "operator": "Gt", "values": ["3"]}]},
                {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]},
                {}]}}}
        }));
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(constraints.selector_text(), "pool=a");
        assert_eq!(constraints.affinity_text(), "gpu in (a, b) and n > 3 or name is not n1 or nothing (an empty term)");
    }

    #[test]
    fn bad_constraints_are_named() {
        let affinity = |terms: serde_json::Value| {
            let required = json!({"nodeSelectorTerms": terms});
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
        };
        for (spec, part) in [
            (affinity(json!([])), "at least one term"),
            (affinity(json!([{"matchExpressions": [{"key": "a", "operator": "Is", "values": ["b"]}]}])), "operator"),
            (affinity(json!([{"matchExpressions": [{"key": "a", "operator": "In"}]}])), "at least one value"),
            (affinity(json!([{"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}])), "no values"),
            (affinity(json!([{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["b"]}]}])), "an integer"),
            (affinity(json!([{"matchExpressions": [{"key": "a b", "operator": "Exists"}]}])), "a label key"),
            (affinity(json!([{"matchFields": [{"key": "spec.x", "operator": "In", "values": ["b"]}]}])), "metadata.name"),
            (
                affinity(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b", "c"]}]}])),
                "exactly one",
            ),
            (json!({"nodeSelector": {"a b": "c"}}), "spec.nodeSelector"),
            (json!({"tolerations": [{"key": "a", "operator": "Maybe"}]}), "spec.tolerations[0].operator"),
            (json!({"tolerations": [{"value": "a"}]}), "Exists when the key is empty"),
            (json!({"tolerations": [{"key": "a", "effect": "Never"}]}), "spec.tolerations[0].effect"),
            (json!({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}), "no value"),
            (json!({"tolerations": [{"key": "a", "operator": "Gt", "value": "+5"}]}), "an integer"),
        ] {
            let (_, bad) = read(spec.clone());
            assert!(bad.len() == 1 && bad[0].contains(part), "{spec}: {bad:?}");
        }
    }
}
