//! Facts about a plan and its push, for whoever tells people of them.
use std::path::PathBuf;

use cake_checkpoint::{KvDtype, ModelSpec, Op};
use cake_engine::KvError;
use serde::{Serialize, Serializer};

use crate::distributor::Pushed;
use crate::planner::{Idle, Plan};
use crate::sizing::Promise;

/// What is to be expected of a plan.
#[derive(Debug)]
pub(crate) struct Outlook<'a> {
    /// Who holds what.
    pub plan: &'a Plan,
    /// Who is there and has no layers, and why.
    pub idle: &'a [Idle],
    /// What weights are turned into, if they are.
    pub encoding: Option<String>,
    /// Stored bytes of embedding, final norm and head, which stay with the master.
    pub ends_bytes: u64,
    /// Tokens of context planned for.
    pub context: usize,
    /// Sequences planned for.
    pub parallel: usize,
    /// How keys and values are kept, where there are such.
    pub kv: Option<KvFacts>,
    /// Layers of the model, if what the plan calls layers are parts of these.
    pub parts_of: Option<usize>,
    /// What each worker lacks, if it lacks something, in chain order.
    pub pushes: Vec<PushAhead<'a>>,
}

/// How keys and values are kept, what that takes, and what it loses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct KvFacts {
    /// Element type.
    #[serde(serialize_with = "by_name")]
    pub dtype: KvDtype,
    /// Bytes of one position in all layers.
    pub bytes_per_token: u64,
    /// Bytes of all that is promised, in whole blocks.
    pub bytes: u64,
    /// The same in f16.
    pub bytes_in_f16: u64,
    /// Numbers of a head, in the first layer that keeps such.
    pub head_dim: usize,
    /// The most that a number is off, if numbers are rounded ([`KvError::most`]).
    pub most_error: Option<f64>,
    /// What heads are off, measured ([`KvError::typical`]).
    pub typical_error: Option<f64>,
}

impl KvFacts {
    /// Those of a promise; `None` if no layer keeps keys and values.
    pub(crate) fn of(model: &ModelSpec, promise: &Promise) -> Option<Self> {
        let head_dim = |op: &Op| match op {
            Op::Attention(it) => Some(it.head_dim),
            Op::Latent(it) => Some(it.kept_dim()),
            _ => None,
        };
        let Promise { context, parallel, kv, .. } = *promise;
        let head_dim = model.layers.iter().flat_map(|layer| layer.ops()).find_map(head_dim)?;
        let bytes = |kv| cake_engine::kv_bytes(&model.layers, context, parallel, kv);
        let error: Option<KvError> = cake_engine::kv_error(kv, head_dim);
        Some(Self {
            dtype: kv,
            bytes_per_token: model.kv_bytes_per_token(kv),
            bytes: bytes(kv),
            bytes_in_f16: bytes(KvDtype::F16),
            head_dim,
            most_error: error.map(|error| error.most),
            typical_error: error.map(|error| error.typical),
        })
    }
}

fn by_name<S: Serializer>(kv: &KvDtype, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(kv)
}

/// What one worker lacks.
#[derive(Debug)]
pub(crate) struct PushAhead<'a> {
    /// Its name.
    pub device: &'a str,
    /// Blob bytes that it is not known to hold.
    pub missing_bytes: u64,
    /// How long sending them may take, if that is known.
    pub seconds: Option<f64>,
    /// Bytes of disk free there.
    pub free_disk_bytes: u64,
}

/// How a push went, for reports.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PushReport {
    /// One for each worker of the plan.
    pub workers: Vec<Pushed>,
    /// Blob bytes sent.
    pub pushed_bytes: u64,
    /// Blob bytes that were there already.
    pub reused_bytes: u64,
    /// Wall time.
    pub seconds: f64,
}

impl PushReport {
    /// Counts a second push, of blobs that the first one took for whole.
    pub(crate) fn repair(&mut self, second: &Self) {
        self.pushed_bytes += second.pushed_bytes;
        self.reused_bytes = self.reused_bytes.saturating_sub(second.pushed_bytes);
        self.seconds += second.seconds;
        for (worker, again) in self.workers.iter_mut().zip(&second.workers) {
            worker.pushed_bytes += again.pushed_bytes;
            worker.reused_bytes = worker.reused_bytes.saturating_sub(again.pushed_bytes);
        }
    }
}

/// Copies of blobs for losses that may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    /// Bytes pushed for them now.
    pub pushed_bytes: u64,
    /// Workers whose loss would push nothing.
    pub covered: usize,
    /// Workers with layers.
    pub of: usize,
}

/// What people should know of whom a plan is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A member that joined is not used; who it is, and why.
    Without(String),
    /// There are no workers, though nobody asked for that.
    Alone {
        /// Whether workers could join this master.
        has_authority: bool,
    },
    /// Of so many of the model's files only the headers are there.
    Hollow {
        /// One of them.
        file: PathBuf,
        /// How many.
        count: usize,
    },
}
