//! What is known of ggml's blocks as an encoding.

use super::decode::decode;
use super::kind::GgmlType;
use super::unpack;
use crate::dtype::Dtype;
use crate::encoding::codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt, Unpacked};
use crate::encoding::part::{Part, PartSpec};
use crate::encoding::tag::Encoding;

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
}
