//! Numbers as APR's own codes, the same as the crate `apr-format` makes of them.

use cake_checkpoint::{AprType, EncodeError, FloatType};

use crate::form::Form;

/// Codes of 8 bits, with one scale for all numbers of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Q8;

/// Codes of 4 bits, with a scale for each 32 numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Q4;

impl Form for Q8 {
    fn identity(&self) -> String {
        "apr-q8 1".to_owned()
    }

    fn row_bytes(&self, columns: u64) -> Vec<u64> {
        vec![columns]
    }

    fn head_bytes(&self) -> u64 {
        4
    }

    fn needs_largest(&self) -> bool {
        true
    }

    fn head(&self, largest: f32) -> Vec<u8> {
        q8_scale(largest).to_le_bytes().into()
    }

    fn write(
        &self,
        rows: &[f32],
        _: usize,
        largest: f32,
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        finite(rows)?;
        let scale = q8_scale(largest);
        let [out] = out else { panic!("codes and their scale have one part") };
        for (out, number) in out.iter_mut().zip(rows) {
            *out = ((number / scale).round().clamp(-127.0, 127.0) as i8).cast_unsigned();
        }
        Ok(())
    }
}

impl Form for Q4 {
    fn identity(&self) -> String {
        "apr-q4 1".to_owned()
    }

    fn row_bytes(&self, columns: u64) -> Vec<u64> {
        vec![columns / AprType::BLOCK as u64 * AprType::BLOCK_BYTES as u64]
    }

    fn write(
        &self,
        rows: &[f32],
        _: usize,
        _: f32,
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        finite(rows)?;
        let [out] = out else { panic!("blocks have one part") };
        let (blocks, _) = rows.as_chunks::<{ AprType::BLOCK }>();
        let (out, _) = out.as_chunks_mut::<{ AprType::BLOCK_BYTES }>();
        for (index, (block, [low, high, codes @ ..])) in blocks.iter().zip(out).enumerate() {
            let largest = block.iter().fold(0f32, |most, number| most.max(number.abs()));
            // Codes are chosen by the scale as it was before it was rounded, as the reference has it.
            let scale = if largest == 0.0 { 1.0 } else { largest / 7.0 };
            let mut stored = [0; 2];
            let too_large = |_| EncodeError::TooLarge {
                index: index * AprType::BLOCK,
                value: largest,
                params: FloatType::F16,
            };
            FloatType::F16.narrow(&[scale], &mut stored).map_err(too_large)?;
            [*low, *high] = stored;
            let code = |number: f32| ((number / scale).round().clamp(-8.0, 7.0) as i8 + 8) as u8;
            let (pairs, _) = block.as_chunks::<2>();
            for (out, [even, odd]) in codes.iter_mut().zip(pairs) {
                *out = code(*even) | code(*odd) << 4;
            }
        }
        Ok(())
    }
}

fn q8_scale(largest: f32) -> f32 {
    if largest == 0.0 { 1.0 } else { largest / 127.0 }
}

fn finite(rows: &[f32]) -> Result<(), EncodeError> {
    match rows.iter().position(|number| !number.is_finite()) {
        None => Ok(()),
        Some(index) => Err(EncodeError::NotFinite { index, value: rows[index] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_examples_are_encoded() {
        let mut codes = [0; 3];
        let numbers = [127.0, -127.0, 1.0];
        Q8.write(&numbers, 3, 127.0, &mut [&mut codes]).unwrap();
        assert_eq!((codes, Q8.head(127.0)), ([0x7f, 0x81, 0x01], 1f32.to_le_bytes().to_vec()));
        let mut numbers = [0.0; 32];
        numbers[..4].copy_from_slice(&[7.0, -7.0, 1.0, 0.0]);
        let mut block = [0; 18];
        Q4.write(&numbers, 32, 0.0, &mut [&mut block]).unwrap();
        let rest = [0x88; 14];
        assert_eq!(block[..4], [0x00, 0x3c, 0x1f, 0x89]);
        assert_eq!(block[4..], rest);
    }

    #[test]
    fn what_is_no_number_is_refused_by_its_place() {
        let mut numbers = [1.0; 32];
        numbers[5] = f32::NAN;
        for form in [&Q8 as &dyn Form, &Q4] {
            let mut out = vec![0; form.row_bytes(32)[0] as usize];
            let error = form.write(&numbers, 32, 1.0, &mut [&mut out]).unwrap_err();
            assert!(matches!(error, EncodeError::NotFinite { index: 5, .. }), "{error}");
        }
    }
}
