//! Attention of one decoder layer: projections, rotation, the KV pool, weighted values.

use cake_checkpoint::AttentionSpec;
use candle_core::{CpuStorage, CustomOp1, D, Device, Layout, Shape, Tensor};

use super::norm::RmsNorm;
use super::step::Step;
use crate::device::cpu::attention::{Attend, attend};
use crate::device::cpu::gemm::precision::Precision;
use crate::device::cpu::isa::tier::Tier;
use crate::error::Error;
use crate::kv::KvPool;
use crate::linear::Linear;
use crate::loader::LayerLoader;
use crate::options::Ops;
use crate::tensors;

/// Grouped-query attention over everything seen so far (GQA as in arXiv:2305.13245), following
/// `LlamaAttention` and `Qwen3Attention` in Hugging Face transformers.
pub(crate) struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// Norms of queries and keys, over one head each.
    qk_norm: Option<[RmsNorm; 2]>,
    spec: AttentionSpec,
    kv: KvPool,
    ops: Ops,
    tier: Tier,
}

impl Attention {
    /// Scores magnify what is lost before them: these projections keep two bf16 of each number.
    pub(crate) fn load(loader: &LayerLoader<'_>, spec: &AttentionSpec) -> Result<Attention, Error> {
        let linear = |spec| loader.linear(spec, Precision::Bf16x2);
        let [q, k, v] = spec.qkv();
        let (mut q_proj, k_proj, v_proj) = (linear(&q)?, linear(&k)?, linear(&v)?);
        let qk_norm = match &spec.qk_norm {
            None => None,
            Some([q, k]) => Some([loader.norm(q)?, loader.norm(k)?]),
        };
        let o_proj = linear(&spec.output())?;
        q_proj.precede(&[&o_proj]);
        Ok(Attention {
            q_proj,
            k_proj,
            v_proj,
            o_proj,
            qk_norm,
            spec: spec.clone(),
            kv: KvPool::new(spec.kv_heads, spec.head_dim, loader.options)?,
            ops: loader.options.ops,
            tier: Tier::detect(),
        })
    }

    /// The first products of a step.
    pub(crate) fn first(&self) -> [&Linear; 3] {
        [&self.q_proj, &self.k_proj, &self.v_proj]
    }

    /// Says whose products come after the last one of a step.
    pub(crate) fn precede(&mut self, later: &[&Linear]) {
        self.o_proj.precede(later);
    }

    /// `hidden` is `[rows, hidden_size]`, already normalised, and so is the result.
    ///
    /// The rows' keys and values are written into the cache first.
    pub(crate) fn forward(
        &mut self,
        hidden: &Tensor,
        step: &Step<'_>,
    ) -> candle_core::Result<Tensor> {
        // [rows, heads × head_dim], and twice [rows, kv_heads × head_dim]
        let [mut q, mut k, v] = Linear::forward_each(self.first(), hidden, &step.kinds)?;
        if let Some([q_norm, k_norm]) = &self.qk_norm {
            q = q_norm.forward(&q)?;
            k = k_norm.forward(&k)?;
        }
        let AttentionSpec { heads, kv_heads, head_dim, rotation, .. } = self.spec;
        let Some(rotation) = step.rotations.get(rotation) else {
            candle_core::bail!("rotation {rotation} of {}", step.rotations.len());
        };
        let q = rotation.apply(&q, heads, head_dim, self.ops)?;
        let k = rotation.apply(&k, kv_heads, head_dim, self.ops)?;
        tensors::with_values(&k, |keys| {
            tensors::with_values(&v, |values| self.kv.append(&step.rows, keys, values))
        })??;
        let attended = match self.ops {
            Ops::Cake => q.apply_op1_no_bwd(&Attended { layer: self, step })?,
            Ops::Candle => self.attend_candle(&q, step)?,
        };
        self.o_proj.forward(&attended, &step.kinds)
    }

    /// The same with candle's operations, sequence by sequence: gather, repeat, multiply, mask.
    fn attend_candle(&self, q: &Tensor, step: &Step<'_>) -> candle_core::Result<Tensor> {
        let AttentionSpec { heads, kv_heads, head_dim, scale, .. } = self.spec;
        let mut outputs = Vec::new();
        let mut first = 0; // Row of the step that the item starts at.
        for item in step.items.iter().filter(|item| item.rows > 0) {
            let (rows, seen) = (item.rows, item.position + item.rows);
            let (keys, values) = self.kv.gather(seen, &item.blocks);
            let by_head = |cached: Vec<f32>| {
                Tensor::from_vec(cached, (seen, kv_heads, 1, head_dim), &Device::Cpu)?
                    .broadcast_as((seen, kv_heads, heads / kv_heads, head_dim))?
                    .reshape((seen, heads, head_dim))?
                    .transpose(0, 1)?
                    .contiguous() // [heads, seen, head_dim]
            };
            let (k, v) = (by_head(keys)?, by_head(values)?);
            let q = q.narrow(0, first, rows)?.reshape((rows, heads, head_dim))?;
            let q = q.transpose(0, 1)?.contiguous()?; // [heads, rows, head_dim]
            let scores = (q.matmul(&k.t()?)? * scale)?; // [heads, rows, seen]
            let scores = scores.broadcast_add(&self.mask(item.position, rows, seen)?)?;
            let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
            let attended = weights.matmul(&v)?.transpose(0, 1)?; // [rows, heads, head_dim]
            outputs.push(attended.reshape((rows, heads * head_dim))?);
            first += rows;
        }
        Tensor::cat(&outputs, 0)
    }

    /// `[rows, seen]`: 0 where the key is visible, minus infinity elsewhere.
    fn mask(&self, position: usize, rows: usize, seen: usize) -> candle_core::Result<Tensor> {
        let visible = |row: usize, key: usize| {
            key <= row && self.spec.window.is_none_or(|window| key + window > row)
        };
        let mask = (position..position + rows)
            .flat_map(|row| (0..seen).map(move |key| (row, key)))
            .map(|(row, key)| if visible(row, key) { 0.0 } else { f32::NEG_INFINITY })
            .collect();
        tensors::matrix(mask, rows, seen)
    }
}

/// The kernel as candle sees it: from queries `[rows, num_heads × head_dim]` to weighted values.
struct Attended<'a> {
    layer: &'a Attention,
    step: &'a Step<'a>,
}

impl CustomOp1 for Attended<'_> {
    fn name(&self) -> &'static str {
        "cake-attention"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let call = Attend {
            kv: self.layer.kv.view(),
            rows: &self.step.rows,
            heads: self.layer.spec.heads,
            scale: self.layer.spec.scale as f32,
            window: self.layer.spec.window,
        };
        let y = attend(self.layer.tier, &call, tensors::values(storage, layout)?);
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }
}
