//! How queries and keys are turned by their position.

use serde::{Deserialize, Serialize};

/// How queries and keys are turned by their position.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotationSpec {
    /// The frequencies.
    pub rope: Rope,
    /// How many numbers of a head rotate, from its first; even.
    pub dim: usize,
}

/// Constants of the rotary position embedding.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How the frequencies are stretched for longer contexts.
    pub scaling: RopeScaling,
}

/// How frequencies are stretched.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency is divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Low frequencies are divided, high ones kept, those between blended (Llama 3.1).
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position ÷ low_freq_factor` are low.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position ÷ high_freq_factor` are high.
        high_freq_factor: f64,
        /// Context the model was first trained for.
        original_max_position: f64,
    },
}
