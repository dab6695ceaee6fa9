//! Answers about a shard: why a gang waits, in which order gangs are served, and everything there is, in KAI's layout.

use std::collections::BTreeMap;
use std::io::{Cursor, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use muster_api::names::ObjectName;
use muster_api::sentences::Facts;
use muster_api::{evictions, report};
use muster_core::index::{GangIdx, Idx as _};
use muster_core::outcome::DecisionKind;
use serde_json::{Value, json};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::cycle_thread::Last;
use crate::scheduler::{Running, RunningShard};

const PAGE: u32 = 500;

/// The shard that is asked about: by name, or the only one.
///
/// # Errors
/// If there is none of that name, or several and no name.
pub fn choose(running: &Running, name: Option<&str>) -> Result<RunningShard, String> {
    let mut all = running.all();
    let names = || all.keys().cloned().collect::<Vec<_>>().join(", ");
    match name {
        Some(name) => {
            let known = names();
            all.remove(name).ok_or_else(|| format!("no shard {name} runs here; there are: {known}"))
        }
        None if all.len() > 1 => Err(format!("several shards run here: add ?shard= with one of {}", names())),
        None => all.pop_first().map(|(_, shard)| shard).ok_or_else(|| "no shard runs here".to_owned()),
    }
}

/// So long whoever asks waits for a cycle to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// The last cycle, if need be once the one that runs has ended. `None`: no cycle has ended for some time.
pub async fn last(shard: &RunningShard) -> Option<Arc<Last>> {
    let mut last = shard.last.subscribe();
    let found = tokio::time::timeout(PATIENCE, last.wait_for(Option::is_some)).await;
    found.ok()?.ok()?.clone()
}

/// Why a pod group (`namespace/name`), or a pod's, waits, or what was decided about it; without either, all that wait.
///
/// # Errors
/// If there is none of that name.
pub fn explain(last: &Last, shard: &str, group: Option<&str>, pod: Option<&str>) -> Result<Value, String> {
    let names = &last.loaded.names;
    let of_pod = pod.and_then(|pod| {
        let found = names.pods.indices().find(|&p| is_named(&names.pods[p], pod))?;
        last.loaded.snapshot.pods[found].gang
    });
    let of_group = group.and_then(|group| names.gangs.indices().find(|&g| is_named(&names.gangs[g], group)));
    let chosen = match (group, pod) {
        (None, None) => None,
        (Some(name), _) => match of_group {
            Some(gang) => Some(gang),
            None => return Err(format!("pod group {name} is not known in this shard; write namespace/name")),
        },
        (None, Some(name)) => match of_pod {
            Some(gang) => Some(gang),
            None => return Err(format!("pod {name} is in no pod group of this shard; write namespace/name")),
        },
    };
    let gangs = match chosen {
        Some(gang) => vec![one(last, gang)],
        None => last.outcome.pending.iter().map(|pending| one(last, pending.gang)).collect(),
    };
    Ok(json!({"shard": shard, "time": last.loaded.now.to_string(), "podGroups": gangs}))
}

fn is_named(name: &ObjectName, text: &str) -> bool {
    text.split_once('/') == Some(name.parts())
}

fn one(last: &Last, gang: GangIdx) -> Value {
    let (loaded, outcome) = (&last.loaded, &last.outcome);
    let facts = Facts { snapshot: &loaded.snapshot, names: &loaded.names };
    let pending = outcome.pending.iter().find(|pending| pending.gang == gang);
    let reasons: Vec<_> = pending
        .map(|pending| outcome.reasons_of(pending).iter().map(|reason| report::reason(reason, gang, facts)).collect())
        .unwrap_or_default();
    let mut evicted = outcome.evictions.iter();
    let mut decisions = Vec::new();
    for decision in &outcome.decisions {
        let eviction = if decision.kind == DecisionKind::Evict { evicted.next() } else { None };
        if loaded.snapshot.pods[decision.pod].gang != Some(gang) {
            continue;
        }
        let kind = match decision.kind {
            DecisionKind::Bind => "bind",
            DecisionKind::Pipeline => "pipeline",
            DecisionKind::Evict => "evict",
        };
        decisions
            .push(json!({"kind": kind, "pod": loaded.names.pods[decision.pod].name, "node": loaded.names.nodes[decision.node],
            "action": decision.action.name(), "rule": eviction.map(|eviction| evictions::rule(&eviction.why, &loaded.names))}));
    }
    let mut states: BTreeMap<String, u32> = BTreeMap::new();
    for pod in loaded.snapshot.gangs[gang].pods.iter() {
        *states.entry(format!("{:?}", loaded.snapshot.pods[pod].status)).or_default() += 1;
    }
    let name = &loaded.names.gangs[gang];
    json!({"namespace": name.namespace, "podGroup": name.name, "queue": loaded.names.gang_queues[gang], "pods": states,
        "waiting": pending.map_or(0, |pending| pending.pods), "reasons": reasons, "decisions": decisions})
}

/// Pending gangs that can form, by priority then age, as KAI's `/get-job-order`.
#[must_use]
pub fn job_order(last: &Last) -> Value {
    let (rows, names) = (&last.loaded.snapshot, &last.loaded.names);
    let mut gangs: Vec<GangIdx> = last.outcome.pending.iter().map(|pending| pending.gang).collect();
    gangs.sort_by_key(|&gang| (-i64::from(rows.gangs[gang].priority), gang.at()));
    let entry = |gang: GangIdx| json!({"id": names.gangs[gang].name, "priority": rows.gangs[gang].priority});
    let mut queues: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for &gang in &gangs {
        queues.entry(names.gang_queues[gang].as_str()).or_default().push(entry(gang));
    }
    json!({"global_order": gangs.iter().map(|&gang| entry(gang)).collect::<Vec<_>>(), "queue_order": queues})
}

/// Lists of the layout (wire-contract.md §10.2): name, group, version, plural, whether the shard's label selects.
const LISTS: [(&str, &str, &str, &str, bool); 10] = [
    ("pods", "", "v1", "pods", false),
    ("nodes", "", "v1", "nodes", true),
    ("queues", "scheduling.run.ai", "v2", "queues", true),
    ("podGroups", "scheduling.run.ai", "v2alpha2", "podgroups", true),
    ("bindRequests", "scheduling.run.ai", "v1alpha2", "bindrequests", false),
    ("priorityClasses", "scheduling.k8s.io", "v1", "priorityclasses", false),
    ("configMaps", "", "v1", "configmaps", false),
    ("topologies", "kai.scheduler", "v1alpha1", "topologies", false),
    ("resourceClaims", "resource.k8s.io", "v1", "resourceclaims", false),
    ("resourceSlices", "resource.k8s.io", "v1", "resourceslices", false),
];

/// A fresh list of everything, as `snapshot.json` in a zip archive. Objects are reduced as KAI reduces them, and of ConfigMaps
/// only names are left: that they exist is all that a plan needs.
///
/// # Errors
/// If the API server does not answer.
pub async fn snapshot(client: &Client, shard: &RunningShard) -> Result<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("snapshot.json", SimpleFileOptions::default())?;
    let settings = &shard.shard;
    let mut params = settings.params.clone();
    // What a dump always has: readers know by it that absent settings are off (wire-contract.md §10.2).
    params["fullHierarchyFairness"] = params.get("fullHierarchyFairness").cloned().unwrap_or(json!(true));
    write!(zip, r#"{{"config":{},"schedulerParams":{},"now":"{}","rawObjects":{{"#, settings.config, params, Timestamp::now())?;
    let key = settings.params["partitionParams"]["NodePoolLabelKey"].as_str().unwrap_or_default();
    let selector = if settings.pool.is_empty() { format!("!{key}") } else { format!("{key}={}", settings.pool) };
    for (at, (name, group, version, plural, selected)) in LISTS.into_iter().enumerate() {
        write!(zip, "{}\"{name}\":[", if at > 0 { "," } else { "" })?;
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
            kind: String::new(),
            plural: plural.to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let labels = selector.as_str();
        write_list(&api, name, if selected && !key.is_empty() { Some(labels) } else { None }, &mut zip).await?;
        write!(zip, "]")?;
    }
    write!(zip, r#"}},"discovery":null}}"#)?;
    Ok(zip.finish()?.into_inner())
}

async fn write_list(
    api: &Api<DynamicObject>,
    name: &str,
    selector: Option<&str>,
    zip: &mut ZipWriter<Cursor<Vec<u8>>>,
) -> Result<()> {
    let mut parameters = ListParams::default().limit(PAGE);
    if let Some(selector) = selector {
        parameters = parameters.labels(selector);
    }
    let mut first = true;
    loop {
        let page = match api.list(&parameters).await {
            Ok(page) => page,
            // Not served, or not ours to see: as KAI, an empty list.
            Err(kube::Error::Api(status)) if first && matches!(status.code, 403 | 404) => {
                tracing::debug!(list = name, message = status.message, "left out of a snapshot");
                return Ok(());
            }
            Err(error) => return Err(error).with_context(|| format!("a list of {name}")),
        };
        for object in page.items {
            let Some(object) = reduced(name, serde_json::to_value(object)?) else { continue };
            if !first {
                zip.write_all(b",")?;
            }
            first = false;
            serde_json::to_writer(&mut *zip, &object)?;
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Without what no plan needs and nobody else should see: images, commands, values of the environment.
fn reduced(list: &str, mut object: Value) -> Option<Value> {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    match list {
        "configMaps" => {
            let metadata = &object["metadata"];
            return Some(json!({"metadata": {"name": metadata["name"], "namespace": metadata["namespace"]}}));
        }
        "pods" => {
            if object["status"]["phase"] == "Failed" {
                return None;
            }
            for list in ["containers", "initContainers"] {
                for container in object["spec"][list].as_array_mut().into_iter().flatten() {
                    let Some(fields) = container.as_object_mut() else { continue };
                    fields.retain(|field, _| {
                        matches!(
                            field.as_str(),
                            "name" | "ports" | "resources" | "volumeMounts" | "restartPolicy" | "env" | "envFrom"
                        )
                    });
                    if let Some(env) = fields.get_mut("env").and_then(Value::as_array_mut) {
                        env.retain(|variable| !variable["valueFrom"]["configMapKeyRef"].is_null());
                    }
                    if let Some(env) = fields.get_mut("envFrom").and_then(Value::as_array_mut) {
                        env.retain(|source| !source["configMapRef"].is_null());
                    }
                }
            }
        }
        _ => {}
    }
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_tell_no_secrets() {
        let pod = json!({"metadata": {"name": "p", "managedFields": []}, "spec": {"containers": [{"name": "c", "image": "i",
            "command": ["x"], "env": [{"name": "PASSWORD", "value": "secret"},
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]}]}});
        let kept = reduced("pods", pod).expect("it runs").to_string();
        assert!(!kept.contains("secret") && !kept.contains("image") && kept.contains("configMapKeyRef"), "{kept}");
        let map = json!({"metadata": {"name": "m", "namespace": "n"}, "data": {"k": "secret"}});
        assert_eq!(reduced("configMaps", map), Some(json!({"metadata": {"name": "m", "namespace": "n"}})));
        assert_eq!(reduced("pods", json!({"metadata": {}, "status": {"phase": "Failed"}})), None);
    }
}
