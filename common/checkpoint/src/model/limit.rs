//! The largest value accepted of each size: well above any model, well below what would overflow.

/// Longest configuration accepted; the longest in use, with one entry per quantized module, are
/// below 1 MiB.
pub const MAX_CONFIG_BYTES: usize = 4 << 20;

pub(super) const VOCAB: usize = 1 << 24;
pub(super) const POSITIONS: usize = 1 << 28;
pub(super) const LAYERS: usize = 4096;
pub(super) const HIDDEN: usize = 1 << 18;
pub(super) const HEADS: usize = 1 << 14;
pub(super) const HEAD_DIM: usize = 1 << 14;
pub(super) const INNER: usize = 1 << 22;
/// Of all layers together: each has tensors of its own, and Kimi K2 has some 23,000.
pub(super) const EXPERTS: usize = 1 << 16;
/// Of one layer: no model has a thousand.
pub(super) const EXPERTS_OF_LAYER: usize = 1 << 12;
/// Numbers of recurrent state of one operation.
pub(super) const STATE: usize = 1 << 28;
/// Rows that a convolution is over; models have three or four.
pub(super) const TAPS: usize = 64;
pub(super) const BRANCHES: usize = 16;
/// Of hidden states.
pub(super) const STREAMS: usize = 16;
pub(super) const ROTATIONS: usize = 16;
pub(super) const END_TOKENS: usize = 64;
/// Bytes; the longest in use has some thirty.
pub(super) const NAME: usize = 128;
/// Base of the frequencies of a rotation.
pub(super) const THETA: f64 = 1e15;
/// What anything else is multiplied with or divided by.
pub(super) const FACTOR: f64 = 1e9;
