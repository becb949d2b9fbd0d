//! What is known of grouped affine weights as an encoding.

use super::decode::{decode_rows, unpack};
use super::encode::{Sink, encode_into};
use super::format::Affine;
use crate::codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt, Unpacked};
use crate::dtype::Dtype;
use crate::encode_error::EncodeError;
use crate::float::element::{FLOATS, FloatType};
use crate::part::{Part, PartSpec};
use crate::tag::Encoding;

/// The codec of grouped affine weights.
pub(crate) struct AffineCodec;

impl Codec for AffineCodec {
    fn recognise(
        &self,
        module: &ModuleTensors<'_>,
        said: Option<ModuleFormat>,
    ) -> Option<Encoding> {
        let looks_packed = || {
            (module.dtype)(Part::Scales).is_some()
                || (module.dtype)(Part::Weight) == Some(Dtype::U32)
        };
        match said {
            Some(ModuleFormat::Packed(encoding @ Encoding::Affine(_))) => Some(encoding),
            Some(ModuleFormat::IfPacked(encoding @ Encoding::Affine(_))) => {
                looks_packed().then_some(encoding)
            }
            _ => None,
        }
    }

    fn is_only_said(&self) -> bool {
        false
    }

    fn all(&self) -> Vec<Encoding> {
        let of_bits = |bits| [32, 64, 128].map(|group| Affine::new(bits, group));
        [2, 3, 4, 5, 6, 8].into_iter().flat_map(of_bits).flatten().map(Encoding::Affine).collect()
    }

    fn parts(&self, encoding: Encoding, [rows, columns]: MatrixShape) -> Option<Vec<PartSpec>> {
        let Encoding::Affine(format) = encoding else { return None };
        let (codes, params) = format.packed_shapes(rows, columns)?;
        let param = |part: Part| PartSpec {
            part,
            types: &FLOATS,
            shape: params.clone(),
            must: "scales and biases must be F32, F16 or BF16",
        };
        let codes = PartSpec {
            part: Part::Weight,
            types: &[Dtype::U32],
            shape: codes,
            must: "packed weights must be U32",
        };
        Some(vec![codes, param(Part::Scales), param(Part::Biases)])
    }

    fn columns(&self, encoding: Encoding, elements: u64) -> u64 {
        let Encoding::Affine(format) = encoding else { return elements };
        elements.saturating_mul(32) / format.bits() as u64
    }

    fn decode_rows(
        &self,
        encoding: Encoding,
        _: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: &mut [f32],
    ) {
        let (Encoding::Affine(format), &[(_, codes), (dtype, scales), (_, biases)]) =
            (encoding, parts)
        else {
            panic!("a matrix of affine weights has three parts");
        };
        let params = FloatType::of(dtype).expect("scales are numbers");
        decode_rows(codes, scales, biases, format, params, out);
    }

    fn unpacked_group(&self, encoding: Encoding, _: usize) -> Option<usize> {
        let Encoding::Affine(format) = encoding else { return None };
        Some(format.group())
    }

    fn largest_code(&self, encoding: Encoding) -> u8 {
        let Encoding::Affine(format) = encoding else { return u8::MAX };
        format.largest_code()
    }

    fn unpack_rows(
        &self,
        encoding: Encoding,
        _: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: Unpacked<'_>,
    ) {
        let (Encoding::Affine(format), &[(_, codes), (dtype, scales), (_, biases)]) =
            (encoding, parts)
        else {
            panic!("a matrix of affine weights has three parts");
        };
        let params = FloatType::of(dtype).expect("scales are numbers");
        params.widen(scales, out.scales);
        params.widen(biases, out.biases);
        unpack(codes, format, out.codes);
    }

    fn encoded_group(&self, encoding: Encoding) -> Option<usize> {
        let Encoding::Affine(format) = encoding else { return None };
        Some(format.group())
    }

    fn encode(
        &self,
        encoding: Encoding,
        weights: &[f32],
        counts: Option<&[f32]>,
        params: FloatType,
        out: &mut [Option<&mut [u8]>],
    ) -> Result<(), EncodeError> {
        let (Encoding::Affine(format), [codes, scales, biases]) = (encoding, out) else {
            panic!("a matrix of affine weights has three parts");
        };
        let (codes, scales) = (codes.as_deref_mut(), scales.as_deref_mut());
        let sink = Sink { codes, scales, biases: biases.as_deref_mut() };
        encode_into(weights, counts, format, params, sink)
    }
}
