//! The GEMV, and the GEMM of at most three rows, with affine matrices, by AVX512-VNNI, which multiplies four pairs of
//! bytes per lane: weights are read a line of an output at a time, and the accumulators are transposed (`direct`). What
//! tiles share with that is in `task`.

pub(crate) mod direct;
mod sums;
pub(crate) mod task;
