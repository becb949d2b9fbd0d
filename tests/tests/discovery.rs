//! Finding each other: no address is typed, whoever moves, and whoever opens the connections.
use std::path::Path;
use std::time::Duration;

use cake_tests::streams::{Said, answer, count};
use cake_tests::{
    Host, Invitation, Lan, Master, ModelShape, Server, TestWorker, WorkerOptions, budget_for,
    master, model, not_shown_here, until,
};
use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);
const TOKENS: usize = 24;
const ARGS: &[&str] = &["--context", "512", "--chunk", "16", "--local-memory", "0"];

/// A model of eight layers of 350 KiB, and what it says.
struct Model {
    directory: TempDir,
    says: Said,
}

impl Model {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let shape = ModelShape { hidden_size: 128, intermediate_size: 320, ..ModelShape::small() };
        let shape = ModelShape { heads: 4, kv_heads: 2, head_dim: 32, ..shape };
        model::make(directory.path(), &shape, 17).expect("written");
        // Over two workers whose addresses are typed.
        let workers = TestWorker::several(&["one", "two"]);
        let pins = master::pins(&[("one", 0, 4), ("two", 4, 8)]);
        let args: Vec<&str> = pins.iter().map(String::as_str).chain(ARGS.iter().copied()).collect();
        let server = Server::start(&Master::over(&workers), directory.path(), &args);
        let says = answer(&server, 1, TOKENS);
        Self { directory, says }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What a worker offers that can hold half of it.
    fn half(&self) -> u64 {
        budget_for(self.path(), 4, &[ARGS, &["--parallel", "8"]].concat())
    }

    fn server(&self, master: &Master, args: &[&str]) -> Server {
        Server::start(master, self.path(), &[ARGS, args].concat())
    }

    #[track_caller]
    fn is_told_by(&self, server: &Server) {
        assert!(answer(server, 1, TOKENS) == self.says);
    }
}

/// Names of the devices at work, in chain order.
fn devices(server: &Server) -> Vec<String> {
    let shown = server.get("/api/cluster").good();
    let name = |device: &Value| device["name"].as_str().expect("a name").to_owned();
    shown["devices"].as_array().expect("a list").iter().map(name).collect()
}

/// A worker on a host of its own.
fn worker(name: &str, host: &Host, memory: u64, store: &Path, args: &[String]) -> TestWorker {
    let options = WorkerOptions {
        memory,
        store: Some(store.to_owned()),
        listen: "0.0.0.0:7117".to_owned(),
        args: args.to_vec(),
        env: vec![("CAKE_LOG".to_owned(), "info".to_owned())],
        host: Some(host.clone()),
        ..WorkerOptions::default()
    };
    TestWorker::start(name, options)
}

/// Where a worker remembers its master to be.
fn remembered(store: &Path) -> String {
    let kept = std::fs::read(store.join("identity.json")).expect("a member's");
    let kept: Value = serde_json::from_slice(&kept).expect("JSON");
    kept["master"].as_str().expect("an address").to_owned()
}

/// Hosts on a network, unless there can be none.
fn lan(hosts: u8) -> Option<(Lan, Vec<Host>)> {
    match Lan::new(hosts) {
        Ok(made) => Some(made),
        Err(why) => {
            not_shown_here(format_args!("no network of our own can be made: {why}"));
            None
        }
    }
}

#[test]
fn members_find_each_other_wherever_they_go_and_no_other_cluster() {
    let model = Model::new();
    let memory = model.half();
    let Some((lan, mut hosts)) = lan(4) else { return };
    let _entered = lan.enter();
    let stores: Vec<TempDir> = (0..3).map(|_| tempfile::tempdir().expect("a folder")).collect();
    let store = |at: usize| stores[at].path();
    let (mut ours, mut other) = (Master::alone(), Master::alone());
    for master in [&mut ours, &mut other] {
        master.now_on(&hosts[0]);
        master.run(&["init"]).success();
    }
    let invitation = Invitation::from(&ours, 2);
    let (args, names) = (invitation.args(), ["a", "b"]);
    // One is told where the door is, the other finds it.
    let args = [args.clone(), args[2..].to_vec()];
    let joined: Vec<TestWorker> =
        (0..2).map(|at| worker(names[at], &hosts[at + 1], memory, store(at), &args[at])).collect();
    invitation.used_up();
    let foreign = Invitation::from(&other, 1);
    let stranger = worker("x", &hosts[3], memory, store(2), &foreign.args());
    foreign.used_up();
    // One worker is elsewhere when both start again; the door is at another port than the one they know.
    drop(joined);
    hosts[1].move_to(12);
    let _workers: Vec<TestWorker> =
        (0..2).map(|at| worker(names[at], &hosts[at + 1], memory, store(at), &[])).collect();
    let server = model.server(&ours, &[]);
    model.is_told_by(&server);
    let told = |ip: &str| {
        let door = format!("{ip}:7116");
        until("both to know the door", LIMIT, || (0..2).all(|at| remembered(store(at)) == door));
    };
    told("10.77.0.1");
    // The master is elsewhere.
    drop(server);
    hosts[0].move_to(21);
    ours.now_on(&hosts[0]);
    let server = model.server(&ours, &[]);
    model.is_told_by(&server);
    told("10.77.0.21");
    // A worker goes elsewhere while it is used.
    hosts[2].move_to(13);
    until("the loss to be mended", LIMIT, || {
        count(&server, "cake_recovery_seconds_count") > 0.0 && server.get("/ready").status == 200
    });
    model.is_told_by(&server);
    let mut used = devices(&server);
    used.sort();
    assert_eq!(used, names);
    assert!(stranger.log().contains("member") && !stranger.log().contains("held"));
}
