//! What a file says of rotations, as a configuration says it.

use std::f64::consts::TAU;

use serde_json::{Value, json};

use super::keys::Keys;
use super::row::Fields;
use crate::container::gguf::error::GgufError;

/// The tensor of what the frequencies of rotations are divided by, each by a number of its own.
pub(crate) const DIVISORS: &str = "rope_freqs.weight";
/// What of the logarithm of a factor scores are multiplied with, in architectures that have it.
pub(super) const MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
/// How far the factors of Llama 3.1 are apart between which frequencies are blended: divisors alone do not tell it.
const BETWEEN: f64 = 3.0;
/// How near to what Llama 3.1's rule gives divisors must be: they are rounded to f32, and the rule is found from them.
const NEAR: f64 = 1e-4;

/// Reads base, part and scaling of rotations; `stretch` says what an architecture's multiplier of a logarithm means.
///
/// # Errors
/// [`GgufError::Unsupported`] for what is not known.
pub(super) fn read(
    keys: &Keys<'_>,
    stretch: Option<fn(f64) -> [f64; 2]>,
    fields: &mut Fields,
) -> Result<(), GgufError> {
    let base = keys.number("rope.freq_base")?.unwrap_or(10_000.0);
    if base <= 0.0 {
        return Err(keys.unsupported("rope.freq_base", "more than 0"));
    }
    fields.insert("rope_theta".into(), json!(base));
    part(keys, fields)?;
    let original = keys.unsigned("rope.scaling.original_context_length")?;
    let factor = keys.number("rope.scaling.factor")?;
    let kind = keys.text("rope.scaling.type")?;
    let older = keys.number("rope.scale_linear")?;
    // What yarn has beside: nothing says what the reference of these models makes of other values.
    for (key, usual) in [
        ("rope.scaling.attn_factor", 1.0),
        ("rope.scaling.yarn_ext_factor", 1.0),
        ("rope.scaling.yarn_attn_factor", 1.0),
    ] {
        if keys.number(key)?.is_some_and(|found| found != usual) {
            return Err(keys.unsupported(key, &format!("{usual}")));
        }
    }
    let scales = match (keys.number(MULTIPLIER)?.filter(|found| *found != 0.0), stretch) {
        (None, _) => None,
        (Some(found), Some(stretch)) if found > 0.0 => Some(stretch(found)),
        (Some(_), _) => return Err(keys.unsupported(MULTIPLIER, "0")),
    };
    let scaling = match (kind, factor.or(older)) {
        (None | Some("none"), None | Some(1.0)) => None,
        (None, Some(factor)) | (Some("linear"), Some(factor)) => {
            Some(json!({"rope_type": "linear", "factor": factor}))
        }
        (Some("yarn"), Some(factor)) => {
            let mut yarn = json!({"rope_type": "yarn", "factor": factor});
            let others = [
                ("original_max_position_embeddings", original.map(|it| json!(it))),
                ("beta_fast", keys.number("rope.scaling.yarn_beta_fast")?.map(|it| json!(it))),
                ("beta_slow", keys.number("rope.scaling.yarn_beta_slow")?.map(|it| json!(it))),
            ];
            for (field, value) in others {
                yarn[field] = value.unwrap_or(Value::Null);
            }
            if let Some([scale, all]) = scales {
                (yarn["mscale"], yarn["mscale_all_dim"]) = (json!(scale), json!(all));
            }
            Some(yarn)
        }
        (Some("linear" | "yarn"), None) => {
            return Err(keys.unsupported("rope.scaling.factor", "a number"));
        }
        (Some("none"), Some(_)) => None,
        (Some(_), _) => return Err(keys.unsupported("rope.scaling.type", "none, linear or yarn")),
    };
    if let Some(scaling) = scaling {
        fields.insert("rope_scaling".into(), scaling);
    }
    Ok(())
}

/// Reads how much of a head rotates.
fn part(keys: &Keys<'_>, fields: &mut Fields) -> Result<(), GgufError> {
    const KEY: &str = "rope.dimension_count";
    let head_dim = keys.head_dim;
    match keys.unsigned(KEY)?.unwrap_or(head_dim) {
        whole if whole == head_dim => {
            if keys.partial {
                // Families have other defaults.
                fields.insert("partial_rotary_factor".into(), json!(1.0));
            }
            Ok(())
        }
        part if keys.partial && part < head_dim && part > 0 && part % 2 == 0 => {
            let factor = part as f64 / head_dim as f64;
            fields.insert("partial_rotary_factor".into(), json!(factor));
            Ok(())
        }
        _ => Err(keys.unsupported(KEY, &head_dim.to_string())),
    }
}

/// The scaling, as a configuration says it, of which these are the divisors: Llama 3.1's, for which the format has no key. Null if
/// they change nothing; `None` if no such scaling has these divisors.
///
/// Of high frequencies the divisor is 1, of low ones the factor, and between these the share of what is not divided grows
/// evenly with the frequency: where it begins and ends follows.
pub(crate) fn scaling_of(divisors: &[f32], base: f64) -> Option<Value> {
    let pairs = divisors.len() as f64;
    let turns = |pair: usize| base.powf(-(pair as f64) / pairs) / TAU; // In one position.
    let divisors: Vec<f64> = divisors.iter().map(|it| f64::from(*it)).collect();
    let factor = divisors.iter().copied().fold(1.0, f64::max);
    if divisors.iter().any(|it| !it.is_finite() || *it < 1.0 - NEAR) {
        return None;
    }
    if factor < 1.0 + NEAR {
        return Some(Value::Null);
    }
    let share = |divisor: f64| (1.0 / divisor - 1.0 / factor) / (1.0 - 1.0 / factor);
    let is_blended = |it: &f64| *it > 1.0 + 1e-6 && *it < factor * (1.0 - 1e-6);
    let blended = divisors.iter().enumerate().filter(|(_, it)| is_blended(it));
    let points: Vec<(f64, f64)> = blended.map(|(at, it)| (turns(at), share(*it))).collect();
    let (slope, start) = line(&points)?;
    let original = (slope * BETWEEN).round();
    let low = (-start * BETWEEN * 1e4).round() / 1e4;
    let factor = (factor * 1e4).round() / 1e4;
    let is_near = |(pair, divisor): (usize, &f64)| {
        let share = ((original * turns(pair) - low) / BETWEEN).clamp(0.0, 1.0);
        let expected = 1.0 / ((1.0 - share) / factor + share);
        (expected - divisor).abs() <= NEAR * expected
    };
    let is_known = original >= 1.0 && low > 0.0 && divisors.iter().enumerate().all(is_near);
    is_known.then(|| {
        json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": low + BETWEEN,
            "original_max_position_embeddings": original as u64,
        })
    })
}

/// Slope and start of the line that is nearest to these points; `None` if fewer than two make one.
fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|it| it.0), mean(|it| it.1));
    let spread: f64 = points.iter().map(|it| (it.0 - x).powi(2)).sum();
    let common: f64 = points.iter().map(|it| (it.0 - x) * (it.1 - y)).sum();
    let slope = common / spread;
    (points.len() >= 2 && slope.is_finite()).then_some((slope, y - slope * x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The divisors of Llama 3.1, as its reference makes them.
    fn divisors(pairs: usize, base: f64, factor: f64, original: f64) -> Vec<f32> {
        let of = |pair: usize| {
            let wavelength = TAU * base.powf(pair as f64 / pairs as f64);
            if wavelength > original {
                factor
            } else if wavelength < original / 4.0 {
                1.0
            } else {
                let share = (original / wavelength - 1.0) / 3.0;
                1.0 / ((1.0 - share) / factor + share)
            }
        };
        (0..pairs).map(|pair| of(pair) as f32).collect()
    }

    #[test]
    fn the_scaling_of_llama_3_is_found_from_its_divisors() {
        for (pairs, base, factor, original) in
            [(64, 5e5, 8.0, 8192.0), (32, 5e5, 32.0, 8192.0), (32, 5e4, 8.0, 32.0)]
        {
            let found = scaling_of(&divisors(pairs, base, factor, original), base).unwrap();
            let expected = json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": original as u64,
            });
            assert_eq!(found, expected);
        }
        assert_eq!(scaling_of(&[1.0; 32], 1e4), Some(Value::Null));
    }

    #[test]
    fn other_divisors_are_no_such_scaling() {
        let mut odd = divisors(64, 5e5, 8.0, 8192.0);
        odd[3] = 1.5;
        let rising: Vec<f32> = (0..32).map(|it| 1.0 + it as f32).collect();
        for other in
            [odd, rising, vec![0.0; 4], vec![f32::NAN; 4], vec![f32::MAX; 4], vec![1.0, 8.0]]
        {
            assert_eq!(scaling_of(&other, 5e5), None, "{other:?}");
        }
    }
}
