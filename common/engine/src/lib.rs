//! Tensor math: decoder layers on a device, from stored weights to hidden states and tokens.
//!
//! Start at [`Stage`], a range of decoder layers with its KV pool and threads. [`Embedding`]
//! comes before the first stage, [`Head`] and [`sample`] after the last; [`Placement`] puts
//! weights where they are read fastest. Inside, `block` is the mathematics of a layer, once over `device::Device`;
//! `device::cpu` is where the time goes, and `device::candle` the reference.
//!
//! Invariants:
//! - No network and no runtime; no result depends on a clock ([`probe_layer`], [`probe_head`] and [`Placement`] measure by
//!   one, and threads wait by one).
//! - Only `device::candle` sees candle; nothing of it is in the public types.
//! - Arithmetic is f32, but for products as [`Numerics`] says. Weights stay as they are stored on every device: kernels
//!   dequantize (widen) them, candle a strip of rows at a time.
//! - With [`DeviceKind::Cpu`], every row of a result depends on that row and its past alone, never on how
//!   many rows, chunks, stages or threads there are: to the bit.
//! - Stages keep no state of sequences but the blocks that the master numbers.
//! - Unsafe code is in `device::cpu` (instructions, results that are not set first, threads, pages) and in
//!   `reuse`, the allocator.

mod batch;
mod block;
mod device;
mod embedding;
mod error;
mod first;
#[cfg(test)]
mod golden_tests;
mod head;
mod loader;
mod matrix;
mod memory;
mod options;
mod probe;
mod random;
mod reuse;
mod rope;
mod row;
mod sampling;
mod stage;
mod step;
mod streams;
mod tally;
#[cfg(test)]
mod testing;

pub use batch::{Batch, BatchItem, StateSlots};
pub use device::choice::own_devices;
pub use device::cpu::agreement::{MatrixKinds, arithmetic, arithmetic_of, same_bits};
pub use device::cpu::isa::choice::cpu_tier;
pub use device::cpu::placement;
pub use device::cpu::placement::{Placement, Tuning, Weights, set_tuning, tuning};
pub use device::cpu::pool::processors::default_threads;
pub use device::kv_codes::{KvError, kv_error};
pub use embedding::Embedding;
pub use error::Error;
pub use head::Head;
pub use memory::{
    block_bytes, blocks_for, copied_bytes, kv_bytes, resident_bytes, scratch_bytes, state_bytes,
};
pub use options::{BLOCK_POSITIONS, DeviceKind, DeviceMemory, EngineOptions, Numerics};
pub use probe::{HeadProbe, LayerProbe, PROBED_BYTES, probe_head, probe_layer};
pub use reuse::{Reuse, give_back, keep_little, share_addresses};
pub use sampling::{Sampled, SamplingOptions, logprobs, sample};
pub use stage::Stage;
pub use tally::Tally;
