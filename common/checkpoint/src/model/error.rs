//! Why a configuration or a specification is refused.

use super::limit::{self, MAX_CONFIG_BYTES};

/// Why a configuration is refused. Each sentence names the field.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum ConfigError {
    #[error("configuration of {bytes} bytes is longer than {MAX_CONFIG_BYTES}")]
    TooLarge { bytes: usize },
    #[error("configuration is not valid JSON: {0}")]
    Json(serde_json::Error),
    #[error("configuration is {found}, expected an object")]
    NotAnObject { found: &'static str },
    #[error("{field} is missing")]
    Missing { field: String },
    #[error("{field} is {found}, expected {expected}")]
    WrongType { field: String, expected: &'static str, found: String },
    #[error("{field} is {found}, expected {least} to {most}")]
    OutOfRange { field: String, found: String, least: String, most: String },
    #[error("neither architectures nor model_type is given")]
    NoArchitecture,
    #[error("{field} {found:?} is not supported; supported are {supported}")]
    UnsupportedArchitecture { field: &'static str, found: String, supported: String },
    #[error("architectures says {architecture:?} but model_type says {model_type:?}")]
    ConflictingArchitecture { architecture: String, model_type: String },
    #[error("num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")]
    HeadsNotDivisible { heads: usize, kv_heads: usize },
    #[error(
        "hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}, and head_dim is not given"
    )]
    HiddenNotDivisible { hidden_size: usize, heads: usize },
    #[error(
        "the rotating part of a head is {rotary_dim} (head_dim {head_dim} × partial_rotary_factor {factor}); it must be even, positive and at most head_dim"
    )]
    RotaryDim { rotary_dim: usize, head_dim: usize, factor: f64 },
    #[error("{field} has {found} numbers, but {expected} pairs of a head rotate")]
    RotationFactors { field: String, found: usize, expected: usize },
    #[error(
        "rope type {rope_type:?} in {field} is not supported; supported are default, linear, dynamic, llama3, yarn and longrope"
    )]
    UnsupportedRope { field: &'static str, rope_type: String },
    #[error("layer_types has {found} entries, num_hidden_layers is {expected}")]
    LayerTypesLength { expected: usize, found: usize },
    #[error("layer_types[{layer}] {found:?} is not supported for {architecture}")]
    UnsupportedLayerType { layer: usize, found: String, architecture: &'static str },
    #[error("layer {layer} is to see a window (sliding_attention), but there is none: {reason}")]
    NoWindow { layer: usize, reason: &'static str },
    #[error("{field} {found} is not supported; README.md says in which ways weights may be packed")]
    UnsupportedQuantization { field: String, found: String },
    #[error("{field} {found} is not supported for {architecture}")]
    Unsupported { field: String, found: String, architecture: &'static str },
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl ConfigError {
    /// The same of a field inside the object `outer`.
    pub(super) fn inside(mut self, outer: &str) -> Self {
        if let Self::Missing { field }
        | Self::WrongType { field, .. }
        | Self::OutOfRange { field, .. }
        | Self::Unsupported { field, .. } = &mut self
        {
            *field = format!("{outer}.{field}");
        }
        self
    }
}

/// Why a specification is refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum SpecError {
    #[error("model specification of {bytes} bytes is longer than {most}")]
    TooLarge { bytes: usize, most: usize },
    #[error("model specification is not what it should be: {0}")]
    Json(serde_json::Error),
    #[error("this worker reads model specifications of version {reads}, found {found}")]
    Version { reads: u64, found: u64 },
    #[error("model specification: {0}")]
    Model(Fault),
    #[error("model specification, layer {layer}: {fault}")]
    Layer { layer: usize, fault: Fault },
}

/// What is wrong with a part of a specification.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum Fault {
    #[error("{what} is {found}, expected {least} to {most}")]
    Size { what: &'static str, found: usize, least: usize, most: usize },
    #[error("{what} is {found}, expected a number from {least:e} to {most:e}")]
    Number { what: &'static str, found: f64, least: f64, most: f64 },
    #[error("{what} is {found}, expected {expected}")]
    Width { what: &'static str, found: usize, expected: usize },
    #[error("heads {heads} is not a multiple of kv_heads {kv_heads}")]
    HeadsNotDivisible { heads: usize, kv_heads: usize },
    #[error("an activation with numbers of its own is where it cannot be, or has none")]
    ActivationNumbers,
    #[error("a gate that is clamped is where there is none, or has another activation than SiLU")]
    ClampedGate,
    #[error("scores of those chosen alone cannot be corrected, grouped or divided by their sum")]
    ScoresOfChosen,
    #[error("keys of layer {keys_of} are none that it could attend to")]
    KeysOf { keys_of: usize },
    #[error("what is added to other streams is not there, or cannot be that")]
    OtherStreams,
    #[error("gates are bounded where there are none")]
    NoGate,
    #[error("the norm of a state space has a bias")]
    NormBias,
    #[error("a sum, or an operation with norms of its own, is where it cannot be")]
    SumOfSums,
    #[error("experts from {start} on do not follow those of the layer before")]
    SliceDoesNotFollow { start: usize },
    #[error(
        "a slice of experts, of which later ones are elsewhere, has something beside it that cannot be there"
    )]
    SliceBesideOthers,
    #[error("the last layer has a slice of experts, and nothing has the others")]
    SliceWithoutNext,
    #[error("numbers of layers do not follow each other, or are not those of parts of one layer")]
    LayerNumbers,
    #[error("rotation is {rotation}, there are {rotations}")]
    NoSuchRotation { rotation: usize, rotations: usize },
    #[error("{dim} numbers of a head rotate; they must be an even number, at most {most}")]
    RotatingPart { dim: usize, most: usize },
    #[error("{what} {name:?} must have 1 to {most} bytes and no control characters", most = limit::NAME)]
    Name { what: &'static str, name: String },
    #[error("tensor {name:?} would be both {first:?} and {second:?}")]
    TwoShapes { name: String, first: Vec<u64>, second: Vec<u64> },
}
