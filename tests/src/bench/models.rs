//! The model that most figures are about, and what a token reads of a model.
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use cake_checkpoint::{Checkpoint, Scheme};
use cake_master::model::Model;
use cake_tests::ModelShape;

/// Name of the model that most figures are about.
pub(super) const ONE_B: &str = "llama-1b";
/// How many of its layers the first of two workers holds.
pub(super) const CUT: usize = 8;

/// Its shape: that of a Llama of one billion parameters, 2.3 GiB of bf16 in one file.
pub(super) fn one_b() -> ModelShape {
    ModelShape::llama_1b()
}

/// Bytes of weights that a decoded token reads: of layers, and of the head with so many bits for each of its numbers.
pub(super) fn active_bytes(
    model: &Path,
    shape: &ModelShape,
    scheme: Scheme,
    head_bits: f64,
) -> Result<f64> {
    let checkpoint = Checkpoint::open(model.to_str().context("the model's path is not UTF-8")?)?;
    let model = Model::new(Arc::new(checkpoint), scheme);
    let layers: u64 = (0..shape.layers).map(|layer| model.active_bytes(layer)).sum();
    Ok(layers as f64 + (shape.hidden_size * shape.vocab_size) as f64 * head_bits / 8.0)
}
