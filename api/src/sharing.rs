//! What is written where a pod shares a GPU (wire-contract.md §3): labels, ConfigMaps, and the pod that holds the card.
//!
//! Pure: who writes it, when, and what is done when that fails, is the controller's.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSpec};
use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Map, Value, json};

use crate::gpu;

/// Names the shared GPU on its reservation pod, and on pods that share one GPU. Pods that share several carry
/// `runai-gpu-group/<group>` for each.
pub const GROUP_LABEL: &str = gpu::GROUP_LABEL;
/// On a reservation pod: the UUID of the GPU that it was given, whatever the name says.
pub const RESERVED_GPU: &str = "run.ai/reserve_for_gpu_index";
/// On a bound pod: `Regular`, `Fraction` or `MigInstance`.
pub const RECEIVED_TYPE: &str = "received-resource-type";
/// On a bound pod: the NUMA zones it is expected on.
pub const NUMA_PREDICTED: &str = "kai.scheduler/numa-placement-predicted";
/// On a pod that shares GPUs, by admission: how the names of its ConfigMaps begin.
pub const CONFIG_MAP_PREFIX: &str = "runai/shared-gpu-configmap";

const CONTAINER_NAME: &str = "gpu-fraction-container-name";
const NO_DISRUPTION: &str = "karpenter.sh/do-not-disrupt";
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
const LEGACY_VISIBLE_DEVICES: &str = "RUNAI-VISIBLE-DEVICES";
const PORTION: &str = "GPU_PORTION";
const LEGACY_PORTION: &str = "RUNAI_NUM_OF_GPUS";
const CDI_DEVICE: &str = "k8s.device-plugin.nvidia.com/gpu=";

/// The groups that a pod's labels name, sorted.
#[must_use]
pub fn groups(metadata: &ObjectMeta) -> Vec<String> {
    metadata.labels.as_ref().map(gpu::groups_of_labels).unwrap_or_default()
}

/// Labels of a pod that is given these groups, for a merge patch: those of an earlier attempt are taken away. No groups: all
/// are.
#[must_use]
pub fn label_changes(metadata: &ObjectMeta, groups: &[String]) -> Map<String, Value> {
    let wanted: BTreeMap<String, &String> = match groups {
        [only] => BTreeMap::from([(GROUP_LABEL.to_owned(), only)]),
        several => several.iter().map(|group| (format!("{GROUP_LABEL}/{group}"), group)).collect(),
    };
    let labels = metadata.labels.iter().flatten();
    let ours =
        labels.filter(|(key, _)| key.strip_prefix(GROUP_LABEL).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    let stale = ours.filter(|(key, _)| !wanted.contains_key(*key)).map(|(key, _)| (key.clone(), Value::Null));
    let mut changes: Map<String, Value> = stale.collect();
    let there = |key: &String| metadata.labels.as_ref().and_then(|labels| labels.get(key));
    changes
        .extend(wanted.iter().filter(|(key, group)| there(key) != Some(*group)).map(|(key, group)| (key.clone(), json!(group))));
    changes
}

/// Where a pod's container looks for what it was given; read off the pod as admission left it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wiring {
    /// ConfigMap whose keys the container names one by one.
    pub capabilities: String,
    /// ConfigMap whose keys all become variables of the container.
    pub direct: String,
    /// The devices are looked for in `capabilities`, not in `direct`.
    by_key: bool,
}

/// Finds it.
///
/// # Errors
/// If the pod was not prepared for sharing a GPU; the text says what is missing.
pub fn wiring(pod: &Pod) -> Result<Wiring, String> {
    let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key).filter(|text| !text.is_empty());
    let Some(prefix) = annotation(CONFIG_MAP_PREFIX) else {
        let why = "its containers would not learn which GPU is theirs: create it anew while the admission webhook runs";
        return Err(format!("the pod has no annotation {CONFIG_MAP_PREFIX}; {why}"));
    };
    let spec = pod.spec.as_ref().ok_or("the pod has no spec")?;
    let first = spec.init_containers.iter().flatten().enumerate().map(|(at, container)| (format!("i{at}"), container));
    let then = spec.containers.iter().enumerate().map(|(at, container)| (at.to_string(), container));
    let (at, container) = match annotation(CONTAINER_NAME) {
        Some(name) => first
            .chain(then)
            .find(|(_, container)| container.name == *name)
            .ok_or_else(|| format!("annotation {CONTAINER_NAME}: {name:?}: expected the name of a container of the pod"))?,
        None => then.into_iter().next().ok_or("the pod has no containers")?,
    };
    let variable = container.env.iter().flatten().find(|variable| variable.name == VISIBLE_DEVICES);
    let by_key = variable.and_then(|variable| variable.value_from.as_ref()?.config_map_key_ref.as_ref()).is_some();
    let capabilities = format!("{prefix}-{at}");
    Ok(Wiring { direct: format!("{capabilities}-evar"), capabilities, by_key })
}

/// The two ConfigMaps of a pod that was given `devices` (UUIDs) and `portion` of each. With `cdi` the devices are named as the
/// container device interface does.
#[must_use]
pub fn config_maps(pod: &Pod, wiring: &Wiring, devices: &[String], portion: &str, cdi: bool) -> [ConfigMap; 2] {
    let prefix = if cdi { CDI_DEVICE } else { "" };
    let devices: Vec<_> = devices.iter().map(|device| format!("{prefix}{device}")).collect();
    let devices = (VISIBLE_DEVICES.to_owned(), devices.join(","));
    let mut capabilities = BTreeMap::from([PORTION, LEGACY_PORTION].map(|key| (key.to_owned(), portion.to_owned())));
    let mut direct = BTreeMap::new();
    if wiring.by_key { &mut capabilities } else { &mut direct }.extend([devices]);
    let make = |name: &str, data| ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: pod.metadata.namespace.clone(),
            owner_references: Some(vec![reference(pod)]),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    };
    [make(&wiring.capabilities, capabilities), make(&wiring.direct, direct)]
}

/// A ConfigMap that was there already, as it has to be: one of the same pod keeps its other keys, one of anybody else is
/// replaced. `None`: it is as it has to be.
#[must_use]
pub fn merged(there: &ConfigMap, wanted: &ConfigMap) -> Option<ConfigMap> {
    let owner = |map: &ConfigMap| map.metadata.owner_references.iter().flatten().next().map(|owner| owner.uid.clone());
    let mut after = wanted.clone();
    if owner(there) == owner(wanted) {
        let mut data = there.data.clone().unwrap_or_default();
        let wanted = wanted.data.clone().unwrap_or_default();
        if data.contains_key(LEGACY_VISIBLE_DEVICES)
            && let Some(devices) = wanted.get(VISIBLE_DEVICES)
        {
            data.insert(LEGACY_VISIBLE_DEVICES.to_owned(), devices.clone());
        }
        data.extend(wanted);
        if there.data.as_ref() == Some(&data) {
            return None;
        }
        after.data = Some(data);
    }
    after.metadata.resource_version.clone_from(&there.metadata.resource_version);
    Some(after)
}

/// What a reservation pod is made of.
#[derive(Clone, Copy, Debug)]
pub struct Reservation<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// The node whose card it holds.
    pub node: &'a str,
    /// The group it stands for.
    pub group: &'a str,
    /// Label `app`, by which schedulers know it.
    pub app_label: &'a str,
    /// Image.
    pub image: &'a str,
    /// Service account.
    pub service_account: &'a str,
    /// Runtime class; empty: none.
    pub runtime_class: &'a str,
    /// Tolerations of the pod that needs it.
    pub tolerations: &'a [Toleration],
    /// The node only plays that it has GPUs: the pod just sleeps.
    pub fake: bool,
}

/// A pod that holds one whole GPU of a node (wire-contract.md §3.5).
#[must_use]
pub fn reservation_pod(of: Reservation<'_>) -> Pod {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let own = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { api_version: None, field_path: path.to_owned() }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    let one_gpu = BTreeMap::from([(gpu::WHOLE[0].to_owned(), Quantity("1".to_owned()))]);
    let container = Container {
        name: "resource-reservation".to_owned(),
        image: if of.fake { text("ubuntu") } else { text(of.image) },
        image_pull_policy: text("IfNotPresent"),
        args: of.fake.then(|| vec!["sleep".to_owned(), "infinity".to_owned()]),
        env: Some(vec![own("POD_NAME", "metadata.name"), own("POD_NAMESPACE", "metadata.namespace")]),
        resources: Some(ResourceRequirements {
            requests: Some(one_gpu.clone()),
            limits: Some(one_gpu),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: text(of.name),
            namespace: text(of.namespace),
            labels: Some([("app", of.app_label), (GROUP_LABEL, of.group)].map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
            annotations: Some([(NO_DISRUPTION.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            // No scheduler is asked: the card is already spoken for.
            node_name: text(of.node),
            service_account_name: text(of.service_account),
            runtime_class_name: text(of.runtime_class),
            tolerations: Some(of.tolerations.to_vec()).filter(|all| !all.is_empty()),
            containers: vec![container],
            ..PodSpec::default()
        }),
        status: None,
    }
}

fn reference(pod: &Pod) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        controller: None,
        block_owner_deletion: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: Value, env: Value) -> Pod {
        let spec = json!({"initContainers": [{"name": "first"}], "containers": [{"name": "main", "env": env}, {"name": "side"}]});
        let metadata = json!({"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a pod")
    }

    fn by_key() -> Value {
        json!([{"name": VISIBLE_DEVICES, "valueFrom": {"configMapKeyRef": {"name": "x-0", "key": VISIBLE_DEVICES}}}])
    }

    fn data(map: &ConfigMap) -> Value {
        json!(map.data)
    }

    #[test]
    fn devices_go_where_the_container_looks() {
        let devices = ["GPU-a".to_owned(), "GPU-b".to_owned()];
        let prepared = pod(json!({CONFIG_MAP_PREFIX: "x"}), by_key());
        let [capabilities, direct] = config_maps(&prepared, &wiring(&prepared).expect("prepared"), &devices, "0.50", false);
        let expected = json!({VISIBLE_DEVICES: "GPU-a,GPU-b", "GPU_PORTION": "0.50", "RUNAI_NUM_OF_GPUS": "0.50"});
        assert_eq!((data(&capabilities), data(&direct)), (expected, json!({})));
        assert_eq!(capabilities.metadata.name.as_deref(), Some("x-0"));
        assert_eq!(direct.metadata.name.as_deref(), Some("x-0-evar"));
        assert_eq!(direct.metadata.owner_references.as_ref().map(|owners| owners[0].uid.as_str()), Some("u"));

        let elsewhere = pod(json!({CONFIG_MAP_PREFIX: "x", CONTAINER_NAME: "side"}), by_key());
        let [capabilities, direct] = config_maps(&elsewhere, &wiring(&elsewhere).expect("prepared"), &devices[..1], "0.25", true);
        assert_eq!(data(&direct), json!({VISIBLE_DEVICES: "k8s.device-plugin.nvidia.com/gpu=GPU-a"}));
        assert_eq!(data(&capabilities), json!({"GPU_PORTION": "0.25", "RUNAI_NUM_OF_GPUS": "0.25"}));
        assert_eq!(capabilities.metadata.name.as_deref(), Some("x-1"));

        let init = wiring(&pod(json!({CONFIG_MAP_PREFIX: "x", CONTAINER_NAME: "first"}), json!([]))).expect("prepared");
        assert_eq!(init.capabilities, "x-i0");
    }

    #[test]
    fn a_pod_that_was_not_prepared_is_refused() {
        let error = wiring(&pod(json!({}), json!([]))).expect_err("no annotation");
        assert!(error.contains(CONFIG_MAP_PREFIX) && error.contains("admission"), "{error}");
        let error = wiring(&pod(json!({CONFIG_MAP_PREFIX: "x", CONTAINER_NAME: "nobody"}), json!([]))).expect_err("no container");
        assert!(error.contains(r#""nobody""#), "{error}");
    }

    #[test]
    fn config_maps_that_are_there_are_completed_or_replaced() {
        let prepared = pod(json!({CONFIG_MAP_PREFIX: "x"}), by_key());
        let wired = wiring(&prepared).expect("prepared");
        let [wanted, _] = config_maps(&prepared, &wired, &["GPU-a".to_owned()], "0.50", false);
        let mut there = wanted.clone();
        there.metadata.resource_version = Some("3".to_owned());
        assert_eq!(merged(&there, &wanted), None);
        there.data = serde_json::from_value(json!({"RUNAI-VISIBLE-DEVICES": "old", "other": "kept"})).expect("data");
        let after = merged(&there, &wanted).expect("a change");
        assert_eq!(
            (data(&after)["RUNAI-VISIBLE-DEVICES"].as_str(), data(&after)["other"].as_str()),
            (Some("GPU-a"), Some("kept"))
        );
        assert_eq!(after.metadata.resource_version.as_deref(), Some("3"));
        there.metadata.owner_references.as_mut().expect("owners")[0].uid = "another".to_owned();
        assert_eq!(data(&merged(&there, &wanted).expect("a change")), data(&wanted));
    }

    #[test]
    fn labels_follow_the_groups() {
        let with =
            |labels: Value| ObjectMeta { labels: serde_json::from_value(labels).expect("labels"), ..ObjectMeta::default() };
        let changes = |labels: Value, groups: &[&str]| {
            let groups: Vec<_> = groups.iter().map(|&group| group.to_owned()).collect();
            Value::Object(label_changes(&with(labels), &groups))
        };
        assert_eq!(changes(json!({"a": "b"}), &["g"]), json!({GROUP_LABEL: "g"}));
        assert_eq!(changes(json!({GROUP_LABEL: "g"}), &["g"]), json!({}));
        let both = json!({"runai-gpu-group/g": "g", "runai-gpu-group/h": "h"});
        assert_eq!(changes(json!({}), &["g", "h"]), both);
        let cleared = json!({"runai-gpu-group/g": null, "runai-gpu-group/h": null});
        assert_eq!(changes(both.clone(), &[]), cleared);
        assert_eq!(
            changes(json!({"runai-gpu-group/g": "g", "runai-gpu-groups": "x"}), &["h"]),
            json!({"runai-gpu-group/g": null, GROUP_LABEL: "h"})
        );
    }

    #[test]
    fn a_reservation_holds_one_gpu_of_its_node() {
        let tolerations = [Toleration { key: Some("gpu".to_owned()), ..Toleration::default() }];
        let of = Reservation {
            name: "r",
            namespace: "ns",
            node: "n",
            group: "g",
            app_label: "app",
            image: "i",
            service_account: "sa",
            runtime_class: "",
            tolerations: &tolerations,
            fake: false,
        };
        let made = json!(reservation_pod(of));
        assert_eq!(made["spec"]["nodeName"], "n");
        assert_eq!(made["metadata"]["labels"], json!({"app": "app", GROUP_LABEL: "g"}));
        assert_eq!(made["spec"]["containers"][0]["resources"]["limits"], json!({"nvidia.com/gpu": "1"}));
        assert_eq!(made["spec"]["tolerations"], json!([{"key": "gpu"}]));
        assert_eq!(made["spec"].get("runtimeClassName"), None);
        let fake = json!(reservation_pod(Reservation { fake: true, ..of }));
        assert_eq!(fake["spec"]["containers"][0]["args"], json!(["sleep", "infinity"]));
    }
}
