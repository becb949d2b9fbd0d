//! How numbers are stored: the element types of weights and of cached keys and values.

use cake_checkpoint::Dtype;

use crate::device::cpu::isa::simd::{LANES, Simd, widen_f16};

/// The stored types that kernels read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FloatType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of an IEEE single.
    Bf16,
}

impl From<cake_checkpoint::FloatType> for FloatType {
    fn from(float: cake_checkpoint::FloatType) -> Self {
        match float {
            cake_checkpoint::FloatType::F32 => FloatType::F32,
            cake_checkpoint::FloatType::F16 => FloatType::F16,
            cake_checkpoint::FloatType::BF16 => FloatType::Bf16,
        }
    }
}

impl FloatType {
    /// The kernel type of a tensor type, if there is one.
    pub(crate) fn of(dtype: Dtype) -> Option<FloatType> {
        match dtype {
            Dtype::F32 => Some(FloatType::F32),
            Dtype::F16 => Some(FloatType::F16),
            Dtype::BF16 => Some(FloatType::Bf16),
            _ => None,
        }
    }

    /// Bytes of one element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            FloatType::F32 => F32::BYTES,
            FloatType::F16 => F16::BYTES,
            FloatType::Bf16 => Bf16::BYTES,
        }
    }

    /// Widens the element `index` of little-endian elements at any address.
    #[inline(always)]
    pub(super) fn value(self, bytes: &[u8], index: usize) -> f32 {
        match self {
            FloatType::F32 => f32::from_le_bytes(bytes.as_chunks().0[index]),
            FloatType::F16 => widen_f16(u16::from_le_bytes(bytes.as_chunks().0[index])),
            FloatType::Bf16 => {
                f32::from_bits(u32::from(u16::from_le_bytes(bytes.as_chunks().0[index])) << 16)
            }
        }
    }

    /// Widens little-endian elements at any address.
    pub(crate) fn widen(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            FloatType::F32 => widen::<F32>(bytes),
            FloatType::F16 => widen::<F16>(bytes),
            FloatType::Bf16 => widen::<Bf16>(bytes),
        }
    }
}

fn widen<E: Element>(bytes: &[u8]) -> Vec<f32> {
    let simd = super::isa::simd::Portable;
    let (chunks, tail) = E::chunks(bytes);
    let mut values = Vec::with_capacity(bytes.len() / E::BYTES);
    for chunk in chunks {
        values.extend(E::load(simd, chunk));
    }
    values.extend(&E::load_tail(simd, tail)[..tail.len() / E::BYTES]);
    values
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

    #[test]
    fn widening_undoes_narrowing_at_any_length_and_address() {
        for length in [0, 1, 15, 16, 17, 40] {
            let values: Vec<f32> = (0..length).map(|i| i as f32 * 0.25 - 3.0).collect();
            for float in [FloatType::F32, FloatType::F16, FloatType::Bf16] {
                let mut bytes = vec![0; 1 + length * float.bytes()];
                match float {
                    FloatType::F32 => F32::store(&values, &mut bytes[1..]),
                    FloatType::F16 => F16::store(&values, &mut bytes[1..]),
                    FloatType::Bf16 => Bf16::store(&values, &mut bytes[1..]),
                }
                assert_eq!(float.widen(&bytes[1..]), values, "{float:?} of {length}");
                for (index, value) in values.iter().enumerate() {
                    assert_eq!(float.value(&bytes[1..], index), *value, "{float:?} {index}");
                }
            }
        }
    }
}
