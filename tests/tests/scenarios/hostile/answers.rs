//! What requests ask for, what answers say of themselves, and what one client learns of another.
use std::path::{Path, PathBuf};
use std::time::Duration;

use cake_tests::{Far, Golden, Master, Server, demo_model, golden, until};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";
const CHAT: &str = "/v1/chat/completions";
const LIMIT: Duration = Duration::from_secs(60);

/// A server that asks for one of these keys.
fn with_keys(golden: &Golden, home: &Path, keys: &str, args: &[&str]) -> Server {
    let file: PathBuf = home.join("keys");
    std::fs::write(&file, keys).expect("written");
    let file = file.to_str().expect("plain").to_owned();
    let all = [&["--api-key-file", &file, "--context", "256"], args].concat();
    Server::start(&Master::alone(), &golden.path, &all)
}

/// How many tokens of the prompt were there already, as whoever has this key is told.
fn cached(server: &Server, key: &str, request: &Value) -> u64 {
    let body = server.post_text(COMPLETIONS, &request.to_string(), Some(key)).good();
    body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
}

/// A prompt of a hundred tokens that begins with those of the golden one.
fn long(golden: &Golden) -> Vec<u32> {
    golden.prompt_ids.iter().cycle().take(100).copied().collect()
}

#[test]
fn nobody_learns_what_prompts_of_another_key_began_with() {
    let golden = golden("llama");
    let home = tempfile::tempdir().expect("a temporary folder");
    let server = with_keys(&golden, home.path(), "one\ntwo\n", &[]);
    let request = json!({ "prompt": long(&golden), "max_tokens": 2, "temperature": 0 });
    assert_eq!(cached(&server, "one", &request), 0);
    assert_eq!(cached(&server, "two", &request), 0, "another key's prompt");
    assert_eq!(cached(&server, "one", &request), 96);
    assert_eq!(cached(&server, "two", &request), 96, "by now its own");
    // What was read for an embedding is kept, too.
    let other: Vec<u32> = long(&golden).into_iter().rev().collect();
    let embed = json!({ "input": [other] }).to_string();
    server.post_text(EMBEDDINGS, &embed, Some("one")).good();
    let request = json!({ "prompt": other, "max_tokens": 2, "temperature": 0 });
    assert_eq!(cached(&server, "two", &request), 0, "another key's text");
    assert_eq!(cached(&server, "one", &request), 96);
}

#[test]
fn keys_share_prefixes_where_that_is_asked_for() {
    let golden = golden("llama");
    let home = tempfile::tempdir().expect("a temporary folder");
    let server = with_keys(&golden, home.path(), "one\ntwo\n", &["--share-prefixes"]);
    let request = json!({ "prompt": long(&golden), "max_tokens": 2, "temperature": 0 });
    assert_eq!(cached(&server, "one", &request), 0);
    assert_eq!(cached(&server, "two", &request), 96);
}

#[test]
fn what_a_request_does_not_say_is_as_openai_has_it() {
    let server = Server::start(&Master::alone(), &demo_model(), &["--default-max-tokens", "30"]);
    let question = json!([{ "role": "user", "content": "Tell me a story about an owl." }]);
    // Sampled: three answers are three answers, of a seed always the same.
    let body = server.post(CHAT, &json!({ "messages": question, "n": 3, "seed": 3 })).good();
    let choices = body["choices"].as_array().expect("choices");
    let mut texts: Vec<&str> =
        choices.iter().map(|choice| choice["message"]["content"].as_str().expect("text")).collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), 3, "{texts:?}");
    // Bounded, and it says by what.
    let endless = json!({ "messages": question, "ignore_eos": true });
    let body = server.post(CHAT, &endless).good();
    assert_eq!(body["usage"]["completion_tokens"], 30);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["choices"][0]["finish_details"], json!({ "type": "max_tokens" }));
}

#[test]
fn an_answer_says_whether_its_limit_or_the_context_ended_it() {
    let server = Server::start(&Master::alone(), &demo_model(), &["--context", "64"]);
    let mut request = json!({
        "messages": [{ "role": "user", "content": "Hello!" }], "max_tokens": 1000, "ignore_eos": true,
    });
    let body = server.post(CHAT, &request).good();
    let (prompt, answer) = (&body["usage"]["prompt_tokens"], &body["usage"]["completion_tokens"]);
    assert_eq!(prompt.as_u64().expect("a number") + answer.as_u64().expect("a number"), 64);
    let choice = &body["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["finish_details"]["type"]),
        (&json!("length"), &json!("context"))
    );
    request["stream"] = json!(true);
    let events: Vec<String> = server.stream(CHAT, &request).collect();
    let last: Value = serde_json::from_str(&events[events.len() - 2]).expect("JSON");
    assert_eq!(last["choices"][0]["finish_details"]["type"], "context", "{last}");
    let one = json!({ "prompt": [1, 2, 3], "max_tokens": 1, "ignore_eos": true });
    let body = server.post(COMPLETIONS, &one).good();
    assert_eq!(body["choices"][0]["finish_details"]["type"], "max_tokens");
    let said = json!({ "messages": [{ "role": "user", "content": "owl ".repeat(200) }] });
    let reply = server.post(CHAT, &said);
    assert_eq!(reply.body["error"]["code"], "context_length_exceeded", "{}", reply.body);
    reply.refused(400);
}

#[test]
fn what_would_change_the_answer_and_is_not_done_is_refused_by_name() {
    let server = Server::start(&Master::alone(), &demo_model(), &["--context", "128"]);
    let ask = |path: &str, more: Value| {
        let mut request = json!({ "max_tokens": 1 });
        match path {
            CHAT => request["messages"] = json!([{ "role": "user", "content": "Hello!" }]),
            _ => request["prompt"] = json!("Hello!"),
        }
        for (name, value) in more.as_object().expect("fields") {
            request[name] = value.clone();
        }
        server.post(path, &request)
    };
    for (name, value) in [
        ("guided_json", json!({ "type": "object" })),
        ("guided_choice", json!(["yes", "no"])),
        ("guided_regex", json!("a+")),
        ("guided_grammar", json!("root ::= \"a\"")),
        ("grammar", json!("root ::= \"a\"")),
        ("functions", json!([{ "name": "f" }])),
        ("modalities", json!(["text", "audio"])),
        ("stop_token_ids", json!([5])),
    ] {
        for path in [CHAT, COMPLETIONS] {
            let reply = ask(path, json!({ name: value }));
            assert_eq!(reply.body["error"]["param"], name, "{}", reply.body);
            assert!(reply.refused(400).contains(name));
        }
    }
    assert!(ask(CHAT, json!({ "best_of": 2 })).refused(400).contains("best_of"));
    assert!(ask(CHAT, json!({ "echo": true })).refused(400).contains("echo"));
    let format = json!({ "response_format": { "type": "json_object" } });
    assert!(ask(COMPLETIONS, format).refused(400).contains("response_format"));
    for (name, value) in
        [("temperature", json!(2.5)), ("temperature", json!(-0.1)), ("top_p", json!(1.5))]
    {
        assert!(ask(CHAT, json!({ name: value })).refused(400).contains(name));
    }
    let harmless = json!({
        "user": "a", "metadata": { "a": "b" }, "store": false, "service_tier": "auto", "seed": 1,
        "safety_identifier": "a", "prompt_cache_key": "a", "parallel_tool_calls": true,
        "modalities": ["text"], "echo": false, "of_a_later_version": { "a": [1] }, "temperature": 2,
    });
    for path in [CHAT, COMPLETIONS] {
        ask(path, harmless.clone()).good();
    }
}

#[test]
fn short_requests_do_not_wait_for_as_many_as_are_promised() {
    let far = Far::start();
    // 64 blocks for one sequence of 1024 tokens, or for eight of a hundred.
    let args = [&Far::PLACE[..], &["--parallel", "1", "--queue", "8"]].concat();
    let server = Server::start(&far.master, &far.model, &args);
    let request = json!({
        "prompt": [1, 2, 3], "max_tokens": 100, "temperature": 0, "ignore_eos": true, "stream": true,
    });
    let load = || server.get("/api/cluster").good()["load"].clone();
    let streams: Vec<_> = (0..8).map(|_| server.stream(COMPLETIONS, &request)).collect();
    until("all to run at once", LIMIT, || load()["running"] == 8);
    assert_eq!(load()["waiting"], 0);
    // Those that run beside the promise leave the queue as it is.
    let mut longest = request.clone();
    longest["max_tokens"] = json!(5000);
    let waiting: Vec<_> = (0..8).map(|_| server.stream(COMPLETIONS, &longest)).collect();
    until("eight to wait", LIMIT, || load()["waiting"] == 8);
    longest["stream"] = json!(false);
    server.post(COMPLETIONS, &longest).refused(429);
    for stream in streams {
        assert_eq!(stream.last().as_deref(), Some("[DONE]"));
    }
    until("one of the longest to run", LIMIT, || load()["running"] == 1);
    drop(waiting);
    until("all to end", LIMIT, || load()["running"] == 0 && load()["waiting"] == 0);
}
