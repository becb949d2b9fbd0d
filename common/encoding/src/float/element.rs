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

    /// Writes numbers as this type, each rounded to the nearest and ties to even; infinities and NaNs stay what they are.
    ///
    /// # Errors
    /// The index of the first finite number that this type does not reach.
    ///
    /// # Panics
    /// If `out` does not have as many numbers as `values`.
    pub fn narrow(self, values: &[f32], out: &mut [u8]) -> Result<(), usize> {
        assert_eq!(out.len(), values.len() * self.bytes(), "room for as many numbers as given");
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as was just seen.
            return unsafe { self.narrow_avx2(values, out) };
        }
        self.narrow_portable(values, out)
    }

    /// The same operations in wider registers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn narrow_avx2(self, values: &[f32], out: &mut [u8]) -> Result<(), usize> {
        self.narrow_portable(values, out)
    }

    /// Always inlined, so that the compiler makes one for every kind of register.
    #[inline(always)]
    fn narrow_portable(self, values: &[f32], out: &mut [u8]) -> Result<(), usize> {
        match self {
            FloatType::F32 => {
                let (out, _) = out.as_chunks_mut::<4>();
                out.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_le_bytes());
                Ok(())
            }
            FloatType::F16 => narrow_by(nearest_f16, 0x7c00, values, out),
            FloatType::BF16 => narrow_by(nearest_bf16, 0x7f80, values, out),
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

    /// The number of this type that is nearest to `value`, of two alike the even one; infinite beyond its range.
    #[inline(always)]
    pub(crate) fn nearest(self, value: f32) -> f32 {
        match self {
            FloatType::F32 => value,
            FloatType::F16 => f16(nearest_f16(value)),
            FloatType::BF16 => f32::from_bits(u32::from(nearest_bf16(value)) << 16),
        }
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
pub(crate) fn f16(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7fff) << 13;
    // Moving the exponent by a product makes subnormal numbers right, too.
    let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(finite.to_bits() | special | (bits & 0x8000) << 16)
}

/// Writes the bits of each number; the index of the first finite one that became `infinity`, if one did.
#[inline(always)]
fn narrow_by(
    bits_of: impl Fn(f32) -> u16,
    infinity: u16,
    values: &[f32],
    out: &mut [u8],
) -> Result<(), usize> {
    let is_beyond = |bits: u16, value: f32| bits & 0x7fff == infinity && value.is_finite();
    let mut beyond = false;
    let (out, _) = out.as_chunks_mut::<2>();
    for (out, &value) in out.iter_mut().zip(values) {
        let bits = bits_of(value);
        beyond |= is_beyond(bits, value);
        *out = bits.to_le_bytes();
    }
    match values.iter().position(|&value| beyond && is_beyond(bits_of(value), value)) {
        Some(index) => Err(index),
        None => Ok(()),
    }
}

/// The half precision bits nearest to a number, ties to even; without a branch.
#[inline(always)]
pub(crate) fn nearest_f16(value: f32) -> u16 {
    let (sign, magnitude) = (value.to_bits() >> 16 & 0x8000, value.to_bits() & 0x7fff_ffff);
    // Normal numbers: the exponent moves, and what is cut off is rounded as whole bits are.
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    // Subnormal ones: a sum whose last bit is worth 2⁻²⁴ rounds them.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let nan = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    let bits = if magnitude >= 143 << 23 { nan } else { finite };
    (sign | bits) as u16
}

/// The bits of the upper half nearest to a number, ties to even; without a branch.
#[inline(always)]
fn nearest_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40; // Rounding a NaN could make it a number.
    (if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) as u16
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

    /// The bits of the type's number that is nearest, found among its neighbours in `f64`.
    fn nearest_by_search(float: FloatType, value: f32) -> u16 {
        let of = |bits: u16| {
            let mut found = [0.0];
            float.widen(&bits.to_le_bytes(), &mut found);
            f64::from(found[0])
        };
        let (sign, largest) = (
            if value.is_sign_negative() { 0x8000 } else { 0 },
            match float {
                FloatType::F16 => 0x7bff,
                _ => 0x7f7f,
            },
        );
        // All magnitudes of one sign are in order.
        let (mut low, mut high) = (0u16, largest);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if of(middle) <= f64::from(value.abs()) { low = middle } else { high = middle }
        }
        let distance = |bits: u16| (of(bits) - f64::from(value.abs())).abs();
        let even = if low % 2 == 0 { low } else { high };
        let nearest = match distance(low).total_cmp(&distance(high)) {
            std::cmp::Ordering::Less => low,
            std::cmp::Ordering::Equal => even,
            std::cmp::Ordering::Greater => high,
        };
        sign | nearest
    }

    #[test]
    fn numbers_are_narrowed_to_the_nearest_and_ties_to_even() {
        for float in [FloatType::F16, FloatType::BF16] {
            for seed in 0..200_000u32 {
                // Of all magnitudes; every eighth one between two numbers of the type.
                let bits = seed.wrapping_mul(0x9e37_79b9);
                let (half, sixteenth) = (bits & !0x1fff | 0x1000, bits & 0xffff_0000 | 0x8000);
                let value = f32::from_bits([bits, half, sixteenth, bits][seed as usize % 4]);
                let mut stored = [0; 2];
                let narrowed = float.narrow(&[value], &mut stored);
                let found = u16::from_le_bytes(stored);
                let beyond = float == FloatType::F16 && value.abs() >= 65520.0;
                match (value.is_nan(), value.is_infinite()) {
                    (true, _) => {
                        let mut wide = [0.0];
                        float.widen(&stored, &mut wide);
                        assert!(wide[0].is_nan() && narrowed.is_ok(), "{value}");
                    }
                    (_, true) => assert!(narrowed.is_ok() && found & 0x7fff >= 0x7c00),
                    _ if beyond => assert!(narrowed == Err(0), "{value}"),
                    _ if narrowed.is_err() => assert!(value.abs() > 3.38e38, "{value}"),
                    _ => assert_eq!(found, nearest_by_search(float, value), "{float:?} {value:e}"),
                }
            }
        }
        let mut stored = [0; 8];
        let values = [1.0, f32::INFINITY, 7e4, f32::NAN];
        assert_eq!(FloatType::F16.narrow(&values, &mut stored), Err(2));
        let mut wide = [0; 8];
        FloatType::F32.narrow(&[1.5, -0.0], &mut wide).unwrap();
        assert_eq!(wide[..4], 1.5f32.to_le_bytes());
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
