//! What is known of ggml's blocks as an encoding.

use super::decode::decode;
use super::kind::GgmlType;
use super::{large, q4_0, q4_1, q5_0, q5_1, q8_0, unpack};
use crate::codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt, Unpacked};
use crate::dtype::Dtype;
use crate::encode_error::EncodeError;
use crate::float::FloatType;
use crate::part::{Part, PartSpec};
use crate::tag::Encoding;

/// The codec of ggml's blocks.
pub(crate) struct GgmlCodec;

impl Codec for GgmlCodec {
    /// Bytes look like any other bytes: only a container says that they are blocks.
    fn recognise(&self, _: &ModuleTensors<'_>, _: Option<ModuleFormat>) -> Option<Encoding> {
        None
    }

    fn all(&self) -> Vec<Encoding> {
        GgmlType::ALL.map(Encoding::Ggml).into()
    }

    fn parts(&self, encoding: Encoding, [rows, columns]: MatrixShape) -> Option<Vec<PartSpec>> {
        let Encoding::Ggml(kind) = encoding else { return None };
        Some(vec![PartSpec {
            part: Part::Weight,
            types: &[Dtype::U8],
            shape: vec![rows, kind.bytes(columns)?],
            must: "blocks must be U8",
        }])
    }

    fn columns(&self, encoding: Encoding, elements: u64) -> u64 {
        let Encoding::Ggml(kind) = encoding else { return elements };
        (elements / kind.block_bytes() as u64).saturating_mul(kind.block() as u64)
    }

    fn decode_rows(
        &self,
        encoding: Encoding,
        _: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: &mut [f32],
    ) {
        let (Encoding::Ggml(kind), &[(_, bytes)]) = (encoding, parts) else {
            panic!("a matrix of blocks has one part");
        };
        decode(kind, bytes, out);
    }

    fn unpacked_group(&self, encoding: Encoding, _: usize) -> Option<usize> {
        let Encoding::Ggml(kind) = encoding else { return None };
        Some(unpack::group(kind))
    }

    fn largest_code(&self, encoding: Encoding) -> u8 {
        let Encoding::Ggml(kind) = encoding else { return u8::MAX };
        unpack::largest_code(kind)
    }

    fn unpack_rows(
        &self,
        encoding: Encoding,
        _: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: Unpacked<'_>,
    ) {
        let (Encoding::Ggml(kind), &[(_, bytes)]) = (encoding, parts) else {
            panic!("a matrix of blocks has one part");
        };
        unpack::unpack(kind, bytes, out);
    }

    fn encoded_group(&self, encoding: Encoding) -> Option<usize> {
        let Encoding::Ggml(kind) = encoding else { return None };
        encoder(kind).map(|_| kind.block())
    }

    fn encode(
        &self,
        encoding: Encoding,
        weights: &[f32],
        _: Option<&[f32]>,
        _: FloatType,
        out: &mut [Option<&mut [u8]>],
    ) -> Result<(), EncodeError> {
        let (Encoding::Ggml(kind), [out]) = (encoding, out) else {
            panic!("a matrix of blocks has one part");
        };
        let encode = encoder(kind).unwrap_or_else(|| panic!("nothing is turned into {encoding}"));
        out.as_deref_mut().map_or(Ok(()), |out| encode(weights, out))
    }
}

/// Encodes whole blocks into as many.
type Encode = fn(&[f32], &mut [u8]) -> Result<(), EncodeError>;

/// What encodes blocks of a kind; `None` where nothing does.
fn encoder(kind: GgmlType) -> Option<Encode> {
    match kind {
        GgmlType::Q8_0 => Some(q8_0::encode_rows),
        GgmlType::Q4_0 => Some(q4_0::encode_rows),
        GgmlType::Q4_1 => Some(q4_1::encode_rows),
        GgmlType::Q5_0 => Some(q5_0::encode_rows),
        GgmlType::Q5_1 => Some(q5_1::encode_rows),
        GgmlType::Q4K => Some(|weights, out| large::encode_rows(weights, out, large::q4_k)),
        GgmlType::Q5K => Some(|weights, out| large::encode_rows(weights, out, large::q5_k)),
        GgmlType::Q6K => Some(|weights, out| large::encode_rows(weights, out, large::q6_k)),
        GgmlType::Q2K | GgmlType::Q3K | GgmlType::Iq4Nl | GgmlType::Iq4Xs | GgmlType::Mxfp4 => None,
    }
}
