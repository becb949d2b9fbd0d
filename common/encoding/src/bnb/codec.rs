//! What is known of codes of 16 levels as an encoding.

use super::format::Bnb;
use crate::codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt};
use crate::dtype::Dtype;
use crate::part::{Part, PartSpec};
use crate::tag::Encoding;

/// The codec of codes of 16 levels.
pub(crate) struct BnbCodec;

impl Codec for BnbCodec {
    /// Bytes look like any other bytes: a layout says what they are.
    fn recognise(&self, _: &ModuleTensors<'_>, _: Option<ModuleFormat>) -> Option<Encoding> {
        None
    }

    fn all(&self) -> Vec<Encoding> {
        Bnb::all().map(Encoding::Bnb).collect()
    }

    fn parts(&self, encoding: Encoding, [rows, columns]: MatrixShape) -> Option<Vec<PartSpec>> {
        let Encoding::Bnb(format) = encoding else { return None };
        let block = format.block() as u64;
        if !columns.is_multiple_of(block) {
            return None;
        }
        let blocks = columns / block;
        let scales = rows.checked_mul(blocks)?;
        let part = |part, types, shape, must| PartSpec { part, types, shape, must };
        let codes =
            part(Part::Weight, &[Dtype::U8], vec![rows, columns / 2], "pairs of 4 bits must be U8");
        let f32 = &[Dtype::F32];
        if !format.is_nested() {
            let scales = part(Part::Scales, f32, vec![rows, blocks], "scales must be F32");
            return Some(vec![codes, scales]);
        }
        let (bytes, of_bytes) = ("scales that have scales must be U8", "must be F32");
        Some(vec![
            codes,
            part(Part::Scales, &[Dtype::U8], vec![rows, blocks], bytes),
            part(Part::ScaleScales, f32, vec![scales.div_ceil(Bnb::NESTED_BLOCK)], of_bytes),
            part(Part::ScaleLevels, f32, vec![256], of_bytes),
            part(Part::ScaleOffset, f32, vec![1], of_bytes),
        ])
    }

    fn columns(&self, _: Encoding, elements: u64) -> u64 {
        elements.saturating_mul(2)
    }

    fn decode_rows(
        &self,
        encoding: Encoding,
        at: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: &mut [f32],
    ) {
        let Encoding::Bnb(format) = encoding else { panic!("{encoding} is another codec's") };
        let (codes, scales) = stored(format, at, parts);
        assert_eq!(codes.len() * 2, out.len(), "as many codes as weights");
        let levels = format.levels().table();
        let blocks =
            codes.chunks_exact(format.block() / 2).zip(out.chunks_exact_mut(format.block()));
        for (index, (codes, out)) in blocks.enumerate() {
            let scale = scales.of(index);
            let weights = levels.map(|level| level * scale);
            let (pairs, _) = out.as_chunks_mut::<2>();
            for (pair, code) in pairs.iter_mut().zip(codes) {
                *pair = [weights[usize::from(code >> 4)], weights[usize::from(code & 15)]];
            }
        }
    }
}

/// The scales of some rows.
enum Scales<'a> {
    /// As numbers.
    Plain(&'a [[u8; 4]]),
    /// As bytes.
    Nested {
        bytes: &'a [u8],
        /// Which of the matrix's scales the first of them is.
        first: usize,
        scales: &'a [[u8; 4]],
        levels: &'a [[u8; 4]],
        offset: f32,
    },
}

impl Scales<'_> {
    /// That of the block with this number.
    fn of(&self, block: usize) -> f32 {
        match self {
            Scales::Plain(scales) => f32::from_le_bytes(scales[block]),
            Scales::Nested { bytes, first, scales, levels, offset } => {
                let level = f32::from_le_bytes(levels[usize::from(bytes[block])]);
                let shared = (first + block) / Bnb::NESTED_BLOCK as usize;
                level * f32::from_le_bytes(scales[shared]) + offset
            }
        }
    }
}

/// The codes and the scales of some rows.
///
/// # Panics
/// If the matrix has other parts, or the lengths do not belong together.
fn stored<'a>(format: Bnb, at: RowsAt, parts: &[(Dtype, &'a [u8])]) -> (&'a [u8], Scales<'a>) {
    let numbers = |bytes: &'a [u8]| bytes.as_chunks::<4>().0;
    match (format.is_nested(), parts) {
        (false, &[(_, codes), (_, scales)]) => {
            let scales = numbers(scales);
            assert_eq!(scales.len() * format.block(), codes.len() * 2, "a scale for each block");
            (codes, Scales::Plain(scales))
        }
        (true, &[(_, codes), (_, bytes), (_, scales), (_, levels), (_, offset)]) => {
            assert_eq!(bytes.len() * format.block(), codes.len() * 2, "a scale for each block");
            let offset = offset.first_chunk().expect("the offset has four bytes");
            let (scales, levels) = (numbers(scales), numbers(levels));
            let first = at.first * (at.columns / format.block());
            let offset = f32::from_le_bytes(*offset);
            (codes, Scales::Nested { bytes, first, scales, levels, offset })
        }
        _ => panic!("a matrix of codes of levels has the parts of its kind"),
    }
}
