//! What the API server was asked to write, by its own count.

use std::collections::BTreeMap;

use anyhow::Result;
use muster_e2e::cluster::Cluster;

/// Answers of the API server to writes, by `verb resource[/subresource]`; leases left out. Refusals count: they were asked for.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Writes(BTreeMap<String, f64>);

impl Writes {
    /// All up to now.
    pub(crate) fn until_now(cluster: &Cluster) -> Result<Self> {
        let text = cluster.endpoint()?.get("/metrics")?.body;
        let mut counts = BTreeMap::<String, f64>::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{")) {
            let Some((labels, count)) = line.rsplit_once("} ") else { continue };
            let label = |name: &str| {
                // After a comma: `subresource` ends with `resource`.
                let at = labels.find(&format!(",{name}=\""))? + name.len() + 3;
                labels[at..].split('"').next()
            };
            let (Some(verb), Some(resource), Some(sub)) = (label("verb"), label("resource"), label("subresource")) else {
                continue;
            };
            if !matches!(verb, "POST" | "PUT" | "PATCH" | "APPLY" | "DELETE" | "DELETECOLLECTION") || resource == "leases" {
                continue;
            }
            let of = if sub.is_empty() { format!("{verb} {resource}") } else { format!("{verb} {resource}/{sub}") };
            *counts.entry(of).or_default() += count.parse::<f64>()?;
        }
        Ok(Self(counts))
    }

    /// Those since `before`; what did not happen is not named.
    pub(crate) fn since(&self, before: &Self) -> BTreeMap<String, u64> {
        let since = |of: &str, count: f64| count - before.0.get(of).copied().unwrap_or(0.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of whole requests")]
        let whole = self.0.iter().map(|(of, count)| (of.clone(), since(of, *count).round() as u64));
        whole.filter(|(_, count)| *count > 0).collect()
    }
}
