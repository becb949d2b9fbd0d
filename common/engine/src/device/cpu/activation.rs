//! Activations, alone or as gates.

use std::mem::MaybeUninit;

use cake_checkpoint::{Activation, ClampedGate};

use crate::device::Xielu;
use crate::device::cpu::buffer::{Uninit, UninitVec};
use crate::device::cpu::elementwise::{by_rows, load_tail};
use crate::device::cpu::exponential::exp;
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};
use crate::device::cpu::isa::tier::Tier;

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

/// What a clamped gate makes of gate and up, elementwise.
pub(crate) fn clamped(tier: Tier, function: ClampedGate, gate: &[f32], up: &[f32]) -> Vec<f32> {
    assert_eq!(gate.len(), up.len(), "one up for each gate");
    let mut out = UninitVec::new(gate.len());
    by_rows(out.uninit(), LANES, |row, out| {
        let (x, up) = (&gate[row * LANES..][..out.len()], &up[row * LANES..][..out.len()]);
        tier.run(Activate { x, up: Some(up), out, function });
    });
    // SAFETY: as above.
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

    /// What `value`, which [`Function::of`] gave, is as a gate of `up`.
    #[inline(always)]
    fn gate<S: Simd>(self, simd: S, value: S::V, up: S::V) -> S::V {
        simd.mul(value, up)
    }
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

impl Function for ClampedGate {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::V) -> S::V {
        let x = simd.min(simd.splat(self.limit), x); // What is no number stays so.
        through(simd, x, simd.mul(x, simd.splat(-self.alpha)))
    }

    #[inline(always)]
    fn gate<S: Simd>(self, simd: S, value: S::V, up: S::V) -> S::V {
        let up = simd.max(simd.splat(-self.limit), simd.min(simd.splat(self.limit), up));
        simd.mul(value, simd.add(up, simd.splat(1.0)))
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
        debug_assert_eq!(self.x.len(), self.out.len(), "one result for each");
        debug_assert!(self.up.is_none_or(|up| up.len() == self.x.len()), "one up for each");
        // One body for whole vectors and for what is left behind them: an exponential is long.
        let parts = self.x.chunks(LANES).zip(self.out.chunks_mut(LANES));
        let mut ups = self.up.map(|up| up.chunks(LANES));
        for (x, out) in parts {
            let mut value = self.function.of(simd, vector(simd, x));
            if let Some(ups) = &mut ups
                && let Some(up) = ups.next()
            {
                value = self.function.gate(simd, value, vector(simd, up));
            }
            // By way of an array, which stays in a register: a store takes numbers that are set.
            let mut lanes = [0.0; LANES];
            simd.store(value, &mut lanes);
            match out.first_chunk_mut() {
                Some(whole) => *whole = lanes.map(MaybeUninit::new),
                None => out.iter_mut().zip(lanes).for_each(|(out, lane)| _ = out.write(lane)),
            }
        }
    }
}

/// At most sixteen numbers, zeros behind them.
#[inline(always)]
fn vector<S: Simd>(simd: S, numbers: &[f32]) -> S::V {
    match numbers.first_chunk() {
        Some(whole) => simd.load(whole),
        None => load_tail(simd, numbers, 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn gated_agrees_with_f64_at_any_length() {
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
        let gelu = |x: f64| 0.5 * x * (1.0 + inner(x).tanh());
        // Left of zero the tangent itself loses digits, also in f64, which the other form keeps.
        let squared = |x: f64| x.max(0.0).powi(2);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let table: [(_, &dyn Fn(f64) -> f64, f64); 4] = [
            (Activation::Silu, &silu, 1e-12),
            (Activation::GeluTanh, &gelu, 1e-6),
            (Activation::Relu2, &squared, 0.0),
            (Activation::Sigmoid, &sigmoid, 1e-12),
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
    fn a_clamped_gate_agrees_with_f64_and_what_is_no_number_stays_so() {
        let of = ClampedGate { alpha: 1.702, limit: 7.0 };
        let mut random = Random::new(22);
        for length in [1, 15, 16, 17, 100] {
            let mut numbers = || (0..length).map(|_| random.signed() * 20.0).collect::<Vec<f32>>();
            let (gate, up) = (numbers(), numbers());
            for tier in Tier::all() {
                for (i, found) in clamped(tier, of, &gate, &up).into_iter().enumerate() {
                    let (g, u) = (f64::from(gate[i]).min(7.0), f64::from(up[i]).clamp(-7.0, 7.0));
                    let exact = (u + 1.0) * g / (1.0 + (-f64::from(of.alpha) * g).exp());
                    let error = (f64::from(found) - exact).abs();
                    assert!(error <= 1e-6 * exact.abs() + 1e-12, "{tier:?}: {found} {exact}");
                }
            }
        }
        for tier in Tier::all() {
            let found = clamped(tier, of, &[f32::NAN, 1.0, -1e30], &[1.0, f32::NAN, 1e30]);
            assert!(found[0].is_nan() && found[1].is_nan() && found[2].abs() < 1e-6, "{found:?}");
        }
    }
}
