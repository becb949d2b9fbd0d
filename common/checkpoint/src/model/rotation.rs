//! How queries and keys are turned by their position.

use serde::{Deserialize, Serialize};

use super::spec::is_default;

/// How queries and keys are turned by their position.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotationSpec {
    /// The frequencies.
    pub rope: Rope,
    /// How many numbers of a head rotate, from its first; even.
    pub dim: usize,
    /// Which two of them are turned together.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pairs: RotaryPairs,
}

/// Which numbers of the rotating part of a head are turned together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RotaryPairs {
    /// The first of its first half and the first of its second, and so on.
    #[default]
    Halves,
    /// The first two, the next two, and so on: interleaved.
    Neighbours,
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
    /// Low frequencies are divided, high ones kept, those between blended by the number of their pair (YaRN,
    /// arXiv:2309.00071).
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// Pairs that turn more often than this in `original_max_position` positions are kept.
        beta_fast: f64,
        /// Pairs that turn less often are divided.
        beta_slow: f64,
        /// Context the model was first trained for.
        original_max_position: f64,
        /// Whether the first and the last pair between are whole numbers.
        truncate: bool,
        /// What sines and cosines are multiplied with.
        attention_factor: f64,
    },
    /// Every frequency is divided by a factor of its own, of which there are two: one where no sequence may be longer than the
    /// model was first trained for, one where a sequence may be (LongRoPE, arXiv:2402.13753).
    #[serde(rename = "longrope")]
    LongRope {
        /// Of each pair, where the context is at most `original_max_position`.
        short_factor: Vec<f64>,
        /// Of each pair, where it is longer: of all positions then, as what is kept of the first ones stays as it was turned.
        long_factor: Vec<f64>,
        /// Context the model was first trained for.
        original_max_position: f64,
        /// What sines and cosines are multiplied with.
        attention_factor: f64,
    },
    /// The first pairs rotate, with frequencies as if all did, and the others do not (Gemma 4).
    Proportional {
        /// How many do.
        rotating: usize,
        /// The divisor of their frequencies.
        factor: f64,
    },
}

impl RopeScaling {
    /// As configurations name it (`rope_type`).
    pub const fn name(&self) -> &'static str {
        match self {
            RopeScaling::None => "default",
            RopeScaling::Linear { .. } => "linear",
            RopeScaling::Llama3 { .. } => "llama3",
            RopeScaling::Yarn { .. } => "yarn",
            RopeScaling::LongRope { .. } => "longrope",
            RopeScaling::Proportional { .. } => "proportional",
        }
    }
}
