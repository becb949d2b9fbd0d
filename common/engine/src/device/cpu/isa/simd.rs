//! Sixteen f32 lanes: the one vector type that kernels are written against, and its portable form.

use super::packed::unpacked;

/// Lanes of a vector. Part of the numerics: it fixes the order of every sum.
pub(crate) const LANES: usize = 16;

/// Outputs whose codes are multiplied with the same words at a time: a sum of each fits into four lanes.
pub(crate) const TOGETHER: usize = 4;

/// Code that is compiled once per tier.
pub(crate) trait Kernel {
    /// What the kernel returns.
    type Output;

    /// The body. Implementations are `#[inline(always)]`, so that the caller's tier reaches them.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Vector arithmetic of one tier. A value of the type proves that the processor has the tier.
pub(crate) trait Simd: Copy + Send + Sync {
    /// Sixteen f32 lanes.
    type V: Copy;
    /// Whether sixteen and more vectors can be kept in registers at once.
    const WIDE_TILES: bool;
    /// Those lanes of a vector that one register holds: [`LANES`] / [`Simd::PARTS`] of them.
    type Part: Copy;
    /// Registers of a vector.
    const PARTS: usize;
    /// Whether there are 32 registers, and not just sixteen.
    const MANY_REGISTERS: bool;
    /// Whether [`Simd::dots_packed`] costs no more than as many of [`Simd::dot`] with codes that were widened before.
    const DOTS_PACKED: bool = false;

    /// All lanes `value`.
    fn splat(self, value: f32) -> Self::V;
    /// Reads sixteen values.
    fn load(self, from: &[f32; LANES]) -> Self::V;
    /// Reads sixteen little-endian f32 at any address.
    fn load_f32(self, from: &[u8; 64]) -> Self::V;
    /// Reads sixteen little-endian f16 at any address; exact for subnormals, infinities and NaN.
    fn load_f16(self, from: &[u8; 32]) -> Self::V;
    /// Reads sixteen little-endian bf16 at any address; exact.
    fn load_bf16(self, from: &[u8; 32]) -> Self::V;
    /// Reads 32 little-endian bf16 at any address: those at even places, then those at odd ones,
    /// which are next to each other in a word of 32 bits. Exact.
    fn load_bf16_pairs(self, from: &[u8; 64]) -> (Self::V, Self::V);
    /// Reads sixteen signed bytes; exact.
    fn load_i8(self, from: &[u8; LANES]) -> Self::V;
    /// Turns 128 FP8 numbers (E4M3) into f16, little-endian, of which each is the 256th part of the number; exact, and
    /// what is no number stays none.
    #[inline(always)]
    fn halves_of_e4m3(self, from: &[u8; 128], to: &mut [u8; 256]) {
        // An exponent is a 256th part where it is of bias 15 and not 7; loops, which compilers make vectors of.
        let to = to.as_chunks_mut::<2>().0;
        for i in 0..128 {
            let half = (i16::from(from[i] as i8) << 7) as u16 & 0xbfff;
            // All ones carry into the bit that makes its exponent that of what is no number.
            let none = half.wrapping_add(0x80) & 0x4000;
            to[i] = (half | none).to_le_bytes();
        }
    }
    /// Reads one part of sixteen values, the one of this number modulo [`Simd::PARTS`].
    fn load_part(self, from: &[f32; LANES], part: usize) -> Self::Part;
    /// Writes one part of sixteen values, the one of this number modulo [`Simd::PARTS`].
    fn store_part(self, value: Self::Part, to: &mut [f32; LANES], part: usize);
    /// As [`Simd::mul_add`], of one part.
    fn mul_add_part(self, a: Self::Part, b: Self::Part, c: Self::Part) -> Self::Part;
    /// Writes sixteen values.
    fn store(self, value: Self::V, to: &mut [f32; LANES]);
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the tier fuses.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a` where `a > b`, else `b` (so a NaN in `b` stays).
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a` where `a < b`, else `b` (so a NaN in `b` stays).
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `2^n` for lanes that hold `1.5 * 2^23 + n`, `-126 <= n <= 127`.
    fn pow2_of_shifted(self, shifted: Self::V) -> Self::V;
    /// Runs `kernel` as a function that is never inlined: whatever its caller has in registers, they are all its own.
    fn apart<K: Kernel>(self, kernel: K) -> K::Output;
    /// Sum of the lanes: lane `i` with `i + 8`, then `+ 4`, `+ 2`, `+ 1`.
    fn sum(self, value: Self::V) -> f32;
    /// Transposes: lane `j` of row `i` goes to lane `i` of row `j`.
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES];
    /// Integer dot product, whose sum fits into 32 bits in any order; `N` is a multiple of 16.
    #[inline(always)]
    fn dot<const N: usize>(self, a: &[i16; N], b: &[i16; N]) -> i32 {
        // In pairs, which compilers know an instruction for.
        let mut sums = [0; 4];
        for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
            for (pair, sum) in sums.iter_mut().enumerate() {
                let product = |i: usize| i32::from(a[i]) * i32::from(b[i]);
                *sum += product(2 * pair) + product(2 * pair + 1);
            }
        }
        sums.iter().sum()
    }
    /// As [`Simd::dot`], each with `N` codes of 4 bits (`x` is in the order of [`unpacked()`]), or of a byte each, below 64
    /// if `BITS` is 6; `N` is a multiple of 32, or 16 but with halves of bytes. No part of [`Simd::apart`].
    #[inline(always)]
    fn dots_packed<const N: usize, const BITS: usize>(
        self,
        codes: [&[u8]; TOGETHER],
        x: &[i16; N],
    ) -> [i32; TOGETHER] {
        let mut dots = [0; TOGETHER];
        for i in 0..TOGETHER {
            dots[i] = self.dot(&unpacked::<N, BITS>(codes[i]).map(i16::from), x);
        }
        dots
    }
    /// Prefetches the cache line at `address`, which need not be valid, into the second-level cache.
    fn prefetch(self, address: *const u8);
    /// Prefetches the cache line at `address`, which need not be valid, from the second-level cache into
    /// the first.
    fn prefetch_near(self, address: *const u8);
}

/// Plain Rust on arrays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

impl Portable {
    /// Whether it rounds once where it multiplies and adds: where every processor that this is
    /// compiled for has the instruction.
    pub(crate) const FUSED: bool = cfg!(target_arch = "aarch64") || cfg!(target_feature = "fma");
}

#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if Portable::FUSED {
        a.mul_add(b, c)
    } else {
        a * b + c // A call to a software fma would be a hundred times slower.
    }
}

/// Widens an IEEE half by moving its bits and rescaling the exponent.
#[inline(always)]
pub(crate) fn widen_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let sign = u32::from(bits & 0x8000) << 16;
    // Multiplying by 2^112 moves the exponent bias from 15 to 127 and normalises subnormals.
    let rescaled = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
    let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(rescaled.to_bits() | special | sign)
}

impl Simd for Portable {
    type V = [f32; LANES];
    const WIDE_TILES: bool = cfg!(target_arch = "aarch64");
    type Part = [f32; 4];
    const PARTS: usize = LANES / 4;
    const MANY_REGISTERS: bool = cfg!(target_arch = "aarch64");

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        *from
    }

    #[inline(always)]
    fn load_f32(self, from: &[u8; 64]) -> Self::V {
        let mut value = [0.0; LANES];
        for (lane, bytes) in value.iter_mut().zip(from.as_chunks::<4>().0) {
            *lane = f32::from_le_bytes(*bytes);
        }
        value
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> Self::V {
        let mut value = [0.0; LANES];
        for (lane, bytes) in value.iter_mut().zip(from.as_chunks::<2>().0) {
            *lane = widen_f16(u16::from_le_bytes(*bytes));
        }
        value
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> Self::V {
        let mut value = [0.0; LANES];
        for (lane, bytes) in value.iter_mut().zip(from.as_chunks::<2>().0) {
            *lane = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        }
        value
    }

    #[inline(always)]
    fn load_bf16_pairs(self, from: &[u8; 64]) -> (Self::V, Self::V) {
        let (mut even, mut odd) = ([0.0; LANES], [0.0; LANES]);
        for (lane, bytes) in from.as_chunks::<4>().0.iter().enumerate() {
            let pair = u32::from_le_bytes(*bytes);
            even[lane] = f32::from_bits(pair << 16);
            odd[lane] = f32::from_bits(pair & 0xffff_0000);
        }
        (even, odd)
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Self::V {
        from.map(|code| f32::from(code as i8))
    }

    #[inline(always)]
    fn load_part(self, from: &[f32; LANES], part: usize) -> Self::Part {
        from.as_chunks().0[part % Self::PARTS]
    }

    #[inline(always)]
    fn store_part(self, value: Self::Part, to: &mut [f32; LANES], part: usize) {
        to.as_chunks_mut().0[part % Self::PARTS] = value;
    }

    #[inline(always)]
    fn mul_add_part(self, a: Self::Part, b: Self::Part, mut c: Self::Part) -> Self::Part {
        for (lane, c) in c.iter_mut().enumerate() {
            *c = mul_add(a[lane], b[lane], *c);
        }
        c
    }

    #[inline(never)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn store(self, value: Self::V, to: &mut [f32; LANES]) {
        *to = value;
    }

    #[inline(always)]
    fn add(self, mut a: Self::V, b: Self::V) -> Self::V {
        for (a, b) in a.iter_mut().zip(&b) {
            *a += b;
        }
        a
    }

    #[inline(always)]
    fn sub(self, mut a: Self::V, b: Self::V) -> Self::V {
        for (a, b) in a.iter_mut().zip(&b) {
            *a -= b;
        }
        a
    }

    #[inline(always)]
    fn mul(self, mut a: Self::V, b: Self::V) -> Self::V {
        for (a, b) in a.iter_mut().zip(&b) {
            *a *= b;
        }
        a
    }

    #[inline(always)]
    fn div(self, mut a: Self::V, b: Self::V) -> Self::V {
        for (a, b) in a.iter_mut().zip(&b) {
            *a /= b;
        }
        a
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, mut c: Self::V) -> Self::V {
        for lane in 0..LANES {
            c[lane] = mul_add(a[lane], b[lane], c[lane]);
        }
        c
    }

    #[inline(always)]
    fn max(self, mut a: Self::V, b: Self::V) -> Self::V {
        for (a, &b) in a.iter_mut().zip(&b) {
            *a = if *a > b { *a } else { b };
        }
        a
    }

    #[inline(always)]
    fn min(self, mut a: Self::V, b: Self::V) -> Self::V {
        for (a, &b) in a.iter_mut().zip(&b) {
            *a = if *a < b { *a } else { b };
        }
        a
    }

    #[inline(always)]
    fn pow2_of_shifted(self, mut shifted: Self::V) -> Self::V {
        for lane in &mut shifted {
            *lane = f32::from_bits((lane.to_bits() << 23).wrapping_add(127 << 23));
        }
        shifted
    }

    #[inline(always)]
    fn sum(self, mut value: Self::V) -> f32 {
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                value[lane] += value[lane + half];
            }
            half /= 2;
        }
        value[0]
    }

    #[inline(always)]
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES] {
        std::array::from_fn(|j| std::array::from_fn(|i| rows[i][j]))
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        super::prefetch::prefetch(address);
    }

    #[inline(always)]
    fn prefetch_near(self, address: *const u8) {
        super::prefetch::prefetch_near(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::isa::tier::Tier;
    use crate::testing::Random;

    #[test]
    fn every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            let found = widen_f16(bits);
            assert!(
                found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
                "{bits:#06x}: {found} is not {expected}"
            );
        }
    }

    /// Results of every operation on the same numbers, special ones among them.
    struct Operations<'a> {
        a: &'a [f32; LANES],
        b: &'a [f32; LANES],
        bytes: &'a [u8; 65],
    }

    impl Kernel for Operations<'_> {
        type Output = Vec<[f32; LANES]>;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let Operations { a, b, bytes } = self;
            let (va, vb) = (simd.load(a), simd.load(b));
            let odd = bytes[1..].as_chunks::<32>().0; // At an odd address.
            let pairs = simd.load_bf16_pairs(bytes[1..].first_chunk().unwrap());
            let shifted = simd.splat(1.5 * (1 << 23) as f32 - 7.0);
            let mut all = vec![
                simd.splat(a[3]),
                simd.load_f32(bytes[1..].first_chunk().unwrap()),
                simd.load_f16(&odd[0]),
                simd.load_f16(&odd[1]),
                simd.load_bf16(&odd[0]),
                simd.load_i8(bytes[1..].first_chunk().unwrap()),
                pairs.0,
                pairs.1,
                simd.add(va, vb),
                simd.sub(va, vb),
                simd.mul(va, vb),
                simd.div(va, vb),
                simd.max(va, vb),
                simd.min(va, vb),
                simd.pow2_of_shifted(shifted),
                simd.splat(simd.sum(va)),
            ];
            let mut rows = [va; LANES];
            for (lane, row) in rows.iter_mut().enumerate() {
                *row = simd.add(vb, simd.splat(lane as f32 * 100.0));
            }
            all.extend(simd.transpose(rows));
            let mut stored = vec![[0.0; LANES]; all.len()];
            for (to, from) in stored.iter_mut().zip(all) {
                simd.store(from, to);
            }
            stored
        }
    }

    #[test]
    fn every_operation_of_every_tier_is_that_of_plain_code() {
        let mut random = Random::new(61);
        for case in 0..200 {
            let mut numbers = || std::array::from_fn(|_| 1e3 * random.signed());
            let (mut a, mut b): ([f32; LANES], [f32; LANES]) = (numbers(), numbers());
            let special = [f32::NAN, f32::INFINITY, -0.0, 0.0, f32::MIN_POSITIVE / 2.0, -1.0];
            for (index, value) in special.into_iter().enumerate().take(case % 7) {
                a[random.below(LANES)] = value;
                b[random.below(LANES)] = special[(index + case) % special.len()];
            }
            let bytes: [u8; 65] = std::array::from_fn(|_| random.below(256) as u8);
            let operations = || Operations { a: &a, b: &b, bytes: &bytes };
            let plain = operations().run(Portable);
            for tier in Tier::all() {
                let found = tier.run(operations());
                for (index, (found, plain)) in found.iter().zip(&plain).enumerate() {
                    for (found, plain) in found.iter().zip(plain) {
                        let same = found.to_bits() == plain.to_bits();
                        // Of what is no number, processors keep different bits.
                        let same = same || (found.is_nan() && plain.is_nan());
                        assert!(same, "case {case} {tier:?} result {index}: {found} {plain}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_number_of_a_byte_becomes_the_half_of_its_256th_part_in_every_tier() {
        struct Halve<'a>(&'a [u8; 128]);
        impl Kernel for Halve<'_> {
            type Output = [u8; 256];
            #[inline(always)]
            fn run<S: Simd>(self, simd: S) -> [u8; 256] {
                let mut halves = [0; 256];
                simd.halves_of_e4m3(self.0, &mut halves);
                halves
            }
        }
        // All numbers twice, once without what is none among them.
        for numbers in [0..128, 128..256, 0..127, 128..255] {
            let len = numbers.len();
            let line = std::array::from_fn(|index| (numbers.start + index % len) as u8);
            for tier in Tier::all() {
                for (byte, half) in line.iter().zip(tier.run(Halve(&line)).as_chunks::<2>().0) {
                    let found = 256.0 * half::f16::from_le_bytes(*half).to_f32();
                    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
                    let magnitude = match exponent {
                        0 => fraction / 512.0,
                        _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
                    };
                    let expected = if *byte < 128 { magnitude } else { -magnitude };
                    match byte & 0x7f {
                        0x7f => assert!(found.is_nan(), "{byte:#x} {tier:?}"),
                        _ => assert_eq!(found.to_bits(), expected.to_bits(), "{byte:#x} {tier:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn the_parts_of_a_vector_are_computed_as_the_whole_is() {
        struct Parts<'a>(&'a [[f32; LANES]; 3]);
        impl Kernel for Parts<'_> {
            type Output = [[f32; LANES]; 2];
            #[inline(always)]
            fn run<S: Simd>(self, simd: S) -> Self::Output {
                let [a, b, c] = self.0;
                let mut results = [[f32::NAN; LANES]; 2];
                for part in 0..S::PARTS {
                    let (a, b) = (simd.load_part(a, part), simd.load_part(b, part));
                    let sum = simd.mul_add_part(a, b, simd.load_part(c, part));
                    simd.store_part(sum, &mut results[0], part);
                }
                let sum = simd.mul_add(simd.load(a), simd.load(b), simd.load(c));
                simd.store(sum, &mut results[1]);
                results
            }
        }
        let mut random = Random::new(63);
        for case in 0..50 {
            let numbers = std::array::from_fn(|_| std::array::from_fn(|_| random.signed()));
            for tier in Tier::all() {
                let [parts, whole] = tier.run(Parts(&numbers));
                assert_eq!(parts, whole, "case {case} {tier:?}");
            }
        }
    }
}
