//! What tensors are called on the Hub.

use super::row::Arch;
use crate::container::gguf::error::GgufError;

/// Modules outside the layers.
const OUTER: &[(&str, &str)] =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Modules of a layer, below it, as most architectures call them. Those of all experts lie one after the other.
const OF_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.switch_mlp.gate_proj"),
    ("ffn_up_exps", "mlp.switch_mlp.up_proj"),
    ("ffn_down_exps", "mlp.switch_mlp.down_proj"),
];

/// What a tensor is of that a file has in another form than the Hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// Queries rotate, and their rows may lie in pairs,
    Queries,
    /// as may those of keys.
    Keys,
    /// All else is as the Hub has it.
    Other,
}

/// What a tensor is on the Hub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Its name.
    pub(crate) name: String,
    /// Whose rows it has.
    pub(crate) owner: Owner,
    /// Which of its dimensions is 1 there and may be left out here.
    pub(crate) one: Option<usize>,
}

/// What the tensor called `name` in a file is on the Hub, in a model of so many layers, with so many blocks in all.
///
/// # Errors
/// [`GgufError::UnknownTensor`], [`GgufError::NoSuchLayer`]
pub(crate) fn place(
    arch: &'static Arch,
    name: &str,
    [layers, blocks]: [u64; 2],
) -> Result<Place, GgufError> {
    let tensor = || name.to_owned();
    let unknown = || GgufError::UnknownTensor { tensor: tensor(), architecture: arch.name };
    let Some(rest) = name.strip_prefix("blk.") else {
        let hub = hub_name(&[arch.outer, OUTER], name).ok_or_else(unknown)?;
        return Ok(Place { name: hub, owner: Owner::Other, one: None });
    };
    let (number, leaf) = rest.split_once('.').ok_or_else(unknown)?;
    let layer: u64 = number.parse().map_err(|_| unknown())?;
    if layer.to_string() != number {
        return Err(unknown()); // A sign, or leading zeros.
    }
    if layer >= blocks {
        return Err(GgufError::NoSuchLayer { tensor: tensor(), layers: blocks });
    }
    if layer >= layers {
        // Of a layer that predicts further tokens: by its number everybody knows that it is not used.
        let name = format!("model.layers.{layer}.{leaf}");
        return Ok(Place { name, owner: Owner::Other, one: None });
    }
    let hub = hub_name(&[arch.names, OF_LAYER], leaf).ok_or_else(unknown)?;
    let owner = match leaf.split_once('.') {
        Some(("attn_q", _)) => Owner::Queries,
        Some(("attn_k", _)) => Owner::Keys,
        _ => Owner::Other,
    };
    let one = arch.ones.iter().find(|(own, _)| *own == leaf).map(|(_, at)| *at);
    Ok(Place { name: format!("model.layers.{layer}.{hub}"), owner, one })
}

/// The name by these tables, the first that has it: of a tensor, or of the module that it belongs to.
fn hub_name(tables: &[&[(&str, &str)]], name: &str) -> Option<String> {
    let find = |name: &str| {
        let mut rows = tables.iter().flat_map(|table| table.iter());
        rows.find(|(own, _)| *own == name).map(|(_, hub)| *hub)
    };
    if let Some(whole) = find(name) {
        return Some(whole.to_owned());
    }
    let (module, ending) = name.rsplit_once('.')?;
    let hub = find(module).filter(|_| matches!(ending, "weight" | "bias"))?;
    Some(format!("{hub}.{ending}"))
}
