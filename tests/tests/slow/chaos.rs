//! A seeded schedule of kills, stops, breaks and comebacks while answers are made: none is wrong, none is lost.
//! Five minutes of it: `CAKE_CHAOS_SECONDS=300 cargo test --release -p cake-tests --test slow chaos:: -- --nocapture`;
//! `CAKE_CHAOS_SEED` chooses another schedule.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cake_tests::streams::{answer, count};
use cake_tests::{
    Link, Master, ModelShape, Server, TestWorker, Weather, WorkerOptions, budget_for, model, until,
};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

const SECONDS: u64 = 20;
const SEED: u64 = 2026;
const CLIENTS: usize = 8;
/// Kinds of faults.
const KINDS: u64 = 5;
/// Different requests; their answers are known from a run without faults.
const REQUESTS: usize = 6;
const NAMES: [&str; 3] = ["a", "b", "c"];
const ARGS: &[&str] =
    &["--context", "512", "--chunk", "16", "--local-memory", "0", "--parallel", "8"];
/// Longest that a server may take to be whole again at the end, or an answer to come.
const LIMIT: Duration = Duration::from_secs(90);

/// A worker that is killed and comes back, behind a link.
struct Device {
    name: &'static str,
    home: TempDir,
    link: Link,
    worker: Option<TestWorker>,
    budget: u64,
}

impl Device {
    fn new(name: &'static str, budget: u64, seed: u64) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let worker = start(name, &home, budget);
        let link = Link::start(&worker.address, seed);
        Self { name, home, link, worker: Some(worker), budget }
    }

    fn kill(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            worker.kill();
        }
        self.link.cut_from(0); // As when a machine is gone.
    }

    fn come_back(&mut self) {
        if self.worker.is_none() {
            let worker = start(self.name, &self.home, self.budget);
            self.link.lead_to(&worker.address);
            self.worker = Some(worker);
        }
    }
}

fn start(name: &str, home: &TempDir, memory: u64) -> TestWorker {
    let directory = Some(home.path().to_owned());
    TestWorker::start(name, WorkerOptions { memory, directory, ..WorkerOptions::default() })
}

/// xorshift64*, by Vigna (arXiv:1402.6246).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
    }
}

fn variable(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// One fault and its end; most of the time two of three devices are well.
fn trouble(devices: &mut [Device], kind: u64, random: &mut Random) -> &'static str {
    let index = random.below(devices.len() as u64) as usize;
    let device = &mut devices[index];
    let pause = |random: &mut Random, most| {
        std::thread::sleep(Duration::from_millis(200 + random.below(most)));
    };
    match kind {
        0 => {
            device.kill();
            pause(random, 1500);
            device.come_back();
            "kill"
        }
        1 => {
            // For longer than anybody waits, or not.
            if let Some(worker) = &device.worker {
                worker.signal(Signal::STOP);
                pause(random, 6000);
                worker.signal(Signal::CONT);
            }
            "stop"
        }
        2 => {
            device.link.cut_from(0);
            "cut"
        }
        3 => {
            device.link.set(Weather { reset_after: Some(150 << 10), ..Weather::default() });
            pause(random, 1000);
            device.link.set(Weather::default());
            "resets"
        }
        _ => {
            // All but one, so that the others have to wait.
            let others = (0..devices.len()).filter(|other| *other != index);
            let others: Vec<usize> = others.collect();
            others.iter().for_each(|other| devices[*other].kill());
            pause(random, 1000);
            others.iter().for_each(|other| devices[*other].come_back());
            "two kills"
        }
    }
}

#[test]
fn whatever_happens_answers_are_whole_and_right() {
    let _machine = crate::beside_others();
    let (seed, seconds) =
        (variable("CAKE_CHAOS_SEED", SEED), variable("CAKE_CHAOS_SECONDS", SECONDS));
    println!("seed {seed}, {seconds} s");
    let directory = tempfile::tempdir().expect("a temporary folder");
    model::make(directory.path(), &ModelShape::small(), 5).expect("written");
    let budget = budget_for(directory.path(), 4, ARGS);
    let expected = {
        let worker = TestWorker::new("alone");
        let server = Server::start(&Master::over([&worker]), directory.path(), ARGS);
        (0..REQUESTS).map(|number| answer(&server, number, 40)).collect::<Vec<_>>()
    };
    let mut devices: Vec<Device> =
        NAMES.iter().zip(seed..).map(|(name, seed)| Device::new(name, budget, seed)).collect();
    let master = Master::at(devices.iter().map(|device| device.link.address.clone()));
    let args = [ARGS, &["--grace", "60"]].concat();
    let server = Server::start(&master, directory.path(), &args);
    let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut faults = std::collections::BTreeMap::<&str, usize>::new();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, expected, over, answers) = (&server, &expected, &over, &answers);
            scope.spawn(move || {
                let mut number = client;
                while !over.load(Ordering::Relaxed) {
                    let said = answer(server, number % REQUESTS, 40);
                    assert!(said == expected[number % REQUESTS], "answer {number} over faults");
                    answers.fetch_add(1, Ordering::Relaxed);
                    number += CLIENTS + 1;
                }
            });
        }
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let started = Instant::now();
        let mut kinds = Vec::new();
        while started.elapsed() < Duration::from_secs(seconds) {
            if kinds.is_empty() {
                kinds.extend(0..KINDS); // Each kind once, then each kind once more.
            }
            let kind = kinds.swap_remove(random.below(kinds.len() as u64) as usize);
            *faults.entry(trouble(&mut devices, kind, &mut random)).or_default() += 1;
            std::thread::sleep(Duration::from_millis(300 + random.below(1200)));
        }
        over.store(true, Ordering::Relaxed);
    });
    until("the service to be whole", LIMIT, || server.get("/ready").status == 200);
    let shown = server.get("/api/cluster").good();
    assert_eq!((&shown["load"]["running"], &shown["load"]["waiting"]), (&json!(0), &json!(0)));
    assert_eq!(shown["load"]["kv_blocks"]["held"], 0, "{shown}");
    let recovered = count(&server, "cake_recovery_seconds_count");
    let answers = answers.into_inner();
    println!("{faults:?}: {answers} answers, all as without faults; {recovered} recoveries");
    assert!(answers > 0 && recovered > 0.0);
}
