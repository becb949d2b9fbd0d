//! Finding each other: no address is typed, whoever moves, and whoever opens the connections.
use std::collections::HashSet;
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

/// What all workers here are started with: a store that outlives them, and a log.
fn options(memory: u64, store: &Path, args: &[String]) -> WorkerOptions<'static> {
    WorkerOptions {
        memory,
        store: Some(store.to_owned()),
        args: args.to_vec(),
        env: vec![("CAKE_LOG".to_owned(), "info".to_owned())],
        ..WorkerOptions::default()
    }
}

/// A worker on a host of its own.
fn worker(name: &str, host: &Host, memory: u64, store: &Path, args: &[String]) -> TestWorker {
    let (listen, host) = ("0.0.0.0:7117".to_owned(), Some(host.clone()));
    TestWorker::start(name, WorkerOptions { listen, host, ..options(memory, store, args) })
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

/// A master on this machine, a worker that listens, and one that does not.
struct Pair {
    master: Master,
    /// The master's door.
    door: String,
    stores: [TempDir; 2],
    listening: TestWorker,
    silent: TestWorker,
}

impl Pair {
    fn new(memory: u64) -> Self {
        let master = Master::alone();
        master.run(&["init"]).success();
        let stores = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let invitation = Invitation::from(&master, 2);
        let (args, door) = (invitation.args(), invitation.master.clone());
        let listening = TestWorker::start("a", options(memory, stores[0].path(), &args));
        let silent = Self::silent(memory, stores[1].path(), &args);
        invitation.used_up();
        Self { master, door, stores, listening, silent }
    }

    fn silent(memory: u64, store: &Path, args: &[String]) -> TestWorker {
        let args = [args, &["--no-discovery".to_owned()]].concat();
        let options = options(memory, store, &args);
        TestWorker::start("b", WorkerOptions { listen: String::new(), ..options })
    }

    /// A server with these layers on the workers.
    fn server(&self, model: &Model, place: &[(&str, usize, usize)]) -> Server {
        let pins = master::pins(place);
        let args: Vec<&str> =
            pins.iter().map(String::as_str).chain(["--join", &self.door]).collect();
        model.server(&self.master, &args)
    }
}

/// Whether each device hands on directly, in chain order.
fn directs(server: &Server) -> Vec<bool> {
    let shown = server.get("/api/cluster").good();
    let direct = |device: &Value| device["direct"].as_bool().expect("true or false");
    shown["devices"].as_array().expect("a list").iter().map(direct).collect()
}

#[test]
fn a_worker_that_does_not_listen_serves_over_connections_that_it_opened() {
    let model = Model::new();
    let mut pair = Pair::new(model.half());
    // It can connect to others, but nobody to it.
    for (place, direct) in
        [([("b", 0, 4), ("a", 4, 8)], [true, true]), ([("a", 0, 4), ("b", 4, 8)], [false, true])]
    {
        let server = pair.server(&model, &place);
        model.is_told_by(&server);
        assert_eq!(devices(&server), place.map(|(name, ..)| name));
        assert_eq!(directs(&server), direct);
    }
    let server = pair.server(&model, &[("a", 0, 4), ("b", 4, 8)]);
    let recovered = || count(&server, "cake_recovery_seconds_count");
    pair.silent.kill();
    until("the loss to be seen", LIMIT, || server.get("/ready").status != 200);
    pair.silent = Pair::silent(model.half(), pair.stores[1].path(), &[]);
    until("it to be used again", LIMIT, || recovered() > 0.0 && server.get("/ready").status == 200);
    model.is_told_by(&server);
    assert_eq!(devices(&server), ["a", "b"]);
    drop(server);
    // Commands open the door for it, too.
    let checks = pair.master.json(&["doctor", "--json", "--join", &pair.door]);
    let checks = checks.as_array().expect("a list");
    assert!(checks.iter().all(|check| check["ok"] == true), "{checks:?}");
    let workers: HashSet<_> = checks.iter().map(|check| check["worker"].to_string()).collect();
    assert_eq!(workers.len(), 2, "{workers:?}");
    let list = pair.master.run(&["workers", "list"]).success().stdout;
    assert!(
        list.contains(&pair.listening.address) && list.contains("connects by itself"),
        "{list}"
    );
}

#[test]
fn a_worker_that_opened_its_connections_is_dropped_when_it_is_revoked() {
    let model = Model::new();
    let pair = Pair::new(1 << 30);
    let server = pair.server(&model, &[("a", 0, 4), ("b", 4, 8)]);
    assert_eq!(devices(&server), ["a", "b"]);
    pair.master.run(&["workers", "revoke", "b"]).success();
    let recovered = || count(&server, "cake_recovery_seconds_count") > 0.0;
    until("the loss to be mended", LIMIT, || recovered() && server.get("/ready").status == 200);
    model.is_told_by(&server);
    assert_eq!(devices(&server), ["a"]);
    until("it to hear why", LIMIT, || {
        pair.silent.log().contains("connection for the master ended")
    });
    drop(server);
    // Nor does a command wait for it.
    let args = ["plan", &master::path(model.path()), "--json", "--join", &pair.door];
    let plan = pair.master.json(&args).to_string();
    assert!(plan.contains("\"a\"") && !plan.contains("\"b\""), "{plan}");
}

#[test]
fn a_worker_that_its_master_cannot_connect_to_connects_by_itself() {
    let model = Model::new();
    let Some((lan, hosts)) = lan(2) else { return };
    let _entered = lan.enter();
    let mut master = Master::alone();
    master.now_on(&hosts[0]);
    master.run(&["init"]).success();
    let store = tempfile::tempdir().expect("a folder");
    let invitation = Invitation::from(&master, 1);
    hosts[1].add_private("10.99.0.1");
    let (listen, host) = ("10.99.0.1:7117".to_owned(), Some(hosts[1].clone()));
    let options = options(1 << 30, store.path(), &invitation.args());
    let worker = TestWorker::start("a", WorkerOptions { listen, host, ..options });
    invitation.used_up();
    let server = model.server(&master, &["--place", "a=0..8"]);
    model.is_told_by(&server);
    assert_eq!(devices(&server), ["a"]);
    assert!(worker.log().contains("connects to it instead"), "{}", worker.log());
}
