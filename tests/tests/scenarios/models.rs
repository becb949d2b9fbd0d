//! Several models at hand, of which one has room: each loaded when it is asked for, none cut off, and nothing pushed a second time.
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use cake_tests::master::{path, pins, strs};
use cake_tests::streams::count;
use cake_tests::{Call, Golden, Master, Meddler, Server, TestWorker, demo_model, golden, until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::together::{CHUNK, needs, offering};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const COMPLETIONS: &str = "/v1/completions";
/// Of two models of five layers each.
pub(crate) const PLACE: [(&str, usize, usize); 3] = [("a", 0, 2), ("b", 2, 4), ("c", 4, 5)];
const TOKENS: usize = 12;

/// A greedy completion of this model's recorded prompt.
pub(crate) fn ask(golden: &Golden, name: &str) -> Value {
    json!({
        "model": name, "prompt": golden.prompt_ids, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": true,
        "logprobs": 0,
    })
}

/// Text and log-probabilities, to the bit.
pub(crate) fn said(server: &Server, golden: &Golden, name: &str) -> (Value, Value) {
    let body = server.post(COMPLETIONS, &ask(golden, name)).good();
    assert_eq!(body["model"], name);
    let choice = &body["choices"][0];
    (choice["text"].clone(), choice["logprobs"]["token_logprobs"].clone())
}

/// What a server of this model alone says.
pub(crate) fn alone(golden: &Golden, name: &str) -> (Value, Value) {
    let server = Server::start(&Master::alone(), &golden.path, &["--numerics", "exact"]);
    said(&server, golden, name)
}

/// The models that are loaded, as Ollama's API has it.
pub(crate) fn running(server: &Server) -> Vec<String> {
    let body = server.get("/api/ps").good();
    let models = body["models"].as_array().expect("a list").iter();
    models.map(|model| model["name"].as_str().expect("a name").to_owned()).collect()
}

/// A copy of a model's files.
pub(crate) fn copy(model: &Path, target: &Path) {
    std::fs::create_dir_all(target).expect("it can be made");
    for entry in std::fs::read_dir(model).expect("it is there").flatten() {
        std::fs::copy(entry.path(), target.join(entry.file_name())).expect("it can be copied");
    }
}

#[test]
fn workers_at_addresses_are_told_of_while_no_model_is_loaded() {
    let (llama, qwen) = (golden("llama"), golden("qwen2"));
    let (attic, mut porch) = (TestWorker::new("attic"), TestWorker::new("porch"));
    let master = Master::over([&attic, &porch]);
    porch.kill();
    let server = Server::of_several(&master, &[&llama.path, &qwen.path], &[]);
    let cluster = || server.get("/api/cluster").good();
    let is_told = || {
        let awaited = cluster()["awaited"].clone();
        let (there, away) = (&awaited[0], &awaited[1]);
        let offer = there["memory_bytes"].as_u64();
        there["name"] == "attic"
            && (&there["online"], &there["held_by"]) == (&json!(true), &json!(null))
            && offer.is_some_and(|bytes| bytes > 0)
            && (&away["name"], &away["online"]) == (&json!(porch.address), &json!(false))
            && away["why"].as_str().is_some_and(|why| why.contains(&porch.address))
    };
    until("both to be told of", LIMIT, is_told);
    assert_eq!(cluster()["members"], json!([]), "nobody is held");
    server.post(COMPLETIONS, &ask(&llama, "llama")).good();
    let loaded = cluster();
    assert_eq!((&loaded["awaited"], &loaded["members"][0]["name"]), (&json!([]), &json!("attic")));
    server
        .post("/api/generate", &json!({ "model": "llama", "prompt": "", "keep_alive": 0 }))
        .good();
    until("both to be told of again", LIMIT, is_told);
}

#[test]
fn a_model_that_is_let_go_while_it_is_loaded_does_not_stay() {
    let (llama, qwen) = (golden("llama"), golden("qwen2"));
    let attic = TestWorker::new("attic");
    let meddler = Meddler::before(&attic.address);
    let server = Server::of_several(
        &Master::at([&meddler.address]),
        &[&llama.path, &qwen.path],
        &["--place", "attic=0..5"],
    );
    meddler.keep(Call::Load, 0);
    let generate = |more: Value| {
        server.post("/api/generate", &json!({ "model": "llama", "keep_alive": more }))
    };
    std::thread::scope(|scope| {
        let load = scope.spawn(|| generate(json!(null)));
        let is_loading = || server.get("/api/cluster").good()["phase"] == "loading";
        until("it to be loaded", LIMIT, is_loading);
        assert_eq!(generate(json!(0)).good()["done_reason"], "unload");
        meddler.let_go();
        assert_eq!(load.join().expect("an answer").good()["done_reason"], "load");
    });
    until("it to be let go", LIMIT, || running(&server).is_empty());
    // What was said of it before somebody asked for it again does not count.
    generate(json!(0)).good();
    generate(json!(null)).good();
    assert_eq!(running(&server), ["llama:latest"]);
}

#[test]
fn two_models_take_turns_over_workers_that_hold_both() {
    let (llama, qwen) = (golden("llama"), golden("qwen2"));
    let expected = [alone(&llama, "llama"), alone(&qwen, "qwen2")];
    let pins = pins(&PLACE);
    let args: Vec<&str> = [strs(&pins), vec!["--numerics", "exact"], CHUNK.to_vec()].concat();
    // Each fits, and not both.
    let names = ["a", "b", "c"];
    let memory = [&llama, &qwen].map(|model| needs(&model.path, &names, &args[..args.len() - 2]).0);
    let memory = memory.into_iter().fold(0, u64::max);
    let workers = names.map(|name| offering(name, memory));
    let master = Master::over(&workers);
    let server = Server::of_several(&master, &[&llama.path, &qwen.path], &args);
    let pushed = || count(&server, "cake_pushed_bytes_total");

    let idle = server.get("/ready").good();
    assert_eq!((&idle["status"], &idle["reason"]), (&json!("idle"), &json!(null)));
    assert_eq!(server.get("/api/cluster").good()["phase"], "idle");
    let listed = server.get("/v1/models").good();
    let names = ["llama", "qwen2"];
    for (model, name) in listed["data"].as_array().expect("a list").iter().zip(names) {
        assert_eq!((&model["id"], &model["loaded"]), (&json!(name), &json!(false)));
        assert!(model["bytes"].as_u64().is_some_and(|bytes| bytes > 1000), "{model}");
    }
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(2));
    let refused = server.post(COMPLETIONS, &ask(&llama, "other")).refused(404);
    assert_eq!(refused, "the model \"other\" is not served here, \"llama\", \"qwen2\" are");
    let mut nameless = ask(&llama, "");
    nameless.as_object_mut().expect("an object").remove("model");
    let refused = server.post(COMPLETIONS, &nameless).refused(400);
    assert_eq!(refused, "model is missing, expected one of those at hand: llama, qwen2");
    assert_eq!((pushed(), running(&server).len()), (0.0, 0));

    assert_eq!(said(&server, &llama, "llama"), expected[0]);
    let first = pushed();
    assert_eq!(running(&server), ["llama:latest"]);
    assert_eq!(said(&server, &qwen, "qwen2"), expected[1]);
    let both = pushed();
    assert!(0.0 < first && first < both, "{first} {both}");
    assert_eq!(said(&server, &llama, "llama"), expected[0]);
    assert_eq!(pushed(), both, "the workers hold what they held");
    server.post(COMPLETIONS, &nameless).good();
    assert_eq!(server.get("/v1/models/llama").good()["loaded"], true);
    assert_eq!(server.get("/api/cluster").good()["model"], "llama");
    // What is refused in any case has nothing loaded for it.
    let wrong = json!({ "model": "qwen2", "messages": [{ "role": "nobody", "content": "a" }] });
    assert!(server.post("/api/chat", &wrong).status == 400);
    assert!(server.post("/tokenize", &json!({ "model": "qwen2" })).status == 400);
    assert_eq!(running(&server), ["llama:latest"]);
    let shown = server.post("/api/show", &json!({ "model": "qwen2:latest" })).good();
    assert_eq!(shown["details"]["family"], "qwen2");
    assert!(shown["template"].as_str().is_some_and(|template| !template.is_empty()), "{shown}");

    // Whoever asks for what is not loaded waits for those who have the other one, whatever they ask.
    let ((server, llama), (qwen, expected)) = ((&server, &llama), (&qwen, &expected));
    std::thread::scope(|scope| {
        for number in 0..6 {
            scope.spawn(move || match number % 2 {
                0 => assert_eq!(said(server, llama, "llama"), expected[0]),
                _ => assert_eq!(said(server, qwen, "qwen2"), expected[1]),
            });
        }
    });
    assert_eq!(pushed(), both);
    assert_eq!(server.get("/ready").good()["status"], "ready");
}

#[test]
fn a_model_that_cannot_be_loaded_leaves_the_other_where_it_is() {
    let llama = golden("llama");
    let home = tempfile::tempdir().expect("a folder");
    let (good, broken) = (home.path().join("good"), home.path().join("broken"));
    copy(&llama.path, &good);
    copy(&llama.path, &broken);
    std::fs::write(home.path().join("notes.txt"), "no model").expect("written");
    let args = ["--models", &path(home.path()), "--numerics", "exact"];
    let server = Server::of_several(&Master::alone(), &[], &args);
    let expected = said(&server, &llama, "good");
    let pipelines = count(&server, "cake_pipelines_total");
    let weights = broken.join("model.safetensors");
    let content = std::fs::read(&weights).expect("weights");
    std::fs::write(&weights, &content[..content.len() / 2]).expect("written");
    let refused = server.post(COMPLETIONS, &ask(&llama, "broken"));
    assert_eq!(refused.body["error"]["code"], "model_not_loaded");
    let why = refused.refused(500);
    let cannot = "the model \"broken\" cannot be loaded: ";
    assert!(why.starts_with(cannot) && why.contains("model.safetensors"), "{why}");
    assert_eq!(said(&server, &llama, "good"), expected);
    assert_eq!(count(&server, "cake_pipelines_total"), pipelines, "it was never put away");
    // Once it is whole it is to be had.
    std::fs::write(&weights, &content).expect("written");
    assert_eq!(said(&server, &llama, "broken"), expected);
}

#[test]
fn a_context_that_is_asked_of_several_models_is_the_most_that_each_gets() {
    let llama = golden("llama");
    let home = tempfile::tempdir().expect("a folder");
    let (long, short) = (home.path().join("long"), home.path().join("short"));
    copy(&llama.path, &long);
    copy(&llama.path, &short);
    let file = short.join("config.json");
    let config = std::fs::read(&file).expect("a configuration");
    let mut config: Value = serde_json::from_slice(&config).expect("a configuration");
    config["max_position_embeddings"] = json!(64);
    std::fs::write(&file, config.to_string()).expect("written");
    let args = ["--models", &path(home.path()), "--context", "128"];
    let server = Server::of_several(&Master::alone(), &[], &args);
    for (name, context) in [("long", 128), ("short", 64)] {
        server.post(COMPLETIONS, &ask(&llama, name)).good();
        let shown = server.get("/api/cluster").good();
        assert_eq!((&shown["model"], &shown["context"]), (&json!(name), &json!(context)));
    }
    let refused =
        Master::alone().run(&["serve", &path(&short), "--context", "128", "--listen", "0"]);
    let why = refused.stderr;
    assert!(why.contains("--context is 128, expected 1 to 64"), "{why}");
    let none = ["serve", &path(&short), &path(&long), "--context", "0", "--listen", "0"];
    let why = Master::alone().run(&none).stderr;
    assert!(why.contains("--context is 0, expected 1 or more"), "{why}");
}

#[test]
fn whoever_leaves_while_waiting_changes_nothing() {
    let demo = demo_model();
    let llama = golden("llama");
    let memory = [&demo, &llama.path].map(|model| needs(model, &["a"], &[]).0);
    let worker = offering("a", memory.into_iter().fold(0, u64::max));
    let server = Server::of_several(&Master::over([&worker]), &[&demo, &llama.path], &CHUNK);
    let long = json!({
        "model": "demo-model", "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true, "n": 8,
    });
    let mut events = server.stream(COMPLETIONS, &long);
    events.next().expect("it has begun");
    let body = ask(&llama, "llama").to_string();
    let host = server.url.strip_prefix("http://").expect("a URL");
    let head =
        format!("POST {COMPLETIONS} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}", body.len());
    let mut leaves = TcpStream::connect(host).expect("it listens");
    write!(leaves, "{head}\r\n\r\n{body}").expect("sent");
    until("the model to be withdrawn", LIMIT, || running(&server).is_empty());
    worker.signal(Signal::STOP); // So that the answer does not end meanwhile.
    drop(leaves);
    until("the model to be given again", LIMIT, || running(&server) == ["demo-model:latest"]);
    worker.signal(Signal::CONT);
    let event = events.next().expect("the answer goes on");
    assert!(event.contains("\"text\""), "{event}");
    let log = server.get("/api/log").good().to_string();
    assert!(log.contains("demo-model is ready") && !log.contains("llama is ready"), "{log}");
}

#[test]
fn a_model_stays_for_as_long_as_it_is_told_to() {
    let llama = golden("llama");
    let args = ["--keep-alive", "1h", "--model-name", "it"];
    let server = Server::start(&Master::alone(), &llama.path, &args);
    let load = |keep: Value| {
        let asked = json!({ "model": "it", "prompt": "", "keep_alive": keep });
        server.post("/api/generate", &asked).good()["done_reason"].clone()
    };
    assert_eq!(running(&server), ["it:latest"]);
    assert_eq!(load(json!(0)), "unload");
    until("the model to go", LIMIT, || running(&server).is_empty());
    until("it to be gone", LIMIT, || server.get("/api/cluster").body["phase"] == "idle");
    let tags = server.get("/api/tags").good();
    assert_eq!(tags["models"][0]["name"], "it:latest");
    assert_eq!(load(json!("5m")), "load");
    assert_eq!(running(&server), ["it:latest"]);
    assert_eq!(load(json!(0.1)), "load");
    until("its time to be over", LIMIT, || running(&server).is_empty());
    server.post(COMPLETIONS, &ask(&llama, "it")).good();
    assert_eq!(running(&server), ["it:latest"], "it is to stay for an hour again");
    let odd = json!({ "model": "it", "prompt": "", "keep_alive": "soon" });
    let refused = server.post("/api/generate", &odd);
    assert_eq!(refused.status, 400);
    assert!(
        refused.body["error"].as_str().is_some_and(|why| why.contains("keep_alive")),
        "{}",
        refused.body
    );
}
