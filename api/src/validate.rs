//! Kubernetes' own rules for names, labels and annotations: pure checks of one text, and of one object's metadata.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::names::ObjectName;
use crate::problem::{Findings, Subject, show};

/// What a DNS-1123 subdomain must be.
pub(crate) const SUBDOMAIN: &str =
    "lower-case letters, digits, '-' and '.', at most 253 characters, letters or digits at both ends";
/// What a DNS-1123 label must be.
pub(crate) const LABEL: &str = "lower-case letters, digits and '-', at most 63 characters, letters or digits at both ends";
const LABEL_VALUE: &str = "at most 63 characters of letters, digits, '-', '_' and '.', letters or digits at both ends";
const LABEL_KEY: &str = "[prefix/]name, the name at most 63 characters of letters, digits, '-', '_' and '.'";
/// Kubernetes' limit for all annotations of one object.
const ANNOTATION_BYTES: usize = 256 * 1024;

/// A DNS-1123 label.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

/// A DNS-1123 subdomain: dot-separated parts that look like labels (of any length), 253 characters in all.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    text.len() <= 253
        && text.split('.').all(|part| {
            let part = part.as_bytes();
            edge(part.first())
                && edge(part.last())
                && part.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        })
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// A label value: empty, or like the name part of a key.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name_part(text)
}

/// A qualified name: label, taint and resource keys.
pub(crate) fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name_part(name),
        None => is_name_part(text),
    }
}

/// Checks an object's labels and the size of its annotations.
pub(crate) fn check_metadata(subject: Subject<'_>, metadata: &ObjectMeta, findings: &mut Findings) {
    if let Some(labels) = &metadata.labels {
        check_labels(subject, "metadata.labels", labels, findings);
    }
    if let Some(annotations) = &metadata.annotations {
        let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > ANNOTATION_BYTES {
            let value = format!("{bytes} bytes");
            findings.bad(subject, "metadata.annotations", value, "at most 262144 bytes in all");
        }
    }
}

/// Checks keys and values of a label map, `nodeSelector` included.
pub(crate) fn check_labels(subject: Subject<'_>, field: &str, labels: &BTreeMap<String, String>, findings: &mut Findings) {
    for (key, value) in labels {
        if !is_qualified_name(key) {
            findings.bad(subject, field, show(key), LABEL_KEY);
        } else if !is_label_value(value) {
            findings.bad(subject, &format!("{field}.{key}"), show(value), LABEL_VALUE);
        }
    }
}

/// The name of a cluster-scoped object, checked; `None` if it is bad.
pub(crate) fn cluster_name(kind: &str, metadata: &mut ObjectMeta, findings: &mut Findings) -> Option<String> {
    let name = metadata.name.take().unwrap_or_default();
    let subject = Subject { kind, namespace: "", name: &name };
    if !is_dns_subdomain(&name) {
        findings.bad(subject, "metadata.name", show(&name), SUBDOMAIN);
        return None;
    }
    let before = findings.bad.len();
    check_metadata(subject, metadata, findings);
    (findings.bad.len() == before).then_some(name)
}

/// The name of a namespaced object, checked; an absent namespace is `default`, as everywhere in Kubernetes.
pub(crate) fn object_name(kind: &str, metadata: &mut ObjectMeta, findings: &mut Findings) -> Option<ObjectName> {
    let name = metadata.name.take().unwrap_or_default();
    let namespace = metadata.namespace.take().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned());
    let subject = Subject { kind, namespace: &namespace, name: &name };
    let before = findings.bad.len();
    if !is_dns_subdomain(&name) {
        findings.bad(subject, "metadata.name", show(&name), SUBDOMAIN);
    }
    if !is_dns_label(&namespace) {
        findings.bad(subject, "metadata.namespace", show(&namespace), LABEL);
    }
    check_metadata(subject, metadata, findings);
    (findings.bad.len() == before).then_some(ObjectName { namespace, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "a-b", "0", "a.b-c.d"] {
            assert!(is_dns_subdomain(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a..b", ".a", "a_b", "é", &"a".repeat(254), "a\0"] {
            assert!(!is_dns_subdomain(bad), "{bad}");
        }
        assert!(is_dns_label(&"a".repeat(63)) && !is_dns_label(&"a".repeat(64)) && !is_dns_label("a.b"));
        for good in ["a", "example.com/A_b.c", "nvidia.com/gpu.memory"] {
            assert!(is_qualified_name(good), "{good}");
        }
        for bad in ["", "/a", "a/", "a/b/c", "Ex.com/a", "a b", "_a"] {
            assert!(!is_qualified_name(bad), "{bad}");
        }
        assert!(is_label_value("") && is_label_value("80") && !is_label_value("a b") && !is_label_value(&"x".repeat(64)));
    }
}
