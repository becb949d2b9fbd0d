//! `make-model SHAPE OUT`: a checkpoint with random weights, of any size, for tests and benchmarks.
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use cake_checkpoint::Dtype;
use cake_checkpoint::units::{format_rate, parse_bytes};
use cake_tests::ModelShape;
use cake_tests::model;
use clap::Parser;

/// Writes a checkpoint with random weights.
#[derive(Debug, Parser)]
struct Cli {
    /// llama-1b (2.3 GiB), llama-small (8 layers of 6 MiB), llama-tiny, qwen3-moe-4b (7 GiB) or qwen2.5-7b-mlx4 (4 GiB,
    /// packed as MLX does it).
    shape: String,
    /// Directory to write; made if it is not there.
    out: PathBuf,
    /// Decoder layers, if not the shape's own number (llama-1b: 84 for 10 GiB).
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Element type of the weights that are not packed, if not the shape's own.
    #[arg(long, value_name = "bf16|f16|f32")]
    dtype: Option<String>,
    /// Begin another file when one has so many bytes (such as 2GiB). Default: one file.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    shard_bytes: Option<u64>,
    /// The same seed gives the same weights.
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let mut shape = ModelShape::named(&cli.shape).with_context(|| {
        format!("{:?} is no shape, expected one of {}", cli.shape, ModelShape::NAMES.join(", "))
    })?;
    shape.layers = cli.layers.unwrap_or(shape.layers);
    shape.shard_bytes = cli.shard_bytes;
    if let Some(name) = &cli.dtype {
        let known = Dtype::parse(&name.to_uppercase());
        shape.dtype = known.with_context(|| format!("{name:?} is no dtype"))?;
    }
    let started = Instant::now();
    model::make(&cli.out, &shape, cli.seed)
        .with_context(|| format!("cannot write {}", cli.out.display()))?;
    let rate = shape.bytes() as f64 / started.elapsed().as_secs_f64();
    println!("{}: {} ({})", cli.out.display(), model::describe(&shape), format_rate(rate));
    Ok(())
}
