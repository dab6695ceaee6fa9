//! Topology, `kai.scheduler/v1alpha1` (wire-contract.md §1.4): how nodes are near each other, by labels.

use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

const LABEL_KEY: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";

/// Levels from the widest domain to the narrowest.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "kai.scheduler",
    version = "v1alpha1",
    kind = "Topology",
    plural = "topologies",
    derive = "Default",
    derive = "PartialEq",
    doc = "How nodes are near each other"
)]
pub struct TopologySpec {
    /// 1 to 16 levels.
    #[schemars(schema_with = "levels")]
    pub levels: Vec<TopologyLevel>,
}

/// One level.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyLevel {
    /// Nodes with the same value of this label, and of those above, are one domain.
    pub node_label: String,
    /// Another name for the level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
}

/// The schema of the list, with the rules that only CEL can say.
fn levels(_: &mut SchemaGenerator) -> Schema {
    let text = json_schema!({"type": "string", "minLength": 1, "maxLength": 316, "pattern": LABEL_KEY});
    let key = |about: &str| {
        let mut schema = text.clone();
        schema.insert("description".to_owned(), about.into());
        schema
    };
    let last = "!self.exists(level, level.nodeLabel == 'kubernetes.io/hostname') \
                || self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname'";
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 16,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["nodeLabel"],
            "properties": {
                "nodeLabel": key("Nodes with the same value of this label, and of those above, are one domain."),
                "alias": key("Another name for the level."),
            },
        },
        "x-kubernetes-validations": [
            {
                "rule": "self.map(level, level.nodeLabel) == oldSelf.map(level, level.nodeLabel)",
                "message": "the node labels may not change",
            },
            {
                "rule": "self.all(i, size(self.filter(j, j.nodeLabel == i.nodeLabel)) == 1)",
                "message": "node labels must be distinct",
            },
            {"rule": last, "message": "kubernetes.io/hostname may be the last level only"},
        ],
    })
}
