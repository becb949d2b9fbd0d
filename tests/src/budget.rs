//! Memory for exactly so many layers, so that a test knows who can take whose.
use std::path::Path;

use crate::{Master, TestWorker, WorkerOptions, master};

/// What a worker must offer to hold `layers` layers of a model of twice as many, but not one more, with
/// these arguments of the plan.
///
/// # Panics
/// If nothing can be planned.
#[track_caller]
pub fn budget_for(model: &Path, layers: usize, args: &[&str]) -> u64 {
    let roomy = |name| {
        TestWorker::start(name, WorkerOptions { memory: 64 << 30, ..WorkerOptions::default() })
    };
    let workers = [roomy("one"), roomy("two")];
    let pins = master::pins(&[("one", 0, layers), ("two", layers, 2 * layers)]);
    let model = master::path(model);
    let mut all = vec!["plan", &model, "--json"];
    all.extend(pins.iter().map(String::as_str).chain(args.iter().copied()));
    let plan = Master::over(&workers).json(&all);
    let memory = &plan["plan"]["stages"][0]["memory"];
    let part = |name: &str| memory[name].as_u64().unwrap_or_else(|| panic!("no {name} in {plan}"));
    let layer_bytes = part("weights") + part("kv") + part("state");
    let rest = part("scratch") + part("overhead");
    layer_bytes + rest + layer_bytes / layers as u64 / 2
}
