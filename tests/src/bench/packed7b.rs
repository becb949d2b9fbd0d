//! A checkpoint of 7B packed by MLX in one file, two layers of which a worker with 3 GiB is given.
use anyhow::{Context, Result, ensure};
use cake_checkpoint::container::safetensors::header::Header;
use cake_checkpoint::units::format_bytes;
use cake_tests::{Cgroup, CountingProxy, HeldBlobs, Master, ModelShape, TestWorker, WorkerOptions};
use serde_json::Value;

use super::cluster::{Ask, CONTEXT};
use super::lab::Lab;
use super::table::{Measured, Table};

/// What is asked of it.
pub(super) const BAR: &str = "52 tensors, 250.1 MiB; completes; ≤ 1.15";
const NAME: &str = "qwen2.5-7b-mlx4";
const WORKER: &str = "small";
/// What the worker offers, and what its control group allows.
const OFFER: u64 = 3 << 30;
/// What the master may use for the other layers.
const REST: &str = "8GiB";
/// Layers of the worker: the last ones, for the master's own come first.
const LAYERS: usize = 2;
/// Tensors of a layer: two norms, three parts of each of seven matrices, three more biases.
const LAYER_TENSORS: usize = 26;
/// Bytes on the wire ÷ bytes of tensors, both ways.
const WIRE: f64 = 1.01;
/// Peak ÷ blobs, planned KV cache and scratch.
const PEAK: f64 = 1.15;
/// A prompt and an answer that together fill the context.
const ANSWER: usize = 64;
const PROMPT: usize = CONTEXT - ANSWER;

/// Pushes, then runs; the model is deleted again unless `keep`.
pub(super) fn measure(lab: &Lab, keep: bool, table: &mut Table) -> Result<()> {
    let shape = ModelShape::qwen_7b_mlx4();
    lab.need_disk(LAYERS as u64 * shape.layer_bytes())?;
    let model = lab.model(NAME, &shape)?;
    let group = match Cgroup::memory(OFFER) {
        Ok(group) => Some(group),
        Err(why) => {
            let what = "7B packed: the run inside a memory cgroup of 3 GiB";
            table.not_shown(what, "completes, no kill", why);
            None
        }
    };
    let first = shape.layers - LAYERS;
    let place = format!("{WORKER}={first}..{}", shape.layers);
    let cut = ["--place", &place, "--local-memory", REST];
    let ask = |command: &str| Ask::new(command, &model).and(&cut);
    let outcome = over_worker(lab, &shape, group.as_ref(), &ask, table);
    if !keep {
        lab.delete(&model)?;
    }
    outcome
}

fn over_worker(
    lab: &Lab,
    shape: &ModelShape,
    group: Option<&Cgroup>,
    ask: &dyn Fn(&str) -> Ask,
    table: &mut Table,
) -> Result<()> {
    let home = lab.scratch()?;
    let worker = TestWorker::start(
        WORKER,
        WorkerOptions {
            memory: OFFER,
            directory: Some(home.path().to_owned()),
            cgroups: group.into_iter().collect(),
            ..WorkerOptions::default()
        },
    );
    let proxy = CountingProxy::start(&worker.address);
    let master = Master::at([proxy.address.clone()]);
    let crossed = || proxy.to_worker() + proxy.to_master();

    // Planning times the link by sending something, once: that is no part of the push.
    let planned = planned(&ask("plan").with(&master)?.json()?)?;
    let before = crossed();
    let push = ask("push").with(&master)?;
    let wire = crossed() - before;
    let tensors = tensors(&worker)?;
    let bytes = LAYERS as u64 * shape.layer_bytes();
    let ratio = wire as f64 / bytes as f64;
    let words = format!(
        "{tensors} tensors, {:.1} MiB; {wire} B on the wire both ways ÷ {bytes} B: {ratio:.4} (and {} to plan); {:.1} s",
        bytes as f64 / f64::from(1 << 20),
        format_bytes(before),
        push.seconds,
    );
    table.judged(
        "7B packed: 2 of 28 layers pushed to a worker that offers 3 GiB",
        Measured::new(ratio, words),
        "52 tensors, 250.1 MiB, ≤ 1.01 on the wire",
        tensors == LAYERS * LAYER_TENSORS && ratio <= WIRE,
    );

    // A run that fails is an outcome here, not a measurement that could not be made.
    let run = ask("run").answer(PROMPT, ANSWER).with(&master).and_then(|run| run.json());
    if let Some(group) = group {
        inside(group, &run, table);
    }
    run?;
    let peak = cake_tests::process::peak_bytes(worker.pid()).context("the worker is gone")?;
    let words = format!("{} of {}", format_bytes(peak), format_bytes(planned));
    table.at_most(
        "7B packed: worker's VmHWM ÷ (blobs + planned KV and scratch), context filled",
        Measured::ratio(peak as f64 / planned as f64, &words),
        PEAK,
        "≤ 1.15",
    );
    Ok(())
}

/// How the run went in the worker's control group.
fn inside(group: &Cgroup, run: &Result<Value>, table: &mut Table) {
    let (answered, said) = match run {
        Ok(run) => {
            let rate = |name: &str| run["timing"][name].as_f64().unwrap_or_default();
            let prefill = rate("prefill_tokens_per_second");
            let decode = rate("decode_tokens_per_second");
            let answered = run["output_ids"].as_array().map_or(0, Vec::len);
            (answered, format!("prefill {prefill:.0}, decode {decode:.1} tok/s"))
        }
        Err(error) => (0, format!("{error:#}")),
    };
    let kills = group.oom_kills();
    let killed = kills.map_or("kills unknown".to_owned(), |kills| format!("oom_kill {kills}"));
    let with_cache = group.peak_bytes().map_or("unknown".to_owned(), format_bytes);
    let words = format!("{answered} tokens, {killed}, {with_cache} with page cache, {said}");
    table.judged(
        "7B packed: the run inside a memory cgroup of 3 GiB",
        Measured::new(answered as f64, words),
        "completes, no kill",
        answered == ANSWER && kills == Some(0),
    );
}

/// Tensors in all blobs that the worker holds.
fn tensors(worker: &TestWorker) -> Result<usize> {
    let held = HeldBlobs::of(worker.store());
    ensure!(held.partial.is_empty(), "the push left half a blob");
    let count = |(path, _): &(std::path::PathBuf, u64)| Ok(Header::read(path)?.tensors.len());
    held.whole.iter().map(count).sum()
}

/// Bytes of blobs, KV cache and scratch of a plan's last stage, which is the worker's.
fn planned(plan: &Value) -> Result<u64> {
    let stages = plan["plan"]["stages"].as_array().context("no stages in the plan")?;
    let memory = &stages.last().context("the plan has no stage")?["memory"];
    let part = |name: &str| memory[name].as_u64().with_context(|| format!("no {name} in the plan"));
    Ok(part("weights")? + part("kv")? + part("state")? + part("scratch")?)
}
