//! What is said of one architecture.

use serde_json::{Map, Value};

use super::keys::{self, Keys};
use crate::container::gguf::error::GgufError;
use crate::container::gguf::value::Metadata;
use crate::model::ModelSpec;

/// Fields of a configuration.
pub(crate) type Fields = Map<String, Value>;

/// Whether a file has a tensor of that name.
pub(crate) type There<'a> = dyn Fn(&str) -> bool + 'a;

/// One architecture.
#[derive(Debug)]
pub(crate) struct Arch {
    /// As in `general.architecture`.
    pub(crate) name: &'static str,
    /// Whether layers have experts.
    pub(crate) experts: bool,
    /// As in `architectures` of a configuration,
    pub(crate) class: &'static str,
    /// and as `model_type`.
    pub(crate) model_type: &'static str,
    /// Whether the rows of queries and keys lie in pairs: those of a head's first half and of its second in turn.
    pub(crate) pairs: bool,
    /// Whether a part of a head may rotate.
    pub(crate) partial: bool,
    /// What `yarn_log_multiplier` says of the two scales of a stretched context, `mscale` and `mscale_all_dim`; `None` if it may
    /// not be said.
    pub(super) stretch: Option<fn(f64) -> [f64; 2]>,
    /// What it calls otherwise than most: in layers,
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// and outside them.
    pub(crate) outer: &'static [(&'static str, &'static str)],
    /// Reads how many heads of keys there are, in which layers, and how wide heads are.
    pub(super) heads: fn(&mut Keys<'_>) -> Result<(), GgufError>,
    /// Tensors of a layer that have no dimension of 1 where the Hub's have one, and which that is.
    pub(crate) ones: &'static [(&'static str, usize)],
    /// What it says beside what all do, given which tensors are there.
    pub(crate) more: fn(&Keys<'_>, &There<'_>, &mut Fields) -> Result<(), GgufError>,
    /// Says of the model that a configuration describes what files have in another form than the Hub's.
    pub(crate) form: fn(&There<'_>, &mut ModelSpec),
}

/// What most have in common.
pub(super) const PLAIN: Arch = Arch {
    name: "",
    experts: false,
    class: "",
    model_type: "",
    pairs: false,
    partial: false,
    stretch: None,
    names: &[],
    ones: &[],
    outer: &[],
    heads: keys::alike,
    more: |_, _, _| Ok(()),
    form: |_, _| (),
};

impl Arch {
    /// What a file says under the keys of the architecture.
    ///
    /// # Errors
    /// As [`Keys::of`].
    pub(crate) fn keys<'a>(&self, metadata: &'a Metadata) -> Result<Keys<'a>, GgufError> {
        Keys::of(self.name, self.partial, self.heads, metadata)
    }
}
