//! `cake-master merge MODEL --out F.safetensors`: all weights in one file.
use std::path::PathBuf;

use cake_transform::merge;
use tokio::task::block_in_place;

use super::{WriteArgs, file_or_directory, open};
use crate::cli::Error;
use crate::cli::ctrl_c::Interrupts;

/// Arguments of `merge`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// A checkpoint directory, an index, or org/name of a model of the Hub.
    pub(in crate::cli) model: String,
    /// What to write: F.safetensors, the weights alone; or a directory, for the model with its configuration and texts.
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) write: WriteArgs,
}

impl Args {
    /// Merges. What is not finished goes on with the next run.
    pub(in crate::cli) async fn run(self, interrupts: Interrupts) -> Result<(), Error> {
        let job = block_in_place(|| merge_to(&self))?;
        self.write.write(job, interrupts).await
    }
}

fn merge_to(args: &Args) -> Result<cake_transform::Job, Error> {
    Ok(merge(open(&args.model)?, file_or_directory(args.out.clone()))?)
}
