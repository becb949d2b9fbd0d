//! Decoding far into a long context beside decoding near its start.
use anyhow::Result;

use super::cluster::Ask;
use super::files;
use super::lab::Lab;
use super::models::{ONE_B, one_b};
use super::peers::Rates;
use super::rates::{medians, rates};
use super::table::{Measured, Table};

/// What is asked of it.
pub(super) const BAR: &str = "≥ 0.85";
const RATIO: f64 = 0.85;
/// Tokens before the first one that is timed.
const PROMPTS: [usize; 2] = [4000, 100];
const ANSWER: usize = 65;
/// Room for the longer prompt and its answer, in both cases.
const CONTEXT: usize = 4096;

/// Decodes after both prompts, turn about.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    files::warm(&model)?;
    let mut seen: [Vec<Rates>; 2] = Default::default();
    for _ in lab.rounds("context") {
        for (prompt, seen) in PROMPTS.into_iter().zip(&mut seen) {
            let ask = Ask::within("run", &model, CONTEXT).answer(prompt, ANSWER);
            seen.push(rates(&ask.alone()?)?);
        }
    }
    let [far, near] = seen.map(|rates| medians(&rates));
    let [long, short] = PROMPTS;
    let ratio = far.decode / near.decode;
    let words = format!(
        "{ratio:.3} ({:.1} ÷ {:.1} tok/s; prefill {:.0} and {:.0} tok/s)",
        far.decode, near.decode, far.prefill, near.prefill,
    );
    let what = format!("decode after {long} tokens ÷ after {short}, 2 threads, bf16");
    table.judged(&what, Measured::new(ratio, words), BAR, ratio >= RATIO);
    Ok(())
}
