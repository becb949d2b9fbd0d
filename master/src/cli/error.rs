//! Everything a command can fail with.
use std::path::PathBuf;
use std::process::ExitCode;

use cake_checkpoint::units::format_bytes;

use crate::deployment::{self, WrongArgument};
use crate::{cluster, generate, pipeline, scheduler, state, text};

/// A command's failure: one sentence for a person, an exit code for a program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model could not be brought to the workers.
    #[error(transparent)]
    Deployment(#[from] deployment::Error),
    /// An argument that parses but makes no sense here.
    #[error(transparent)]
    Argument(#[from] WrongArgument),
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] cake_checkpoint::Error),
    /// A checkpoint cannot be written anew.
    #[error(transparent)]
    Transform(#[from] cake_transform::Error),
    /// The models that were named cannot be served.
    #[error(transparent)]
    Shelf(#[from] crate::shelf::Error),
    /// A model cannot be fetched, found or deleted.
    #[error(transparent)]
    Hub(#[from] cake_hub::Error),
    /// Something is to be deleted, and nobody is there who could be asked.
    #[error("nobody can be asked here whether to delete {what} ({}): --yes says so", format_bytes(*bytes))]
    NotAsked {
        /// What.
        what: String,
        /// Bytes on the disk.
        bytes: u64,
    },
    /// A worker cannot be used.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The cluster file cannot be used.
    #[error(transparent)]
    Addresses(#[from] cluster::addresses::Error),
    /// A device computes something else.
    #[error(
        "worker {worker:?} computes something else than this machine{}",
        .layer.map_or(String::new(), |layer| format!(", first in layer {layer}"))
    )]
    Differs {
        /// The worker.
        worker: String,
        /// The first layer that differs by itself.
        layer: Option<usize>,
    },
    /// A checkpoint does not hold what it should.
    #[error("{tensors} tensors of {path} are not those that the digests are of")]
    DigestsDiffer {
        /// How many.
        tensors: usize,
        /// The checkpoint.
        path: PathBuf,
    },
    /// Two checkpoints are not the same.
    #[error("the checkpoints differ in {tensors} tensors")]
    CheckpointsDiffer {
        /// How many.
        tensors: usize,
    },
    /// Trust cannot be had, or does not allow something.
    #[error(transparent)]
    Membership(#[from] crate::membership::Error),
    /// Nobody, or several, are called so.
    #[error(transparent)]
    WorkerName(#[from] cake_identity::NameError),
    /// A token has ended before so many have joined.
    #[error("the token has expired, and {missing} more could have joined with it")]
    NobodyJoined {
        /// How many.
        missing: usize,
    },
    /// Traces cannot be sent.
    #[error(transparent)]
    Telemetry(#[from] cake_telemetry::Error),
    /// A command about workers, where there are none.
    #[error("there is no worker to {action}: {why}")]
    NoWorkers {
        /// What was to be done with it.
        action: &'static str,
        /// Why there is none, and what to do.
        why: String,
    },
    /// The stages could not be started.
    #[error(transparent)]
    Open(#[from] pipeline::OpenError),
    /// Generation failed.
    #[error(transparent)]
    Generate(#[from] generate::Error),
    /// The scheduler does not take a request.
    #[error(transparent)]
    Refused(#[from] scheduler::Refusal),
    /// An answer broke off.
    #[error(transparent)]
    Answer(#[from] scheduler::Error),
    /// Arithmetic of the master's own part failed.
    #[error(transparent)]
    Engine(#[from] cake_engine::Error),
    /// The tokenizer or chat template cannot be used.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// The master's state directory cannot be used.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The hidden worker failed.
    #[error(transparent)]
    Worker(#[from] cake_worker::cli::Error),
    /// A running service says nothing of use.
    #[error(transparent)]
    Service(#[from] super::service::Error),
    /// The settings file cannot be used.
    #[error(transparent)]
    Settings(#[from] cake_settings::Error),
    /// The runtime could not start.
    #[error("cannot start: {source}")]
    Start {
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of the person's cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The address for clients cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// As given.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The address for clients is another program's.
    #[error(
        "cannot listen on {address}: {} listens there already; end it, or choose another port, as with {other}",
        holder.as_deref().unwrap_or("another program")
    )]
    InUse {
        /// As given.
        address: String,
        /// Which program, where that can be known.
        holder: Option<String>,
        /// The argument with an address beside it.
        other: String,
    },
    /// A system message for a model that has no place for one.
    #[error(
        "this model has no chat template, so there is no place for --system: \
         put that text into the prompt"
    )]
    NoSystem,
    /// A worker of the demo did not come up.
    #[error("the demo's worker {name:?} did not start: {reason}")]
    DemoWorker {
        /// Its name.
        name: String,
        /// What it said, or how it ended.
        reason: String,
    },
    /// Something that doctor checks is not well.
    #[error("{problems} of {checks} checks failed; each line above says what to do")]
    Unwell {
        /// Failed checks.
        problems: usize,
        /// Checks made.
        checks: usize,
    },
    /// Standard input gives nothing more.
    #[error("cannot read standard input: {source}")]
    Input {
        /// What the system said.
        source: std::io::Error,
    },
    /// Standard output takes nothing more.
    #[error("cannot write to standard output: {source}")]
    Output {
        /// What the system said.
        source: std::io::Error,
    },
    /// Whoever read standard output has seen enough. Ends a command, and is no failure.
    #[error("nobody reads standard output any more")]
    OutputClosed,
    /// A task of ours panicked.
    #[error("writing {path} ended unexpectedly")]
    Task {
        /// The file.
        path: PathBuf,
    },
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// A wrong argument.
    pub fn argument(
        argument: &'static str,
        found: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        WrongArgument::new(argument, found, expected).into()
    }

    /// Whether the command's report says it all: then there is no other JSON.
    pub fn is_reported(&self) -> bool {
        matches!(
            self,
            Self::Unwell { .. } | Self::DigestsDiffer { .. } | Self::CheckpointsDiffer { .. }
        )
    }

    /// 130 for an interruption, as shells have it; 1 otherwise.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Interrupted
            | Self::Hub(cake_hub::Error::Stopped { .. })
            | Self::Transform(
                cake_transform::Error::Stopped { .. } | cake_transform::Error::Interrupted,
            ) => ExitCode::from(130),
            _ => ExitCode::FAILURE,
        }
    }
}
