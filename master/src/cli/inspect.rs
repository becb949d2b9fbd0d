//! `cake-master inspect MODEL`: what a checkpoint contains.
use std::collections::BTreeMap;
use std::sync::Arc;

use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{Checkpoint, KvDtype, LayerRange, LayerSpec, Op, Role, Scheme};
use cake_transform::{Source, Stats, stats};
use serde::Serialize;
use tokio::task::block_in_place;

use super::args::MODEL;
use super::ctrl_c::Interrupts;
use super::files::{Progress, threads, watched};
use super::{Error, out, report};
use crate::model::Model;

/// Arguments of `inspect`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(super) struct Args {
    #[arg(help = MODEL)]
    pub(super) model: String,
    /// List every tensor.
    #[arg(long)]
    tensors: bool,
    /// Read every tensor and say what its numbers are like, after decoding.
    #[arg(long)]
    stats: bool,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    experts: Option<ExpertsLine>,
    vocab_size: usize,
    max_position_embeddings: usize,
    tie_word_embeddings: bool,
    rope_theta: f64,
    /// [`NO_ROPE`] where nothing rotates.
    rope: &'static str,
    files: Vec<FileLine>,
    layer_bytes: Vec<u64>,
    embedding_bytes: u64,
    head_bytes: u64,
    total_bytes: u64,
    /// How matrices are stored, with the bytes of their numbers or codes.
    encodings: BTreeMap<String, u64>,
    /// Of all layers, what a decoded token reads.
    active_layer_bytes: u64,
    kv_bytes_per_token_f32: u64,
    kv_bytes_per_token_f16: u64,
    kv_bytes_per_token_q8: u64,
    /// What recurrent layers keep of a sequence, whatever its length.
    state_bytes_per_sequence: u64,
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<TensorLine<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<Vec<Stats>>,
}

/// What a model without rotations says of them.
const NO_ROPE: &str = "none";

/// A mixture of experts.
#[derive(Debug, Serialize)]
struct ExpertsLine {
    count: usize,
    chosen: usize,
    intermediate_size: usize,
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
    /// Reads the headers, or all of it for its statistics, and prints.
    pub(super) async fn run(self, interrupts: Interrupts) -> Result<(), Error> {
        let checkpoint = Arc::new(block_in_place(|| Checkpoint::open(&self.model))?);
        let stats = match self.stats {
            true => Some(self.stats(checkpoint.clone(), interrupts).await?),
            false => None,
        };
        let summary = Summary { stats, ..summary(&checkpoint, self.tensors) };
        if self.json {
            return report::print_json(&summary);
        }
        out::text(describe(&summary))
    }

    async fn stats(
        &self,
        checkpoint: Arc<Checkpoint>,
        interrupts: Interrupts,
    ) -> Result<Vec<Stats>, Error> {
        let mut source = block_in_place(|| Source::open(&self.model))?;
        Source::refuse_across(&checkpoint, "statistics").map_err(cake_transform::Error::from)?;
        source.unstack(&checkpoint.config)?;
        let place = source.location.path.clone();
        let read =
            move |progress: &Progress| stats(&source, Some(&checkpoint), threads(None), progress);
        Ok(watched(&place, "read", self.json, interrupts, read).await??)
    }
}

fn summary(checkpoint: &Arc<Checkpoint>, tensors: bool) -> Summary<'_> {
    let config = &checkpoint.config;
    // Of the first layer that has such an operation.
    let ops = || config.layers.iter().flat_map(LayerSpec::ops);
    let attention = ops().find_map(|op| if let Op::Attention(it) = op { Some(it) } else { None });
    let latent = ops().find_map(|op| if let Op::Latent(it) = op { Some(it) } else { None });
    let heads = attention.map(|it| (it.heads, it.kv_heads, it.head_dim));
    // All heads share what is kept of a position.
    let heads = heads.or(latent.map(|it| (it.heads, 1, it.kept_dim())));
    let (num_heads, num_kv_heads, head_dim) = heads.unwrap_or_default();
    let mlp = ops().find_map(|op| if let Op::Mlp(it) = op { Some(it) } else { None });
    let experts = ops().find_map(|op| if let Op::Experts(it) = op { Some(it) } else { None });
    let model = Model::new(checkpoint.clone(), Scheme::AsStored);
    let active = (0..config.layers.len()).map(|layer| model.active_bytes(layer));
    let rope = config.rotations.first().map(|rotation| &rotation.rope);
    let lines = checkpoint.tensors.iter().map(|tensor| TensorLine {
        name: &tensor.name,
        file: tensor.file,
        dtype: tensor.dtype.name(),
        shape: &tensor.shape,
        offset: tensor.offset,
        bytes: tensor.bytes,
    });
    let mut encodings = BTreeMap::new();
    for tensor in checkpoint.tensors.iter().filter(|tensor| tensor.role != Role::Ignored) {
        if let Some(encoding) = tensor.encoding {
            *encodings.entry(encoding.to_string()).or_default() += tensor.bytes;
        }
    }
    Summary {
        model: &checkpoint.location.name,
        architecture: &config.architecture,
        layers: config.layers.len(),
        hidden_size: config.hidden_size,
        num_heads,
        num_kv_heads,
        head_dim,
        intermediate_size: mlp.map_or(0, |it| it.inner_size),
        experts: experts.map(|it| ExpertsLine {
            count: it.count,
            chosen: it.chosen,
            intermediate_size: it.expert.inner_size,
        }),
        vocab_size: config.vocab_size,
        max_position_embeddings: config.max_position_embeddings,
        tie_word_embeddings: config.tie_word_embeddings,
        rope_theta: rope.map_or(0.0, |it| it.theta),
        rope: rope.map_or(NO_ROPE, |it| it.scaling.name()),
        files: checkpoint
            .files
            .iter()
            .map(|file| FileLine { path: file.path.display().to_string(), bytes: file.bytes })
            .collect(),
        layer_bytes: (0..config.layers.len()).map(|layer| checkpoint.layer_bytes(layer)).collect(),
        embedding_bytes: checkpoint.embedding().bytes,
        head_bytes: checkpoint.head().map_or(0, |head| head.bytes),
        total_bytes: checkpoint.total_bytes(),
        encodings,
        active_layer_bytes: active.sum(),
        kv_bytes_per_token_f32: config.kv_bytes_per_token(KvDtype::F32),
        kv_bytes_per_token_f16: config.kv_bytes_per_token(KvDtype::F16),
        kv_bytes_per_token_q8: config.kv_bytes_per_token(KvDtype::Q8),
        state_bytes_per_sequence: cake_engine::state_bytes(&config.layers, 1),
        warnings: &checkpoint.warnings,
        tensors: tensors.then(|| lines.collect()),
        stats: None,
    }
}

fn describe(summary: &Summary<'_>) -> String {
    let Summary { model, architecture, layers, hidden_size, .. } = summary;
    let tied = if summary.tie_word_embeddings { "tied" } else { "untied" };
    let mut lines = vec![
        format!("{model}: {architecture}, {layers} layers of width {hidden_size}"),
        format!(
            "  attention    {} heads, {} KV heads, head_dim {}",
            summary.num_heads, summary.num_kv_heads, summary.head_dim
        ),
        match &summary.experts {
            None => format!("  feed-forward {}", summary.intermediate_size),
            Some(ExpertsLine { count, chosen, intermediate_size }) => {
                format!(
                    "  experts      {count} of width {intermediate_size}, {chosen} for each token"
                )
            }
        },
        format!("  vocabulary   {} ({tied} head)", summary.vocab_size),
        match summary.rope {
            NO_ROPE => format!("  positions    {}, no rotation", summary.max_position_embeddings),
            rope => format!(
                "  positions    {}, rope {rope} theta {}",
                summary.max_position_embeddings, summary.rope_theta
            ),
        },
        format!(
            "  KV cache     {} per token (f32), {} (f16), {} (q8)",
            format_bytes(summary.kv_bytes_per_token_f32),
            format_bytes(summary.kv_bytes_per_token_f16),
            format_bytes(summary.kv_bytes_per_token_q8),
        ),
    ];
    if summary.state_bytes_per_sequence > 0 {
        let bytes = format_bytes(summary.state_bytes_per_sequence);
        lines.push(format!("  state        {bytes} per sequence (f32)"));
    }
    let files = summary.files.iter();
    lines.extend(
        files.map(|file| format!("  file         {} ({})", file.path, format_bytes(file.bytes))),
    );
    lines.extend(runs(&summary.layer_bytes).into_iter().map(|(layers, bytes)| {
        let name = format!("layers {layers}");
        format!("  {name:<12} {} each", format_bytes(bytes))
    }));
    if summary.experts.is_some() {
        let active = format_bytes(summary.active_layer_bytes);
        lines.push(format!("  of these     {active} read for a token"));
    }
    lines.push(format!("  embedding    {}", format_bytes(summary.embedding_bytes)));
    lines.push(format!("  head         {}", format_bytes(summary.head_bytes)));
    lines.push(format!("  all weights  {}", format_bytes(summary.total_bytes)));
    let encodings = summary.encodings.iter();
    let encodings = encodings.map(|(name, bytes)| format!("{name} ({})", format_bytes(*bytes)));
    lines.push(format!("  matrices     {}", encodings.collect::<Vec<_>>().join(", ")));
    lines.extend(summary.warnings.iter().map(|warning| format!("  warning: {warning}")));
    lines.extend(summary.tensors.iter().flatten().map(|tensor| {
        let TensorLine { name, dtype, shape, bytes, .. } = tensor;
        format!("  {} {dtype} {shape:?} {bytes}", name.escape_debug())
    }));
    lines.extend(summary.stats.iter().flatten().map(|stats| {
        let Stats { name, smallest, largest, mean, rms, zeros, odd } = stats;
        let odd = if *odd == 0 { String::new() } else { format!(", {odd} not finite") };
        format!(
            "  {} from {smallest:.4e} to {largest:.4e}, mean {mean:.4e}, rms {rms:.4e}, {zeros} zeros{odd}",
            name.escape_debug()
        )
    }));
    lines.push(String::new());
    lines.join("\n")
}

/// Neighbouring layers of equal size, with the bytes of each.
fn runs(layer_bytes: &[u64]) -> Vec<(LayerRange, u64)> {
    let mut runs: Vec<(LayerRange, u64)> = Vec::new();
    for (layer, &bytes) in layer_bytes.iter().enumerate() {
        match runs.last_mut() {
            Some((layers, same)) if *same == bytes => layers.end = layer + 1,
            _ => runs.push((LayerRange::new(layer, layer + 1), bytes)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_neighbours_are_one_line() {
        let range = LayerRange::new;
        assert_eq!(runs(&[5, 5, 7, 5]), [(range(0, 2), 5), (range(2, 3), 7), (range(3, 4), 5)]);
    }

    #[test]
    fn a_mixture_says_what_a_token_reads_of_it() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/qwen3-moe");
        let checkpoint = Arc::new(Checkpoint::open(model).expect("a golden model"));
        let summary = summary(&checkpoint, false);
        let text = describe(&summary);
        assert!(text.contains("\n  experts      8 of width 48, 2 for each token\n"), "{text}");
        assert!(text.contains(" read for a token\n"), "{text}");
        // Of the eight experts, of three matrices of 48 × 64 numbers in bf16 each, two in five layers.
        let idle = 5 * 6 * 3 * 48 * 64 * 2;
        let blobs: u64 = (0..5).map(|layer| checkpoint.layer_bytes(layer)).sum();
        let headers = summary.active_layer_bytes + idle - blobs;
        assert!(headers < 5 * 8192, "{headers} beside what a token reads");
    }

    #[test]
    fn layers_are_printed_half_open() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/demo-model");
        let checkpoint = Arc::new(Checkpoint::open(model).expect("the demo's model"));
        let text = describe(&summary(&checkpoint, true));
        assert!(text.contains("\n  layers 0..12 "), "{text}");
        assert!(text.contains("\n  model.embed_tokens.weight ") && text.ends_with('\n'), "{text}");
    }
}
