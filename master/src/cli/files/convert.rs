//! `cake-master convert MODEL --to mlx --encode q4 --out DIR`: the model in another format or encoding.
use std::path::PathBuf;

use cake_transform::convert::{Encode, HubFormat, to_hub};
use cake_transform::{Job, Target};
use clap::ValueEnum;
use tokio::task::block_in_place;

use super::{WriteArgs, open, size};
use crate::cli::Error;
use crate::cli::ctrl_c::Interrupts;

/// Arguments of `convert`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// A checkpoint directory, a file of a format that is read, or org/name in the local Hub cache.
    model: String,
    /// The format to write.
    #[arg(long, value_name = "FORMAT", required = true)]
    to: Format,
    /// What weights become: as-stored, f32, f16, bf16, q8 or q4 (codes of 8 or 4 bits in groups of 64, with scales and
    /// biases; with q4, embedding and head have 8).
    #[arg(long, value_name = "ENCODING", default_value_t = Encode::AsStored)]
    encode: Encode,
    /// Most bytes of tensors in a file, such as 5GB or 900MiB; a larger tensor gets a file of its own.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = size)]
    max_shard_size: u64,
    /// The directory to write.
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
    Ok(match args.to {
        Format::Safetensors => {
            to_hub(source, &checkpoint, HubFormat::Safetensors, encode, directory(), most)?
        }
        Format::Mlx => to_hub(source, &checkpoint, HubFormat::Mlx, encode, directory(), most)?,
    })
}
