//! Grouped affine weights: the format and its codecs.

mod affine;
mod decode;
mod encode;
mod encoding;
mod float;
#[cfg(test)]
mod tests;

pub use affine::{Affine, PARAM_TYPES};
pub use decode::decode_rows;
pub use encode::{ENCODER_VERSION, EncodeError, Packed, encode_rows};
pub(crate) use encode::{Sink, encode_into};
pub use encoding::{Encoding, EncodingParseError};
pub use float::FloatType;
