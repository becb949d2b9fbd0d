//! A worker dies, and every answer that had begun ends as if it had not.
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cake_proto::{Tag, wire};
use cake_tests::streams::{COMPLETIONS, count, prompt, together};
use cake_tests::wait::until_at;
use cake_tests::{
    Cgroup, Link, Master, ModelShape, Server, TestWorker, Weather, WorkerOptions, budget_for, dial,
    golden, master, model, not_shown, until,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
/// How often what passes soon is looked at.
const CLOSELY: Duration = Duration::from_millis(2);
/// How long requests wait for a lost worker if nothing else is said.
const GRACE: Duration = Duration::from_secs(60);
const NAMES: [&str; 3] = ["a", "b", "c"];
const THREE: [(&str, usize, usize); 3] = [("a", 0, 3), ("b", 3, 6), ("c", 6, 8)];
/// Small steps, so that there is time to kill somebody between two.
const ARGS: &[&str] = &["--context", "512", "--chunk", "16", "--local-memory", "0"];

/// A model of eight layers, and the memory of a worker that can hold four of them, but not five.
struct Home {
    directory: TempDir,
    budget: u64,
}

impl Home {
    fn new() -> Self {
        Self::of(&ModelShape::quick())
    }

    fn of(shape: &ModelShape) -> Self {
        let directory = tempfile::tempdir().expect("a temporary folder");
        model::make(directory.path(), shape, 5).expect("written");
        let args = [&["--parallel", "8"], ARGS].concat();
        let budget = budget_for(directory.path(), 4, &args);
        Self { directory, budget }
    }

    fn worker(&self, name: &str, options: WorkerOptions<'_>) -> TestWorker {
        TestWorker::start(name, WorkerOptions { memory: self.budget, ..options })
    }

    fn workers(&self) -> Vec<TestWorker> {
        NAMES.iter().map(|name| self.worker(name, WorkerOptions::default())).collect()
    }

    /// A server, and the master whose state it keeps.
    fn server(
        &self,
        workers: &[TestWorker],
        place: &[(&str, usize, usize)],
        more: &[&str],
    ) -> (Master, Server) {
        let pins = master::pins(place);
        let args: Vec<&str> = pins
            .iter()
            .map(String::as_str)
            .chain(ARGS.iter().copied())
            .chain(more.iter().copied())
            .collect();
        let master = Master::over(workers);
        let server = Server::start(&master, self.directory.path(), &args);
        (master, server)
    }
}

#[test]
fn every_stream_goes_on_whoever_dies_and_whenever() {
    const TOKENS: usize = 60;
    let home = Home::new();
    let whole = {
        let workers = home.workers();
        let (_master, server) = home.server(&workers, &THREE, &[]);
        together(&server, TOKENS, || {})
    };
    for (index, name) in NAMES.iter().enumerate() {
        for prefill in [true, false] {
            let mut workers = home.workers();
            let (_master, server) = home.server(&workers, &THREE, &[]);
            let mut made = 0.0;
            let answers = together(&server, TOKENS, || {
                until_at("the moment", LIMIT, CLOSELY, || {
                    match prefill {
                        // Counted as they begin to be read.
                        true => count(&server, "cake_prompt_tokens_total") > 0.0,
                        false => count(&server, "cake_generated_tokens_total") > 100.0,
                    }
                });
                workers[index].kill();
                made = count(&server, "cake_generated_tokens_total");
                until("the loss to be mended", LIMIT, || mended(&server) == 1.0);
            });
            let when = if prefill { "while prompts were read" } else { "while tokens were made" };
            assert!(answers == whole, "{name} killed {when}");
            assert_eq!(mended(&server), 1.0);
            let seconds = count(&server, "cake_recovery_seconds_sum");
            eprintln!("{name} killed {when} ({made} so far): whole again after {seconds:.2} s");
            let shown = || server.get("/api/cluster").good();
            assert_eq!((&shown()["phase"], holders(&server).len()), (&json!("ready"), 2));
            let held = || shown()["load"]["kv_blocks"]["held"].clone();
            until("the blocks to be free", LIMIT, || held() == 0);
        }
    }
}

/// One family of each kind: what is kept of a sequence is latents, or a state that cannot be cut back, or a step goes to
/// other experts for each row.
#[test]
fn layers_of_every_kind_go_on_whoever_dies() {
    const TOKENS: usize = 60;
    // Of the last one three parts of each layer, so that devices share layers.
    for (name, slices) in [
        ("qwen3-moe", "1"),
        ("deepseek-v3", "1"),
        ("qwen3_5", "1"),
        ("granite-hybrid", "1"),
        ("qwen3-moe", "2"),
    ] {
        let golden = golden(name);
        // Where layers are parted, both cuts are between slices of experts.
        let [first, second, layers] = match slices {
            "1" => [1, 2, 3].map(|thirds| thirds * golden.num_layers / 3),
            _ => [5, 11, 3 * golden.num_layers],
        };
        let place = [("a", 0, first), ("b", first, second), ("c", second, layers)];
        let pins = master::pins(&place);
        let slices = ["--expert-slices", slices];
        let more = ["--context", "256", "--chunk", "16", "--parallel", "8", "--local-memory", "0"];
        let args: Vec<&str> = pins.iter().map(String::as_str).chain(more).chain(slices).collect();
        let mut whole = None;
        for index in 0..NAMES.len() {
            let mut workers = TestWorker::several(&NAMES);
            let master = Master::over(&workers);
            let expected = whole.get_or_insert_with(|| {
                // Layers are whole here.
                let server = Server::start(&master, &golden.path, &more);
                together(&server, TOKENS, || {})
            });
            let server = Server::start(&master, &golden.path, &args);
            let before = count(&server, "cake_generated_tokens_total");
            let answers = together(&server, TOKENS, || {
                until("some tokens", LIMIT, || {
                    count(&server, "cake_generated_tokens_total") > before + 100.0
                });
                workers[index].kill();
                until("the loss to be mended", LIMIT, || mended(&server) == 1.0);
            });
            assert!(answers == *expected, "{name}: {} killed", NAMES[index]);
            let held = || server.get("/api/cluster").good()["load"].clone();
            until("blocks and slots to be free", LIMIT, || {
                let load = held();
                load["kv_blocks"]["held"] == 0 && load["state_slots"]["held"] == 0
            });
        }
    }
}

#[test]
fn without_room_answers_wait_and_go_on_when_the_worker_is_back() {
    const TOKENS: usize = 40;
    let home = Home::new();
    let place = [("a", 0, 4), ("b", 4, 8)];
    let kept = tempfile::tempdir().expect("a temporary folder");
    let first = home.worker("a", WorkerOptions::default());
    let options =
        || WorkerOptions { directory: Some(kept.path().to_owned()), ..WorkerOptions::default() };
    let mut workers = vec![first, home.worker("b", options())];
    let (master, server) = home.server(&workers, &place, &[]);
    let whole = together(&server, TOKENS, || {});
    let listen = workers[1].address.clone();
    let back = || home.worker("b", WorkerOptions { listen: listen.clone(), ..options() });
    let made = count(&server, "cake_generated_tokens_total");
    let answers = together(&server, TOKENS, || {
        until("some tokens", LIMIT, || count(&server, "cake_generated_tokens_total") > made + 20.0);
        workers[1].kill();
        until("the loss to be seen", LIMIT, || server.get("/ready").status == 503);
        workers[1] = back();
    });
    assert!(answers == whole, "answers that waited");
    drop((server, master));
    // For longer than anybody waits: a clear error, then an answer again.
    let (_master, server) = home.server(&workers, &place, &["--grace", "1"]);
    workers[1].kill();
    let request = json!({ "prompt": prompt(1, 9), "max_tokens": 2 });
    let reply = std::thread::scope(|scope| {
        let reply = scope.spawn(|| server.post(COMPLETIONS, &request));
        until("an error before the grace of others is over", GRACE, || reply.is_finished());
        reply.join().expect("the server answers")
    });
    assert!(reply.retry_after.is_some());
    let why = reply.refused(503);
    assert!(why.contains("not whole again yet") || why.contains("lost worker"), "{why}");
    let shown = || server.get("/api/cluster").good();
    assert_eq!(shown()["phase"], "broken");
    until("nothing to run", LIMIT, || shown()["load"]["running"] == 0);
    workers[1] = back();
    until("the service to be whole", LIMIT, || server.get("/ready").status == 200);
    server.post(COMPLETIONS, &request).good();
}

#[test]
fn a_worker_that_falls_silent_is_as_good_as_dead_and_changes_nothing_when_it_wakes() {
    const TOKENS: usize = 60;
    let home = Home::new();
    let mut workers = home.workers();
    let (_master, server) = home.server(&workers, &THREE, &[]);
    let whole = together(&server, TOKENS, || {});
    let made = count(&server, "cake_generated_tokens_total");
    let mut silence = None;
    let answers = together(&server, TOKENS, || {
        until("some tokens", LIMIT, || count(&server, "cake_generated_tokens_total") > made + 50.0);
        workers[1].signal(Signal::STOP);
        let stopped = Instant::now();
        until("the others to go on", LIMIT, || mended(&server) == 1.0);
        silence = Some(stopped.elapsed());
        workers[1].signal(Signal::CONT);
    });
    assert!(answers == whole, "answers over the silence");
    let silence = silence.expect("it was seen");
    eprintln!("the others went on after {:.1} s", silence.as_secs_f64());
    // It is taken back: for the next plan, or for a faster one at once. Then it is needed.
    let holds = |name: &str| holders(&server).iter().any(|holder| holder == name);
    let spares = || server.get("/api/cluster").good()["spares"].clone();
    until("it to be there again", LIMIT, || spares() == json!(["b"]) || holds("b"));
    let lost = if holds("a") { 0 } else { 2 };
    workers[lost].kill();
    until("the service to be whole with the one that woke", LIMIT, || {
        let ready = server.get("/ready").status == 200;
        ready && !holds(NAMES[lost]) && holds("b")
    });
    assert!(together(&server, TOKENS, || {}) == whole, "answers with the one that woke");
}

#[test]
fn a_loss_while_nobody_asks_is_mended_also_where_the_master_has_layers() {
    const TOKENS: usize = 20;
    let home = Home::new();
    let mut workers = home.workers();
    let master = Master::over(&workers);
    let pins = master::pins(&[("master", 0, 2), ("a", 2, 5), ("b", 5, 8)]);
    let args = ["--context", "512", "--chunk", "16", "--local-memory", "1GiB"];
    let args: Vec<&str> = pins.iter().map(String::as_str).chain(args).collect();
    let server = Server::start(&master, home.directory.path(), &args);
    let whole = together(&server, TOKENS, || {});
    workers[1].kill();
    until("the service to be whole without being asked", LIMIT, || mended(&server) == 1.0);
    assert!(together(&server, TOKENS, || {}) == whole, "answers of the others");
}

#[test]
fn an_embedding_is_the_same_over_a_loss() {
    let home = Home::of(&ModelShape::small());
    let mut workers = home.workers();
    let (_master, server) = home.server(&workers, &THREE, &[]);
    let embed = || {
        let request = json!({ "input": prompt(3, 500) });
        server.post("/v1/embeddings", &request).good()["data"].clone()
    };
    let whole = embed();
    let read = count(&server, "cake_prompt_tokens_total");
    std::thread::scope(|scope| {
        let asked = scope.spawn(embed);
        until_at("a part to be read", LIMIT, CLOSELY, || {
            count(&server, "cake_prompt_tokens_total") > read + 60.0
        });
        workers[2].kill();
        assert!(asked.join().expect("an embedding") == whole);
    });
    // Whether it was still being read or not, the loss is mended.
    until("the service to be whole", LIMIT, || mended(&server) == 1.0);
    assert!(embed() == whole);
}

#[test]
fn with_copies_a_loss_pushes_nothing() {
    const TOKENS: usize = 40;
    let home = Home::new();
    for (index, name) in NAMES.iter().enumerate() {
        let mut workers = home.workers();
        let (_master, server) = home.server(&workers, &THREE, &["--spares"]);
        until("copies for every loss", LIMIT, || count(&server, "cake_covered_workers") == 3.0);
        let whole = together(&server, TOKENS, || {});
        let (made, pushed) = (
            count(&server, "cake_generated_tokens_total"),
            count(&server, "cake_pushed_bytes_total"),
        );
        assert!(pushed > 0.0 && count(&server, "cake_copied_bytes_total") > 0.0);
        let answers = together(&server, TOKENS, || {
            until("tokens", LIMIT, || count(&server, "cake_generated_tokens_total") > made + 50.0);
            workers[index].kill();
            until("the loss to be mended", LIMIT, || mended(&server) == 1.0);
        });
        assert!(answers == whole, "answers over the loss of {name}");
        assert_eq!(count(&server, "cake_pushed_bytes_total"), pushed, "the loss of {name}");
        let seconds = count(&server, "cake_recovery_seconds_sum");
        eprintln!("{name}: whole again after {seconds:.2} s with 0 bytes pushed");
    }
}

#[test]
fn a_worker_that_is_asked_to_stop_goes_once_its_layers_have_moved() {
    const TOKENS: usize = 60;
    let home = Home::new();
    let workers = home.workers();
    let (_master, server) = home.server(&workers, &THREE, &[]);
    let whole = together(&server, TOKENS, || {});
    let made = count(&server, "cake_generated_tokens_total");
    let answers = together(&server, TOKENS, || {
        until("tokens", LIMIT, || count(&server, "cake_generated_tokens_total") > made + 50.0);
        workers[1].signal(Signal::TERM);
        until("it to be gone", LIMIT, || !workers[1].alive());
    });
    assert!(answers == whole, "answers while one left");
    until("the move to be counted", LIMIT, || count(&server, "cake_move_seconds_count") == 1.0);
    assert_eq!(mended(&server), 0.0, "it was no loss");
    eprintln!("answers paused for {:.2} s", count(&server, "cake_move_seconds_sum"));
    let holding = holders(&server);
    assert_eq!(holding.len(), 2, "{holding:?}");
    // One that nobody can stand in for waits as long as it was told, then goes all the same.
    workers[0].signal(Signal::TERM);
    until("it to want to leave", LIMIT, || {
        hold(&workers[0]).is_err_and(|why| why.contains("asked to stop"))
    });
    assert!(workers[0].alive());
    workers[0].signal(Signal::TERM);
    until("it to be gone", LIMIT, || !workers[0].alive());
    until("the loss to be seen", LIMIT, || server.get("/ready").status == 503);
}

/// How many losses the others have made good.
fn mended(server: &Server) -> f64 {
    count(server, "cake_recovery_seconds_count")
}

/// Who holds layers, in the order of the layers.
fn holders(server: &Server) -> Vec<String> {
    let shown = server.get("/api/cluster").good();
    let devices = shown["devices"].as_array().expect("a list");
    let name = |device: &Value| device["name"].as_str().expect("a name").to_owned();
    devices.iter().map(name).collect()
}

/// Three answer; one of them, `b`, is started with `options` and runs low: it leaves without a token lost, and is
/// taken again once there is enough.
fn leaves_and_comes_back(
    options: WorkerOptions<'_>,
    run_low: impl FnOnce(),
    recover: impl FnOnce(),
) {
    const TOKENS: usize = 60;
    let home = Home::new();
    let mut workers = vec![home.worker("a", WorkerOptions::default()), home.worker("b", options)];
    workers.push(home.worker("c", WorkerOptions::default()));
    let (_master, server) = home.server(&workers, &THREE, &[]);
    let whole = together(&server, TOKENS, || {});
    let made = count(&server, "cake_generated_tokens_total");
    let answers = together(&server, TOKENS, || {
        until("tokens", LIMIT, || count(&server, "cake_generated_tokens_total") > made + 20.0);
        run_low();
        until("it to be let go", LIMIT, || holder(&workers[1]).is_empty());
    });
    assert!(answers == whole, "answers while one ran low");
    assert_eq!(holders(&server).len(), 2, "{}", workers[1].log());
    assert_eq!(mended(&server), 0.0, "it was no loss");
    let refusal = hold(&workers[1]).expect_err("it is refused for now");
    assert!(refusal.contains("keeps back"), "{refusal}");
    assert!(workers[1].alive());
    recover();
    until("it to be held again", LIMIT, || !holder(&workers[1]).is_empty());
    assert!(together(&server, TOKENS, || {}) == whole, "answers with it again");
}

/// Which master holds a worker; empty if none does.
fn holder(worker: &TestWorker) -> String {
    let ask = async {
        let mut client = dial(&worker.address, Tag::default()).await.expect("it is there");
        client.describe(wire::DescribeRequest {}).await.expect("it answers").into_inner().held_by
    };
    runtime().block_on(ask)
}

/// Holds a worker for a moment, as a master without an authority does.
fn hold(worker: &TestWorker) -> Result<(), String> {
    let ask = async {
        let mut client = dial(&worker.address, Tag::default()).await.expect("it is there");
        let request = wire::HoldRequest { master_name: "other".to_owned(), ..Default::default() };
        client.hold(request).await.map(drop).map_err(|status| status.message().to_owned())
    };
    runtime().block_on(ask)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn a_device_whose_battery_runs_low_leaves_and_comes_back() {
    if !rustix::process::geteuid().is_root() {
        return not_shown("a battery of our own needs root (a mount of the worker's own)");
    }
    let class = tempfile::tempdir().expect("a temporary folder");
    let battery = class.path().join("power_supply/BAT0");
    std::fs::create_dir_all(&battery).expect("made");
    let says = |file: &str, text: &str| std::fs::write(battery.join(file), text).expect("written");
    says("type", "Battery\n");
    says("status", "Discharging\n");
    says("capacity", "31\n");
    let options = WorkerOptions {
        args: vec!["--min-battery".to_owned(), "30".to_owned()],
        replace: Some((PathBuf::from("/sys/class"), class.path().to_owned())),
        ..WorkerOptions::default()
    };
    leaves_and_comes_back(
        options,
        || says("capacity", "29\n"),
        || {
            says("status", "Charging\n");
            says("capacity", "36\n");
        },
    );
}

#[test]
fn a_device_whose_memory_runs_low_leaves_and_comes_back() {
    let group = match Cgroup::memory(4 << 30) {
        Ok(group) => group,
        Err(why) => return not_shown(why),
    };
    let limit = |bytes| group.set_memory(bytes).expect("the limit can be changed");
    let options = WorkerOptions {
        args: vec!["--min-free".to_owned(), "1GiB".to_owned()],
        cgroups: vec![&group],
        ..WorkerOptions::default()
    };
    leaves_and_comes_back(options, || limit(1 << 30), || limit(4 << 30));
}

#[test]
fn a_device_that_is_nearer_is_taken_in_while_answers_go_on() {
    const TOKENS: usize = 24;
    // So far away that it has no part in the better pipeline, also where a busy machine finds slow what is near.
    const AWAY: Duration = Duration::from_millis(150);
    let home = Home::of(&ModelShape::small());
    let kept = tempfile::tempdir().expect("a temporary folder");
    let large = |listen: &str, memory: u64| {
        let (listen, directory) = (listen.to_owned(), Some(kept.path().to_owned()));
        TestWorker::start("near", WorkerOptions { memory, listen, directory, ..Default::default() })
    };
    let far = TestWorker::new("far");
    Master::over([&far]).push(home.directory.path(), &[("far", 0, 8)]); // Not that slowly.
    let link = Link::start(&far.address, 1);
    link.set(Weather { latency: AWAY, ..Weather::default() });
    // Too small for a layer at first.
    let mut near = large("127.0.0.1:0", 48 << 20);
    let master = Master::at([link.address.clone(), near.address.clone()]);
    let server = Server::start(&master, home.directory.path(), ARGS);
    assert_eq!(holders(&server), ["far"]);
    let whole = together(&server, TOKENS, || {});
    let listen = near.address.clone();
    let answers = together(&server, TOKENS, || {
        near.kill();
        near = large(&listen, 1 << 30);
        until("layers to move", LIMIT, || count(&server, "cake_move_seconds_count") == 1.0);
    });
    assert!(answers == whole, "answers while layers moved");
    assert_eq!(holders(&server), ["near"]);
    assert_eq!(mended(&server), 0.0);
    let store = far.store().display().to_string();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", far.pid())).expect("maps");
    until("the worker without layers to put its blobs away", LIMIT, || !maps().contains(&store));
}
