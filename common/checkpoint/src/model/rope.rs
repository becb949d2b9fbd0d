//! The rotary position embedding's part of a configuration, in both spellings.

use super::ConfigError;
use super::fields::Fields;
use super::spec::RotationSpec;

/// How much of a head rotates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rotary {
    /// All of it.
    Full,
    /// The first `head_dim × partial_rotary_factor` numbers of it.
    Partial,
}

/// Constants of the rotary position embedding.
#[derive(Clone, PartialEq, Debug)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How the frequencies are stretched for longer contexts.
    pub scaling: RopeScaling,
}

/// How frequencies are stretched.
#[derive(Clone, PartialEq, Debug)]
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

/// Base where a configuration gives none.
const DEFAULT_THETA: f64 = 10_000.0;
const MAX_THETA: f64 = 1e15;
const MAX_FACTOR: f64 = 1e9;

/// Reads theta, scaling and the number of rotating elements of a head.
///
/// Newer files have everything in `rope_parameters`; older ones have `rope_theta`,
/// `rope_scaling` and `partial_rotary_factor`.
pub(super) fn read(
    fields: &Fields<'_>,
    architecture: &'static str,
    rotary: Rotary,
    head_dim: usize,
    max_position_embeddings: usize,
) -> Result<RotationSpec, ConfigError> {
    fields.understand(&[
        "rope_theta",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "rope_scaling",
    ]);
    let (field, dict) = match fields.object("rope_parameters")? {
        Some(dict) => ("rope_parameters", Some(dict)),
        None => ("rope_scaling", fields.object("rope_scaling")?),
    };
    let inside = |name: &str, above: f64, most: f64| match &dict {
        Some(dict) => dict.optional_number(name, above, most),
        None => Ok(None),
    };
    let required = |name: &str, above: f64| {
        inside(name, above, MAX_FACTOR)?
            .ok_or_else(|| ConfigError::Missing { field: format!("{field}.{name}") })
    };
    if dict.as_ref().is_some_and(|dict| dict.values().any(|value| value.is_object())) {
        let found = "with parameters per layer type".to_owned();
        return Err(ConfigError::Unsupported { field: field.to_owned(), found, architecture });
    }
    let theta = match inside("rope_theta", 0.0, MAX_THETA)? {
        Some(theta) => Some(theta),
        None => fields.optional_number("rope_theta", 0.0, MAX_THETA)?,
    };
    let rope_type = match &dict {
        Some(dict) => dict.text("rope_type")?.or(dict.text("type")?),
        None => None,
    };
    let scaling = match rope_type.unwrap_or("default") {
        "default" | "none" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: required("factor", 0.0)? },
        "llama3" => {
            let most = MAX_FACTOR;
            let name = "original_max_position_embeddings";
            let original = match fields.optional_number(name, 0.0, most)? {
                Some(outer) => Some(outer),
                None => inside(name, 0.0, most)?,
            };
            let low_freq_factor = required("low_freq_factor", 0.0)?;
            RopeScaling::Llama3 {
                factor: required("factor", 0.0)?,
                low_freq_factor,
                high_freq_factor: required("high_freq_factor", low_freq_factor)?,
                original_max_position: original.unwrap_or(max_position_embeddings as f64),
            }
        }
        other => {
            return Err(ConfigError::UnsupportedRope { field, rope_type: other.to_owned() });
        }
    };
    let factor = match inside("partial_rotary_factor", 0.0, 1.0)? {
        Some(factor) => factor,
        None => fields.optional_number("partial_rotary_factor", 0.0, 1.0)?.unwrap_or(1.0),
    };
    if rotary == Rotary::Full && factor != 1.0 {
        let field = "partial_rotary_factor".to_owned();
        return Err(ConfigError::Unsupported { field, found: factor.to_string(), architecture });
    }
    let dim = (head_dim as f64 * factor) as usize; // Rounded down, as the reference does.
    if dim == 0 || !dim.is_multiple_of(2) {
        return Err(ConfigError::RotaryDim { rotary_dim: dim, head_dim, factor });
    }
    Ok(RotationSpec { rope: Rope { theta: theta.unwrap_or(DEFAULT_THETA), scaling }, dim })
}
