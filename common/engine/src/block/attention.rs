//! Attention of one decoder layer: projections, rotation, what is kept of the past, weighted values.

use cake_checkpoint::{Activation, AttentionSpec, LinearSpec, OutputGate};

use crate::device::{Attending, Device, StoredNorm};
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;
use crate::step::Step;

/// Grouped-query attention over the past, all of it or a window (GQA as in arXiv:2305.13245), following
/// `LlamaAttention` and `Qwen3Attention` in Hugging Face transformers.
pub(crate) struct Attention<D: Device> {
    q_proj: D::Weight,
    k_proj: D::Weight,
    v_proj: D::Weight,
    o_proj: D::Weight,
    /// What makes gates that are not the queries'.
    g_proj: Option<D::Weight>,
    /// Nothing, which is added to these.
    no_bias: Vec<f32>,
    /// Norms of queries and keys.
    qk_norm: Option<[D::Norm; 2]>,
    /// That of values, which has no weight.
    v_norm: Option<D::Norm>,
    spec: AttentionSpec,
    attending: Attending,
    kept: D::Kept,
}

impl<D: Device> Attention<D> {
    /// Loads the projections. Their activations keep two bf16 of each number, since scores magnify what is lost before
    /// them.
    pub(crate) fn load(loader: &LayerLoader<'_, D>, spec: &AttentionSpec) -> Result<Self, Error> {
        let linear = |spec: &LinearSpec| loader.linear(spec, Precision::Bf16x2);
        let [q, k, v] = spec.qkv();
        let (mut q_proj, k_proj, v_proj) = (linear(&q)?, linear(&k)?, linear(&v)?);
        let qk_norm = match &spec.qk_norm {
            None => None,
            Some([q, k]) => Some([loader.norm(q)?, loader.norm(k)?]),
        };
        let ones = |eps: f64| {
            loader.device.norm_weight(StoredNorm::rms(vec![1.0; spec.head_dim], eps as f32))
        };
        let v_norm = spec.value_norm.map(ones).transpose()?;
        let o_proj = linear(&spec.output())?;
        loader.device.precede(&mut q_proj, &[&o_proj]);
        let attending = Attending::from(spec);
        let kept = loader.device.kept(&attending, loader.options)?;
        let gate = spec.gate();
        let g_proj = gate.as_ref().map(linear).transpose()?;
        let no_bias = vec![0.0; gate.map_or(0, |gate| gate.stored_rows)];
        let spec = spec.clone();
        Ok(Attention {
            q_proj,
            k_proj,
            v_proj,
            o_proj,
            g_proj,
            no_bias,
            qk_norm,
            v_norm,
            spec,
            attending,
            kept,
        })
    }

    /// The first products of a step.
    pub(crate) fn first(&self) -> [&D::Weight; 3] {
        [&self.q_proj, &self.k_proj, &self.v_proj]
    }

    /// Says whose products come after the last one of a step.
    pub(crate) fn precede(&mut self, device: &D, later: &[&D::Weight]) {
        device.precede(&mut self.o_proj, later);
    }

    /// Queries and keys after their norms, if they have such.
    fn normed(&self, device: &D, q: D::Rows, k: D::Rows) -> Result<(D::Rows, D::Rows), Error> {
        match &self.qk_norm {
            None => Ok((q, k)),
            Some([q_norm, k_norm]) => Ok((device.norm(q_norm, &q)?, device.norm(k_norm, &k)?)),
        }
    }

    /// The operation on `hidden`, `[rows, hidden_size]`, which is already normalised; the result has the same shape.
    ///
    /// The rows' keys and values are written to the KV cache first.
    pub(crate) fn forward(
        &mut self,
        device: &D,
        hidden: &D::Rows,
        step: &Step<'_>,
    ) -> Result<D::Rows, Error> {
        // [rows, heads × head_dim], and twice [rows, kv_heads × head_dim]
        let [mut q, mut k, mut v] = device.linear(self.first(), hidden, &step.kinds)?;
        let width = self.spec.head_dim;
        let mut gate = None;
        if self.spec.output_gate == Some(OutputGate::WithQueries) {
            let with_queries = device.columns(&q, 2 * width, width..2 * width)?;
            gate = Some(device.activate(Activation::Sigmoid, with_queries)?);
            q = device.columns(&q, 2 * width, 0..width)?;
        }
        if let Some(g_proj) = &self.g_proj {
            let [product] = device.linear([g_proj], hidden, &step.kinds)?;
            let softplus = device.softplus(product, &self.no_bias)?;
            gate = Some(device.spread(softplus, self.spec.q_dim() / self.no_bias.len().max(1))?);
        }
        if let Some(norm) = &self.v_norm {
            v = device.norm(norm, &v)?;
        }
        if !self.spec.qk_norm_after_rotation {
            (q, k) = self.normed(device, q, k)?;
        }
        let AttentionSpec { heads, kv_heads, head_dim, rotation, .. } = self.spec;
        if let Some(rotation) = rotation {
            let angles = step.rotation(rotation)?;
            q = device.rotate(q, angles, heads, head_dim)?;
            k = device.rotate(k, angles, kv_heads, head_dim)?;
        }
        if self.spec.qk_norm_after_rotation {
            (q, k) = self.normed(device, q, k)?;
        }
        if let Some(scale) = self.spec.query_scale {
            let factors: Vec<f32> = step.rows.iter().map(|row| scale.at(row.position)).collect();
            if factors.iter().any(|factor| *factor != 1.0) {
                q = device.scale_rows(q, &factors)?;
            }
        }
        device.keep(&mut self.kept, step, &k, Some(&v))?;
        drop((k, v));
        let attended = device.attend(&self.kept, &self.attending, step, &q)?;
        drop(q);
        let attended = match gate {
            Some(gate) => device.multiply(attended, &gate)?,
            None => attended,
        };
        let [output] = device.linear([&self.o_proj], &attended, &step.kinds)?;
        Ok(output)
    }
}
