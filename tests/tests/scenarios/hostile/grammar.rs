//! Schemas and tools that are made to take the time, the memory or the stack of whoever compiles them.
use cake_tests::{Master, Server, golden, process};
use serde_json::{Map, Value, json};

const CHAT: &str = "/v1/chat/completions";
/// Longest sentence that says why.
const SENTENCE: usize = 500;
/// What refused bodies of 15 MiB may add to the most that a server ever had: each is there some times while it is read.
const BODY_PEAK: u64 = 128 << 20;

fn server() -> Server {
    Server::start(&Master::alone(), &golden("llama").path, &["--context", "256"])
}

fn asking(more: Value) -> Value {
    let mut request = json!({
        "messages": [{ "role": "user", "content": "Who are you?" }], "max_tokens": 12, "seed": 1,
    });
    let fields = request.as_object_mut().expect("fields");
    fields.extend(more.as_object().expect("fields").clone());
    request
}

/// A request that is held to `schema` by its format, and one by a tool that must be called.
fn held_to(schema: &Value) -> [Value; 2] {
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": schema } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    [
        asking(json!({ "response_format": format })),
        asking(json!({ "tools": [tool], "tool_choice": "required" })),
    ]
}

/// Schemas of which each is the items of the one before.
fn chain(length: usize) -> Value {
    let next = |at: usize| json!({ "items": { "$ref": format!("#/$defs/d{}", at + 1) } });
    let mut definitions: Map<String, Value> =
        (0..length).map(|at| (format!("d{at}"), next(at))).collect();
    definitions.insert(format!("d{length}"), json!({ "type": "integer" }));
    json!({ "$ref": "#/$defs/d0", "$defs": definitions })
}

/// Alternatives that must all hold: multiplied out they are two to the power of `count`.
fn powers(count: usize) -> Value {
    let choice = |at| json!({ "anyOf": [{ "minItems": at }, { "maxItems": 100 + at }] });
    json!({ "type": "array", "allOf": (0..count).map(choice).collect::<Vec<_>>() })
}

#[test]
fn schemas_that_would_end_the_server_or_never_end_are_refused() {
    let server = server();
    let hostile = [
        (chain(250), "$ref"),
        (json!({ "type": "integer", "multipleOf": 99_999_989 }), "multipleOf"),
        (
            json!({ "allOf": [{ "multipleOf": 997 }, { "multipleOf": 991 }, { "multipleOf": 983 }] }),
            "multipleOf",
        ),
        (powers(30), "schemas that come of it"),
        (json!({ "type": "string", "pattern": "((a{99}){99}){99}" }), "pattern"),
        (json!({ "type": "array", "maxItems": u64::MAX }), "maxItems"),
        (json!({ "minimum": "é".repeat(99) }), "minimum"),
        (json!({ "enum": (0..5000).collect::<Vec<_>>() }), "enum"),
    ];
    for (schema, expected) in &hostile {
        for (request, param) in held_to(schema).iter().zip(["response_format", "tools"]) {
            let reply = server.post(CHAT, request);
            assert_eq!(reply.body["error"]["param"], param, "{}", reply.body);
            let said = reply.refused(400);
            assert!(said.contains(expected) && said.len() < SENTENCE, "{expected}: {said}");
            assert!(!said.contains('\n') && !said.contains("panic"), "{said}");
        }
    }
    let ordinary = [
        chain(20),
        json!({
            "$ref": "#/$defs/tree",
            "$defs": { "tree": {
                "type": "object",
                "properties": {
                    "value": { "type": "number", "multipleOf": 0.01, "minimum": 0 },
                    "children": { "type": "array", "items": { "$ref": "#/$defs/tree" }, "maxItems": 4 },
                },
                "required": ["value", "children"],
                "additionalProperties": false,
            } },
        }),
        powers(3),
        json!({ "type": "object", "properties": { "at": { "type": "string", "format": "date-time" } } }),
        json!({ "type": "object", "minProperties": 1, "maxProperties": 9 }),
    ];
    for schema in &ordinary {
        let [format, tools] = held_to(schema);
        server.post(CHAT, &format).good();
        server.post(CHAT, &tools).good();
    }
    assert_eq!(server.get("/health").good()["status"], "ok");
}

#[test]
fn what_becomes_of_a_large_body_is_bounded() {
    let mut server = server();
    let pid = server.child().id();
    server.post(CHAT, &asking(json!({}))).good();
    let before = process::peak_bytes(pid);
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": {} } });
    let tools = |count: usize| Value::Array(vec![tool.clone(); count]);
    let described = |bytes: usize| json!([{ "type": "function", "function": { "name": "f", "description": "a".repeat(bytes) } }]);
    let called = |arguments: &str| json!({ "role": "assistant", "tool_calls": [{ "function": { "name": "f", "arguments": arguments } }] });
    let long = "[],".repeat(5 << 20);
    for body in [
        asking(json!({ "tools": tools(240_000) })).to_string(),
        asking(json!({ "tools": described(15 << 20) })).to_string(),
        format!("{{\"messages\": [], \"nothing\": [{long}1]}}"),
        format!("{{\"messages\": [], \"t\\u006fols\": [{long}1]}}"),
        format!("{{\"messages\": [{{\"role\": \"user\", \"content\": [{long}1]}}]}}"),
        asking(json!({ "messages": [called(&format!("[{long}1]"))] })).to_string(),
    ] {
        assert!(body.len() > 12 << 20 && body.len() < 16 << 20, "{}", body.len());
        let said = server.post_text(CHAT, &body, None).refused(400);
        assert!(said.len() < SENTENCE && said.contains("more than"), "{said}");
    }
    assert!(
        server.post(CHAT, &asking(json!({ "tools": tools(129) }))).refused(400).contains("128")
    );
    let long = "é".repeat(1 << 20);
    for more in [
        json!({ "model": long }),
        json!({ "messages": [called(""), { "role": "tool", "tool_calls": [long] }] }),
    ] {
        let reply = server.post(CHAT, &asking(more));
        let said = reply.body["error"]["message"].as_str().expect("a message");
        assert!(said.chars().count() < 700, "what was sent is not sent back: {} bytes", said.len());
    }
    if let Some((before, after)) = before.zip(process::peak_bytes(pid)) {
        let more = after.saturating_sub(before);
        assert!(more < BODY_PEAK, "{} MiB more than before", more >> 20);
    }
    server.post(CHAT, &asking(json!({ "tools": described(20_000), "tool_choice": "none" }))).good();
}
