//! What people see of a service that runs: `status`, `ps`, `logs`; and how fast it is: `bench`.
use cake_tests::{Far, Master, Running, Server, TestWorker, WorkerOptions, golden, until};
use serde_json::{Value, json};

use super::LIMIT;

/// Runs a command of `master` that asks a service.
fn ask(master: &Master, args: &[&str]) -> cake_tests::Finished {
    Running::start(&mut master.bare(args)).finish(LIMIT)
}

#[test]
fn a_service_tells_what_it_does_who_asks_and_what_happened() {
    let far = Far::start();
    let nobody = ask(&far.master, &["status", "--at", "127.0.0.1:9"]);
    let sentence = nobody.refusal();
    assert!(sentence.contains("no service answers at http://127.0.0.1:9"), "{sentence}");

    let server = Server::start(&far.master, &far.model, &Far::PLACE);
    let request =
        json!({"prompt": [1, 2, 3], "max_tokens": 1000, "stream": true, "ignore_eos": true});
    let mut stream = server.stream("/v1/completions", &request);
    stream.next().expect("it has begun");
    // Which service is meant is known from the state directory.
    let requests = || ask(&far.master, &["ps", "--json"]).success().json();
    let listed = requests();
    assert_eq!(
        (listed[0]["prompt_tokens"].as_u64(), listed.as_array().map(Vec::len)),
        (Some(3), Some(1))
    );
    assert!(
        listed[0]["client"].as_str().is_some_and(|client| client.starts_with("ureq")),
        "{listed}"
    );
    let line = ask(&far.master, &["ps"]).success().stdout;
    assert!(line.contains(listed[0]["id"].as_str().expect("an id")), "{line}");

    let status = ask(&far.master, &["status"]).success().stdout;
    for part in [": ready", "1 running, 0 waiting", "device"] {
        assert!(status.contains(part), "{part}: {status}");
    }
    let since = ask(&far.master, &["status", "--json"]).success().json()["since_seconds"].clone();
    assert!(since.as_u64().is_some_and(|seconds| seconds > 1_700_000_000), "{since}");

    drop(stream);
    until("the list to be empty", LIMIT, || requests().as_array().is_some_and(Vec::is_empty));
    let logs = ask(&far.master, &["logs", "--json"]).success().stdout;
    let kinds: Vec<Value> =
        logs.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let ready = |entry: &&Value| entry["kind"] == "service";
    let ready = kinds.iter().find(ready).expect("it is ready")["words"].clone();
    assert!(ready.as_str().is_some_and(|words| words.ends_with(" is ready")), "{ready}");
}

#[test]
fn a_service_with_keys_answers_whoever_has_one_and_of_two_one_is_named() {
    let master = Master::alone();
    let keys = master.state().join("keys.txt");
    std::fs::write(&keys, "secret\n").expect("written");
    let model = golden("llama").path;
    let _first =
        Server::start(&master, &model, &["--api-key-file", keys.to_str().expect("a path")]);
    let sentence = ask(&master, &["ps"]).refusal();
    assert!(sentence.contains("asks for a key: --api-key"), "{sentence}");
    let sentence = ask(&master, &["ps", "--api-key", "other"]).refusal();
    assert!(sentence.contains("does not know this key"), "{sentence}");
    let sentence = ask(&master, &["ps", "--api-key", "one\nother"]).refusal();
    assert!(sentence.contains("is no key"), "{sentence}");
    let idle = ask(&master, &["ps", "--api-key", "secret"]).success();
    let expected = "no request is computed, or waits for room or for a model";
    assert_eq!((idle.stdout.as_str(), idle.stderr.trim()), ("", expected));
    let _second = Server::start(&master, &model, &[]);
    let sentence = ask(&master, &["logs"]).refusal();
    assert!(sentence.contains("2 services run here: --at says which"), "{sentence}");
}

#[test]
fn a_bench_says_how_fast_a_cluster_is_beside_what_was_planned() {
    let worker = TestWorker::start("kitchen", WorkerOptions::default());
    let master = Master::over([&worker]);
    let model = golden("llama").path;
    let model = model.to_str().expect("a path");
    let short = ["--prompt-tokens", "8", "--answer-tokens", "12", "--runs", "2"];
    let told = master.run(&[&["bench", model, "--json"], &short[..]].concat()).success().json();
    assert_eq!((told["runs"].as_u64(), told["answer_tokens"].as_u64()), (Some(2), Some(12)));
    assert_eq!(
        (told["devices"][0]["device"].as_str(), told["links"][0]["device"].as_str()),
        (Some("kitchen"), Some("kitchen"))
    );
    for part in ["token", "network", "master"] {
        assert!(
            told[part]["measured"].is_f64() && told[part]["planned"].is_f64(),
            "{part}: {told}"
        );
    }
    let median = |name: &str| told[name]["median"].as_f64().expect("a number");
    assert!(median("prompt_tokens_per_second") > 0.0 && median("first_token_seconds") > 0.0);
    let refused = master.run(&["bench", model, "--answer-tokens", "1"]).refusal();
    assert!(refused.contains("--answer-tokens is 1, expected 2 or more"), "{refused}");
}
