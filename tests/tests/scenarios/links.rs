//! Links that are far, slow, stalling or breaking: the same answers, and no alarm for weather alone.
use std::time::Duration;

use cake_tests::streams::{count, together};
use cake_tests::{
    HeldBlobs, Link, Master, ModelShape, Server, TestWorker, Weather, master, model, until,
};
use serde_json::json;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const SEED: u64 = 11;
const PLACE: [(&str, usize, usize); 2] = [("a", 0, 4), ("b", 4, 8)];
const ARGS: &[&str] = &["--context", "512", "--chunk", "16", "--local-memory", "0"];

/// Two workers behind links, and a model of layers of 350 KiB.
struct Site {
    model: TempDir,
    workers: Vec<TestWorker>,
    links: Vec<Link>,
}

impl Site {
    fn new() -> Self {
        let model = tempfile::tempdir().expect("a temporary folder");
        let shape = ModelShape {
            hidden_size: 128,
            intermediate_size: 320,
            heads: 4,
            ..ModelShape::small()
        };
        let shape = ModelShape { kv_heads: 2, head_dim: 32, ..shape };
        model::make(model.path(), &shape, SEED).expect("written");
        let workers = TestWorker::several(&["a", "b"]);
        let link = |(worker, seed): (&TestWorker, u64)| Link::start(&worker.address, seed);
        let links = workers.iter().zip(SEED..).map(link).collect();
        println!("seed {SEED}");
        Self { model, workers, links }
    }

    fn master(&self) -> Master {
        Master::at(self.links.iter().map(|link| link.address.clone()))
    }

    fn server(&self, master: &Master) -> Server {
        let pins = master::pins(&PLACE);
        let args: Vec<&str> = pins.iter().map(String::as_str).chain(ARGS.iter().copied()).collect();
        Server::start(master, self.model.path(), &args)
    }

    fn set(&self, weather: Weather) {
        self.links.iter().for_each(|link| link.set(weather));
    }
}

#[test]
fn latency_and_stalls_are_waited_for_and_are_no_loss() {
    const TOKENS: usize = 12;
    let site = Site::new();
    let master = site.master();
    let server = site.server(&master);
    let whole = together(&server, TOKENS, || {});
    let millis = Duration::from_millis;
    let stalls = Some((Duration::from_secs(5), Duration::from_secs(1)));
    site.set(Weather { latency: millis(50), jitter: millis(20), stalls, ..Weather::default() });
    assert!(together(&server, TOKENS, || {}) == whole);
    assert_eq!(count(&server, "cake_recovery_seconds_count"), 0.0, "no alarm");
    assert_eq!(server.get("/ready").status, 200);
}

#[test]
fn connections_that_break_at_random_bytes_cost_time_and_no_answer() {
    const TOKENS: usize = 24;
    let site = Site::new();
    let whole = {
        let alone = Master::alone();
        let args = ["--context", "512", "--chunk", "16"];
        together(&Server::start(&alone, site.model.path(), &args), TOKENS, || {})
    };
    // A push of 1.4 MiB to each, resumed again and again.
    let master = site.master();
    site.set(Weather { reset_after: Some(600 << 10), ..Weather::default() });
    let model = master::path(site.model.path());
    let mut push = vec!["push", &model];
    let pins = master::pins(&PLACE);
    push.extend(pins.iter().map(String::as_str).chain(ARGS.iter().copied()));
    until("the push to end", LIMIT, || master.run(&push).status.success());
    let resets = || site.links.iter().map(Link::resets).sum::<u64>();
    println!("{} resets during the push", resets());
    assert!(resets() > 0);
    site.set(Weather::default());
    assert_eq!(HeldBlobs::of(site.workers[0].store()).whole.len(), 4);
    assert_eq!(HeldBlobs::of(site.workers[1].store()).whole.len(), 4);
    // And answers.
    let server = site.server(&master);
    let before = resets();
    for mean in [200 << 10, 100 << 10] {
        let broken = resets();
        let answers = together(&server, TOKENS, || {
            site.set(Weather { reset_after: Some(mean), ..Weather::default() });
            until("a break", LIMIT, || resets() > broken);
            site.set(Weather::default());
        });
        assert!(answers == whole, "answers over breaks");
    }
    println!("{} resets during answers", resets() - before);
    until("the service to be whole", LIMIT, || server.get("/ready").status == 200);
    assert!(together(&server, TOKENS, || {}) == whole);
}

#[test]
fn a_push_at_ten_megabits_ends_and_disturbs_nobody() {
    const TOKENS: usize = 30;
    let site = Site::new();
    // Beside the slow link there is one that is not.
    let near = TestWorker::new("near");
    let master = Master::at([&site.links[0].address, &near.address].map(Clone::clone));
    let pins = master::pins(&[("near", 0, 8)]);
    let args: Vec<&str> =
        pins.iter().map(String::as_str).chain(ARGS.iter().copied()).chain(["--spares"]).collect();
    let slow = Weather { bytes_per_second: Some(10_000_000 / 8), ..Weather::default() };
    site.links[0].set(slow);
    let server = Server::start(&master, site.model.path(), &args);
    let whole = together(&server, TOKENS, || {});
    // All of it goes over the slow link as a copy, while answers are made.
    until("the copy to be there", LIMIT, || {
        assert!(together(&server, TOKENS, || {}) == whole);
        count(&server, "cake_covered_workers") == 1.0
    });
    assert_eq!(count(&server, "cake_recovery_seconds_count"), 0.0, "no alarm");
    assert_eq!(HeldBlobs::of(site.workers[0].store()).whole.len(), 8, "verified blobs");
    // And is worth something.
    let pushed = count(&server, "cake_pushed_bytes_total");
    let mut near = near;
    let answers = together(&server, TOKENS, || {
        near.kill();
        until("the loss to be mended", LIMIT, || {
            count(&server, "cake_recovery_seconds_count") == 1.0
        });
    });
    assert!(answers == whole);
    assert_eq!(count(&server, "cake_pushed_bytes_total"), pushed);
}

#[test]
fn two_workers_that_cannot_reach_each_other_any_more_hand_on_through_the_master() {
    const TOKENS: usize = 40;
    let site = Site::new();
    let master = site.master();
    let server = site.server(&master);
    let whole = together(&server, TOKENS, || {});
    let direct = || server.get("/api/cluster").good()["devices"][0]["direct"].clone();
    assert_eq!(direct(), json!(true));
    // The youngest connection to the second worker is that of the first one.
    let peers = site.links[1].made() - 1;
    let made = count(&server, "cake_generated_tokens_total");
    let answers = together(&server, TOKENS, || {
        until("tokens", LIMIT, || count(&server, "cake_generated_tokens_total") > made + 20.0);
        // One more is the master's, to ask for blobs; the next one would be the first worker's again.
        site.links[1].allow_more(1);
        site.links[1].cut_from(peers);
        until("the loss to be mended", LIMIT, || {
            count(&server, "cake_recovery_seconds_count") > 0.0
        });
    });
    assert!(answers == whole, "answers over the detour");
    assert_eq!(direct(), json!(false));
}

#[test]
fn a_device_whose_numbers_arrive_changed_is_named_with_its_layer() {
    let site = Site::new();
    let master = site.master();
    let model = master::path(site.model.path());
    let pins = master::pins(&PLACE);
    let verify = |more: &[&str]| {
        let mut args = vec!["compare", &model];
        args.extend(pins.iter().map(String::as_str).chain(ARGS.iter().copied()));
        args.extend(more);
        master.run(&args)
    };
    let said = verify(&["--json"]).json();
    let of =
        |verdict: &serde_json::Value| (verdict["worker"].clone(), verdict["difference"].clone());
    let found: Vec<_> = said.as_array().expect("a list").iter().map(of).collect();
    // The same kind of processor: not a bit differs.
    assert_eq!(found, [(json!("a"), json!(0.0)), (json!("b"), json!(0.0))]);
    site.links[1].set(Weather { garble: true, ..Weather::default() });
    let bad = verify(&[]);
    let last = bad.stderr.lines().last().expect("a sentence");
    assert!(last.contains("worker \"b\"") && last.contains("layer 4"), "{last}");
    assert_eq!(bad.status.code(), Some(1));
    let lines: Vec<&str> = bad.stdout.lines().collect();
    assert!(lines[0].starts_with("ok   a") && lines[1].starts_with("FAIL b"), "{lines:?}");
}
