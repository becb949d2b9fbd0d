//! Several models loaded at once, where the devices have room for all of them; who was not used for longest makes room.
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cake_tests::master::{path, pins, strs};
use cake_tests::streams::count;
use cake_tests::{Golden, Master, Server, TestWorker, WorkerOptions, demo_model, golden, until};
use serde_json::{Value, json};

use crate::models::{COMPLETIONS, LIMIT, PLACE, alone, ask, copy, running, said};

/// So that a plan cannot do with less by reading prompts in shorter pieces.
pub(crate) const CHUNK: [&str; 2] = ["--chunk", "32"];

/// Bytes that each of these workers must offer for this model, with these arguments of the plan, and what of them its
/// process takes whatever it holds.
pub(crate) fn needs(model: &Path, workers: &[&str], args: &[&str]) -> (u64, u64) {
    let roomy = |name: &&str| {
        TestWorker::start(name, WorkerOptions { memory: 64 << 30, ..WorkerOptions::default() })
    };
    let workers: Vec<TestWorker> = workers.iter().map(roomy).collect();
    let model = path(model);
    let all = [&["plan", &model, "--json", "--parallel", "8"][..], &CHUNK[..], args].concat();
    let plan = Master::over(&workers).json(&all);
    let stages = plan["plan"]["stages"].as_array().unwrap_or_else(|| panic!("no stages: {plan}"));
    let part = |stage: &Value, name: &str| stage["memory"][name].as_u64().expect("a number");
    let total = |stage: &Value| -> u64 {
        ["weights", "kv", "state", "scratch", "overhead"].map(|name| part(stage, name)).iter().sum()
    };
    (stages.iter().map(total).max().expect("a stage"), part(&stages[0], "overhead"))
}

/// A worker that offers so many bytes.
pub(crate) fn offering(name: &str, memory: u64) -> TestWorker {
    TestWorker::start(name, WorkerOptions { memory, ..WorkerOptions::default() })
}

fn names(list: &Value, field: &str) -> Vec<String> {
    let all = list.as_array().unwrap_or_else(|| panic!("no list: {list}")).iter();
    let mut names: Vec<String> =
        all.map(|one| one[field].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

/// What the plans of all loaded models take of each device together, the process once, and what the device offers.
fn taken(cluster: &Value) -> Vec<(String, u64, u64)> {
    let mut devices: Vec<(String, u64, u64)> = Vec::new();
    for device in cluster["models"]
        .as_array()
        .expect("models")
        .iter()
        .flat_map(|model| model["devices"].as_array().expect("devices"))
    {
        let bytes = |part: &str| device["memory"][part].as_u64().expect("a number");
        let name = device["name"].as_str().expect("a name").to_owned();
        let own: u64 = ["weights", "kv", "state", "scratch"].map(bytes).iter().sum();
        match devices.iter_mut().find(|known| known.0 == name) {
            Some(known) => known.1 += own,
            None => {
                let member = cluster["members"].as_array().expect("members").iter();
                let offered = member.filter(|it| it["name"] == device["name"]);
                let offered = offered.map(|it| it["budget_bytes"].as_u64().expect("bytes"));
                devices.push((name, own + bytes("overhead"), offered.sum()));
            }
        }
    }
    devices
}

#[test]
fn two_models_that_fit_answer_at_the_same_time() {
    let (llama, qwen) = (golden("llama"), golden("qwen2"));
    let expected = [alone(&llama, "llama"), alone(&qwen, "qwen2")];
    let workers = TestWorker::several(&["a", "b", "c"]);
    let pins = pins(&PLACE);
    let args: Vec<&str> = [strs(&pins), vec!["--numerics", "exact"]].concat();
    let server = Server::of_several(&Master::over(&workers), &[&llama.path, &qwen.path], &args);
    assert_eq!(said(&server, &llama, "llama"), expected[0]);
    // An answer that is not over holds up nobody who wants the other model.
    let mut long = ask(&llama, "llama");
    (long["stream"], long["max_tokens"], long["n"]) = (json!(true), json!(24), json!(4));
    let mut events = server.stream(COMPLETIONS, &long);
    events.next().expect("it has begun");
    assert_eq!(said(&server, &qwen, "qwen2"), expected[1]);
    assert!(events.count() > 4, "it went on");
    assert_eq!(running(&server), ["llama:latest", "qwen2:latest"]);
    assert_eq!(count(&server, "cake_pipelines_total"), 2.0);

    let ((server, llama, qwen), expected) = ((&server, &llama, &qwen), &expected);
    std::thread::scope(|scope| {
        for number in 0..6 {
            scope.spawn(move || match number % 2 {
                0 => assert_eq!(said(server, llama, "llama"), expected[0]),
                _ => assert_eq!(said(server, qwen, "qwen2"), expected[1]),
            });
        }
    });
    assert_eq!(count(server, "cake_pipelines_total"), 2.0, "none was loaded a second time");
    let cluster = server.get("/api/cluster").good();
    assert_eq!(names(&cluster["models"], "model"), ["llama", "qwen2"]);
    assert_eq!((&cluster["phase"], &cluster["spares"]), (&json!("ready"), &json!([])));
    for (device, taken, offered) in taken(&cluster) {
        assert!(0 < taken && taken <= offered, "{device}: {taken} of {offered}");
    }
    assert_eq!(server.get("/ready").good()["status"], "ready");
    let listed = server.get("/v1/models").good();
    let is_loaded = |model: &Value| model["loaded"] == true && model["context_length"].is_u64();
    assert!(listed["data"].as_array().expect("a list").iter().all(is_loaded), "{listed}");
}

#[test]
fn who_was_not_used_for_longest_makes_room() {
    let llama = golden("llama");
    let home = tempfile::tempdir().expect("a folder");
    let models: Vec<PathBuf> = ["x", "y", "z"].map(|name| home.path().join(name)).into();
    models.iter().for_each(|model| copy(&llama.path, model));
    let (all, process) = needs(&llama.path, &["a"], &[]);
    // Two of them fit, and not a byte more.
    let memory = 2 * (all - process) + process;
    let worker = offering("a", memory);
    let paths: Vec<&Path> = models.iter().map(PathBuf::as_path).collect();
    let server = Server::of_several(&Master::over([&worker]), &paths, &CHUNK);
    let expected = said(&server, &llama, "x");
    let pushed = count(&server, "cake_pushed_bytes_total");
    let loads = || count(&server, "cake_pipelines_total");
    for (asked, loaded, pipelines) in [
        ("y", ["x:latest", "y:latest"], 2.0),
        ("x", ["x:latest", "y:latest"], 2.0),
        ("z", ["x:latest", "z:latest"], 3.0),
        ("y", ["z:latest", "y:latest"], 4.0),
        ("z", ["z:latest", "y:latest"], 4.0),
    ] {
        assert_eq!(said(&server, &llama, asked), expected, "{asked}");
        assert_eq!((running(&server), loads()), (loaded.map(str::to_owned).to_vec(), pipelines));
        for (device, taken, offered) in taken(&server.get("/api/cluster").good()) {
            assert!(taken <= offered, "{asked} on {device}: {taken} of {offered}");
        }
    }
    assert_eq!(count(&server, "cake_pushed_bytes_total"), pushed, "it holds them already");
    assert!(worker.vm_hwm() <= memory, "{} of {memory}", worker.vm_hwm());
}

#[test]
fn a_request_that_waits_for_a_model_is_listed_and_both_are_told_of() {
    let llama = golden("llama");
    let demo = demo_model();
    let memory = [&demo, &llama.path].map(|model| needs(model, &["a"], &[]).0);
    let worker = offering("a", memory.into_iter().fold(0, u64::max));
    let server = Server::of_several(&Master::over([&worker]), &[&demo, &llama.path], &CHUNK);
    let long = json!({
        "model": "demo-model", "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true, "n": 4,
    });
    let mut events = server.stream(COMPLETIONS, &long);
    events.next().expect("it has begun");
    worker.signal(rustix::process::Signal::STOP); // So that the answer does not end meanwhile.
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| said(&server, &llama, "llama"));
        until("the request to be listed", LIMIT, || {
            let listed = server.get("/api/requests").good();
            let all = listed["requests"].as_array().expect("a list");
            all.iter().any(|one| one["model"] == "llama" && one["stage"] == "waiting")
        });
        worker.signal(rustix::process::Signal::CONT);
        drop(events); // Whoever goes away is not waited for.
        waits.join().expect("it is answered");
    });
    assert_eq!(running(&server), ["llama:latest"]);
}

#[test]
fn both_models_go_on_where_a_worker_is_lost() {
    let (llama, qwen) = (golden("llama"), golden("qwen2"));
    let expected = [alone(&llama, "llama"), alone(&qwen, "qwen2")];
    let mut workers = TestWorker::several(&["a", "b", "c"]);
    let pins = pins(&PLACE);
    let args: Vec<&str> = [strs(&pins), vec!["--numerics", "exact"]].concat();
    let server = Server::of_several(&Master::over(&workers), &[&llama.path, &qwen.path], &args);
    let of = |model: usize| -> (&Golden, &str) {
        if model == 0 { (&llama, "llama") } else { (&qwen, "qwen2") }
    };
    for (model, expected) in expected.iter().enumerate() {
        assert_eq!(said(&server, of(model).0, of(model).1), *expected);
    }
    let over = AtomicBool::new(false);
    let (server, over, expected, of) = (&server, &over, &expected, &of);
    std::thread::scope(|scope| {
        for model in [0, 1] {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(said(server, of(model).0, of(model).1), expected[model]);
                }
            });
        }
        workers[1].kill();
        let recovered = || count(server, "cake_recovery_seconds_count");
        until("both to be whole again", LIMIT, || recovered() >= 2.0);
        over.store(true, Ordering::Relaxed);
    });
    let cluster = server.get("/api/cluster").good();
    let lost = |model: &Value| names(&model["devices"], "name").contains(&"b".to_owned());
    assert!(!cluster["models"].as_array().expect("models").iter().any(lost), "{cluster}");
    assert_eq!(running(server), ["llama:latest", "qwen2:latest"]);
}

#[test]
fn of_two_models_that_lost_a_worker_the_one_that_fits_goes_on() {
    let llama = golden("llama");
    let home = tempfile::tempdir().expect("a folder");
    let models: Vec<PathBuf> = ["x", "y"].map(|name| home.path().join(name)).into();
    models.iter().for_each(|model| copy(&llama.path, model));
    let place = pins(&[("a", 0, 3), ("b", 3, 5)]);
    let (whole, process) = needs(&llama.path, &["a"], &[]);
    let (part, _) = needs(&llama.path, &["a", "b"], &strs(&place));
    // Two parts fit a worker; a whole one and what the other one had there do not.
    let memory = whole + part - process - 1;
    let mut workers = ["a", "b"].map(|name| offering(name, memory));
    let paths: Vec<&Path> = models.iter().map(PathBuf::as_path).collect();
    let args = [strs(&place), CHUNK.to_vec()].concat();
    let server = Server::of_several(&Master::over(&workers), &paths, &args);
    let expected = said(&server, &llama, "x");
    assert_eq!(said(&server, &llama, "y"), expected);
    assert_eq!(count(&server, "cake_pipelines_total"), 2.0, "both are loaded");
    workers[1].kill();
    let recovered = || count(&server, "cake_recovery_seconds_count");
    until("one of them to be whole again", LIMIT, || recovered() >= 1.0);
    let cluster = server.get("/api/cluster").good();
    let all = cluster["models"].as_array().expect("models").iter();
    let ready: Vec<&Value> = all.filter(|model| model["phase"] == "ready").collect();
    assert_eq!(ready.len(), 1, "{cluster}");
    let name = ready[0]["model"].as_str().expect("a name");
    assert_eq!(said(&server, &llama, name), expected);
    assert_eq!(server.get("/ready").good()["status"], "degraded");
}

#[test]
fn a_model_stays_a_whole_time_after_its_last_use() {
    const KEEP: Duration = Duration::from_millis(1500);
    let llama = golden("llama");
    let server = Server::start(&Master::alone(), &llama.path, &["--keep-alive", "1500ms"]);
    let pipelines = || count(&server, "cake_pipelines_total");
    // A machine that stops for so long between two uses shows nothing: then once more.
    let shown = (0..20).any(|_| {
        let mut last = Instant::now();
        server.post(COMPLETIONS, &ask(&llama, "llama")).good();
        let (before, began) = (pipelines(), Instant::now());
        let mut longest = Duration::ZERO;
        while began.elapsed() < KEEP * 2 {
            let next = Instant::now();
            server.post(COMPLETIONS, &ask(&llama, "llama")).good();
            // Its use began at some time between these.
            longest = longest.max(last.elapsed());
            last = next;
        }
        let is_kept = pipelines() == before;
        assert!(is_kept || longest >= KEEP, "put away within {longest:?} of a use");
        longest < KEEP
    });
    assert!(shown, "this machine stopped every time");
    until("it to go", LIMIT, || running(&server).is_empty());
}
