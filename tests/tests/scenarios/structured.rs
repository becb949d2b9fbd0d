//! Answers that must have a form: of models with random weights, which obey only if forced.
use cake_tests::{Master, Server, TestWorker, golden};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const SEEDS: std::ops::Range<u64> = 0..6;

/// Every value of it is bounded, so that an answer comes to an end whatever the weights are.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 8 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "kind": { "enum": ["cat", "dog"] },
            "tags": { "type": "array", "items": { "type": "boolean" }, "maxItems": 3 },
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": false,
    })
}

fn question() -> Value {
    json!([{ "role": "user", "content": "Who are you?" }])
}

/// A request that leaves the choice to the weights and to `seed`.
fn request(seed: u64, more: &Value) -> Value {
    let mut request = json!({
        "messages": question(), "temperature": 1, "seed": seed, "max_tokens": 190,
    });
    for (name, value) in more.as_object().expect("fields") {
        request[name] = value.clone();
    }
    request
}

fn assert_fits(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let fields = value.as_object().expect("an object");
    assert_eq!(fields.len(), 4, "{text}");
    assert!(value["name"].as_str().expect("a string").chars().count() <= 8, "{text}");
    assert!(value["age"].as_u64().expect("an integer") <= 150, "{text}");
    assert!(["cat", "dog"].contains(&value["kind"].as_str().expect("a string")), "{text}");
    let tags = value["tags"].as_array().expect("a list");
    assert!(tags.len() <= 3 && tags.iter().all(Value::is_boolean), "{text}");
}

#[test]
fn a_schema_holds_whatever_the_weights_say() {
    let golden = golden("llama");
    let workers = TestWorker::several(&["a", "b"]);
    let args = ["--context", "256", "--place", "a=0..2", "--place", "b=2..5"];
    let server = Server::start(&Master::over(&workers), &golden.path, &args);
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema() } });
    let more = json!({ "response_format": format });
    let mut seen = std::collections::HashSet::new();
    for seed in SEEDS {
        let body = server.post(CHAT, &request(seed, &more)).good();
        let choice = &body["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "seed {seed}: {choice}");
        let text = choice["message"]["content"].as_str().expect("text");
        assert_fits(text);
        seen.insert(text.to_owned());
    }
    assert!(seen.len() > 1, "the weights still choose: {seen:?}");
    // Several answers, each with a grammar of its own, and in pieces.
    let mut several = request(9, &more);
    several["n"] = json!(3);
    let body = server.post(CHAT, &several).good();
    for choice in body["choices"].as_array().expect("choices") {
        assert_fits(choice["message"]["content"].as_str().expect("text"));
    }
    let mut streamed = request(1, &more);
    streamed["stream"] = json!(true);
    let text: String = server
        .stream(CHAT, &streamed)
        .filter_map(|event| serde_json::from_str::<Value>(&event).ok())
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_fits(&text);
}

#[test]
fn any_object_is_one_if_it_ends() {
    let golden = golden("llama-sharded");
    let server = Server::start(&Master::alone(), &golden.path, &["--context", "256"]);
    let more = json!({ "response_format": { "type": "json_object" } });
    let mut ended = 0;
    for seed in SEEDS {
        let body = server.post(CHAT, &request(seed, &more)).good();
        let choice = &body["choices"][0];
        let text = choice["message"]["content"].as_str().expect("text");
        assert!(text.starts_with('{'), "seed {seed}: {text}");
        if choice["finish_reason"] == "stop" {
            ended += 1;
            let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert!(value.is_object(), "{text}");
        }
    }
    println!("{ended} of {} objects came to an end", SEEDS.end);
    assert!(ended > 0, "an end is among what the weights may choose");
}

#[test]
fn a_tool_that_must_be_called_is() {
    let golden = golden("qwen2");
    let server = Server::start(&Master::alone(), &golden.path, &["--context", "256"]);
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": schema() } });
    let more = json!({ "tools": [tool("f"), tool("g")], "tool_choice": "required" });
    for seed in SEEDS {
        let body = server.post(CHAT, &request(seed, &more)).good();
        let choice = &body["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "seed {seed}: {choice}");
        assert_eq!(choice["message"]["content"], Value::Null);
        let call = &choice["message"]["tool_calls"][0];
        assert!(["f", "g"].contains(&call["function"]["name"].as_str().expect("a name")));
        assert_fits(call["function"]["arguments"].as_str().expect("JSON as text"));
    }
    // What each defines for itself, under the same name.
    let defining = |name: &str, kind: Value| {
        let parameters = json!({
            "type": "object",
            "properties": { "a": { "$ref": "#/$defs/A" } },
            "required": ["a"],
            "additionalProperties": false,
            "$defs": { "A": kind },
        });
        json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
    };
    let tools = [defining("f", json!({ "type": "boolean" })), defining("g", json!({ "const": 7 }))];
    let mut called = std::collections::BTreeSet::new();
    for seed in 0..12 {
        let more = json!({ "tools": tools, "tool_choice": "required" });
        let body = server.post(CHAT, &request(seed, &more)).good();
        let function = &body["choices"][0]["message"]["tool_calls"][0]["function"];
        let arguments = function["arguments"].as_str().expect("JSON as text");
        let arguments: Value = serde_json::from_str(arguments).expect("JSON");
        let name = function["name"].as_str().expect("a name").to_owned();
        assert!(if name == "f" { arguments["a"].is_boolean() } else { arguments["a"] == 7 });
        called.insert(name);
    }
    assert_eq!(called.len(), 2, "the weights choose which");
    let named = json!({ "type": "function", "function": { "name": "g" } });
    let mut streamed =
        request(3, &json!({ "tools": [tool("f"), tool("g")], "tool_choice": named }));
    streamed["stream"] = json!(true);
    let events: Vec<Value> = server
        .stream(CHAT, &streamed)
        .filter_map(|event| serde_json::from_str(&event).ok())
        .collect();
    let calls: Vec<&Value> = events
        .iter()
        .map(|event| &event["choices"][0]["delta"]["tool_calls"])
        .filter(|calls| !calls.is_null())
        .collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0][0]["function"]["name"], "g");
    let last = &events.last().expect("events")["choices"][0];
    assert_eq!(last["finish_reason"], "tool_calls");
}

#[test]
fn what_cannot_be_enforced_is_refused() {
    let golden = golden("llama");
    let server = Server::start(&Master::alone(), &golden.path, &["--context", "256"]);
    let refused = |more: Value| server.post(CHAT, &request(0, &more)).refused(400);
    let schema = |schema: Value| json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": schema } } });
    assert!(refused(schema(json!({ "type": "nothing" }))).contains("schema cannot be enforced"));
    assert!(refused(schema(json!([1]))).contains("not an object"));
    let said = refused(json!({ "response_format": { "type": "json_schema" } }));
    assert!(said.contains("response_format.json_schema"), "{said}");
    let said = refused(json!({ "response_format": { "type": "poem" } }));
    assert!(said.contains("\"poem\""), "{said}");
    assert!(refused(json!({ "tool_choice": "required" })).contains("tool_choice"));
    // A schema that nests as nobody needs it, one deeper than is read, a body of nothing but brackets.
    let nested = |levels: usize| {
        (0..levels).fold(
            json!({ "type": "boolean" }),
            |inner, _| json!({ "type": "object", "properties": { "a": inner }, "required": ["a"] }),
        )
    };
    server.post(CHAT, &request(0, &schema(nested(30)))).good();
    assert!(refused(schema(nested(200))).contains("recursion limit"));
    // What is no call of a function, where there should be one.
    for call in [json!("x"), json!({ "function": "f" }), json!({}), Value::Null] {
        let message = json!({ "role": "assistant", "tool_calls": [call] });
        let said = refused(json!({ "messages": [message] }));
        assert!(said.contains("messages.tool_calls"), "{said}");
    }
    let brackets = format!("{{\"messages\": {}", "[".repeat(1 << 20));
    server.post_text(CHAT, &brackets, None).refused(400);
    let large = format!("{{\"messages\": \"{}\"}}", "a".repeat(17 << 20));
    assert!(server.post_text(CHAT, &large, None).refused(413).contains("16 MiB"));
    assert_eq!(server.get("/health").good()["status"], "ok");
}
