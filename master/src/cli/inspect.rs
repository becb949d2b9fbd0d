//! `cake-master inspect MODEL`: what a checkpoint contains.
use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{Checkpoint, RopeScaling};
use serde::Serialize;

use super::{Error, report};

/// Arguments of `inspect`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// A checkpoint directory, a .safetensors file, or org/name in the local Hub cache.
    model: String,
    /// List every tensor.
    #[arg(long)]
    tensors: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Summary<'a> {
    model: &'a str,
    architecture: &'a str,
    layers: usize,
    hidden_size: usize,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    intermediate_size: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    tie_word_embeddings: bool,
    rope_theta: f64,
    rope: &'static str,
    files: Vec<FileLine>,
    layer_bytes: Vec<u64>,
    embedding_bytes: u64,
    head_bytes: u64,
    total_bytes: u64,
    kv_bytes_per_token_f32: u64,
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<TensorLine<'a>>>,
}

#[derive(Debug, Serialize)]
struct FileLine {
    path: String,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct TensorLine<'a> {
    name: &'a str,
    file: usize,
    dtype: &'static str,
    shape: &'a [u64],
    offset: u64,
    bytes: u64,
}

impl Args {
    /// Reads the headers and prints.
    pub(super) fn run(self) -> Result<(), Error> {
        let checkpoint = Checkpoint::open(&self.model)?;
        let summary = summary(&checkpoint, self.tensors);
        if self.json {
            report::print_json(&summary);
        } else {
            print_text(&summary);
        }
        Ok(())
    }
}

fn summary(checkpoint: &Checkpoint, tensors: bool) -> Summary<'_> {
    let config = &checkpoint.config;
    let lines = checkpoint.tensors.iter().map(|tensor| TensorLine {
        name: &tensor.name,
        file: tensor.file,
        dtype: tensor.dtype.name(),
        shape: &tensor.shape,
        offset: tensor.offset,
        bytes: tensor.bytes,
    });
    Summary {
        model: &checkpoint.location.name,
        architecture: config.family.architecture,
        layers: config.num_layers,
        hidden_size: config.hidden_size,
        num_heads: config.num_heads,
        num_kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        intermediate_size: config.intermediate_size,
        vocab_size: config.vocab_size,
        max_position_embeddings: config.max_position_embeddings,
        tie_word_embeddings: config.tie_word_embeddings,
        rope_theta: config.rope.theta,
        rope: match config.rope.scaling {
            RopeScaling::None => "default",
            RopeScaling::Linear { .. } => "linear",
            RopeScaling::Llama3 { .. } => "llama3",
        },
        files: checkpoint
            .files
            .iter()
            .map(|file| FileLine { path: file.path.display().to_string(), bytes: file.bytes })
            .collect(),
        layer_bytes: (0..config.num_layers).map(|layer| checkpoint.layer_bytes(layer)).collect(),
        embedding_bytes: checkpoint.embedding().bytes,
        head_bytes: checkpoint.head().map_or(0, |head| head.bytes),
        total_bytes: checkpoint.total_bytes(),
        kv_bytes_per_token_f32: config.num_layers as u64
            * config.kv_bytes_per_token_layer(cake_checkpoint::KvDtype::F32),
        warnings: &checkpoint.warnings,
        tensors: tensors.then(|| lines.collect()),
    }
}

fn print_text(summary: &Summary<'_>) {
    let Summary { model, architecture, layers, hidden_size, .. } = summary;
    println!("{model}: {architecture}, {layers} layers of width {hidden_size}");
    println!(
        "  attention    {} heads, {} KV heads, head_dim {}",
        summary.num_heads, summary.num_kv_heads, summary.head_dim
    );
    println!("  feed-forward {}", summary.intermediate_size);
    let tied = if summary.tie_word_embeddings { "tied" } else { "untied" };
    println!("  vocabulary   {} ({tied} head)", summary.vocab_size);
    println!(
        "  positions    {}, rope {} theta {}",
        summary.max_position_embeddings, summary.rope, summary.rope_theta
    );
    println!("  KV cache     {} per token (f32)", format_bytes(summary.kv_bytes_per_token_f32));
    for file in &summary.files {
        println!("  file         {} ({})", file.path, format_bytes(file.bytes));
    }
    for (first, last, bytes) in runs(&summary.layer_bytes) {
        let name =
            if first == last { format!("layer {first}") } else { format!("layers {first}-{last}") };
        println!("  {name:<12} {} each", format_bytes(bytes));
    }
    println!("  embedding    {}", format_bytes(summary.embedding_bytes));
    println!("  head         {}", format_bytes(summary.head_bytes));
    println!("  all weights  {}", format_bytes(summary.total_bytes));
    for warning in summary.warnings {
        println!("  warning: {warning}");
    }
    for tensor in summary.tensors.iter().flatten() {
        let TensorLine { name, dtype, shape, bytes, .. } = tensor;
        println!("  {name} {dtype} {shape:?} {bytes}");
    }
}

/// Neighbouring layers of equal size, as (first, last, bytes).
fn runs(layer_bytes: &[u64]) -> Vec<(usize, usize, u64)> {
    let mut runs: Vec<(usize, usize, u64)> = Vec::new();
    for (layer, &bytes) in layer_bytes.iter().enumerate() {
        match runs.last_mut() {
            Some((_, last, same)) if *same == bytes => *last = layer,
            _ => runs.push((layer, layer, bytes)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn equal_neighbours_are_one_line() {
        assert_eq!(runs(&[5, 5, 7, 5]), [(0, 1, 5), (2, 2, 7), (3, 3, 5)]);
    }
}
