//! What can go wrong in the engine, with the facts to act on.

use cake_checkpoint::{Dtype, Encoding, LayerRange};

/// Why a stage, an embedding or a head could not be built or run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum Error {
    /// The plan, the blobs and the configuration do not belong together.
    #[error("layers {layers} are not in a model of {num_layers} layers")]
    NoSuchLayers { layers: LayerRange, num_layers: usize },
    #[error("tensor {name:?} is missing")]
    MissingTensor { name: String },
    #[error("tensor {name:?} has shape {found:?}, expected {expected:?}")]
    WrongShape { name: String, expected: Vec<u64>, found: Vec<u64> },
    #[error("tensor {name:?} is stored as {dtype}, which is not F32, F16 or BF16")]
    UnsupportedDtype { name: String, dtype: Dtype },
    #[error("tensor {name:?} has {found} bytes, expected {expected}")]
    WrongLength { name: String, expected: u64, found: u64 },

    #[error("tensor {name:?} has {found} rows, expected {expected}")]
    WrongRows { name: String, expected: usize, found: usize },
    #[error("tensor {name:?}: rows of {columns} cannot be stored as {encoding}")]
    NotWholeGroups { name: String, columns: usize, encoding: Encoding },
    #[error("nothing says how matrix {name:?} is stored")]
    NoEncoding { name: String },
    #[error("matrix {name:?} is stored as {encoding}, which has {expected} parts, found {found}")]
    WrongParts { name: String, encoding: Encoding, expected: usize, found: usize },

    /// What was computed with a file's weights is not right.
    #[error(transparent)]
    Damaged(#[from] cake_checkpoint::DamagedFile),

    /// The system refused memory for keys and values.
    #[error("cannot reserve {bytes} bytes for the KV cache: {source}")]
    KvMemory { bytes: u64, source: std::io::Error },
    #[error("a KV pool of {blocks} blocks of {block_positions} positions does not fit in memory")]
    KvTooLarge { blocks: usize, block_positions: usize },
    #[error("cannot reserve {slots} slots of {numbers} numbers for the state of a recurrent layer")]
    StateMemory { slots: usize, numbers: usize },
    #[error("no memory for {bytes} bytes of weights in f32: {source}")]
    WeightMemory { bytes: u64, source: std::io::Error },
    #[error("cannot start {threads} threads: {source}")]
    Threads { threads: usize, source: std::io::Error },
    #[error("{found:?} is no numerics; write exact, fast or int8")]
    UnknownNumerics { found: String },
    #[error(
        "this program was built without candle's operations; build it with the feature candle of cake-engine"
    )]
    NoCandle,
    #[error("CAKE_PROBE_MS is {found:?}, expected a whole number of milliseconds, 1 to {most}")]
    ProbeTime { found: String, most: u64 },
    #[error("CAKE_DEVICE is {found:?}, expected {expected}")]
    UnknownDevice { found: String, expected: String },

    #[error(
        "CAKE_CPU is {found:?}, expected \"portable\", \"avx2\", \"avx512\", \"amx\" or \"neon\", or nothing"
    )]
    UnknownCpu { found: String },
    #[error("CAKE_CPU is {wanted:?}, which is not available on this processor")]
    UnavailableCpu { wanted: String },

    /// The step breaks the contract between master and stage.
    #[error("hidden has {found} values, expected {rows} rows of {width}")]
    WrongHidden { rows: usize, width: usize, found: usize },
    #[error("rows bring nothing for layer {layer} beside hidden states")]
    NothingGiven { layer: usize },
    #[error("layer {layer} attends to keys of layer {keys_of}, which is not in the same stage")]
    KeysElsewhere { layer: usize, keys_of: usize },
    #[error("sequence {sequence} names block {block}, the pool has {kv_blocks}")]
    NoSuchBlock { sequence: u64, block: u32, kv_blocks: usize },
    #[error("sequence {sequence} needs {need} blocks for {positions} positions, has {have}")]
    TooFewBlocks { sequence: u64, positions: usize, need: usize, have: usize },
    #[error(
        "sequence {sequence} at position {position} cannot take {rows} more rows: \
         the context ends at {max_positions}"
    )]
    ContextFull { sequence: u64, position: usize, rows: usize, max_positions: usize },
    #[error("sequence {sequence} does not say where the state of recurrent layers is")]
    NoState { sequence: u64 },
    #[error("sequence {sequence} names slot {slot} for its state, there are {state_slots}")]
    NoSuchSlot { sequence: u64, slot: u32, state_slots: usize },
    #[error(
        "sequence {sequence} goes on at position {position} from the state in {from:?}: the first rows have none before \
         them, and all others have one"
    )]
    WrongState { sequence: u64, position: usize, from: Option<u32> },
    #[error("sequence {sequence} needs slot {slot}, which an earlier part of the step overwrites")]
    SlotInUse { sequence: u64, slot: u32 },
    #[error("token {token} is not in a vocabulary of {vocab_size}")]
    NoSuchToken { token: u32, vocab_size: usize },

    #[error("a probe of one layer needs at least {need} bytes, may use {max_bytes}")]
    ProbeMemory { need: u64, max_bytes: u64 },

    /// Blocks and devices do not belong together, which is a bug here: whoever makes a step checks it before.
    #[error("activations have {found} values, expected {rows} rows of {inputs}")]
    WrongActivations { rows: usize, inputs: usize, found: usize },
    #[error("{found} values are not whole rows of a norm of {width}")]
    NotWholeRows { width: usize, found: usize },
    #[error("a layer has rotation {rotation}, the step has {rotations}")]
    NoSuchRotation { rotation: usize, rotations: usize },
    /// A device could not do what it was asked for: it is not there, or has no memory.
    #[error("the device failed: {0}")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
}
