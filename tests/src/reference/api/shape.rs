//! What comes back, drawn as JSON with kinds of values in the values' places.

use serde_json::{Map, Value};

use super::read::{name, text};

/// Characters of a line, if what is drawn can be broken.
const WIDTH: usize = 110;
const INDENT: &str = "  ";

/// What a request may be answered with: a paragraph for each content type of each status, statuses of one form together.
pub(super) fn answers(responses: &Map<String, Value>) -> String {
    let mut all: Vec<(Vec<&str>, String)> = Vec::new();
    for (status, response) in responses {
        let forms: Vec<String> = match response["content"].as_object() {
            Some(kinds) => kinds.iter().map(|(kind, of)| form(kind, &of["schema"])).collect(),
            None => vec![" without a body\n".to_owned()],
        };
        for form in forms {
            match all.iter_mut().find(|(_, known)| *known == form) {
                Some((statuses, _)) => statuses.push(status),
                None => all.push((vec![status], form)),
            }
        }
    }
    let paragraphs = all.iter().map(|(statuses, form)| format!("{}{form}", statuses.join(", ")));
    paragraphs.collect::<Vec<_>>().join("\n")
}

/// A content type, and what its bodies, events or lines may be.
fn form(kind: &str, schema: &Value) -> String {
    let all = schema["anyOf"].as_array().expect("each schema of an answer is among several");
    let (each, before) = match kind {
        "text/event-stream" => (", each event", "data: "),
        "application/x-ndjson" => (", each line", ""),
        _ => ("", ""),
    };
    let one_of = if all.len() > 1 { " one of" } else { "" };
    let mut form = format!(" {kind}{each}{one_of}\n");
    for one in all {
        let one = if before.is_empty() { one } else { data(one) };
        form.push_str(before);
        match one["const"].as_str() {
            // Of a stream that is over: no JSON.
            Some(word) if !before.is_empty() => form.push_str(word),
            _ => draw(&mut form, one, 0, before.len()),
        }
        form.push('\n');
    }
    form
}

/// What the data of an event is.
fn data(event: &Value) -> &Value {
    let data = &event["properties"]["data"];
    data.get("contentSchema").unwrap_or(data)
}

/// A schema in one line.
fn shape(schema: &Value) -> String {
    if let Some(value) = schema.get("const") {
        return value.to_string();
    }
    if let Some(reference) = schema["$ref"].as_str() {
        return name(reference).to_owned();
    }
    let all: Vec<String> = match (&schema["anyOf"], &schema["enum"], &schema["type"]) {
        (Value::Array(all), _, _) => all.iter().map(shape).collect(),
        (_, Value::Array(all), _) => all.iter().map(Value::to_string).collect(),
        (_, _, Value::Array(kinds)) => {
            kinds.iter().map(|kind| of_kind(text(kind), schema)).collect()
        }
        (_, _, Value::String(kind)) => vec![of_kind(kind, schema)],
        _ => vec!["any".to_owned()],
    };
    all.join(" | ")
}

/// What a value of this kind may be.
fn of_kind(kind: &str, schema: &Value) -> String {
    match kind {
        "array" => format!("[{}]", shape(&schema["items"])),
        "object" => object(schema),
        other => other.to_owned(),
    }
}

/// An object in one line, whatever else a schema lets a value be.
pub(super) fn object(schema: &Value) -> String {
    let of = |(name, field): (String, &Value)| format!("{name}: {}", shape(field));
    let fields: Vec<String> = fields(schema).into_iter().map(of).collect();
    if fields.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", fields.join(", ")) }
}

/// The fields of an object, those with `?` that it has only sometimes, and `...` for any names.
fn fields(schema: &Value) -> Vec<(String, &Value)> {
    let needed: Vec<&str> = schema["required"].as_array().into_iter().flatten().map(text).collect();
    let named = schema["properties"].as_object().into_iter().flatten();
    let named = named.map(|(name, field)| match needed.contains(&name.as_str()) {
        true => (name.clone(), field),
        false => (format!("{name}?"), field),
    });
    let every = schema.get("additionalProperties").filter(|every| every.is_object());
    named.chain(every.map(|every| ("...".to_owned(), every))).collect()
}

/// Draws a schema in as many lines as it takes, of which the first has `before` characters already.
fn draw(drawn: &mut String, schema: &Value, depth: usize, before: usize) {
    let line = shape(schema);
    let kind = schema["type"].as_str().unwrap_or_default();
    match kind {
        "array" if before + line.len() > WIDTH => {
            drawn.push('[');
            draw(drawn, &schema["items"], depth, before + 1);
            drawn.push(']');
        }
        "object" if before + line.len() > WIDTH => {
            drawn.push_str("{\n");
            for (name, field) in fields(schema) {
                let start = format!("{}{name}: ", INDENT.repeat(depth + 1));
                drawn.push_str(&start);
                draw(drawn, field, depth + 1, start.len() + 1);
                drawn.push_str(",\n");
            }
            drawn.push_str(&INDENT.repeat(depth));
            drawn.push('}');
        }
        _ => drawn.push_str(&line),
    }
}
