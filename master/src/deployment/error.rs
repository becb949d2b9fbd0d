//! Why a model cannot be planned, pushed or started.
use std::path::PathBuf;
use std::time::Duration;

use cake_proto::limits;

use crate::{calibration, cluster, distributor, membership, pipeline, place, planner, state};

/// What somebody asked for makes no sense here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{argument} is {found}, expected {expected}")]
pub struct WrongArgument {
    /// The argument, as it is called on the command line.
    pub argument: &'static str,
    /// As given.
    pub found: String,
    /// What would be accepted.
    pub expected: String,
}

impl WrongArgument {
    /// What is wrong with `argument`.
    pub fn new(
        argument: &'static str,
        found: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self { argument, found: found.to_string(), expected: expected.into() }
    }
}

/// Why there is no deployment, in one sentence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense for this model and these workers.
    #[error(transparent)]
    Argument(#[from] WrongArgument),
    /// More KV cache than the steps between stages can name.
    #[error(
        "--context {context} with --parallel {parallel} makes {blocks} KV blocks, at most {} can be \
         named: give a smaller --context or --parallel",
        limits::BLOCKS
    )]
    TooManyBlocks {
        /// Tokens of each sequence.
        context: usize,
        /// Sequences.
        parallel: usize,
        /// Blocks for all of them.
        blocks: usize,
    },
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] cake_checkpoint::Error),
    /// A text says nothing of where errors count.
    #[error(transparent)]
    Calibration(#[from] calibration::Error),
    /// There is nothing to compute with.
    #[error(
        "{} holds a header and no weights{}: this model can be planned (`cake-master plan`), and cannot run",
        .file.display(),
        if *count > 1 { format!(", as {} other files of it", count - 1) } else { String::new() }
    )]
    Hollow {
        /// One of the files.
        file: PathBuf,
        /// How many there are.
        count: usize,
    },
    /// A worker cannot be used.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// No plan fits.
    #[error(transparent)]
    Plan(#[from] planner::Refusal),
    /// A plan would fit if no other model was loaded.
    #[error("beside the models that are loaded {0}")]
    Crowded(planner::Refusal),
    /// Other models have taken room since the plan was made.
    #[error(transparent)]
    Shared(#[from] cake_stage::Lacks),
    /// No plan fits without members that could not be used.
    #[error("{refusal}\nwithout {}", .missing.join("; without "))]
    PlanWithout {
        /// Why nothing fits those that are there.
        refusal: planner::Refusal,
        /// Who is not, and why.
        missing: Vec<String>,
    },
    /// Nothing fits without a member that was lost in quick succession.
    #[error(
        "{worker:?}, which is needed, was lost several times in quick succession: it is given layers again after a \
         pause"
    )]
    LostAgain {
        /// The worker.
        worker: String,
        /// Until then: not in the sentence, which would be another one each time.
        wait: Duration,
    },
    /// Blobs could not be pushed.
    #[error(transparent)]
    Push(#[from] distributor::Error),
    /// The stages could not be started.
    #[error(transparent)]
    Open(#[from] pipeline::OpenError),
    /// Arithmetic of the master's own part failed.
    #[error(transparent)]
    Engine(#[from] cake_engine::Error),
    /// The master's own weights cannot be where they shall lie.
    #[error(transparent)]
    Place(#[from] place::Error),
    /// The master's state directory cannot be used.
    #[error(transparent)]
    State(#[from] state::Error),
    /// Trust cannot be had.
    #[error(transparent)]
    Membership(#[from] membership::Error),
    /// The door cannot be opened where it was asked for.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// As given.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
}
