//! Kills, swallowed steps, lies, rows that are no numbers and partitions while answers stream: how long a client hears
//! nothing, and that every token is the right one.
//!
//! A hundred rounds: `CAKE_STALL_ROUNDS=100 cargo test --release -p cake-tests --test scenarios stalls:: -- --nocapture`;
//! `CAKE_STALL_SEED` chooses others. Rounds that were asked for are a measurement, and judged: in none of them may a client
//! hear nothing for more than [`BAR`] beyond the time in which its answer was computed again. Without, five rounds show
//! that tokens are right, and no machine is judged.
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cake_tests::streams::{Over, Said, answer, answer_heard, count};
use cake_tests::{Lie, Master, Meddler, Server, TestWorker, WorkerOptions, until};
use serde_json::Value;
use tempfile::TempDir;

use super::pipeline::{ARGS, Home};

const LIMIT: Duration = Duration::from_secs(90);
const SEED: u64 = 71;
/// Longest silence, less the time to compute an answer again: until a fault is seen and another pipeline is there.
const BAR: Duration = Duration::from_secs(5);
const CLIENTS: usize = 4;
/// Different requests; their answers are known from a run without faults.
const REQUESTS: usize = 5;
const TOKENS: usize = 40;
const NAMES: [&str; 3] = ["a", "b", "c"];
const KINDS: [Kind; 5] = [Kind::Kill, Kind::Swallow, Kind::Lie, Kind::NotANumber, Kind::Partition];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Kill,
    Swallow,
    Lie,
    NotANumber,
    Partition,
}

/// A worker behind somebody who meddles with it.
struct Device {
    name: &'static str,
    budget: u64,
    store: TempDir,
    worker: TestWorker,
    meddler: Meddler,
}

impl Device {
    fn new(name: &'static str, budget: u64) -> Self {
        let store = tempfile::tempdir().expect("a temporary folder");
        let worker = start(name, budget, &store);
        let meddler = Meddler::before(&worker.address);
        Self { name, budget, store, worker, meddler }
    }

    fn kill(&mut self) {
        self.worker.kill();
    }

    /// Started again, as it was.
    fn come_back(&mut self) {
        self.worker = start(self.name, self.budget, &self.store);
        self.meddler.lead_to(&self.worker.address);
    }

    /// Another device in its place.
    fn replace(&mut self) {
        self.kill();
        self.store = tempfile::tempdir().expect("a temporary folder");
        self.come_back();
    }
}

fn start(name: &str, memory: u64, store: &TempDir) -> TestWorker {
    let store = Some(store.path().to_owned());
    TestWorker::start(name, WorkerOptions { memory, store, ..WorkerOptions::default() })
}

/// What clients hear: when, which of them, and after how long a silence.
#[derive(Default)]
struct Ears(Mutex<Vec<(Instant, usize, Duration)>>);

impl Ears {
    fn hear(&self, client: usize, last: &mut Instant) {
        let now = Instant::now();
        let silence = now - std::mem::replace(last, now);
        self.0.lock().expect("no holder panics").push((now, client, silence));
    }

    /// Whether every client has heard something since then.
    fn all_since(&self, since: Instant) -> bool {
        let heard = self.0.lock().expect("no holder panics");
        let has = |client| heard.iter().rev().any(|(at, who, _)| *at > since && *who == client);
        (0..CLIENTS).all(has)
    }

    /// What clients waited for in a round that began then and had another pipeline at `mended`; all have heard
    /// something since. What was before is forgotten.
    fn stall(&self, began: Instant, mended: Instant) -> Stall {
        let mut heard = self.0.lock().expect("no holder panics");
        heard.retain(|(at, ..)| *at > began);
        let mut stall = Stall::default();
        for client in 0..CLIENTS {
            let its = || heard.iter().filter(move |(_, who, _)| *who == client);
            let silence = its().map(|(_, _, silence)| *silence).max().unwrap_or_default();
            let first = its().find(|(at, ..)| *at > mended);
            let replay = first.map_or(Duration::ZERO, |(at, ..)| *at - mended);
            stall.silence = stall.silence.max(silence);
            stall.replay = stall.replay.max(replay);
            stall.excess = stall.excess.max(silence.saturating_sub(replay));
        }
        stall
    }
}

/// What a fault cost: the worst of all clients.
#[derive(Clone, Copy, Debug, Default)]
struct Stall {
    /// A client heard nothing for so long.
    silence: Duration,
    /// Of it, from the loss to another pipeline, as the server counts it.
    recovery: Duration,
    /// And from there to the next that it heard: its answer was computed again.
    replay: Duration,
    /// The silence without that, of each client by itself.
    excess: Duration,
}

struct Site<'a> {
    server: &'a Server,
    devices: Vec<Device>,
}

impl Site<'_> {
    fn shown(&self) -> Value {
        self.server.get("/api/cluster").good()
    }

    /// Places of the devices that hold layers, in the order of the chain.
    fn holders(&self) -> Vec<usize> {
        self.places(&self.shown())
    }

    fn places(&self, shown: &Value) -> Vec<usize> {
        let chain = shown["devices"].as_array().expect("a list");
        let place = |it: &Value| self.devices.iter().position(|device| it["name"] == device.name);
        chain.iter().map(|it| place(it).expect("one of ours")).collect()
    }

    /// Waits until all devices are held and answers are made.
    fn whole(&self) {
        until("all devices to be there", LIMIT, || {
            let shown = self.shown();
            let count = |list: &str| shown[list].as_array().map_or(0, Vec::len);
            shown["phase"] == "ready" && count("devices") + count("spares") == NAMES.len()
        });
    }

    /// Where a fault of this kind strikes: a place among those that hold layers, which are these now.
    fn victim(kind: Kind, number: u64, holders: &[usize]) -> usize {
        match kind {
            Kind::Kill | Kind::Swallow => holders[number as usize % holders.len()],
            Kind::Lie | Kind::NotANumber => holders[holders.len() - 1],
            Kind::Partition => holders[1],
        }
    }

    fn strike(&mut self, kind: Kind, victim: usize) {
        let device = &mut self.devices[victim];
        match kind {
            Kind::Kill => device.kill(),
            Kind::Swallow => device.meddler.swallow(1),
            Kind::Lie => device.meddler.lie(Lie::Rows, 1),
            Kind::NotANumber => device.meddler.lie(Lie::NotANumber, 1),
            Kind::Partition => device.meddler.cut_off(true),
        }
    }

    /// What has not happened will not.
    fn recall(&mut self, kind: Kind, victim: usize) {
        let device = &mut self.devices[victim];
        match kind {
            Kind::Kill => device.come_back(),
            Kind::Swallow => device.meddler.swallow(0),
            Kind::Lie | Kind::NotANumber => device.meddler.lie(Lie::Rows, 0),
            Kind::Partition => device.meddler.cut_off(false),
        }
    }

    /// Whether a fault that waits there strikes somebody in a chain that was shown.
    fn is_in_reach(&self, kind: Kind, victim: usize, shown: &Value) -> bool {
        let holders = self.places(shown);
        match kind {
            Kind::Kill | Kind::Swallow => holders.contains(&victim),
            Kind::Lie | Kind::NotANumber => holders.last() == Some(&victim),
            Kind::Partition => {
                let ways = holders.windows(2).enumerate();
                let is_direct = |stage: usize| shown["devices"][stage]["direct"] == true;
                ways.filter(|(stage, _)| is_direct(*stage)).any(|(_, way)| way[1] == victim)
            }
        }
    }

    /// Has the ways be such that a fault of this kind can strike.
    fn within_reach(&mut self, kind: Kind) {
        let first = Instant::now();
        while kind == Kind::Partition && self.shown()["devices"][0]["direct"] != true {
            assert!(first.elapsed() < LIMIT, "{kind:?} has no way to strike");
            // They were cut off before: other processes may reach each other.
            for device in self.holders().into_iter().take(2) {
                self.devices[device].kill();
                self.devices[device].come_back();
                self.whole();
            }
        }
    }

    /// Has a fault of this kind strike, until one more loss was made good. Layers may have moved a moment before, so
    /// that it strikes nobody: then once more.
    fn struck(&mut self, kind: Kind, number: u64) -> Struck {
        let first = Instant::now();
        loop {
            assert!(first.elapsed() < LIMIT, "{kind:?} strikes nobody");
            self.within_reach(kind);
            let seconds = count(self.server, SECONDS);
            let before = count(self.server, "cake_recovery_seconds_count");
            let (victim, began) = (Self::victim(kind, number, &self.holders()), Instant::now());
            self.strike(kind, victim);
            let mut mended = false;
            until("the loss to be mended", LIMIT, || {
                // In this order: a loss is counted before those who made it good are shown.
                let shown = self.shown();
                mended = count(self.server, "cake_recovery_seconds_count") > before;
                mended || shown["phase"] == "ready" && !self.is_in_reach(kind, victim, &shown)
            });
            if mended {
                return Struck { victim, began, seconds };
            }
            self.recall(kind, victim);
            self.whole();
        }
    }

    /// One fault and what ends it; returns what it cost.
    fn round(&mut self, kind: Kind, number: u64, ears: &Ears) -> Stall {
        let Struck { victim, began, seconds } = self.struck(kind, number);
        let mended = Instant::now();
        until("every client to hear something", LIMIT, || ears.all_since(mended));
        let recovery = Duration::from_secs_f64((count(self.server, SECONDS) - seconds).max(0.0));
        let stall = Stall { recovery, ..ears.stall(began, mended) };
        match kind {
            // Nobody keeps a device that does that.
            Kind::Swallow | Kind::Lie | Kind::NotANumber => self.devices[victim].replace(),
            Kind::Kill | Kind::Partition => self.recall(kind, victim),
        }
        self.whole();
        stall
    }
}

/// A fault that struck.
struct Struck {
    victim: usize,
    began: Instant,
    /// What all recoveries before it took (s).
    seconds: f64,
}

/// The metric of what recoveries took (s).
const SECONDS: &str = "cake_recovery_seconds_sum";

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// splitmix64.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn whatever_a_device_does_clients_wait_for_seconds_and_hear_what_is_right() {
    let asked = variable("CAKE_STALL_ROUNDS");
    let (rounds, seed) =
        (asked.unwrap_or(KINDS.len() as u64), variable("CAKE_STALL_SEED").unwrap_or(SEED));
    println!("seed {seed}, {rounds} rounds");
    let home = Home::new();
    let devices: Vec<Device> = NAMES.iter().map(|name| Device::new(name, home.budget)).collect();
    let master = Master::at(devices.iter().map(|device| device.meddler.address.clone()));
    let server = Server::start(&master, home.directory.path(), ARGS);
    let expected: Vec<Said> = (0..REQUESTS).map(|it| answer(&server, it, TOKENS)).collect();
    let mut site = Site { server: &server, devices };
    let (ears, over, answers) = (Ears::default(), AtomicBool::new(false), AtomicU64::new(0));
    let mut stalls = BTreeMap::<Kind, Vec<Stall>>::new();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, expected, ears) = (&server, &expected, &ears);
            let (over, answers) = (&over, &answers);
            scope.spawn(move || {
                let mut number = client;
                while !over.load(Ordering::Relaxed) {
                    let mut last = Instant::now();
                    let heard = || ears.hear(client, &mut last);
                    let said = answer_heard(server, number % REQUESTS, TOKENS, heard);
                    assert!(said == expected[number % REQUESTS], "answer {number} over faults");
                    answers.fetch_add(1, Ordering::Relaxed);
                    number += CLIENTS + 1;
                }
            });
        }
        // However it ends, the clients do.
        let _over = Over(&over);
        for round in 0..rounds {
            let random = mix(seed ^ mix(round));
            let kind = KINDS[(round % KINDS.len() as u64) as usize];
            let stall = site.round(kind, random, &ears);
            stalls.entry(kind).or_default().push(stall);
        }
    });
    for (kind, stalls) in &stalls {
        let words = |of: fn(&Stall) -> Duration| {
            let mut times: Vec<f64> = stalls.iter().map(|it| of(it).as_secs_f64()).collect();
            times.sort_by(f64::total_cmp);
            let part = |part: f64| times[((times.len() - 1) as f64 * part).round() as usize];
            format!("{:.2} s (p50), {:.2} s (p99)", part(0.5), part(0.99))
        };
        println!("{kind:?}, {} rounds: a client hears", stalls.len());
        println!("  nothing for                           {}", words(|it| it.silence));
        println!("  of it: from a loss to a new pipeline  {}", words(|it| it.recovery));
        println!("  of it: until its answer goes on       {}", words(|it| it.replay));
        println!("  nothing, without the latter, for      {}", words(|it| it.excess));
    }
    let mended = count(&server, "cake_recovery_seconds_count");
    let answers = answers.into_inner();
    println!("{answers} answers, all as without faults; {mended} losses made good");
    assert!(answers > 0 && mended >= rounds as f64);
    let late: Vec<_> = stalls
        .iter()
        .flat_map(|(kind, stalls)| stalls.iter().map(move |stall| (kind, stall)))
        .filter(|(_, stall)| stall.excess > BAR)
        .collect();
    assert!(asked.is_none() || late.is_empty(), "longer than {BAR:?}: {late:?}");
}
