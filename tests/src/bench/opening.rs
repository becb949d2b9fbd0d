//! How soon a large GGUF file is open, of which only the header is there.
use anyhow::Result;
use cake_checkpoint::GgmlType;
use cake_checkpoint::units::format_bytes;
use cake_tests::model::{GgufModel, ModelShape};

use super::cluster::Ask;
use super::lab::Lab;
use super::table::{Measured, Table};

pub(super) const BAR: &str = "< 0.5 s, < 100 MiB";
const LIMIT_SECONDS: f64 = 0.5;
const LIMIT_BYTES: u64 = 100 << 20;
/// What the file has at least (bytes).
const LEAST_BYTES: u64 = 20_000_000_000;

/// The widths of a Llama of 34B, with the vocabulary of Llama 3.
fn shape() -> ModelShape {
    ModelShape {
        hidden_size: 7168,
        intermediate_size: 20_480,
        layers: 60,
        heads: 56,
        head_dim: 128,
        tied: false,
        rope_llama3: false,
        ..ModelShape::llama_1b()
    }
}

/// Has a file inspected, round by round; the slowest counts.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let scratch = lab.scratch()?;
    let file = scratch.path().join("model.gguf");
    let kind = |name: &str| if name.starts_with("blk.") { GgmlType::Q4K } else { GgmlType::Q6K };
    let model = GgufModel::new(&shape(), kind);
    model.write(&file, None)?;
    let (mut seconds, mut peak) = (0f64, 0);
    for _ in lab.rounds("opening") {
        let run = Ask::of("inspect", &file).alone()?;
        run.json()?;
        seconds = seconds.max(run.seconds);
        peak = peak.max(run.finished.peak_bytes);
    }
    let words =
        format!("{} in {seconds:.2} s, {}", format_bytes(model.bytes()), format_bytes(peak));
    let met = seconds < LIMIT_SECONDS && peak < LIMIT_BYTES && model.bytes() >= LEAST_BYTES;
    table.judged("inspect of a GGUF file", Measured::new(seconds, words), BAR, met);
    Ok(())
}
