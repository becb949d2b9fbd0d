//! Powers of e, with the same bits on every device: alone, summed up, as a softmax, and as the hyperbolic tangent.

use crate::device::cpu::elementwise::{largest, load_tail};
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};
use crate::device::cpu::isa::tier::Tier;

/// `e^x` within 2 units in the last place for -87 <= x <= 88, saturating outside; NaN stays NaN.
///
/// Our own, so that every device and C library gives the same bits. The Cephes `expf` polynomial:
/// `e^x = 2^n · e^r` with `n = round(x / ln 2)` and `|r| <= ln 2 / 2`.
#[inline(always)]
pub(super) fn exp<S: Simd>(simd: S, x: S::V) -> S::V {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN_2_HIGH: f32 = 355.0 / 512.0; // Few enough bits for n · LN_2_HIGH to be exact.
    const LN_2_LOW: f32 = -2.121_944_4e-4; // ln 2 - LN_2_HIGH
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it leaves the nearest integer.
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
    let x = simd.max(simd.splat(-87.0), x);
    let x = simd.min(simd.splat(88.0), x);
    let shifted = simd.add(simd.mul(x, simd.splat(LOG2_E)), simd.splat(ROUND));
    let n = simd.sub(shifted, simd.splat(ROUND));
    let r = simd.mul_add(n, simd.splat(-LN_2_HIGH), x);
    let r = simd.mul_add(n, simd.splat(-LN_2_LOW), r);
    let mut p = simd.splat(POLYNOMIAL[0]);
    for &coefficient in &POLYNOMIAL[1..] {
        p = simd.mul_add(p, r, simd.splat(coefficient));
    }
    let p = simd.mul_add(p, simd.mul(r, r), r);
    simd.mul(simd.add(p, simd.splat(1.0)), simd.pow2_of_shifted(shifted))
}

/// The sum of `e^(x - largest)` over what is a number, in f32 within blocks of 4,096 values,
/// which are summed in f64.
pub(crate) fn sum_exp(tier: Tier, x: &[f32], largest: f32) -> f64 {
    let block = |x| f64::from(tier.run(SumExp { x, largest }));
    x.chunks(4096).map(block).sum()
}

struct SumExp<'a> {
    x: &'a [f32],
    largest: f32,
}

impl Kernel for SumExp<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (whole, tail) = self.x.as_chunks::<LANES>();
        let mut sums = simd.splat(0.0);
        for x in whole {
            sums = simd.add(sums, exp_below(simd, simd.load(x), self.largest));
        }
        // The lanes past the end add `e^-87` each.
        let tail = load_tail(simd, tail, f32::NEG_INFINITY);
        simd.sum(simd.add(sums, exp_below(simd, tail, self.largest)))
    }
}

/// `e^(x - largest)`, for what is no number as for minus infinity.
#[inline(always)]
fn exp_below<S: Simd>(simd: S, x: S::V, largest: f32) -> S::V {
    let x = simd.max(x, simd.splat(f32::NEG_INFINITY));
    exp(simd, simd.sub(x, simd.splat(largest)))
}

/// The softmax of a row: exponentials of its values less the largest, divided by their sum. It is the same to the bit on
/// all tiers that round products and sums at once.
pub(crate) fn softmax(tier: Tier, x: &[f32]) -> Vec<f32> {
    let mut exponentials = vec![0.0; x.len()];
    tier.run(Exponentials { x, largest: largest(tier, x), out: &mut exponentials });
    let sum: f64 = exponentials.iter().map(|&value| f64::from(value)).sum();
    exponentials.iter_mut().for_each(|value| *value = (f64::from(*value) / sum) as f32);
    exponentials
}

struct Exponentials<'a> {
    x: &'a [f32],
    largest: f32,
    out: &'a mut [f32],
}

impl Kernel for Exponentials<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (x, rest) = self.x.as_chunks::<LANES>();
        let (out, out_rest) = self.out.as_chunks_mut::<LANES>();
        for (x, out) in x.iter().zip(out) {
            simd.store(exp_below(simd, simd.load(x), self.largest), out);
        }
        let mut last = [0.0; LANES];
        simd.store(exp_below(simd, load_tail(simd, rest, 0.0), self.largest), &mut last);
        out_rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// `softcap · tanh(x / softcap)` of sixteen numbers, in place.
#[inline(always)]
pub(super) fn cap<S: Simd>(simd: S, softcap: f32, x: &mut [f32; LANES]) {
    // tanh(z) = 1 - 2 / (1 + e^2z): what is lost near zero is as small beside the softcap as the last digit of one is.
    let one = simd.splat(1.0);
    let power = exp(simd, simd.mul(simd.load(x), simd.splat(2.0 / softcap)));
    let part = simd.div(simd.splat(2.0), simd.add(one, power));
    simd.store(simd.mul(simd.sub(one, part), simd.splat(softcap)), x);
}

/// [`cap`] of all of `x`, in place.
pub(crate) fn capped(tier: Tier, softcap: f32, x: &mut [f32]) {
    tier.run(Capped { softcap, x });
}

struct Capped<'a> {
    softcap: f32,
    x: &'a mut [f32],
}

impl Kernel for Capped<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (whole, tail) = self.x.as_chunks_mut::<LANES>();
        whole.iter_mut().for_each(|chunk| cap(simd, self.softcap, chunk));
        let mut last = [0.0; LANES];
        last[..tail.len()].copy_from_slice(tail);
        cap(simd, self.softcap, &mut last);
        tail.copy_from_slice(&last[..tail.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    struct Exp<'a>(&'a mut [f32; LANES]);

    impl Kernel for Exp<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let value = exp(simd, simd.load(self.0));
            simd.store(value, self.0);
        }
    }

    #[test]
    fn sums_of_exponentials_are_close_and_leave_out_what_is_no_number() {
        let mut random = Random::new(41);
        for len in [1, 15, 16, 17, 4_095, 4_097, 20_000] {
            let mut x: Vec<f32> = (0..len).map(|_| 30.0 * random.signed()).collect();
            let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let expected: f64 = x.iter().map(|x| (f64::from(*x) - f64::from(largest)).exp()).sum();
            x.insert(len / 2, f32::NAN);
            x.insert(len / 3, f32::NEG_INFINITY);
            for tier in Tier::all() {
                let found = sum_exp(tier, &x, largest);
                let off = (found / expected - 1.0).abs();
                assert!(off < 1e-6, "{tier:?} {len}: {found} is not {expected}");
            }
        }
    }

    #[test]
    fn exp_is_close_saturates_and_keeps_nan() {
        for tier in Tier::all() {
            let mut x = -87.0f32;
            while x < 88.0 {
                let mut lanes = [x; LANES];
                tier.run(Exp(&mut lanes));
                let exact = f64::from(x).exp();
                let error = (f64::from(lanes[3]) - exact).abs() / exact;
                assert!(error < 2.5e-7, "{tier:?} exp({x}): {} {exact}", lanes[3]);
                x += 0.0173;
            }
            let mut lanes = [0.0; LANES];
            lanes[..4].copy_from_slice(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0]);
            tier.run(Exp(&mut lanes));
            assert!(lanes[0] > 1e38 && lanes[1] < 1e-37 && lanes[2].is_nan() && lanes[3] == 1.0);
        }
    }

    #[test]
    fn capped_numbers_agree_with_f64_at_any_length() {
        let mut random = Random::new(24);
        for (length, softcap) in [(1, 50.0), (15, 30.0), (16, 1.0), (100, 50.0)] {
            let x: Vec<f32> = (0..length).map(|_| 90.0 * random.signed()).collect();
            for tier in Tier::all() {
                let mut found = x.clone();
                capped(tier, softcap, &mut found);
                for (x, found) in x.iter().zip(found) {
                    let softcap = f64::from(softcap);
                    let exact = softcap * (f64::from(*x) / softcap).tanh();
                    let error = (f64::from(found) - exact).abs();
                    assert!(error <= 4e-7 * softcap, "{tier:?} {x}: {found} is not {exact}");
                }
            }
        }
    }
}
