//! `cake-master convert MODEL --to mlx --encode q4 --out DIR`: the model in another format or encoding.
use std::path::PathBuf;
use std::sync::Arc;

use cake_checkpoint::Checkpoint;
use cake_checkpoint::units::format_bytes;
use cake_transform::convert::{Encode, HubFormat, to_hub};
use cake_transform::gguf::{GgufOptions, GgufType};
use cake_transform::{Job, Source, Target, apr, gguf};
use clap::ValueEnum;
use tokio::task::block_in_place;

use super::{WriteArgs, open, size};
use crate::calibration::Sample;
use crate::cli::args::{MODEL, sample};
use crate::cli::ctrl_c::Interrupts;
use crate::cli::{Error, out};
use crate::deployment::event::Event;
use crate::deployment::{is_hollow, reading, weigh};
use crate::state::State;

/// Most bytes of tensors in a file where nobody says it, as with transformers.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Arguments of `convert`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    #[arg(help = MODEL)]
    pub(in crate::cli) model: String,
    /// The format to write.
    #[arg(long, value_name = "FORMAT", required = true)]
    to: Format,
    /// What weights become: as-stored, f32, f16 or bf16; for safetensors and mlx q8, q6, q5 or q4, codes of so many bits in
    /// groups of 64, but what was codes of 4 or 5 bits before somebody widened it those again; for apr q8 or q4, its own codes; for gguf q8_0 or q4_0, blocks of 32, or q6_k, q5_k or q4_k, blocks of
    /// 256. With less than 8 bits, embedding and head have 8, or 6 in blocks of 256.
    #[arg(long, value_name = "ENCODING", default_value_t = Encode::AsStored)]
    encode: Encode,
    /// Run a text through the model before its weights become 6, 5 or 4 bits of safetensors or mlx, so that they are off
    /// where that text needs them least: its first 2048 tokens, in UTF-8. That takes some seconds for each billion weights,
    /// and is remembered; to turn them into fewer bits takes several times as long then. Default: all errors count the same.
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    /// Most bytes of tensors in a file of safetensors or mlx, such as 900MiB; a larger tensor gets a file of its own.
    /// Default: 5GB.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_shard_size: Option<u64>,
    /// Write a tokenizer for GGUF that splits text in a way for which llama.cpp has no name as if it split it in the
    /// default way, instead of refusing it.
    #[arg(long)]
    guess_pre_tokenizer: bool,
    /// What to write: for safetensors and mlx a directory; for gguf F.gguf, for apr F.apr, or a directory for that file.
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) write: WriteArgs,
}

/// A format that is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// Safetensors in a directory, as transformers writes them.
    Safetensors,
    /// Safetensors in a directory, as MLX has them.
    Mlx,
    /// One GGUF file, as llama.cpp reads it.
    Gguf,
    /// One APR file.
    Apr,
}

impl Args {
    /// Converts. What is not finished goes on with the next run.
    pub(in crate::cli) async fn run(self, mut interrupts: Interrupts) -> Result<(), Error> {
        self.check()?;
        let sample = self.sample()?;
        let (source, checkpoint) = block_in_place(|| {
            let source = open(&self.model)?;
            let checkpoint = Arc::new(source.checkpoint()?);
            Ok::<_, Error>((source, checkpoint))
        })?;
        if let Some(sample) = sample {
            // What needs no text is refused before one is run.
            let reading = block_in_place(|| {
                let planned = convert(&self, Source::open(&self.model)?, &checkpoint)?;
                self.write.check(&planned)?;
                Ok::<_, Error>(reading(&checkpoint, &sample, is_hollow(&checkpoint))?)
            })?;
            let state = State::open()?;
            let tell =
                |done, layers| out::note(format_args!("{}", Event::Calibrating { done, layers }));
            tokio::select! {
                weighed = weigh(&checkpoint, &reading, &state, tell) => weighed?,
                () = interrupts.next() => return Err(Error::Interrupted),
            }
        }
        let job = block_in_place(|| convert(&self, source, &checkpoint))?;
        self.write.write(job, interrupts).await
    }
}

impl Args {
    /// Refuses what has no meaning for the format that is written.
    fn check(&self) -> Result<(), Error> {
        let is_one_file = matches!(self.to, Format::Gguf | Format::Apr);
        if let (Some(bytes), true) = (self.max_shard_size, is_one_file) {
            let expected = "safetensors or mlx, which may have several files";
            return Err(Error::argument("--max-shard-size", format_bytes(bytes), expected));
        }
        if let (Some(text), true) = (&self.calibrate, is_one_file) {
            return Err(Error::argument(
                "--calibrate",
                text.display(),
                "only with --to safetensors or mlx",
            ));
        }
        if self.guess_pre_tokenizer && self.to != Format::Gguf {
            return Err(Error::argument("--guess-pre-tokenizer", "given", "only with --to gguf"));
        }
        Ok(())
    }

    /// The text that says where errors count, if there is one.
    fn sample(&self) -> Result<Option<Sample>, Error> {
        let Some(path) = &self.calibrate else { return Ok(None) };
        let weighs = matches!(self.encode, Encode::Affine(scheme) if scheme.weighs_errors());
        Ok(Some(sample(path, weighs, "--encode q6, q5 or q4")?))
    }
}

fn convert(args: &Args, source: Source, checkpoint: &Checkpoint) -> Result<Job, Error> {
    let directory = || Target::Directory(args.out.clone());
    let (encode, most) = (args.encode, args.max_shard_size.unwrap_or(SHARD_BYTES));
    let (job, lost) = match args.to {
        Format::Safetensors => {
            let format = HubFormat::Safetensors;
            (to_hub(source, checkpoint, format, encode, directory(), most)?, Vec::new())
        }
        Format::Mlx => {
            (to_hub(source, checkpoint, HubFormat::Mlx, encode, directory(), most)?, Vec::new())
        }
        Format::Gguf => {
            let to = gguf_type(encode)?;
            let options = GgufOptions { guess_pre_tokenizer: args.guess_pre_tokenizer };
            gguf::convert(source, checkpoint, to, target(args, "gguf"), options)?
        }
        Format::Apr => apr::convert(source, checkpoint, encode, target(args, "apr"))?,
    };
    for sentence in lost {
        out::note(format_args!("note: {sentence}"));
    }
    Ok(job)
}

/// The file that was named, or a directory for it.
fn target(args: &Args, extension: &str) -> Target {
    let is_file = args.out.extension().is_some_and(|found| found == extension);
    let out = args.out.clone();
    if is_file && !out.is_dir() { Target::File(out) } else { Target::Directory(out) }
}

/// What matrices become in GGUF; nothing for what they are.
fn gguf_type(encode: Encode) -> Result<Option<GgufType>, Error> {
    Ok(Some(match encode {
        Encode::AsStored => return Ok(None),
        Encode::Float(float) => GgufType::Float(float),
        Encode::Blocks(kind) => GgufType::Blocks(kind),
        Encode::Affine(scheme) => {
            let expected = "one that GGUF has: q8_0, q6_k, q5_k, q4_k or q4_0";
            return Err(Error::argument("--encode", scheme, expected));
        }
    }))
}
