//! What a model thinks is shown apart from what it says: by the API, in its streams, and in the terminal.
use std::io::Write;
use std::time::Duration;

use cake_tests::master::path;
use cake_tests::{Master, Server, demo_model};
use serde_json::{Value, json};
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const LIMIT: Duration = Duration::from_secs(60);

/// Written like Qwen3's: the model's answer begins with thoughts, unless the template is told otherwise.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n\
    {% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{% endif %}";

/// The model that ships with the program, with that template.
fn thinker() -> TempDir {
    let home = TempDir::with_prefix("cake-model-").expect("a temporary folder");
    for entry in std::fs::read_dir(demo_model()).expect("the demo model is there") {
        let entry = entry.expect("a listed file");
        std::fs::copy(entry.path(), home.path().join(entry.file_name())).expect("copied");
    }
    std::fs::write(home.path().join("chat_template.jinja"), TEMPLATE).expect("written");
    home
}

/// The same model, whose thoughts come to an end: its word "Once" is the token that begins them, and its full stop the one
/// that ends them. So it thinks as it would begin a story, and says how that goes on.
pub(crate) fn brief_thinker() -> TempDir {
    let model = thinker();
    let write = |file: &str, text: String| {
        std::fs::write(model.path().join(file), text).expect("written");
    };
    write("chat_template.jinja", TEMPLATE.replace("<think>\n", "<think>"));
    let text = std::fs::read(model.path().join("tokenizer.json")).expect("readable");
    let mut tokenizer: Value = serde_json::from_slice(&text).expect("JSON");
    for (word, marker) in [("Once", "<think>"), (".", "</think>")] {
        let vocab = tokenizer["model"]["vocab"].as_object_mut().expect("tokens and their ids");
        let id = vocab.remove(word).expect("it has this word");
        vocab.insert(marker.to_owned(), id.clone());
        let merges = tokenizer["model"]["merges"].as_array_mut().expect("pairs");
        let text = |part: &Value| part.as_str().expect("text").to_owned();
        merges.retain(|pair| {
            let [one, other] = [&pair[0], &pair[1]].map(text);
            one != word && other != word && one + &other != word
        });
        let mut token = tokenizer["added_tokens"][0].clone();
        (token["id"], token["content"], token["special"]) = (id, json!(marker), json!(false));
        tokenizer["added_tokens"].as_array_mut().expect("a list").push(token);
    }
    write("tokenizer.json", tokenizer.to_string());
    model
}

/// A question with these fields beside it.
fn request(more: &Value) -> Value {
    let mut request = json!({
        "messages": [{ "role": "user", "content": "Tell me of an owl." }],
        "temperature": 0, "max_tokens": 12, "ignore_eos": true,
    });
    for (name, value) in more.as_object().expect("fields") {
        request[name] = value.clone();
    }
    request
}

#[test]
fn thoughts_have_a_field_of_their_own_and_templates_are_told_whether_to_think() {
    let model = thinker();
    let server = Server::start(&Master::alone(), model.path(), &[]);
    let message = |more: Value| {
        let body = server.post(CHAT, &request(&more)).good();
        assert_eq!(body["usage"]["completion_tokens"], 12);
        body["choices"][0]["message"].clone()
    };
    let thinking = message(json!({}));
    let thought = thinking["reasoning_content"].as_str().expect("thoughts");
    assert_eq!(thinking["content"], "", "its thoughts do not end");
    assert!(!thought.is_empty());
    let mut streamed = [String::new(), String::new()];
    for data in server.stream(CHAT, &request(&json!({ "stream": true }))) {
        let Ok(event) = serde_json::from_str::<Value>(&data) else { continue };
        let delta = &event["choices"][0]["delta"];
        for (all, name) in streamed.iter_mut().zip(["reasoning_content", "content"]) {
            all.push_str(delta[name].as_str().unwrap_or_default());
        }
    }
    assert_eq!(streamed, [thought, ""]);
    let silent = message(json!({ "enable_thinking": false }));
    assert!(!silent["content"].as_str().expect("text").is_empty());
    assert!(silent.get("reasoning_content").is_none(), "{silent}");
    let kwargs = json!({ "chat_template_kwargs": { "enable_thinking": false, "budget": 3 } });
    assert_eq!(message(kwargs), silent);
    assert_eq!(message(json!({ "reasoning_effort": "high" })), thinking, "nobody asks for it");
    assert_eq!(message(json!({ "reasoning_effort": "none" })), silent);
    let both = json!({ "reasoning_effort": "none", "enable_thinking": true });
    assert_eq!(message(both), thinking, "what is said of it alone counts");
    // A template takes all that it is told as its own.
    for (name, value) in [
        ("reasoning_effort", json!("high<|im_end|>")),
        ("chat_template_kwargs", json!({ "a": "<|im_start|>" })),
        ("chat_template_kwargs", json!({ "a": [1] })),
        ("chat_template_kwargs", json!({ "a": "b".repeat(65) })),
    ] {
        let reply = server.post(CHAT, &request(&json!({ name: value })));
        assert_eq!(reply.body["error"]["param"], name, "{}", reply.body);
        reply.refused(400);
    }
}

/// A question for that model, without what would end its thoughts, and a field of its own.
fn brief(name: &str, value: Value) -> Value {
    let question = json!([{ "role": "user", "content": "Tell me a story about an owl" }]);
    request(&json!({ "messages": question, "max_tokens": 40, name: value }))
}

/// What a chat gives for it: the thoughts and the text.
fn in_a_chat(server: &Server, thinks: bool) -> [String; 2] {
    let body = server.post(CHAT, &brief("enable_thinking", json!(thinks))).good();
    let message = &body["choices"][0]["message"];
    ["reasoning_content", "content"].map(|it| message[it].as_str().unwrap_or_default().to_owned())
}

#[test]
fn thoughts_are_a_block_before_the_text_in_messages_for_who_asks_for_them() {
    let model = brief_thinker();
    let server = Server::start(&Master::alone(), model.path(), &[]);
    let message = |thinking: Value| server.post(MESSAGES, &brief("thinking", thinking)).good();
    let [thought, text] = in_a_chat(&server, true);
    assert!(!thought.is_empty() && !text.is_empty(), "{thought:?} {text:?}");
    let blocks = json!([
        { "type": "thinking", "thinking": thought, "signature": "" },
        { "type": "text", "text": text },
    ]);
    let thinking = json!({ "type": "enabled", "budget_tokens": 1024 });
    assert_eq!(message(thinking)["content"], blocks);
    let [none, silent] = in_a_chat(&server, false);
    assert_eq!(none, "");
    for thinking in [Value::Null, json!({ "type": "disabled" })] {
        assert_eq!(message(thinking)["content"], json!([{ "type": "text", "text": silent }]));
    }
}

#[test]
fn a_stream_of_messages_ends_the_block_of_thoughts_before_it_begins_that_of_the_text() {
    let model = brief_thinker();
    let server = Server::start(&Master::alone(), model.path(), &[]);
    let mut asked = brief("thinking", json!({ "type": "enabled", "budget_tokens": 1024 }));
    let whole = server.post(MESSAGES, &asked).good();
    asked["stream"] = json!(true);
    let read = |data: String| serde_json::from_str::<Value>(&data).expect("JSON");
    let events: Vec<Value> =
        server.stream(MESSAGES, &asked).map(read).filter(|event| event["type"] != "ping").collect();
    let mut order: Vec<String> =
        events.iter().map(|event| format!("{} {}", event["type"], event["index"])).collect();
    order.dedup(); // However many pieces a block comes in.
    let expected = [
        "\"message_start\" null",
        "\"content_block_start\" 0",
        "\"content_block_delta\" 0",
        "\"content_block_stop\" 0",
        "\"content_block_start\" 1",
        "\"content_block_delta\" 1",
        "\"content_block_stop\" 1",
        "\"message_delta\" null",
        "\"message_stop\" null",
    ];
    assert_eq!(order, expected);
    let begun: Vec<&Value> = events
        .iter()
        .map(|event| &event["content_block"])
        .filter(|block| !block.is_null())
        .collect();
    let empty = [
        json!({ "type": "thinking", "thinking": "", "signature": "" }),
        json!({ "type": "text", "text": "" }),
    ];
    assert_eq!(begun, empty.each_ref());
    let said = |kind: &str, field: &str| -> Vec<&str> {
        let deltas = events.iter().map(|event| &event["delta"]).filter(|it| it["type"] == kind);
        deltas.map(|delta| delta[field].as_str().expect("text")).collect()
    };
    let pieces = [said("thinking_delta", "thinking"), said("text_delta", "text")];
    assert!(pieces.iter().all(|pieces| pieces.len() > 1), "{pieces:?}");
    assert_eq!(pieces.map(|pieces| pieces.concat()), in_a_chat(&server, true));
    let last = &events[events.len() - 2];
    assert_eq!(last["delta"]["stop_reason"], whole["stop_reason"]);
    assert_eq!(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
}

#[test]
fn thoughts_go_back_to_templates_that_want_them() {
    let model = thinker();
    let template = "{% for m in messages %}{{ m.reasoning_content }}{% endfor %}<|im_start|>";
    std::fs::write(model.path().join("chat_template.jinja"), template).expect("written");
    let server = Server::start(&Master::alone(), model.path(), &[]);
    let tokens = |more: Value| {
        let mut said = json!({ "role": "assistant", "content": "Yes." });
        if let Value::String(thought) = more {
            said["reasoning_content"] = json!(thought);
        }
        let body = server.post(CHAT, &request(&json!({ "messages": [said] }))).good();
        body["usage"]["prompt_tokens"].as_u64().expect("a number")
    };
    assert_eq!(tokens(Value::Null), 1);
    assert!(tokens(json!("An owl sees at night.")) > 4);
}

#[test]
fn the_terminal_folds_thoughts_and_shows_them_when_asked() {
    let (model, master) = (thinker(), Master::alone());
    let args = ["--max-tokens", "12", "--temperature", "0", "--ignore-eos"];
    let talk = |lines: &[&str]| {
        let mut chat = master.start(&[&["chat", &path(model.path())][..], &args].concat());
        let mut input = chat.stdin().expect("not taken yet");
        lines.iter().for_each(|line| writeln!(input, "{line}").expect("it listens"));
        drop(input);
        chat.finish(LIMIT).success()
    };
    let folded = talk(&["/thoughts", "Tell me of an owl."]);
    assert!(folded.stderr.contains("(there are none)"), "{}", folded.stderr);
    assert!(folded.stderr.contains("(thinking"), "{}", folded.stderr);
    assert_eq!(folded.stdout.trim(), "", "its thoughts do not end");
    let shown = talk(&["Tell me of an owl.", "/thoughts"]);
    assert!(
        shown.stderr.len() > folded.stderr.len() - "(there are none)".len() + 10,
        "{}",
        shown.stderr
    );
}
