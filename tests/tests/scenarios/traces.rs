//! The trace of a request: one, over the master and all stages.
use std::time::Duration;

use cake_tests::collector::Span;
use cake_tests::{Collector, Master, Server, TestWorker, WorkerOptions, golden, until};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(120);
const TOKENS: usize = 4;

fn worker(name: &str, collector: &Collector) -> TestWorker {
    let args = vec!["--otlp".to_owned(), collector.url()];
    TestWorker::start(name, WorkerOptions { args, ..WorkerOptions::default() })
}

#[test]
fn a_request_is_one_trace_through_all_stages() {
    let golden = golden("llama-sharded");
    let collector = Collector::start();
    let workers = ["a", "b"].map(|name| worker(name, &collector));
    let url = collector.url();
    let args = ["--otlp", &url, "--place", "a=0..6", "--place", "b=6..12"];
    let server = Server::start(&Master::over(&workers), &golden.path, &args);
    let prompt = &golden.prompt_ids;
    let request = json!({
        "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": true,
    });
    server.post("/v1/completions", &request).good();

    let named = |name: &str| -> Vec<Span> {
        collector.spans().into_iter().filter(|span| span.name == name).collect()
    };
    // A token more than its prompt takes in one step.
    until("all spans", LIMIT, || named("request").len() == 1 && named("stage").len() == 2 * TOKENS);
    let request = &named("request")[0];
    assert_eq!((request.service.as_str(), request.parent.len()), ("cake-master", 0));
    let field = |name: &str| request.field(name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(field("prompt_tokens"), prompt.len().to_string());
    assert_eq!((field("generated_tokens"), field("end")), (TOKENS.to_string(), "length".into()));
    let within = |inner: &Span, outer: &Span| {
        inner.trace == outer.trace
            && inner.parent == outer.id
            && outer.time.0 <= inner.time.0
            && inner.time.1 <= outer.time.1
    };
    let steps = named("step");
    assert_eq!(steps.len(), TOKENS);
    assert_eq!((named("queue").len(), named("head").len()), (1, TOKENS));
    assert!(steps.iter().chain(&named("queue")).all(|part| within(part, request)));
    for step in &steps {
        let stages: Vec<Span> =
            named("stage").into_iter().filter(|stage| within(stage, step)).collect();
        let mut devices: Vec<_> = stages.iter().filter_map(|stage| stage.field("device")).collect();
        devices.sort();
        assert_eq!(devices, ["a", "b"]);
        for stage in stages {
            assert_eq!(stage.service, "cake-worker");
            assert_eq!(named("compute").iter().filter(|part| within(part, &stage)).count(), 1);
        }
        assert!(named("head").iter().filter(|head| within(head, step)).count() == 1);
    }
}

#[test]
fn a_collector_that_is_away_is_no_hindrance() {
    let golden = golden("llama");
    let master = Master::alone();
    let args = cake_tests::master::answer_args(&golden.path, &golden.prompt_ids, 2);
    let args: Vec<&str> = ["--otlp", "http://127.0.0.1:9"]
        .into_iter()
        .chain(cake_tests::master::strs(&args))
        .collect();
    master.run(&args).success();
    let refusal = master.run(&["--otlp", "no address", "inspect", "x"]).refusal();
    assert!(refusal.contains("cannot send traces to \"no address\""), "{refusal}");
}
