//! What it costs that connections are encrypted.
use anyhow::{Context, Result};
use cake_tests::{Invitation, Master};

use super::cluster::{Ask, pinned, pinned_with};
use super::files;
use super::lab::Lab;
use super::models::{CUT, ONE_B, one_b};
use super::rates::median;
use super::table::{Measured, Table};

/// What is asked of it.
pub(super) const BAR: &str = "≤ 1.05";
const MOST: f64 = 1.05;
const PROMPT: usize = 32;
const ANSWER: usize = 129;
/// Room for prompt and answer.
const CONTEXT: usize = 256;
/// Beside the shortest arithmetic a hop weighs most.
const ENCODINGS: [&str; 2] = ["as-stored", "q4"];

/// Time per token over two members of a cluster ÷ the same over two workers in plain text, pinned alike, turn
/// about. All four are there all the time; two of them have nothing to do.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    files::warm(&model)?;
    for encode in ENCODINGS {
        let (_plain_home, strangers) = pinned(lab)?;
        let plain = Master::over(&strangers);
        let mut mutual = Master::alone();
        mutual.run(&["init"]).success();
        let invitation = Invitation::from(&mutual, 2);
        let (_home, members) = pinned_with(lab, &invitation.args())?;
        invitation.used_up();
        mutual.now_at(members.iter().map(|member| member.address.clone()));
        let mut times = [Vec::new(), Vec::new()];
        for _ in lab.rounds(encode) {
            for (master, times) in [&plain, &mutual].into_iter().zip(&mut times) {
                let ask = Ask::within("run", &model, CONTEXT).answer(PROMPT, ANSWER);
                let run = ask.and(&["--encode", encode]).cut(CUT, &one_b()).with(master)?;
                let report = run.json()?;
                let steps = &report["timing"]["decode_steps"];
                for step in steps.as_array().context("no decode_steps")? {
                    times.push(step["seconds"].as_f64().context("no seconds")?);
                }
            }
        }
        let [plain, mutual] = times.map(median);
        let words = format!("{:.2} / {:.2} ms: {:.3} ×", mutual * 1e3, plain * 1e3, mutual / plain);
        let what = format!("time per token over 2 hops, mutual TLS ÷ plain text, {encode}");
        table.judged(&what, Measured::new(mutual / plain, words), BAR, mutual / plain <= MOST);
    }
    Ok(())
}
