//! How rotations are said: keys, and for Llama 3's a tensor of divisors.

use cake_checkpoint::{RopeScaling, RotationSpec};

/// What each frequency is divided by, where that cannot be said by one factor.
///
/// `_compute_llama3_parameters` in Hugging Face transformers.
pub(super) fn divisors(rotation: &RotationSpec) -> Option<Vec<f32>> {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } =
        rotation.rope.scaling
    else {
        return None;
    };
    let pairs = rotation.dim / 2;
    let divisor = |pair: usize| {
        let frequency = rotation.rope.theta.powf(-(pair as f64) / pairs as f64);
        let turns = original_max_position * frequency / std::f64::consts::TAU;
        if turns > high_freq_factor {
            1.0
        } else if turns <= low_freq_factor {
            factor
        } else {
            let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
            1.0 / ((1.0 - kept) / factor + kept)
        }
    };
    Some((0..pairs).map(|pair| divisor(pair) as f32).collect())
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::{Rope, RotaryPairs};

    use super::*;

    #[test]
    fn divisors_go_from_one_to_the_factor() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192.0,
        };
        let pairs = RotaryPairs::Halves;
        let rotation =
            |scaling| RotationSpec { rope: Rope { theta: 5e5, scaling }, dim: 128, pairs };
        let found = divisors(&rotation(scaling)).unwrap();
        assert_eq!((found.len(), found[0], found[63]), (64, 1.0, 8.0));
        assert!(found.is_sorted());
        // As llama.cpp's converter writes them for Llama 3.1 8B.
        assert_eq!(found.iter().filter(|it| **it == 1.0).count(), 29);
        assert_eq!(found.iter().filter(|it| **it == 8.0).count(), 29);
        assert_eq!(divisors(&rotation(RopeScaling::None)), None);
    }
}
