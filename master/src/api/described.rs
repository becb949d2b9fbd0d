//! Schemas of what requests have that no type says: values of several kinds, and what a kind of request needs or lets be.

use schemars::transform::Transform;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::bounds::{
    ANY_TOKENS, BIAS, BIASES, FORMATS, ID_DIGITS, INPUTS, PROMPTS, STOP, STOPS, WORD,
};
use super::extent::{Length, Number, Word};

/// An object has these fields, whatever their types say.
pub(super) struct Needs(pub(super) &'static [&'static str]);

/// An object may be without these fields, and a list in them without anything.
pub(super) struct Lets(pub(super) &'static [&'static str]);

/// An object has at least one of these fields.
pub(super) struct NeedsOne(pub(super) &'static [&'static str]);

/// These fields are another request's.
pub(super) struct Lacks(pub(super) &'static [&'static str]);

/// A number is any but this one.
pub(super) struct Except(pub(super) i64);

/// Another field has the same schema as one: an older name for it.
pub(super) struct Also(pub(super) &'static str, pub(super) &'static str);

impl Transform for Needs {
    fn transform(&mut self, schema: &mut Schema) {
        let fields = schema.ensure_object();
        let needed = fields.entry("required").or_insert_with(|| json!([]));
        needed
            .as_array_mut()
            .into_iter()
            .for_each(|it| it.extend(self.0.iter().map(|it| json!(it))));
    }
}

impl Transform for Lets {
    fn transform(&mut self, schema: &mut Schema) {
        if let Some(needed) = schema.get_mut("required").and_then(Value::as_array_mut) {
            needed.retain(|name| !self.0.iter().any(|it| name == it));
            if needed.is_empty() {
                schema.remove("required");
            }
        }
        for name in self.0 {
            if let Some(field) = schema.pointer_mut(&format!("/properties/{name}")) {
                field.as_object_mut().into_iter().for_each(|it| drop(it.remove("minItems")));
            }
        }
    }
}

impl Transform for NeedsOne {
    fn transform(&mut self, schema: &mut Schema) {
        let all: Vec<Value> = self.0.iter().map(|name| json!({ "required": [name] })).collect();
        schema.insert("anyOf".to_owned(), json!(all));
    }
}

impl Transform for Lacks {
    fn transform(&mut self, schema: &mut Schema) {
        if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            self.0.iter().for_each(|name| drop(fields.remove(*name)));
        }
    }
}

impl Transform for Except {
    fn transform(&mut self, schema: &mut Schema) {
        schema.insert("not".to_owned(), json!({ "const": self.0 }));
    }
}

impl Transform for Also {
    fn transform(&mut self, schema: &mut Schema) {
        let Self(name, older) = *self;
        if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            let same = fields.get(name).cloned().unwrap_or_default();
            fields.insert(older.to_owned(), same);
        }
    }
}

/// Stop strings: one, or several.
pub(super) fn stops(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [stop(), listed_stops(), { "type": "null" }] })
}

/// Stop strings in a list.
pub(super) fn stop_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [listed_stops(), { "type": "null" }] })
}

fn stop() -> Value {
    json!({ "type": "string", "maxLength": STOP.most })
}

fn listed_stops() -> Value {
    json!({ "type": "array", "items": stop(), "maxItems": STOPS.most })
}

/// By how much tokens are preferred, by their ids.
pub(super) fn bias(_: &mut SchemaGenerator) -> Schema {
    let by = json!({ "type": "number", "minimum": BIAS.low.told(), "maximum": BIAS.high.told() });
    json_schema!({
        "type": ["object", "null"],
        "propertyNames": { "pattern": format!("^[0-9]{{{},{}}}$", ID_DIGITS.least, ID_DIGITS.most) },
        "additionalProperties": by,
        "maxProperties": BIASES.most,
    })
}

/// What a template is told by name.
pub(super) fn told(_: &mut SchemaGenerator) -> Schema {
    let Word(most) = WORD;
    let word = json!({ "type": "string", "pattern": Word::PATTERN, "maxLength": most });
    let one = json!({ "anyOf": [{ "type": ["boolean", "number", "null"] }, word] });
    json_schema!({ "type": ["object", "null"], "additionalProperties": one })
}

/// Which tool is called, in OpenAI's chats.
pub(super) fn choice(_: &mut SchemaGenerator) -> Schema {
    chosen(json!({ "function": named() }), "function")
}

/// The same in its Responses.
pub(super) fn flat_choice(_: &mut SchemaGenerator) -> Schema {
    chosen(named()["properties"].take(), "name")
}

fn chosen(fields: Value, needed: &str) -> Schema {
    json_schema!({ "anyOf": [
        { "type": "string", "enum": ["none", "auto", "required"] },
        { "type": "object", "properties": fields, "required": [needed] },
        { "type": "null" },
    ] })
}

fn named() -> Value {
    json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] })
}

/// Calls that an assistant made.
pub(super) fn calls(_: &mut SchemaGenerator) -> Schema {
    let function =
        json!({ "type": "object", "properties": { "arguments": {} }, "required": ["arguments"] });
    let call = json!({ "type": "object", "properties": { "function": function }, "required": ["function"] });
    json_schema!({ "type": ["array", "null"], "items": call })
}

/// What an answer is held to, in Anthropic's words.
pub(super) fn format(_: &mut SchemaGenerator) -> Schema {
    let kind = json!({ "type": "string", "enum": FORMATS.0 });
    json_schema!({ "type": ["object", "null"], "properties": { "type": kind }, "required": ["type"] })
}

/// The same in Ollama's.
pub(super) fn ollama_format(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [
        { "type": "string", "enum": ["", "json"] },
        { "type": "object" },
        { "type": "null" },
    ] })
}

/// Prompts as text or as token ids, so many of them.
pub(super) fn prompts(count: Length) -> Schema {
    let id = json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX });
    let ids = json!({ "type": "array", "items": id, "minItems": count.least });
    let some_ids = json!({ "type": "array", "items": id, "minItems": 1 });
    let text = json!({ "type": "string" });
    let listed = |items: &Value| json!({ "type": "array", "items": items, "minItems": count.least, "maxItems": count.most });
    json_schema!({ "anyOf": [text, ids, listed(&text), listed(&some_ids)] })
}

/// Those of a completion.
pub(super) fn completion_prompts(_: &mut SchemaGenerator) -> Schema {
    prompts(PROMPTS)
}

/// Those of which vectors are made.
pub(super) fn inputs(_: &mut SchemaGenerator) -> Schema {
    prompts(INPUTS)
}

/// There may be no new tokens: beside `echo`.
pub(super) fn any_tokens(schema: &mut Schema) {
    for name in ["max_tokens", "max_completion_tokens"] {
        let minimum = schema.pointer_mut(&format!("/properties/{name}/minimum"));
        minimum.into_iter().for_each(|minimum| *minimum = json!(ANY_TOKENS.low));
    }
}
