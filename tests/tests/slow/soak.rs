//! Mixed load with clients that leave whenever they like: nothing is lost, nothing grows.
//!
//! `CAKE_SOAK_SECONDS=600 cargo test --release -p cake-tests --test slow soak:: -- --nocapture` goes on for ten
//! minutes; without the variable it is 20 seconds.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cake_tests::process::status_bytes;
use cake_tests::{Master, Server, TestWorker, golden, until};
use serde_json::{Value, json};

const SEED: u64 = 20;
const CLIENTS: u64 = 12;
const LIMIT: Duration = Duration::from_secs(30);
/// Of the whole time, the part after which memory is expected to stay as it is.
const WARM_UP: f64 = 0.4;
/// Growth of memory after that; in a few seconds a little more is no sign of anything.
const MOST_GROWTH: f64 = 0.02;
const LITTLE_BYTES: f64 = 4e6;
const LONG: Duration = Duration::from_secs(300);

fn soak_time() -> Duration {
    let seconds = std::env::var("CAKE_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

/// A stream of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// What clients did.
#[derive(Debug, Default)]
struct Tally {
    whole: AtomicU64,
    streams: AtomicU64,
    left: AtomicU64,
    embeddings: AtomicU64,
    refused: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Asks for one thing after the other until it is told to stop. Who is forgotten meets the deadline of all requests.
fn client(server: &Server, number: u64, stop: &AtomicBool, tally: &Tally) {
    let mut random = Random(SEED.wrapping_mul(1000) + number);
    while !stop.load(Ordering::Relaxed) {
        // Some begin alike, as turns of one conversation do.
        let (family, tokens) = (random.below(4), 1 + random.below(150));
        let prompt: Vec<u64> = (0..tokens).map(|at| 3 + (family * 31 + at * 7) % 300).collect();
        let mut request = json!({
            "prompt": prompt,
            "max_tokens": 1 + random.below(60),
            "temperature": random.below(2),
            "n": 1 + random.below(2),
            "ignore_eos": random.below(2) == 0,
        });
        match random.below(10) {
            0 => {
                server.post("/v1/embeddings", &json!({ "input": prompt })).good();
                count(&tally.embeddings);
            }
            1 => {
                request["max_tokens"] = json!(-1);
                server.post("/v1/completions", &request).refused(400);
                count(&tally.refused);
            }
            2..5 => {
                let body = server.post("/v1/completions", &request).good();
                assert!(body["usage"]["completion_tokens"].as_u64().is_some(), "{body}");
                count(&tally.whole);
            }
            _ => {
                request["stream"] = json!(true);
                let events = server.stream("/v1/completions", &request);
                let read = random.below(80) as usize;
                let events: Vec<String> = events.take(read).collect();
                let bad = events.iter().find(|event| event.contains("\"error\""));
                assert!(bad.is_none(), "{bad:?}");
                match events.last().is_some_and(|last| last == "[DONE]") {
                    true => count(&tally.streams),
                    false => count(&tally.left), // Gone in the middle of it.
                }
            }
        }
    }
}

#[test]
fn clients_come_and_go_and_nothing_is_left_behind() {
    let _machine = crate::beside_others();
    let time = soak_time();
    println!("seed {SEED}, {} s", time.as_secs());
    let golden = golden("llama-sharded");
    let workers = TestWorker::several(&["a", "b"]);
    let args = ["--context", "256", "--parallel", "6", "--place", "a=0..6", "--place", "b=6..12"];
    let mut server = Server::start(&Master::over(&workers), &golden.path, &args);
    let mut pids = vec![("master", server.child().id())];
    pids.extend(workers.iter().map(|worker| (worker.name.as_str(), worker.pid())));
    let resident = || {
        let bytes = |pid: u32| status_bytes(pid, "VmRSS:").expect("it runs") as f64;
        pids.iter().map(|(_, pid)| bytes(*pid)).collect::<Vec<f64>>()
    };
    let (server, stop, tally) = (&server, AtomicBool::new(false), Tally::default());
    let started = Instant::now();
    let mut samples: Vec<(f64, Vec<f64>)> = Vec::new();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (stop, tally) = (&stop, &tally);
            scope.spawn(move || client(server, number, stop, tally));
        }
        while started.elapsed() < time {
            std::thread::sleep(Duration::from_millis(100));
            samples.push((started.elapsed().as_secs_f64() / time.as_secs_f64(), resident()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{tally:?}");
    for done in [&tally.whole, &tally.streams, &tally.left, &tally.embeddings, &tally.refused] {
        assert!(done.load(Ordering::Relaxed) > 0, "every kind of client came: {tally:?}");
    }
    let cluster = || server.get("/api/cluster").good();
    let busy = |load: &Value| ["running", "waiting", "steps"].iter().any(|name| load[*name] != 0);
    until("everything to end", LIMIT, || !busy(&cluster()["load"]));
    let blocks = cluster()["load"]["kv_blocks"].clone();
    println!("KV blocks afterwards: {blocks}");
    assert_eq!(blocks["held"], 0);
    let sum =
        blocks["idle"].as_u64().expect("a number") + blocks["free"].as_u64().expect("a number");
    assert_eq!(Some(sum), blocks["total"].as_u64());
    // Means of a tenth of the time, right after the warm-up and at the end.
    let mean = |from: f64, index: usize| {
        let within = samples.iter().filter(|(at, _)| (from..from + 0.1).contains(at));
        let values: Vec<f64> = within.map(|(_, bytes)| bytes[index]).collect();
        values.iter().sum::<f64>() / values.len().max(1) as f64
    };
    for (index, (name, _)) in pids.iter().enumerate() {
        let (before, after) = (mean(WARM_UP, index), mean(0.9, index));
        let growth = after / before - 1.0;
        println!(
            "{name}: {:.1} MiB after the warm-up, {:.1} MiB at the end: {:+.2} %",
            before / 1048576.0,
            after / 1048576.0,
            100.0 * growth
        );
        let little = time < LONG && after - before <= LITTLE_BYTES;
        assert!(little || growth <= MOST_GROWTH, "{name} grew by {:.2} %", 100.0 * growth);
    }
}
