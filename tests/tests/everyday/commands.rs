//! Commands and what they say.
use std::time::Duration;

use cake_tests::master::path;
use cake_tests::{Master, ModelShape, Server, model, not_shown};

const LIMIT: Duration = Duration::from_secs(30);

/// Checks that a text contains all of these.
#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

/// Bytes that the system has available.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

#[test]
fn the_masters_own_memory_is_counted_like_any_devices() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let shape = ModelShape {
        hidden_size: 256,
        intermediate_size: 256,
        heads: 16,
        kv_heads: 16,
        max_positions: 8192,
        ..ModelShape::small()
    };
    model::make(home.path(), &shape, 7).expect("the model can be written");
    let model = path(home.path());
    let master = Master::alone();
    let plan = |more: &[&str]| master.run(&[&["plan", &model, "--alone"], more].concat());
    let absurd = ["--context", "8192", "--parallel", "200", "--kv", "f32"];
    let need = 100 << 30; // 64 KiB for each token.
    if available_bytes() < need {
        let refused = plan(&absurd).refusal();
        assert_says(&refused, &["master offers ", " free here, less a reserve of ", "--parallel "]);
        assert_says(&refused, &["it would fit with a context of ", "--local-memory"]);
        assert!(!refused.contains("EiB"), "{refused}");
    } else {
        not_shown("this machine has room for the absurd");
    }
    // Whoever knows better says so.
    plan(&[&absurd[..], &["--local-memory", "64TiB"]].concat()).success();
    let fits = plan(&["--json"]).json();
    let memory = &fits["plan"]["stages"][0]["memory"];
    let part = |name: &str| memory[name].as_u64().expect("bytes");
    assert!(part("budget") <= available_bytes().max(1 << 30) * 2, "{memory}");
    let embedding = 2 * 384 * 256; // It is the head, too.
    assert!(part("overhead") >= embedding, "embedding and head are counted: {memory}");
    let server = Server::start(&master, home.path(), &["--alone", "--context", "256"]);
    let budget = server.get("/api/cluster").good()["devices"][0]["memory"]["budget"].clone();
    assert!(budget.as_u64().is_some_and(|bytes| (1..1 << 45).contains(&bytes)), "{budget}");
}
