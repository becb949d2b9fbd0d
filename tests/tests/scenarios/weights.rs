//! Where weights lie: mapped or copied, the answers are the same and the memory is what was planned.
use std::path::Path;
use std::time::Duration;

use cake_tests::master::{self, Answer, path, strs};
use cake_tests::process::{Running, alive, status_bytes};
use cake_tests::{Master, ModelShape, TestWorker, WorkerOptions, model, not_shown, until};

/// A worker's peak, counted by the system, for each byte that was planned.
const PEAK_BAR: f64 = 1.10;
const SEED: u64 = 11;
const CONTEXT: &[&str] = &["--context", "256", "--numerics", "exact"];
/// Of runs that go on for as long as a test looks at them, with the tokens they may say.
const LONG_CONTEXT: &[&str] = &["--context", "2048", "--numerics", "exact"];
const LONG_ANSWER: usize = 2000;
/// Bytes of the weights of 8 layers that are copied into huge pages: of each blob of 30 MiB, less than a huge page is
/// not.
const LARGE_BYTES: u64 = 224 << 20;
/// How long a load may take, on a disk that is still busy with what other tests wrote.
const LOAD: Duration = Duration::from_secs(120);

/// 8 layers of 30 MiB, of which keys and values (1 MiB each) are smaller than a huge page.
fn shape() -> ModelShape {
    ModelShape {
        hidden_size: 1024,
        intermediate_size: 4096,
        heads: 16,
        kv_heads: 8,
        max_positions: 2048,
        ..ModelShape::small()
    }
}

fn home() -> tempfile::TempDir {
    println!("seed {SEED}");
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &shape(), SEED).expect("the model can be written");
    home
}

fn worker(args: &[&str], memory: u64) -> TestWorker {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let env = vec![("CAKE_LOG".to_owned(), "info".to_owned())];
    TestWorker::start("a", WorkerOptions { args, env, memory, ..WorkerOptions::default() })
}

/// Bytes that a plan gives the one worker.
fn planned(model: &Path) -> u64 {
    let worker = TestWorker::new("a");
    let model = path(model);
    let args = [&["plan", &model, "--json", "--place", "a=0..8"], CONTEXT].concat();
    let report = Master::over([&worker]).json(&args);
    let memory = &report["plan"]["stages"][0]["memory"];
    let part = |name: &str| memory[name].as_u64().expect("bytes");
    ["weights", "kv", "scratch", "overhead"].into_iter().map(part).sum()
}

fn answer(worker: &TestWorker, model: &Path) -> Answer {
    let prompt: Vec<u32> = (2..202).collect();
    Master::over([worker]).answer_of(model, &prompt, 20, &[("a", 0, 8)], CONTEXT)
}

/// A run that goes on for as long as the test looks at it.
fn long_run(master: &Master, model: &Path) -> Running {
    let args = master::answer_args(model, &[2, 3, 4], LONG_ANSWER);
    let args = [args, master::pins(&[("a", 0, 8)])].concat();
    master.start(&[&strs(&args)[..], LONG_CONTEXT].concat())
}

#[test]
fn copied_weights_give_the_same_bits_within_the_plan() {
    let home = home();
    let planned = planned(home.path());
    // The offer is no more than the plan: the copy must do without memory of its own.
    let mapped = worker(&["--weights", "map"], planned);
    let copied = worker(&["--weights", "copy"], planned);
    let expected = answer(&mapped, home.path());
    assert_eq!(answer(&copied, home.path()).logprob_bits, expected.logprob_bits);
    for (worker, said) in [(&mapped, "mapped, as asked"), (&copied, "copied, as asked")] {
        let ratio = worker.vm_hwm() as f64 / planned as f64;
        println!("{said}: peak {} of {planned} planned, {ratio:.3}", worker.vm_hwm());
        assert!(ratio <= PEAK_BAR, "{said}: {ratio}");
        assert!(worker.log().contains(said), "{}", worker.log());
    }
}

#[test]
fn copied_weights_lie_in_memory_of_the_process() {
    let home = home();
    for (weights, anonymous) in [("map", false), ("copy", true)] {
        let worker = worker(&["--weights", weights], 1 << 30);
        let master = Master::over([&worker]);
        let run = long_run(&master, home.path());
        let bytes = |name: &str| status_bytes(worker.pid(), name).expect("the worker runs");
        let (where_to, where_not) =
            if anonymous { ("RssAnon:", "RssFile:") } else { ("RssFile:", "RssAnon:") };
        let placed = || bytes(where_to) >= LARGE_BYTES && bytes(where_not) < LARGE_BYTES / 2;
        until(&format!("the weights to be placed by {weights}"), LOAD, placed);
        run.kill();
        let given_back = || bytes("RssAnon:") < LARGE_BYTES / 2;
        until("the memory to be given back", LOAD, given_back);
    }
}

#[test]
fn locked_weights_are_counted_by_the_system_or_refused_with_its_limit() {
    let home = home();
    for weights in ["map", "copy"] {
        let worker = worker(&["--weights", weights, "--lock-memory"], 1 << 30);
        let master = Master::over([&worker]);
        let mut locked = 0;
        let run = long_run(&master, home.path());
        let seen = || {
            locked = status_bytes(worker.pid(), "VmLck:").unwrap_or(0);
            locked >= LARGE_BYTES || !alive(run.pid())
        };
        until("the weights to be locked", LOAD, seen);
        if locked >= LARGE_BYTES {
            run.kill();
            continue;
        }
        let refusal = run.finish(LOAD).refusal();
        assert!(refusal.contains("RLIMIT_MEMLOCK"), "{refusal}");
        not_shown(format!("locking {weights} weights: {refusal}"));
    }
}

/// A run of the master alone that goes on for as long as the test looks at it.
fn long_run_alone(model: &Path, more: &[&str]) -> Running {
    let args = master::answer_args(model, &[2, 3, 4], LONG_ANSWER);
    Master::alone().start(&[&strs(&args)[..], LONG_CONTEXT, more].concat())
}

#[test]
fn the_masters_own_weights_give_the_same_bits_wherever_they_lie_and_are_never_there_twice() {
    let home = home();
    let model = path(home.path());
    let prompt: Vec<u32> = (2..202).collect();
    let run = |weights: &str| {
        let args = master::answer_args(home.path(), &prompt, 20);
        let more = [CONTEXT, &["--weights", weights, "-v"]].concat();
        let finished = Master::alone().run(&[&strs(&args)[..], &more].concat()).success();
        let said: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
        (said["logprobs"].clone(), finished)
    };
    let (expected, mapped) = run("map");
    assert!(mapped.stderr.contains("mapped, as asked"), "{}", mapped.stderr);
    let (logprobs, copied) = run("copy");
    assert_eq!(logprobs, expected);
    assert!(copied.stderr.contains("copied, as asked"), "{}", copied.stderr);
    let ratio = copied.peak_bytes as f64 / mapped.peak_bytes as f64;
    println!("peak {} copied, {} mapped, {ratio:.3}", copied.peak_bytes, mapped.peak_bytes);
    assert!(ratio <= PEAK_BAR, "{ratio}");
    let (logprobs, chosen) = run("auto");
    assert_eq!(logprobs, expected);
    assert!(chosen.stderr.contains("weights placed"), "{}", chosen.stderr);
    let refused = Master::alone().run(&["plan", &model, "--weights", "disk"]);
    assert!(!refused.status.success() && refused.stderr.contains("map, copy, auto"));
}

#[test]
fn the_masters_copied_weights_lie_in_memory_of_the_process() {
    let home = home();
    for (weights, anonymous) in [("map", false), ("copy", true)] {
        let run = long_run_alone(home.path(), &["--weights", weights]);
        let (where_to, where_not) =
            if anonymous { ("RssAnon:", "RssFile:") } else { ("RssFile:", "RssAnon:") };
        let bytes = |name: &str| status_bytes(run.pid(), name).unwrap_or(0);
        let placed = || bytes(where_to) >= LARGE_BYTES && bytes(where_not) < LARGE_BYTES / 2;
        until(&format!("the master's weights to be placed by {weights}"), LOAD, placed);
        run.kill();
    }
}

#[test]
fn the_masters_locked_weights_are_counted_by_the_system_or_refused_with_its_limit() {
    let home = home();
    for weights in ["map", "copy"] {
        let run = long_run_alone(home.path(), &["--weights", weights, "--lock-memory"]);
        let mut locked = 0;
        let seen = || {
            locked = status_bytes(run.pid(), "VmLck:").unwrap_or(0);
            locked >= LARGE_BYTES || !alive(run.pid())
        };
        until("the master's weights to be locked", LOAD, seen);
        if locked >= LARGE_BYTES {
            run.kill();
            continue;
        }
        let refusal = run.finish(LOAD).refusal();
        assert!(refusal.contains("RLIMIT_MEMLOCK"), "{refusal}");
        not_shown(format!("locking the master's {weights} weights: {refusal}"));
    }
}

#[test]
fn the_masters_encoded_weights_lie_in_huge_pages() {
    /// The matrices of 8 layers with 8 bits per weight; those of the MLP, 96 MiB, are larger than a huge page, the
    /// others are gathered.
    const ENCODED_BYTES: u64 = 8 * (15 << 20);
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if !enabled.is_ok_and(|enabled| enabled.contains("[always]") || enabled.contains("[madvise]")) {
        return not_shown("this system gives no huge pages".to_owned());
    }
    let home = home();
    let run = long_run_alone(home.path(), &["--encode", "q8", "--weights", "map"]);
    let huge = || {
        let all = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", run.pid()));
        let all = all.unwrap_or_default();
        let line = all.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        // Memory may be so torn that a few pieces get small pages.
        kib.unwrap_or(0) * 1024 >= ENCODED_BYTES / 8 * 7
    };
    until("the encoded weights to be in huge pages", LOAD, huge);
    run.kill();
}
