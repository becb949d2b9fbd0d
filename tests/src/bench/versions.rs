//! These programs beside those of an earlier version, turn about.
//!
//! The harness runs one set of programs in a process, so that every turn is a process of its own: this program with the
//! part `turn`, told by `CAKE_PROGRAMS` where the programs are.
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::Ask;
use super::lab::Lab;
use super::models::{ONE_B, one_b};
use super::peers::Rates;
use super::rates::median;
use super::table::{Measured, Table};
use super::{engine, files, serve, speed};

/// What is asked of every figure.
pub(super) const BAR: &str = "≥ 0.98 × the earlier version";
const RATIO: f64 = 0.98;
/// Room for prompt and answer.
const CONTEXT: usize = 1024;

/// A figure of these programs ÷ that of the earlier ones: the median of the rounds' ratios, as a machine's speed drifts
/// more between rounds than within one. `name` is the figure's in the part `turn`.
pub(super) fn compare(lab: &Lab, name: &str, table: &mut Table) -> Result<()> {
    let before = lab.before().context("no --before DIR with the programs of an earlier version")?;
    files::warm(&lab.model(ONE_B, &one_b())?)?;
    let mut seen: Vec<Seen> = Vec::new();
    for round in lab.rounds(name) {
        // Turn about who goes first.
        let (earlier, ours) = if round % 2 == 0 {
            let earlier = child(lab, name, Some(before))?;
            (earlier, child(lab, name, None)?)
        } else {
            let ours = child(lab, name, None)?;
            (child(lab, name, Some(before))?, ours)
        };
        ensure!(earlier.len() == ours.len(), "{name}: the versions measure different figures");
        seen.resize_with(ours.len(), Seen::default);
        for (seen, (earlier, ours)) in seen.iter_mut().zip(earlier.into_iter().zip(ours)) {
            seen.what = ours.0;
            seen.earlier.push(earlier.1);
            seen.ours.push(ours.1);
        }
    }
    seen.iter().for_each(|seen| seen.report(table));
    Ok(())
}

/// One figure of both versions, a number per round.
#[derive(Default)]
struct Seen {
    what: String,
    earlier: Vec<f64>,
    ours: Vec<f64>,
}

impl Seen {
    fn report(&self, table: &mut Table) {
        let mut ratios: Vec<f64> =
            self.ours.iter().zip(&self.earlier).map(|(ours, earlier)| ours / earlier).collect();
        let ratio = median(ratios.clone());
        ratios.sort_by(f64::total_cmp);
        let ratios: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
        let (ours, earlier) = (median(self.ours.clone()), median(self.earlier.clone()));
        let words = format!("{ours:.1}, earlier {earlier:.1}; of rounds {}", ratios.join(", "));
        table.judged(&self.what, Measured::ratio(ratio, &words), BAR, ratio >= RATIO);
    }
}

/// What a turn of a process of its own measured: each figure and its value.
fn child(lab: &Lab, name: &str, programs: Option<&Path>) -> Result<Vec<(String, f64)>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["turn", "--json", "--only", name, "--dir"]).arg(lab.directory());
    if let Some(programs) = programs {
        command.env("CAKE_PROGRAMS", programs);
    }
    let output = command.output().context("cannot run this program again")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", errors.trim());
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let rows = report["rows"].as_array().context("a turn without rows")?;
    let figure = |row: &Value| -> Result<(String, f64)> {
        let what = row["what"].as_str().context("a row without a name")?;
        let value = row["value"].as_f64();
        Ok((what.to_owned(), value.with_context(|| format!("{what}: {}", row["verdict"]))?))
    };
    rows.iter().map(figure).collect()
}

/// Decode and prefill of a master that knows no worker.
pub(super) fn alone(lab: &Lab, encode: &str, table: &mut Table) -> Result<()> {
    let rates = engine::alone(&ask(lab, encode)?)?;
    both(table, &format!("{encode} alone"), rates);
    Ok(())
}

/// The same over two pinned workers.
pub(super) fn over_workers(lab: &Lab, encode: &str, table: &mut Table) -> Result<()> {
    let rates = engine::over_workers(lab, &ask(lab, encode)?)?;
    both(table, &format!("{encode} over 2 pinned workers"), rates);
    Ok(())
}

fn ask(lab: &Lab, encode: &str) -> Result<Ask> {
    let model = lab.model(ONE_B, &one_b())?;
    Ok(Ask::within("run", &model, CONTEXT).and(&["--encode", encode]))
}

fn both(table: &mut Table, what: &str, rates: Rates) {
    inform(table, &format!("decode, {what}"), rates.decode, "tok/s");
    inform(table, &format!("prefill, {what}"), rates.prefill, "tok/s");
}

/// Eight streams of `serve`.
pub(super) fn streams(lab: &Lab, table: &mut Table) -> Result<()> {
    let rate = serve::eight_streams(lab)?;
    inform(table, "8 streams over 2 pinned workers, bf16", rate, "tok/s");
    Ok(())
}

/// A whole first push, and the part of it after planning, which waits for a quiet machine to time it.
pub(super) fn push(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    let bytes = one_b().layer_bytes() * one_b().layers as u64;
    lab.need_disk(bytes)?;
    let run = speed::first_push(lab, &model, &[&model])?;
    let sending = run.json()?["push_seconds"].as_f64().context("no push_seconds")?;
    for (what, seconds) in [("a whole push", run.seconds), ("a push without planning", sending)] {
        inform(table, &format!("{what} to 2 workers"), bytes as f64 / seconds / 1e6, "MB/s");
    }
    Ok(())
}

fn inform(table: &mut Table, what: &str, rate: f64, unit: &str) {
    table.inform(what, Measured::new(rate, format!("{rate:.1} {unit}")));
}
