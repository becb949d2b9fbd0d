//! What decoding costs where the processor has no vector instructions that we know.
use anyhow::Result;

use super::cluster::Ask;
use super::files;
use super::lab::Lab;
use super::models::{ONE_B, one_b};
use super::rates::{median, rates};
use super::table::{Measured, Table};

/// What is asked of it.
pub(super) const BAR: &str = "AVX-512 ≤ 2.5 × portable";
const RATIO: f64 = 2.5;
/// Values of `CAKE_CPU`: what is compared with the first one comes after it, the judged one last.
const TIERS: [&str; 3] = ["avx512", "avx2", "portable"];
const ENCODINGS: [&str; 3] = ["as-stored", "q8", "q4"];
const CONTEXT: usize = 128;
const PROMPT: usize = 16;
const ANSWER: usize = 33;

/// Decodes with each set of instructions in each encoding, turn about.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    files::warm(&model)?;
    let mut seen: [[Vec<f64>; TIERS.len()]; ENCODINGS.len()] = Default::default();
    for _ in lab.rounds("tiers") {
        for (encode, seen) in ENCODINGS.into_iter().zip(&mut seen) {
            let ask = Ask::within("run", &model, CONTEXT).answer(PROMPT, ANSWER);
            let ask = ask.and(&["--encode", encode]);
            for (tier, seen) in TIERS.into_iter().zip(seen) {
                seen.push(rates(&ask.alone_with("CAKE_CPU", tier)?)?.decode);
            }
        }
    }
    let mut worst = (0.0, "");
    for (encode, seen) in ENCODINGS.into_iter().zip(seen) {
        let [fast, middle, plain] = seen.map(median);
        let (to_middle, to_plain) = (fast / middle, fast / plain);
        if to_plain > worst.0 {
            worst = (to_plain, encode);
        }
        let words = format!(
            "AVX-512 {fast:.1} tok/s; AVX2 {middle:.1}: {to_middle:.2} ×; portable {plain:.1}: {to_plain:.2} ×"
        );
        let what = format!("decode by instructions, 2 threads, {encode}");
        table.inform(&what, Measured::new(to_plain, words));
    }
    let (ratio, encode) = worst;
    let words = format!("{ratio:.2} × ({encode}, the worst)");
    let what = "decode with portable code, every encoding";
    table.at_most(what, Measured::new(ratio, words), RATIO, BAR);
    Ok(())
}
