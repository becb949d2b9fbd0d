//! What happens between the GEMMs, row by row: RMS and layer norms, rotation (RoPE), residual sums.

use cake_checkpoint::RotaryPairs;

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
            let (mean, variance) = moments(simd, x);
            let scale = 1.0 / (variance + self.eps).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight) {
                out.write(weight * ((x - mean) * scale));
            }
        }
    }
}

/// The mean of a row, and the mean square of what differs from it.
#[inline(always)]
fn moments<S: Simd>(simd: S, x: &[f32]) -> (f32, f32) {
    let width = x.len() as f32;
    let (whole, tail) = x.as_chunks::<LANES>();
    let mut sums = load_tail(simd, tail, 0.0);
    for chunk in whole {
        sums = simd.add(sums, simd.load(chunk));
    }
    let mean = simd.sum(sums) / width;
    let centre = simd.splat(mean);
    let difference = simd.sub(load_tail(simd, tail, mean), centre);
    let mut squares = simd.mul(difference, difference);
    for chunk in whole {
        let difference = simd.sub(simd.load(chunk), centre);
        squares = simd.mul_add(difference, difference, squares);
    }
    (mean, simd.sum(squares) / width)
}

/// `max(x − bound, 0)` of every number of `x`, `[rows, width]`, the bound so many standard deviations above the mean of
/// its row. What is no number stays none.
pub(crate) fn above(tier: Tier, x: &[f32], width: usize, deviations: f32) -> Vec<f32> {
    assert!(x.len().is_multiple_of(width), "whole rows");
    let mut out = UninitVec::new(x.len());
    by_rows(out.uninit(), width, |row, out| {
        let x = &x[row * width..][..out.len()];
        tier.run(Above { x, width, deviations, out });
    });
    // SAFETY: the kernel writes as many elements of each row as there are, and the rows are whole.
    unsafe { out.assume_init() }
}

struct Above<'a> {
    x: &'a [f32],
    width: usize,
    deviations: f32,
    out: &'a mut Uninit,
}

impl Kernel for Above<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.x.chunks_exact(self.width).zip(self.out.chunks_exact_mut(self.width));
        for (x, out) in rows {
            let (mean, variance) = moments(simd, x);
            let bound = mean + variance.sqrt() * self.deviations;
            for (out, x) in out.iter_mut().zip(x) {
                let over = x - bound;
                out.write(if over < 0.0 { 0.0 } else { over });
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

/// RoPE: turns each head of each row of `x`, `[rows, heads × head_dim]`, by the row's angles.
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
    use cake_checkpoint::Activation;

    use super::*;
    use crate::device::cpu::activation::gated;
    use crate::device::cpu::exponential::sum_exp;
    use crate::testing::{Random, digest};

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
    fn what_is_above_a_bound_agrees_with_f64_and_hides_no_nan() {
        let mut random = Random::new(9);
        for width in [1, 5, 16, 33, 200] {
            let x: Vec<f32> = (0..3 * width).map(|_| random.signed() * 3.0 + 1.0).collect();
            for tier in Tier::all() {
                let found = above(tier, &x, width, 1.25);
                for (x, found) in x.chunks(width).zip(found.chunks(width)) {
                    let numbers = || x.iter().map(|x| f64::from(*x));
                    let mean = numbers().sum::<f64>() / width as f64;
                    let variance = numbers().map(|x| (x - mean).powi(2)).sum::<f64>();
                    let bound = mean + 1.25 * (variance / width as f64).sqrt();
                    for (x, found) in numbers().zip(found) {
                        let expected = (x - bound).max(0.0);
                        assert!((f64::from(*found) - expected).abs() < 1e-5, "{tier:?} {width}");
                    }
                }
            }
        }
        let tier = Tier::detect();
        assert!(above(tier, &[1.0, f32::NAN, 2.0], 3, 1.0).iter().all(|it| it.is_nan()));
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
}
