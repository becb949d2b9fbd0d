//! What a token costs on its way between machines, beside the arithmetic.
use anyhow::{Context, Result, ensure};
use cake_tests::Master;
use serde_json::Value;

use super::cluster::{Ask, pinned};
use super::files;
use super::lab::Lab;
use super::models::{CUT, ONE_B, one_b};
use super::rates::median;
use super::table::{Measured, Table};

/// What is asked of it.
pub(super) const BAR: &str = "≤ 300 µs";
const MOST_SECONDS: f64 = 300e-6;
const PROMPT: usize = 32;
const ANSWER: usize = 129;
/// Room for prompt and answer.
const CONTEXT: usize = 256;
/// How weights are stored: what is added is beside shorter and longer arithmetic.
const ENCODINGS: [&str; 2] = ["as-stored", "q4"];

/// Decodes over two workers of one thread, each on a core of its own; from every token's time what
/// the stages and the master's ends computed is taken away, and the rest shared out over the hops.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    files::warm(&model)?;
    for encode in ENCODINGS {
        let mut added = Vec::new();
        let (mut stages, mut ends, mut hops) = (Vec::new(), Vec::new(), 0.0);
        let (_home, workers) = pinned(lab)?;
        let master = Master::over(&workers);
        for _ in lab.rounds(encode) {
            let ask = Ask::within("run", &model, CONTEXT).answer(PROMPT, ANSWER);
            let run = ask.and(&["--encode", encode]).cut(CUT, &one_b()).with(&master)?;
            let timing = &run.json()?["timing"];
            hops = number(timing, "hops")?;
            ensure!(hops > 0.0, "no worker took part");
            for step in timing["decode_steps"].as_array().context("no decode_steps")? {
                let [all, stage, end] =
                    ["seconds", "stage_seconds", "ends_seconds"].map(|name| number(step, name));
                let (stage, end) = (stage?, end?);
                added.push((all? - stage - end) / hops);
                stages.push(stage);
                ends.push(end);
            }
        }
        ensure!(!added.is_empty(), "no token was decoded");
        let [added, stages, ends] = [added, stages, ends].map(median);
        let words = format!(
            "{:.0} µs for each of {hops} hops ({:.2} ms of stages, {:.2} ms of ends)",
            added * 1e6,
            stages * 1e3,
            ends * 1e3
        );
        let what = format!("added per hop and token on loopback, {encode}");
        table.judged(&what, Measured::new(added, words), BAR, added <= MOST_SECONDS);
    }
    Ok(())
}

fn number(of: &Value, name: &str) -> Result<f64> {
    of[name].as_f64().with_context(|| format!("no {name} in the report"))
}
