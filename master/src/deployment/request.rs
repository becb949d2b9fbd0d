//! What is asked of a plan: what to promise, and who may hold what.
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;

use cake_checkpoint::{Checkpoint, KvDtype, Scheme, SchemeParseError};
use cake_engine::Numerics;
use cake_proto::{WireFormat, limits};

use super::{Error, WrongArgument};
use crate::calibration::Sample;
use crate::chunk::first_bound;
use crate::place::OwnWeights;
use crate::planner::Pin;
use crate::sizing::{DEFAULT_CONTEXT, Promise};

/// A request for a plan, checked as far as that can be done without a model; the default is what is in force where
/// nothing is said.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlanRequest {
    /// Longest sequence to make room for (tokens); `None`: what the model has, at most [`DEFAULT_CONTEXT`], and no more than
    /// what its rotations of short sequences are for.
    pub context: Option<usize>,
    /// Whether all this is asked of several models: one with fewer positions than `context` gets all that it has, and one whose
    /// weights are packed already stays as it is.
    pub of_several: bool,
    /// So many of the longest sequences at once; `None`: one.
    pub parallel: Option<NonZeroUsize>,
    /// Element type of the KV cache; `None`: as the numerics suggest.
    pub kv: Option<KvDtype>,
    /// What weights may be turned into on their way.
    pub encode: Encode,
    /// A text that says where errors of what weights are turned into count.
    pub calibrate: Option<Arc<Sample>>,
    /// Arithmetic.
    pub numerics: Numerics,
    /// Prompt rows in one step; `None`: as pays most.
    pub chunk: Option<NonZeroUsize>,
    /// How activations travel.
    pub wire: WireFormat,
    /// Bytes that the master may use for layers; `None`: what is free without workers, else nothing.
    pub local_memory: Option<u64>,
    /// Where the master's own weights lie; models that are loaded one after the other share what was measured of that.
    pub own_weights: Arc<OwnWeights>,
    /// Workers that get exactly these layers.
    pub pins: Vec<Pin>,
    /// Slices of each layer's experts, pins being of these parts of layers then; `None`: as few as it takes.
    pub slices: Option<NonZeroUsize>,
    /// Names of workers that are left out.
    pub exclude: Vec<String>,
    /// Whether workers are timed again that were timed before.
    pub reprobe: bool,
    /// Whether somebody waits: who was timed before is not timed again, and of plans that are about as fast one is taken with
    /// as few bytes to push as may be.
    pub hurry: bool,
    /// Whether somebody is told what to expect, so that the master is timed, too, also where nobody competes with it.
    pub predict: bool,
    /// Whether it is enough to know roughly how fast the master's own part is, as it computes nothing: it stays small.
    pub ends_roughly: bool,
    /// Whether it is enough to know what a model needs: headers without weights do, as nothing is pushed.
    pub headers_suffice: bool,
    /// Whether it is asked what each layer loses by each encoding.
    pub why: bool,
    /// Workers that do not exist, by name, with the bytes that they would offer.
    pub what_if: Vec<(String, u64)>,
}

impl PlanRequest {
    /// What to make room for with this model; without a `chunk`, with as many prompt rows in one step as are tried
    /// first over workers.
    ///
    /// # Errors
    /// A context longer than the model's, unless it is the most that is asked for, or more KV blocks than steps can name.
    pub(crate) fn promise(&self, checkpoint: &Checkpoint) -> Result<Promise, Error> {
        let most = checkpoint.config.max_position_embeddings;
        let context = match self.context {
            Some(context) if self.of_several => context.min(most),
            Some(context) => context,
            None => {
                let short = checkpoint.config.short_context().unwrap_or(most);
                most.min(DEFAULT_CONTEXT).min(short)
            }
        };
        if !(1..=most).contains(&context) {
            return Err(WrongArgument::new("--context", context, format!("1 to {most}")).into());
        }
        let parallel = self.parallel.map_or(1, NonZeroUsize::get);
        let blocks = cake_engine::blocks_for(context).saturating_mul(parallel);
        if blocks > limits::BLOCKS {
            return Err(Error::TooManyBlocks { context, parallel, blocks });
        }
        let is_recurrent = checkpoint.config.layers.iter().any(|layer| layer.kept().state > 0);
        Ok(Promise {
            context,
            parallel,
            state_slots: if is_recurrent { Promise::state_slots_for(parallel) } else { 0 },
            kv: self.kv.unwrap_or(match self.numerics {
                Numerics::Exact => KvDtype::F32,
                Numerics::Fast | Numerics::Int8 => KvDtype::F16,
            }),
            numerics: self.numerics,
            chunk: self.chunk.map_or_else(|| first_bound(context), NonZeroUsize::get),
            wire: self.wire,
        })
    }
}

/// What `--encode` allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encode(Vec<Scheme>);

impl Encode {
    /// Whatever fits: but for numbers of 4 bits, which are further off than codes of as many and hardly smaller.
    pub(crate) fn auto() -> Self {
        Self(Scheme::ALL.into_iter().filter(|it| *it != Scheme::Mxfp4).collect())
    }

    /// What may be used, widest first; never empty.
    pub(crate) fn tried(&self) -> &[Scheme] {
        &self.0
    }

    /// Whether any of them turns weights into codes.
    pub(crate) fn is_codes(&self) -> bool {
        self.0.iter().any(|scheme| scheme.is_codes())
    }

    /// Whether it matters to any of them which errors count.
    pub(crate) fn weighs_errors(&self) -> bool {
        self.0.iter().any(|scheme| scheme.weighs_errors())
    }

    /// Whether layers may be turned into different ones of them.
    pub(crate) fn is_open(&self) -> bool {
        self.0.len() > 1
    }
}

impl Default for Encode {
    fn default() -> Self {
        Self(vec![Scheme::AsStored])
    }
}

impl FromStr for Encode {
    type Err = SchemeParseError;

    fn from_str(text: &str) -> Result<Self, SchemeParseError> {
        match text {
            "auto" => Ok(Self::auto()),
            _ => Ok(Self(vec![text.parse()?])),
        }
    }
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::RopeScaling;

    use super::*;

    #[test]
    fn a_promise_of_more_cache_than_steps_can_name_is_refused() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/demo-model");
        let mut checkpoint = Checkpoint::open(model).expect("the demo's model");
        checkpoint.config.max_position_embeddings = 1 << 20;
        let promise = |context, parallel| {
            let (context, parallel) = (Some(context), NonZeroUsize::new(parallel));
            PlanRequest { context, parallel, ..PlanRequest::default() }.promise(&checkpoint)
        };
        let most = limits::BLOCKS * cake_engine::BLOCK_POSITIONS;
        assert!(promise(1 << 20, most >> 20).is_ok());
        let said = promise(1 << 20, (most >> 20) + 1).expect_err("refused").to_string();
        assert!(said.contains("--context") && said.contains("--parallel"), "{said}");
    }

    #[test]
    fn a_context_has_the_rotations_of_short_sequences_unless_more_is_asked_for() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/phi3-longrope");
        let mut checkpoint = Checkpoint::open(model).expect("a golden model");
        let RopeScaling::LongRope { original_max_position, .. } =
            &mut checkpoint.config.rotations[0].rope.scaling
        else {
            panic!("it has such a rotation")
        };
        *original_max_position = 64.0;
        let context = |context| {
            let request = PlanRequest { context, ..PlanRequest::default() };
            request.promise(&checkpoint).expect("a promise").context
        };
        assert_eq!((context(None), context(Some(65))), (64, 65));
    }
}
