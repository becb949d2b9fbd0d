//! What families with Mamba 2 share: its sizes and modules, as Granite and Falcon call them.

use serde_json::Value;

use super::decoder::Decoder;
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, wrong};
use crate::model::limit;
use crate::model::recurrent::{ConvolutionSpec, MambaSpec};
use crate::model::spec::{Name, NormSpec};

/// The sizes of a state space.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) groups: usize,
    pub(super) state_dim: usize,
    pub(super) taps: usize,
}

/// What a state space's modules are called.
#[derive(Clone, Copy)]
pub(super) struct Modules {
    pub(super) input: &'static str,
    pub(super) convolution: &'static str,
    pub(super) convolution_bias: &'static str,
    pub(super) rate: &'static str,
    pub(super) bias: &'static str,
    pub(super) skip: &'static str,
    pub(super) norm: &'static str,
    pub(super) output: &'static str,
}

pub(super) const MAMBA: Modules = Modules {
    input: "mamba.in_proj",
    convolution: "mamba.conv1d.weight",
    convolution_bias: "mamba.conv1d.bias",
    rate: "mamba.A_log",
    bias: "mamba.dt_bias",
    skip: "mamba.D",
    norm: "mamba.norm",
    output: "mamba.out_proj",
};

/// The state space of these sizes, with a norm after the gate over all of it, a bias of the convolution and none of the
/// projections.
pub(super) fn mamba(decoder: &Decoder, sizes: Sizes, modules: Modules) -> MambaSpec {
    let Sizes { heads, head_dim, groups, state_dim, taps } = sizes;
    let inner = heads.saturating_mul(head_dim);
    let width = groups.saturating_mul(state_dim).saturating_mul(2).saturating_add(inner);
    let name = Name::Borrowed;
    MambaSpec {
        hidden_size: decoder.hidden_size,
        heads,
        head_dim,
        groups,
        state_dim,
        input: name(modules.input),
        input_bias: false,
        multipliers: None,
        convolution: ConvolutionSpec {
            channels: width,
            taps,
            weight: name(modules.convolution),
            taps_first: false,
            bias: Some(name(modules.convolution_bias)),
        },
        rate: name(modules.rate),
        bias: name(modules.bias),
        skip: name(modules.skip),
        norm: Some(NormSpec { width: inner, ..decoder.norm(modules.norm) }),
        norm_groups: 1,
        norm_before_gate: false,
        output: name(modules.output),
        output_bias: false,
    }
}

/// The same as Granite's and Falcon's configurations say it, of which `inner` numbers are in all heads where that is said.
///
/// # Errors
/// If a size is missing, out of range, or not of as many numbers.
pub(super) fn read(
    decoder: &Decoder,
    fields: &Fields<'_>,
    inner: Option<usize>,
) -> Result<MambaSpec, ConfigError> {
    fields.understand(&["mamba_chunk_size"]); // How the reference cuts what it computes.
    understand_steps(decoder, fields)?;
    let heads = fields.size("mamba_n_heads", limit::HEADS)?;
    let expand = fields.optional_size("mamba_expand", limit::HIDDEN)?.unwrap_or(2);
    let inner = inner.unwrap_or(expand.saturating_mul(decoder.hidden_size));
    let head_dim = match fields.get("mamba_d_head") {
        Some(value) if value.as_str() != Some("auto") => {
            fields.size("mamba_d_head", limit::HEAD_DIM)?
        }
        _ => inner / heads,
    };
    if heads * head_dim != inner {
        return Err(decoder.unsupported("mamba_n_heads", &heads.to_string()));
    }
    let groups = fields.optional_size("mamba_n_groups", heads)?.unwrap_or(1);
    if heads % groups != 0 {
        return Err(decoder.unsupported("mamba_n_groups", &groups.to_string()));
    }
    let state_dim = fields.optional_size("mamba_d_state", limit::HEAD_DIM)?.unwrap_or(256);
    let taps = fields.optional_size("mamba_d_conv", limit::TAPS)?.unwrap_or(4);
    let mut mamba = mamba(decoder, Sizes { heads, head_dim, groups, state_dim, taps }, MAMBA);
    if fields.flag("mamba_conv_bias")? == Some(false) {
        mamba.convolution.bias = None;
    }
    let bias = fields.flag("mamba_proj_bias")?.unwrap_or(false);
    Ok(MambaSpec { input_bias: bias, output_bias: bias, ..mamba })
}

/// Understands what is said of steps: how they were chosen for training, and bounds, of which there may be none.
///
/// # Errors
/// [`ConfigError::Unsupported`] for bounds, which the reference keeps to in prompts and not afterwards.
pub(super) fn understand_steps(decoder: &Decoder, fields: &Fields<'_>) -> Result<(), ConfigError> {
    const LIMIT: &str = "time_step_limit";
    fields.understand(&["time_step_floor", "time_step_max", "time_step_min", "time_step_rank"]);
    let Some(value) = fields.get(LIMIT) else { return Ok(()) };
    // As JSON of several programs says it.
    let is_infinite = |value: &Value| {
        let word = value.get("__float__").unwrap_or(value).as_str();
        word == Some("Infinity") || value.as_f64().is_some_and(|most| most >= 1e30)
    };
    match value.as_array().map(Vec::as_slice) {
        Some([least, most])
            if least.as_f64().is_some_and(|least| least <= 0.0) && is_infinite(most) =>
        {
            Ok(())
        }
        _ => Err(decoder.unsupported(LIMIT, &value.to_string())),
    }
}

/// A list of so many numbers, if it is there.
///
/// # Errors
/// If it is another list, or none of numbers.
pub(super) fn numbers<const N: usize>(
    fields: &Fields<'_>,
    field: &str,
) -> Result<Option<[f64; N]>, ConfigError> {
    let Some(value) = fields.get(field) else { return Ok(None) };
    let refused = || wrong(field, "a list of as many numbers as there are parts", value);
    let numbers = value.as_array().ok_or_else(refused)?.iter().map(|number| number.as_f64());
    let numbers = numbers.collect::<Option<Vec<f64>>>().ok_or_else(refused)?;
    numbers.try_into().map(Some).map_err(|_| refused())
}
