//! Checkpoints written anew: how much memory that takes, and how fast it is beside `cp`.
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cake_checkpoint::units::{format_bytes, format_rate};
use cake_tests::master::path;
use cake_tests::{Finished, Master, ModelShape};

use super::files;
use super::lab::Lab;
use super::models::{ONE_B, one_b};
use super::rates::median;
use super::table::{Measured, Table};

/// What is asked of merging and splitting.
pub(super) const BESIDE_CP: &str = "≥ 0.9 × cp + sync";
const OF_CP: f64 = 0.9;
/// What is asked of encodings.
pub(super) const RATE: &str = "≥ 300 MB/s of input";
const INPUT_RATE: f64 = 300e6;
/// What is asked of memory.
pub(super) const MEMORY: &str = "≤ 150 MiB, the same for both";
const MOST_BYTES: u64 = 150 << 20;
/// How much more memory a model of four times the size may take.
const SAME: f64 = 1.2;
/// For the longest of these, on a slow disk.
const LIMIT: Duration = Duration::from_secs(900);

/// What is written, by the command and its arguments.
type Rewrite = (&'static str, &'static [&'static str]);
const COPIES: [Rewrite; 2] = [("merge", &[]), ("split", &["--max-shard-size", "500MB"])];
const CONVERSIONS: [Rewrite; 4] = [
    ("convert", &["--to", "safetensors", "--encode", "f16"]),
    ("convert", &["--to", "mlx", "--encode", "q4"]),
    ("convert", &["--to", "mlx", "--encode", "q8"]),
    ("convert", &["--to", "mlx"]),
];

/// 2.4 GiB, and 10 GiB in 6 files whose names interleave.
fn ten_gib() -> ModelShape {
    ModelShape { layers: 84, dealt_files: Some(6), ..one_b() }
}

/// Writes `model` anew into a directory that is gone when this returns; how long that took.
fn rewrite(lab: &Lab, model: &Path, what: Rewrite) -> Result<(Finished, f64)> {
    let scratch = lab.scratch()?;
    let (command, more) = what;
    let (model, out) = (path(model), path(&scratch.path().join("out")));
    let args = [&[command, &model], more, &["--out", &out]].concat();
    let started = Instant::now();
    let ended = Master::alone().deadline(LIMIT).run(&args);
    let seconds = started.elapsed().as_secs_f64();
    ensure!(ended.status.success(), "{args:?}: {}", ended.stderr);
    Ok((ended, seconds))
}

/// Copies the files of `model`, and has them on the disk.
fn cp(lab: &Lab, model: &Path) -> Result<f64> {
    let scratch = lab.scratch()?;
    let started = Instant::now();
    let copied =
        Command::new("cp").arg("-r").arg(model).arg(scratch.path().join("out")).status()?;
    ensure!(copied.success(), "cp failed");
    for file in files::weights(&scratch.path().join("out"))? {
        File::open(file)?.sync_all()?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// The rates of merging and splitting ÷ that of `cp` and a sync, turn about.
pub(super) fn beside_cp(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    lab.need_disk(one_b().bytes())?;
    for what in COPIES {
        let mut ratios = Vec::new();
        let mut rates = Vec::new();
        for round in 0..lab.rounds() {
            eprintln!("round {} of {}: {}", round + 1, lab.rounds(), what.0);
            files::flush();
            files::warm(&model)?;
            let ours = |lab| rewrite(lab, &model, what).map(|(_, seconds)| seconds);
            // Turn about who goes first; each begins with nothing left to be written.
            let (theirs, ours) = match round % 2 {
                0 => {
                    let theirs = cp(lab, &model)?;
                    files::flush();
                    (theirs, ours(lab)?)
                }
                _ => {
                    let ours = ours(lab)?;
                    files::flush();
                    (cp(lab, &model)?, ours)
                }
            };
            ratios.push(theirs / ours);
            rates.push(one_b().bytes() as f64 / ours);
        }
        let ratio = median(ratios.clone());
        let words =
            format!("{} at the median; of rounds {}", format_rate(median(rates)), listed(&ratios));
        let name = format!("{} of 2.4 GiB ÷ cp and sync of the same bytes", what.0);
        table.judged(&name, Measured::ratio(ratio, &words), BESIDE_CP, ratio >= OF_CP);
    }
    Ok(())
}

/// Bytes of bf16 that are encoded in a second.
pub(super) fn encodings(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    lab.need_disk(one_b().bytes())?;
    let encoded = [("affine 8", CONVERSIONS[2]), ("affine 4", CONVERSIONS[1])];
    for (name, what) in encoded {
        let mut rates = Vec::new();
        for round in 0..lab.rounds() {
            eprintln!("round {} of {}: {name}", round + 1, lab.rounds());
            files::flush();
            files::warm(&model)?;
            let (_, seconds) = rewrite(lab, &model, what)?;
            rates.push(one_b().bytes() as f64 / seconds);
        }
        let rate = median(rates);
        let words = Measured::new(rate, format!("{} of input", format_rate(rate)));
        table.judged(&format!("bf16 to {name}"), words, RATE, rate >= INPUT_RATE);
    }
    Ok(())
}

/// The most memory that each of them takes, of 2.4 GiB and of 10 GiB.
pub(super) fn memory(lab: &Lab, keep: bool, table: &mut Table) -> Result<()> {
    let small = lab.model(ONE_B, &one_b())?;
    let large = lab.model("llama-10gib-dealt", &ten_gib())?;
    lab.need_disk(ten_gib().bytes())?;
    for what in COPIES.into_iter().chain(CONVERSIONS) {
        let name = format!("{} {}", what.0, what.1.join(" "));
        eprintln!("memory: {name}");
        let peak = |model: &PathBuf| rewrite(lab, model, what).map(|(ended, _)| ended.peak_bytes);
        let (small, large) = (peak(&small)?, peak(&large)?);
        let same = large as f64 / small as f64;
        let words =
            format!("{} of 10 GiB, {} of 2.4 GiB", format_bytes(large), format_bytes(small));
        let met = small.max(large) <= MOST_BYTES && same <= SAME;
        table.judged(
            &format!("most memory: {name}"),
            Measured::new(large as f64, words),
            MEMORY,
            met,
        );
    }
    if !keep {
        lab.delete(&large).context("the model of 10 GiB")?;
    }
    Ok(())
}

fn listed(ratios: &[f64]) -> String {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.iter().map(|ratio| format!("{ratio:.3}")).collect::<Vec<_>>().join(", ")
}
