//! How a head of one position is stored in the cache: written (quantized, if as codes) once, and read (dequantized or
//! widened) sixteen numbers at a time, in place.

use cake_checkpoint::KvDtype;

use crate::device::cpu::element::{Element, F16, F32};
use crate::device::cpu::isa::simd::{LANES, Simd};
use crate::device::kv_codes;

/// One way to store heads.
pub(super) trait Stored {
    /// The parts of a stored head; that of an empty head is one of zeros.
    type Head<'a>: Copy;

    /// The parts of a head of so many numbers, or of an empty one.
    fn head(bytes: &[u8], head_dim: usize) -> Self::Head<'_>;
    /// The numbers of one vector of the head; lanes past its end are zero, or no number where the scale beside
    /// them is none.
    fn load<S: Simd>(simd: S, head: Self::Head<'_>, vector: usize) -> S::V;
    /// All numbers of a head as f32, widened or dequantized, in as many vectors.
    fn widen<S: Simd>(simd: S, head: Self::Head<'_>, values: &mut [[f32; LANES]]);
}

impl<E: Element> Stored for E
where
    E::Chunk: 'static,
{
    /// Whole vectors and what is left over.
    type Head<'a> = (&'a [E::Chunk], &'a [u8]);

    #[inline(always)]
    fn head(bytes: &[u8], _: usize) -> Self::Head<'_> {
        E::chunks(bytes)
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, (whole, tail): Self::Head<'_>, vector: usize) -> S::V {
        match whole.get(vector) {
            Some(chunk) => <E as Element>::load(simd, chunk),
            None => E::load_tail(simd, tail),
        }
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, (whole, tail): Self::Head<'_>, values: &mut [[f32; LANES]]) {
        for (chunk, value) in whole.iter().zip(&mut *values) {
            simd.store(<E as Element>::load(simd, chunk), value);
        }
        if let (false, Some(last)) = (tail.is_empty(), values.last_mut()) {
            simd.store(E::load_tail(simd, tail), last);
        }
    }
}

/// Signed bytes, and behind those of a head the scales of its groups: [`KvDtype::Q8`].
pub(super) struct Codes;

/// Vectors of a group.
const GROUP_VECTORS: usize = KvDtype::GROUP / LANES;

impl Stored for Codes {
    /// Codes and scales.
    type Head<'a> = (&'a [u8], &'a [u8]);

    #[inline(always)]
    fn head(bytes: &[u8], head_dim: usize) -> Self::Head<'_> {
        bytes.split_at(head_dim.min(bytes.len()))
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, (codes, scales): Self::Head<'_>, vector: usize) -> S::V {
        let (whole, tail) = codes.as_chunks::<LANES>();
        let codes = match whole.get(vector) {
            Some(codes) => simd.load_i8(codes),
            None => {
                let mut padded = [0; LANES];
                padded[..tail.len()].copy_from_slice(tail);
                simd.load_i8(&padded)
            }
        };
        simd.mul(codes, simd.splat(kv_codes::scale(scales, vector / GROUP_VECTORS)))
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, head: Self::Head<'_>, values: &mut [[f32; LANES]]) {
        for (vector, value) in values.iter_mut().enumerate() {
            simd.store(<Self as Stored>::load(simd, head, vector), value);
        }
    }
}

/// Writes the numbers of a head as it is stored, [`KvDtype::head_bytes`].
pub(crate) fn store(kv: KvDtype, head: &[f32], bytes: &mut [u8]) {
    match kv {
        KvDtype::F32 => F32::store(head, bytes),
        KvDtype::F16 => F16::store(head, bytes),
        KvDtype::Q8 => {
            let (codes, scales) = bytes.split_at_mut(head.len());
            kv_codes::encode(head, codes, scales);
        }
    }
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::FloatType;

    use super::*;
    use crate::device::cpu::isa::simd::Kernel;
    use crate::device::cpu::isa::tier::Tier;
    use crate::testing::{Random, widened};

    struct Widen<'a>(KvDtype, &'a [u8], usize);

    impl Kernel for Widen<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<f32> {
            #[inline(always)]
            fn of<S: Simd, K: Stored>(simd: S, bytes: &[u8], head_dim: usize) -> Vec<f32> {
                let head = K::head(bytes, head_dim);
                let mut values = vec![[9.0; LANES]; head_dim.div_ceil(LANES)];
                K::widen(simd, head, &mut values);
                for (vector, value) in values.iter().enumerate() {
                    let mut one = [0.0; LANES];
                    simd.store(K::load(simd, head, vector), &mut one);
                    assert_eq!(*value, one, "vector by vector as all together");
                }
                values.into_flattened()
            }
            let Widen(kv, bytes, head_dim) = self;
            match kv {
                KvDtype::F32 => of::<S, F32>(simd, bytes, head_dim),
                KvDtype::F16 => of::<S, F16>(simd, bytes, head_dim),
                KvDtype::Q8 => of::<S, Codes>(simd, bytes, head_dim),
            }
        }
    }

    #[test]
    fn every_tier_reads_what_was_written_to_the_bit() {
        let mut random = Random::new(17);
        for head_dim in [1, 6, 15, 16, 17, 32, 33, 64, 70, 128, 576] {
            let head: Vec<f32> = (0..head_dim).map(|_| 8.0 * random.signed()).collect();
            for kv in KvDtype::ALL {
                let mut bytes = vec![0; 1 + kv.head_bytes(head_dim)]; // At an odd address.
                store(kv, &head, &mut bytes[1..]);
                let expected: Vec<f32> = match kv {
                    KvDtype::F32 => widened(FloatType::F32, &bytes[1..]),
                    KvDtype::F16 => widened(FloatType::F16, &bytes[1..]),
                    KvDtype::Q8 => {
                        let (codes, scales) = bytes[1..].split_at(head_dim);
                        kv_codes::decode(codes, scales).collect()
                    }
                };
                for tier in Tier::all() {
                    let found = tier.run(Widen(kv, &bytes[1..], head_dim));
                    assert_eq!(found[..head_dim], expected, "{kv} {tier:?} of {head_dim}");
                    assert!(found[head_dim..].iter().all(|lane| *lane == 0.0), "{kv} {tier:?}");
                }
            }
        }
    }
}
