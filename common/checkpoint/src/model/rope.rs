//! The rotary position embedding's part of a configuration, in both spellings.

use super::error::ConfigError;
use super::fields::Fields;
use super::limit;
use super::rotation::{Rope, RopeScaling, RotaryPairs, RotationSpec};

/// What of a head rotates, and how where a configuration does not say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rotary {
    /// Whether only the first `head_dim × partial_rotary_factor` numbers of a head may rotate.
    pub(super) partial: bool,
    /// How wide heads are that have no window, where those are others.
    pub(super) full_head_dim: Option<usize>,
    /// Where files say how wide a head is, or, of a head whose rotating part is by itself, that part.
    pub(super) head_dim: &'static str,
    /// Base of the frequencies.
    pub(super) theta: f64,
    /// Where it stands for layers with a window, if these have a rotation of their own: the second one.
    pub(super) window_theta: Option<WindowTheta>,
    /// What part of a head rotates where that is not said.
    pub(super) part: f64,
    /// Where files say how many numbers of a head rotate, if they may say it by itself.
    pub(super) dim_field: Option<&'static str>,
    /// Which numbers are turned together.
    pub(super) pairs: RotaryPairs,
    /// Whether a "dynamic" rotation is one whose base is stretched once for all lengths, by `alpha`.
    pub(super) alpha: bool,
    /// What stands beside a rotation's parameters and is for something else, which the family reads.
    pub(super) beside: &'static [&'static str],
}

/// Where the base of the frequencies of layers with a window stands in older files, and what it is if nothing says it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct WindowTheta {
    pub(super) field: &'static str,
    pub(super) default: f64,
}

impl Rotary {
    /// All of a head, alike in all layers.
    pub(super) const FULL: Self = Self {
        partial: false,
        full_head_dim: None,
        head_dim: "head_dim",
        theta: 10_000.0,
        window_theta: None,
        part: 1.0,
        dim_field: None,
        pairs: RotaryPairs::Halves,
        alpha: false,
        beside: &[],
    };
    /// A part of it.
    pub(super) const PARTIAL: Self = Self { partial: true, ..Self::FULL };
}

/// Parameters of one rotation. Each type of rotation takes its own of them, and the reference passes over the others.
const OF_ROTATIONS: &[&str] = &[
    "factor",
    "finetuned",
    "high_freq_factor",
    "low_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "type",
];

/// Where rotations of pictures and sounds say how their positions are shared out: the families that see have it beside theirs.
pub(super) const MROPE_SECTION: &str = "mrope_section";

/// What else stands beside `alpha`.
const OF_ALPHA: &[&str] = &["beta_fast", "beta_slow", "mscale", "mscale_all_dim"];

/// What the heads are that rotate.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) head_dim: usize,
    pub(super) max_position_embeddings: usize,
}

/// Reads the model's rotations: theta, scaling and the number of rotating elements of a head.
///
/// Newer files have everything in `rope_parameters`, for each type of layer where that matters; older ones have
/// `rope_theta`, `rope_scaling` and `partial_rotary_factor`, and `rope_local_base_freq` for layers with a window.
pub(super) fn read(
    fields: &Fields<'_>,
    architecture: &'static str,
    rotary: Rotary,
    heads: Heads,
) -> Result<Vec<RotationSpec>, ConfigError> {
    fields.understand(&[
        "rope_theta",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "rope_scaling",
    ]);
    let all = fields.object("rope_parameters")?;
    let read = |(field, dict), theta: Theta| {
        rotation(fields, architecture, (rotary, heads), (field, dict), theta)
    };
    let theta = Theta { field: "rope_theta", default: rotary.theta };
    let Some(window_theta) = rotary.window_theta else {
        let older = fields.object("rope_scaling")?.filter(|dict| dict.values().next().is_some());
        let Some(all) = all else { return Ok(vec![read(("rope_scaling", older), theta)?]) };
        let found = read(("rope_parameters", Some(all)), theta)?;
        if let Some(older) = older {
            // The reference takes the older one then: of two that say the same it does not matter which.
            let other = read(("rope_scaling", Some(older)), theta)?;
            if other.rope.scaling != found.rope.scaling {
                let (field, found) =
                    ("rope_scaling".to_owned(), format!("{:?}", other.rope.scaling));
                return Err(ConfigError::Unsupported { field, found, architecture });
            }
        }
        return Ok(vec![found]);
    };
    let WindowTheta { field, default } = window_theta;
    fields.understand(&[field]);
    let window_theta = Theta { field, default };
    let Some(all) = all else {
        let full = read(("rope_scaling", fields.object("rope_scaling")?), theta)?;
        let windowed = read(("rope_scaling", None), window_theta)?;
        return Ok(vec![full, windowed]);
    };
    let of_type = |name, theta, head_dim| {
        let dict = all.object(name)?;
        let missing = || ConfigError::Missing { field: format!("rope_parameters.{name}") };
        let (heads, dict) = (Heads { head_dim, ..heads }, dict.ok_or_else(missing)?);
        let dict = ("rope_parameters", Some(dict));
        rotation(fields, architecture, (rotary, heads), dict, theta)
    };
    let full_head_dim = rotary.full_head_dim.unwrap_or(heads.head_dim);
    let rotations = vec![
        of_type("full_attention", theta, full_head_dim)?,
        of_type("sliding_attention", window_theta, heads.head_dim)?,
    ];
    all.refuse_others(architecture).map_err(|error| error.inside("rope_parameters"))?;
    Ok(rotations)
}

/// What sines and cosines are multiplied with where a model was stretched by `factor` and its configuration does not say it
/// (`_compute_yarn_parameters` in Hugging Face transformers): of two scales that are there, both, else neither counts.
fn attention_factor(factor: f64, scales: (Option<f64>, Option<f64>)) -> f64 {
    let of = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    match scales {
        (Some(one), Some(all)) if one != 0.0 && all != 0.0 => of(one) / of(all),
        _ => of(1.0),
    }
}

/// Factors for short contexts and for long ones (`_compute_longrope_parameters` in Hugging Face transformers).
fn long_rope(
    (field, dict): (&'static str, Option<&Fields<'_>>),
    original: Option<f64>,
    max_position_embeddings: usize,
) -> Result<RopeScaling, ConfigError> {
    let missing = || ConfigError::Missing { field: format!("{field}.short_factor") };
    let dict = dict.ok_or_else(missing)?;
    let factors = |name: &str| {
        let factors = dict.numbers(name, 0.0, limit::FACTOR, limit::HEAD_DIM / 2);
        factors.map_err(|error| error.inside(field))
    };
    let most = max_position_embeddings as f64;
    let original_max_position = original.unwrap_or(most);
    let factor = dict.optional_number("factor", 0.0, limit::FACTOR)?;
    let factor = factor.unwrap_or(most / original_max_position);
    let given = dict.optional_number("attention_factor", 0.0, limit::FACTOR)?;
    let usual = || match factor > 1.0 {
        true => (1.0 + factor.ln() / original_max_position.ln()).sqrt(),
        false => 1.0,
    };
    Ok(RopeScaling::LongRope {
        short_factor: factors("short_factor")?,
        long_factor: factors("long_factor")?,
        original_max_position,
        attention_factor: given.unwrap_or_else(usual),
    })
}

/// Where the base of the frequencies stands if no dictionary has it, and what it is if nothing has.
#[derive(Clone, Copy)]
struct Theta {
    field: &'static str,
    default: f64,
}

/// One rotation, whose parameters are in `dict` and beside it.
fn rotation(
    fields: &Fields<'_>,
    architecture: &'static str,
    (rotary, Heads { head_dim, max_position_embeddings }): (Rotary, Heads),
    (field, dict): (&'static str, Option<Fields<'_>>),
    outer: Theta,
) -> Result<RotationSpec, ConfigError> {
    let inside = |name: &str, above: f64, most: f64| match &dict {
        Some(dict) => dict.optional_number(name, above, most),
        None => Ok(None),
    };
    let required = |name: &str, above: f64| {
        inside(name, above, limit::FACTOR)?
            .ok_or_else(|| ConfigError::Missing { field: format!("{field}.{name}") })
    };
    let original = || {
        let name = "original_max_position_embeddings";
        match fields.optional_number(name, 0.0, limit::FACTOR)? {
            Some(outer) => Ok(Some(outer)),
            None => inside(name, 0.0, limit::FACTOR),
        }
    };
    if dict.as_ref().is_some_and(|dict| dict.values().any(|value| value.is_object())) {
        let found = "with parameters per layer type".to_owned();
        return Err(ConfigError::Unsupported { field: field.to_owned(), found, architecture });
    }
    let theta = match inside("rope_theta", 0.0, limit::THETA)? {
        Some(theta) => Some(theta),
        None => fields.optional_number(outer.field, 0.0, limit::THETA)?,
    };
    let rope_type = match &dict {
        Some(dict) => dict.text("rope_type")?.or(dict.text("type")?),
        None => None,
    };
    let rope_type = match (rope_type, &dict) {
        // What files call it that are older than its name.
        (Some("su"), _) => Some("longrope"),
        (Some("yarn"), Some(dict)) if dict.get("short_factor").is_some() => Some("longrope"),
        (other, _) => other,
    };
    let mut theta = theta.unwrap_or(outer.default);
    let scaling = match rope_type.unwrap_or("default") {
        "dynamic" if rotary.alpha => {
            // Beside it, files have parameters of other types, which the reference passes over.
            dict.iter().for_each(|dict| dict.understand(OF_ALPHA));
            let width = head_dim as f64;
            theta *= required("alpha", 0.0)?.powf(width / (width - 2.0));
            RopeScaling::None
        }
        "default" | "none" => RopeScaling::None,
        // Of text alone, all positions of a token are the same.
        "mrope" if rotary.beside.contains(&MROPE_SECTION) => RopeScaling::None,
        "dynamic" => {
            // It stretches the base of sequences that are longer than any here may be.
            required("factor", 0.0)?;
            RopeScaling::None
        }
        "linear" => RopeScaling::Linear { factor: required("factor", 0.0)? },
        "proportional" if rotary.full_head_dim.is_some() => {
            let part = inside("partial_rotary_factor", 0.0, 1.0)?.unwrap_or(1.0);
            let factor = inside("factor", 0.0, limit::FACTOR)?.unwrap_or(1.0);
            // Rounded down twice, as the reference does.
            let rotating = ((part * head_dim as f64) as usize) / 2;
            RopeScaling::Proportional { rotating, factor }
        }
        "llama3" => {
            let low_freq_factor = required("low_freq_factor", 0.0)?;
            let high_freq_factor = required("high_freq_factor", 0.0)?;
            if high_freq_factor < low_freq_factor {
                return Err(ConfigError::OutOfRange {
                    field: format!("{field}.high_freq_factor"),
                    found: high_freq_factor.to_string(),
                    least: low_freq_factor.to_string(),
                    most: limit::FACTOR.to_string(),
                });
            }
            RopeScaling::Llama3 {
                factor: required("factor", 0.0)?,
                low_freq_factor,
                high_freq_factor,
                original_max_position: original()?.unwrap_or(max_position_embeddings as f64),
            }
        }
        "longrope" => long_rope((field, dict.as_ref()), original()?, max_position_embeddings)?,
        "yarn" => {
            let original = original()?;
            let most = max_position_embeddings as f64;
            let factor = match inside("factor", 0.0, limit::FACTOR)? {
                Some(factor) => factor,
                None => {
                    most / original
                        .ok_or_else(|| ConfigError::Missing { field: format!("{field}.factor") })?
                }
            };
            let truncate = match &dict {
                Some(dict) => dict.flag("truncate")?.unwrap_or(true),
                None => true,
            };
            let given = inside("attention_factor", 0.0, limit::FACTOR)?;
            let scales = (
                inside("mscale", -1.0, limit::FACTOR)?,
                inside("mscale_all_dim", -1.0, limit::FACTOR)?,
            );
            RopeScaling::Yarn {
                factor,
                beta_fast: inside("beta_fast", 0.0, limit::FACTOR)?.unwrap_or(32.0),
                beta_slow: inside("beta_slow", 0.0, limit::FACTOR)?.unwrap_or(1.0),
                original_max_position: original.unwrap_or(most),
                truncate,
                attention_factor: given.unwrap_or_else(|| attention_factor(factor, scales)),
            }
        }
        other => {
            return Err(ConfigError::UnsupportedRope { field, rope_type: other.to_owned() });
        }
    };
    if let Some(dict) = &dict {
        dict.understand(OF_ROTATIONS);
        dict.understand(rotary.beside);
        dict.refuse_others(architecture).map_err(|error| error.inside(field))?;
    }
    if matches!(scaling, RopeScaling::Proportional { .. }) {
        // All pairs are there, of which some do not rotate.
        let rope = Rope { theta, scaling };
        return match head_dim.is_multiple_of(2) {
            true => Ok(RotationSpec { rope, dim: head_dim, pairs: rotary.pairs }),
            false => Err(ConfigError::RotaryDim { rotary_dim: head_dim, head_dim, factor: 1.0 }),
        };
    }
    let by_itself = match rotary.dim_field {
        Some(field) => fields.optional_size(field, head_dim)?,
        None => None,
    };
    let outer_factor = fields.optional_number("partial_rotary_factor", 0.0, 1.0)?;
    let (factor, exact) = match (inside("partial_rotary_factor", 0.0, 1.0)?, by_itself) {
        (Some(factor), _) => (factor, None),
        (None, Some(dim)) if outer_factor.is_none() => (dim as f64 / head_dim as f64, Some(dim)),
        (None, _) => (outer_factor.unwrap_or(rotary.part), None),
    };
    if !rotary.partial && factor != 1.0 {
        let field = "partial_rotary_factor".to_owned();
        return Err(ConfigError::Unsupported { field, found: factor.to_string(), architecture });
    }
    let dim = exact.unwrap_or((head_dim as f64 * factor) as usize); // Rounded down, as the reference does.
    if dim == 0 || !dim.is_multiple_of(2) {
        return Err(ConfigError::RotaryDim { rotary_dim: dim, head_dim, factor });
    }
    if let RopeScaling::LongRope { short_factor, long_factor, .. } = &scaling {
        for (name, factors) in [("short_factor", short_factor), ("long_factor", long_factor)] {
            let (found, expected) = (factors.len(), dim / 2);
            if found != expected {
                let field = format!("{field}.{name}");
                return Err(ConfigError::RotationFactors { field, found, expected });
            }
        }
    }
    let rope = Rope { theta, scaling };
    Ok(RotationSpec { rope, dim, pairs: rotary.pairs })
}
