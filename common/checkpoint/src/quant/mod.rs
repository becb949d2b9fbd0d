//! Grouped affine weights: the format and its codecs.

mod affine;

pub use affine::{Affine, PARAM_TYPES};
