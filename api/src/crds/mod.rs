//! The six custom resources of the wire contract (wire-contract.md §1), as types; their CRDs are generated from them.
//!
//! Every field is optional in Rust as it is on the wire: absent, null and empty mean the same to readers.

pub mod bindrequest;
pub mod config;
pub mod podgroup;
pub mod queue;
pub mod shard;
pub mod topology;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResourceExt as _;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Amounts by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

/// The schema of a [`ResourceList`] as Kubernetes writes it: each value an integer or a quantity text.
fn resource_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "nullable": true, "additionalProperties": quantity_schema()})
}

/// The schema of one quantity.
fn quantity(_: &mut SchemaGenerator) -> Schema {
    quantity_schema()
}

fn quantity_schema() -> Schema {
    json_schema!({
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": concat!(
            r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))",
            r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        ),
        "x-kubernetes-int-or-string": true,
    })
}

/// All six CRDs. `spec` is required by Topology only, where kube's derive would require it everywhere.
#[must_use]
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        queue::Queue::crd(),
        podgroup::PodGroup::crd(),
        bindrequest::BindRequest::crd(),
        shard::SchedulingShard::crd(),
        config::Config::crd(),
    ];
    for version in all.iter_mut().flat_map(|crd| &mut crd.spec.versions) {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            schema.required = None;
        }
    }
    all.push(topology::Topology::crd());
    all
}

/// What readers take of an object of this project: no kind needed, `spec` may be absent or null.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Object<S, T = serde::de::IgnoredAny>
where
    S: Default,
{
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "object_or_default", bound(deserialize = "S: Deserialize<'de>"))]
    pub(crate) spec: S,
    #[serde(default = "Option::default", deserialize_with = "object", bound(deserialize = "T: Deserialize<'de>"))]
    pub(crate) status: Option<T>,
}

fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn object_or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(object(from)?.unwrap_or_default())
}

/// An object or null; not a list, which derived readers would take field by field.
fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    struct Keyed<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Keyed<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_unit<E>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }

    from.deserialize_any(Keyed(PhantomData))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn schema_of(plural: &str) -> (Value, Value) {
        let crd = definitions().into_iter().find(|crd| crd.spec.names.plural == plural).expect("a CRD of that name");
        let crd = serde_json::to_value(crd).expect("JSON");
        let schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clone();
        (crd, schema)
    }

    #[test]
    fn identities_are_the_contracts() {
        for (plural, group, version, scope, short, status) in [
            ("queues", "scheduling.run.ai", "v2", "Cluster", Value::Null, true),
            ("podgroups", "scheduling.run.ai", "v2alpha2", "Namespaced", json!(["pg"]), true),
            ("bindrequests", "scheduling.run.ai", "v1alpha2", "Namespaced", Value::Null, true),
            ("topologies", "kai.scheduler", "v1alpha1", "Cluster", Value::Null, false),
            ("schedulingshards", "kai.scheduler", "v1", "Cluster", Value::Null, true),
            ("configs", "kai.scheduler", "v1", "Cluster", Value::Null, true),
        ] {
            let (crd, _) = schema_of(plural);
            let one = &crd["spec"]["versions"][0];
            assert_eq!(crd["metadata"]["name"], format!("{plural}.{group}"));
            assert_eq!((&crd["spec"]["group"], &crd["spec"]["scope"]), (&json!(group), &json!(scope)), "{plural}");
            assert_eq!((&one["name"], &one["served"], &one["storage"]), (&json!(version), &json!(true), &json!(true)));
            let names = crd["spec"]["names"]["shortNames"].clone();
            assert!(names == short || (short.is_null() && names == json!([])), "{plural}: {names}");
            assert_eq!(one["subresources"].get("status").is_some(), status, "{plural}");
            let required = &one["schema"]["openAPIV3Schema"]["required"];
            assert_eq!(required.as_array().is_some_and(|r| r.contains(&json!("spec"))), plural == "topologies", "{plural}");
        }
    }

    #[test]
    fn printer_columns_of_queues() {
        let (crd, _) = schema_of("queues");
        let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().expect("columns").clone();
        let paths: Vec<_> = columns.iter().map(|c| (c["name"].as_str(), c["jsonPath"].as_str(), c["type"].as_str())).collect();
        let column = |name, path| (Some(name), Some(path), Some("string"));
        let expected = [
            column("Priority", ".spec.priority"),
            column("Parent", ".spec.parentQueue"),
            column("Children", ".status.childQueues"),
            column("DisplayName", ".spec.displayName"),
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn validation_of_podgroups_and_topologies() {
        let (_, schema) = schema_of("podgroups");
        let spec = &schema["spec"]["properties"];
        assert_eq!((&spec["minMember"]["minimum"], &spec["minSubGroup"]["minimum"]), (&json!(0.0), &json!(0.0)), "{spec}");
        let group = &spec["subGroups"]["items"]["properties"];
        assert_eq!(group["name"]["pattern"], "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$");
        assert_eq!(group["parent"]["pattern"], "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$");
        assert_eq!(group["name"]["minLength"], 1);
        assert_eq!(spec["subGroups"]["items"]["required"], json!(["name"]));
        let text = spec["preemptibility"].to_string();
        assert!(text.contains("non-preemptible"), "{text}");
        let (_, schema) = schema_of("topologies");
        let levels = &schema["spec"]["properties"]["levels"];
        assert_eq!((&levels["minItems"], &levels["maxItems"]), (&json!(1), &json!(16)));
        assert_eq!(levels["items"]["properties"]["nodeLabel"]["maxLength"], 316);
        assert_eq!(levels["x-kubernetes-validations"].as_array().map(Vec::len), Some(3), "{levels}");
        assert_eq!(levels["x-kubernetes-list-type"], "atomic");
    }

    #[test]
    fn resource_lists_take_numbers_and_texts() {
        let (_, schema) = schema_of("queues");
        let list = &schema["status"]["properties"]["allocated"];
        assert_eq!(list["additionalProperties"]["x-kubernetes-int-or-string"], true, "{list}");
    }
}
