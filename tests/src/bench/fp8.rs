//! Decode of a model in FP8 beside what memory gives for its bytes.
use anyhow::Result;
use cake_tests::model::{ModelShape, Packing, make_packed};

use super::cluster::Ask;
use super::engine::alone;
use super::files;
use super::lab::Lab;
use super::quiet::undisturbed;
use super::rates::{median, medians};
use super::table::{Measured, Table};

pub(super) const BAR: &str = "≥ 0.75 of the limit";
/// Of the memory's rate for the bytes that a token reads: the least that decoding reaches.
const PART: f64 = 0.75;
const THREADS: usize = 2;
const CONTEXT: usize = 1024;
const SEED: u64 = 1;
/// Bytes of a number of the head, which stays in bf16.
const HEAD_BYTES: u64 = 2;

/// Measures a Llama of 1B whose layers are in blocks of 128 × 128.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let (shape, packing) = (ModelShape::llama_1b(), Packing::Fp8Blocks);
    let head = (shape.hidden_size * shape.vocab_size) as u64 * HEAD_BYTES;
    // The embedding is the head.
    let bytes = packing.layers_bytes(&shape) + head;
    let scratch = lab.scratch()?;
    lab.need_disk(bytes)?;
    let model = scratch.path().join("model");
    make_packed(&model, &shape, packing, SEED)?;
    files::warm(&model)?;
    let ask = Ask::within("run", &model, CONTEXT);
    let (mut memory, mut ours) = (Vec::new(), Vec::new());
    for _ in lab.rounds("FP8") {
        let (rate, turn) = undisturbed(THREADS, || alone(&ask))?;
        memory.push(rate);
        ours.push(turn);
    }
    let bytes = bytes as f64;
    let parts = memory.iter().zip(&ours).map(|(memory, ours)| ours.decode * bytes / memory);
    let (part, ours, memory) = (median(parts.collect()), medians(&ours), median(memory));
    let words = format!(
        "{:.1} tok/s × {:.3} GB = {:.1} GB/s of {:.1} GB/s: {part:.2}",
        ours.decode,
        bytes / 1e9,
        ours.decode * bytes / 1e9,
        memory / 1e9,
    );
    let what = format!("{}: decode, {THREADS} threads", packing.name());
    table.judged(&what, Measured::new(part, words), BAR, part >= PART);
    let words = format!("{:.0} tok/s", ours.prefill);
    let what = format!("{}: prefill 512, {THREADS} threads", packing.name());
    table.inform(&what, Measured::new(ours.prefill, words));
    Ok(())
}
