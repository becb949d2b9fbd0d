//! What a model is, said once: [`ModelSpec`], read from `config.json` by the family that it names (`family/`).
//!
//! Catalog, loader, probe, memory formulae and the planner's costs derive from it. Whatever is not supported is refused
//! here, naming the field: nothing is loaded as something else.
//!
//! Start with `whole` (the model) and `spec` (a layer; `parts` is what its operations are made of, and `latent`, `network`, `experts` and `recurrent` are some of these; `given` is what travels beside hidden states). `parse` makes them of a configuration, `wire` of what a master sent;
//! `check` is what holds of both, and `naming` the names that some files have otherwise.

mod attention;
mod check;
mod error;
mod experts;
mod family;
mod fields;
mod folded;
mod given;
mod harmless;
mod kv;
mod latent;
mod latents_apart;
mod limit;
mod names;
mod naming;
mod network;
mod packed;
mod parse;
mod parts;
mod quantization;
mod recurrent;
mod required;
mod rope;
mod rotation;
mod slices;
mod spec;
mod stacked;
mod streams;
#[cfg(test)]
mod tests;
mod whole;
mod window;
mod wire;

pub use error::{ConfigError, Fault, SpecError};
pub use family::{FAMILIES, Family};
pub use given::{GivenSpec, WithGivenSpec};
pub use kv::{KvDtype, KvDtypeError};
pub use latent::{LatentKeys, LatentQueries, LatentSpec};
pub use limit::MAX_CONFIG_BYTES;
pub use names::Role;
pub(crate) use names::{BIAS, Names};
pub use parts::same_vector;
pub use quantization::Quantization;
pub use recurrent::{ConvolutionSpec, DeltaInputs, DeltaSpec, MambaSpec, ShortConvolutionSpec};
pub(crate) use required::Required;
pub use rotation::{Rope, RopeScaling, RotaryPairs, RotationSpec};
pub use spec::{
    Activation, AttentionSpec, Branch, ClampedGate, CorrectionSpec, ExpertProjectionsSpec,
    ExpertRange, ExpertsSpec, GateUp, Joined, Kept, LayerSpec, LinearSpec, LowRankSpec, MlpSpec,
    Name, NormKind, NormSpec, NormedSpec, Op, OutputGate, PositionScale, RouterGroups, RouterNorm,
    RouterScores, RouterSpec, TensorKind, TensorSpec,
};
pub use stacked::{ExpertSlice, unstack};
pub use streams::{LayerStreamsSpec, StreamsSpec};
pub use whole::{Beginning, LogitsSpec, ModelSpec};
pub use wire::MAX_SPEC_BYTES;
