//! How fast: a push beside `cp`, and answers alone and over workers.
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cake_tests::{Master, Running};

use super::cluster::{Ask, Pair, Run, Ways};
use super::files;
use super::lab::Lab;
use super::models::{CUT, ONE_B, one_b};
use super::rates::median;
use super::table::{Measured, Table};

const ROUNDS: usize = 3;
const DEADLINE: Duration = Duration::from_secs(300);
/// Of the speed of `cp`.
const RATIO: f64 = 0.6;
/// Bytes per second that are enough where `cp` is faster.
const ENOUGH: f64 = 400e6;
/// Part of the bytes pushed that may come from the disk where the page cache counts as warm. The
/// programs and the file system's own blocks are a few MB; of three rounds of 1.9 GB, 1 % is 58 MB.
const FEW_READS: f64 = 0.01;
/// Tokens of the prompt and of the answer that are timed.
const PROMPT: usize = 128;
const ANSWER: usize = 33;

/// Copies and first pushes of the same bytes, turn about, sources in the page cache.
pub(crate) fn push(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    let bytes = one_b().layer_bytes() * one_b().layers as u64;
    lab.need_disk(3 * bytes)?;
    let source = lab.scratch()?;
    extract(&model, &source.path().join("layers.safetensors"))?;
    let rate = |seconds: f64| bytes as f64 / seconds;
    let (mut ratios, mut pushes) = (Vec::new(), Vec::new());
    let (mut words, mut disk) = (Vec::new(), 0);
    for round in 0..ROUNDS {
        // Turn about who goes first, so that a machine whose speed drifts favours neither.
        let copy = || copy(lab, &model, source.path());
        let early = if round % 2 == 0 { Some(copy()?) } else { None };
        let run = first_push(lab, &model, &[source.path(), &model])?;
        let copied = rate(early.map_or_else(copy, Ok)?);
        let sending = run.json()?["push_seconds"].as_f64().context("no push_seconds")?;
        let pushed = rate(run.seconds);
        disk += run.finished.disk_read_bytes;
        ratios.push(pushed / copied);
        pushes.push(pushed);
        let [pushed, copied, alone] = [pushed, copied, rate(sending)].map(|rate| rate / 1e6);
        words.push(format!("{pushed:.0} to {copied:.0} ({alone:.0} without planning)"));
    }
    let (ratio, pushed) = (median(ratios), median(pushes));
    let cache = if (disk as f64) < FEW_READS * (ROUNDS as u64 * bytes) as f64 {
        "page cache warm".to_owned()
    } else {
        format!("page cache NOT warm: {} MB read from disk", disk / 1_000_000)
    };
    let words = format!(
        "medians {ratio:.2} and {:.0} MB/s; rounds {} MB/s; {cache}",
        pushed / 1e6,
        words.join(", ")
    );
    table.judged(
        "push speed: a whole first `push` to 2 workers ÷ `cp` + `sync` of the same bytes (1B)",
        Measured::new(ratio, words),
        "≥ 0.6, or ≥ 400 MB/s where cp is faster",
        ratio >= RATIO || pushed >= ENOUGH,
    );
    Ok(())
}

/// A push to empty stores by a master that knows no digests, `warm` in the page cache.
pub(super) fn first_push(lab: &Lab, model: &Path, warm: &[&Path]) -> Result<Run> {
    let pair = Pair::start(lab, Ways::Straight)?;
    lab.prepare(warm)?;
    pair.run(&Ask::new("push", model).cut(CUT, &one_b()))
}

/// Writes all layers to one file: the bytes of a push, for `cp`.
fn extract(model: &Path, out: &Path) -> Result<()> {
    let layers = format!("0..{}", one_b().layers);
    let master = Master::alone();
    let mut command = master.bare(&["extract", "--layers", &layers]);
    let finished = Running::start(command.arg("--out").arg(out).arg(model)).finish(DEADLINE);
    ensure!(finished.status.success(), "{}: {}", finished.command, finished.stderr.trim());
    Ok(())
}

/// Seconds that `cp` and `sync` take for the files of `source`.
fn copy(lab: &Lab, model: &Path, source: &Path) -> Result<f64> {
    let target = lab.scratch()?;
    let mut command = Command::new("sh");
    command.args(["-c", r#"cp "$1"/* "$2" && sync "$2"/*"#, "sh"]).arg(source).arg(target.path());
    lab.prepare(&[model, source])?;
    let started = Instant::now();
    let finished = Running::start(&mut command).finish(DEADLINE);
    let seconds = started.elapsed().as_secs_f64();
    ensure!(finished.status.success(), "{}: {}", finished.command, finished.stderr.trim());
    Ok(seconds)
}

/// Tokens per second of the 1B shape, alone on all cores and over two workers of one thread each.
pub(crate) fn answers(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    lab.need_disk(one_b().bytes())?;
    let pair = Pair::start(lab, Ways::Straight)?;
    pair.run(&Ask::new("push", &model).cut(CUT, &one_b()))?;
    let ask = Ask::new("run", &model).answer(PROMPT, ANSWER);
    files::flush();
    files::warm(&model)?;
    for (how, run) in [
        ("alone, on all cores", ask.alone()?),
        ("over 2 workers of one thread", pair.run(&ask.clone().cut(CUT, &one_b()))?),
    ] {
        let report = run.json()?;
        let timing = &report["timing"];
        let rate = |name: &str| timing[name].as_f64().with_context(|| format!("no {name}"));
        let decode = rate("decode_tokens_per_second")?;
        let prefill = rate("prefill_tokens_per_second")?;
        let words = format!("decode {decode:.1}, prefill {prefill:.0} tok/s ({PROMPT} tokens)");
        table.inform(&format!("speed: 1B bf16 {how}"), Measured::new(decode, words));
    }
    Ok(())
}
