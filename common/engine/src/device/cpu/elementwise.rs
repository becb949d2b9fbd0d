//! What happens between the products, row by row: norms, rotation, activation, residual sums.

use std::mem::MaybeUninit;

use cake_checkpoint::{Activation, RotaryPairs};

use crate::device::Xielu;
use crate::device::cpu::buffer::{Uninit, UninitVec};
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::{PARALLEL_WORK, current_threads, for_each_mut};
use crate::rope::Rotation;

/// Calls `work(first row, rows)` on pieces of `out`, `[rows, width]`, which together are all of it, in parallel if
/// it pays.
pub(super) fn by_rows(out: &mut Uninit, width: usize, work: impl Fn(usize, &mut Uninit) + Sync) {
    let rows = out.len() / width;
    if rows < 2 || out.len() < PARALLEL_WORK {
        return work(0, out);
    }
    let piece = rows.div_ceil(current_threads() * 2);
    let mut pieces: Vec<_> = out.chunks_mut(piece * width).collect();
    for_each_mut(&mut pieces, |index, out| work(index * piece, out));
}

/// `weight · x / sqrt(mean(x²) + eps)` of every row of `x`, `[rows, width]`; `weight` is `[width]`.
pub(crate) fn rms_norm(tier: Tier, x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let width = weight.len();
    assert!(x.len().is_multiple_of(width), "whole rows");
    let mut out = UninitVec::new(x.len());
    by_rows(out.uninit(), width, |row, out| {
        let x = &x[row * width..][..out.len()];
        tier.run(RmsNorm { x, weight, eps, out });
    });
    // SAFETY: the kernel writes as many elements of each row as there are weights, and the rows are whole.
    unsafe { out.assume_init() }
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut Uninit,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let (whole, tail) = x.as_chunks::<LANES>();
            let mut squares = simd.splat(0.0);
            for chunk in whole {
                let x = simd.load(chunk);
                squares = simd.mul_add(x, x, squares);
            }
            let x_tail = load_tail(simd, tail, 0.0);
            squares = simd.mul_add(x_tail, x_tail, squares);
            let mean = simd.sum(squares) / width as f32;
            let scale = 1.0 / (mean + self.eps).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight) {
                out.write(weight * (x * scale));
            }
        }
    }
}

/// `weight · (x - mean(x)) / sqrt(var(x) + eps)` of every row of `x`, `[rows, width]`; `weight` is `[width]`.
pub(crate) fn layer_norm(tier: Tier, x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let width = weight.len();
    assert!(x.len().is_multiple_of(width), "whole rows");
    let mut out = UninitVec::new(x.len());
    by_rows(out.uninit(), width, |row, out| {
        let x = &x[row * width..][..out.len()];
        tier.run(LayerNorm { x, weight, eps, out });
    });
    // SAFETY: the kernel writes as many elements of each row as there are weights, and the rows are whole.
    unsafe { out.assume_init() }
}

struct LayerNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut Uninit,
}

impl Kernel for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let (whole, tail) = x.as_chunks::<LANES>();
            let mut sums = load_tail(simd, tail, 0.0);
            for chunk in whole {
                sums = simd.add(sums, simd.load(chunk));
            }
            let mean = simd.sum(sums) / width as f32;
            let centre = simd.splat(mean);
            let difference = simd.sub(load_tail(simd, tail, mean), centre);
            let mut squares = simd.mul(difference, difference);
            for chunk in whole {
                let difference = simd.sub(simd.load(chunk), centre);
                squares = simd.mul_add(difference, difference, squares);
            }
            let scale = 1.0 / (simd.sum(squares) / width as f32 + self.eps).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight) {
                out.write(weight * ((x - mean) * scale));
            }
        }
    }
}

/// Fewer than sixteen values, the other lanes `rest`.
#[inline(always)]
pub(super) fn load_tail<S: Simd>(simd: S, tail: &[f32], rest: f32) -> S::V {
    let mut padded = [rest; LANES];
    padded[..tail.len()].copy_from_slice(tail);
    simd.load(&padded)
}

/// `activation(gate) · up`, elementwise.
pub(crate) fn gated(tier: Tier, activation: Activation, gate: &[f32], up: &[f32]) -> Vec<f32> {
    assert_eq!(gate.len(), up.len(), "one up for each gate");
    activations(tier, activation, gate, Some(up))
}

/// `activation(x)`, elementwise.
pub(crate) fn activated(tier: Tier, activation: Activation, x: &[f32]) -> Vec<f32> {
    activations(tier, activation, x, None)
}

/// `activation(x)`, times `up` if there is such.
fn activations(tier: Tier, activation: Activation, x: &[f32], up: Option<&[f32]>) -> Vec<f32> {
    let mut out = UninitVec::new(x.len());
    by_rows(out.uninit(), LANES, |row, out| {
        let start = row * LANES;
        let x = &x[start..][..out.len()];
        let up = up.map(|up| &up[start..][..out.len()]);
        match activation {
            Activation::Silu => tier.run(Activate { x, up, out, function: Silu }),
            Activation::GeluTanh => tier.run(Activate { x, up, out, function: GeluTanh }),
            Activation::Relu2 => tier.run(Activate { x, up, out, function: Relu2 }),
            Activation::Sigmoid => tier.run(Activate { x, up, out, function: Sigmoid }),
            Activation::Xielu => unreachable!("it has numbers of its own"),
        }
    });
    // SAFETY: the kernel writes all of its vectors and what is left behind them.
    unsafe { out.assume_init() }
}

/// xIELU of each number.
pub(crate) fn xielu(tier: Tier, function: Xielu, x: &[f32]) -> Vec<f32> {
    let mut out = UninitVec::new(x.len());
    by_rows(out.uninit(), LANES, |row, out| {
        let x = &x[row * LANES..][..out.len()];
        tier.run(Activate { x, up: None, out, function });
    });
    // SAFETY: as above.
    unsafe { out.assume_init() }
}

/// An activation, sixteen numbers at once.
trait Function: Copy {
    fn of<S: Simd>(self, simd: S, x: S::V) -> S::V;
}

/// `x / (1 + exp(exponent))`.
#[inline(always)]
fn through<S: Simd>(simd: S, x: S::V, exponent: S::V) -> S::V {
    simd.div(x, simd.add(simd.splat(1.0), exp(simd, exponent)))
}

/// The exponent is `-x`.
#[derive(Clone, Copy)]
struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::V) -> S::V {
        through(simd, x, simd.sub(simd.splat(0.0), x))
    }
}

/// The exponent is `-2 √(2/π) · (x + 0.044715 x³)`, since `(1 + tanh z) / 2 = 1 / (1 + exp(-2 z))`.
#[derive(Clone, Copy)]
struct GeluTanh;

impl Function for GeluTanh {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::V) -> S::V {
        const LINEAR: f32 = -1.595_769_121_605_730_7_f64 as f32;
        const CUBIC: f32 = -0.071_354_816_272_600_25_f64 as f32;
        let cubic = simd.mul(simd.mul(x, x), simd.splat(CUBIC));
        through(simd, x, simd.mul(x, simd.add(simd.splat(LINEAR), cubic)))
    }
}

/// `max(x, 0)²`.
#[derive(Clone, Copy)]
struct Relu2;

impl Function for Relu2 {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::V) -> S::V {
        let positive = simd.max(simd.splat(0.0), x);
        simd.mul(positive, positive)
    }
}

/// `1 / (1 + exp(-x))`.
#[derive(Clone, Copy)]
struct Sigmoid;

impl Function for Sigmoid {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::V) -> S::V {
        through(simd, simd.splat(1.0), simd.sub(simd.splat(0.0), x))
    }
}

impl Function for Xielu {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::V) -> S::V {
        let zero = simd.splat(0.0);
        let (above, below) = (simd.max(x, zero), simd.min(x, zero));
        let power = exp(simd, simd.min(below, simd.splat(self.eps)));
        let below = simd.sub(simd.sub(power, simd.splat(1.0)), below);
        let sum =
            simd.mul_add(below, simd.splat(self.negative), simd.mul(x, simd.splat(self.beta)));
        simd.mul_add(simd.mul(above, above), simd.splat(self.positive), sum)
    }
}

struct Activate<'a, F> {
    x: &'a [f32],
    up: Option<&'a [f32]>,
    out: &'a mut Uninit,
    function: F,
}

impl<F: Function> Kernel for Activate<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (xs, x_tail) = self.x.as_chunks::<LANES>();
        let (outs, out_tail) = self.out.as_chunks_mut::<LANES>();
        let (ups, up_tail) = self.up.map(|up| up.as_chunks::<LANES>()).unzip();
        let value = |x: S::V, up: Option<S::V>| {
            let value = self.function.of(simd, x);
            up.map_or(value, |up| simd.mul(value, up))
        };
        for (index, (x, out)) in xs.iter().zip(outs).enumerate() {
            // By way of an array, which stays in a register: a store takes numbers that are set.
            let mut lanes = [0.0; LANES];
            let up = ups.map(|ups| simd.load(&ups[index]));
            simd.store(value(simd.load(x), up), &mut lanes);
            *out = lanes.map(MaybeUninit::new);
        }
        let mut last = [0.0; LANES];
        let up = up_tail.map(|up| load_tail(simd, up, 0.0));
        simd.store(value(load_tail(simd, x_tail, 0.0), up), &mut last);
        out_tail.iter_mut().zip(last).for_each(|(out, last)| _ = out.write(last));
    }
}

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

/// The largest of what is a number; minus infinity if nothing is.
pub(crate) fn largest(tier: Tier, x: &[f32]) -> f32 {
    tier.run(Largest { x })
}

struct Largest<'a> {
    x: &'a [f32],
}

impl Kernel for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        const NONE: f32 = f32::NEG_INFINITY;
        let (whole, tail) = self.x.as_chunks::<LANES>();
        let (pairs, single) = whole.as_chunks::<2>();
        let mut most = [simd.splat(NONE); 2]; // Two chains, as each link takes some cycles.
        for pair in pairs {
            for (most, x) in most.iter_mut().zip(pair) {
                *most = simd.max(simd.load(x), *most); // What is no number is not larger.
            }
        }
        for x in single {
            most[0] = simd.max(simd.load(x), most[0]);
        }
        let most = simd.max(load_tail(simd, tail, NONE), simd.max(most[0], most[1]));
        let mut lanes = [NONE; LANES];
        simd.store(most, &mut lanes);
        lanes.into_iter().fold(NONE, |a, b| if b > a { b } else { a })
    }
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

/// `a + b`, elementwise.
pub(crate) fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    assert_eq!(a.len(), b.len(), "one b for each a");
    let mut out = UninitVec::new(a.len());
    by_rows(out.uninit(), LANES, |row, out| {
        let start = row * LANES;
        for ((out, a), b) in out.iter_mut().zip(&a[start..]).zip(&b[start..]) {
            out.write(a + b);
        }
    });
    // SAFETY: there are as many of `a` and `b`, and one is written for each.
    unsafe { out.assume_init() }
}

/// Turns each head of each row of `x`, `[rows, heads × head_dim]`, by the row's angles.
pub(crate) fn rotate(
    x: &[f32],
    rotation: &Rotation,
    (heads, head_dim): (usize, usize),
) -> Vec<f32> {
    let Rotation { cos, sin, half, pairs } = rotation;
    let (width, half) = (heads * head_dim, *half);
    assert!(x.len().is_multiple_of(width), "whole rows");
    let mut out = UninitVec::new(x.len());
    by_rows(out.uninit(), width, |first, out| {
        for (index, out) in out.chunks_exact_mut(width).enumerate() {
            let row = first + index;
            let (cos, sin) = (&cos[row * half..][..half], &sin[row * half..][..half]);
            let x = &x[row * width..][..width];
            for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
                match pairs {
                    RotaryPairs::Halves => {
                        let (low, high) = (&x[..half], &x[half..2 * half]);
                        for i in 0..half {
                            out[i].write(low[i] * cos[i] - high[i] * sin[i]);
                            out[half + i].write(high[i] * cos[i] + low[i] * sin[i]);
                        }
                    }
                    RotaryPairs::Neighbours => {
                        let (pairs, outs) = (x.as_chunks::<2>().0, out.as_chunks_mut::<2>().0);
                        for (i, ([a, b], [first, second])) in
                            pairs.iter().zip(outs).take(half).enumerate()
                        {
                            first.write(a * cos[i] - b * sin[i]);
                            second.write(b * cos[i] + a * sin[i]);
                        }
                    }
                }
                let rest = out[2 * half..].iter_mut().zip(&x[2 * half..]);
                rest.for_each(|(out, x)| _ = out.write(*x));
            }
        }
    });
    // SAFETY: of each head of each row, all pairs and the rest are written.
    unsafe { out.assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, digest};

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
    fn the_largest_is_that_of_the_numbers_at_any_length() {
        let mut random = Random::new(40);
        for tier in Tier::all() {
            for len in 0..70 {
                let mut x: Vec<f32> = (0..len).map(|_| random.signed()).collect();
                let expected = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(largest(tier, &x), expected, "{tier:?} {len}");
                x.insert(len / 2, f32::NAN);
                assert_eq!(largest(tier, &x), expected, "{tier:?} {len}, one is no number");
            }
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
    fn gated_agrees_with_f64_at_any_length() {
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
        let gelu = |x: f64| 0.5 * x * (1.0 + inner(x).tanh());
        // Left of zero the tangent itself loses digits, also in f64, which the other form keeps.
        let squared = |x: f64| x.max(0.0).powi(2);
        let table: [(_, &dyn Fn(f64) -> f64, f64); 3] = [
            (Activation::Silu, &silu, 1e-12),
            (Activation::GeluTanh, &gelu, 1e-6),
            (Activation::Relu2, &squared, 0.0),
        ];
        let mut random = Random::new(21);
        for length in [1, 15, 16, 17, 100] {
            let gate: Vec<f32> = (0..length).map(|_| random.signed() * 20.0).collect();
            let up: Vec<f32> = (0..length).map(|_| random.signed()).collect();
            for (tier, (activation, exact, least)) in
                Tier::all().into_iter().flat_map(|tier| table.map(|row| (tier, row)))
            {
                let (ones, alone) = (vec![1.0; length], activated(tier, activation, &gate));
                assert_eq!(alone, gated(tier, activation, &gate, &ones), "{activation:?}");
                for (i, found) in gated(tier, activation, &gate, &up).into_iter().enumerate() {
                    let exact = exact(f64::from(gate[i])) * f64::from(up[i]);
                    let error = (f64::from(found) - exact).abs();
                    assert!(error <= 1e-6 * exact.abs() + least, "{activation:?}: {found} {exact}");
                }
            }
        }
    }

    #[test]
    fn add_adds_at_any_length() {
        for length in [1, 15, 16, 17, 100] {
            let a: Vec<f32> = (0..length).map(|i| i as f32).collect();
            let b: Vec<f32> = (0..length).map(|i| 1000.0 * i as f32).collect();
            let sums = add(&a, &b);
            assert_eq!(sums.len(), length);
            assert!(sums.iter().enumerate().all(|(i, &sum)| sum == 1001.0 * i as f32));
        }
    }

    #[test]
    fn rms_norm_agrees_with_f64() {
        let mut random = Random::new(22);
        for width in [1, 24, 64, 100] {
            let x: Vec<f32> = (0..3 * width).map(|_| random.signed()).collect();
            let weight: Vec<f32> = (0..width).map(|_| random.signed()).collect();
            for tier in Tier::all() {
                let found = rms_norm(tier, &x, &weight, 1e-5);
                for (at, found) in found.into_iter().enumerate() {
                    let row = &x[at / width * width..][..width];
                    let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
                    let scale = (squares / width as f64 + 1e-5).sqrt();
                    let exact = f64::from(x[at]) / scale * f64::from(weight[at % width]);
                    assert!((f64::from(found) - exact).abs() <= 1e-6 * (1.0 + exact.abs()));
                }
            }
        }
    }

    #[test]
    fn layer_norm_agrees_with_f64() {
        let mut random = Random::new(25);
        for width in [1, 24, 64, 100] {
            let x: Vec<f32> = (0..3 * width).map(|_| 3.0 + random.signed()).collect();
            let weight: Vec<f32> = (0..width).map(|_| random.signed()).collect();
            for tier in Tier::all() {
                let found = layer_norm(tier, &x, &weight, 1e-5);
                for (at, found) in found.into_iter().enumerate() {
                    let row = &x[at / width * width..][..width];
                    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
                    let squares: f64 = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
                    let scale = (squares / width as f64 + 1e-5).sqrt();
                    let exact = (f64::from(x[at]) - mean) / scale * f64::from(weight[at % width]);
                    let error = (f64::from(found) - exact).abs();
                    assert!(error <= 4e-6 * (1.0 + exact.abs()), "{tier:?}: {found} {exact}");
                }
            }
        }
    }

    #[test]
    fn fused_tiers_agree_to_the_bit() {
        let mut random = Random::new(23);
        let mut numbers = |len: usize| (0..len).map(|_| 9.0 * random.signed()).collect::<Vec<_>>();
        let (x, y, weight) = (numbers(300), numbers(300), numbers(100));
        for tier in Tier::fused() {
            let mut all = rms_norm(tier, &x, &weight, 1e-5);
            all.extend(gated(tier, Activation::Silu, &x, &y));
            all.push(sum_exp(tier, &x, 9.0) as f32);
            let found = digest(&all);
            assert_eq!(found, 0xb3a7_c196_4567_1c99, "{tier:?}: {found:#018x}");
            let found = digest(&gated(tier, Activation::GeluTanh, &x, &y));
            assert_eq!(found, 0x589f_6af1_76b7_3a35, "{tier:?}: {found:#018x}");
        }
    }

    #[test]
    fn rotation_turns_pairs_and_leaves_what_is_past_the_rotary_part() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0];
        let turned = |pairs| {
            let (cos, sin) = (vec![0.0, 1.0], vec![1.0, 0.0]);
            rotate(&x, &Rotation { cos, sin, half: 2, pairs }, (1, 5))
        };
        assert_eq!(turned(RotaryPairs::Halves), [-3.0, 2.0, 1.0, 4.0, 5.0]);
        assert_eq!(turned(RotaryPairs::Neighbours), [-2.0, 1.0, 3.0, 4.0, 5.0]);
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
