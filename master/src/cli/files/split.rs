//! `cake-master split MODEL --max-shard-size 5GB --out DIR`: the weights in files that are not too large.
use std::path::PathBuf;

use cake_transform::{Job, Target, split};
use tokio::task::block_in_place;

use super::{WriteArgs, open, size};
use crate::cli::Error;
use crate::cli::ctrl_c::Interrupts;

/// Arguments of `split`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// A checkpoint directory, a .safetensors or .apr file, or org/name of a model of the Hub.
    pub(in crate::cli) model: String,
    /// Most bytes of tensors in a file, such as 5GB or 900MiB; a larger tensor gets a file of its own.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = size)]
    max_shard_size: u64,
    /// The directory to write: files, their index, and the model's configuration and texts.
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) write: WriteArgs,
}

impl Args {
    /// Splits. What is not finished goes on with the next run.
    pub(in crate::cli) async fn run(self, interrupts: Interrupts) -> Result<(), Error> {
        let job = block_in_place(|| split_to(&self))?;
        self.write.write(job, interrupts).await
    }
}

fn split_to(args: &Args) -> Result<Job, Error> {
    Ok(split(open(&args.model)?, Target::Directory(args.out.clone()), args.max_shard_size)?)
}
