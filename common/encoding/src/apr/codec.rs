//! What is known of APR's codes as an encoding.

use super::kind::AprType;
use crate::codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt};
use crate::dtype::Dtype;
use crate::float::element::f16;
use crate::part::{Part, PartSpec};
use crate::tag::Encoding;

/// The least magnitude of a scale of [`AprType::Q4`]: the format's readers take smaller ones, and what is no number, for 0.
const LEAST_SCALE: f32 = 1.0 / 16_384.0;

/// The codec of APR's codes.
pub(crate) struct AprCodec;

impl Codec for AprCodec {
    /// Codes look like any other numbers: only a container says what they are.
    fn recognise(&self, _: &ModuleTensors<'_>, _: Option<ModuleFormat>) -> Option<Encoding> {
        None
    }

    fn all(&self) -> Vec<Encoding> {
        AprType::ALL.map(Encoding::Apr).into()
    }

    /// Blocks of [`AprType::Q4`] run over the whole matrix: where rows are not whole blocks, none can be read by itself.
    fn parts(&self, encoding: Encoding, [rows, columns]: MatrixShape) -> Option<Vec<PartSpec>> {
        let Encoding::Apr(kind) = encoding else { return None };
        let weight = |dtype: &'static [Dtype], shape, must| PartSpec {
            part: Part::Weight,
            types: dtype,
            shape,
            must,
        };
        match kind {
            AprType::Q8 => {
                let codes = weight(&[Dtype::I8], vec![rows, columns], "codes must be I8");
                let scale = PartSpec {
                    part: Part::Scales,
                    types: &[Dtype::F32],
                    shape: vec![1],
                    must: "the scale must be F32",
                };
                Some(vec![codes, scale])
            }
            AprType::Q4 => {
                let whole = columns.is_multiple_of(AprType::BLOCK as u64);
                let bytes = whole.then(|| kind.bytes(columns)).flatten()?;
                Some(vec![weight(&[Dtype::U8], vec![rows, bytes], "blocks must be U8")])
            }
        }
    }

    fn columns(&self, encoding: Encoding, elements: u64) -> u64 {
        match encoding {
            Encoding::Apr(AprType::Q4) => {
                (elements / AprType::BLOCK_BYTES as u64).saturating_mul(AprType::BLOCK as u64)
            }
            _ => elements,
        }
    }

    fn decode_rows(
        &self,
        encoding: Encoding,
        _: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: &mut [f32],
    ) {
        match (encoding, parts) {
            (Encoding::Apr(AprType::Q8), &[(_, codes), (_, scale)]) => {
                let scale = *scale.first_chunk().expect("the scale has four bytes");
                q8(codes, f32::from_le_bytes(scale), out);
            }
            (Encoding::Apr(AprType::Q4), &[(_, blocks)]) => q4(blocks, out),
            _ => panic!("a matrix of APR's codes has the parts of its kind"),
        }
    }
}

/// `scale · code`.
fn q8(codes: &[u8], scale: f32, out: &mut [f32]) {
    assert_eq!(codes.len(), out.len(), "as many codes as weights");
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = f32::from(code.cast_signed()) * scale;
    }
}

/// `scale · (code - 8)`, the even codes in the lower halves.
fn q4(bytes: &[u8], out: &mut [f32]) {
    let (blocks, cut) = bytes.as_chunks::<{ AprType::BLOCK_BYTES }>();
    let (weights, left) = out.as_chunks_mut::<{ AprType::BLOCK }>();
    assert!(cut.is_empty() && left.is_empty(), "rows are whole blocks");
    assert_eq!(blocks.len(), weights.len(), "as many blocks as weights");
    for ([low, high, codes @ ..], weights) in blocks.iter().zip(weights) {
        let scale = f16(u16::from_le_bytes([*low, *high]));
        // Also false of a scale that is no number.
        let usable = scale.abs() >= LEAST_SCALE && scale.is_finite();
        let scale = if usable { scale } else { 0.0 };
        let (pairs, _) = weights.as_chunks_mut::<2>();
        for ([even, odd], code) in pairs.iter_mut().zip(codes) {
            *even = (f32::from(code & 15) - 8.0) * scale;
            *odd = (f32::from(code >> 4) - 8.0) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q8: Encoding = Encoding::Apr(AprType::Q8);
    const Q4: Encoding = Encoding::Apr(AprType::Q4);

    #[test]
    fn documented_examples_decode() {
        let (scale, codes) = (1f32.to_le_bytes(), [0x7f, 0x81, 0x01]);
        let mut out = [0.0; 3];
        Q8.decode_rows(RowsAt::start(3), &[(Dtype::I8, &codes), (Dtype::F32, &scale)], &mut out);
        assert_eq!(out, [127.0, -127.0, 1.0]);
        let mut block = [0; 18];
        block[..4].copy_from_slice(&[0x00, 0x3c, 0x1f, 0x89]);
        let mut out = [0.0; 32];
        Q4.decode_rows(RowsAt::start(32), &[(Dtype::U8, &block)], &mut out);
        assert_eq!(out[..5], [7.0, -7.0, 1.0, 0.0, -8.0]);
    }

    #[test]
    fn scales_that_readers_take_for_zero_are_zero() {
        for bits in [0x7e00u16, 0x7c00, 0xfc00, 0x03ff, 0x0001, 0x83ff] {
            let block = [&bits.to_le_bytes()[..], &[0xff; 16]].concat();
            let mut out = [1.0; 32];
            Q4.decode_rows(RowsAt::start(32), &[(Dtype::U8, &block)], &mut out);
            assert_eq!(out, [0.0; 32], "{bits:#x}");
        }
        let block = [&0x0400u16.to_le_bytes()[..], &[0xff; 16]].concat();
        let mut out = [1.0; 32];
        Q4.decode_rows(RowsAt::start(32), &[(Dtype::U8, &block)], &mut out);
        assert_eq!(out, [7.0 * LEAST_SCALE; 32], "the smallest normal number counts");
    }

    #[test]
    fn rows_that_are_not_whole_blocks_are_no_such_matrix() {
        assert!(Q4.parts([7, 33]).is_none());
        assert_eq!(Q4.parts([7, 64]).unwrap()[0].shape, [7, 36]);
        let parts = Q8.parts([7, 33]).unwrap();
        assert_eq!((&parts[0].shape[..], &parts[1].shape[..]), (&[7, 33][..], &[1][..]));
    }
}
