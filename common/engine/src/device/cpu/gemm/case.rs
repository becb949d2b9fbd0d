//! What decides which kernel computes a GEMM or GEMV.

use super::weight::WeightKind;
use crate::device::cpu::isa::instructions::Isa;
use crate::options::{Numerics, Precision};

/// A kind of GEMM or GEMV, on a kind of processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) isa: Isa,
    /// How the weights are stored.
    pub(crate) weight: WeightKind,
    /// Whether the rows of activations are of prefill or of decode.
    pub(crate) rows: RowClass,
    pub(crate) numerics: Numerics,
}

/// What a row of activations is. Its arithmetic depends on that, never on how many rows travel with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowClass {
    /// A row of prefill: of a prompt, and it may be rounded to this precision.
    Prefill(Precision),
    /// A row of decode: of a generated token; and every row that the head sees.
    Decode,
}
