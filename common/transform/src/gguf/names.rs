//! What tensors are called in GGUF.

use cake_checkpoint::{LayerSpec, Op};

use super::arch::Arch;

/// The embedding's module.
pub(super) const EMBEDDING: &str = "token_embd";
/// The module of the norm after the last layer.
pub(super) const FINAL_NORM: &str = "output_norm";
/// The output head's module.
pub(super) const HEAD: &str = "output";
/// What the module ends in that chooses experts.
pub(super) const ROUTER: &str = "ffn_gate_inp";
/// The tensor of divisors of a rotation's frequencies.
pub(super) const DIVISORS: &str = "rope_freqs.weight";

/// Modules of a layer.
const MODULES: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
];

/// Modules with other names in layers with norms around every operation.
const SANDWICH: &[(&str, &str)] = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Modules of an expert: each is a slice of a tensor with those of all.
const OF_EXPERTS: &[(&str, &str)] =
    &[("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps")];

/// A module in GGUF.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Module {
    /// Its name, without what its tensors' end in.
    pub(super) name: String,
    /// Which slice of it, of how many.
    pub(super) expert: Option<(u64, u64)>,
}

/// What the module of a layer is called; `None` for one that GGUF has no name for.
pub(super) fn of_layer(
    arch: &Arch,
    layer: usize,
    spec: &LayerSpec,
    module: &str,
) -> Option<Module> {
    let named = |list: &[(&str, &'static str)], module: &str| {
        list.iter().find(|(hub, _)| *hub == module).map(|(_, gguf)| *gguf)
    };
    let full = |leaf: &str| format!("blk.{layer}.{leaf}");
    let experts = spec.ops().find_map(|op| match op {
        Op::Experts(experts) => Some((experts, module.strip_prefix(&*experts.prefix)?)),
        _ => None,
    });
    if let Some((experts, rest)) = experts {
        let (number, leaf) = rest.split_once('.')?;
        let expert = Some((number.parse().ok()?, experts.count as u64));
        return Some(Module { name: full(named(OF_EXPERTS, leaf)?), expert });
    }
    let special = if arch.sandwich { named(SANDWICH, module) } else { None };
    let leaf = special.or_else(|| named(MODULES, module))?;
    Some(Module { name: full(leaf), expert: None })
}
