//! `GET /openapi.json`: what can be asked for and what comes back, in the words of OpenAPI 3.1.
//!
//! Start at `operations`, which has an entry for each method of each path. What a body may be follows from the type that
//! reads it; what comes back is a `shape`, as it is written field by field. A test holds that what is described is what the
//! router has; `openapi_client.py` and `schemathesis.sh` in `tests/clients/` look whether answers are as described.

#[cfg(test)]
mod examples;
#[cfg(test)]
mod held;
mod operations;
mod shape;
mod shapes;
mod tag;

use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Map, Value, json};

use self::operations::{Answer, Operation};

/// What OpenAPI 3.1 has no word for: which part of a stream its schema is of.
const STREAMS: &str = "Where an answer is `text/event-stream`, its schema is that of each event, and where it is \
                       `application/x-ndjson`, that of each line.";

/// Answers with it.
pub(super) async fn serve() -> impl IntoResponse {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| description().to_string());
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// All that can be asked for, as `/openapi.json` has it.
pub fn description() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
        // What the code says to its readers is nothing for those who ask, and what may be missing is none then.
        settings.transforms.push(Box::new(RecursiveTransform(|schema: &mut Schema| {
            if schema.get("description").is_some_and(Value::is_string) {
                schema.remove("description");
            }
            if schema.get("default").is_some_and(Value::is_null) {
                schema.remove("default");
            }
        })));
    });
    let mut schemas = settings.into_generator();
    let mut paths = Map::new();
    for operation in operations::all() {
        let asks = operation.asks.map(|asks| asks(&mut schemas));
        let path = paths.entry(operation.path.replace("{*", "{")).or_insert_with(|| json!({}));
        path[operation.method] = described(&operation, asks);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cake",
            "version": env!("CARGO_PKG_VERSION"),
            "description": STREAMS,
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{}, { "bearer": [] }, { "key": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
    })
}

fn described(operation: &Operation, asks: Option<Schema>) -> Value {
    let Operation { method, path, tag, says, queries, answers, refuses, .. } = operation;
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let in_path = names.map(|name| {
        let name = name.trim_start_matches('*');
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
    });
    let in_query =
        queries.iter().map(|(name, says)| json!({ "name": name, "in": "query", "schema": says() }));
    let parameters: Vec<Value> = in_path.chain(in_query).collect();
    let mut responses = Map::new();
    for Answer { status, kind, shape } in answers {
        let schema = shape.map_or_else(|| json!({ "type": "string" }), |of| shape::schema(&of()));
        let schema = if *kind == operations::EVENTS { event(schema) } else { schema };
        add(&mut responses, *status, kind, schema);
    }
    for status in *refuses {
        for error in tag::errors(*tag, *status) {
            add(&mut responses, *status, "application/json", shape::schema(&error));
        }
    }
    if *method == "head" {
        for response in responses.values_mut() {
            *response = json!({ "description": response["description"] });
        }
    }
    let mut described = json!({
        "tags": [format!("{tag:?}")],
        "summary": says,
        "parameters": parameters,
        "responses": responses,
    });
    if let Some(schema) = asks {
        let content = json!({ "application/json": { "schema": schema } });
        described["requestBody"] = json!({ "required": true, "content": content });
    }
    described
}

/// An event of a stream whose data is JSON of this schema, or this text.
fn event(schema: Value) -> Value {
    let data = match schema["const"].is_string() {
        true => schema,
        false => {
            json!({ "type": "string", "contentMediaType": "application/json", "contentSchema": schema })
        }
    };
    let fields = json!({ "event": { "type": "string" }, "data": data });
    json!({ "type": "object", "properties": fields, "required": ["data"] })
}

/// Adds a schema to those that the body of this status and content type may have.
fn add(responses: &mut Map<String, Value>, status: u16, kind: &str, schema: Value) {
    let description = if status == 200 { "As asked for." } else { "Why not, or not yet." };
    let response = responses.entry(status.to_string());
    let response = response.or_insert_with(|| json!({ "description": description, "content": {} }));
    let known = &mut response["content"][kind]["schema"];
    let all = match known.take() {
        Value::Null => vec![schema],
        Value::Object(mut one) => match one.remove("anyOf") {
            Some(Value::Array(all)) if all.contains(&schema) => all,
            Some(Value::Array(all)) => all.into_iter().chain([schema]).collect(),
            _ => unreachable!("each schema is among several"),
        },
        _ => unreachable!("each schema is an object"),
    };
    *known = json!({ "anyOf": all });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_is_described_is_what_the_router_has() {
        let routes = crate::api::all_routes();
        let there: BTreeSet<_> = routes.iter().copied().collect();
        assert_eq!(there.len(), routes.len(), "a route is there twice");
        let operations = operations::all();
        let described: BTreeSet<_> = operations.iter().map(|it| (it.method, it.path)).collect();
        assert_eq!(described.len(), operations.len(), "an operation is described twice");
        assert_eq!(described, there);
    }

    #[test]
    fn the_description_leads_nowhere_and_says_what_bodies_may_be() {
        let document = description();
        let schemas = &document["components"]["schemas"];
        let text = document.to_string();
        let references = text.split(r##""$ref":"#/components/schemas/"##).skip(1);
        let names: BTreeSet<&str> = references.filter_map(|rest| rest.split('"').next()).collect();
        assert!(names.contains("ChatRequest") && names.contains("MessagesRequest"), "{names:?}");
        for name in names {
            assert!(schemas[name].is_object(), "{name} is nowhere");
        }
        let chat = &schemas["ChatRequest"];
        for field in ["messages", "tools", "temperature", "max_tokens", "stream_options"] {
            assert!(!chat["properties"][field].is_null(), "{field}: {chat}");
        }
        assert!(chat["additionalProperties"] != false, "{chat}");
        let needed = |name: &str| schemas[name]["required"].clone();
        assert_eq!(needed("MessagesRequest"), json!(["messages"]));
        assert_eq!(needed("ChatRequest"), json!(["messages"]));
        assert_eq!(needed("TokenizeRequest"), Value::Null);
        let said = &schemas["Turn"]["properties"]["content"]["anyOf"];
        assert_eq!(said[0], json!({ "type": "string" }));
        let answers = &document["paths"]["/v1/chat/completions"]["post"]["responses"];
        let events = &answers["200"]["content"]["text/event-stream"]["schema"]["anyOf"];
        let data = |index: usize| &events[index]["properties"]["data"];
        let piece = &data(0)["contentSchema"]["properties"]["object"];
        assert_eq!(*piece, json!({ "const": "chat.completion.chunk" }));
        assert_eq!(*data(2), json!({ "const": "[DONE]" }));
        let lines = &document["paths"]["/api/chat"]["post"]["responses"]["200"]["content"];
        let lines = &lines["application/x-ndjson"]["schema"]["anyOf"];
        assert_eq!(lines[0]["properties"]["done"], json!({ "type": "boolean" }));
        assert!(!answers["429"]["content"]["application/json"]["schema"].is_null());
    }
}
