//! `quality MODEL`: what each way to store a model costs, as its perplexity on a fixed text; `tests/benches/README.md` says more.
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use cake_checkpoint::{Checkpoint, KvDtype, Scheme};
use cake_engine::Numerics;
use cake_master::text::Text;
use cake_tests::quality::{Scorer, Weights};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: cake_engine::Reuse = cake_engine::Reuse;

/// The text where nobody gives another.
const TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/real/text.txt");

/// Prints a model's perplexity on a text for each --encode, and that of other files of the same weights, beside the
/// first one's. A model that is packed already stays as it is: convert it with --encode bf16 first.
#[derive(Debug, Parser)]
#[command(name = "quality")]
struct Cli {
    /// A checkpoint, as commands of cake-master take it.
    model: String,
    /// The text, in UTF-8. Default: tests/real/text.txt.
    #[arg(long, value_name = "FILE", default_value = TEXT)]
    text: PathBuf,
    /// Only these ways to store weights; repeatable. Default: all.
    #[arg(long, value_name = "ENCODING")]
    encode: Vec<Scheme>,
    /// A text that says where errors count, as --calibrate of cake-master.
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    /// A file that was made from the same weights, as by llama-quantize, computed as it is; repeatable.
    #[arg(long, value_name = "MODEL")]
    beside: Vec<String>,
    /// Element types of keys and values; repeatable. Default: f16.
    #[arg(long, value_name = "TYPE")]
    kv: Vec<KvDtype>,
    /// Arithmetic.
    #[arg(long, value_name = "fast|exact|int8", default_value = "fast")]
    numerics: Numerics,
    /// Tokens of each piece of the text, which is scored by itself, what the model expects before a text among them.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    context: usize,
    /// Score no more than so many tokens.
    #[arg(long, value_name = "TOKENS")]
    tokens: Option<usize>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let checkpoint = Checkpoint::open(&cli.model)?;
    let tokenizer = Text::of(&checkpoint.texts)?;
    let text = std::fs::read_to_string(&cli.text)
        .with_context(|| format!("cannot read {}", cli.text.display()))?;
    let (lead, mut ids) = tokenizer.encode_apart(&text)?;
    ids.truncate(cli.tokens.unwrap_or(usize::MAX));
    let most = cli.context.saturating_sub(lead.len());
    ensure!(most > 1 && ids.len() > 1, "there is nothing to predict");
    let pieces: Vec<Vec<u32>> = ids.chunks(most).map(<[u32]>::to_vec).collect();
    println!("{}: {} tokens in pieces of {}", cli.model, ids.len(), cli.context);
    println!("| weights | keys and values | MiB of layers | bits a weight | perplexity | change |");
    println!("|---|---|---|---|---|---|");
    let schemes = if cli.encode.is_empty() { Scheme::ALL.to_vec() } else { cli.encode };
    let own = schemes
        .iter()
        .map(|&scheme| (format!("--encode {scheme}"), checkpoint.location.path.clone(), scheme));
    let others =
        cli.beside.iter().map(|file| (file.clone(), PathBuf::from(file), Scheme::AsStored));
    let kinds = if cli.kv.is_empty() { vec![KvDtype::F16] } else { cli.kv };
    let mut first = None;
    for (name, path, scheme) in own.chain(others) {
        let weights = Weights::open(&path, scheme, cli.calibrate.as_deref())?;
        ensure!(
            weights.vocab_size() == checkpoint.config.vocab_size,
            "{name} has a vocabulary of {} tokens, {} one of {}",
            weights.vocab_size(),
            cli.model,
            checkpoint.config.vocab_size
        );
        for &kv in &kinds {
            let mut scorer = Scorer::load(&weights, cli.numerics, kv, cli.context)?;
            let perplexity = scorer.perplexity(&lead, &pieces)?;
            let first = *first.get_or_insert(perplexity);
            let mib = weights.layer_bytes() as f64 / f64::from(1 << 20);
            let (bits, change) = (weights.bits_per_weight(), 100.0 * (perplexity / first - 1.0));
            println!("| {name} | {kv} | {mib:.1} | {bits:.2} | {perplexity:.3} | {change:+.2} % |");
        }
    }
    Ok(())
}
