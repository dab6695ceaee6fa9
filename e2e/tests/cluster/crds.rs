//! A real API server takes our CRDs, keeps every field of the contract, and refuses what KAI's refuse.

use anyhow::{Context as _, Result, ensure};
use muster_e2e::cluster::Cluster;
use serde_json::{Map, Value, json};

use crate::contract::{Example, examples, refused};
use crate::support::{Shared, get};

/// They are established, structural, and known by the names users type.
pub(crate) fn are_accepted(shared: &Shared) -> Result<()> {
    let cluster = shared.with_crds()?;
    let all = get(cluster, &["crds"])?;
    let all = all["items"].as_array().context("a list")?;
    ensure!(all.len() == 6, "{} CRDs", all.len());
    for crd in all {
        let bad = |c: &&Value| match c["type"].as_str() {
            Some("Established" | "NamesAccepted") => c["status"] != "True",
            _ => c["status"] == "True",
        };
        let conditions = crd["status"]["conditions"].as_array().context("conditions")?;
        ensure!(!conditions.iter().any(|c| bad(&c)), "{}: {conditions:?}", crd["metadata"]["name"]);
    }
    let queue = json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "shown"},
        "spec": {"priority": 7, "parentQueue": "above", "displayName": "Shown"}});
    cluster.kubectl_with(&["apply", "-f", "-"], &queue.to_string())?;
    let table = cluster.kubectl(["get", "queues.scheduling.run.ai", "shown"])?;
    let words: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    ensure!(words[0] == ["NAME", "PRIORITY", "PARENT", "CHILDREN", "DISPLAYNAME"], "{table}");
    ensure!(words[1] == ["shown", "7", "above", "Shown"], "{table}");
    cluster.kubectl(["get", "pg", "-A"])?;
    cluster.kubectl(["delete", "queue", "shown"])?;
    Ok(())
}

/// What users and KAI write comes back as it was written.
pub(crate) fn keep_what_users_write(shared: &Shared) -> Result<()> {
    let cluster = shared.with_crds()?;
    for example in examples() {
        round_trip(cluster, &example).with_context(|| example.plural.to_owned())?;
        // Nothing but a topology's levels has to be there.
        if example.plural != "topologies" {
            let mut object = example.object;
            object["spec"] = json!({});
            let status = Some(json!({}));
            round_trip(cluster, &Example { plural: example.plural, object, status })
                .with_context(|| format!("empty {}", example.plural))?;
        }
    }
    Ok(())
}

/// So does an object with a value for every field that the CRD knows.
pub(crate) fn keep_every_field(shared: &Shared) -> Result<()> {
    let cluster = shared.with_crds()?;
    for example in examples() {
        let group = example.object["apiVersion"].as_str().and_then(|api| api.split_once('/')).context("a group")?.0;
        let crd = get(cluster, &["crd", &format!("{}.{group}", example.plural)])?;
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let mut object = example.object.clone();
        // Lists with rules across their items are as users write them.
        if example.plural != "topologies" {
            object["spec"] = sample(&schema["spec"]);
        }
        let status = example.status.is_some().then(|| sample(&schema["status"]));
        round_trip(cluster, &Example { plural: example.plural, object, status }).with_context(|| example.plural.to_owned())?;
    }
    Ok(())
}

/// Writes, reads, compares, deletes. Nothing may be dropped, and nothing added.
fn round_trip(cluster: &Cluster, example: &Example) -> Result<()> {
    let (plural, name) = (example.plural, example.object["metadata"]["name"].as_str().context("a name")?);
    let kind =
        format!("{plural}.{}", example.object["apiVersion"].as_str().unwrap_or_default().split('/').next().unwrap_or_default());
    // Strict: a field that the server does not know is an error, not a warning.
    cluster.kubectl_with(&["create", "--validate=strict", "-f", "-"], &example.object.to_string())?;
    if let Some(status) = &example.status {
        let patch = json!({"status": status}).to_string();
        cluster.kubectl_with(&["patch", &kind, name, "--subresource=status", "--type=merge", "-p", &patch], "")?;
    }
    let back = get(cluster, &[&kind, name])?;
    cluster.kubectl_with(&["delete", &kind, name], "")?;
    compare("spec", &example.object["spec"], &back["spec"])?;
    compare("status", example.status.as_ref().unwrap_or(&Value::Null), &back["status"])
}

fn compare(path: &str, wrote: &Value, read: &Value) -> Result<()> {
    let nothing = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
    if path == "status" && nothing(wrote) && nothing(read) {
        return Ok(());
    }
    if let (Value::Object(wrote), Value::Object(read)) = (wrote, read) {
        for key in wrote.keys().chain(read.keys()) {
            let at = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
            compare(&format!("{path}.{key}"), &at(wrote), &at(read))?;
        }
        return Ok(());
    }
    if let (Value::Array(wrote), Value::Array(read)) = (wrote, read)
        && wrote.len() == read.len()
    {
        return wrote.iter().zip(read).enumerate().try_for_each(|(i, (w, r))| compare(&format!("{path}[{i}]"), w, r));
    }
    let same = wrote == read || wrote.as_f64().is_some_and(|number| read.as_f64() == Some(number));
    ensure!(same, "{path}: wrote {wrote}, read {read}");
    Ok(())
}

/// A value that a schema accepts, with every field it knows.
fn sample(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.iter().find(|value| !value.is_null())) {
        return first.clone();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return json!(3);
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return json!({"anything": {"deep": [1, "two"]}});
    }
    match schema["type"].as_str() {
        Some("object") => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            let mut object: Map<_, _> = fields.map(|(name, of)| (name.clone(), sample(of))).collect();
            if schema["additionalProperties"].is_object() {
                object.insert("key".to_owned(), sample(&schema["additionalProperties"]));
            }
            Value::Object(object)
        }
        Some("array") => json!([sample(&schema["items"])]),
        Some("boolean") => json!(true),
        Some("integer") => json!(2),
        Some("number") => json!(0.5),
        _ => match schema["format"].as_str() {
            Some("date-time") => json!("2026-08-07T10:00:00Z"),
            _ => json!("ab"),
        },
    }
}

/// The server refuses what KAI's CRDs refuse, and a change of a topology's labels, but not of its aliases.
pub(crate) fn refuse_what_kai_refuses(shared: &Shared) -> Result<()> {
    let cluster = shared.with_crds()?;
    let create = ["create", "-f", "-"];
    for (plural, what, spec) in refused() {
        let example = examples().into_iter().find(|example| example.plural == plural).context("an example")?;
        let mut object = example.object;
        object["spec"] = spec;
        let output = cluster.try_kubectl(&create, &object.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && said.contains("is invalid"), "{plural} with {what}: {} {said}", output.status);
    }
    let topology = |label: &str, alias: &str| {
        json!({"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "frozen"},
            "spec": {"levels": [{"nodeLabel": label, "alias": alias}]}})
        .to_string()
    };
    cluster.kubectl_with(&create, &topology("rack", "a"))?;
    cluster.kubectl_with(&["apply", "-f", "-"], &topology("rack", "b"))?;
    let output = cluster.try_kubectl(&["apply", "-f", "-"], &topology("block", "b"))?;
    ensure!(!output.status.success(), "the labels of a topology could be changed");
    cluster.kubectl(["delete", "topology", "frozen"])?;
    Ok(())
}
