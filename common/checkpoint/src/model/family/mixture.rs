//! What families with experts share: reading mixtures and their routers.

use super::decoder::Decoder;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::spec::{
    ExpertsSpec, GateUp, Joined, MlpSpec, Name, Op, RouterScores, RouterSpec,
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
    /// As Mixtral and those after it do.
    pub(super) const BLOCK_SPARSE: Mixture = Mixture {
        count: &["num_local_experts"],
        prefix: "block_sparse_moe.experts.",
        modules: ["w1", "w3", "w2"],
        ..Mixture::USUAL
    };
}

/// A router whose scores are the softmax of its products.
pub(super) fn softmax(path: &'static str, renormalise: bool) -> RouterSpec {
    RouterSpec {
        path: Name::Borrowed(path),
        scores: RouterScores::Softmax,
        correction: None,
        groups: None,
        renormalise: renormalise.then_some(0.0),
        multiplier: 1.0,
    }
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
            count,
            chosen: fields.size(names.chosen, count)?,
            prefix: Name::Borrowed(names.prefix),
            expert: MlpSpec {
                inner_size,
                gate_up: GateUp::Gated(Joined::Separate([gate, up].map(Name::Borrowed))),
                down: Name::Borrowed(down),
                ..mlp.clone()
            },
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
