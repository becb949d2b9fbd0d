//! How weights are stored: the tag that says so ([`Encoding`]), and one file or folder per encoding, which is all that is
//! known of it ([`Codec`]).
//!
//! Start at [`Encoding`], then [`Codec`] and [`CODECS`], the list of them. [`Scheme`] says what weights are turned into,
//! [`dtype`] has the element types of files.
//!
//! Invariants:
//! * No files, no models, no kernels: bytes in, numbers out, and the other way round.
//! * The same numbers become the same bytes on every machine, whatever its registers ([`ENCODER_VERSION`] changes with them).
//! * Bytes may lie at any address, and are never cast to wider numbers.
//! * Unsafe code calls what was compiled for wider registers, once it is known that they are there, and nothing else.

mod affine;
mod apr;
mod bnb;
mod codec;
pub mod dtype;
mod encode_error;
mod float;
mod former;
mod fp4;
mod fp8;
pub mod ggml;
mod importance;
pub mod integer;
mod list;
mod narrow;
mod part;
mod scheme;
mod tag;
#[cfg(test)]
mod tests;

pub use affine::{
    Affine, ENCODER_VERSION, Packed, Sink, WEIGHED_VERSION, decode_rows, encode_into, encode_rows,
};
pub use apr::AprType;
pub use bnb::{Bnb, Levels};
pub use codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt, Unpacked};
pub use dtype::Dtype;
pub use encode_error::EncodeError;
pub use float::FloatType;
pub use former::{former_codes, there_and_back};
pub use fp4::Fp4;
pub use fp8::Fp8;
pub use ggml::GgmlType;
pub use importance::{ColumnSquares, Counts, Importance};
pub use integer::Integer;
pub use list::{CODECS, recognise};
pub use narrow::e8m0;
pub use part::{Part, PartSpec};
pub use scheme::{Scheme, SchemeParseError};
pub use tag::{Encoding, EncodingParseError};
