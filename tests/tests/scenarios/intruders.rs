//! Who is in, or listens in, and wants more: a member that gives orders, one that says again what others said, and
//! one that is shut out while its neighbour sends to it.
use std::time::Duration;

use cake_identity::Security;
use cake_proto::{Client, Tag, connect, wire};
use cake_tests::recorder::{Conversation, Record, Recorder, client_hello, records, say};
use cake_tests::{
    Cluster, CountingProxy, Invitation, Master, ModelShape, Server, TestWorker, WorkerOptions,
    golden, master, model, until,
};
use serde_json::json;
use tokio::runtime::Runtime;
use tonic::{Code, Status};

const LIMIT: Duration = Duration::from_secs(120);

/// Everything that only a master may ask for, and what came of it.
async fn orders(client: &mut Client) -> Vec<(&'static str, Option<Status>)> {
    let frames = || tokio_stream::iter([wire::StepFrame::default()]);
    let pushed = tokio_stream::iter([wire::PushFrame::default()]);
    let shut_out = wire::ShutOutRequest { worker_ids: vec![0_u8; 16].into() };
    vec![
        ("hold", client.hold(wire::HoldRequest::default()).await.err()),
        ("probe_compute", client.probe_compute(wire::ProbeComputeRequest::default()).await.err()),
        ("probe_link", client.probe_link(wire::ProbeLinkRequest::default()).await.err()),
        ("probe_peer", client.probe_peer(wire::ProbePeerRequest::default()).await.err()),
        ("query", client.query(wire::QueryRequest::default()).await.err()),
        ("push", client.push(pushed).await.err()),
        ("load", client.load(wire::LoadRequest::default()).await.err()),
        ("route", client.route(wire::RouteRequest::default()).await.err()),
        ("steps", client.steps(frames()).await.err()),
        ("shut_out", client.shut_out(shut_out).await.err()),
        (
            "request_certificate",
            client.request_certificate(wire::CertificateRequest::default()).await.err(),
        ),
        ("renew_certificate", client.renew_certificate(wire::RenewRequest::default()).await.err()),
        ("release", client.release(wire::ReleaseRequest::default()).await.err()),
    ]
}

#[test]
fn a_member_that_gives_orders_is_refused_even_with_the_masters_lease() {
    let golden = golden("llama-sharded");
    let cluster = Cluster::new(&["a", "b"]);
    let member = Security::mutual(&cluster.workers[0].identity()).expect("usable");
    let at = cluster.workers[1].address.as_str();
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let dial = async |who: &Security, tag| connect(who, at, None, tag).await.expect("let in").0;
        let security = cluster.security();
        let hold = wire::HoldRequest { master_name: "desk".to_owned(), ..Default::default() };
        let held = dial(&security, Tag::default()).await.hold(hold).await.expect("the master may");
        let mut held = held.into_inner();
        let lease = held.message().await.expect("an event").expect("granted").lease;
        assert!(!lease.is_empty());
        for tag in [Tag::default(), Tag::lease(&lease)] {
            let mut client = dial(&member, tag).await;
            client.describe(wire::DescribeRequest {}).await.expect("members see each other");
            for (order, refusal) in orders(&mut client).await {
                let refusal = refusal.unwrap_or_else(|| panic!("{order} was done"));
                assert_eq!(refusal.code(), Code::PermissionDenied, "{order}: {refusal}");
                assert!(refusal.message().ends_with("is not the master"), "{order}: {refusal}");
            }
        }
        // With the same lease the master may.
        let mut client = dial(&security, Tag::lease(&lease)).await;
        client.query(wire::QueryRequest::default()).await.expect("its holder");
    });
    let answer = cluster.master.answer(&golden, &[("a", 0, 6), ("b", 6, 12)], &[]);
    assert_eq!(answer.output_ids, Master::alone().answer(&golden, &[], &[]).output_ids);
    assert!(answer.stages.iter().all(|(_, _, direct)| *direct), "nobody is shut out: {answer:?}");
}

/// Says again what a client said once: whoever listens at `address` greets as they greet anybody, and then
/// says no more than that it is over.
#[track_caller]
fn refused_when_said_again(address: &str, once: &Conversation) {
    let said = &once.said;
    // What they say to the same hello without anything behind it.
    let greeting = records(&say(address, client_hello(said), true));
    assert!(greeting.len() > 1, "{greeting:?}");
    assert!(!is_only(&greeting, &once.heard), "whoever said it first was answered");
    let heard = say(address, said, false);
    assert!(is_only(&greeting, &heard), "{greeting:?}, then {:?}", records(&heard));
}

/// Whether somebody greeted, and then said at most that it is over.
fn is_only(greeting: &[Record], heard: &[u8]) -> bool {
    /// An alert's two bytes, its kind and the tag of its encryption.
    const ENCRYPTED_ALERT: usize = 2 + 1 + 16;
    let heard = records(heard);
    let greets = greeting.iter().zip(&heard).all(|(greeting, heard)| greeting.kind == heard.kind);
    let more = heard.get(greeting.len()..).unwrap_or_default();
    greets && more.len() <= 1 && more.iter().all(|record| record.bytes <= ENCRYPTED_ALERT)
}

#[test]
fn what_a_joining_worker_said_opens_the_door_once() {
    let mut cluster = Cluster::new(&[]);
    let invitation = Invitation::from(&cluster.master, 2);
    let recorder = Recorder::start(&invitation.master);
    let through = |master: &str| WorkerOptions {
        args: ["--master", master, "--token", &invitation.token].map(str::to_owned).to_vec(),
        ..WorkerOptions::default()
    };
    cluster.workers.push(TestWorker::start("a", through(&recorder.address)));
    let book = || cluster.authority().book().read().expect("readable");
    let before = book();
    assert_eq!(before.workers.len(), 1);
    // What came after it joined says where it is.
    let joined = recorder.conversations().into_iter().next().expect("it came this way");
    for _ in 0..3 {
        refused_when_said_again(&invitation.master, &joined);
    }
    assert_eq!(book(), before, "no use of the token is gone, and nobody has come");
    // The door is open to who has the token.
    let _second = TestWorker::start("b", through(&invitation.master));
    invitation.used_up();
    assert_eq!(book().workers.len(), 2);
}

#[test]
fn what_a_master_said_to_a_worker_is_heard_once() {
    let golden = golden("llama-sharded");
    let mut cluster = Cluster::new(&[]);
    let env = vec![("CAKE_LOG".to_owned(), "info".to_owned())];
    cluster.join(vec![("a", WorkerOptions { env, ..WorkerOptions::default() })]);
    let worker = &cluster.workers[0];
    let recorder = Recorder::start(&worker.address);
    cluster.look_for("a", &recorder.address);
    let first = cluster.master.answer(&golden, &[("a", 0, 12)], &[]);
    let held = || worker.log().lines().filter(|line| line.contains("held")).count();
    let before = held();
    assert!(before > 0, "{}", worker.log());
    let all = recorder.conversations();
    assert!(!all.is_empty());
    for once in &all {
        refused_when_said_again(&worker.address, once);
    }
    assert_eq!(held(), before, "{}", worker.log());
    assert!(worker.log().contains("refused a connection"), "{}", worker.log());
    assert!(!worker.log().contains("panicked"), "{}", worker.log());
    let again = cluster.master.answer(&golden, &[("a", 0, 12)], &[]);
    assert_eq!(again.logprob_bits, first.logprob_bits);
    assert_eq!(held(), before + 1, "the log would have told");
}

#[test]
fn nothing_more_goes_from_a_worker_to_its_neighbour_once_that_is_revoked() {
    let directory = tempfile::tempdir().expect("a folder");
    model::make(directory.path(), &ModelShape::small(), 5).expect("written");
    let cluster = Cluster::new(&["a", "b", "c"]);
    let proxy = CountingProxy::start(&cluster.workers[1].address);
    cluster.look_for("b", &proxy.address);
    let pins = master::pins(&[("a", 0, 3), ("b", 3, 6), ("c", 6, 8)]);
    let args = ["--context", "512", "--local-memory", "0"];
    let args: Vec<&str> = args.into_iter().chain(pins.iter().map(String::as_str)).collect();
    let request = json!({
        "prompt": [5, 6, 7], "max_tokens": 300, "temperature": 1, "seed": 3, "ignore_eos": true,
    });
    let answer = |server: &Server| server.post("/v1/completions", &request).good();
    let server = Server::start(&cluster.master, directory.path(), &args);
    let devices = || server.get("/api/cluster").good()["devices"].clone();
    assert_eq!((&devices()[0]["name"], &devices()[0]["direct"]), (&json!("a"), &json!(true)));
    let before = proxy.to_worker();
    let whole = answer(&server)["choices"][0]["text"].clone();
    assert!(proxy.to_worker() > before, "the neighbour is fed through the proxy");
    // As a member, the second one is let in by the third.
    let runtime = Runtime::new().expect("a runtime");
    let neighbour = Security::mutual(&cluster.workers[1].identity()).expect("usable");
    let last = cluster.workers[2].address.as_str();
    let greet = async || {
        let (mut client, _) = connect(&neighbour, last, None, Tag::default()).await.ok()?;
        // With TLS 1.3 a client hears of a refusal with the first answer.
        client.describe(wire::DescribeRequest {}).await.ok()
    };
    let let_in = || runtime.block_on(greet()).is_some();
    assert!(let_in());
    let count = |name: &str| server.metric(name).unwrap_or_default();
    let recovered = || count("cake_recovery_seconds_count") > 0.0;
    std::thread::scope(|scope| {
        let made = count("cake_generated_tokens_total");
        let asking = scope.spawn(|| {
            while !recovered() {
                assert_eq!(answer(&server)["choices"][0]["text"], whole);
            }
        });
        until("an answer to begin", LIMIT, || count("cake_generated_tokens_total") > made);
        cluster.master.run(&["workers", "revoke", "b"]).success();
        until("the loss to be seen", LIMIT, recovered);
        asking.join().expect("the same answers");
    });
    until("connections with it to end", LIMIT, || proxy.open() == 0);
    assert!(cluster.workers[1].alive(), "it was not its own end");
    let moved = || (proxy.to_worker(), proxy.to_master());
    let at_the_end = moved();
    for _ in 0..2 {
        assert_eq!(answer(&server)["choices"][0]["text"], whole);
    }
    assert_eq!(moved(), at_the_end, "nothing more goes there or comes from there");
    let names: Vec<_> =
        devices().as_array().expect("a list").iter().map(|d| d["name"].clone()).collect();
    assert!(!names.is_empty() && !names.contains(&json!("b")), "{names:?}");
    assert!(!let_in(), "the others know, too");
}
