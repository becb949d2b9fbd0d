//! The same of what few models have beside a layer's usual operations: numbers that it is given, keys of an earlier layer,
//! several streams of hidden states, a residual of few numbers.

use super::{factor, name, norm, size, width};
use crate::model::error::Fault;
use crate::model::given::{GivenSpec, WithGivenSpec};
use crate::model::limit;
use crate::model::spec::{Activation, AttentionSpec, Branch, Joined, LayerSpec, LowRankSpec, Op};
use crate::model::streams::LayerStreamsSpec;
use crate::model::whole::ModelSpec;

impl ModelSpec {
    pub(super) fn check_given(&self, it: &GivenSpec) -> Result<(), Fault> {
        size("numbers that a layer is given", it.width, 1, limit::HIDDEN)?;
        size("rows of the table of what layers are given", it.rows, 1, limit::VOCAB)?;
        name("table of what layers are given", &it.table)?;
        name("projection to what layers are given", &it.projection)?;
        norm("width of the norm of what layers are given", &it.norm, it.width)?;
        for multiplier in [it.row_multiplier, it.product_multiplier, it.multiplier] {
            factor("multiplier of what layers are given", multiplier.into())?;
        }
        Ok(())
    }

    /// Checks whose keys a layer attends to: those of one layer before it, which makes as many.
    pub(super) fn check_keys(&self, layer: usize) -> Result<(), Fault> {
        for op in self.layers[layer].ops() {
            let Op::Attention(it) = op else { continue };
            let Some(keys_of) = it.keys_of else { continue };
            if matches!(it.qkv, Joined::Fused(_)) {
                return Err(Fault::KeysOf { keys_of });
            }
            let earlier = self.layers.get(keys_of).filter(|_| keys_of < layer);
            let ops = earlier.into_iter().flat_map(LayerSpec::ops);
            let mut makers =
                ops.filter_map(|op| if let Op::Attention(it) = op { Some(it) } else { None });
            let alike = |maker: &AttentionSpec| {
                maker.keys_of.is_none()
                    && (maker.kv_heads, maker.head_dim) == (it.kv_heads, it.head_dim)
            };
            match (makers.next(), makers.next()) {
                (Some(only), None) if alike(only) => {}
                _ => return Err(Fault::KeysOf { keys_of }),
            }
        }
        Ok(())
    }

    pub(super) fn layer_streams(
        &self,
        it: &LayerStreamsSpec,
        others: Option<&Branch>,
    ) -> Result<(), Fault> {
        width("streams of the layer", it.count, self.stream_count())?;
        size("the active stream", it.active, 0, it.count.saturating_sub(1))?;
        norm("width of the norm of streams", &it.norm, self.hidden_size)?;
        factor("multiplier of the router of streams", it.router_multiplier.into())?;
        for module in [&it.router, &it.prediction, &it.correction] {
            name("module of streams", module)?;
        }
        name("scale of a stream", &it.scale)?;
        match others {
            // It is taken as it is, once.
            Some(Branch { pre: None, residual: None, op, .. }) if !matches!(op, Op::Sum(_)) => {
                Ok(())
            }
            _ => Err(Fault::OtherStreams),
        }
    }

    pub(super) fn low_rank(&self, it: &LowRankSpec) -> Result<(), Fault> {
        width("hidden_size of a residual", it.hidden_size, self.hidden_size)?;
        size("numbers of a residual", it.rank, 1, limit::HIDDEN)?;
        name("module of a residual", &it.first)?;
        name("module of a residual", &it.second)?;
        norm("width of the norm of a residual", &it.norm, self.hidden_size)
    }

    pub(super) fn with_given(&self, it: &WithGivenSpec) -> Result<(), Fault> {
        width("hidden_size of what a layer is given", it.hidden_size, self.hidden_size)?;
        size("numbers that a layer is given", it.width, 1, limit::HIDDEN)?;
        width("numbers that a layer is given", it.width, self.given_width())?;
        name("gate of what a layer is given", &it.gate)?;
        name("output of what a layer is given", &it.output)?;
        match it.activation {
            Activation::Xielu => Err(Fault::ActivationNumbers),
            _ => Ok(()),
        }
    }
}
