//! What is known of plain numbers as an encoding.

use super::element::{FLOATS, FloatType};
use crate::codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt};
use crate::dtype::Dtype;
use crate::part::{Part, PartSpec};
use crate::tag::Encoding;

/// The codec of plain numbers.
pub(crate) struct FloatCodec;

impl Codec for FloatCodec {
    fn recognise(&self, module: &ModuleTensors<'_>, _: Option<ModuleFormat>) -> Option<Encoding> {
        (module.dtype)(Part::Weight).and_then(FloatType::of).map(Encoding::Float)
    }

    fn is_only_said(&self) -> bool {
        false
    }

    fn all(&self) -> Vec<Encoding> {
        [FloatType::F32, FloatType::F16, FloatType::BF16].map(Encoding::Float).into()
    }

    fn parts(&self, encoding: Encoding, shape: MatrixShape) -> Option<Vec<PartSpec>> {
        let Encoding::Float(float) = encoding else { return None };
        let types = match float {
            FloatType::F32 => &FLOATS[..1],
            FloatType::F16 => &FLOATS[1..2],
            FloatType::BF16 => &FLOATS[2..],
        };
        let must = "weights must be F32, F16 or BF16";
        Some(vec![PartSpec { part: Part::Weight, types, shape: shape.to_vec(), must }])
    }

    fn columns(&self, _: Encoding, elements: u64) -> u64 {
        elements
    }

    fn decode_rows(
        &self,
        encoding: Encoding,
        _: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: &mut [f32],
    ) {
        let (Encoding::Float(float), &[(_, bytes)]) = (encoding, parts) else {
            panic!("a matrix of plain numbers has one part");
        };
        float.widen(bytes, out);
    }
}
