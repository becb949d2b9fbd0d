//! How weights are stored: the tag that says so ([`Encoding`]), and one file or folder per encoding, which is all that is
//! known of it ([`Codec`]).

mod affine;
mod apr;
mod bnb;
mod codec;
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
pub use encode_error::EncodeError;
pub use float::FloatType;
pub(crate) use former::{Former, former_codes, there_and_back};
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
