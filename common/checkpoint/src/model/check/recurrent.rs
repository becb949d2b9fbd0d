//! The same of operations that keep a state: short convolutions, delta rules, state spaces.

use super::{factor, name, norm, size, width};
use crate::model::error::Fault;
use crate::model::limit;
use crate::model::recurrent::{
    ConvolutionSpec, DeltaInputs, DeltaSpec, MambaSpec, ShortConvolutionSpec,
};
use crate::model::spec::{Activation, Name};
use crate::model::whole::ModelSpec;

impl ModelSpec {
    pub(super) fn short_convolution(&self, it: &ShortConvolutionSpec) -> Result<(), Fault> {
        width("hidden_size of a convolution", it.hidden_size, self.hidden_size)?;
        name("module of a convolution's input", &it.input)?;
        name("module of the output", &it.output)?;
        convolution(&it.convolution, it.hidden_size)
    }

    pub(super) fn delta(&self, it: &DeltaSpec) -> Result<(), Fault> {
        width("hidden_size of a delta rule", it.hidden_size, self.hidden_size)?;
        size("key heads", it.key_heads, 1, limit::HEADS)?;
        size("value heads", it.value_heads, 1, limit::HEADS)?;
        size("numbers of a key", it.key_dim, 1, limit::HEAD_DIM)?;
        size("numbers of a value", it.value_dim, 1, limit::HEAD_DIM)?;
        let (heads, kv_heads) = (it.value_heads, it.key_heads);
        if heads % kv_heads != 0 {
            return Err(Fault::HeadsNotDivisible { heads, kv_heads });
        }
        // All are bounded: no overflow.
        size("numbers of all values", it.values_dim(), 1, limit::INNER)?;
        size("numbers of all keys", it.value_heads * it.key_dim, 1, limit::INNER)?;
        size("numbers of all matrices", it.values_dim() * it.key_dim, 1, limit::STATE)?;
        let modules: Vec<&Name> = match &it.inputs {
            DeltaInputs::Joined { qkv, gate, correction, decay } => {
                vec![qkv, gate, correction, decay]
            }
            DeltaInputs::ByHead { qkv_gate, correction_decay } => vec![qkv_gate, correction_decay],
            DeltaInputs::RatesByHead { qkv, gate, correction_decay } => {
                vec![qkv, gate, correction_decay]
            }
            DeltaInputs::Separate { qkv, gate, correction, decay } => {
                qkv.iter().chain(gate).chain([correction]).chain(decay).collect()
            }
        };
        modules.into_iter().try_for_each(|module| name("module of a delta rule", module))?;
        let (keys, values) = (it.keys_dim(), it.values_dim());
        let channels = match it.inputs {
            DeltaInputs::Separate { .. } => vec![keys, keys, values],
            _ => vec![2 * keys + values],
        };
        width("number of convolutions", it.convolutions.len(), channels.len())?;
        let mut pairs = it.convolutions.iter().zip(channels);
        pairs.try_for_each(|(it, channels)| convolution(it, channels))?;
        name("rates of a delta rule", &it.rate)?;
        if it.gate == Activation::Xielu {
            return Err(Fault::ActivationNumbers);
        }
        name("bias of a delta rule", &it.bias)?;
        norm("width of the norm of a delta rule", &it.norm, it.value_dim)?;
        name("module of the output", &it.output)
    }

    pub(super) fn mamba(&self, it: &MambaSpec) -> Result<(), Fault> {
        width("hidden_size of a state space", it.hidden_size, self.hidden_size)?;
        size("heads", it.heads, 1, limit::HEADS)?;
        size("head_dim", it.head_dim, 1, limit::HEAD_DIM)?;
        size("groups of heads", it.groups, 1, it.heads)?;
        size("numbers of a state", it.state_dim, 1, limit::HEAD_DIM)?;
        let (heads, kv_heads) = (it.heads, it.groups);
        if heads % kv_heads != 0 {
            return Err(Fault::HeadsNotDivisible { heads, kv_heads });
        }
        // All are bounded: no overflow.
        let (inner, groups) = (it.inner_dim(), it.groups_dim());
        size("numbers of all heads", inner, 1, limit::INNER)?;
        size("numbers of all groups", groups, 1, limit::INNER)?;
        size("numbers of all states", inner * it.state_dim, 1, limit::STATE)?;
        name("module of a state space's input", &it.input)?;
        for multiplier in it.multipliers.iter().flatten() {
            factor("multiplier of a state space's input", (*multiplier).into())?;
        }
        convolution(&it.convolution, inner + 2 * groups)?;
        name("rates of a state space", &it.rate)?;
        name("bias of a state space's steps", &it.bias)?;
        name("what a state space skips", &it.skip)?;
        size("parts that are normalised", it.norm_groups, 1, it.groups)?;
        // Whole groups, as a narrower layer has as many of them.
        let in_each = it.groups / it.norm_groups;
        width("groups of normalised parts", in_each * it.norm_groups, it.groups)?;
        if let Some(own) = &it.norm {
            norm("width of the norm of a state space", own, inner)?;
            if own.bias {
                return Err(Fault::NormBias); // Its parts are normalised by themselves.
            }
        }
        name("module of the output", &it.output)
    }
}

fn convolution(it: &ConvolutionSpec, channels: usize) -> Result<(), Fault> {
    width("channels of a convolution", it.channels, channels)?;
    size("taps of a convolution", it.taps, 2, limit::TAPS)?;
    name("weight of a convolution", &it.weight)?;
    it.bias.iter().try_for_each(|bias| name("bias of a convolution", bias))
}
