//! Calls of tools, in the grammars that models are trained on.

use serde_json::{Deserializer, Map, Value};

use super::literals;
use super::markers::{ARGUMENT_BEGIN, ARGUMENTS, AROUND_CALLS, CALL_ID, SEPARATOR, TOOLS_PREFIX};

/// A tool that may be called.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Callable {
    pub(crate) name: String,
    /// The schema of its arguments.
    pub(crate) parameters: Option<Value>,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// JSON, as text.
    pub(crate) arguments: String,
}

/// One grammar: the calls at the beginning of a text, and what follows them.
type Grammar = for<'a> fn(&'a str, &[Callable]) -> Option<(Vec<Call>, &'a str)>;

const GRAMMARS: [Grammar; 8] = [json, function, invoke, braced, pythonic, keyed, pairs, named];

/// The calls that `text` begins with, and what follows them; all of it if there are none.
pub(super) fn read(text: &str, tools: &[Callable]) -> (String, Vec<Call>) {
    let (mut rest, mut calls) = (text, Vec::new());
    loop {
        let here = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
        if let Some(after) = AROUND_CALLS.iter().find_map(|around| here.strip_prefix(around)) {
            rest = after;
            continue;
        }
        match GRAMMARS.iter().find_map(|grammar| grammar(here, tools)) {
            Some((found, after)) => {
                calls.extend(found);
                rest = after;
            }
            None => {
                let left = if calls.is_empty() { text } else { here };
                return (left.to_owned(), calls);
            }
        }
    }
}

/// A value at the beginning of `text`, and what follows it.
fn value(text: &str) -> Option<(Value, &str)> {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

fn tool<'a>(name: &str, tools: &'a [Callable]) -> Option<&'a Callable> {
    tools.iter().find(|tool| tool.name == name)
}

/// `{"name": …, "arguments": …}` (Hermes, Qwen), `parameters` in its place (Llama 3), or a list of these (Mistral, and with
/// `tool_name` Cohere).
fn json<'a>(text: &'a str, tools: &[Callable]) -> Option<(Vec<Call>, &'a str)> {
    let (found, rest) = value(text)?;
    let call = |value: &Value| {
        let name = value.get("name").or_else(|| value.get("tool_name"))?;
        let name = tool(name.as_str()?, tools)?.name.clone();
        let arguments = match value.get("arguments").or_else(|| value.get("parameters"))? {
            Value::String(text) => text.clone(),
            arguments => arguments.to_string(),
        };
        Some(Call { name, arguments })
    };
    let calls = match &found {
        Value::Array(items) if !items.is_empty() => items.iter().map(call).collect::<Option<_>>(),
        one => call(one).map(|call| vec![call]),
    };
    Some((calls?, rest))
}

/// `<function=NAME><parameter=KEY>VALUE</parameter>…</function>` (Qwen3-Coder, Qwen3.5, Nemotron, Seed-OSS).
fn function<'a>(text: &'a str, tools: &[Callable]) -> Option<(Vec<Call>, &'a str)> {
    let (name, mut rest) = text.strip_prefix("<function=")?.split_once('>')?;
    let tool = tool(name.trim(), tools)?;
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(rest) = rest.strip_prefix("</function>") {
            return Some((vec![tool.call(arguments)], rest));
        }
        let (key, after) = rest.strip_prefix("<parameter=")?.split_once('>')?;
        let (found, after) = after.split_once("</parameter>")?;
        let found = found.strip_prefix('\n').unwrap_or(found);
        let found = found.strip_suffix('\n').unwrap_or(found);
        arguments.insert(key.to_owned(), tool.typed(key, found));
        rest = after;
    }
}

/// `<invoke name="NAME"><parameter name="KEY">VALUE</parameter>…</invoke>` (MiniMax-M2), and the same with `｜DSML｜` in
/// each tag, where an attribute says whether a value is text (DeepSeek-V3.2).
fn invoke<'a>(text: &'a str, tools: &[Callable]) -> Option<(Vec<Call>, &'a str)> {
    const DSML: &str = "｜DSML｜";
    let inside = text.strip_prefix('<')?;
    let (tag, inside) = match inside.strip_prefix(DSML) {
        Some(inside) => (DSML, inside),
        None => ("", inside),
    };
    let (name, rest) = inside.strip_prefix("invoke name=\"")?.split_once('"')?;
    let (tool, mut rest) = (tool(name, tools)?, rest.strip_prefix('>')?);
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(rest) = rest.strip_prefix(&format!("</{tag}invoke>")) {
            return Some((vec![tool.call(arguments)], rest));
        }
        let parameter = rest.strip_prefix(&format!("<{tag}parameter name=\""))?;
        let (key, after) = parameter.split_once('"')?;
        let (attribute, after) = after.split_once('>')?;
        let (found, after) = after.split_once(&format!("</{tag}parameter>"))?;
        let value = match attribute.trim() {
            "string=\"true\"" => Value::from(found),
            "string=\"false\"" => serde_json::from_str(found).ok()?,
            _ => tool.typed(key, found),
        };
        arguments.insert(key.to_owned(), value);
        rest = after;
    }
}

/// `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…` (GLM-4.5 to 4.7).
fn pairs<'a>(text: &'a str, tools: &[Callable]) -> Option<(Vec<Call>, &'a str)> {
    const END: &str = "</tool_call>";
    let (name, mut rest) = text.split_at(text.find('<')?);
    let tool = tool(name.trim(), tools)?;
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(rest) = rest.strip_prefix(END) {
            return Some((vec![tool.call(arguments)], rest));
        }
        let (key, after) = rest.strip_prefix("<arg_key>")?.split_once("</arg_key>")?;
        let after = after.trim_start().strip_prefix("<arg_value>")?;
        let (found, after) = after.split_once("</arg_value>")?;
        arguments.insert(key.to_owned(), tool.typed(key, found));
        rest = after;
    }
}

/// A name, one of some texts, and arguments as JSON (Mistral, DeepSeek-V3 and R1, Kimi K2).
fn named<'a>(text: &'a str, tools: &[Callable]) -> Option<(Vec<Call>, &'a str)> {
    let (head, rest) = text.split_at(text.find(['[', '<'])?);
    let head = head.trim();
    let (name, arguments) = if let Some(rest) = rest.strip_prefix(CALL_ID) {
        (head, rest.split_once(ARGUMENTS)?.1)
    } else if let Some(rest) = rest.strip_prefix(ARGUMENTS) {
        (head, rest)
    } else if let Some(rest) = rest.strip_prefix(ARGUMENT_BEGIN) {
        let name = head.strip_prefix("functions.").unwrap_or(head);
        (name.split_once(':').map_or(name, |(name, _)| name), rest)
    } else {
        let rest = rest.strip_prefix(SEPARATOR)?;
        match head {
            // The kind of call, then its name, and the arguments as a piece of code.
            "function" => {
                let (name, rest) = rest.split_once('\n')?;
                (name.trim(), rest.trim_start().strip_prefix("```json")?)
            }
            name => (name, rest),
        }
    };
    let name = tool(name, tools)?.name.clone();
    let (found, rest) = value(arguments)?;
    let rest = rest.trim_start().strip_prefix("```").unwrap_or(rest);
    Some((vec![Call { name, arguments: found.to_string() }], rest))
}

/// `call:NAME{KEY:VALUE,…}` (Gemma 4).
fn braced<'a>(text: &'a str, tools: &[Callable]) -> Option<(Vec<Call>, &'a str)> {
    let (name, rest) = text.strip_prefix("call:")?.split_once('{')?;
    let tool = tool(name.trim(), tools)?;
    let (arguments, rest) = literals::members(rest, ':', '}')?;
    Some((vec![tool.call(arguments)], rest))
}

/// `[NAME(KEY=VALUE, …), …]` (LFM2.5).
fn pythonic<'a>(text: &'a str, tools: &[Callable]) -> Option<(Vec<Call>, &'a str)> {
    let (calls, rest) = literals::until(text.strip_prefix('[')?, ']', |text: &'a str| {
        let (name, rest) = text.split_once('(')?;
        let tool = tool(name.trim(), tools)?;
        let (arguments, rest) = literals::members(rest, '=', ')')?;
        Some((tool.call(arguments), rest))
    })?;
    (!calls.is_empty()).then_some((calls, rest))
}

/// A list of `{NAME: ARGUMENTS}` behind what begins it (Apertus).
fn keyed<'a>(text: &'a str, tools: &[Callable]) -> Option<(Vec<Call>, &'a str)> {
    let (found, rest) = value(text.strip_prefix(TOOLS_PREFIX)?)?;
    let call = |value: &Value| {
        let mut members = value.as_object()?.iter();
        let (name, arguments) = members.next().filter(|_| members.next().is_none())?;
        Some(tool(name, tools)?.call(arguments.as_object()?.clone()))
    };
    let calls: Vec<Call> = found.as_array()?.iter().map(call).collect::<Option<_>>()?;
    (!calls.is_empty()).then_some((calls, rest))
}

impl Callable {
    fn call(&self, arguments: Map<String, Value>) -> Call {
        Call { name: self.name.clone(), arguments: Value::from(arguments).to_string() }
    }

    /// What a text stands for where the grammar does not tell numbers from texts: text, if its schema says so.
    fn typed(&self, key: &str, text: &str) -> Value {
        let schema = self.parameters.as_ref().and_then(|it| it.get("properties")?.get(key));
        let parsed = || serde_json::from_str(text.trim()).ok();
        let value =
            if schema.is_some_and(|it| may_be_text(it, MOST_LEVELS)) { None } else { parsed() };
        value.unwrap_or_else(|| Value::from(text))
    }
}

/// Schemas of alternatives that are looked into, one in the other.
const MOST_LEVELS: usize = 4;

/// Whether a schema says that a value may be text.
fn may_be_text(schema: &Value, levels: usize) -> bool {
    let kind = &schema["type"];
    let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
    kind == "string"
        || list(kind).iter().any(|kind| kind == "string")
        || (kind.is_null() && list(&schema["enum"]).iter().any(Value::is_string))
        || schema["const"].is_string()
        || (levels > 0
            && ["anyOf", "oneOf"]
                .iter()
                .any(|of| list(&schema[*of]).iter().any(|schema| may_be_text(schema, levels - 1))))
}
