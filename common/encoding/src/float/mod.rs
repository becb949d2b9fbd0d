//! Plain numbers.

mod codec;
pub(super) mod element;

pub(super) use codec::FloatCodec;
pub use element::FloatType;
