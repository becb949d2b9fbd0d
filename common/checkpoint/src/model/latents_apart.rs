//! Latent attention in files that have by themselves what makes keys of latents, turned, and what makes values.

use super::latent::LatentSpec;
use super::parts::Name;
use super::spec::Op;
use super::whole::ModelSpec;
use crate::encoding::Part;

/// Modules of what makes keys of latents, each head's turned, and of what makes values of them, where files have both by
/// themselves (`DeepseekV3Attention` in mlx-lm).
const APART: [&str; 2] = ["self_attn.embed_q", "self_attn.unembed_out"];

impl ModelSpec {
    /// Says of latent attention that keys have a module of their own, turned, in layers of which `is_there` knows a tensor of it.
    pub(crate) fn part_latents(&mut self, is_there: impl Fn(&str) -> bool) {
        for layer in 0..self.layers.len() {
            let [keys, values] = APART.map(Name::Borrowed);
            let weight = format!("{keys}{}", Part::Weight.ending());
            if !is_there(&self.layer_tensor_name(layer, &weight)) {
                continue;
            }
            for branch in &mut self.layers[layer].branches {
                if let Op::Latent(latent) = &mut branch.op {
                    (latent.keys, latent.up) = (Some(keys.clone()), values.clone());
                }
            }
        }
    }

    /// Tensors that files may have as one matrix of each head, `[heads, rows, columns]`: weights, or their parts.
    pub(crate) fn tensors_of_heads<'a>(&'a self) -> impl Iterator<Item = String> + use<'a> {
        self.layers.iter().enumerate().flat_map(move |(layer, spec)| {
            let modules = spec.ops().filter_map(|op| match op {
                Op::Latent(LatentSpec { keys: Some(keys), up, .. }) => Some([keys, up]),
                _ => None,
            });
            let names = move |module: &'a Name| {
                let name = move |part: Part| format!("{module}{}", part.ending());
                Part::ALL.map(name).map(|leaf| self.layer_tensor_name(layer, &leaf))
            };
            modules.flatten().flat_map(names)
        })
    }
}
