//! What the tests of single roles share: a role that can be killed, a kubelet that says which GPUs it gave out, objects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use muster_controller::client::{config, connect};
use muster_controller::lease::Lead;
use muster_controller::run::{Options, Stop, Stopper};
use muster_e2e::cluster::Cluster;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Where reservation pods are.
pub(crate) const RESERVATIONS: &str = "kai-resource-reservation";

/// A runtime with two threads.
pub(crate) fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// A role in a runtime of its own: dropped, it is gone between one step and the next, and its connections with it. To the
/// server that is a process that was killed.
pub(crate) struct Killable {
    runtime: Option<Runtime>,
    _stopper: Stopper,
}

impl Killable {
    /// Starts `role`, which is given a client, the lead, when to end, and settings.
    pub(crate) fn start<F>(
        kubeconfig: &Path,
        options: &Options,
        role: impl FnOnce(Client, Lead, Stop, Arc<Options>) -> F + Send + 'static,
    ) -> Result<Self>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let runtime = runtime()?;
        let (stopper, stop) = Stop::new();
        let (path, options) = (kubeconfig.to_owned(), Arc::new(options.clone()));
        runtime.spawn(async move {
            let client = connect(config(Some(&path), None).await?)?;
            role(client, Lead::always(), stop, options).await
        });
        Ok(Self { runtime: Some(runtime), _stopper: stopper })
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

/// What a kubelet does with reservation pods: gives each one of its node's GPUs, and has it say which.
pub(crate) struct Kubelet {
    _runtime: Runtime,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    wrong: Vec<String>,
    /// Uids of all reservation pods that ever were, by node and group.
    all: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Kubelet {
    /// Begins. Nodes whose name contains `mute` give nothing.
    pub(crate) fn start(kubeconfig: &Path, gpus: usize) -> Result<Self> {
        let runtime = runtime()?;
        let client = runtime.block_on(async { connect(config(Some(kubeconfig), None).await?) })?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let told = Arc::clone(&seen);
        runtime.spawn(async move {
            let pods: Api<Pod> = Api::namespaced(client, RESERVATIONS);
            loop {
                let _ = Self::give(&pods, gpus, &told).await;
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        });
        Ok(Self { _runtime: runtime, seen })
    }

    async fn give(pods: &Api<Pod>, gpus: usize, seen: &Mutex<Seen>) -> Result<()> {
        const GPU: &str = "run.ai/reserve_for_gpu_index";
        let mut taken: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut fresh = Vec::new();
        let mut live: BTreeMap<(String, String), usize> = BTreeMap::new();
        for pod in pods.list(&ListParams::default()).await?.items {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
            let group =
                pod.metadata.labels.as_ref().and_then(|labels| labels.get("runai-gpu-group")).cloned().unwrap_or_default();
            let key = (node.clone(), group);
            *live.entry(key.clone()).or_default() += 1;
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            seen.lock().unwrap_or_else(PoisonError::into_inner).all.entry(key).or_default().insert(uid);
            match pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(GPU)) {
                Some(gpu) => drop(taken.entry(node).or_default().insert(gpu.clone())),
                None if node.contains("mute") => {}
                None => fresh.push((node, pod.metadata.name.unwrap_or_default(), pod.metadata.uid)),
            }
        }
        for (key, count) in live.into_iter().filter(|(_, count)| *count > 1) {
            let said = format!("{count} reservations for {key:?}");
            seen.lock().unwrap_or_else(PoisonError::into_inner).wrong.push(said);
        }
        for (node, name, uid) in fresh {
            let taken = taken.entry(node.clone()).or_default();
            let free = (0..gpus).map(|at| format!("GPU-{node}-{at}")).find(|gpu| !taken.contains(gpu));
            let Some(gpu) = free else {
                let said = format!("more than {gpus} reservations on {node}");
                seen.lock().unwrap_or_else(PoisonError::into_inner).wrong.push(said);
                continue;
            };
            let patch = Patch::Merge(json!({"metadata": {"annotations": {GPU: gpu}, "uid": uid}}));
            if pods.patch(&name, &PatchParams::default(), &patch).await.is_ok() {
                taken.insert(gpu);
            }
        }
        Ok(())
    }

    /// What must never be, and was.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).wrong.clone()
    }

    /// How many reservation pods there ever were for a group of a node.
    pub(crate) fn made(&self, node: &str, group: &str) -> usize {
        let key = (node.to_owned(), group.to_owned());
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).all.get(&key).map_or(0, BTreeSet::len)
    }
}

/// A client of the user `admin`.
pub(crate) async fn admin(cluster: &Cluster) -> Result<Client> {
    connect(config(Some(&cluster.kubeconfig()), None).await?)
}

/// Waits until `wrong` finds nothing wrong any more.
pub(crate) async fn until(patience: Duration, mut wrong: impl AsyncFnMut() -> Result<Option<String>>) -> Result<()> {
    let began = Instant::now();
    while let Some(what) = wrong().await? {
        if began.elapsed() > patience {
            bail!("after {} s: {what}", patience.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Objects of a kind in a namespace.
pub(crate) fn api(client: &Client, namespace: &str, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Creates an object that says what it is.
pub(crate) async fn create(client: &Client, object: Value) -> Result<DynamicObject> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let api = api(client, &text(&object["metadata"]["namespace"]), &text(&object["apiVersion"]), &text(&object["kind"]));
    let described = format!("{} {}", object["kind"], object["metadata"]["name"]);
    let object: DynamicObject = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object).await.with_context(|| described)
}

/// A namespace in which pods can be made, and the one for reservations.
pub(crate) fn namespaces(cluster: &Cluster, name: &str) -> Result<()> {
    for namespace in [name, RESERVATIONS] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        cluster.kubectl_with(&["apply", "-f", "-"], &object.to_string())?;
        cluster.await_service_account(namespace)?;
    }
    let metadata = json!({"name": RESERVATIONS, "namespace": RESERVATIONS});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
    cluster.kubectl_with(&["apply", "-f", "-"], &account.to_string())?;
    Ok(())
}

/// A pod for our scheduler.
pub(crate) fn pod(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": pod_spec()})
}

/// What is in such pods.
pub(crate) fn pod_spec() -> Value {
    let container = json!({"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    json!({"schedulerName": "kai-scheduler", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}], "containers": [container]})
}

/// A pod that asks for half a GPU, as admission leaves it.
pub(crate) fn half(namespace: &str, name: &str) -> Value {
    let mut pod = pod(namespace, name);
    pod["metadata"]["annotations"] =
        json!({"gpu-fraction": "0.5", "runai/shared-gpu-configmap": format!("{name}-abc1234-shared-gpu")});
    let map = format!("{name}-abc1234-shared-gpu-0");
    let by_key = |key: &str| json!({"name": key, "valueFrom": {"configMapKeyRef": {"name": map, "key": key}}});
    pod["spec"]["containers"] = json!([{"name": "main", "image": "none",
        "env": [by_key("NVIDIA_VISIBLE_DEVICES"), by_key("RUNAI_NUM_OF_GPUS"), by_key("GPU_PORTION")],
        "envFrom": [{"configMapRef": {"name": format!("{map}-evar"), "optional": false}}]}]);
    pod
}

/// What a scheduler asks of the binder for a pod; `group`: a half of that GPU.
pub(crate) fn bind_request(pod: &DynamicObject, node: &str, group: Option<&str>) -> Value {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.metadata.uid});
    let mut spec = json!({"podName": name, "selectedNode": node, "receivedResourceType": "Regular",
        "receivedGPU": {"count": 1, "portion": "1.00"}});
    if let Some(group) = group {
        spec["receivedResourceType"] = json!("Fraction");
        spec["receivedGPU"] = json!({"count": 1, "portion": "0.50"});
        spec["selectedGPUGroups"] = json!([group]);
    }
    json!({"apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest", "spec": spec,
        "metadata": {"name": name, "namespace": pod.metadata.namespace, "ownerReferences": [owner],
            "labels": {"selected-node": node}}})
}
