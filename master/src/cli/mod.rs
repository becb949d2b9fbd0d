//! The command line of `cake-master`: one file per command, what they share in `args`, `announce`, `told`, `report`,
//! `pulling` and `ask`; `offer` is what comes before those that take a model.
mod announce;
mod args;
mod ask;
mod bench;
mod chat;
mod compare;
mod config;
mod ctrl_c;
mod demo;
mod doctor;
mod error;
mod examples;
mod extract;
mod files;
mod init;
mod input;
mod inspect;
mod list;
mod listen;
mod models;
mod offer;
mod out;
mod plan;
mod pull;
mod pulling;
mod push;
mod report;
mod rm;
mod run;
mod serve;
mod service;
mod show;
mod token;
mod told;
mod workers;

use std::process::ExitCode;

use cake_platform::interrupts;
use cake_settings::{ConfigArgs, Program};
use clap::{CommandFactory, Parser, Subcommand};
use tokio::task::block_in_place;

use self::ctrl_c::CtrlC;
use crate::text;

pub use error::Error;

/// Sections of a settings file: one for each command, and these for whatever several of them have.
pub const SETTINGS: Program = Program {
    name: "cake-master",
    own: None,
    shared: &[
        ("cluster", "ClusterArgs"),
        ("planning", "PlanArgs"),
        ("answers", "SampleArgs"),
        ("service", "ServiceArgs"),
    ],
    others: false,
};

/// Runs a language model that no single device could hold, its layers spread over workers.
#[derive(Debug, Parser)]
#[command(name = "cake-master", version, about, propagate_version = true, after_help = examples::ALL)]
pub struct Cli {
    /// Log more: -v changes of state, -vv every step. CAKE_LOG takes a full filter.
    #[arg(short, long, action = clap::ArgAction::Count, global = true, help_heading = "Logs and traces")]
    verbose: u8,
    #[command(flatten, next_help_heading = "Logs and traces")]
    telemetry: cake_telemetry::Options,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start three small workers on this machine and answer a question with the model that ships inside.
    #[command(after_help = examples::DEMO)]
    Demo(demo::Args),
    /// Answer one prompt, over workers or alone.
    #[command(after_help = examples::RUN)]
    Run(Box<run::Args>),
    /// Talk with the model, turn after turn.
    #[command(after_help = examples::CHAT)]
    Chat(Box<chat::Args>),
    /// Serve the OpenAI API and a page: many requests at once, one model or those at hand.
    #[command(after_help = examples::SERVE)]
    Serve(Box<serve::Args>),
    /// Show what a running service does: its model, who computes which layers, how busy it is.
    #[command(after_help = examples::STATUS)]
    Status(service::status::Args),
    /// List the requests that a running service computes now.
    #[command(after_help = examples::PS)]
    Ps(service::ps::Args),
    /// Tell what happened lately in a running service: who came, was lost, which layers moved, what failed.
    #[command(after_help = examples::LOGS)]
    Logs(service::logs::Args),
    /// Measure how fast a model is over this cluster, and where the time goes.
    #[command(after_help = examples::BENCH)]
    Bench(Box<bench::Args>),
    /// Show which worker would hold which layers, and change nothing.
    #[command(after_help = examples::PLAN)]
    Plan(plan::Args),
    /// Plan and push the blobs, then leave: the next run starts warm.
    #[command(after_help = examples::PUSH)]
    Push(push::Args),
    /// Show what a checkpoint contains.
    #[command(after_help = examples::INSPECT)]
    Inspect(inspect::Args),
    /// Write some layers to a file of their own.
    #[command(after_help = examples::EXTRACT)]
    Extract(extract::Args),
    /// Write all weights to one safetensors file.
    #[command(after_help = examples::MERGE)]
    Merge(files::merge::Args),
    /// Write the weights to several safetensors files with an index.
    #[command(after_help = examples::SPLIT)]
    Split(files::split::Args),
    /// Fetch a model from the Hub into its cache; what is there already is not fetched again.
    #[command(after_help = examples::PULL)]
    Pull(pull::Args),
    /// List the models in the Hub's cache, and those of Ollama and LM Studio.
    #[command(after_help = examples::LIST)]
    List(list::Args),
    /// Delete a model, or a revision of it, from the Hub's cache.
    #[command(after_help = examples::RM)]
    Rm(rm::Args),
    /// The models that are here, under one name: list, pull, rm, show.
    #[command(after_help = examples::MODELS)]
    Models(models::Args),
    /// Check every worker: reachable, versions, disk, clock, links. One fix per line.
    #[command(after_help = examples::DOCTOR)]
    Doctor(doctor::Args),
    /// Check that every worker computes what this machine computes, and name the layer that differs.
    #[command(after_help = examples::COMPARE)]
    Compare(Box<compare::Args>),
    /// Check the files of a checkpoint, and digests of its tensors.
    #[command(after_help = examples::VERIFY)]
    Verify(files::verify::Args),
    /// Say what two checkpoints have that the other has not, and by how much their numbers differ.
    #[command(after_help = examples::DIFF)]
    Diff(files::diff::Args),
    /// Write the model in another format or encoding.
    #[command(after_help = examples::CONVERT)]
    Convert(files::convert::Args),
    /// Make a certificate authority, so that workers on a network can join.
    #[command(after_help = examples::INIT)]
    Init(init::Args),
    /// Print a token that lets a worker join.
    #[command(after_help = examples::TOKEN)]
    Token(token::Args),
    /// Who joined and is there; shut a worker out, or forget one that will not come back.
    #[command(after_help = examples::WORKERS)]
    Workers(workers::Args),
    /// Show what the settings file says, and what holds where it says nothing.
    #[command(after_help = examples::CONFIG)]
    Config(config::Args),
    /// A worker in this process; `demo` starts three.
    #[command(hide = true)]
    Worker(cake_worker::cli::ServeArgs),
    /// Renders chat templates for the process that started this one.
    #[command(hide = true, name = text::RENDER)]
    Render,
}

impl Cli {
    /// Does what the arguments say; if it cannot, says why in one sentence for the person who typed them.
    pub fn run(self) -> ExitCode {
        if let Command::Render = self.command {
            return text::render_for_parent();
        }
        text::render_apart();
        let json = self.command.json();
        let Err(error) = self.outcome() else { return ExitCode::SUCCESS };
        let code = error.exit_code();
        out::last(move || {
            // First the sentence: somebody may read it though nobody reads the JSON.
            out::note(format_args!("cake-master: {error}"));
            if json && !error.is_reported() {
                report::print_error(&error).ok(); // It has been told.
            }
        });
        code
    }

    fn outcome(self) -> Result<(), Error> {
        let level = ["warn", "info", "debug"][usize::from(self.verbose.min(2))];
        let _telemetry = self.telemetry.start("cake-master", level)?;
        let command = match self.command {
            Command::Worker(args) => return Ok(args.run()?), // Has a runtime of its own.
            Command::Config(args) => {
                return args.run(&SETTINGS, Self::command(), self.config.config.as_deref());
            }
            command => command,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(network_threads())
            .enable_all()
            .build()
            .map_err(|source| Error::Start { source })?;
        match ctrl_c::run(runtime, |ctrl_c| dispatch(command, ctrl_c), interrupts) {
            Err(Error::OutputClosed) => Ok(()),
            result => result,
        }
    }
}

impl Command {
    /// Whether it was asked to print JSON.
    fn json(&self) -> bool {
        match self {
            Self::Run(args) => args.json,
            Self::Plan(args) => args.json,
            Self::Push(args) => args.json,
            Self::Inspect(args) => args.json,
            Self::Extract(args) => args.json,
            Self::Merge(args) => args.write.json,
            Self::Split(args) => args.write.json,
            Self::Pull(args) => args.json,
            Self::List(args) => args.json,
            Self::Rm(args) => args.json,
            Self::Models(args) => args.json(),
            Self::Doctor(args) => args.json,
            Self::Token(args) => args.json,
            Self::Bench(args) => args.json,
            Self::Status(args) => args.json,
            Self::Ps(args) => args.json,
            Self::Logs(args) => args.json,
            Self::Config(args) => args.json,
            Self::Compare(args) => args.json,
            Self::Verify(args) => args.json,
            Self::Diff(args) => args.json,
            Self::Convert(args) => args.write.json,
            Self::Workers(args) => args.json(),
            Self::Init(_)
            | Self::Demo(_)
            | Self::Chat(_)
            | Self::Serve(_)
            | Self::Worker(_)
            | Self::Render => false,
        }
    }

    /// The models that it works with, which may have to be pulled first.
    fn models(&self) -> Vec<&str> {
        match self {
            Self::Run(args) => vec![&args.model],
            Self::Chat(args) => vec![&args.model],
            Self::Models(args) => args.model().into_iter().collect(),
            Self::Serve(args) => args.models.iter().map(String::as_str).collect(),
            Self::Bench(args) => args.model.as_deref().into_iter().collect(),
            Self::Plan(args) => vec![&args.model],
            Self::Push(args) => vec![&args.model],
            Self::Inspect(args) => vec![&args.model],
            Self::Extract(args) => vec![&args.model],
            Self::Merge(args) => vec![&args.model],
            Self::Split(args) => vec![&args.model],
            Self::Convert(args) => vec![&args.model],
            Self::Verify(args) => vec![&args.model],
            Self::Diff(args) => vec![&args.before, &args.after],
            Self::Compare(args) => vec![&args.model],
            _ => Vec::new(),
        }
    }
}

/// How many threads move bytes and answer requests: half of the cores, and few, as the others compute. Threads that
/// find nothing to do cost time as well: whoever has work wakes them.
fn network_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(1, 4)
}

async fn dispatch(command: Command, ctrl_c: CtrlC) -> Result<(), Error> {
    for model in command.models() {
        offer::offer(model, &ctrl_c).await?;
    }
    match command {
        Command::Demo(args) => args.run().await,
        Command::Run(args) => args.run().await,
        Command::Chat(args) => args.run(ctrl_c).await,
        Command::Serve(args) => args.run(ctrl_c).await,
        Command::Bench(args) => args.run().await,
        Command::Status(args) => args.run().await,
        Command::Ps(args) => args.run(),
        Command::Logs(args) => args.run().await,
        Command::Plan(args) => args.run().await,
        Command::Push(args) => args.run().await,
        Command::Inspect(args) => args.run(ctrl_c.take_over()).await,
        Command::Extract(args) => args.run(ctrl_c.take_over()).await,
        Command::Merge(args) => args.run(ctrl_c.take_over()).await,
        Command::Split(args) => args.run(ctrl_c.take_over()).await,
        Command::Pull(args) => args.run(ctrl_c).await,
        Command::List(args) => block_in_place(|| args.run()),
        Command::Rm(args) => args.run().await,
        Command::Models(args) => args.run(ctrl_c).await,
        Command::Doctor(args) => args.run().await,
        Command::Compare(args) => args.run().await,
        Command::Verify(args) => args.run(ctrl_c.take_over()).await,
        Command::Diff(args) => args.run(ctrl_c.take_over()).await,
        Command::Convert(args) => args.run(ctrl_c.take_over()).await,
        Command::Init(args) => block_in_place(|| args.run()),
        Command::Token(args) => args.run().await,
        Command::Workers(args) => args.run().await,
        Command::Config(_) | Command::Worker(_) | Command::Render => Ok(()), // Done before there was a runtime.
    }
}
