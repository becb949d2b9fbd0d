//! The OpenAI API: what it answers, that company changes no answer, and that whoever leaves is forgotten.
use std::io::Write;
use std::time::Duration;

use cake_master::text::{Message, Text};
use cake_tests::master::{path, pins};
use cake_tests::model::Delta;
use cake_tests::{
    Far, Golden, Master, ModelShape, Server, TestWorker, WorkerOptions, budget_for, demo_model,
    golden, model, until,
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

/// A request for a greedy completion of token ids.
fn greedy(prompt: &[u32], tokens: usize) -> Value {
    json!({
        "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "logprobs": 0,
    })
}

/// Text, log-probabilities to the bit, and why it ended.
fn said(body: &Value) -> (String, Vec<String>, String) {
    let choice = &body["choices"][0];
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().expect("log-probabilities");
    let logprobs = logprobs.iter().map(Value::to_string).collect();
    (text(&choice["text"]), logprobs, text(&choice["finish_reason"]))
}

/// Prompts of different lengths, some of which begin alike.
fn prompts(golden: &Golden) -> Vec<Vec<u32>> {
    let ids = &golden.prompt_ids;
    (0..16)
        .map(|index| {
            let rotated = ids.iter().cycle().skip(index / 4).take(3 + 7 * index);
            rotated.copied().collect()
        })
        .collect()
}

#[test]
fn sixteen_at_once_each_get_what_they_get_alone() {
    let golden = golden("llama-sharded");
    let workers = TestWorker::several(&["a", "b"]);
    for master in [Master::alone(), Master::over(&workers)] {
        let args = ["--parallel", "6", "--context", "256"];
        // Of two servers, so that neither finds in its cache what the other computed.
        let other = Server::start(&Master::alone(), &golden.path, &args);
        let server = Server::start(&master, &golden.path, &args);
        let ask = |server: &Server, index: usize, prompt: &[u32]| {
            said(&server.post(COMPLETIONS, &greedy(prompt, 5 + 2 * index)).good())
        };
        let prompts = prompts(&golden);
        let alone: Vec<_> = prompts
            .iter()
            .enumerate()
            .rev()
            .map(|(index, prompt)| ask(&other, index, prompt))
            .collect();
        let alone: Vec<_> = alone.into_iter().rev().collect();
        let server = &server;
        let together: Vec<_> = std::thread::scope(|scope| {
            let each = prompts.iter().enumerate();
            let asked: Vec<_> = each
                .map(|(index, prompt)| scope.spawn(move || ask(server, index, prompt)))
                .collect();
            asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
        });
        for (index, (together, alone)) in together.iter().zip(&alone).enumerate() {
            assert_eq!(together, alone, "request {index}");
            assert_eq!(alone.1.len(), 5 + 2 * index);
        }
    }
}

#[test]
fn a_completion_is_what_run_answers() {
    let golden = golden("llama");
    let master = Master::alone();
    let answer = master.answer(&golden, &[], &[]);
    let server = Server::start(&master, &golden.path, &["--numerics", "exact"]);
    let body =
        server.post(COMPLETIONS, &greedy(&golden.prompt_ids, golden.greedy_ids.len())).good();
    let logprobs: Vec<f32> = body["choices"][0]["logprobs"]["token_logprobs"]
        .as_array()
        .expect("log-probabilities")
        .iter()
        .map(|value| value.as_f64().expect("a number") as f32)
        .collect();
    assert_eq!(logprobs.len(), answer.logprob_bits.len());
    for (found, bits) in logprobs.iter().zip(&answer.logprob_bits) {
        assert!((found - f32::from_bits(*bits)).abs() < 1e-5, "{found}");
    }
    assert_eq!(body["usage"]["prompt_tokens"], golden.prompt_ids.len());
    assert_eq!(body["usage"]["completion_tokens"], golden.greedy_ids.len());
    assert_eq!(body["object"], "text_completion");
}

#[test]
fn a_stream_says_the_same_piece_by_piece() {
    let golden = golden("llama");
    let server = Server::start(&Master::alone(), &golden.path, &[]);
    let mut request = greedy(&golden.prompt_ids, 12);
    let whole = server.post(COMPLETIONS, &request).good();
    request["stream"] = json!(true);
    request["stream_options"] = json!({ "include_usage": true });
    let mut events: Vec<String> = server.stream(COMPLETIONS, &request).collect();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let events: Vec<Value> =
        events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
    let (usage, pieces) = events.split_last().expect("events");
    assert_eq!(usage["usage"]["completion_tokens"], 12);
    assert_eq!(usage["choices"], json!([]));
    let text: String =
        pieces.iter().map(|piece| piece["choices"][0]["text"].as_str().expect("text")).collect();
    assert_eq!(text, whole["choices"][0]["text"].as_str().expect("text"));
    let reasons: Vec<&Value> =
        pieces.iter().map(|piece| &piece["choices"][0]["finish_reason"]).collect();
    assert_eq!(reasons.last().expect("one"), &&json!("length"));
    assert_eq!(reasons.iter().filter(|reason| reason.is_string()).count(), 1);
}

#[test]
fn what_cannot_be_is_refused_in_openais_words() {
    let golden = golden("llama");
    let server = Server::start(&Master::alone(), &golden.path, &["--context", "64"]);
    let refusal = |request: Value, status| server.post(COMPLETIONS, &request).refused(status);
    assert!(server.post_text(COMPLETIONS, "{", None).refused(400).contains("not such a request"));
    let said = refusal(json!({ "prompt": "a", "n": 0 }), 400);
    assert!(said.contains("n is 0, expected 1 to 16"), "{said}");
    let said = refusal(json!({ "prompt": "a", "temperature": -1 }), 400);
    assert!(said.contains("temperature is -1"), "{said}");
    let said = refusal(json!({ "prompt": vec![1; 64] }), 400);
    assert!(said.contains("64 tokens") && said.contains("context of 64"), "{said}");
    let said = refusal(json!({ "prompt": [1, 4_000_000] }), 400);
    assert!(said.contains("4000000 is not in the vocabulary"), "{said}");
    assert!(refusal(json!({ "prompt": [] }), 400).contains("0 prompts"));
    let said = refusal(json!({ "prompt": [[]] }), 400);
    assert!(said.contains("a list without token ids"), "{said}");
    let said = refusal(json!({ "prompt": "a", "model": "other" }), 404);
    assert!(said.contains("\"other\" is not served"), "{said}");
    let said = refusal(json!({ "prompt": "a", "best_of": 4, "n": 2 }), 400);
    assert!(said.contains("best_of is 4, expected n, which is 2"), "{said}");
    assert!(server.get("/v1/nothing").refused(404).contains("/v1/nothing"));
    assert!(server.get(COMPLETIONS).refused(405).contains("GET"));
}

#[test]
fn a_key_is_asked_for_if_there_are_any() {
    let golden = golden("llama");
    let home = tempfile::tempdir().expect("a temporary folder");
    let file = home.path().join("keys");
    std::fs::write(&file, "one\n\n two \n").expect("written");
    let file = file.to_str().expect("plain").to_owned();
    let server = Server::start(&Master::alone(), &golden.path, &["--api-key-file", &file]);
    let body = greedy(&golden.prompt_ids, 1).to_string();
    server.post_text(COMPLETIONS, &body, None).refused(401);
    server.post_text(COMPLETIONS, &body, Some("three")).refused(401);
    server.post_text(COMPLETIONS, &body, Some("two")).good();
    assert_eq!(server.get("/health").good()["status"], "ok");
    // Clients of Anthropic's have a header of their own for it, and words of their own for who brings none.
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1 });
    let bring = |key: &str| server.post_with(MESSAGES, &body, ("x-api-key", key), None);
    assert_eq!(bring("two").good()["type"], "message");
    for refused in [bring("three"), bring(""), server.post(MESSAGES, &body)] {
        assert_eq!(refused.body["type"], "error");
        assert_eq!(refused.body["error"]["type"], "authentication_error");
        assert!(refused.refused(401).contains("x-api-key"));
    }
}

#[test]
fn a_second_turn_computes_what_is_new() {
    let golden = golden("llama");
    let server = Server::start(&Master::alone(), &golden.path, &["--context", "256"]);
    let first: Vec<u32> = golden.prompt_ids.iter().cycle().take(100).copied().collect();
    let cached = |request: &Value| {
        let usage = server.post(COMPLETIONS, request).good()["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    assert_eq!(cached(&greedy(&first, 4)), 0);
    let second: Vec<u32> = first.iter().copied().chain([1, 2, 3]).collect();
    assert_eq!(cached(&greedy(&second, 4)), 96, "all whole blocks of the first turn");
    let other: Vec<u32> = first[..40].iter().copied().chain([9; 30]).collect();
    assert_eq!(cached(&greedy(&other, 4)), 32, "what both begin with");
}

/// Over two stages, in the words of a conversation.
#[test]
fn a_turn_after_two_thousand_tokens_computes_its_own() {
    second_turn(ModelShape::tiny());
}

/// The same where layers keep a state, which cannot be cut back: the second turn begins from a copy of it.
#[test]
fn a_turn_goes_on_from_the_state_after_two_thousand_tokens() {
    second_turn(ModelShape { delta: Some(Delta::QWEN), layers: 5, ..ModelShape::tiny() });
}

fn second_turn(shape: ModelShape) {
    const BLOCK: usize = 16;
    let home = tempfile::tempdir().expect("a temporary folder");
    let shape = ModelShape { max_positions: 4096, ..shape };
    model::make(home.path(), &shape, 11).expect("written");
    let text = Text::open(home.path()).expect("a tokenizer");
    let workers = TestWorker::several(&["a", "b"]);
    let args = ["--context", "3072", "--place", "a=0..2", "--place", "b=2..5"];
    let master = Master::over(&workers);
    let server = Server::start(&master, home.path(), &args);
    let ask = |server: &Server, messages: &[Message]| {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| json!({ "role": message.role, "content": message.content }))
            .collect();
        let body = json!({ "messages": messages, "max_tokens": 24, "temperature": 0 });
        let body = server.post(CHAT, &body).good();
        let answer = body["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
        let number = |value: &Value| value.as_u64().expect("a number") as usize;
        let usage = &body["usage"];
        let cached = number(&usage["prompt_tokens_details"]["cached_tokens"]);
        (answer, number(&usage["prompt_tokens"]), cached)
    };
    let question: String = (0..460).map(|number| format!("{number} and ")).collect();
    let mut turns = vec![Message::new("user", &question)];
    let first = text.encode_chat(&turns).expect("ids").ids;
    assert!((2000..3000).contains(&first.len()), "{} tokens", first.len());
    let (answer, tokens, cached) = ask(&server, &turns);
    assert_eq!((tokens, cached), (first.len(), 0));
    turns.extend([Message::new("assistant", &answer), Message::new("user", "Go on.")]);
    let second = text.encode_chat(&turns).expect("ids").ids;
    let common = first.iter().zip(&second).take_while(|(one, other)| one == other).count();
    let (said, tokens, cached) = ask(&server, &turns);
    assert_eq!(tokens, second.len());
    eprintln!("{tokens} tokens, {common} of them known, {} computed", tokens - cached);
    assert!(common >= 2000 && tokens - cached <= tokens - common + BLOCK);
    drop(server);
    let fresh = Server::start(&master, home.path(), &args);
    assert_eq!(ask(&fresh, &turns), (said, tokens, 0), "as who computes all of it");
}

#[test]
fn who_goes_away_is_forgotten_at_once() {
    let far = Far::start();
    let server = Server::start(&far.master, &far.model, &Far::PLACE);
    let mut request = greedy(&[1, 2, 3], 1000);
    request["stream"] = json!(true);
    let mut stream = server.stream(COMPLETIONS, &request);
    stream.next().expect("it has begun");
    let load = || server.get("/api/cluster").good()["load"].clone();
    assert_eq!(load()["running"], 1);
    drop(stream);
    until("the sequence to end", LIMIT, || load()["running"] == 0);
    assert_eq!(load()["kv_blocks"]["held"], 0);
    until("its last step to come back", LIMIT, || load()["steps"] == 0);
}

#[test]
fn more_than_may_wait_are_sent_away() {
    let far = Far::start();
    let args = [&Far::PLACE[..], &["--parallel", "1", "--queue", "1"]].concat();
    let server = Server::start(&far.master, &far.model, &args);
    let mut request = greedy(&[1, 2, 3], 2000); // All of the context is promised to it.
    request["stream"] = json!(true);
    let load = || server.get("/api/cluster").good()["load"].clone();
    let mut running = server.stream(COMPLETIONS, &request);
    running.next().expect("it has begun");
    let waiting = server.stream(COMPLETIONS, &request);
    until("one to wait", LIMIT, || load()["waiting"] == 1);
    let reply = server.post(COMPLETIONS, &greedy(&[1, 2, 3], 1));
    assert!(reply.retry_after.is_some());
    assert!(reply.refused(429).contains("1 answers wait already"));
    drop(running);
    drop(waiting);
    until("all to end", LIMIT, || load()["running"] == 0 && load()["waiting"] == 0);
    server.post(COMPLETIONS, &greedy(&[1, 2, 3], 1)).good();
}

#[test]
fn several_answers_and_prompts_come_in_order() {
    let golden = golden("llama");
    let server = Server::start(&Master::alone(), &golden.path, &[]);
    let prompts = [golden.prompt_ids.clone(), golden.prompt_ids[..4].to_vec()];
    let mut request = greedy(&[], 6);
    request["prompt"] = json!(prompts);
    request["n"] = json!(2);
    let body = server.post(COMPLETIONS, &request).good();
    let choices = body["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 4);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        let alone = server.post(COMPLETIONS, &greedy(&prompts[index / 2], 6)).good();
        assert_eq!(choice["text"], alone["choices"][0]["text"], "{index}");
    }
    assert_eq!(body["usage"]["prompt_tokens"], prompts[0].len() + prompts[1].len());
    assert_eq!(body["usage"]["completion_tokens"], 24);
}

#[test]
fn a_chat_has_a_role_and_stops_where_it_is_told_to() {
    let server = Server::start(&Master::alone(), &demo_model(), &["--model-name", "demo"]);
    assert_eq!(server.get("/v1/models").good()["data"][0]["id"], "demo");
    assert_eq!(server.get("/v1/models/demo").good()["object"], "model");
    server.get("/v1/models/other").refused(404);
    let question = json!([
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "What is the capital of France?" }] },
    ]);
    let mut request = json!({
        "model": "demo", "messages": question, "temperature": 0, "max_completion_tokens": 30,
    });
    let whole = server.post(CHAT, &request).good();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    let text = message["content"].as_str().expect("text");
    assert!(!text.is_empty());
    request["stream"] = json!(true);
    request["logprobs"] = json!(true);
    request["top_logprobs"] = json!(2);
    let events: Vec<String> = server.stream(CHAT, &request).collect();
    let first: Value = serde_json::from_str(&events[0]).expect("JSON");
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    let streamed: String = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).expect("JSON"))
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(streamed, text);
    let second: Value = serde_json::from_str(&events[1]).expect("JSON");
    let logprobs = &second["choices"][0]["logprobs"]["content"][0];
    assert_eq!(logprobs["top_logprobs"].as_array().expect("two").len(), 2);
    assert_eq!(logprobs["top_logprobs"][0]["logprob"], logprobs["logprob"], "greedy");
    let stop = text.chars().skip(3).take(3).collect::<String>();
    request["stream"] = json!(false);
    request["stop"] = json!(stop);
    let stopped = server.post(CHAT, &request).good();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let before = text.split(&stop).next().expect("something");
    assert_eq!(stopped["choices"][0]["message"]["content"].as_str().expect("text"), before);
    let said = server.post(CHAT, &json!({ "messages": [] })).refused(400);
    assert!(said.contains("messages is empty"), "{said}");
}

#[test]
fn an_answer_that_ended_at_a_text_is_as_if_nothing_had_been_computed_after_it() {
    let args = ["--temperature", "0", "--max-tokens", "30", "--stop", "of"];
    let master = Master::alone();
    let mut chat = master.start(&[&["chat", &path(&demo_model())][..], &args].concat());
    let questions = ["What is the capital of France?", "And of Italy?"];
    let mut input = chat.stdin().expect("not taken yet");
    for question in questions {
        writeln!(input, "{question}").expect("it listens");
    }
    drop(input);
    let said = chat.finish(LIMIT).success().stdout;
    let server = Server::start(&Master::alone(), &demo_model(), &[]);
    let mut messages = Vec::new();
    let mut answers = Vec::new();
    for question in questions {
        messages.push(json!({ "role": "user", "content": question }));
        let request = json!({
            "messages": messages, "temperature": 0, "max_completion_tokens": 30, "stop": ["of"],
        });
        let answer = server.post(CHAT, &request).good();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        let text = answer["choices"][0]["message"]["content"].as_str().expect("text");
        answers.push(format!("{text}\n"));
        messages.push(json!({ "role": "assistant", "content": text }));
    }
    assert_eq!(said, answers.concat());
    // The token after the text that ends it is on its way already where one command computes for itself.
    let (model, workers) = (path(&demo_model()), ["a", "b"].map(TestWorker::new));
    let run = [&["run", &model, questions[0]], &args[..]].concat();
    let pins = pins(&[("a", 0, 6), ("b", 6, 12)]);
    let over: Vec<&str> = run.iter().copied().chain(pins.iter().map(String::as_str)).collect();
    for (master, run) in [(Master::alone(), &run), (Master::over(&workers), &over)] {
        assert_eq!(master.run(run).success().stdout, answers[0]);
    }
}

#[test]
fn a_worker_that_nobody_can_replace_ends_every_answer_and_none_hangs() {
    let golden = golden("llama-sharded");
    // Neither can take what the other holds.
    let memory = budget_for(&golden.path, 6, &["--parallel", "2", "--chunk", "32"]);
    let worker =
        |name| TestWorker::start(name, WorkerOptions { memory, ..WorkerOptions::default() });
    let mut workers = ["a", "b"].map(worker);
    let args = [
        "--parallel",
        "2",
        "--place",
        "a=0..6",
        "--place",
        "b=6..12",
        "--grace",
        "0",
        "--chunk",
        "32",
    ];
    let server = Server::start(&Master::over(&workers), &golden.path, &args);
    let mut request = greedy(&golden.prompt_ids, 200);
    request["stream"] = json!(true);
    let streams: Vec<_> = (0..5).map(|_| server.stream(COMPLETIONS, &request)).collect();
    workers[1].kill();
    let mut lost = 0;
    for stream in streams {
        let events: Vec<String> = stream.collect();
        let [.., before, last] = &events[..] else { panic!("{events:?}") };
        assert_eq!(last, "[DONE]", "whether it broke off or not");
        let broke_off = before.contains("\"error\"");
        assert_eq!(broke_off, before.contains("not whole again"), "{before}");
        lost += usize::from(broke_off);
    }
    assert!(lost > 0, "some had not ended");
    until("the loss to be told", LIMIT, || server.get("/ready").body["status"] == "broken");
    server.post(COMPLETIONS, &greedy(&golden.prompt_ids, 1)).refused(503);
}
