//! The reference of the HTTP API in `docs/`: what `/openapi.json` says to programs, as Markdown.
//!
//! Start at [`page`]. What a body may be is said field by field in `words`; what comes back is drawn as JSON in `shape`.

mod read;
mod shape;
mod words;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use self::read::{name, text};
use self::words::{fields, link, words};

/// What stands before everything.
const BEGINNING: &str = r#"# The API, path by path

<!-- Made from the program's description of itself: see CONTRIBUTING.md, "A path of the service". -->

All that `cake-master serve` answers, as `/openapi.json` says it to programs. [The API in words](http.md) says what is
meant, what is done where a request does not say, how much it may bring, and what is refused by name.

- What is in braces in a path is any text. Where keys are asked for, one comes as `Authorization: Bearer KEY` or as
  `x-api-key: KEY`.
- A field of a body that is not *needed* may be left out, or be `null` unless it says otherwise. Fields that are not named
  here are let be, or refused if they would change the answer.
- Of answers there are the status, the content type and the form: `name?` is a field that is there only sometimes, and
  `...` stands for any names. Answers may have more fields than these.
- `/v1/rerank` is left out: models that score pairs of texts do not run here.
"#;

/// The groups in the order of the page: their tags, what they are called, and what is said of all their paths.
const GROUPS: [(&str, &str, &str); 7] = [
    (
        "OpenAi",
        "OpenAI's",
        "What its fields do beyond OpenAI's own reference: [the API in words](http.md). How a response is kept and gone on from: [Responses](http.md#responses).",
    ),
    (
        "Models",
        "Models",
        "For clients of OpenAI's and of Anthropic's: [which model](http.md#which-model) is meant.",
    ),
    (
        "Anthropic",
        "Anthropic's",
        "What its fields do here: [Anthropic's API](http.md#anthropics-api).",
    ),
    ("Ollama", "Ollama's", "What its fields do here: [Ollama's API](http.md#ollamas-api)."),
    (
        "Tokens",
        "Tokens",
        "As vLLM and llama.cpp have them: [what the model is told](http.md#what-the-model-is-told).",
    ),
    (
        "Devices",
        "Devices",
        "Who may do what with them: [the owner's devices](http.md#the-owners-devices).",
    ),
    (
        "Server",
        "The service",
        "What people and their programs watch: [ids](http.md#ids), and `deploy/README.md`.",
    ),
];

/// The methods in the order of the page.
const METHODS: [&str; 4] = ["get", "head", "post", "delete"];

/// A page about everything that a description in the words of OpenAPI has.
///
/// # Panics
/// If something is described in words that no page is made of yet.
pub fn page(description: &Value) -> String {
    let paths = description["paths"].as_object().expect("paths");
    let schemas = description["components"]["schemas"].as_object().expect("schemas");
    let methods = paths.values().flat_map(|path| path.as_object().expect("methods").keys());
    let operations = paths.iter().flat_map(|(path, methods)| {
        let there = METHODS.iter().filter_map(|method| Some((*method, methods.get(*method)?)));
        there.map(move |(method, operation)| Operation { method, path, operation })
    });
    let operations: Vec<Operation<'_>> = operations.collect();
    assert_eq!(operations.len(), methods.count(), "a method that is not among {METHODS:?}");
    let mut page = BEGINNING.to_owned();
    // Where each body is described: at the first that asks for it.
    let mut bodies = BTreeMap::new();
    let mut left = operations.len();
    for (tag, called, said) in GROUPS {
        writeln!(page, "\n## {called}\n\n{said}").expect("a string takes it");
        for one in operations.iter().filter(|one| one.operation["tags"][0] == tag) {
            left -= 1;
            add(&mut page, one, schemas, &mut bodies);
        }
    }
    assert_eq!(left, 0, "a tag that is not among {GROUPS:?}");
    writeln!(page, "\n## Parts of bodies").expect("a string takes it");
    let parts: BTreeMap<&String, &Value> = schemas.iter().collect();
    for (name, schema) in parts.into_iter().filter(|(name, _)| !bodies.contains_key(*name)) {
        write!(page, "\n### {name}\n\n{}", fields(schema)).expect("a string takes it");
    }
    page
}

/// One method of a path, and what is said of it.
struct Operation<'a> {
    method: &'static str,
    path: &'a str,
    operation: &'a Value,
}

impl Operation<'_> {
    /// As code: a name in braces at its end would be no text to the book.
    fn heading(&self) -> String {
        format!("`{} {}`", self.method.to_uppercase(), self.path)
    }
}

/// Adds a method's part.
fn add(
    page: &mut String,
    one: &Operation<'_>,
    schemas: &Map<String, Value>,
    bodies: &mut BTreeMap<String, String>,
) {
    let says = one.operation["summary"].as_str().expect("a summary");
    write!(page, "\n### {}\n\n{says}\n", one.heading()).expect("a string takes it");
    let parameters = one.operation["parameters"].as_array().expect("parameters").iter();
    let queries = parameters.filter(|parameter| parameter["in"] == "query");
    let queries: Vec<String> = queries
        .map(|query| format!("- `{}`: {}", text(&query["name"]), words(&query["schema"])))
        .collect();
    if !queries.is_empty() {
        write!(page, "\nIts query:\n\n{}\n", queries.join("\n")).expect("a string takes it");
    }
    let body = &one.operation["requestBody"]["content"]["application/json"]["schema"];
    if let Some(reference) = body["$ref"].as_str() {
        let name = name(reference);
        match bodies.get(name) {
            Some(at) => writeln!(page, "\nIts body is that of {}.", link(at)),
            None => write!(page, "\nIts body:\n\n{}", fields(&schemas[name])),
        }
        .expect("a string takes it");
        bodies.entry(name.to_owned()).or_insert_with(|| one.heading());
    } else {
        assert!(body.is_null(), "{}: a body without a name", one.heading());
    }
    let answers = shape::answers(one.operation["responses"].as_object().expect("responses"));
    write!(page, "\n```\n{answers}```\n").expect("a string takes it");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_is_what_may_be_sent_and_what_comes_back() {
        let ask = json!({
            "type": "object",
            "properties": {
                "messages": { "type": "array", "items": { "$ref": "#/components/schemas/Message" }, "minItems": 1, "maxItems": 9 },
                "n": { "type": ["integer", "null"], "minimum": 1 },
                "stop": { "anyOf": [{ "type": "string", "maxLength": 4 }, { "type": "array", "items": { "type": "string" } }, { "type": "null" }] },
                "role": { "type": "string", "enum": ["a", "b"], "default": "a" },
                "dimensions": { "type": "null" },
            },
            "required": ["messages"],
        });
        let message = json!({ "type": "object", "properties": { "kind": {} }, "additionalProperties": false });
        let one = json!({ "type": "object", "properties": { "id": { "const": "x" }, "at": { "type": ["number", "null"] } }, "required": ["id"] });
        let event = |schema| json!({ "type": "object", "properties": { "data": schema } });
        let held = event(json!({ "type": "string", "contentSchema": one }));
        let answers = json!({
            "200": { "content": {
                "application/json": { "schema": { "anyOf": [one] } },
                "text/event-stream": { "schema": { "anyOf": [held, event(json!({ "const": "[DONE]" }))] } },
            } },
            "401": { "content": { "application/json": { "schema": { "anyOf": [{ "type": "string" }] } } } },
            "503": { "content": { "application/json": { "schema": { "anyOf": [{ "type": "string" }] } } } },
        });
        let body = json!({ "$ref": "#/components/schemas/Ask" });
        let parameters = json!([
            { "name": "id", "in": "path", "schema": { "type": "string" } },
            { "name": "limit", "in": "query", "schema": { "type": "integer", "minimum": 1, "maximum": 100 } },
        ]);
        let post = json!({
            "tags": ["OpenAi"], "summary": "Asks.", "parameters": parameters, "responses": answers,
            "requestBody": { "content": { "application/json": { "schema": body } } },
        });
        let mut again = post.clone();
        again["parameters"] = json!([]);
        again["responses"] = json!({ "501": { "description": "Never." } });
        let description = json!({
            "paths": { "/v1/{id}/ask": { "post": post }, "/again": { "delete": again } },
            "components": { "schemas": { "Message": message, "Ask": ask } },
        });
        let expected = r#"
### `POST /v1/{id}/ask`

Asks.

Its query:

- `limit`: integer (1 to 100)

Its body:

- `messages`: *needed*, list (1 to 9) of [Message](#message)
- `n`: integer (at least 1)
- `stop`: string (at most 4 characters) or list of string
- `role`: `"a"` or `"b"`, not `null`; `"a"` where it is missing
- `dimensions`: nothing but `null`

```
200 application/json
{ id: "x", at?: number | null }

200 text/event-stream, each event one of
data: { id: "x", at?: number | null }
data: [DONE]

401, 503 application/json
string
```

### `DELETE /again`

Asks.

Its body is that of [`POST /v1/{id}/ask`](#post-v1idask).

```
501 without a body
```
"#;
        let page = page(&description);
        assert!(page.contains(expected), "{page}");
        assert!(page.ends_with("## Parts of bodies\n\n### Message\n\n- `kind`: anything\n\nOther fields are refused.\n"), "{page}");
    }
}
