//! What JSON looks like, in few words, as a JSON schema.
//!
//! A shape is JSON itself: an object has these names, those with `?` at the end only sometimes, and `*` stands for any; a list
//! has any number of its only value; and a word says what a value is: `text`, `whole`, `number`, `flag` or `any`, with `?` at the
//! end also `null`, or after `=` this text.

use serde_json::{Map, Value, json};

/// The schema of a shape.
pub(super) fn schema(shape: &Value) -> Value {
    match shape {
        Value::Object(fields) => object(fields),
        Value::Array(items) => json!({ "type": "array", "items": items.first().map(schema) }),
        Value::String(word) => of_word(word),
        other => unreachable!("{other} is in no shape of ours"),
    }
}

fn object(fields: &Map<String, Value>) -> Value {
    if let Some(every) = fields.get("*") {
        return json!({ "type": "object", "additionalProperties": schema(every) });
    }
    let plain = |name: &str| name.trim_end_matches('?').to_owned();
    let properties: Map<String, Value> =
        fields.iter().map(|(name, shape)| (plain(name), schema(shape))).collect();
    let required: Vec<&String> = fields.keys().filter(|name| !name.ends_with('?')).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

fn of_word(word: &str) -> Value {
    if let Some(text) = word.strip_prefix('=') {
        return json!({ "const": text });
    }
    let kind = match word.trim_end_matches('?') {
        "text" => "string",
        "whole" => "integer",
        "number" => "number",
        "flag" => "boolean",
        "any" => return json!({}),
        other => unreachable!("{other:?} is no word of shapes"),
    };
    match word.ends_with('?') {
        true => json!({ "type": [kind, "null"] }),
        false => json!({ "type": kind }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_a_schema() {
        let shape = json!({ "id": "text", "at?": "whole?", "all": [{ "*": "number" }], "is": "=it", "more": "any" });
        let expected = json!({
            "type": "object",
            "properties": {
                "id": { "type": "string" },
                "at": { "type": ["integer", "null"] },
                "all": { "type": "array", "items": { "type": "object", "additionalProperties": { "type": "number" } } },
                "is": { "const": "it" },
                "more": {},
            },
            "required": ["id", "all", "is", "more"],
        });
        assert_eq!(schema(&shape), expected);
    }
}
