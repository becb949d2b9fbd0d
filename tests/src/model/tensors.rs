//! The tensors of a made-up model, in the order of its file.
use cake_checkpoint::{Affine, Dtype};

use super::ModelShape;

/// How far norm weights lie from 1.
const NORM_SPREAD: f32 = 0.1;
/// How far scales and biases of a packed matrix lie from their middle, as a part of it.
const PARAM_SPREAD: f32 = 0.1;

#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    /// Uniform in `centre` ± `spread`.
    Numbers { centre: f32, spread: f32 },
    /// Random words.
    Codes,
}

impl Tensor {
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().map(|axis| *axis as u64).product()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.dtype.bits() / 8 * self.elements()
    }
}

impl ModelShape {
    /// All tensors in the order of the file.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let (hidden, wide) = (self.hidden_size, self.intermediate_size);
        let (query, key) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut all = self.matrix("model.embed_tokens".into(), self.vocab_size, hidden);
        for layer in 0..self.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            all.push(self.norm(name("input_layernorm.weight")));
            for (part, rows) in [("q_proj", query), ("k_proj", key), ("v_proj", key)] {
                let module = name(&format!("self_attn.{part}"));
                if self.qwen2 {
                    all.push(self.numbers(format!("{module}.bias"), vec![rows], 0.0, NORM_SPREAD));
                }
                all.extend(self.matrix(module, rows, hidden));
            }
            all.extend(self.matrix(name("self_attn.o_proj"), hidden, query));
            all.push(self.norm(name("post_attention_layernorm.weight")));
            all.extend(self.matrix(name("mlp.gate_proj"), wide, hidden));
            all.extend(self.matrix(name("mlp.up_proj"), wide, hidden));
            all.extend(self.matrix(name("mlp.down_proj"), hidden, wide));
        }
        all.push(self.norm("model.norm.weight".into()));
        if !self.tied {
            all.extend(self.matrix("lm_head".into(), self.vocab_size, hidden));
        }
        all
    }

    fn numbers(&self, name: String, shape: Vec<usize>, centre: f32, spread: f32) -> Tensor {
        Tensor { name, dtype: self.dtype, shape, content: Content::Numbers { centre, spread } }
    }

    fn norm(&self, name: String) -> Tensor {
        self.numbers(name, vec![self.hidden_size], 1.0, NORM_SPREAD)
    }

    /// A matrix, plain or packed, with weights that keep the size of what it is applied to about the
    /// same.
    fn matrix(&self, module: String, rows: usize, columns: usize) -> Vec<Tensor> {
        let bound = (1.0 / columns as f32).sqrt();
        let weight = format!("{module}.weight");
        let Some(format) = self.packed else {
            return vec![self.numbers(weight, vec![rows, columns], 0.0, bound)];
        };
        let largest = f32::from(Affine::largest_code(format));
        let param = |part: &str, centre: f32| {
            let shape = vec![rows, columns / format.group()];
            self.numbers(format!("{module}.{part}"), shape, centre, PARAM_SPREAD * centre.abs())
        };
        let shape = vec![rows, columns * format.bits() / 32];
        vec![
            Tensor { name: weight, dtype: Dtype::U32, shape, content: Content::Codes },
            param("scales", 2.0 * bound / largest),
            param("biases", -bound),
        ]
    }
}
