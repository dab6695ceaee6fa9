//! The way from a pod up to who owns it (controllers.md §1.3). Owners are of any kind, and are read one by one: whoever follows
//! all kinds needs the right to list them all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::Scope;
use kube::{Api, Client};
use muster_api::grouping::{Owner, owner_of, skips};

use crate::calls::{Failed, read};

/// All pods of a Job come within moments, and have one owner.
const FRESH: Duration = Duration::from_secs(5);
/// Longer chains are circles.
const LONGEST: usize = 16;
const MOST_REMEMBERED: usize = 4096;

/// Where a walk ended.
pub(crate) enum Walk {
    /// Nearest first; none: the pod is its own owner.
    Found(Vec<Owner>),
    /// An owner says that somebody else makes the group.
    Skipped,
    /// An owner is not there; for people.
    Missing(String),
    /// A request failed.
    Failed(Failed),
}

/// What was read lately.
struct Known {
    when: Instant,
    metadata: Arc<ObjectMeta>,
}

/// Reads owners.
pub(crate) struct Owners {
    client: Client,
    known: Mutex<HashMap<String, Known>>,
    kinds: Mutex<HashMap<(String, String), (ApiResource, bool)>>,
}

/// Kinds that need not be asked for.
const FAMILIAR: [(&str, &str, &str); 6] = [
    ("apps/v1", "Deployment", "deployments"),
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("apps/v1", "StatefulSet", "statefulsets"),
    ("apps/v1", "DaemonSet", "daemonsets"),
    ("batch/v1", "Job", "jobs"),
    ("batch/v1", "CronJob", "cronjobs"),
];

impl Owners {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, known: Mutex::default(), kinds: Mutex::default() }
    }

    /// The owners of a pod.
    pub(crate) async fn of(&self, pod: &Pod) -> Walk {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut owners: Vec<Owner> = Vec::new();
        let mut next = owner_of(&pod.metadata).cloned();
        while let Some(reference) = next {
            if owners.len() == LONGEST {
                return Walk::Missing(format!("more than {LONGEST} owners above each other"));
            }
            let metadata = match self.get(namespace, &reference).await {
                Ok(Some(metadata)) => metadata,
                Ok(None) => {
                    let OwnerReference { kind, name, uid, .. } = reference;
                    return Walk::Missing(format!("its owner, {kind} {name} (uid {uid}), is not there"));
                }
                // What may not be read counts as not above.
                Err(failed) if failed.is_forbidden() => break,
                Err(failed) => return Walk::Failed(failed),
            };
            if skips(&metadata) {
                return Walk::Skipped;
            }
            next = owner_of(&metadata).cloned();
            owners.push(Owner {
                api_version: reference.api_version,
                kind: reference.kind,
                metadata: Arc::unwrap_or_clone(metadata),
            });
        }
        Walk::Found(owners)
    }

    /// Metadata of the object that is meant, and no other of its name.
    async fn get(&self, namespace: &str, of: &OwnerReference) -> Result<Option<Arc<ObjectMeta>>, Failed> {
        if let Some(known) = lock(&self.known).get(&of.uid)
            && known.when.elapsed() < FRESH
        {
            return Ok(Some(Arc::clone(&known.metadata)));
        }
        let (resource, namespaced) = self.resource(of).await?;
        let api: Api<DynamicObject> = if namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        };
        let Some(found) = read(api.get_metadata_opt(&of.name)).await? else { return Ok(None) };
        let mut metadata = found.metadata;
        if metadata.uid.as_deref() != Some(of.uid.as_str()) {
            return Ok(None);
        }
        metadata.managed_fields = None;
        let metadata = Arc::new(metadata);
        let mut known = lock(&self.known);
        if known.len() >= MOST_REMEMBERED {
            known.retain(|_, known| known.when.elapsed() < FRESH);
        }
        known.insert(of.uid.clone(), Known { when: Instant::now(), metadata: Arc::clone(&metadata) });
        Ok(Some(metadata))
    }

    /// How a kind is asked for, and whether it lies in namespaces.
    async fn resource(&self, of: &OwnerReference) -> Result<(ApiResource, bool), Failed> {
        let (group, version) = of.api_version.split_once('/').unwrap_or(("", &of.api_version));
        let gvk = GroupVersionKind::gvk(group, version, &of.kind);
        if let Some((_, _, plural)) = FAMILIAR.iter().find(|(v, kind, _)| (*v, *kind) == (&of.api_version, &of.kind)) {
            return Ok((ApiResource::from_gvk_with_plural(&gvk, plural), true));
        }
        let key = (of.api_version.clone(), of.kind.clone());
        if let Some(known) = lock(&self.kinds).get(&key) {
            return Ok(known.clone());
        }
        let (resource, capabilities) = read(kube::discovery::pinned_kind(&self.client, &gvk)).await?;
        let found = (resource, capabilities.scope == Scope::Namespaced);
        lock(&self.kinds).insert(key, found.clone());
        Ok(found)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
