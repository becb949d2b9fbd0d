//! Checkpoints written anew: how much memory that takes, and how fast it is beside `cp` and llama-quantize.
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cake_checkpoint::units::format_bytes;
use cake_tests::master::path;
use cake_tests::{Finished, Master, ModelShape};

use super::files;
use super::lab::Lab;
use super::models::ONE_B;
use super::peers::{Peers, Quantizer};
use super::rates::median;
use super::table::{Measured, Table};

/// What is asked of merging and splitting.
pub(super) const BESIDE_CP: &str = "≥ 0.9 × cp + sync";
const OF_CP: f64 = 0.9;
/// What is asked of encodings.
pub(super) const ENCODINGS_BAR: &str = "≥ 300 MB/s of input; ≥ 1 × llama-quantize";
const RATE: &str = "≥ 300 MB/s of input";
const INPUT_RATE: f64 = 300e6;
const BESIDE_QUANTIZE: &str = "≥ 1 × llama-quantize";
const OF_QUANTIZE: f64 = 1.0;
/// What is asked of memory.
pub(super) const MEMORY: &str = "≤ 150 MiB, the same for both";
const MOST_BYTES: u64 = 150 << 20;
/// How much more memory a model of four times the size may take.
const SAME: f64 = 1.2;
/// For the longest of these, on a slow disk.
const LIMIT: Duration = Duration::from_secs(900);
/// Threads that encode, ours and theirs.
const THREADS: &str = "2";
/// How many layers the large model has for each of the small one: a model of one billion parameters gets 84, and 10 GiB.
const MORE_LAYERS: (usize, usize) = (21, 4);

/// What is written, as the command's arguments but for the model and where it goes.
type Rewrite = &'static [&'static str];
const COPIES: [Rewrite; 2] = [&["merge"], &["split", "--max-shard-size", "500MB"]];
pub(super) const GGUF_BF16: Rewrite = &["convert", "--to", "gguf", "--encode", "bf16"];
const GGUF_Q8: Rewrite = &["convert", "--to", "gguf", "--encode", "q8_0"];
pub(super) const GGUF_Q4: Rewrite = &["convert", "--to", "gguf", "--encode", "q4_0"];
const GGUF_Q4_K: Rewrite = &["convert", "--to", "gguf", "--encode", "q4_k"];
const MLX_Q8: Rewrite = &["convert", "--to", "mlx", "--encode", "q8"];
const MLX_Q4: Rewrite = &["convert", "--to", "mlx", "--encode", "q4"];
const CONVERSIONS: [Rewrite; 12] = [
    &["convert", "--to", "safetensors", "--encode", "f16"],
    &["convert", "--to", "mlx"],
    MLX_Q8,
    MLX_Q4,
    &["convert", "--to", "gguf", "--encode", "f16"],
    GGUF_Q8,
    GGUF_Q4,
    GGUF_Q4_K,
    &["convert", "--to", "apr"],
    &["convert", "--to", "apr", "--encode", "f16"],
    &["convert", "--to", "apr", "--encode", "q8"],
    &["convert", "--to", "apr", "--encode", "q4"],
];

/// Codes, how they are written, and the kind of llama-quantize's that they stand beside.
struct Encoding {
    name: &'static str,
    how: Rewrite,
    theirs: Option<&'static str>,
}

const ENCODINGS: [Encoding; 4] = [
    Encoding { name: "q8_0", how: GGUF_Q8, theirs: Some("Q8_0") },
    Encoding { name: "q4_0", how: GGUF_Q4, theirs: Some("Q4_0") },
    Encoding { name: "affine 4", how: MLX_Q4, theirs: Some("Q4_0") },
    Encoding { name: "affine 8", how: MLX_Q8, theirs: None },
];

/// The rates of merging and splitting ÷ that of `cp` and a sync, turn about.
pub(super) fn beside_cp(lab: &Lab, table: &mut Table) -> Result<()> {
    let (name, shape) = subject()?;
    let model = lab.model(&name, &shape)?;
    lab.need_disk(shape.bytes())?;
    let theirs = Side { reads: &model, work: &|| cp(lab, &model) };
    for how in COPIES {
        let work = || rewrite(lab, &model, how).map(|(_, seconds)| seconds);
        let seen = turn_about(lab, how[0], Side { reads: &model, work: &work }, Some(theirs))?;
        let size = format_bytes(shape.bytes());
        let what = format!("{} of {size} ÷ cp and sync of the same bytes", how[0]);
        seen.compare(&what, shape.bytes(), BESIDE_CP, OF_CP, table);
    }
    Ok(())
}

/// Bytes of bf16 that are encoded in a second, and that rate ÷ llama-quantize's, turn about.
pub(super) fn encodings(lab: &Lab, table: &mut Table) -> Result<()> {
    let (name, shape) = subject()?;
    let model = lab.model(&name, &shape)?;
    lab.need_disk(2 * shape.bytes())?;
    let scratch = lab.scratch()?;
    let gguf = &scratch.path().join("bf16.gguf");
    let quantizer = lab.peers().and_then(Peers::quantizer);
    if quantizer.is_some() {
        write(&model, GGUF_BF16, gguf)?;
    }
    for Encoding { name, how, theirs } in ENCODINGS {
        let how = [how, &["--threads", THREADS]].concat();
        let ours = || rewrite(lab, &model, &how).map(|(_, seconds)| seconds);
        let beside = quantizer.as_ref().zip(theirs);
        let work = beside.map(|(quantizer, kind)| move || quantize(lab, quantizer, gguf, kind));
        let other = work.as_ref().map(|work| Side { reads: gguf, work });
        let seen = turn_about(lab, name, Side { reads: &model, work: &ours }, other)?;

        let rate = shape.bytes() as f64 / median(seen.ours.clone());
        let words = Measured::new(rate, format!("{} of input", megabytes(rate)));
        let what = format!("bf16 to {name}, {THREADS} threads");
        table.judged(&what, words, RATE, rate >= INPUT_RATE);
        let Some(kind) = theirs else { continue };
        let what = format!("{what} ÷ llama-quantize {kind} and sync");
        if beside.is_some() {
            seen.compare(&what, shape.bytes(), BESIDE_QUANTIZE, OF_QUANTIZE, table);
        } else {
            let why = "no --peers directory with build/bin/llama-quantize".into();
            table.not_shown(&what, BESIDE_QUANTIZE, why);
        }
    }
    Ok(())
}

/// The most memory that each of them takes, of a model and of one with more layers in 6 files whose names interleave.
pub(super) fn memory(lab: &Lab, keep: bool, table: &mut Table) -> Result<()> {
    let (name, small) = subject()?;
    let (more, of) = MORE_LAYERS;
    let layers = small.layers * more / of;
    let large = ModelShape { layers, dealt_files: Some(6), ..small.clone() };
    let models =
        [(lab.model(&name, &small)?, small), (lab.model(&format!("{name}-dealt"), &large)?, large)];
    lab.need_disk(models[1].1.bytes())?;
    for how in COPIES.into_iter().chain(CONVERSIONS) {
        let what = format!("most memory: {}", how.join(" "));
        eprintln!("{what}");
        let peak = |model: &Path| rewrite(lab, model, how).map(|(ended, _)| ended.peak_bytes);
        let peaks = models.iter().map(|(model, _)| peak(model)).collect::<Result<Vec<u64>>>();
        // One format that fails is no reason to know nothing of the others.
        let peaks = match peaks {
            Ok(peaks) => peaks,
            Err(error) => {
                table.not_shown(&what, MEMORY, format!("{error:#}"));
                continue;
            }
        };
        let said = |(peak, (_, shape)): (&u64, &(_, ModelShape))| {
            format!("{} of {}", format_bytes(*peak), format_bytes(shape.bytes()))
        };
        let words: Vec<String> = peaks.iter().zip(&models).map(said).collect();
        let (small, large) = (peaks[0], peaks[1]);
        let met = small.max(large) <= MOST_BYTES && large as f64 <= SAME * small as f64;
        table.judged(&what, Measured::new(large as f64, words.join(", ")), MEMORY, met);
    }
    if !keep {
        lab.delete(&models[1].0).context("the large model")?;
    }
    Ok(())
}

/// The model that is written anew, by its name: that of one billion parameters, unless `CAKE_FILES_MODEL` names another
/// that `make-model` makes.
fn subject() -> Result<(String, ModelShape)> {
    let name = std::env::var("CAKE_FILES_MODEL").unwrap_or_else(|_| ONE_B.to_owned());
    let shape = ModelShape::named(&name).with_context(|| {
        let known = ModelShape::NAMES.join(", ");
        format!("CAKE_FILES_MODEL names no shape: {name:?}; they are {known}")
    })?;
    Ok((name, shape))
}

/// One of those that are compared: the model that it reads, and its work, which returns how many seconds that took.
#[derive(Clone, Copy)]
struct Side<'a> {
    reads: &'a Path,
    work: &'a dyn Fn() -> Result<f64>,
}

/// The seconds of every round; of nobody beside us there are none.
#[derive(Default)]
struct Seen {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

/// Has both do their work in each round, turn about who goes first. Each begins with nothing left to be written, and with
/// what it reads in the page cache.
fn turn_about(lab: &Lab, name: &str, ours: Side<'_>, theirs: Option<Side<'_>>) -> Result<Seen> {
    let mut seen = Seen::default();
    for round in lab.rounds(name) {
        let mut turns = vec![(ours, &mut seen.ours)];
        turns.extend(theirs.map(|theirs| (theirs, &mut seen.theirs)));
        if round % 2 == 0 {
            turns.reverse();
        }
        for (side, seconds) in turns {
            lab.prepare(&[side.reads])?;
            seconds.push((side.work)()?);
        }
    }
    Ok(seen)
}

impl Seen {
    /// Our rate ÷ theirs, of so many bytes: the median of the rounds' ratios.
    fn compare(&self, what: &str, bytes: u64, bar: &str, least: f64, table: &mut Table) {
        let pairs = self.ours.iter().zip(&self.theirs);
        let mut ratios: Vec<f64> = pairs.map(|(ours, theirs)| theirs / ours).collect();
        ratios.sort_by(f64::total_cmp);
        let rate = |seconds: &[f64]| megabytes(bytes as f64 / median(seconds.to_vec()));
        let listed = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect::<Vec<_>>();
        let (ours, theirs, listed) = (rate(&self.ours), rate(&self.theirs), listed.join(", "));
        let words = format!("{ours}, theirs {theirs}; of rounds {listed}");
        let ratio = median(ratios);
        table.judged(what, Measured::ratio(ratio, &words), bar, ratio >= least);
    }
}

fn megabytes(bytes_per_second: f64) -> String {
    format!("{:.0} MB/s", bytes_per_second / 1e6)
}

/// Writes `model` anew into a directory that is gone when this returns; how long that took.
fn rewrite(lab: &Lab, model: &Path, how: &[&str]) -> Result<(Finished, f64)> {
    let scratch = lab.scratch()?;
    write(model, how, &scratch.path().join("out"))
}

/// Writes `model` anew; how long that took, until it was on the disk.
pub(super) fn write(model: &Path, how: &[&str], out: &Path) -> Result<(Finished, f64)> {
    let (model, out) = (path(model), path(out));
    let args = [how, &[&model, "--out", &out]].concat();
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

/// Has llama-quantize write a GGUF file with codes of this kind, and has them on the disk, as our programs do by themselves.
fn quantize(lab: &Lab, quantizer: &Quantizer, from: &Path, kind: &str) -> Result<f64> {
    let scratch = lab.scratch()?;
    let out = scratch.path().join("out.gguf");
    let started = Instant::now();
    quantizer.run(from, &out, kind, THREADS)?;
    File::open(&out)?.sync_all()?;
    Ok(started.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_rounds_ratios_is_judged_and_twice_the_seconds_are_half_the_rate() {
        let seen = Seen { ours: vec![2.0, 4.0, 1.0], theirs: vec![1.0, 4.0, 3.0] };
        let mut table = Table::new("machine".into());
        seen.compare("slower than asked", 4_000_000, "≥ 1.1", 1.1, &mut table);
        seen.compare("as fast", 4_000_000, "≥ 1", 1.0, &mut table);
        let text = table.render();
        let said = "1.0000 (2 MB/s, theirs 1 MB/s; of rounds 0.500, 1.000, 3.000)";
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(said)).collect();
        assert!(lines.len() == 2 && lines[0].ends_with("NOT MET"), "{text}");
        assert!(lines[1].ends_with("| met"), "{text}");
    }
}
