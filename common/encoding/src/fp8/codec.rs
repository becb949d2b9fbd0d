//! What is known of numbers of a byte behind scales as an encoding.

use super::format::Fp8;
use crate::codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt};
use crate::dtype::Dtype;
use crate::float::element::FloatType;
use crate::narrow::{E4M3, e8m0};
use crate::part::{Part, PartSpec};
use crate::tag::Encoding;

/// The codec of numbers of a byte.
pub(crate) struct Fp8Codec;

impl Codec for Fp8Codec {
    /// Which weights share a scale, tensors do not say: a layout does.
    fn recognise(&self, _: &ModuleTensors<'_>, _: Option<ModuleFormat>) -> Option<Encoding> {
        None
    }

    fn all(&self) -> Vec<Encoding> {
        Fp8::all().map(Encoding::Fp8).collect()
    }

    fn parts(&self, encoding: Encoding, shape: MatrixShape) -> Option<Vec<PartSpec>> {
        let Encoding::Fp8(format) = encoding else { return None };
        let numbers = PartSpec {
            part: Part::Weight,
            types: &[Dtype::F8E4M3],
            shape: shape.to_vec(),
            must: "numbers behind scales must be F8_E4M3",
        };
        let scales = PartSpec {
            part: Part::Scales,
            types: &[Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8E8M0],
            shape: format.scales(shape),
            must: "scales must be F32, F16, BF16 or F8_E8M0",
        };
        Some(vec![numbers, scales])
    }

    fn columns(&self, _: Encoding, elements: u64) -> u64 {
        elements
    }

    fn decode_rows(
        &self,
        encoding: Encoding,
        at: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: &mut [f32],
    ) {
        let (Encoding::Fp8(format), &[(_, numbers), (dtype, scales)]) = (encoding, parts) else {
            panic!("a matrix of numbers of a byte has two parts");
        };
        assert_eq!(numbers.len(), out.len(), "a number for each weight");
        let [block_rows, block_columns] = format.shared();
        let width = usize::try_from(block_columns).unwrap_or(usize::MAX).min(at.columns).max(1);
        let of_row = at.columns.div_ceil(width);
        // Scales of single rows are those of the rows that are asked for; of others, which are all there are, some are.
        let rows = numbers.len() / at.columns.max(1);
        let scale_row = |row: usize| match block_rows {
            1 => row - at.first,
            _ => (row as u64 / block_rows) as usize,
        };
        let (first, end) = (scale_row(at.first), scale_row(at.first + rows.max(1) - 1) + 1);
        let of_scale = FloatType::of(dtype).map_or(1, FloatType::bytes) * of_row;
        let scales = match rows {
            0 => Vec::new(),
            _ => widened(dtype, &scales[first * of_scale..end * of_scale]),
        };
        let rows =
            numbers.chunks_exact(at.columns.max(1)).zip(out.chunks_exact_mut(at.columns.max(1)));
        for (index, (numbers, out)) in rows.enumerate() {
            let row = scale_row(at.first + index) - first;
            let scales = &scales[row * of_row..][..of_row];
            for ((numbers, out), scale) in
                numbers.chunks(width).zip(out.chunks_mut(width)).zip(scales)
            {
                for (number, out) in numbers.iter().zip(out) {
                    *out = E4M3[usize::from(*number)] * scale;
                }
            }
        }
    }
}

/// Scales as f32.
fn widened(dtype: Dtype, scales: &[u8]) -> Vec<f32> {
    let Some(float) = FloatType::of(dtype) else {
        return scales.iter().map(|scale| e8m0(*scale)).collect();
    };
    let mut out = vec![0.0; scales.len() / float.bytes()];
    float.widen(scales, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes without meaning, none of which is no number.
    fn bytes(count: usize) -> Vec<u8> {
        (0..count)
            .map(|index| ((index * 37 + index / 11) % 0x7f) as u8 | ((index % 3 == 0) as u8) << 7)
            .collect()
    }

    /// The whole matrix by the definition, in f64.
    fn defined(
        format: Fp8,
        [rows, columns]: [usize; 2],
        numbers: &[u8],
        scales: &[f32],
    ) -> Vec<f64> {
        let of_row = format.scales([rows as u64, columns as u64]).get(1).copied().unwrap_or(1);
        let weight = |index: usize| {
            let (row, column) = ((index / columns) as u64, (index % columns) as u64);
            let [block_rows, block_columns] = format.shared();
            let scale = row / block_rows * of_row + column / block_columns;
            f64::from(E4M3[usize::from(numbers[index])]) * f64::from(scales[scale as usize])
        };
        (0..rows * columns).map(weight).collect()
    }

    #[test]
    fn any_rows_of_a_matrix_are_what_is_defined() {
        let shape = [261, 150]; // Blocks are cut on both sides.
        let numbers = bytes(shape[0] * shape[1]);
        for format in Fp8::all() {
            let grid = format.scales(shape.map(|size| size as u64));
            let count = grid.iter().product::<u64>() as usize;
            // All are powers of two or sums of two, which every type has.
            let exponents = (0..count).map(|index| (index * 5 % 23) as i32 - 11);
            let powers: Vec<f32> = exponents.map(|exponent| 2f32.powi(exponent)).collect();
            let stored = |dtype: Dtype| -> Vec<u8> {
                let of = |power: &f32| match dtype {
                    Dtype::F8E8M0 => vec![(power.to_bits() >> 23) as u8],
                    _ => {
                        let float = FloatType::of(dtype).unwrap();
                        let mut out = vec![0; float.bytes()];
                        float.narrow(&[*power], &mut out).unwrap();
                        out
                    }
                };
                powers.iter().flat_map(of).collect()
            };
            let expected = defined(format, shape, &numbers, &powers);
            for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8E8M0] {
                let scales = [&[0xff], &stored(dtype)[..]].concat(); // At an odd address.
                let scales = &scales[1..];
                for rows in [0..261, 0..1, 127..129, 128..128, 130..261, 260..261] {
                    let columns = shape[1];
                    let numbers = &numbers[rows.start * columns..rows.end * columns];
                    let row = scales.len() / grid[0] as usize;
                    let scales = match grid[0] == shape[0] as u64 {
                        true => &scales[rows.start * row..rows.end * row],
                        false => scales,
                    };
                    let mut found = vec![f32::NAN; numbers.len()];
                    let parts = [(Dtype::F8E4M3, numbers), (dtype, scales)];
                    let at = RowsAt { first: rows.start, columns };
                    Encoding::Fp8(format).decode_rows(at, &parts, &mut found);
                    let expected = &expected[rows.start * columns..rows.end * columns];
                    assert!(
                        found.iter().zip(expected).all(|(found, it)| f64::from(*found) == *it),
                        "{format} {dtype} {rows:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_largest_and_smallest_numbers_and_what_is_no_number_survive() {
        let scale = 2f32.powi(100);
        let decode = |numbers: &[u8], scale: f32| {
            let mut out = vec![0.0; numbers.len()];
            let parts = [(Dtype::F8E4M3, numbers), (Dtype::F32, &scale.to_le_bytes()[..])];
            Encoding::Fp8(Fp8::Matrix).decode_rows(RowsAt::start(numbers.len()), &parts, &mut out);
            out
        };
        assert_eq!(
            decode(&[0x7e, 0xfe, 0x01, 0x80], scale),
            [448.0 * scale, -448.0 * scale, scale / 512.0, -0.0]
        );
        assert!(decode(&[0x7f, 0xff], scale).iter().all(|it| it.is_nan()));
        assert!(decode(&[0x38], f32::INFINITY)[0].is_infinite());
        // The documented example: 1.5 · 2^-7.
        assert_eq!(decode(&[0x3c], 0.007_812_5), [0.011_718_75]);
    }

    #[test]
    fn blocks_that_nobody_has_are_none() {
        for (rows, columns) in
            [(0, 128), (128, 0), (128, 127), (2, 128), (512, 128), (1 << 40, 128)]
        {
            assert_eq!(Fp8::block(rows, columns), None, "{rows} {columns}");
        }
        let block = Fp8::block(128, 128).unwrap();
        // DeepSeek's kv_a_proj_with_mqa.
        assert_eq!(block.scales([576, 7168]), [5, 56]);
        assert_eq!(block.to_string(), "128x128");
        for text in ["", "128", "128x", "128x128x1", "0x0", "rows"] {
            assert_eq!(Fp8::named(text), None, "{text:?}");
        }
    }
}
