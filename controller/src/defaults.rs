//! The queues and the shard that a fresh installation begins with (wire-contract.md §8.2): made once, never changed, never
//! removed.

use anyhow::{Context as _, Result};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::{Api, Client};
use muster_api::live::Watched;
use muster_api::manifests::defaults;

use crate::calls::{Writer, read};
use crate::watch::resource_of;

/// Makes them if the cluster has no queue at all. Returns the names of what was made.
///
/// # Errors
/// If the server refuses, or cannot be reached.
pub async fn ensure(client: &Client, writer: &Writer) -> Result<Vec<String>> {
    let queues: Api<DynamicObject> = Api::all_with(client.clone(), &resource_of(Watched::Queue));
    let first = read(queues.list(&ListParams::default().limit(1))).await.context("queues")?;
    if !first.items.is_empty() {
        return Ok(Vec::new());
    }
    let mut made = Vec::new();
    for object in defaults() {
        let kind = if object["kind"] == "Queue" { Watched::Queue } else { Watched::SchedulingShard };
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource_of(kind));
        let object: DynamicObject = serde_json::from_value(object)?;
        let name = object.metadata.name.clone().unwrap_or_default();
        match writer.write(|| async { api.create(&PostParams::default(), &object).await }).await {
            Ok(_) => made.push(name),
            // Somebody else was faster, or kept it.
            Err((failed, _)) if failed.is_already_exists() => {}
            Err((failed, _)) => return Err(failed).with_context(|| format!("{} {name}", kind.name())),
        }
    }
    Ok(made)
}
