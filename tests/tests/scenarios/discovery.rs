//! Finding each other: no address is typed, whoever moves, and whoever opens the connections.
use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use cake_identity::JoinToken;
use cake_tests::streams::{Said, answer, count, together};
use cake_tests::{
    Entered, HeldBlobs, Host, Invitation, Lan, Liar, Master, ModelShape, Running, Server,
    TestWorker, WorkerOptions, budget_for, master, model, not_shown, process, until,
};
use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
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
            not_shown(format_args!("no network of our own can be made: {why}"));
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

#[test]
fn a_liar_on_the_network_takes_little_memory_and_no_member_away() {
    /// More than this much memory is none that a small device can spare.
    const LITTLE: u64 = 48 << 20;
    /// Many more than the worker keeps.
    const LIES: u32 = 20_000;
    let model = Model::new();
    let Some((lan, mut hosts)) = lan(2) else { return };
    let _entered = lan.enter();
    let mut master = Master::alone();
    master.now_on(&hosts[0]);
    master.run(&["init"]).success();
    let store = tempfile::tempdir().expect("a folder");
    let invitation = Invitation::from(&master, 1);
    let token: JoinToken = invitation.token.parse().expect("a token");
    let worker = worker("a", &hosts[1], 1 << 30, store.path(), &invitation.args());
    invitation.used_up();
    let memory = || process::status_bytes(worker.pid(), "RssAnon:").expect("it runs");
    let (before, mut most) = (memory(), 0);
    let (liar, cluster) = (Liar::on(&lan), token.cluster());
    let mut number = 0;
    // Masters of its own cluster, each with another name.
    let mut lie = || {
        number += 1;
        liar.say(&cluster, "master", &format!("m{number}"), 9);
        most = most.max(memory().saturating_sub(before));
        number
    };
    while lie() < LIES {}
    until("the worker to stop listening to that", LIMIT, || {
        lie();
        worker.log().contains("are not found by themselves")
    });
    println!("{number} masters were said to be there, which took {} KiB", most >> 10);
    assert!(most < LITTLE, "{number} took {most} bytes");
    // Meanwhile the master went elsewhere, and is found.
    hosts[0].move_to(21);
    master.now_on(&hosts[0]);
    let server = model.server(&master, &["--place", "a=0..8"]);
    until("the master to be found", LIMIT, || remembered(store.path()) == "10.77.0.21:7116");
    model.is_told_by(&server);
    assert_eq!(devices(&server), ["a"]);
}

/// What the book says of all members, whoever is there at the moment.
fn members(master: &Master) -> Value {
    let mut members = master.json(&["workers", "list", "--json"]);
    for member in members.as_array_mut().expect("a list") {
        let member = member.as_object_mut().expect("an entry");
        for passing in ["online", "held_by", "seen_seconds", "memory_bytes"] {
            member.remove(passing);
        }
    }
    members
}

#[test]
fn a_lie_about_where_a_worker_is_leads_its_master_to_nobody() {
    let Some(mut site) = Site::new() else { return };
    let before = members(&site.master);
    let place = |name: &str| {
        let all = before.as_array().expect("a list");
        let member = all.iter().find(|member| member["name"] == name).expect("it has joined");
        ["worker_id", "address"].map(|field| member[field].as_str().expect("a text").to_owned())
    };
    let ([_, there], [gone, _]) = (place("a"), place("b"));
    let join = format!("{}:0", site.master.ip());
    let mut command = site.master.bare(&["token", "--wait", "--join", &join, "--json"]);
    command.env("CAKE_LOG", "warn,cake_master=debug");
    let mut door = Running::start(&mut command);
    door.wait_for("}", LIMIT);
    let issued: Value = serde_json::from_str(&door.stdout()).expect("JSON");
    let token: JoinToken = issued["token"].as_str().expect("a text").parse().expect("a token");
    // The book is wrong about nobody who is there: so what is said is looked at of one who is not.
    site.workers[1].kill();
    let liar = Liar::on(&site.lan);
    until("the master to look in vain", LIMIT, || {
        // Where another member is.
        liar.say_at(&token.cluster(), "worker", &gone, there.parse().expect("IPv4"));
        std::thread::sleep(Duration::from_millis(100));
        let log = door.stderr();
        log.lines().any(|line| line.contains("not where somebody says") && line.contains(&there))
    });
    assert_eq!(members(&site.master), before);
}

#[test]
fn a_member_started_with_a_token_after_its_master_moved_stays_who_it_is() {
    let Some((lan, mut hosts)) = lan(2) else { return };
    let _entered = lan.enter();
    let mut master = Master::alone();
    master.now_on(&hosts[0]);
    master.run(&["init"]).success();
    let store = tempfile::tempdir().expect("a folder");
    let used = Invitation::from(&master, 1);
    let with = |token: &str| ["--token", token].map(str::to_owned);
    let used_token = with(&used.token);
    let first = worker("a", &hosts[1], 1 << 30, store.path(), &used.args());
    used.used_up();
    let joined = members(&master);
    assert_eq!(joined.as_array().map(Vec::len), Some(1));
    drop(first);
    // With one that is used up, and with one that would make another member of it.
    for (at, unused) in [(21, false), (22, true)] {
        hosts[0].move_to(at);
        master.now_on(&hosts[0]);
        let open = Invitation::from(&master, 1);
        let token = if unused { with(&open.token) } else { used_token.clone() };
        let again = worker("a", &hosts[1], 1 << 30, store.path(), &token);
        assert_eq!(remembered(store.path()), open.master);
        assert_eq!(members(&master), joined);
        assert!(!again.log().contains("joined"), "{}", again.log());
    }
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
    // Nothing else ends the handshake of a line in this way.
    until("it to hear why", LIMIT, || pair.silent.log().contains("CertificateRevoked"));
    drop(server);
    // Nor does a command wait for it.
    let args = ["plan", &master::path(model.path()), "--json", "--join", &pair.door];
    let plan = pair.master.json(&args).to_string();
    assert!(plan.contains("\"a\"") && !plan.contains("\"b\""), "{plan}");
}

#[test]
fn a_device_that_joins_later_is_used_at_the_next_plan() {
    let model = Model::new();
    let memory = model.half();
    let mut pair = Pair::new(memory);
    let server = pair.server(&model, &[("a", 0, 4), ("b", 4, 8)]);
    let issued = pair.master.json(&["token", "--json"]);
    let token = issued["token"].as_str().expect("a token");
    let args = ["--master", &pair.door, "--token", token].map(str::to_owned);
    let store = tempfile::tempdir().expect("a folder");
    let _later = TestWorker::start("c", options(memory, store.path(), &args));
    pair.silent.kill();
    let recovered = || count(&server, "cake_recovery_seconds_count") > 0.0;
    until("the loss to be mended", LIMIT, || recovered() && server.get("/ready").status == 200);
    model.is_told_by(&server);
    let mut used = devices(&server);
    used.sort();
    assert_eq!(used, ["a", "c"]);
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

/// A master and two members on hosts of their own, ready to be used by address.
struct Site {
    master: Master,
    workers: Vec<TestWorker>,
    hosts: Vec<Host>,
    _stores: Vec<TempDir>,
    _entered: Entered,
    lan: Lan,
}

impl Site {
    fn new() -> Option<Self> {
        let (lan, hosts) = lan(3)?;
        let entered = lan.enter();
        let mut master = Master::alone();
        master.now_on(&hosts[0]);
        master.run(&["init"]).success();
        let stores: Vec<TempDir> = (0..2).map(|_| tempfile::tempdir().expect("a folder")).collect();
        let invitation = Invitation::from(&master, 2);
        let args = invitation.args();
        let start = |(at, name): (usize, &&str)| {
            worker(name, &hosts[at + 1], 1 << 30, stores[at].path(), &args)
        };
        let workers = ["a", "b"].iter().enumerate().map(start).collect();
        invitation.used_up();
        Some(Self { master, workers, hosts, _stores: stores, _entered: entered, lan })
    }
}

#[test]
fn a_link_that_is_cut_between_two_workers_alone_costs_time_and_no_token() {
    let model = Model::new();
    let Some(site) = Site::new() else { return };
    let server = model.server(&site.master, &["--place", "a=0..4", "--place", "b=4..8"]);
    let whole = together(&server, TOKENS, || {});
    assert_eq!(directs(&server), [true, true]);
    let made = count(&server, "cake_generated_tokens_total");
    let mut cut = false;
    until("the cut to be noticed", LIMIT, || {
        let answers = together(&server, TOKENS, || {
            if !std::mem::replace(&mut cut, true) {
                let tokens = || count(&server, "cake_generated_tokens_total");
                until("tokens", LIMIT, || tokens() > made + 10.0);
                site.hosts[1].cut_from(&site.hosts[2]);
                site.hosts[2].cut_from(&site.hosts[1]);
            }
        });
        assert!(answers == whole, "answers over the detour");
        count(&server, "cake_recovery_seconds_count") > 0.0
    });
    // Both are there still, and hand on through the master.
    assert_eq!(devices(&server), ["a", "b"]);
    assert_eq!(directs(&server), [false, true]);
}

#[test]
fn a_push_over_a_port_of_ten_megabits_ends_and_is_verified() {
    const MEGABITS: u32 = 10;
    let model = Model::new();
    let Some(site) = Site::new() else { return };
    if let Err(why) = site.hosts[1].limit(MEGABITS) {
        return not_shown(format_args!("no port can be made slow: {why}"));
    }
    let path = master::path(model.path());
    let place = ["--place", "a=0..8"];
    let push = [&["push", &path, "--json"], &place[..], ARGS].concat();
    let started = Instant::now();
    let pushed = site.master.json(&push);
    let took = started.elapsed();
    let held = HeldBlobs::of(site.workers[0].store());
    assert_eq!((held.whole.len(), held.partial.len()), (8, 0));
    assert_eq!(pushed["pushed"][0]["pushed_bytes"].as_u64(), Some(held.whole_bytes()), "{pushed}");
    let least =
        Duration::from_secs_f64(held.whole_bytes() as f64 * 8.0 / 1e6 / f64::from(MEGABITS));
    assert!(took > least, "{took:?}, expected at least {least:?}");
    // What arrived is what was sent: nothing more is sent for an answer, which is the right one.
    let server = model.server(&site.master, &place);
    assert_eq!(count(&server, "cake_pushed_bytes_total"), 0.0);
    model.is_told_by(&server);
}
