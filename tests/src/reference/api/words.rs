//! What a body may be, in words.

use std::fmt::Write as _;

use serde_json::Value;

use super::read::{name, text};
use super::shape::object;

/// A link to a heading of the same page, as the book and GitHub call it.
pub(super) fn link(heading: &str) -> String {
    let plain = |c: &char| c.is_alphanumeric() || ['_', '-', ' '].contains(c);
    let anchor: String = heading.to_lowercase().chars().filter(plain).collect();
    format!("[{heading}](#{})", anchor.replace(' ', "-"))
}

/// The fields of an object, a line each; of what is no object one line.
pub(super) fn fields(schema: &Value) -> String {
    let Some(fields) = schema["properties"].as_object() else {
        return match schema["type"] == "object" {
            true => "An object without fields.\n".to_owned(),
            false => format!("It is {}.\n", words(schema)),
        };
    };
    let needed: Vec<&str> = schema["required"].as_array().into_iter().flatten().map(text).collect();
    let mut lines = String::new();
    for (name, field) in fields {
        let is_needed = needed.contains(&name.as_str());
        let mark = if is_needed { " *needed*," } else { "" };
        write!(lines, "- `{name}`:{mark} {}", words(field)).expect("a string takes it");
        match (is_needed, may_be_null(field)) {
            (true, true) => lines.push_str(" or `null`"),
            (false, false) => lines.push_str(", not `null`"),
            _ => {}
        }
        if let Some(default) = field.get("default").filter(|_| !is_needed) {
            write!(lines, "; `{default}` where it is missing").expect("a string takes it");
        }
        lines.push('\n');
    }
    let some = schema["anyOf"].as_array().into_iter().flatten();
    let some: Vec<String> = some.map(|one| format!("`{}`", text(&one["required"][0]))).collect();
    if !some.is_empty() {
        writeln!(lines, "\nAt least one of {} is needed.", some.join(" and "))
            .expect("a string takes it");
    }
    if schema["additionalProperties"] == false {
        lines.push_str("\nOther fields are refused.\n");
    }
    lines
}

/// Whether `null` is among a schema's values.
fn may_be_null(schema: &Value) -> bool {
    let has_null = |kinds: &Value| match kinds {
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "null"),
        kind => kind == "null",
    };
    let is_any = schema == true || schema.as_object().is_some_and(|all| all.is_empty());
    let among = schema["anyOf"].as_array().is_some_and(|all| all.iter().any(may_be_null));
    is_any || has_null(&schema["type"]) || among
}

/// What a value may be beside `null`, with its bounds.
pub(super) fn words(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return link(name(reference));
    }
    if let Some(all) = schema["anyOf"].as_array() {
        let others = all.iter().filter(|one| one["type"] != "null");
        return others.map(words).collect::<Vec<_>>().join(" or ");
    }
    if let Some(all) = schema["enum"].as_array() {
        let others = all.iter().filter(|one| !one.is_null());
        let others: Vec<String> = others.map(|one| format!("`{one}`")).collect();
        return match others.split_last() {
            Some((last, before)) if !before.is_empty() => {
                format!("{} or {last}", before.join(", "))
            }
            _ => others.concat(),
        };
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(text).filter(|kind| *kind != "null").collect(),
        Value::String(kind) => vec![kind],
        _ => return "anything".to_owned(),
    };
    kinds.into_iter().map(|kind| of_kind(kind, schema)).collect::<Vec<_>>().join(" or ")
}

/// What a value of this kind may be.
fn of_kind(kind: &str, schema: &Value) -> String {
    match kind {
        "null" => "nothing but `null`".to_owned(),
        "boolean" => kind.to_owned(),
        "string" => {
            let length = range(schema, "minLength", "maxLength", " characters");
            let pattern = schema["pattern"].as_str().map(|pattern| format!("as `{pattern}`"));
            format!("string{}", bounds([length, pattern]))
        }
        "integer" | "number" => {
            let except = schema["not"].get("const").map(|value| format!("not {value}"));
            format!("{kind}{}", bounds([range(schema, "minimum", "maximum", ""), except]))
        }
        "array" => {
            let count = bounds([range(schema, "minItems", "maxItems", "")]);
            match schema.get("items") {
                Some(items) => format!("list{count} of {}", in_one(items)),
                None => format!("list{count}"),
            }
        }
        "object" if schema["properties"].is_object() => format!("`{}`", object(schema)),
        "object" => {
            let count = range(schema, "minProperties", "maxProperties", " fields");
            let names = schema["propertyNames"]["pattern"].as_str();
            let bounds = bounds([count, names.map(|pattern| format!("named as `{pattern}`"))]);
            match &schema["additionalProperties"] {
                every @ Value::Object(_) => format!("object{bounds} of {}", in_one(every)),
                _ => format!("object{bounds}"),
            }
        }
        other => panic!("{other} is no kind of value that is known: {schema}"),
    }
}

/// What a value may be, where other words stand before it.
fn in_one(schema: &Value) -> String {
    let words = words(schema);
    if words.contains(" or ") { format!("({words})") } else { words }
}

fn bounds<const N: usize>(all: [Option<String>; N]) -> String {
    let all: Vec<String> = all.into_iter().flatten().collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

/// From the least to the most, as far as they are said.
fn range(schema: &Value, least: &str, most: &str, of: &str) -> Option<String> {
    // No count is below 0.
    let says_something = |count: &&Value| least == "minimum" || **count != 0;
    let least = schema.get(least).filter(says_something).map(number);
    match (least, schema.get(most).map(number)) {
        (None, Some(most)) if most == "0" => Some("empty".to_owned()),
        (Some(least), Some(most)) if least == most => Some(format!("{least}{of} alone")),
        (Some(least), Some(most)) => Some(format!("{least} to {most}{of}")),
        (Some(least), None) => Some(format!("at least {least}{of}")),
        (None, Some(most)) => Some(format!("at most {most}{of}")),
        (None, None) => None,
    }
}

/// A bound as people write it: whole if it is.
fn number(bound: &Value) -> String {
    let text = bound.to_string();
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
