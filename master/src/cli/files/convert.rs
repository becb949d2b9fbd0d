//! `cake-master convert MODEL --to mlx --encode q4 --out DIR`: the model in another format or encoding.
use std::path::PathBuf;

use cake_checkpoint::{Checkpoint, Encoding, FloatType};
use cake_transform::convert::{Encode, HubFormat, to_hub};
use cake_transform::gguf::{GgufOptions, GgufType};
use cake_transform::{Job, Target, apr, gguf};
use clap::ValueEnum;
use tokio::task::block_in_place;

use super::{WriteArgs, open, size};
use crate::cli::ctrl_c::Interrupts;
use crate::cli::{Error, out};

/// Arguments of `convert`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// A checkpoint directory, a file of a format that is read, or org/name of a model of the Hub.
    pub(in crate::cli) model: String,
    /// The format to write.
    #[arg(long, value_name = "FORMAT", required = true)]
    to: Format,
    /// What weights become: as-stored, f32, f16 or bf16; for safetensors and mlx q8 or q4, codes of 8 or 4 bits in groups
    /// of 64; for apr q8 or q4, its own codes; for gguf q8_0 or q4_0, blocks of 32. With 4 bits, embedding and head have 8.
    #[arg(long, value_name = "ENCODING", default_value_t = Encode::AsStored)]
    encode: Encode,
    /// Most bytes of tensors in a file, such as 5GB or 900MiB; a larger tensor gets a file of its own.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = size)]
    max_shard_size: u64,
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
    pub(in crate::cli) async fn run(self, interrupts: Interrupts) -> Result<(), Error> {
        let job = block_in_place(|| convert(&self))?;
        self.write.write(job, interrupts).await
    }
}

fn convert(args: &Args) -> Result<Job, Error> {
    let source = open(&args.model)?;
    let checkpoint = source.checkpoint()?;
    let directory = || Target::Directory(args.out.clone());
    let (encode, most) = (args.encode, args.max_shard_size);
    let (job, lost) = match args.to {
        Format::Safetensors => {
            let format = HubFormat::Safetensors;
            (to_hub(source, &checkpoint, format, encode, directory(), most)?, Vec::new())
        }
        Format::Mlx => {
            (to_hub(source, &checkpoint, HubFormat::Mlx, encode, directory(), most)?, Vec::new())
        }
        Format::Gguf => {
            let to = gguf_type(encode, &checkpoint)?;
            let options = GgufOptions { guess_pre_tokenizer: args.guess_pre_tokenizer };
            gguf::convert(source, &checkpoint, to, target(args, "gguf"), options)?
        }
        Format::Apr => apr::convert(source, &checkpoint, encode, target(args, "apr"))?,
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

/// What matrices become in GGUF: as they are stored if it has that, else f16.
fn gguf_type(encode: Encode, checkpoint: &Checkpoint) -> Result<GgufType, Error> {
    let of = |float| match float {
        FloatType::F32 => GgufType::F32,
        FloatType::F16 => GgufType::F16,
        FloatType::BF16 => GgufType::Bf16,
    };
    Ok(match encode {
        Encode::AsStored => match checkpoint.embedding().encoding {
            Some(Encoding::Float(float)) => of(float),
            _ => GgufType::F16,
        },
        Encode::Float(float) => of(float),
        Encode::Q8_0 => GgufType::Q8_0,
        Encode::Q4_0 => GgufType::Q4_0,
        Encode::Affine(scheme) => {
            return Err(Error::argument("--encode", scheme, "one that GGUF has: q8_0 or q4_0"));
        }
    })
}
