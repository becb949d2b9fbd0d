//! Who gets in: workers join a master's cluster, and strangers, forged or revoked members and plain text do not.
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use cake_proto::{Tag, connect, wire};
use cake_tests::wait::{unix_seconds, until_at, until_past};
use cake_tests::{
    Cluster, Invitation, Master, ModelShape, Running, Server, TestWorker, WorkerOptions, dial,
    golden, master, model, not_shown, until,
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(120);

/// A worker that shall not start; what it says.
fn refused(listen: &str, args: &[&str]) -> String {
    let directory = tempfile::tempdir().expect("a folder");
    let store = master::path(&directory.path().join("store"));
    let mut command = std::process::Command::new(&cake_tests::programs().worker);
    command.args(["--listen", listen, "--name", "w", "--store", &store]).args(args);
    Running::start(&mut command).finish(LIMIT).refusal()
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

#[test]
fn members_answer_like_one_process_and_are_found_again_after_they_moved() {
    let golden = golden("llama-sharded");
    let mut cluster = Cluster::new(&["a", "b"]);
    let place = [("a", 0, 6), ("b", 6, 12)];
    let alone = Master::alone().answer(&golden, &[], &[]);
    let first = cluster.master.answer(&golden, &place, &[]);
    assert_eq!(first.output_ids, alone.output_ids);
    assert_eq!(first.logprob_bits, alone.logprob_bits);
    assert!(first.stages.iter().all(|(_, _, direct)| *direct), "{first:?}");
    assert_eq!(first.stages.len(), 2, "{first:?}");
    // Both start again elsewhere, without a token; a server's door hears where they are.
    let stores: Vec<_> =
        cluster.workers.iter().map(|w| (w.name.clone(), w.store().to_owned())).collect();
    let directories: Vec<_> =
        stores.iter().map(|_| tempfile::tempdir().expect("a folder")).collect();
    for ((_, store), directory) in stores.iter().zip(&directories) {
        copy(store, &directory.path().join("store"));
    }
    cluster.workers.clear();
    let port = format!("127.0.0.1:{}", free_port());
    let again: Vec<TestWorker> = stores
        .iter()
        .zip(&directories)
        .map(|((name, _), directory)| {
            let store = directory.path().join("store");
            // The door was at another port when they joined.
            let identity = store.join("identity.json");
            let mut kept: Value =
                serde_json::from_slice(&std::fs::read(&identity).expect("kept")).expect("JSON");
            kept["master"] = json!(port);
            std::fs::write(&identity, kept.to_string()).expect("written");
            let options = WorkerOptions { store: Some(store), ..WorkerOptions::default() };
            TestWorker::start(name, options)
        })
        .collect();
    let known = |worker: &TestWorker| {
        cluster.list().iter().any(|known| known["address"] == worker.address.as_str())
    };
    assert!(!again.iter().any(known));
    let server = Server::start(&cluster.master, &golden.path, &["--alone", "--join", &port]);
    until("both to say where they are", LIMIT, || again.iter().all(known));
    drop(server);
    let second = cluster.master.answer(&golden, &place, &[]);
    assert_eq!(second.logprob_bits, alone.logprob_bits);
    assert_eq!((second.pushed_bytes, second.stages.len()), (0, 2), "they kept their blobs");
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let status = std::process::Command::new("cp").arg("-r").arg(from).arg(to).status();
    assert!(status.expect("cp runs").success());
}

#[test]
fn a_token_that_is_wrong_late_used_or_mistyped_lets_nobody_in() {
    let master = Master::alone();
    let error = master.run(&["token"]).refusal();
    assert!(error.contains("cake-master init"), "{error}");
    master.run(&["init"]).success();
    assert!(master.run(&["init"]).refusal().contains("already"));
    let invitation = Invitation::from(&master, 2);
    let Invitation { master: at, token, .. } = &invitation;
    let another = |args: &[&str]| {
        let issued = master.json(&[&["token", "--json"], args].concat());
        issued["token"].as_str().expect("a token").to_owned()
    };
    let used = another(&[]);
    let args = ["--master", at, "--token", &used].map(str::to_owned).to_vec();
    let _worker = TestWorker::start("a", WorkerOptions { args, ..WorkerOptions::default() });
    let refused = |args: &[&str]| refused("127.0.0.1:0", args);
    let said = refused(&["--master", at, "--token", &used]);
    assert!(said.contains("used already"), "{said}");
    let late = another(&["--ttl", "1s"]);
    until_past("the token's end", LIMIT, unix_seconds() + 1);
    let said = refused(&["--master", at, "--token", &late]);
    assert!(said.contains("expired"), "{said}");
    let other = Master::alone();
    other.run(&["init"]).success();
    let foreign = other.json(&["token", "--json"]);
    let foreign = foreign["token"].as_str().expect("a token").to_owned();
    let said = refused(&["--master", at, "--token", &foreign]);
    assert!(said.contains(at), "{said}");
    let mistyped = token.replace(&token[20..22], "!!");
    let mut command = std::process::Command::new(&cake_tests::programs().worker);
    command.args(["--listen", "127.0.0.1:0", "--master", at, "--token", &mistyped]);
    let said = Running::start(&mut command).finish(LIMIT).stderr;
    assert!(said.contains("mistyped"), "{said}");
    let list = master.json(&["workers", "list", "--json"]);
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
}

#[test]
fn plain_text_another_clusters_master_and_silent_crowds_learn_nothing_and_stop_nothing() {
    let golden = golden("llama-sharded");
    let cluster = Cluster::new(&["a"]);
    let worker = &cluster.workers[0];
    // In plain text.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let answer = async {
            let mut client = dial(&worker.address, Tag::default()).await.ok()?;
            client.describe(wire::DescribeRequest {}).await.ok()
        };
        let answer = tokio::time::timeout(LIMIT, answer).await.expect("refused at once");
        assert!(answer.is_none(), "{answer:?}");
    });
    // A master of another cluster, and one without any.
    let mut other = Master::alone();
    other.run(&["init"]).success();
    other.now_at([&worker.address]);
    let plan = ["plan", &master::path(&golden.path)].map(str::to_owned);
    let refusal = other.run(&master::strs(&plan)).refusal();
    assert!(refusal.contains("another cluster"), "{refusal}");
    let refusal = Master::at([&worker.address]).run(&master::strs(&plan)).refusal();
    assert!(refusal.contains(&worker.address), "{refusal}");
    // A scan, and a thousand who say nothing.
    let said =
        [&b"GET / HTTP/1.0\r\n\r\n"[..], b"SSH-2.0-x\r\n", &[0x16, 3, 1, 255, 255], &[0; 99]];
    let scan = |bytes: &[u8]| {
        let mut scan = TcpStream::connect(&worker.address).expect("taken");
        scan.write_all(bytes).ok();
        scan.set_read_timeout(Some(LIMIT)).expect("a time");
        scan
    };
    let scans: Vec<TcpStream> = (0..3).flat_map(|_| said.map(scan)).collect();
    for mut scan in scans {
        let mut learned = Vec::new();
        let end = scan.read_to_end(&mut learned).map_err(|error| error.kind());
        assert_ne!(end, Err(ErrorKind::WouldBlock), "the connection is closed");
        // A TLS alert at most: seven bytes that say no.
        assert!(learned.len() <= 7, "{learned:?}");
    }
    let idle: Vec<TcpStream> =
        (0..1000).filter_map(|_| TcpStream::connect(&worker.address).ok()).collect();
    let answer = cluster.master.answer(&golden, &[("a", 0, 12)], &[]);
    assert_eq!(answer.output_ids, Master::alone().answer(&golden, &[], &[]).output_ids);
    assert!(idle.len() > 900, "{} idle connections", idle.len());
    let log = worker.log();
    let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(lines("in plain text;"), 1, "logged once: {log}");
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn a_revoked_worker_is_cut_off_in_the_middle_of_an_answer_that_goes_on_without_it() {
    let directory = tempfile::tempdir().expect("a folder");
    model::make(directory.path(), &ModelShape::quick(), 5).expect("written");
    let cluster = Cluster::new(&["a", "b"]);
    let (pins, join) = (master::pins(&[("a", 0, 4), ("b", 4, 8)]), "127.0.0.1:0");
    let args = ["--context", "512", "--local-memory", "0", "--join", join];
    let args: Vec<&str> = args.into_iter().chain(pins.iter().map(String::as_str)).collect();
    let request = json!({
        "prompt": [5, 6, 7], "max_tokens": 480, "temperature": 1, "seed": 3, "ignore_eos": true,
    });
    let answer = |server: &Server| server.post("/v1/completions", &request).good();
    let server = Server::start(&cluster.master, directory.path(), &args);
    let whole = answer(&server)["choices"][0]["text"].clone();
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
    let shown = server.get("/api/cluster").good();
    assert_eq!(shown["devices"].as_array().map(Vec::len), Some(1), "{shown}");
    assert_eq!(shown["devices"][0]["name"], "a", "{shown}");
    drop(server);
    // The one left was told, and the one that is shut out is not used by a new command either.
    let stages = cluster.master.json(&["plan", &master::path(directory.path()), "--json"]);
    assert!(!stages.to_string().contains("\"b\""), "{stages}");
    let states: Vec<bool> =
        cluster.list().iter().map(|worker| worker["revoked"] == json!(true)).collect();
    assert_eq!(states, [false, true]);
    let error = cluster.master.run(&["workers", "revoke", "b"]).refusal();
    assert!(error.contains("no worker is called \"b\""), "{error}");
}

#[test]
fn certificates_are_renewed_while_a_server_holds_the_workers() {
    let golden = golden("llama-sharded");
    let cluster = Cluster::with(&["a"], &["--certificate-lifetime", "40s"]);
    let end = |cluster: &Cluster| cluster.list()[0]["expires_seconds"].as_u64().expect("a time");
    let first = end(&cluster);
    let args = ["--place", "a=0..12", "--context", "256", "--join", "127.0.0.1:0"];
    let server = Server::start(&cluster.master, &golden.path, &args);
    // Each look is a program.
    until_at("another certificate", LIMIT, Duration::from_millis(500), || end(&cluster) > first);
    drop(server);
    until_past("the first certificate's end", LIMIT, first);
    // With its first certificate it could not be used any more.
    let answer = cluster.master.answer(&golden, &[("a", 0, 12)], &[]);
    assert_eq!(answer.output_ids, golden.greedy_ids);
}

/// The environment of a process whose clock is put wrong as `faketime` says; its monotonic clock is right.
fn clock(faketime: &str) -> Option<Vec<(String, String)>> {
    let arch = std::env::consts::ARCH;
    let library = format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1");
    if !std::path::Path::new(&library).exists() {
        return None;
    }
    let env = [
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME", faketime),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("TZ", "UTC"),
    ];
    Some(env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
}

#[test]
fn workers_whose_clocks_are_wrong_by_a_day_or_by_decades_join_and_answer_like_others() {
    const DAY: f64 = 86_400.0;
    let golden = golden("llama-sharded");
    let now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.expect("after 1970").as_secs_f64()
    };
    let clocks = [
        ("early", "-86400", -DAY),
        ("late", "+86400", DAY),
        ("ancient", "@1970-01-02 00:00:00", DAY - now()),
    ];
    let mut workers = Vec::new();
    for (name, faketime, _) in clocks {
        let Some(env) = clock(faketime) else {
            return not_shown("no libfaketime: tests/clients/install.sh gets it");
        };
        workers.push((name, WorkerOptions { env, ..WorkerOptions::default() }));
    }
    let mut cluster = Cluster::new(&[]);
    cluster.join(workers);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for (worker, (name, _, wrong_by)) in cluster.workers.iter().zip(clocks) {
        let security = cluster.security();
        let theirs = runtime.block_on(async {
            let (mut client, _) =
                connect(&security, &worker.address, None, Tag::default()).await.expect("let in");
            let described = client.describe(wire::DescribeRequest {}).await.expect("described");
            described.into_inner().clock_ms as f64 / 1e3
        });
        let off = theirs - now();
        assert!((off - wrong_by).abs() < 60.0, "{name}: {off} s, not {wrong_by} s");
    }
    let right = Cluster::new(&["early", "late", "ancient"]);
    let place = [("early", 0, 4), ("late", 4, 8), ("ancient", 8, 12)];
    let expected = right.master.answer(&golden, &place, &[]);
    let answer = cluster.master.answer(&golden, &place, &[]);
    assert_eq!(answer, expected);
    assert!(answer.stages.iter().all(|(_, _, direct)| *direct), "{answer:?}");
}

#[test]
fn plain_text_over_a_network_must_be_asked_for_on_both_sides() {
    let golden = golden("llama-sharded");
    let master = Master::at(["192.0.2.7:7117"]);
    let plan = ["plan", &master::path(&golden.path)].map(str::to_owned);
    let refusal = master.run(&master::strs(&plan)).refusal();
    assert!(refusal.contains("--insecure") && refusal.contains("init"), "{refusal}");
    let said = refused("0.0.0.0:0", &[]);
    assert!(said.contains("--insecure") && said.contains("--token"), "{said}");
}
