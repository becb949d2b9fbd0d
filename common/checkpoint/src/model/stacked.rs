//! Experts that lie one after the other in one tensor, `[count, rows, columns]`, as MLX has those of a layer.
//!
//! Everything else knows the experts of a layer as modules of their own; here is which slice of which tensor each is.

use super::names::{BIAS, decimal};
use super::spec::{ExpertsSpec, GateUp, Joined, MlpSpec, Op};
use super::whole::ModelSpec;
use crate::catalog::CatalogError;
use crate::container::StoredTensor;
use crate::encoding::Part;

/// What precedes the number of an expert, at its end, and what MLX has in the place of both (`SwitchGLU` in mlx-lm).
const OF_EACH: &str = "experts.";
const OF_ALL: &str = "switch_mlp.";
/// How a family's stacks are called.
struct Stacks {
    architecture: &'static str,
    /// What they begin with, after what all of a mixture's modules do.
    beginning: &'static str,
    /// How the names of weights end.
    weight: &'static str,
}

/// As MLX has those of most.
const USUAL: Stacks = Stacks { architecture: "", beginning: OF_ALL, weight: WEIGHT };
/// Families with others: mlx-lm's `dots1`, and those that lie so in the files of the Hub.
const OTHERS: [Stacks; 4] = [
    Stacks { architecture: "Dots1ForCausalLM", beginning: OF_EACH, weight: WEIGHT },
    Stacks { architecture: "Gemma4ForCausalLM", beginning: OF_EACH, weight: "" },
    Stacks { architecture: "Gemma4ForConditionalGeneration", beginning: OF_EACH, weight: "" },
    Stacks {
        architecture: "Gemma4UnifiedForConditionalGeneration",
        beginning: OF_EACH,
        weight: "",
    },
];
const WEIGHT: &str = ".weight";

/// How this model's stacks are called.
fn stacks(spec: &ModelSpec) -> &'static Stacks {
    OTHERS.iter().find(|other| other.architecture == spec.architecture).unwrap_or(&USUAL)
}

/// Where MLX has a module or a tensor of one expert: together with those of all experts of the layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpertSlice {
    /// What the whole is called.
    pub name: String,
    /// The expert's number: the whole has one slice for each, in order.
    pub index: usize,
    /// How many experts there are; their slices are of equal size.
    pub count: usize,
}

/// A layer's experts, as names begin that have them.
struct Mixture<'a> {
    layer: usize,
    experts: &'a ExpertsSpec,
    /// What precedes the number of an expert, but for [`OF_EACH`].
    base: &'a str,
}

/// Whose names: ours, or those that all experts' tensors have together.
#[derive(Clone, Copy)]
enum Side {
    Each(usize),
    All,
}

impl Mixture<'_> {
    /// The name on the other side of an expert's module, or a module's tensor, that is called `leaf` on this one; `None` if
    /// an expert has none of that name.
    fn across(&self, spec: &ModelSpec, leaf: &str, to: Side) -> Option<String> {
        let mut endings = Part::ALL.map(Part::ending).into_iter().chain([BIAS]);
        let module = endings.find_map(|ending| leaf.strip_suffix(ending)).unwrap_or(leaf);
        let names = self.modules();
        let stacks = stacks(spec);
        let ending = match (&leaf[module.len()..], to) {
            (WEIGHT, Side::All) => stacks.weight,
            (ending, Side::Each(_)) if ending == stacks.weight => WEIGHT,
            (ending, _) => ending,
        };
        let mut found = names.iter().filter_map(|(each, all)| match to {
            Side::All => (*each == module).then_some(*all),
            Side::Each(_) => (*all == module).then_some(*each),
        });
        let (found, base) = (found.next()?, self.base);
        let middle = match to {
            Side::All => stacks.beginning.to_owned(),
            Side::Each(expert) => format!("{OF_EACH}{expert}."),
        };
        Some(spec.layer_tensor_name(self.layer, &format!("{base}{middle}{found}{ending}")))
    }

    /// An expert's modules, each with what MLX calls it, whatever a family does (`SwitchGLU` and `SwitchMLP` in mlx-lm).
    fn modules(&self) -> Vec<(&str, &str)> {
        let MlpSpec { gate_up, down, .. } = &self.experts.expert;
        match gate_up {
            GateUp::Gated(Joined::Separate([gate, up])) => {
                vec![(&**gate, "gate_proj"), (&**up, "up_proj"), (&**down, "down_proj")]
            }
            GateUp::Gated(Joined::Fused(both)) => {
                vec![(&**both, "gate_up_proj"), (&**down, "down_proj")]
            }
            GateUp::Plain(up) => vec![(&**up, "fc1"), (&**down, "fc2")],
        }
    }
}

impl ModelSpec {
    /// Where MLX has what is called `name`, a module of an expert or a tensor of one; `None` for anything else.
    pub fn expert_slice(&self, name: &str) -> Option<ExpertSlice> {
        let (found, rest) = self.mixture(name)?;
        let (number, leaf) = rest.strip_prefix(OF_EACH)?.split_once('.')?;
        let (index, count) = (decimal(number)?, found.experts.count);
        let name = found.across(self, leaf, Side::All).filter(|_| index < count)?;
        Some(ExpertSlice { name, index, count })
    }

    /// Whether a tensor of this name has those of all experts of a layer.
    pub(crate) fn is_stacked(&self, name: &str) -> bool {
        self.stack(name).is_some()
    }

    /// The experts whose tensors are in the one of this name, and the rest of the name.
    fn stack<'a>(&'a self, name: &'a str) -> Option<(Mixture<'a>, &'a str)> {
        let (found, rest) = self.mixture(name)?;
        let leaf = rest.strip_prefix(stacks(self).beginning)?;
        found.across(self, leaf, Side::Each(0))?;
        Some((found, leaf))
    }

    /// The experts that something of this name may belong to, and what follows the beginning of their names.
    fn mixture<'a>(&'a self, name: &'a str) -> Option<(Mixture<'a>, &'a str)> {
        let (number, rest) = name.strip_prefix(&*self.layer_prefix)?.split_once('.')?;
        let layer = decimal(number)?;
        let mut experts = self.layers.get(layer)?.ops().filter_map(|op| match op {
            Op::Experts(experts) => Some(experts),
            Op::Attention(_) | Op::Latent(_) | Op::Mlp(_) | Op::Sum(_) | Op::Normed(_) => None,
        });
        experts.find_map(|experts| {
            let base = experts.prefix.strip_suffix(OF_EACH)?;
            Some((Mixture { layer, experts, base }, rest.strip_prefix(base)?))
        })
    }
}

/// The tensors of a model, each of an expert by itself also where those of all are in one. A layer has a dozen of these at most,
/// so that what comes of names that are there once is bounded by the model's experts.
///
/// Of each tensor, all bytes must be in its file.
///
/// # Errors
/// [`CatalogError::NotOfAllExperts`] for one that is not as many slices as there are experts.
pub fn unstack(
    tensors: Vec<StoredTensor>,
    spec: &ModelSpec,
) -> Result<Vec<StoredTensor>, CatalogError> {
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let Some((found, leaf)) = spec.stack(&tensor.name) else {
            all.push(tensor);
            continue;
        };
        let count = found.experts.count as u64;
        let slice = match tensor.shape.split_first() {
            Some((first, rest)) if *first == count && tensor.bytes.is_multiple_of(count) => rest,
            _ => {
                let (tensor, found) = (tensor.name, tensor.shape);
                return Err(CatalogError::NotOfAllExperts { tensor, experts: count, found });
            }
        };
        let bytes = tensor.bytes / count;
        let of = |index: u64| {
            let name = found.across(spec, leaf, Side::Each(index as usize))?;
            // Below its end, which is in the file.
            let (shape, offset) = (slice.to_vec(), tensor.offset + index * bytes);
            Some(StoredTensor { name, shape, offset, bytes, ..tensor })
        };
        all.extend((0..count).filter_map(of));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    fn model() -> ModelSpec {
        let config = r#"{"architectures":["Qwen3MoeForCausalLM"],"hidden_size":64,"num_hidden_layers":2,
            "num_attention_heads":2,"intermediate_size":16,"vocab_size":32,"rms_norm_eps":1e-6,
            "max_position_embeddings":64,"num_experts":3,"num_experts_per_tok":1,"moe_intermediate_size":32,
            "mlp_only_layers":[0]}"#;
        ModelSpec::parse(config.as_bytes()).unwrap()
    }

    fn tensor(name: &str, shape: &[u64]) -> StoredTensor {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        let bytes = 2 * shape.iter().product::<u64>();
        let (dtype, encoding) = (Dtype::BF16, None);
        StoredTensor { name, file: 1, dtype, shape, offset: 1000, bytes, encoding }
    }

    #[test]
    fn an_experts_slice_has_the_name_that_taking_the_whole_apart_gives() {
        let (model, whole) = (model(), "model.layers.1.mlp.switch_mlp.down_proj.weight");
        let found = unstack(vec![tensor(whole, &[3, 64, 32])], &model).unwrap();
        assert_eq!(found.len(), 3);
        for (index, slice) in found.iter().enumerate() {
            assert_eq!(slice.name, format!("model.layers.1.mlp.experts.{index}.down_proj.weight"));
            assert_eq!((slice.file, &slice.shape[..], slice.bytes), (1, &[64, 32][..], 4096));
            assert_eq!(slice.offset, 1000 + 4096 * index as u64);
            let back = ExpertSlice { name: whole.to_owned(), index, count: 3 };
            assert_eq!(model.expert_slice(&slice.name), Some(back));
        }
        let module = model.expert_slice("model.layers.1.mlp.experts.2.up_proj").unwrap();
        assert_eq!((&*module.name, module.index), ("model.layers.1.mlp.switch_mlp.up_proj", 2));
    }

    #[test]
    fn modules_of_other_names_have_the_usual_ones_together() {
        let config = r#"{"architectures":["MixtralForCausalLM"],"hidden_size":64,"num_hidden_layers":1,
            "num_attention_heads":2,"intermediate_size":16,"vocab_size":32,"rms_norm_eps":1e-6,
            "max_position_embeddings":64,"num_local_experts":2,"num_experts_per_tok":1}"#;
        let model = ModelSpec::parse(config.as_bytes()).unwrap();
        let moe = "model.layers.0.block_sparse_moe";
        for (all, each) in [("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")] {
            let whole = format!("{moe}.switch_mlp.{all}.weight");
            let found = unstack(vec![tensor(&whole, &[2, 8, 4])], &model).unwrap();
            let name = format!("{moe}.experts.1.{each}.weight");
            assert_eq!((found.len(), &found[1].name), (2, &name));
            assert_eq!(model.expert_slice(&name).unwrap().name, whole);
            let other = vec![tensor(&format!("{moe}.switch_mlp.{each}.weight"), &[2, 8, 4])];
            assert_eq!(unstack(other.clone(), &model).unwrap(), other);
        }
    }

    #[test]
    fn what_is_no_expert_stays() {
        let model = model();
        for name in [
            "model.layers.0.mlp.switch_mlp.down_proj.weight", // The layer has no experts.
            "model.layers.2.mlp.switch_mlp.down_proj.weight",
            "model.layers.01.mlp.switch_mlp.down_proj.weight",
            "model.layers.+1.mlp.switch_mlp.down_proj.weight",
            "model.layers.1.mlp.switch_mlp.down_proj.weight.3",
            "model.layers.1.mlp.switch_mlp.down_proj.inv_freq",
            "model.layers.1.mlp.switch_mlp.side_proj.weight",
            "model.layers.1.mlp.switch_mlp.weight",
            "model.layers.1.mlp.gate.weight",
            "switch_mlp.down_proj.weight",
        ] {
            let one = vec![tensor(name, &[5, 2])];
            assert_eq!(unstack(one.clone(), &model).unwrap(), one);
            assert_eq!(model.expert_slice(name), None);
        }
        for leaf in ["3.up_proj", "up_proj", "00.up_proj", "0.rotary_emb.inv_freq", "0.up_proj.x"] {
            let name = format!("model.layers.1.mlp.experts.{leaf}");
            assert_eq!(model.expert_slice(&name), None, "{name}");
        }
    }

    #[test]
    fn a_tensor_of_more_or_fewer_experts_is_refused() {
        let (model, name) = (model(), "model.layers.1.mlp.switch_mlp.down_proj.scales");
        for shape in [&[4, 64, 1][..], &[2, 3], &[]] {
            let error = unstack(vec![tensor(name, shape)], &model).unwrap_err();
            assert!(matches!(error, CatalogError::NotOfAllExperts { .. }), "{error}");
            assert!(error.to_string().contains(name) && error.to_string().contains("3 experts"));
        }
    }
}
