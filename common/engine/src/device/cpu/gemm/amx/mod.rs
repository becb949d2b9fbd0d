//! GEMM and GEMV on processors with tile registers (AMX), which multiply 16 × 16 blocks.
//!
//! Weights are the left operand, 16 outputs of one tile each, which is how they lie in memory:
//! nothing is transposed but the activations, once for all outputs. A block of the result has its
//! outputs in rows. Beside many rows of activations, weights of some outputs are packed next to each
//! other into a cache, where all rows pass over them, while those before are multiplied.
//!
//! An activation of 16 bits is two planes of 8 significant bits each (`float`) or of 8 bits (`affine`),
//! so that the product is as good as one of f32 to within a few 2^-17 of its terms; one plane of
//! `float` leaves a few 2^-9.

pub(crate) mod ahead;
pub(crate) mod finish;
pub(crate) mod float;
