//! Experts that lie one after the other in one tensor, `[count, rows, columns]`, as MLX and some of the Hub's files have those
//! of a layer; of each perhaps the rows of gate and up behind each other.
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
const WEIGHT: &str = ".weight";

/// How tensors of all experts are called.
struct Stacks {
    /// What they begin with, after what all of a mixture's modules do.
    beginning: &'static str,
    /// How the names of weights end.
    weight: &'static str,
    /// Gate and up, the rows of one behind those of the other.
    both: &'static str,
    /// Down.
    down: &'static str,
}

/// As MLX has those of most.
const USUAL: Stacks =
    Stacks { beginning: OF_ALL, weight: WEIGHT, both: "gate_up_proj", down: "down_proj" };
/// As the Hub's files have those of some.
const OF_HUB: Stacks = Stacks { beginning: OF_EACH, weight: "", ..USUAL };
/// As mlx-lm has those of `dots1`.
const OF_DOTS: Stacks = Stacks { beginning: OF_EACH, ..USUAL };
/// As Granite's files have them.
const OF_GRANITE: Stacks =
    Stacks { beginning: "", weight: WEIGHT, both: "input_linear", down: "output_linear" };

/// Families with others, by architecture; the first of them is what is written.
const OTHERS: [(&str, &[Stacks]); 7] = [
    ("Dots1ForCausalLM", &[OF_DOTS]),
    ("Gemma4ForCausalLM", &[OF_HUB]),
    ("Gemma4ForConditionalGeneration", &[OF_HUB]),
    ("Gemma4UnifiedForConditionalGeneration", &[OF_HUB]),
    ("Qwen3_5MoeForCausalLM", &[USUAL, OF_HUB]),
    ("Qwen3_5MoeForConditionalGeneration", &[USUAL, OF_HUB]),
    ("GraniteMoeHybridForCausalLM", &[USUAL, OF_GRANITE]),
];

/// How this model's stacks may be called.
fn stacks(spec: &ModelSpec) -> &'static [Stacks] {
    let others = OTHERS.iter().find(|(architecture, _)| *architecture == spec.architecture);
    others.map_or(&[USUAL], |(_, stacks)| stacks)
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

impl Mixture<'_> {
    /// What a tensor is called that has those of all experts that are called `leaf` in each; `None` if an expert has none of
    /// that name.
    fn name_of_all(&self, spec: &ModelSpec, stacks: &Stacks, leaf: &str) -> Option<String> {
        let (module, ending) = split(leaf, WEIGHT);
        let modules = self.modules(stacks);
        let (_, all) = modules.iter().find(|(each, _)| each[..] == [module])?;
        let ending = if ending == WEIGHT { stacks.weight } else { ending };
        let leaf = format!("{}{}{all}{ending}", self.base, stacks.beginning);
        Some(spec.layer_tensor_name(self.layer, &leaf))
    }

    /// What those of one expert are called whose rows lie behind each other in what is called `leaf` of all; none if there
    /// is no such name.
    fn names_of_each(
        &self,
        spec: &ModelSpec,
        stacks: &Stacks,
        leaf: &str,
        expert: usize,
    ) -> Vec<String> {
        let (module, ending) = split(leaf, stacks.weight);
        let modules = self.modules(stacks);
        let Some((each, _)) = modules.iter().find(|(_, all)| *all == module) else {
            return Vec::new();
        };
        let ending = if ending == stacks.weight { WEIGHT } else { ending };
        let name = |module| {
            let leaf = format!("{}{OF_EACH}{expert}.{module}{ending}", self.base);
            spec.layer_tensor_name(self.layer, &leaf)
        };
        each.iter().map(name).collect()
    }

    /// An expert's modules, those that may lie in one beside each other, and what that one is called, whatever a family calls
    /// them (`SwitchGLU` and `SwitchMLP` in mlx-lm).
    fn modules(&self, stacks: &Stacks) -> Vec<(Vec<&str>, &'static str)> {
        let MlpSpec { gate_up, down, .. } = &self.experts.expert;
        match gate_up {
            GateUp::Gated(Joined::Separate([gate, up])) => vec![
                (vec![gate], "gate_proj"),
                (vec![up], "up_proj"),
                (vec![gate, up], stacks.both),
                (vec![down], stacks.down),
            ],
            GateUp::Gated(Joined::Fused(both)) => {
                vec![(vec![both], stacks.both), (vec![down], stacks.down)]
            }
            GateUp::Plain(up) => vec![(vec![up], "fc1"), (vec![down], "fc2")],
        }
    }
}

/// A module and the ending of one of its tensors, of which weights have this one; no ending for a module by itself.
fn split<'a>(leaf: &'a str, weight: &str) -> (&'a str, &'a str) {
    let parts = Part::ALL.map(Part::ending).into_iter().chain([BIAS]);
    let module = parts.chain([weight]).find_map(|ending| leaf.strip_suffix(ending));
    leaf.split_at(module.unwrap_or(leaf).len())
}

impl ModelSpec {
    /// Where MLX has what is called `name`, a module of an expert or a tensor of one; `None` for anything else.
    pub fn expert_slice(&self, name: &str) -> Option<ExpertSlice> {
        let (found, rest) = self.mixture(name)?;
        let (number, leaf) = rest.strip_prefix(OF_EACH)?.split_once('.')?;
        let (index, count) = (decimal(number)?, found.experts.count);
        let stacks = stacks(self).first()?;
        let name = found.name_of_all(self, stacks, leaf).filter(|_| index < count)?;
        Some(ExpertSlice { name, index, count })
    }

    /// Whether a tensor of this name has those of all experts of a layer.
    pub(crate) fn is_stacked(&self, name: &str) -> bool {
        self.stack(name).is_some()
    }

    /// The experts whose tensors are in the one of this name, how that is called, and the rest of the name.
    fn stack<'a>(&'a self, name: &'a str) -> Option<(Mixture<'a>, &'static Stacks, &'a str)> {
        let (found, rest) = self.mixture(name)?;
        let (stacks, leaf) = stacks(self).iter().find_map(|stacks| {
            let leaf = rest.strip_prefix(stacks.beginning)?;
            (!found.names_of_each(self, stacks, leaf, 0).is_empty()).then_some((stacks, leaf))
        })?;
        Some((found, stacks, leaf))
    }

    /// The experts that something of this name may belong to, and what follows the beginning of their names.
    fn mixture<'a>(&'a self, name: &'a str) -> Option<(Mixture<'a>, &'a str)> {
        let (number, rest) = name.strip_prefix(&*self.layer_prefix)?.split_once('.')?;
        let layer = decimal(number)?;
        let mut experts = self.layers.get(layer)?.ops().filter_map(|op| match op {
            Op::Experts(experts) => Some(experts),
            _ => None,
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
        let Some((found, stacks, leaf)) = spec.stack(&tensor.name) else {
            all.push(tensor);
            continue;
        };
        let names = |expert| found.names_of_each(spec, stacks, leaf, expert);
        let (count, each) = (found.experts.count as u64, names(0).len() as u64);
        let whole = |bytes: u64| bytes.is_multiple_of(count * each);
        let shape = match &tensor.shape[..] {
            [first, rest @ ..] if *first == count && each == 1 && whole(tensor.bytes) => {
                rest.to_vec()
            }
            [first, rows, rest @ ..]
                if *first == count && rows.is_multiple_of(each) && whole(tensor.bytes) =>
            {
                [&[rows / each], rest].concat()
            }
            _ => {
                let (tensor, found) = (tensor.name, tensor.shape);
                return Err(CatalogError::NotOfAllExperts { tensor, experts: count, found });
            }
        };
        let bytes = tensor.bytes / (count * each);
        let parts = (0..found.experts.count).flat_map(names);
        // Below its end, which is in the file.
        let offsets = (0..).map(|index: u64| tensor.offset + index * bytes);
        let part =
            |(name, offset)| StoredTensor { name, shape: shape.clone(), offset, bytes, ..tensor };
        all.extend(parts.zip(offsets).map(part));
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
    fn gate_and_up_may_lie_in_one() {
        let config = r#"{"architectures":["Qwen3_5MoeForCausalLM"],"model_type":"qwen3_5_moe_text",
            "hidden_size":64,"num_hidden_layers":1,"num_attention_heads":2,"head_dim":8,"vocab_size":32,
            "rms_norm_eps":1e-6,"max_position_embeddings":64,"num_experts":2,"num_experts_per_tok":1,
            "moe_intermediate_size":4,"shared_expert_intermediate_size":4}"#;
        let model = ModelSpec::parse(config.as_bytes()).unwrap();
        let mlp = "model.layers.0.mlp";
        let whole = tensor(&format!("{mlp}.experts.gate_up_proj"), &[2, 8, 64]);
        let found = unstack(vec![whole], &model).unwrap();
        let [half, all] = [4 * 64 * 2, 8 * 64 * 2];
        let expected = [("0.gate", 0), ("0.up", half), ("1.gate", all), ("1.up", all + half)];
        assert_eq!(found.len(), expected.len());
        for (found, (name, offset)) in found.iter().zip(expected) {
            assert_eq!(found.name, format!("{mlp}.experts.{name}_proj.weight"));
            assert_eq!(
                (found.offset, found.bytes, &found.shape[..]),
                (1000 + offset, half, &[4, 64][..])
            );
        }
        let other = tensor(&format!("{mlp}.switch_mlp.up_proj.weight"), &[2, 4, 64]);
        assert_eq!(
            unstack(vec![other], &model).unwrap()[1].name,
            format!("{mlp}.experts.1.up_proj.weight")
        );
        let odd = tensor(&format!("{mlp}.experts.gate_up_proj"), &[2, 7, 64]);
        assert!(matches!(unstack(vec![odd], &model), Err(CatalogError::NotOfAllExperts { .. })));
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
