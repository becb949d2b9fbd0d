//! Calls of tools: what the model is told of them, and calls found in what it writes.
//!
//! Two styles are read. ChatML models (Hermes, Qwen) write `<tool_call>{"name": …, "arguments": …}</tool_call>`
//! after or instead of text; Llama 3 answers with `{"name": …, "parameters": …}` alone.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Deserializer, Map, Value, json};

use super::error::ApiError;
use super::wire::Tool;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
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

impl ToolCall {
    /// The call that `value` is, if it is one of these tools.
    fn of(value: &Value, tools: &[String]) -> Option<Self> {
        let name = value.get("name")?.as_str()?.to_owned();
        tools.contains(&name).then_some(())?;
        let arguments = value.get("arguments").or_else(|| value.get("parameters"))?;
        let arguments = match arguments {
            Value::String(text) => text.clone(),
            arguments => arguments.to_string(),
        };
        let id = format!("call_{}", cake_identity::random_token());
        Some(Self { id, kind: "function", function: Called { name, arguments } })
    }
}

/// Finds calls in text that comes piece by piece.
#[derive(Clone, Debug)]
pub(super) struct ToolScan {
    /// Names of what may be called.
    tools: Arc<[String]>,
    /// What may be, or is, part of a call.
    held: String,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing but white space came.
    #[default]
    Beginning,
    /// Text, in which a call may begin.
    Text,
    /// A call, or what looks like one so far.
    Call,
}

impl ToolScan {
    /// Looks for calls of tools of these names.
    pub(super) fn new(tools: Arc<[String]>) -> Self {
        Self { tools, held: String::new(), state: State::default() }
    }

    /// Takes more text and gives what is no part of a call for certain.
    pub(super) fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        if self.state == State::Beginning {
            match self.held.trim_start().chars().next() {
                None => return String::new(),
                Some('{') => self.state = State::Call,
                Some(_) => self.state = State::Text,
            }
        }
        if self.state == State::Call {
            return String::new();
        }
        let end = match self.held.find(OPEN) {
            Some(at) => {
                self.state = State::Call;
                at
            }
            // Perhaps its beginning is here already.
            None => {
                let begun = (1..OPEN.len()).rev().find(|len| self.held.ends_with(&OPEN[..*len]));
                self.held.len() - begun.unwrap_or(0)
            }
        };
        let rest = self.held.split_off(end);
        std::mem::replace(&mut self.held, rest)
    }

    /// Ends the text: what was held back and is no call after all, and the calls.
    pub(super) fn finish(self) -> (String, Vec<ToolCall>) {
        match self.state {
            State::Call => calls(&self.held, &self.tools),
            State::Beginning | State::Text => (self.held, Vec::new()),
        }
    }
}

/// The calls that `text` begins with, and what follows them; all of it if there are none.
fn calls(text: &str, tools: &[String]) -> (String, Vec<ToolCall>) {
    let (mut rest, mut calls) = (text, Vec::new());
    loop {
        let here = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
        if let Some(after) = here.strip_prefix(OPEN).or_else(|| here.strip_prefix(CLOSE)) {
            rest = after;
            continue;
        }
        let mut values = Deserializer::from_str(here).into_iter::<Value>();
        let value = values.next().and_then(Result::ok);
        let Some(call) = value.and_then(|value| ToolCall::of(&value, tools)) else {
            let left = if calls.is_empty() { text } else { here };
            return (left.to_owned(), calls);
        };
        calls.push(call);
        rest = &here[values.byte_offset()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out for text in pieces of so many characters.
    fn scan(text: &str, size: usize) -> (String, Vec<(String, String)>) {
        let mut scan = ToolScan::new(["f".to_owned(), "g".to_owned()].into());
        let characters: Vec<char> = text.chars().collect();
        let mut shown = String::new();
        for piece in characters.chunks(size) {
            shown += &scan.push(&piece.iter().collect::<String>());
        }
        let (rest, calls) = scan.finish();
        let calls = calls.into_iter().map(|call| (call.function.name, call.function.arguments));
        (shown + &rest, calls.collect())
    }

    #[test]
    fn calls_are_found_in_both_styles_however_text_is_cut() {
        let call = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
        for size in [1, 3, 7, 1000] {
            let hermes = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\
                \n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
            let (text, calls) = scan(hermes, size);
            assert_eq!(text, "Let me see.\n");
            assert_eq!(calls, [call("f", "{\"a\":1}"), call("g", "{}")]);
            let llama = " {\"name\": \"f\", \"parameters\": {\"a\": \"};\"}}";
            assert_eq!(scan(llama, size).1, [call("f", "{\"a\":\"};\"}")]);
            let more = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\nI will see.";
            assert_eq!(scan(more, size), ("I will see.".to_owned(), vec![call("f", "{}")]));
        }
    }

    #[test]
    fn what_is_no_call_is_text() {
        for text in [
            "{\"a\": 1}",
            "{ not JSON",
            "1 < 2 <tool",
            "<tool_call>none",
            "",
            "  ",
            "a {\"name\": 1}",
            "{\"name\": \"h\", \"parameters\": {}}",
        ] {
            for size in [1, 4, 100] {
                assert_eq!(scan(text, size), (text.to_owned(), vec![]), "{text:?}");
            }
        }
    }

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
}
