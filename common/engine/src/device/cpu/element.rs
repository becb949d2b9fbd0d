//! How numbers are stored: the element types of weights and of cached keys and values.

use cake_checkpoint::FloatType;

use crate::device::cpu::isa::simd::{LANES, Simd, widen_f16};

/// The number `index` of little-endian numbers of this type at any address, widened.
#[inline(always)]
pub(super) fn number(float: FloatType, bytes: &[u8], index: usize) -> f32 {
    let half = || u16::from_le_bytes(bytes.as_chunks().0[index]);
    match float {
        FloatType::F32 => f32::from_le_bytes(bytes.as_chunks().0[index]),
        FloatType::F16 => widen_f16(half()),
        FloatType::BF16 => f32::from_bits(u32::from(half()) << 16),
    }
}

/// One stored type: sixteen elements at a time, unaligned, little-endian.
pub(crate) trait Element {
    /// Sixteen elements.
    type Chunk;
    /// Bytes of one element.
    const BYTES: usize;

    /// Splits bytes into vectors and what is left over.
    fn chunks(bytes: &[u8]) -> (&[Self::Chunk], &[u8]);
    /// Widens sixteen elements.
    fn load<S: Simd>(simd: S, chunk: &Self::Chunk) -> S::V;
    /// Widens 32 elements: the first and the last 16, or for [`Bf16`] those at even places and those at
    /// odd ones.
    fn load_two<S: Simd>(simd: S, chunks: &[Self::Chunk; 2]) -> (S::V, S::V);
    /// Widens fewer than sixteen elements; the other lanes are zero.
    fn load_tail<S: Simd>(simd: S, tail: &[u8]) -> S::V;
    /// Narrows `values` into `bytes`, rounding to nearest even.
    fn store(values: &[f32], bytes: &mut [u8]);
}

macro_rules! element {
    ($name:ident, $bytes:literal, $load:ident, $paired:literal, $narrow:expr, $doc:literal) => {
        #[doc = $doc]
        pub(crate) struct $name;

        impl Element for $name {
            type Chunk = [u8; $bytes * LANES];
            const BYTES: usize = $bytes;

            #[inline(always)]
            fn load_two<S: Simd>(simd: S, chunks: &[Self::Chunk; 2]) -> (S::V, S::V) {
                match chunks.as_flattened().try_into() {
                    Ok(pairs) if $paired => simd.load_bf16_pairs(pairs),
                    _ => (simd.$load(&chunks[0]), simd.$load(&chunks[1])),
                }
            }

            #[inline(always)]
            fn chunks(bytes: &[u8]) -> (&[Self::Chunk], &[u8]) {
                bytes.as_chunks()
            }

            #[inline(always)]
            fn load<S: Simd>(simd: S, chunk: &Self::Chunk) -> S::V {
                simd.$load(chunk)
            }

            #[inline(always)]
            fn load_tail<S: Simd>(simd: S, tail: &[u8]) -> S::V {
                let mut padded = [0; $bytes * LANES];
                padded[..tail.len()].copy_from_slice(tail);
                simd.$load(&padded)
            }

            fn store(values: &[f32], bytes: &mut [u8]) {
                let narrow: fn(f32) -> [u8; $bytes] = $narrow;
                for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                    *to = narrow(*from);
                }
            }
        }
    };
}

element!(F32, 4, load_f32, false, f32::to_le_bytes, "IEEE single.");
element!(F16, 2, load_f16, false, |value| half::f16::from_f32(value).to_le_bytes(), "IEEE half.");
element!(
    Bf16,
    2,
    load_bf16,
    true,
    |value| half::bf16::from_f32(value).to_le_bytes(),
    "The upper half of an IEEE single."
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::isa::simd::Portable;
    use crate::testing::widened;

    fn check<E: Element>(float: FloatType, values: &[f32]) {
        let mut stored = vec![0; 1 + values.len() * E::BYTES];
        E::store(values, &mut stored[1..]);
        let bytes = &stored[1..];
        assert_eq!(E::BYTES, float.bytes());
        assert_eq!(widened(float, bytes), values, "{float:?}");
        let (chunks, tail) = E::chunks(bytes);
        let mut loaded: Vec<f32> = chunks.iter().flat_map(|it| E::load(Portable, it)).collect();
        loaded.extend(E::load_tail(Portable, tail));
        let (loaded, padding) = loaded.split_at(values.len());
        assert_eq!(loaded, values, "{float:?}");
        assert!(padding.iter().all(|it| *it == 0.0), "{float:?}");
        for (index, value) in values.iter().enumerate() {
            assert_eq!(number(float, bytes, index), *value, "{float:?} {index}");
        }
    }

    #[test]
    fn widening_undoes_narrowing_at_any_length_and_address() {
        for length in [0, 1, 15, 16, 17, 40] {
            let values: Vec<f32> = (0..length).map(|i| i as f32 * 0.25 - 3.0).collect();
            check::<F32>(FloatType::F32, &values);
            check::<F16>(FloatType::F16, &values);
            check::<Bf16>(FloatType::BF16, &values);
        }
    }
}
