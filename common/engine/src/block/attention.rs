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
    keys: Keys<D>,
    o_proj: D::Weight,
    /// What makes gates that are not the queries'.
    g_proj: Option<D::Weight>,
    /// Nothing, which is added to these.
    no_bias: Vec<f32>,
    /// Norm of queries.
    q_norm: Option<D::Norm>,
    /// That of queries and keys after the rotation, which has no weight.
    turned_norm: Option<D::Norm>,
    /// Of each head, a score beside those of positions.
    sinks: Option<Vec<f32>>,
    spec: AttentionSpec,
    attending: Attending,
}

/// Whose keys and values queries meet.
enum Keys<D: Device> {
    /// Its own.
    Own(Box<Own<D>>),
    /// Those of an earlier layer than its own, and of the same stage.
    Of { layer: usize, keys_of: usize },
}

/// What makes keys and values, and has them.
struct Own<D: Device> {
    k_proj: D::Weight,
    v_proj: D::Weight,
    k_norm: Option<D::Norm>,
    /// That of values, which has no weight.
    v_norm: Option<D::Norm>,
    kept: D::Kept,
}

impl<D: Device> Attention<D> {
    /// Loads the projections. Their activations keep two bf16 of each number, since scores magnify what is lost before
    /// them.
    pub(crate) fn load(loader: &LayerLoader<'_, D>, spec: &AttentionSpec) -> Result<Self, Error> {
        let linear = |spec: &LinearSpec| loader.linear(spec, Precision::Bf16x2);
        let mut projections = spec.qkv().into_iter();
        let mut next = || projections.next().map(|it| linear(&it)).transpose();
        let norm = |index: usize| {
            let norms = spec.qk_norm.as_ref();
            norms.map(|norms| loader.norm(&norms[index])).transpose()
        };
        let attending = Attending::from(spec);
        let mut q_proj = next()?.expect("queries are always made");
        let ones = |eps: f64| {
            let ones = vec![1.0; spec.head_dim];
            loader.device.norm_weight(StoredNorm::rms(ones, eps as f32))
        };
        let keys = match (spec.keys_of, next()?, next()?) {
            (None, Some(k_proj), Some(v_proj)) => {
                let (k_norm, v_norm) = (norm(1)?, spec.value_norm.map(ones).transpose()?);
                let kept = loader.device.kept(&attending, loader.options)?;
                Keys::Own(Box::new(Own { k_proj, v_proj, k_norm, v_norm, kept }))
            }
            (keys_of, ..) => Keys::Of {
                layer: loader.layer.unwrap_or_default(),
                keys_of: keys_of.unwrap_or_default(),
            },
        };
        let turned_norm = spec.turned_norm.map(ones).transpose()?;
        let sinks = spec.sinks().map(|tensor| loader.parameter(&tensor)).transpose()?;
        let o_proj = linear(&spec.output())?;
        loader.device.precede(&mut q_proj, &[&o_proj]);
        let gate = spec.gate();
        let g_proj = gate.as_ref().map(linear).transpose()?;
        let no_bias = vec![0.0; gate.map_or(0, |gate| gate.stored_rows)];
        let (q_norm, spec) = (norm(0)?, spec.clone());
        Ok(Attention {
            q_proj,
            keys,
            o_proj,
            g_proj,
            no_bias,
            q_norm,
            turned_norm,
            sinks,
            spec,
            attending,
        })
    }

    /// The first products of a step.
    pub(crate) fn first(&self) -> Vec<&D::Weight> {
        match &self.keys {
            Keys::Own(own) => vec![&self.q_proj, &own.k_proj, &own.v_proj],
            Keys::Of { .. } => vec![&self.q_proj],
        }
    }

    /// The layer whose keys and values it attends to, if it makes none.
    pub(super) fn keys_of(&self) -> Option<usize> {
        match self.keys {
            Keys::Own(_) => None,
            Keys::Of { keys_of, .. } => Some(keys_of),
        }
    }

    /// The keys and values that it makes.
    pub(super) fn kept(&self) -> Option<&D::Kept> {
        match &self.keys {
            Keys::Own(own) => Some(&own.kept),
            Keys::Of { .. } => None,
        }
    }

    /// Says whose products come after the last one of a step.
    pub(crate) fn precede(&mut self, device: &D, later: &[&D::Weight]) {
        device.precede(&mut self.o_proj, later);
    }

    /// Queries, or keys, `[rows, heads × head_dim]`, after their norms and their rotation, if they have such.
    fn turned(
        &self,
        device: &D,
        mut x: D::Rows,
        norm: Option<&D::Norm>,
        heads: usize,
        step: &Step<'_>,
    ) -> Result<D::Rows, Error> {
        let (early, late) = match self.spec.qk_norm_after_rotation {
            true => (None, norm),
            false => (norm, None),
        };
        if let Some(norm) = early {
            x = device.norm(norm, &x)?;
        }
        if let Some(rotation) = self.spec.rotation {
            x = device.rotate(x, step.rotation(rotation)?, heads, self.spec.head_dim)?;
        }
        if let Some(norm) = late {
            x = device.norm(norm, &x)?;
        }
        if let Some(norm) = &self.turned_norm {
            x = device.norm(norm, &x)?;
        }
        Ok(x)
    }

    /// The operation on `hidden`, `[rows, hidden_size]`, which is already normalised; the result has the same shape.
    /// `others` are the keys and values that it attends to where it makes none ([`Attention::keys_of`]).
    ///
    /// The rows' keys and values are written to the KV cache first.
    pub(crate) fn forward(
        &mut self,
        device: &D,
        hidden: &D::Rows,
        step: &Step<'_>,
        others: Option<&D::Kept>,
    ) -> Result<D::Rows, Error> {
        // [rows, heads × head_dim], and twice [rows, kv_heads × head_dim]
        let (mut q, made) = match &self.keys {
            Keys::Own(own) => {
                let weights = [&self.q_proj, &own.k_proj, &own.v_proj];
                let [q, k, v] = device.linear(weights, hidden, &step.kinds)?;
                (q, Some((k, v)))
            }
            Keys::Of { .. } => {
                let [q] = device.linear([&self.q_proj], hidden, &step.kinds)?;
                (q, None)
            }
        };
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
        let made = match (&self.keys, made) {
            (Keys::Own(own), Some((k, v))) => {
                let v = match &own.v_norm {
                    Some(norm) => device.norm(norm, &v)?,
                    None => v,
                };
                let heads = self.spec.kv_heads;
                Some((self.turned(device, k, own.k_norm.as_ref(), heads, step)?, v))
            }
            _ => None,
        };
        q = self.turned(device, q, self.q_norm.as_ref(), self.spec.heads, step)?;
        if let Some(scale) = self.spec.query_scale {
            let factors: Vec<f32> = step.rows.iter().map(|row| scale.at(row.position)).collect();
            if factors.iter().any(|factor| *factor != 1.0) {
                q = device.scale_rows(q, &factors)?;
            }
        }
        if let (Keys::Own(own), Some((k, v))) = (&mut self.keys, made) {
            device.keep(&mut own.kept, step, &k, Some(&v))?;
        }
        let kept = match &self.keys {
            Keys::Own(own) => &own.kept,
            Keys::Of { layer, keys_of } => {
                let (layer, keys_of) = (*layer, *keys_of);
                others.ok_or(Error::KeysElsewhere { layer, keys_of })?
            }
        };
        let sinks = self.sinks.as_deref();
        let attended = device.attend(kept, &self.attending, step, &q, sinks)?;
        drop(q);
        let attended = match gate {
            Some(gate) => device.multiply(attended, &gate)?,
            None => attended,
        };
        let [output] = device.linear([&self.o_proj], &attended, &step.kinds)?;
        Ok(output)
    }
}
