//! A mixture of experts at its real size, in 4 bits, over three workers that have no more memory than they offer.
use anyhow::{Result, ensure};
use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{Affine, Scheme};
use cake_tests::{Cgroup, Master, ModelShape, TestWorker, WorkerOptions};

use super::bandwidth::read_bandwidth;
use super::cluster::Ask;
use super::lab::Lab;
use super::models::active_bytes;
use super::table::{Measured, Table};

pub(super) const BAR: &str = "plans, pushes (master ≤ 150 MiB), answers, no kill";
const NAME: &str = "qwen3-30b-a3b-mlx4";
const NAMES: [&str; 3] = ["a", "b", "c"];
const CONTEXT: usize = 1024;
/// What a worker offers beside its layers (bytes): its process, a step's scratch, keys and values.
const BESIDE: u64 = 640 << 20;
const MASTER_BYTES: u64 = 150 << 20;
const PROMPT: usize = 64;
const ANSWER: usize = 64;
/// Bits of a weight, as MLX packs it: in groups of 64, with a scale and a bias of 16 bits each.
const HEAD_BITS: f64 = 4.5;

/// Qwen3 30B-A3B, whole: 48 layers of 128 experts.
fn shape() -> ModelShape {
    ModelShape {
        layers: 48,
        vocab_size: 151_936,
        packed: Affine::new(4, 64),
        shard_bytes: Some(4 << 30),
        ..ModelShape::qwen3_moe_4b()
    }
}

/// Makes the model, pushes it and has it answer; it is deleted again unless `keep`.
pub(super) fn measure(lab: &Lab, keep: bool, table: &mut Table) -> Result<()> {
    let shape = shape();
    let each = shape.layers.div_ceil(NAMES.len()) as u64 * shape.layer_bytes();
    let offer = each + BESIDE;
    let groups: Result<Vec<Cgroup>, String> = NAMES.iter().map(|_| Cgroup::memory(offer)).collect();
    let groups = match groups {
        Ok(groups) => groups,
        Err(why) => {
            table.not_shown("30B over three workers", BAR, why);
            return Ok(());
        }
    };
    // The blobs, beside the model.
    let model = lab.model(NAME, &shape)?;
    lab.need_disk(shape.layers as u64 * shape.layer_bytes())?;
    let outcome = over_workers(lab, &shape, &model, offer, &groups, table);
    if !keep {
        lab.delete(&model)?;
    }
    outcome
}

fn over_workers(
    lab: &Lab,
    shape: &ModelShape,
    model: &std::path::Path,
    offer: u64,
    groups: &[Cgroup],
    table: &mut Table,
) -> Result<()> {
    let home = lab.scratch()?;
    let start = |(name, group): (&&str, _)| {
        let directory = home.path().join(name);
        std::fs::create_dir(&directory)?;
        let options = WorkerOptions {
            memory: offer,
            directory: Some(directory),
            cgroups: vec![group],
            ..WorkerOptions::default()
        };
        Ok(TestWorker::start(name, options))
    };
    let workers = NAMES.iter().zip(groups).map(start).collect::<Result<Vec<_>>>()?;
    let master = Master::over(&workers);
    let ask = |command: &str| Ask::within(command, model, CONTEXT);
    let plan = ask("plan").with(&master)?.json()?;
    let stages = plan["plan"]["stages"].as_array().map_or(0, Vec::len);
    ensure!(stages == NAMES.len(), "{stages} stages");
    let push = ask("push").with(&master)?;
    let (bytes, peak) = (shape.bytes(), push.finished.peak_bytes);
    let words =
        format!("{} in {:.0} s, master {}", format_bytes(bytes), push.seconds, format_bytes(peak));
    let met = peak <= MASTER_BYTES;
    let what = "30B planned and pushed to three workers";
    table.judged(what, Measured::new(peak as f64, words), "master ≤ 150 MiB", met);

    let run = ask("run").answer(PROMPT, ANSWER).with(&master).and_then(|run| run.json());
    let kills: Vec<Option<u64>> = groups.iter().map(Cgroup::oom_kills).collect();
    let no_kill = kills.iter().all(|kills| *kills == Some(0));
    let active = active_bytes(model, shape, Scheme::AsStored, HEAD_BITS)?;
    let limit = read_bandwidth(2, true)? / active;
    let (answered, said) = match &run {
        Ok(run) => {
            let rate = |name: &str| run["timing"][name].as_f64().unwrap_or_default();
            let (prefill, decode) =
                (rate("prefill_tokens_per_second"), rate("decode_tokens_per_second"));
            let answered = run["output_ids"].as_array().map_or(0, Vec::len);
            let words =
                format!("prefill {prefill:.0}, decode {decode:.1} of limit {limit:.1} tok/s");
            (answered, words)
        }
        Err(error) => (0, format!("{error:#}")),
    };
    let offered = format_bytes(offer);
    let words = format!("{answered} tokens, oom_kill {kills:?}, {said}");
    table.judged(
        &format!("30B over three workers in memory cgroups of {offered}"),
        Measured::new(answered as f64, words),
        "answers, no kill",
        answered == ANSWER && no_kill,
    );
    Ok(())
}
