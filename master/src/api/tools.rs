//! Calls of tools: whether the model may make them, or must, and how clients get them.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::wire::Tool;
use crate::grammar::close;
use crate::reply::Call;

/// Where a schema keeps what it defines.
const DEFINITIONS: &str = "$defs";

/// Whether the model may call tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolChoice {
    /// There are none, or it may not.
    None,
    /// It may.
    Auto,
    /// It must, one of these.
    Required(Vec<String>),
}

impl ToolChoice {
    /// What `tool_choice` says beside these tools.
    pub(super) fn new(tools: &[Tool], choice: Option<&Value>) -> Result<Self, ApiError> {
        let expected = "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}";
        let refused = |found: &Value| ApiError::parameter("tool_choice", found, expected);
        let names = || tools.iter().map(|tool| tool.function.name.clone()).collect();
        match choice {
            None | Some(Value::Null) if tools.is_empty() => Ok(Self::None),
            None | Some(Value::Null) => Ok(Self::Auto),
            Some(Value::String(word)) => match word.as_str() {
                "none" => Ok(Self::None),
                "auto" if tools.is_empty() => Ok(Self::None),
                "auto" => Ok(Self::Auto),
                "required" if !tools.is_empty() => Ok(Self::Required(names())),
                _ => Err(refused(&json!(word))),
            },
            Some(found) => match found["function"]["name"].as_str() {
                Some(name) if tools.iter().any(|tool| tool.function.name == name) => {
                    Ok(Self::Required(vec![name.to_owned()]))
                }
                _ => Err(refused(found)),
            },
        }
    }

    /// The schema that holds the model to a call, if it must make one.
    pub(super) fn schema(&self, tools: &[Tool]) -> Option<Value> {
        let Self::Required(names) = self else { return None };
        let wanted = tools.iter().filter(|tool| names.contains(&tool.function.name));
        let mut definitions = Map::new();
        let calls: Vec<Value> = wanted
            .enumerate()
            .map(|(index, tool)| {
                let any = || json!({ "type": "object" });
                let mut arguments = tool.function.parameters.clone().unwrap_or_else(any);
                let place = format!("tool{index}");
                close(&mut arguments); // By itself: what another tool joins says nothing of this one.
                move_to(&mut arguments, &place);
                let reference = json!({ "$ref": format!("#/{DEFINITIONS}/{place}") });
                definitions.insert(place, arguments);
                json!({
                    "type": "object",
                    "properties": { "name": { "const": tool.function.name }, "arguments": reference },
                    "required": ["name", "arguments"],
                    "additionalProperties": false,
                })
            })
            .collect();
        Some(json!({ "anyOf": calls, DEFINITIONS: definitions }))
    }
}

/// Makes the references of a schema within itself hold where it is one definition of another schema.
fn move_to(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str().filter(|_| key == "$ref").and_then(|to| to.strip_prefix('#')) {
                    Some(within) => *value = json!(format!("#/{DEFINITIONS}/{place}{within}")),
                    None => move_to(value, place),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| move_to(value, place)),
        _ => {}
    }
}

/// One call, as clients get it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ToolCall {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) function: Called,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Called {
    pub(super) name: String,
    /// JSON, as text.
    pub(super) arguments: String,
}

impl From<Call> for ToolCall {
    fn from(call: Call) -> Self {
        let id = format!("call_{}", cake_identity::random_token());
        let Call { name, arguments } = call;
        Self { id, kind: "function", function: Called { name, arguments } }
    }
}

/// The first calls by their names and arguments, for APIs that have these as objects; what is none, as it was cut off, is text.
pub(super) fn told(calls: Vec<Call>, most: usize) -> (String, Vec<(String, Value)>) {
    let (mut text, mut told) = (String::new(), Vec::new());
    for Call { name, arguments } in calls.into_iter().take(most) {
        match serde_json::from_str(&arguments) {
            Ok(object @ Value::Object(_)) => told.push((name, object)),
            _ if arguments.is_empty() => told.push((name, json!({}))),
            _ => text.push_str(&arguments),
        }
    }
    (text, told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_that_moves_refers_to_itself_as_before() {
        let mut schema = json!({
            "properties": {
                "a": { "items": [{ "$ref": "#/$defs/A" }] }, "b": { "$ref": "#" }, "$ref": { "const": "#" },
            },
            "$defs": { "A": { "$ref": "https://elsewhere" } },
        });
        move_to(&mut schema, "tool3");
        assert_eq!(schema["properties"]["a"]["items"][0]["$ref"], "#/$defs/tool3/$defs/A");
        assert_eq!(schema["properties"]["b"]["$ref"], "#/$defs/tool3");
        assert_eq!(schema["properties"]["$ref"]["const"], "#");
        assert_eq!(schema["$defs"]["A"]["$ref"], "https://elsewhere");
    }

    #[test]
    fn what_one_tool_joins_leaves_the_others_closed() {
        let tool = |name: &str, place: Value| -> Tool {
            let parameters = json!({ "type": "object", "properties": { "place": place } });
            let function = json!({ "name": name, "parameters": parameters });
            serde_json::from_value(json!({ "type": "function", "function": function })).unwrap()
        };
        let (plain, joins) = (json!({ "type": "string" }), json!({ "oneOf": [{}, {}] }));
        let tools = [tool("plain", plain), tool("joins", joins)];
        let all = ToolChoice::Required(vec!["plain".to_owned(), "joins".to_owned()]);
        let schema = all.schema(&tools).unwrap();
        let others = |tool: &str| schema[DEFINITIONS][tool]["additionalProperties"].clone();
        assert_eq!((others("tool0"), others("tool1")), (Value::Bool(false), Value::Null));
    }

    #[test]
    fn a_choice_names_what_there_is() {
        let tool: Tool = serde_json::from_value(json!({
            "type": "function", "function": { "name": "f", "description": "does" },
        }))
        .unwrap();
        let tools = [tool];
        let choose = |choice: Value| ToolChoice::new(&tools, Some(&choice));
        assert_eq!(ToolChoice::new(&tools, None).unwrap(), ToolChoice::Auto);
        assert_eq!(ToolChoice::new(&[], None).unwrap(), ToolChoice::None);
        assert_eq!(choose(json!("none")).unwrap(), ToolChoice::None);
        let required = ToolChoice::Required(vec!["f".to_owned()]);
        assert_eq!(choose(json!("required")).unwrap(), required);
        let named = json!({ "type": "function", "function": { "name": "f" } });
        assert_eq!(choose(named).unwrap(), required);
        assert!(choose(json!({ "function": { "name": "g" } })).is_err());
        assert!(choose(json!("sometimes")).is_err() && choose(json!(3)).is_err());
        assert!(ToolChoice::new(&[], Some(&json!("required"))).is_err());
    }

    #[test]
    fn arguments_are_an_object_and_what_was_cut_off_is_text() {
        let call = |arguments: &str| Call { name: "f".into(), arguments: arguments.into() };
        let calls = [r#"{"a": [1]}"#, "[1]", "", r#"{"path": "/a"#, "{}"].map(call);
        let (text, told) = told(calls.into(), 4);
        assert_eq!(text, r#"[1]{"path": "/a"#);
        assert_eq!(told, [("f".to_owned(), json!({ "a": [1] })), ("f".to_owned(), json!({}))]);
    }
}
