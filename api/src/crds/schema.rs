//! What the schemas of Kubernetes' own types need before they can stand in a CRD, where they would otherwise lose what users
//! write.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

/// Longer descriptions are Kubernetes' own. They repeat in every component of a Config, and `kubectl apply` keeps a copy of
/// each object in an annotation, which may not be longer than 256 KiB.
const LONGEST_DESCRIPTION: usize = 120;
/// How Kubernetes' own schema of a quantity begins. It allows texts only, while its server takes numbers as well.
const QUANTITY: &str = "Quantity is a fixed-point representation";

/// Mends a schema and everything in it.
pub(super) fn mend(schema: &mut JSONSchemaProps) {
    if schema.description.as_ref().is_some_and(|text| text.starts_with(QUANTITY)) {
        *schema = quantity();
        return;
    }
    if schema.description.as_ref().is_some_and(|text| text.len() > LONGEST_DESCRIPTION) {
        schema.description = None;
    }
    // An object of which nothing is known may hold anything (`RawExtension`); without this mark the server would empty it.
    let is_object = schema.type_.as_deref() == Some("object");
    if is_object && schema.properties.is_none() && schema.additional_properties.is_none() {
        schema.x_kubernetes_preserve_unknown_fields = Some(true);
    }
    // Where a schema is given by hand, the derive macro does not see that the field may be absent.
    if let (Some(required), Some(fields)) = (&mut schema.required, &schema.properties) {
        required.retain(|name| fields.get(name).is_none_or(|field| field.nullable != Some(true)));
    }
    schema.required.take_if(|required| required.is_empty());
    for inner in schema.properties.iter_mut().flat_map(|fields| fields.values_mut()) {
        mend(inner);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(inner)) = &mut schema.additional_properties {
        mend(inner);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(inner)) => mend(inner),
        Some(JSONSchemaPropsOrArray::Schemas(all)) => all.iter_mut().for_each(mend),
        None => {}
    }
}

fn quantity() -> JSONSchemaProps {
    let of_type = |name: &str| JSONSchemaProps { type_: Some(name.to_owned()), ..JSONSchemaProps::default() };
    JSONSchemaProps {
        any_of: Some(vec![of_type("integer"), of_type("string")]),
        pattern: Some(super::QUANTITY_PATTERN.to_owned()),
        x_kubernetes_int_or_string: Some(true),
        ..JSONSchemaProps::default()
    }
}
