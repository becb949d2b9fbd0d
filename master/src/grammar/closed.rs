//! Objects of which a schema lists the properties, and says nothing of others, get no others.
//!
//! JSON Schema lets them have any. Programs list what they read, and a small model that may go on with names of its own
//! does so until its tokens are spent. What keeps to the closed schema keeps to the schema.

use serde_json::{Map, Value};

/// Keywords that have schemas by names, in a list, or one.
const NAMED: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];
const LISTED: [&str; 3] = ["anyOf", "items", "prefixItems"];
const SINGLE: [&str; 3] = ["additionalItems", "additionalProperties", "items"];
/// Beside `properties`, these say something of other properties, or want more than are listed.
const SAYS_MORE: [&str; 4] =
    ["additionalProperties", "minProperties", "patternProperties", "unevaluatedProperties"];

/// Closes the objects of a schema that is within bounds, unless it joins schemas: to each of those the properties of the
/// others are further ones.
pub fn close(schema: &mut Value) {
    let mut is_joined = false;
    visit(schema, &mut |fields| is_joined |= joins(fields));
    if is_joined {
        return;
    }
    visit(schema, &mut |fields| {
        if lists_all(fields) {
            fields.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
    });
}

/// Shows the fields of a schema, and of each in it but those that it joins.
fn visit(schema: &mut Value, look: &mut impl FnMut(&mut Map<String, Value>)) {
    let Some(fields) = schema.as_object_mut() else { return };
    look(fields);
    for (keyword, value) in fields {
        let is_one_of = |keywords: &[&str]| keywords.contains(&keyword.as_str());
        match value {
            Value::Object(named) if is_one_of(&NAMED) => {
                named.values_mut().for_each(|schema| visit(schema, look));
            }
            Value::Array(listed) if is_one_of(&LISTED) => {
                listed.iter_mut().for_each(|schema| visit(schema, look));
            }
            single if is_one_of(&SINGLE) => visit(single, look),
            _ => {}
        }
    }
}

fn joins(fields: &Map<String, Value>) -> bool {
    let has = |keyword: &str| fields.contains_key(keyword);
    let refers = has("$ref") || has("anyOf");
    let says = ["properties", "required"].into_iter().chain(SAYS_MORE).any(has);
    has("allOf") || has("oneOf") || has("$ref") && has("anyOf") || refers && says
}

/// Whether what is listed is all that there need be.
fn lists_all(fields: &Map<String, Value>) -> bool {
    let Some(listed) = fields.get("properties").and_then(Value::as_object) else { return false };
    let required = fields.get("required").and_then(Value::as_array);
    let is_listed = |name: &Value| name.as_str().is_some_and(|name| listed.contains_key(name));
    required.is_none_or(|names| names.iter().all(is_listed))
        && !SAYS_MORE.iter().any(|keyword| fields.contains_key(*keyword))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn closed(mut schema: Value) -> Value {
        close(&mut schema);
        schema
    }

    #[test]
    fn objects_get_what_is_listed_wherever_they_are() {
        let open = json!({ "properties": { "a": { "type": "integer" } }, "required": ["a"] });
        let shut = closed(open.clone());
        assert_eq!(shut["additionalProperties"], false);
        assert_eq!(closed(json!({ "properties": {} }))["additionalProperties"], false);
        for around in [
            |inner: Value| json!({ "$defs": { "a": inner }, "$ref": "#/$defs/a" }),
            |inner: Value| json!({ "type": "array", "items": inner }),
            |inner: Value| json!({ "prefixItems": [inner] }),
            |inner: Value| json!({ "anyOf": [{ "type": "null" }, inner] }),
            |inner: Value| json!({ "additionalProperties": inner }),
        ] {
            assert_eq!(closed(around(open.clone())), around(shut.clone()));
        }
    }

    #[test]
    fn what_says_more_or_is_joined_stays_as_it_is() {
        for schema in [
            json!({ "type": "object" }),
            json!({ "properties": { "a": true }, "additionalProperties": true }),
            json!({ "properties": { "a": true }, "required": ["b"] }),
            json!({ "properties": { "a": true }, "minProperties": 2 }),
            json!({ "properties": { "a": true }, "patternProperties": { "^x": true } }),
            json!({ "properties": { "a": true }, "anyOf": [{ "required": ["a"] }] }),
            json!({ "allOf": [{ "properties": { "a": true } }, { "properties": { "b": true } }] }),
            json!({ "items": { "oneOf": [{ "properties": { "a": true } }] } }),
            json!({ "$defs": { "a": { "properties": {} } }, "properties": {}, "$ref": "#/$defs/a" }),
            json!({ "$defs": { "a": { "properties": {} } }, "required": ["b"], "$ref": "#/$defs/a" }),
            json!({ "$ref": "#/$defs/a", "anyOf": [{ "properties": { "x": {} } }] }),
            json!({ "anyOf": [{ "properties": { "path": {} } }], "required": ["kind"] }),
            json!({ "anyOf": [{ "properties": { "a": {} } }], "patternProperties": { "^x": true } }),
            json!({ "enum": [{ "properties": {} }] }),
            json!([]),
        ] {
            assert_eq!(closed(schema.clone()), schema);
        }
    }
}
