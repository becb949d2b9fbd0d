//! Rotary position embedding: frequencies from the configuration, rotation of queries and keys.
//!
//! Of the rotating part of a head, element `i` pairs with element `i + rotary_dim / 2`, or `2i` with `2i + 1`; what follows
//! that part passes through.

use cake_checkpoint::{Rope, RopeScaling, RotaryPairs, RotationSpec};

use crate::batch::AttendRow;

/// The frequencies of one rotation.
pub(crate) struct Frequencies {
    /// One per pair, in f32 as the reference computes them.
    inverse: Vec<f32>,
    /// What sines and cosines are multiplied with.
    factor: f32,
    pairs: RotaryPairs,
}

impl Frequencies {
    /// The frequencies of a rotation, scaled as it says, where no sequence may have more than so many positions.
    pub(crate) fn new(rotation: &RotationSpec, max_positions: usize) -> Frequencies {
        let inverse = inverse_frequencies(&rotation.rope, rotation.dim, max_positions);
        let factor = match rotation.rope.scaling {
            RopeScaling::Yarn { attention_factor, .. }
            | RopeScaling::LongRope { attention_factor, .. } => attention_factor as f32,
            RopeScaling::None
            | RopeScaling::Linear { .. }
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Proportional { .. } => 1.0,
        };
        Frequencies { inverse, factor, pairs: rotation.pairs }
    }

    /// The angles of one step's rows. Computed per step rather than for every position there could
    /// be: a row takes `rotary_dim / 2` of them once for all layers.
    pub(crate) fn rotation(&self, rows: &[AttendRow<'_>]) -> Rotation {
        let half = self.inverse.len();
        let mut cos = Vec::with_capacity(rows.len() * half);
        let mut sin = Vec::with_capacity(rows.len() * half);
        for row in rows {
            for frequency in &self.inverse {
                // Through f64, whose sine every library rounds to the same f32.
                let (sin_angle, cos_angle) = f64::from(row.position as f32 * frequency).sin_cos();
                cos.push(cos_angle as f32 * self.factor);
                sin.push(sin_angle as f32 * self.factor);
            }
        }
        Rotation { cos, sin, half, pairs: self.pairs }
    }
}

/// `1 / theta^(2i / rotary_dim)` for each pair `i`, then scaled; in f32 like the reference
/// (`modeling_rope_utils` of Hugging Face transformers).
///
/// Where long sequences have other frequencies, `max_positions` decides, not how long a sequence is: what is kept of its first
/// positions stays right however long it gets, and wherever it goes on. The reference goes by each sequence, and computes all
/// that it kept again once one gets longer than `original_max_position`; llama.cpp decides as we do.
fn inverse_frequencies(rope: &Rope, rotary_dim: usize, max_positions: usize) -> Vec<f32> {
    let theta = f64::from(rope.theta as f32);
    let plain = (0..rotary_dim / 2).map(|pair| {
        let exponent = (2 * pair) as f32 / rotary_dim as f32;
        1.0 / theta.powf(f64::from(exponent)) as f32
    });
    match rope.scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|f| f / factor as f32).collect(),
        RopeScaling::LongRope {
            ref short_factor,
            ref long_factor,
            original_max_position,
            attention_factor: _,
        } => {
            let is_long = max_positions as f64 > original_max_position;
            let factors = if is_long { long_factor } else { short_factor };
            plain.zip(factors).map(|(f, factor)| f / *factor as f32).collect()
        }
        RopeScaling::Proportional { rotating, factor } => {
            let turns = |(pair, frequency): (usize, f32)| match pair < rotating {
                true => frequency / factor as f32,
                false => 0.0,
            };
            plain.enumerate().map(turns).collect()
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position,
        } => {
            let factor = factor as f32;
            let longest = (original_max_position / low_freq_factor) as f32;
            let shortest = (original_max_position / high_freq_factor) as f32;
            let scale = |frequency: f32| {
                let wavelength = std::f32::consts::TAU / frequency;
                if wavelength < shortest {
                    frequency
                } else if wavelength >= longest {
                    frequency / factor
                } else {
                    let smooth = (original_max_position as f32 / wavelength
                        - low_freq_factor as f32)
                        / (high_freq_factor - low_freq_factor) as f32;
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            };
            plain.map(scale).collect()
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_max_position,
            truncate,
            attention_factor: _,
        } => {
            // The pair that turns so often in the context that the model was first trained for.
            let pair = |turns: f64| {
                let longest = original_max_position / (turns * std::f64::consts::TAU);
                rotary_dim as f64 * longest.ln() / (2.0 * rope.theta.ln())
            };
            let (first, last) = (pair(beta_fast), pair(beta_slow));
            let (first, last) = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
            let (first, last) = (first.max(0.0), last.min(rotary_dim as f64 - 1.0));
            let width = if first == last { 0.001 } else { last - first };
            let blend = |(pair, frequency): (usize, f32)| {
                let divided = ((pair as f64 - first) / width).clamp(0.0, 1.0) as f32;
                frequency / factor as f32 * divided + frequency * (1.0 - divided)
            };
            plain.enumerate().map(blend).collect()
        }
    }
}

/// The rotation of one step: `cos` and `sin` are `[rows, half]`.
pub(crate) struct Rotation {
    pub(crate) cos: Vec<f32>,
    pub(crate) sin: Vec<f32>,
    /// Pairs of numbers of a head that rotate.
    pub(crate) half: usize,
    /// Which numbers these are.
    pub(crate) pairs: RotaryPairs,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: &[f32], expected: &[f32]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-6 * expected, "{found} {expected}");
        }
    }

    #[test]
    fn plain_and_linear_follow_their_formulas() {
        let rope = Rope { theta: 10000.0, scaling: RopeScaling::None };
        close(&inverse_frequencies(&rope, 8, 64), &[1.0, 0.1, 0.01, 0.001]);
        let rope = Rope { theta: 10000.0, scaling: RopeScaling::Linear { factor: 4.0 } };
        close(&inverse_frequencies(&rope, 8, 64), &[0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn longrope_has_factors_for_contexts_that_are_longer_than_the_first_one() {
        let scaling = RopeScaling::LongRope {
            short_factor: vec![1.0, 1.25, 1.5, 2.0],
            long_factor: vec![2.0, 4.0, 8.0, 16.0],
            original_max_position: 4096.0,
            attention_factor: 1.5,
        };
        let rope = Rope { theta: 10000.0, scaling };
        let short = [1.0, 0.1 / 1.25, 0.01 / 1.5, 0.001 / 2.0];
        for context in [1, 4096] {
            close(&inverse_frequencies(&rope, 8, context), &short);
        }
        let long = [0.5, 0.1 / 4.0, 0.01 / 8.0, 0.001 / 16.0];
        close(&inverse_frequencies(&rope, 8, 4097), &long);
        let rotation = RotationSpec { rope, dim: 8, pairs: RotaryPairs::Halves };
        let rows = [AttendRow { position: 0, blocks: &[], is_known: false }];
        assert_eq!(Frequencies::new(&rotation, 4096).rotation(&rows).cos, vec![1.5; 4]);
    }

    #[test]
    fn llama3_keeps_short_waves_stretches_long_ones_and_blends_between() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 100.0,
        };
        let rope = Rope { theta: 10000.0, scaling };
        // Wavelengths 6.28 (short), 62.8 (between 25 and 100), 628 and 6283 (long).
        let smooth = (100.0 / 62.831_853 - 1.0) / 3.0;
        let blended = (1.0 - smooth) * 0.1 / 8.0 + smooth * 0.1;
        close(&inverse_frequencies(&rope, 8, 64), &[1.0, blended, 0.00125, 0.000125]);
    }

    #[test]
    fn yarn_keeps_pairs_that_turn_often_divides_those_that_do_not_and_blends_between() {
        let scaling = |truncate| RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 8.0,
            beta_slow: 1.0,
            original_max_position: 100.0,
            truncate,
            attention_factor: 2.0,
        };
        let frequencies = |truncate| {
            let rope = Rope { theta: 10000.0, scaling: scaling(truncate) };
            inverse_frequencies(&rope, 8, 64)
        };
        // Turns in 100 positions: 15.9, 1.59, 0.159 and 0.0159; eight are between pairs 0 and 1, one is between 1 and 2.
        close(&frequencies(true), &[1.0, 0.1 * (0.5 + 0.5 / 4.0), 0.0025, 0.00025]);
        let pair =
            |turns: f64| 4.0 * (100.0 / (turns * std::f64::consts::TAU)).ln() / 10_000f64.ln();
        let divided = ((1.0 - pair(8.0)) / (pair(1.0) - pair(8.0))) as f32;
        let between = 0.1 * (divided / 4.0 + 1.0 - divided);
        close(&frequencies(false), &[1.0, between, 0.0025, 0.00025]);
        let rope = Rope { theta: 10000.0, scaling: scaling(true) };
        let rotation = RotationSpec { rope, dim: 8, pairs: RotaryPairs::Halves };
        let rows = [AttendRow { position: 0, blocks: &[], is_known: false }];
        let angles = Frequencies::new(&rotation, 64).rotation(&rows);
        assert_eq!((angles.cos, angles.sin), (vec![2.0; 4], vec![0.0; 4]));
    }
}
