//! What families with experts share: reading mixtures and their routers.

use serde_json::Value;

use super::decoder::Decoder;
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, wrong};
use crate::model::limit;
use crate::model::spec::{
    CorrectionSpec, ExpertsSpec, GateUp, Joined, MlpSpec, Name, Op, RouterGroups, RouterScores,
    RouterSpec,
};

/// What a family calls a mixture's numbers and modules.
#[derive(Clone, Copy)]
pub(super) struct Mixture {
    /// The number of experts: files have any of these, which must agree.
    pub(super) count: &'static [&'static str],
    /// How many of them a row goes to.
    pub(super) chosen: &'static str,
    /// What precedes the number of an expert.
    pub(super) prefix: &'static str,
    /// Gate, up and down of an expert.
    pub(super) modules: [&'static str; 3],
}

impl Mixture {
    /// As most call them. The second name is what version 5 of the reference writes.
    pub(super) const USUAL: Mixture = Mixture {
        count: &["num_experts", "num_local_experts"],
        chosen: "num_experts_per_tok",
        prefix: "mlp.experts.",
        modules: ["gate_proj", "up_proj", "down_proj"],
    };
    /// As DeepSeek and those after it do.
    pub(super) const ROUTED: Mixture = Mixture { count: &["n_routed_experts"], ..Mixture::USUAL };
    /// As Mixtral and those after it do.
    pub(super) const BLOCK_SPARSE: Mixture = Mixture {
        count: &["num_local_experts"],
        prefix: "block_sparse_moe.experts.",
        modules: ["w1", "w3", "w2"],
        ..Mixture::USUAL
    };
    /// As Granite does: Mixtral's names, but for those of modules.
    pub(super) const GRANITE: Mixture =
        Mixture { modules: Mixture::USUAL.modules, ..Mixture::BLOCK_SPARSE };
}

/// A router whose scores are the softmax of its products.
pub(super) fn softmax(path: &'static str, renormalise: bool) -> RouterSpec {
    RouterSpec {
        path: Name::Borrowed(path),
        bias: false,
        scores: RouterScores::Softmax,
        correction: None,
        groups: None,
        renormalise: renormalise.then_some(0.0),
        multiplier: 1.0,
        weighs_inputs: false,
        norm: None,
        expert_scale: None,
    }
}

/// A router whose scores are the sigmoid of its products, chosen by what `correction` adds to them.
pub(super) fn sigmoid(path: &'static str, correction: &'static str) -> RouterSpec {
    RouterSpec {
        scores: RouterScores::Sigmoid,
        correction: Some(CorrectionSpec { name: Name::Borrowed(correction), axes: 1 }),
        renormalise: Some(0.0),
        ..softmax(path, true)
    }
}

/// What a family of that kind has where a configuration does not say it.
#[derive(Clone, Copy)]
pub(super) struct Routed {
    /// How many networks there are beside the experts.
    pub(super) shared: usize,
    /// Whether chosen scores are divided by their sum.
    pub(super) renormalise: bool,
    /// How many groups of experts there are, and how many of them are chosen.
    pub(super) groups: (usize, usize),
    /// What the weights are multiplied with.
    pub(super) multiplier: f64,
}

impl Routed {
    /// In DeepSeek-V3 and those after it.
    pub(super) const DEEPSEEK_V3: Routed =
        Routed { shared: 1, renormalise: true, groups: (8, 4), multiplier: 2.5 };
}

/// The router of DeepSeek-V3 (arXiv:2412.19437), of which a configuration says groups, division and a multiplier.
///
/// # Errors
/// If a number is out of range.
pub(super) fn grouped(fields: &Fields<'_>, defaults: Routed) -> Result<RouterSpec, ConfigError> {
    /// What the reference adds to a sum before it divides.
    const LEAST_SUM: f32 = 1e-20;
    let (of_all, of_chosen) = defaults.groups;
    let count = fields.optional_size("n_group", limit::EXPERTS_OF_LAYER)?.unwrap_or(of_all);
    let chosen = fields.optional_size("topk_group", count)?.unwrap_or(of_chosen.min(count));
    let multiplier = fields.optional_number("routed_scaling_factor", 0.0, limit::FACTOR)?;
    let renormalise = fields.flag("norm_topk_prob")?.unwrap_or(defaults.renormalise);
    Ok(RouterSpec {
        groups: (count > 1).then_some(RouterGroups { count, chosen }),
        renormalise: renormalise.then_some(LEAST_SUM),
        multiplier: multiplier.unwrap_or(defaults.multiplier) as f32,
        ..sigmoid("mlp.gate", "mlp.gate.e_score_correction_bias")
    })
}

impl Decoder {
    /// Experts like `mlp`, but of another width inside, with that router.
    ///
    /// # Errors
    /// If a size is missing or out of range, more experts are to be chosen than there are, or two names of a number disagree.
    pub(super) fn experts(
        &self,
        fields: &Fields<'_>,
        names: Mixture,
        mlp: &MlpSpec,
        inner_size: usize,
        router: RouterSpec,
    ) -> Result<ExpertsSpec, ConfigError> {
        let most = limit::EXPERTS_OF_LAYER.min(limit::EXPERTS / self.num_layers);
        let mut count = None;
        for field in names.count {
            match (count, fields.optional_size(field, most)?) {
                (Some(count), Some(other)) if count != other => {
                    return Err(self.unsupported(field, &other.to_string()));
                }
                (None, found) => count = found,
                _ => {}
            }
        }
        let count = match count {
            Some(count) => count,
            None => fields.size(names.count[0], most)?,
        };
        if let Some(groups) = router.groups
            && (!count.is_multiple_of(groups.count)
                || fields.size(names.chosen, count)? > groups.chosen * (count / groups.count))
        {
            return Err(self.unsupported("n_group", &groups.count.to_string()));
        }
        let [gate, up, down] = names.modules;
        Ok(ExpertsSpec {
            router,
            norm: None,
            count,
            chosen: fields.size(names.chosen, count)?,
            prefix: Name::Borrowed(names.prefix),
            expert: MlpSpec {
                inner_size,
                gate_up: GateUp::Gated(Joined::Separate([gate, up].map(Name::Borrowed))),
                down: Name::Borrowed(down),
                ..mlp.clone()
            },
            projections: None,
            slice: None,
        })
    }
}

/// The network that every row goes to beside its experts, as wide as so many of these; none if it has no width.
pub(super) fn with_shared(
    experts: ExpertsSpec,
    mlp: &MlpSpec,
    [gate, up, down]: [&'static str; 3],
    inner_size: usize,
) -> Op {
    let shared = MlpSpec {
        inner_size,
        gate_up: GateUp::Gated(Joined::Separate([gate, up].map(Name::Borrowed))),
        down: Name::Borrowed(down),
        ..mlp.clone()
    };
    match inner_size {
        0 => Op::Experts(experts),
        _ => Op::Sum(vec![Op::Experts(experts), Op::Mlp(shared)]),
    }
}

/// The mixture of DeepSeek-V3's kind: its router, and beside the experts a network as wide as several of them.
///
/// # Errors
/// As [`Decoder::experts`] and [`grouped`].
pub(super) fn routed(
    decoder: &Decoder,
    fields: &Fields<'_>,
    mlp: &MlpSpec,
    defaults: Routed,
) -> Result<Op, ConfigError> {
    decoder.only(fields, "scoring_func", &["sigmoid", "noaux_tc"])?;
    decoder.only(fields, "topk_method", &["noaux_tc"])?;
    let step = fields.optional_size("moe_layer_freq", limit::LAYERS)?.unwrap_or(1);
    if step != 1 {
        return Err(decoder.unsupported("moe_layer_freq", &step.to_string()));
    }
    fields.understand(&["aux_loss_alpha", "ep_size", "seq_aux"]); // Of training, and of sharing work.
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let most = limit::EXPERTS_OF_LAYER;
    let shared = fields.optional_whole("n_shared_experts", 0, most)?;
    let shared = shared.unwrap_or(defaults.shared);
    let router = grouped(fields, defaults)?;
    let experts = decoder.experts(fields, Mixture::ROUTED, mlp, inner_size, router)?;
    Ok(with_shared(experts, mlp, SHARED, inner_size.saturating_mul(shared)))
}

/// Which layers have experts: those that `mlp_layer_types` says, else all but the first.
///
/// # Errors
/// If the list is of another length, or has other words.
pub(super) fn sparse_layers(
    decoder: &Decoder,
    fields: &Fields<'_>,
    dense_first: usize,
) -> Result<Vec<bool>, ConfigError> {
    const TYPES: &str = "mlp_layer_types";
    let dense = fields.optional_whole("first_k_dense_replace", 0, limit::LAYERS)?;
    let dense = dense.unwrap_or(dense_first);
    let Some(value) = fields.get(TYPES) else {
        return Ok((0..decoder.num_layers).map(|layer| layer >= dense).collect());
    };
    let types = value.as_array().ok_or_else(|| wrong(TYPES, "a list", value))?;
    if types.len() != decoder.num_layers {
        return Err(decoder.unsupported(TYPES, &format!("{} entries", types.len())));
    }
    let is_sparse = |value: &Value| match value.as_str() {
        Some("dense") => Ok(false),
        Some("sparse") => Ok(true),
        _ => Err(wrong(TYPES, "a list of dense and sparse", value)),
    };
    types.iter().map(is_sparse).collect()
}

/// Which layers have experts, in Qwen2 and those after it: every n-th, but for those that are listed.
///
/// # Errors
/// If a number is out of range.
pub(super) fn sparse_layers_by_step(
    fields: &Fields<'_>,
) -> Result<impl Fn(usize) -> bool + use<>, ConfigError> {
    let dense = fields.wholes("mlp_only_layers", limit::LAYERS)?;
    let step = fields.optional_size("decoder_sparse_step", limit::LAYERS)?.unwrap_or(1);
    Ok(move |layer: usize| !dense.contains(&layer) && (layer + 1).is_multiple_of(step))
}

/// The modules of the network beside experts where it is one more of them.
pub(super) const SHARED_EXPERT: [&str; 3] =
    ["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj"];
/// The modules of the network beside experts, in most families.
pub(super) const SHARED: [&str; 3] =
    ["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj"];
