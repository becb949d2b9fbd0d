//! `cake-master models`: the models of the Hub that are here: listed, fetched, deleted, shown.
use clap::Subcommand;
use tokio::task::block_in_place;

use super::ctrl_c::CtrlC;
use super::{Error, examples, inspect, list, pull, rm};

/// Arguments of `models`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the models in the Hub's cache, and those of Ollama and LM Studio: what `serve` has at hand unless told otherwise.
    #[command(after_help = examples::MODELS_LIST)]
    List(list::Args),
    /// Fetch a model from the Hub into its cache; what is there already is not fetched again.
    #[command(after_help = examples::MODELS_PULL)]
    Pull(pull::Args),
    /// Delete a model, or a revision of it, from the Hub's cache.
    #[command(after_help = examples::MODELS_RM)]
    Rm(rm::Args),
    /// Show what a checkpoint contains.
    #[command(after_help = examples::MODELS_SHOW)]
    Show(inspect::Args),
}

impl Args {
    /// Does what the command of the same name does.
    pub(super) async fn run(self, ctrl_c: CtrlC) -> Result<(), Error> {
        match self.action {
            Action::List(args) => block_in_place(|| args.run()),
            Action::Pull(args) => args.run(ctrl_c).await,
            Action::Rm(args) => args.run().await,
            Action::Show(args) => args.run(ctrl_c.take_over()).await,
        }
    }

    /// Whether it prints JSON.
    pub(super) fn json(&self) -> bool {
        match &self.action {
            Action::List(args) => args.json,
            Action::Pull(args) => args.json,
            Action::Rm(args) => args.json,
            Action::Show(args) => args.json,
        }
    }

    /// The model that it works with, which may have to be pulled first.
    pub(super) fn model(&self) -> Option<&str> {
        match &self.action {
            Action::Show(args) => Some(&args.model),
            _ => None,
        }
    }
}
