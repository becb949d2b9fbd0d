//! What the processes take: the master while it pushes, the workers while they run.
use std::path::Path;

use anyhow::{Context, Result};
use cake_checkpoint::units::format_bytes;
use cake_tests::{Cgroup, ModelShape};
use serde_json::Value;

use super::cluster::{Ask, CONTEXT, NAMES, Pair, Ways};
use super::files;
use super::lab::Lab;
use super::models::{CUT, ONE_B, one_b};
use super::table::{Measured, Table};

const TEN_GIB: &str = "llama-10gib";
/// Most that a master may take while it pushes.
const MASTER_BYTES: u64 = 150 << 20;
/// How far two equal peaks may lie apart by the allocator's chance: a tenth of that.
const MASTER_SPREAD: u64 = MASTER_BYTES / 10;
/// How much of a worker's offer the plan is made to fill.
const FILL: f64 = 0.975;
/// How much it must fill at least.
const LEAST_FILL: f64 = 0.95;
/// A prompt and an answer that together fill the context promised: all of the KV cache is written.
const PROMPT: usize = CONTEXT - ANSWER;
const ANSWER: usize = 64;

/// The 1B shape with more layers, in files of 2 GiB.
fn ten_gib() -> ModelShape {
    ModelShape { layers: 84, shard_bytes: Some(2 << 30), ..one_b() }
}

/// VmHWM of the master pushing a model of 2.3 GiB and one of 10 GiB, digests not known before.
pub(crate) fn master(lab: &Lab, keep: bool, table: &mut Table) -> Result<()> {
    let small = pushing(lab, ONE_B, &one_b(), table)?;
    let large = pushing(lab, TEN_GIB, &ten_gib(), table);
    if !keep {
        lab.delete(&lab.model(TEN_GIB, &ten_gib())?)?;
    }
    let more = large?.abs_diff(small);
    table.at_most(
        "master's memory: difference between the two models",
        Measured::new(more as f64, format_bytes(more)),
        MASTER_SPREAD as f64,
        "the same (within 15 MiB)",
    );
    Ok(())
}

fn pushing(lab: &Lab, name: &str, shape: &ModelShape, table: &mut Table) -> Result<u64> {
    let model = lab.model(name, shape)?;
    lab.need_disk(shape.bytes())?;
    let files = match files::weights(&model)?.len() {
        1 => "one file".to_owned(),
        several => format!("{several} files"),
    };
    let pair = Pair::start(lab, Ways::Straight)?;
    let push = pair.run(&Ask::new("push", &model).cut(shape.layers / 2, shape))?;
    let peak = push.finished.peak_bytes;
    let size = format_bytes(shape.bytes());
    table.at_most(
        &format!("master's memory: VmHWM pushing a model of {size} in {files}"),
        Measured::new(peak as f64, format!("{} ({:.0} s)", format_bytes(peak), push.seconds)),
        MASTER_BYTES as f64,
        "≤ 150 MiB",
    );
    Ok(peak)
}

/// VmHWM of both workers after a run that fills the context, beside what the plan said.
pub(crate) fn workers(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    lab.need_disk(one_b().bytes())?;
    let pair = Pair::start(lab, Ways::Straight)?;
    let plan = pair.run(&Ask::new("plan", &model).cut(CUT, &one_b()))?.json()?;
    pair.run(&Ask::new("run", &model).cut(CUT, &one_b()).answer(PROMPT, ANSWER))?;
    for (index, name) in NAMES.iter().enumerate() {
        let Stage { planned, .. } = Stage::of(&plan, index)?;
        let peak = pair.peak(index).context("the worker is gone")?;
        let words = format!("{} of {} planned", format_bytes(peak), format_bytes(planned));
        let what = "worker's memory: VmHWM ÷ planned, after a run that fills the context";
        table.at_most(
            &format!("{what} ({name})"),
            Measured::ratio(peak as f64 / planned as f64, &words),
            1.10,
            "≤ 1.10",
        );
    }
    Ok(())
}

/// The same inside memory control groups whose limits are the offers, nearly filled by the plan.
pub(crate) fn limited(lab: &Lab, table: &mut Table) -> Result<()> {
    let what = "worker's memory: 1B over 2 workers, each in a cgroup limited to its offer";
    let bar = "plan fills ≥ 0.95; the run completes, no kill";
    let model = lab.model(ONE_B, &one_b())?;
    lab.need_disk(one_b().bytes())?;
    let offers = offers(&model)?;
    let groups: Result<Vec<Cgroup>, String> = offers.into_iter().map(Cgroup::memory).collect();
    let groups = match groups {
        Ok(groups) => groups,
        Err(why) => {
            table.not_shown(what, bar, why);
            return Ok(());
        }
    };
    let pair = Pair::limited(lab, Ways::Straight, offers, &groups)?;
    // No placement: the offers leave the planner no choice.
    let plan = pair.run(&Ask::new("plan", &model))?.json()?;
    let run = pair.attempt(&Ask::new("run", &model).answer(PROMPT, ANSWER));
    let mut least_fill = f64::INFINITY;
    let mut kills = Some(0);
    for (index, group) in groups.iter().enumerate() {
        let Stage { planned, offered } = Stage::of(&plan, index)?;
        let fill = planned as f64 / offered as f64;
        least_fill = least_fill.min(fill);
        kills = kills.zip(group.oom_kills()).map(|(sum, more)| sum + more);
        let size = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), format_bytes);
        let words = format!(
            "limit {}, fill {fill:.3}, VmHWM {}, {} with page cache, limit met {} times",
            format_bytes(offered),
            size(pair.peak(index)),
            size(group.peak_bytes()),
            group.limit_hits().unwrap_or_default(),
        );
        table.inform(&format!("{what} ({})", NAMES[index]), Measured::new(fill, words));
    }
    let completed = run.finished.status.success();
    let words = if completed {
        let timing = &run.json()?["timing"];
        let rate = |name: &str| timing[name].as_f64().unwrap_or_default();
        let (prefill, decode) =
            (rate("prefill_tokens_per_second"), rate("decode_tokens_per_second"));
        format!("completed, prefill {prefill:.0} and decode {decode:.1} tok/s")
    } else {
        run.finished.stderr.trim().to_owned()
    };
    let killed = kills.map_or("kills unknown".to_owned(), |kills| format!("oom_kill {kills}"));
    let measured = Measured::new(least_fill, format!("fill {least_fill:.3}, {killed}, {words}"));
    let met = completed && kills == Some(0) && least_fill >= LEAST_FILL;
    table.judged(what, measured, bar, met);
    Ok(())
}

/// Offers that half of the layers fill to [`FILL`] (bytes).
fn offers(model: &Path) -> Result<[u64; 2]> {
    let [a, b] = NAMES.map(|name| format!("{name}:64GiB"));
    let ask = Ask::new("plan", model).cut(CUT, &one_b()).and(&["--what-if", &a, "--what-if", &b]);
    let plan = ask.alone()?.json()?;
    let offer = |index| {
        let Stage { planned, .. } = Stage::of(&plan, index)?;
        // Whole pages, as the kernel counts.
        Ok::<_, anyhow::Error>(((planned as f64 / FILL) as u64).next_multiple_of(4096))
    };
    Ok([offer(0)?, offer(1)?])
}

/// Memory of one stage of a plan (bytes).
struct Stage {
    /// Everything the plan gives it.
    planned: u64,
    /// What the worker offered.
    offered: u64,
}

impl Stage {
    fn of(report: &Value, index: usize) -> Result<Stage> {
        let memory = &report["plan"]["stages"][index]["memory"];
        let part =
            |name: &str| memory[name].as_u64().with_context(|| format!("no {name} in the plan"));
        let planned =
            part("weights")? + part("kv")? + part("state")? + part("scratch")? + part("overhead")?;
        Ok(Stage { planned, offered: part("budget")? })
    }
}
