//! Affine matrices and at most three rows, with AVX512-VNNI, which multiplies four pairs of bytes per lane: weights are read a
//! line of an output at a time, and the sums are transposed (`direct`). What tiles share with that is in `task`.

pub(crate) mod direct;
pub(crate) mod task;
