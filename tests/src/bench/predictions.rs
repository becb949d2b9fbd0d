//! What a plan promises beside what comes of it.
use anyhow::{Context, Result};
use cake_tests::Master;

use super::cluster::{Ask, Run, pinned};
use super::files;
use super::lab::Lab;
use super::models::{CUT, ONE_B, one_b};
use super::rates::{median, rates};
use super::table::{Measured, Table};

/// What is asked of predicted ÷ measured.
pub(super) const BAR: &str = "0.85 to 1.15";
const LEAST: f64 = 0.85;
const MOST: f64 = 1.15;
/// The token in the middle of those that are timed is the 256th, for which a plan predicts.
const PROMPT: usize = 224;
const ANSWER: usize = 65;
/// Room for prompt and answer.
const CONTEXT: usize = 512;
/// How weights are stored: the head has another part of a token in each.
const ENCODINGS: [&str; 2] = ["as-stored", "q4"];
/// What a plan says of devices that it could not time undisturbed.
const NOISY: &str = "was timed while other work went on";

/// Rounds of one setting, a number per round: tokens per second.
#[derive(Default)]
struct Seen {
    /// By a master that knows nothing of the devices.
    first: Vec<f64>,
    measured: Vec<f64>,
    /// By one that has seen the answer.
    second: Vec<f64>,
    /// Rounds in which a device was timed beside other work.
    noisy: usize,
}

/// The master's own layers, on all processors.
pub(super) fn alone(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    files::warm(&model)?;
    for encode in ENCODINGS {
        let ask = |command| Ask::within(command, &model, CONTEXT).and(&["--encode", encode]);
        let mut seen = Seen::default();
        for _ in lab.rounds(encode) {
            seen.round(&Master::alone(), ask("plan"), ask("run"))?;
        }
        seen.report(&format!("alone, {encode}"), table);
    }
    Ok(())
}

/// Two workers of one thread, each on a processor of its own.
pub(super) fn over_workers(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    files::warm(&model)?;
    for encode in ENCODINGS {
        let (_home, workers) = pinned(lab)?;
        let ask = |command| {
            let ask = Ask::within(command, &model, CONTEXT).and(&["--encode", encode]);
            ask.cut(CUT, &one_b())
        };
        let mut seen = Seen::default();
        for _ in lab.rounds(encode) {
            seen.round(&Master::over(&workers), ask("plan"), ask("run"))?;
        }
        seen.report(&format!("over 2 pinned workers, {encode}"), table);
    }
    Ok(())
}

impl Seen {
    /// A plan, an answer, and a plan again, by one master.
    fn round(&mut self, master: &Master, plan: Ask, run: Ask) -> Result<()> {
        let first = plan.with(master)?;
        let answer = run.answer(PROMPT, ANSWER).with(master)?;
        let second = plan.with(master)?;
        self.noisy += usize::from(first.finished.stderr.contains(NOISY));
        self.first.push(predicted(&first)?);
        self.measured.push(rates(&answer)?.decode);
        self.second.push(predicted(&second)?);
        Ok(())
    }

    fn report(&self, what: &str, table: &mut Table) {
        let measured = median(self.measured.clone());
        for (said, when) in [(&self.first, "first plan"), (&self.second, "plan after an answer")] {
            // Round by round, as the machine is not the same all the time.
            let ratios = said.iter().zip(&self.measured).map(|(said, measured)| said / measured);
            let ratio = median(ratios.collect());
            let words = format!(
                "{ratio:.2} ({:.1} predicted, {measured:.1} tok/s; {} of {} rounds timed beside other work)",
                median(said.clone()),
                self.noisy,
                said.len(),
            );
            let met = (LEAST..=MOST).contains(&ratio);
            table.judged(&format!("{what}, {when}"), Measured::new(ratio, words), BAR, met);
        }
    }
}

/// Tokens per second that a plan promises.
fn predicted(plan: &Run) -> Result<f64> {
    let seconds = plan.json()?["plan"]["step_seconds"].as_f64();
    Ok(seconds.context("no step_seconds in the plan")?.recip())
}
