//! What is known of numbers of 4 bits behind scales as an encoding.

use super::encode::encode_mx;
use super::kind::Fp4;
use crate::codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt, Unpacked};
use crate::dtype::Dtype;
use crate::encode_error::EncodeError;
use crate::float::FloatType;
use crate::narrow::{E2M1, E4M3, e8m0, twice_and_12};
use crate::part::{Part, PartSpec};
use crate::tag::Encoding;

/// The codec of numbers of 4 bits.
pub(crate) struct Fp4Codec;

impl Codec for Fp4Codec {
    /// Bytes look like any other bytes: a layout says what they are.
    fn recognise(&self, _: &ModuleTensors<'_>, _: Option<ModuleFormat>) -> Option<Encoding> {
        None
    }

    fn all(&self) -> Vec<Encoding> {
        Fp4::ALL.map(Encoding::Fp4).into()
    }

    fn parts(&self, encoding: Encoding, [rows, columns]: MatrixShape) -> Option<Vec<PartSpec>> {
        let Encoding::Fp4(kind) = encoding else { return None };
        let group = kind.group() as u64;
        if !columns.is_multiple_of(group) {
            return None;
        }
        let codes = PartSpec {
            part: Part::Weight,
            types: &[Dtype::U8],
            shape: vec![rows, columns / 2],
            must: "pairs of 4 bits must be U8",
        };
        let (types, must) = match kind {
            Fp4::Mx => (&[Dtype::F8E8M0], "scales must be F8_E8M0, or U8 that mean the same"),
            Fp4::Nv | Fp4::NvDivided | Fp4::NvMultiplied => {
                (&[Dtype::F8E4M3], "scales must be F8_E4M3")
            }
        };
        let scales =
            PartSpec { part: Part::Scales, types, shape: vec![rows, columns / group], must };
        let global = PartSpec {
            part: Part::Global,
            types: &[Dtype::F32],
            shape: vec![1],
            must: "what divides or multiplies all scales must be F32",
        };
        let global = kind.has_global().then_some(global);
        Some([codes, scales].into_iter().chain(global).collect())
    }

    fn columns(&self, _: Encoding, elements: u64) -> u64 {
        elements.saturating_mul(2)
    }

    fn decode_rows(
        &self,
        encoding: Encoding,
        _: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: &mut [f32],
    ) {
        let (kind, Stored { codes, scales, global }) = stored(encoding, parts);
        assert_eq!(codes.len() * 2, out.len(), "as many numbers as weights");
        assert_eq!(scales.len() * kind.group(), out.len(), "a scale for each group");
        let groups = codes.chunks_exact(kind.group() / 2).zip(out.chunks_exact_mut(kind.group()));
        for ((codes, out), scale) in groups.zip(scales) {
            let scale = scale_of(kind, *scale, global);
            let (pairs, _) = out.as_chunks_mut::<2>();
            for ([even, odd], code) in pairs.iter_mut().zip(codes) {
                *even = E2M1[usize::from(code & 15)] * scale;
                *odd = E2M1[usize::from(code >> 4)] * scale;
            }
        }
    }

    fn unpacked_group(&self, encoding: Encoding, _: usize) -> Option<usize> {
        let Encoding::Fp4(kind) = encoding else { return None };
        Some(kind.group())
    }

    fn largest_code(&self, _: Encoding) -> u8 {
        24
    }

    /// A code is twice the number, which is whole, and 12 more, so that none is below 0.
    fn unpack_rows(
        &self,
        encoding: Encoding,
        _: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: Unpacked<'_>,
    ) {
        let (kind, Stored { codes, scales, global }) = stored(encoding, parts);
        assert_eq!(codes.len() * 2, out.codes.len(), "as many numbers as weights");
        assert_eq!(scales.len(), out.scales.len(), "a scale for each group");
        for (pair, code) in out.codes.as_chunks_mut().0.iter_mut().zip(codes) {
            *pair = [twice_and_12(code & 15), twice_and_12(code >> 4)];
        }
        for ((to, bias), scale) in out.scales.iter_mut().zip(out.biases).zip(scales) {
            *to = 0.5 * scale_of(kind, *scale, global);
            *bias = -12.0 * *to;
        }
    }

    /// Of those whose scales are powers of two.
    fn encoded_group(&self, encoding: Encoding) -> Option<usize> {
        (encoding == Encoding::Fp4(Fp4::Mx)).then_some(Fp4::Mx.group())
    }

    fn encode(
        &self,
        encoding: Encoding,
        weights: &[f32],
        _: Option<&[f32]>,
        _: FloatType,
        out: &mut [Option<&mut [u8]>],
    ) -> Result<(), EncodeError> {
        let (Encoding::Fp4(Fp4::Mx), [codes, scales]) = (encoding, out) else {
            panic!("only numbers with powers of two are made of others, and have two parts");
        };
        encode_mx(weights, codes.as_deref_mut(), scales.as_deref_mut())
    }
}

/// What a matrix is stored in.
struct Stored<'a> {
    /// Pairs of numbers, the even ones in the lower halves.
    codes: &'a [u8],
    /// A byte for each group.
    scales: &'a [u8],
    /// What divides or multiplies all scales.
    global: Option<f32>,
}

/// The parts of a matrix.
///
/// # Panics
/// If it has others.
fn stored<'a>(encoding: Encoding, parts: &[(Dtype, &'a [u8])]) -> (Fp4, Stored<'a>) {
    match (encoding, parts) {
        (Encoding::Fp4(kind), &[(_, codes), (_, scales), (_, global)]) if kind.has_global() => {
            let global = global.first_chunk().expect("a number of four bytes");
            let global = Some(f32::from_le_bytes(*global));
            (kind, Stored { codes, scales, global })
        }
        (Encoding::Fp4(kind), &[(_, codes), (_, scales)]) if !kind.has_global() => {
            (kind, Stored { codes, scales, global: None })
        }
        _ => panic!("a matrix of numbers of 4 bits has the parts of its kind"),
    }
}

/// The number that a scale's byte is, divided or multiplied by what all are.
fn scale_of(kind: Fp4, byte: u8, global: Option<f32>) -> f32 {
    match (kind, global) {
        (Fp4::Mx, _) => e8m0(byte),
        (Fp4::NvDivided, Some(global)) => E4M3[usize::from(byte)] / global,
        (Fp4::NvMultiplied, Some(global)) => E4M3[usize::from(byte)] * global,
        _ => E4M3[usize::from(byte)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(kind: Fp4, codes: &[u8], scales: &[u8], global: f32) -> Vec<f32> {
        let mut out = vec![f32::NAN; codes.len() * 2];
        let global = global.to_le_bytes();
        let parts = [(Dtype::U8, codes), (kind.scale(), scales), (Dtype::F32, &global[..])];
        let count = if kind.has_global() { 3 } else { 2 };
        let at = RowsAt::start(kind.group());
        Encoding::Fp4(kind).decode_rows(at, &parts[..count], &mut out);
        out
    }

    #[test]
    fn each_number_is_behind_the_scale_of_its_group() {
        for kind in Fp4::ALL {
            let group = kind.group();
            let codes: Vec<u8> = (0..group * 2).map(|index| (index * 29 % 256) as u8).collect();
            let scales = [127, 0x40, 1, 0x7e];
            let found = decode(kind, &codes, &scales, 3.0);
            for (index, found) in found.iter().enumerate() {
                let code = codes[index / 2] >> (4 * (index % 2)) & 15;
                let byte = scales[index / group];
                let scale = match kind {
                    Fp4::Mx => 2f64.powi(i32::from(byte) - 127),
                    Fp4::Nv => f64::from(E4M3[usize::from(byte)]),
                    Fp4::NvDivided => f64::from((f64::from(E4M3[usize::from(byte)]) / 3.0) as f32),
                    Fp4::NvMultiplied => f64::from(E4M3[usize::from(byte)] * 3.0),
                };
                let expected = (f64::from(E2M1[usize::from(code)]) * scale) as f32;
                assert_eq!(found.to_bits(), expected.to_bits(), "{kind} {index}");
            }
        }
    }

    #[test]
    fn scales_at_the_ends_of_their_range() {
        let ones = [0x22; 16]; // 1 in each half.
        assert_eq!(decode(Fp4::Mx, &ones, &[0], 1.0), [2f32.powi(-127); 32]);
        assert_eq!(decode(Fp4::Mx, &ones, &[254], 1.0), [2f32.powi(127); 32]);
        assert!(decode(Fp4::Mx, &ones, &[255], 1.0).iter().all(|it| it.is_nan()));
        assert_eq!(decode(Fp4::Nv, &ones[..8], &[0x7e], 1.0), [448.0; 16]);
        assert!(decode(Fp4::Nv, &ones[..8], &[0x7f], 1.0).iter().all(|it| it.is_nan()));
        assert!(decode(Fp4::NvDivided, &ones[..8], &[0x38], 0.0).iter().all(|it| it.is_infinite()));
        // The largest is 6, which a large scale takes past f32.
        assert!(decode(Fp4::Mx, &[0x77; 16], &[254], 1.0).iter().all(|it| it.is_infinite()));
    }

    #[test]
    fn rows_that_are_not_whole_groups_are_no_such_matrix() {
        assert!(Encoding::Fp4(Fp4::Mx).parts([3, 48]).is_none());
        for kind in [Fp4::NvDivided, Fp4::NvMultiplied] {
            let parts = Encoding::Fp4(kind).parts([3, 48]).unwrap();
            let shapes: Vec<&[u64]> = parts.iter().map(|part| &part.shape[..]).collect();
            assert_eq!(shapes, [&[3, 24][..], &[3, 3], &[1]]);
        }
    }
}
