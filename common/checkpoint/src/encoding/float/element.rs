//! The three floating-point types of weights, scales and biases.

use crate::dtype::Dtype;

/// The element types of plain numbers.
pub(crate) static FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// A floating-point element type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FloatType {
    /// 4 bytes.
    F32,
    /// 2 bytes, IEEE half precision.
    F16,
    /// 2 bytes, the upper half of an F32.
    BF16,
}

impl FloatType {
    /// That element type, if it is one of the three.
    pub const fn of(dtype: Dtype) -> Option<FloatType> {
        match dtype {
            Dtype::F32 => Some(FloatType::F32),
            Dtype::F16 => Some(FloatType::F16),
            Dtype::BF16 => Some(FloatType::BF16),
            _ => None,
        }
    }

    /// As an element type of a file.
    pub const fn dtype(self) -> Dtype {
        match self {
            FloatType::F32 => Dtype::F32,
            FloatType::F16 => Dtype::F16,
            FloatType::BF16 => Dtype::BF16,
        }
    }

    /// Bytes of one number.
    pub const fn bytes(self) -> usize {
        match self {
            FloatType::F32 => 4,
            FloatType::F16 | FloatType::BF16 => 2,
        }
    }

    /// Fills `out` with the little-endian numbers in `bytes`, which may lie at any address; exact.
    ///
    /// # Panics
    /// If `bytes` does not have as many numbers as `out`.
    pub fn widen(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * self.bytes(), "as many numbers as asked for");
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as was just seen.
            return unsafe { self.widen_avx2(bytes, out) };
        }
        self.widen_portable(bytes, out);
    }

    /// The same operations in wider registers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn widen_avx2(self, bytes: &[u8], out: &mut [f32]) {
        self.widen_portable(bytes, out);
    }

    /// Always inlined, so that the compiler makes one for every kind of register.
    #[inline(always)]
    fn widen_portable(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            FloatType::F32 => {
                let (numbers, _) = bytes.as_chunks::<4>();
                out.iter_mut().zip(numbers).for_each(|(out, &b)| *out = f32::from_le_bytes(b));
            }
            FloatType::F16 => {
                let (numbers, _) = bytes.as_chunks::<2>();
                out.iter_mut().zip(numbers).for_each(|(out, &b)| *out = f16(u16::from_le_bytes(b)));
            }
            FloatType::BF16 => {
                let (numbers, _) = bytes.as_chunks::<2>();
                let widened = |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16);
                out.iter_mut().zip(numbers).for_each(|(out, &b)| *out = widened(b));
            }
        }
    }

    /// The number of this type that is nearest to `value` among those not nearer to zero; `None` when
    /// there is none that is finite.
    #[inline(always)]
    pub(crate) fn round_away(self, value: f64) -> Option<f32> {
        // Bits after the point, the exponent of the smallest normal number, the largest number.
        let (fraction, least, largest) = match self {
            FloatType::F32 => (23, -126, f64::from(f32::MAX)),
            FloatType::F16 => (10, -14, 65504.0),
            FloatType::BF16 => (7, -126, f64::from(f32::from_bits(0x7f7f_0000))),
        };
        let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
        let step = exponent.max(least) - fraction;
        let two_to = |power: i32| f64::from_bits(((power + 1023) as u64) << 52); // |power| < 1023.
        let magnitude = (value.abs() * two_to(-step)).ceil() * two_to(step);
        (magnitude <= largest).then(|| magnitude.copysign(value) as f32)
    }

    /// Stores a number of this type as the element `index` of `bytes`, little-endian.
    #[inline(always)]
    pub(crate) fn store(self, value: f32, bytes: &mut [u8], index: usize) {
        let bits = value.to_bits();
        let place = index * self.bytes();
        match self {
            FloatType::F32 => bytes[place..place + 4].copy_from_slice(&bits.to_le_bytes()),
            FloatType::F16 => {
                bytes[place..place + 2].copy_from_slice(&f16_bits(value).to_le_bytes())
            }
            FloatType::BF16 => {
                bytes[place..place + 2].copy_from_slice(&((bits >> 16) as u16).to_le_bytes());
            }
        }
    }
}

/// The value of half precision bits, without a branch.
#[inline(always)]
fn f16(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7fff) << 13;
    // Moving the exponent by a product makes subnormal numbers right, too.
    let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(finite.to_bits() | special | (bits & 0x8000) << 16)
}

/// The half precision bits of a number that half precision has.
fn f16_bits(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    // The same product the other way; exact, as the number has few enough bits.
    let magnitude = value.abs() * f32::from_bits((127 - 112) << 23);
    sign | (magnitude.to_bits() >> 13) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [FloatType; 3] = [FloatType::F32, FloatType::F16, FloatType::BF16];

    /// From the definition in IEEE 754.
    fn f16_by_definition(bits: u16) -> f64 {
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        sign * match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
        }
    }

    #[test]
    fn every_half_is_widened_and_stored_exactly() {
        for bits in 0..=u16::MAX {
            let (expected, mut found) = (f16_by_definition(bits), [0.0]);
            FloatType::F16.widen(&bits.to_le_bytes(), &mut found);
            let value = f64::from(found[0]);
            assert!(value == expected || value.is_nan() && expected.is_nan(), "{bits:#x}");
            assert_eq!(value.is_sign_negative(), bits >> 15 == 1, "{bits:#x}");
            if value.is_finite() {
                let mut stored = [0; 2];
                FloatType::F16.store(found[0], &mut stored, 0);
                assert_eq!(u16::from_le_bytes(stored), bits);
                assert_eq!(FloatType::F16.round_away(value), Some(found[0]));
            }
        }
    }

    #[test]
    fn numbers_round_away_from_zero_to_the_next_of_their_type() {
        let up = |float: FloatType, value| float.round_away(value).map(f64::from);
        for float in TYPES {
            assert_eq!(up(float, 0.0), Some(0.0));
            assert_eq!(up(float, -1.5), Some(-1.5));
            assert_eq!(up(float, f64::INFINITY), None);
        }
        assert_eq!(up(FloatType::F16, 1.0 + 1e-9), Some(1.0 + 1.0 / 1024.0));
        assert_eq!(up(FloatType::F16, -1e-12), Some(-(2f64.powi(-24))));
        assert_eq!(up(FloatType::F16, 2047.5), Some(2048.0));
        assert_eq!(up(FloatType::F16, 65504.1), None);
        assert_eq!(up(FloatType::BF16, 1.0 + 1e-9), Some(1.0 + 1.0 / 128.0));
        assert_eq!(up(FloatType::BF16, 1e-45), Some(2f64.powi(-133)));
        assert_eq!(up(FloatType::F32, 1.0 + 1e-9), Some(1.0 + 2f64.powi(-23)));
        assert_eq!(up(FloatType::F32, -1e-50), Some(-f64::from(f32::from_bits(1))));
        assert_eq!(up(FloatType::F32, 1e39), None);
    }

    #[test]
    fn bytes_at_any_address_are_widened() {
        let mut bytes = vec![0; 3];
        for value in [1.0f32, -2.5] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        let mut found = [0.0; 2];
        FloatType::F32.widen(&bytes[3..], &mut found);
        assert_eq!(found, [1.0, -2.5]);
        FloatType::BF16.widen(&bytes[5..9], &mut found);
        assert_eq!(found, [1.0, 0.0]);
    }
}
