//! Norms whose weights are stored as they are multiplied with.

use super::latent::LatentQueries;
use super::parts::NormSpec;
use super::spec::Op;
use super::whole::ModelSpec;

impl ModelSpec {
    /// Says of every norm that its weight is stored with what is added to it elsewhere.
    pub(crate) fn fold_norms(&mut self) {
        let branches = self
            .layers
            .iter_mut()
            .flat_map(|layer| layer.branches.iter_mut().chain(&mut layer.others));
        for branch in branches {
            branch.pre.iter_mut().chain(&mut branch.post).for_each(fold);
            fold_in(&mut branch.op);
        }
        fold(&mut self.final_norm);
        self.given.iter_mut().for_each(|given| fold(&mut given.norm));
    }
}

fn fold(norm: &mut NormSpec) {
    norm.offset = 0.0;
}

fn fold_in(op: &mut Op) {
    match op {
        Op::Attention(it) => it.qk_norm.iter_mut().flatten().for_each(fold),
        Op::Latent(it) => {
            fold(&mut it.norm);
            if let LatentQueries::Short { norm, .. } = &mut it.queries {
                fold(norm);
            }
        }
        Op::Delta(it) => fold(&mut it.norm),
        Op::Mamba(it) => it.norm.iter_mut().for_each(fold),
        Op::LowRank(it) => fold(&mut it.norm),
        Op::Experts(it) => it.norm.iter_mut().for_each(fold),
        Op::Mlp(_) | Op::ShortConvolution(_) | Op::WithGiven(_) => {}
        Op::Sum(parts) => parts.iter_mut().for_each(fold_in),
        Op::Normed(it) => {
            it.pre.iter_mut().chain(&mut it.post).for_each(fold);
            fold_in(&mut it.op);
        }
    }
}
