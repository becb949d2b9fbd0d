//! A service as people watch it: how far it is, what it counts, its page, and its embeddings.
use std::time::Duration;

use cake_tests::{Golden, Master, Server, TestWorker, WorkerOptions, budget_for, golden, until};
use safetensors::SafeTensors;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(120);
const COMPLETIONS: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";
const HALVES: &[&str] = &["--place", "a=0..6", "--place", "b=6..12"];

fn greedy(prompt: &[u32], tokens: usize) -> Value {
    json!({ "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true })
}

/// The data of the first event of a stream that goes on for ever.
fn first_event(server: &Server) -> Value {
    let data = server.stream_of("/api/events").next().expect("an event");
    serde_json::from_str(&data).expect("JSON")
}

#[test]
fn the_cluster_is_shown_and_a_lost_worker_without_a_request() {
    let golden = golden("llama-sharded");
    // Neither can take what the other holds.
    let memory = budget_for(&golden.path, 6, &["--parallel", "8", "--chunk", "32"]);
    let worker =
        |name| TestWorker::start(name, WorkerOptions { memory, ..WorkerOptions::default() });
    let mut workers = ["a", "b"].map(worker);
    let args = [HALVES, &["--grace", "0", "--chunk", "32"]].concat();
    let server = Server::start(&Master::over(&workers), &golden.path, &args);
    assert_eq!(server.get("/ready").good()["status"], "ready");
    let shown = server.get("/api/cluster").good();
    assert_eq!(shown["phase"], "ready");
    assert_eq!(shown["layers"], golden.num_layers);
    let devices = shown["devices"].as_array().expect("devices");
    let said = |device: &Value| {
        let text = |name: &str| device[name].as_str().expect("text").to_owned();
        (text("name"), text("layers"), text("state"))
    };
    let of = |name: &str, layers: &str, state: &str| (name.into(), layers.into(), state.into());
    let found: Vec<_> = devices.iter().map(said).collect();
    assert_eq!(found, [of("a", "0..6", "ready"), of("b", "6..12", "ready")]);
    for device in devices {
        let memory = |part: &str| device["memory"][part].as_u64().expect("bytes");
        assert!(memory("weights") > 0 && memory("kv") > 0);
        assert_eq!(device["push"]["finished"], true);
        let push = |part: &str| device["push"][part].as_u64().expect("bytes");
        assert_eq!(push("sent_bytes") + push("reused_bytes"), push("total_bytes"));
        assert!(device["hop_seconds"].as_f64().expect("seconds") > 0.0);
    }
    server.post(COMPLETIONS, &greedy(&golden.prompt_ids, 3)).good();
    until("it to be over", LIMIT, || first_event(&server)["load"]["running"] == 0);
    let event = first_event(&server);
    assert!(event["devices"][1]["step_seconds"].as_f64().expect("seconds") > 0.0);

    workers[1].kill();
    let phase = || server.get("/api/cluster").good();
    until("the loss to be seen", LIMIT, || phase()["phase"] == "broken");
    let shown = phase();
    assert_eq!(shown["devices"][1]["state"], "lost");
    assert_eq!(shown["devices"][0]["state"], "ready");
    let reply = server.get("/ready");
    assert_eq!((reply.status, &reply.body["status"]), (503, &json!("broken")));
    let reply = server.post(COMPLETIONS, &greedy(&[1], 1));
    assert!(reply.retry_after.is_some());
    let why = reply.refused(503);
    assert!(why.contains("does not fit") && why.contains("lost worker \"b\""), "{why}");
}

#[test]
fn what_happens_is_counted() {
    let golden = golden("llama-sharded");
    let workers = TestWorker::several(&["a", "b"]);
    let server = Server::start(&Master::over(&workers), &golden.path, HALVES);
    let prompt: Vec<u32> = golden.prompt_ids.iter().cycle().take(70).copied().collect();
    for _ in 0..2 {
        server.post(COMPLETIONS, &greedy(&prompt, 5)).good();
    }
    let count = |name: &str| server.metric(name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(count("cake_prompt_tokens_total"), 140.0);
    assert_eq!(count("cake_prompt_cached_tokens_total"), 64.0);
    assert_eq!(count("cake_generated_tokens_total"), 10.0);
    assert_eq!(count("cake_requests_total"), 2.0);
    assert_eq!(count("cake_time_to_first_token_seconds_count"), 2.0);
    assert_eq!(count("cake_time_per_token_seconds_count"), 8.0);
    assert_eq!(count("cake_sequences"), 0.0);
    // Two stages, as many steps through each.
    let steps = count("cake_batch_sequences_count");
    assert!(steps >= 10.0);
    assert_eq!(count("cake_stage_step_seconds_count"), 2.0 * steps);
    assert!(count("cake_stage_idle_seconds_total") > 0.0 && count("cake_hop_seconds_sum") > 0.0);
    let shown = server.get("/api/cluster").good();
    let sent: u64 =
        (0..2).filter_map(|at| shown["devices"][at]["push"]["sent_bytes"].as_u64()).sum();
    assert_eq!(count("cake_pushed_bytes_total"), sent as f64);
    let blocks = &shown["load"]["kv_blocks"];
    assert_eq!(count("cake_kv_blocks"), blocks["total"].as_f64().expect("a number"));
}

#[test]
fn the_page_is_whole_and_needs_nobody_else() {
    let golden = golden("llama");
    let server = Server::start(&Master::alone(), &golden.path, &[]);
    let index = server.text("/");
    let mut found = 0;
    for part in index.split(['"', '\'']).filter(|part| part.starts_with("/page/")) {
        let file = server.text(part);
        let elsewhere =
            ["src=\"http", "href=\"http", "from \"http", "url(http", "url(\"http", "=\"//"];
        assert!(!elsewhere.iter().any(|mark| file.contains(mark)) && file.len() > 100, "{part}");
        // What a script imports is there, too.
        for import in file.split(['"', '\'']).filter_map(|part| part.strip_prefix("./")) {
            server.text(&format!("/page/{import}"));
        }
        found += 1;
    }
    assert!(found >= 2, "a style sheet and a script at least: {found}");
    assert!(server.get("/page/other.js").refused(404).contains("/page/other.js"));
    let policy = server.header("/", "content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'self'") && !policy.contains("unsafe"), "{policy}");
}

#[test]
fn other_origins_may_ask_if_the_server_says_so() {
    let golden = golden("llama");
    let origin = "access-control-allow-origin";
    let server = Server::start(&Master::alone(), &golden.path, &[]);
    assert_eq!(server.header("/v1/models", origin), None);
    let args = ["--cors-origin", "https://a.example"];
    let server = Server::start(&Master::alone(), &golden.path, &args);
    let asked = server.header_for("/v1/models", origin, "https://a.example");
    assert_eq!(asked.as_deref(), Some("https://a.example"));
    assert_eq!(server.header_for("/v1/models", origin, "https://b.example"), None);
    assert!(server.post_from("https://b.example", COMPLETIONS).refused(403).contains("b.example"));
    server.post_from("https://a.example", COMPLETIONS).refused(400);
    server.post_from(&server.url, COMPLETIONS).refused(400);
    // Browsers ask first whether a page may forget a response.
    let stored = "/v1/responses/resp_1";
    assert_eq!(server.allows("https://a.example", stored), ["GET", "POST", "DELETE"]);
    assert!(server.allows("https://b.example", stored).is_empty());
    // A page whose own name was made to lead here.
    assert!(server.get_as("b.example:80", "/v1/models").refused(403).contains("know itself as"));
    server.get_as("a.example", "/v1/models").good();
    server.get_as("localhost:8080", "/v1/models").good();
}

/// The output head of a golden model with one in f32: `[vocab_size, hidden_size]`.
fn head(golden: &Golden) -> (Vec<f32>, usize) {
    let file = std::fs::read(golden.path.join("model.safetensors")).expect("the checkpoint");
    let tensors = SafeTensors::deserialize(&file).expect("safetensors");
    let head = tensors.tensor("lm_head.weight").expect("an output head");
    assert_eq!(head.dtype(), safetensors::Dtype::F32);
    let values = head.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    (values.collect(), head.shape()[1])
}

fn embedding(body: &Value, index: usize) -> Vec<f32> {
    let data = &body["data"][index];
    assert_eq!(data["index"], index);
    let values = data["embedding"].as_array().expect("numbers");
    values.iter().map(|value| value.as_f64().expect("a number") as f32).collect()
}

#[test]
fn an_embedding_is_the_mean_of_the_final_hidden_states() {
    let golden = golden("llama");
    let workers = TestWorker::several(&["a", "b"]);
    let args = ["--numerics", "exact", "--chunk", "8", "--place", "a=0..2", "--place", "b=2..5"];
    let server = Server::start(&Master::over(&workers), &golden.path, &args);
    // So that a prefix could be found, which must not be used.
    server.post(COMPLETIONS, &greedy(&golden.prompt_ids, 1)).good();
    let input = json!([golden.prompt_ids, golden.prompt_ids[..5]]);
    let body = server.post(EMBEDDINGS, &json!({ "input": input })).good();
    assert_eq!(body["usage"]["prompt_tokens"], golden.prompt_ids.len() + 5);
    let found = embedding(&body, 0);
    // The head is linear: of the mean it makes the mean of the reference's logits.
    let (head, hidden_size) = head(&golden);
    assert_eq!(found.len(), hidden_size);
    let vocab_size = head.len() / hidden_size;
    let positions = golden.logits.len() / vocab_size;
    for (id, weights) in head.chunks_exact(hidden_size).enumerate() {
        let score: f32 = weights.iter().zip(&found).map(|(weight, value)| weight * value).sum();
        let logits = (0..positions).map(|position| golden.logits[position * vocab_size + id]);
        let mean = logits.sum::<f32>() / positions as f32;
        assert!((score - mean).abs() < 2e-3, "id {id}: {score}, not {mean}");
    }
    // Company changes nothing, and the other format is the same numbers.
    let alone = json!({ "input": golden.prompt_ids[..5], "encoding_format": "float" });
    let alone = embedding(&server.post(EMBEDDINGS, &alone).good(), 0);
    assert_eq!(alone, embedding(&body, 1));
    let packed = json!({ "input": golden.prompt_ids[..5], "encoding_format": "base64" });
    let packed = server.post(EMBEDDINGS, &packed).good();
    let text = packed["data"][0]["embedding"].as_str().expect("base64");
    assert_eq!(text.len(), (4 * hidden_size).div_ceil(3) * 4);
    let said = server.post(EMBEDDINGS, &json!({ "input": "a", "encoding_format": "x" }));
    assert!(said.refused(400).contains("encoding_format"));
    assert!(server.post(EMBEDDINGS, &json!({ "input": [] })).refused(400).contains("0 texts"));
    let load = || server.get("/api/cluster").good()["load"].clone();
    until("all to end", LIMIT, || load()["running"] == 0 && load()["kv_blocks"]["held"] == 0);
}
