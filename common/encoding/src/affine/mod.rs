//! Grouped affine weights, as MLX writes them.

mod closest;
mod codec;
mod decode;
mod encode;
pub(super) mod format;
mod lanes;

pub(super) use codec::AffineCodec;
pub use decode::decode_rows;
pub use encode::{ENCODER_VERSION, Packed, Sink, WEIGHED_VERSION, encode_into, encode_rows};
pub use format::Affine;
