//! Experts that lie one after the other in one tensor, `[count, rows, columns]`, as MLX and some of the Hub's files have those
//! of a layer; of each perhaps the rows of gate and up behind each other. Or each expert's matrices are turned, `[count, columns,
//! rows]`: then their numbers lie apart.
//!
//! Everything else knows the experts of a layer as modules of their own; here is which slice of which tensor each is.

use super::names::{BIAS, decimal};
use super::spec::{ExpertsSpec, GateUp, Joined, LayerSpec, MlpSpec, Op};
use super::whole::ModelSpec;
use crate::catalog::CatalogError;
use crate::container::{Lies, StoredTensor, Strides};
use crate::dtype::Dtype;
use crate::encoding::Part;

/// What precedes the number of an expert, at its end, and what MLX has in the place of both (`SwitchGLU` in mlx-lm).
const OF_EACH: &str = "experts.";
const OF_ALL: &str = "switch_mlp.";
const WEIGHT: &str = ".weight";

/// How tensors of all experts are called.
struct Stacks {
    /// What they begin with, after what all of a mixture's modules do.
    beginning: &'static str,
    /// How the names of weights end,
    weight: &'static str,
    /// and of biases.
    bias: &'static str,
    /// Gate and up in one.
    both: &'static str,
    /// Down.
    down: &'static str,
    /// How the numbers of one expert lie.
    layout: Layout,
    /// Whether it is of models alone that have gate and up of an expert in one.
    is_joined: bool,
}

/// How the numbers of one expert lie in a tensor that has those of all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Row by row, those of up behind those of gate.
    Rows,
    /// Column by column, in each the numbers of up behind those of gate,
    Columns,
    /// or those of gate and up in turn, as are their biases.
    ColumnsInTurn,
    /// Row by row, those of gate and up in turn.
    RowsInTurn,
}

impl Layout {
    /// Whether rows of an expert's matrices are columns of the tensor.
    fn is_turned(self) -> bool {
        matches!(self, Layout::Columns | Layout::ColumnsInTurn)
    }
}

/// As MLX has those of most.
const USUAL: Stacks = Stacks {
    beginning: OF_ALL,
    weight: WEIGHT,
    bias: BIAS,
    both: "gate_up_proj",
    down: "down_proj",
    layout: Layout::Rows,
    is_joined: false,
};
/// As the Hub's files have those of some,
const OF_HUB: Stacks = Stacks { beginning: OF_EACH, weight: "", ..USUAL };
/// and of Gemma 4.
const OF_HUB_JOINED: Stacks = Stacks { is_joined: true, ..OF_HUB };
/// As mlx-lm has those of `dots1`, of gpt-oss and of Llama 4,
const OF_DOTS: Stacks = Stacks { beginning: OF_EACH, ..USUAL };
/// and those of Gemma 4.
const OF_GEMMA4: Stacks = Stacks { beginning: "experts.switch_glu.", ..USUAL };
/// As the Hub's files have those of Llama 4,
const OF_LLAMA4: Stacks = Stacks { layout: Layout::Columns, ..OF_HUB };
/// and of gpt-oss.
const OF_GPT_OSS: Stacks = Stacks { layout: Layout::ColumnsInTurn, bias: "_bias", ..OF_HUB };
/// The same where their matrices are packed, once their parts have their usual names.
const OF_GPT_OSS_PACKED: Stacks =
    Stacks { layout: Layout::RowsInTurn, weight: WEIGHT, ..OF_GPT_OSS };
/// As Granite's files have them.
const OF_GRANITE: Stacks =
    Stacks { beginning: "", both: "input_linear", down: "output_linear", ..USUAL };

/// Families with others, by architecture; the first of them is what is written.
const OTHERS: [(&str, &[Stacks]); 11] = [
    ("Dots1ForCausalLM", &[OF_DOTS]),
    ("Gemma4ForCausalLM", &[OF_HUB_JOINED, OF_GEMMA4]),
    ("Gemma4ForConditionalGeneration", &[OF_HUB_JOINED, OF_GEMMA4]),
    ("Gemma4UnifiedForConditionalGeneration", &[OF_HUB_JOINED, OF_GEMMA4]),
    ("Qwen3_5MoeForCausalLM", &[USUAL, OF_HUB]),
    ("Qwen3_5MoeForConditionalGeneration", &[USUAL, OF_HUB]),
    ("GraniteMoeForCausalLM", &[USUAL, OF_GRANITE]),
    ("GraniteMoeHybridForCausalLM", &[USUAL, OF_GRANITE]),
    ("GptOssForCausalLM", &[OF_GPT_OSS, OF_GPT_OSS_PACKED, OF_DOTS, USUAL]),
    ("Llama4ForCausalLM", &[OF_LLAMA4, OF_DOTS]),
    ("Llama4ForConditionalGeneration", &[OF_LLAMA4, OF_DOTS]),
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
        let (module, ending) = split(leaf, [WEIGHT, BIAS]);
        let modules = self.modules(stacks);
        let (_, all) = modules.iter().find(|(each, _)| each[..] == [module])?;
        let ending = match ending {
            WEIGHT => stacks.weight,
            BIAS => stacks.bias,
            other => other,
        };
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
        let (module, ending) = split(leaf, [stacks.weight, stacks.bias]);
        let modules = self.modules(stacks);
        let Some((each, _)) = modules.iter().find(|(_, all)| *all == module) else {
            return Vec::new();
        };
        let ending = match ending {
            weight if weight == stacks.weight => WEIGHT,
            bias if bias == stacks.bias => BIAS,
            _ if stacks.layout.is_turned() => return Vec::new(), // Nobody packs what is turned.
            other => other,
        };
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
            GateUp::Gated(Joined::Separate(_)) if stacks.is_joined => Vec::new(),
            GateUp::Gated(Joined::Separate([gate, up])) if stacks.layout != Layout::Rows => {
                vec![(vec![gate, up], stacks.both), (vec![down], stacks.down)]
            }
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

/// A module and the ending of one of its tensors, of which weights and biases have these; no ending for a module by itself.
fn split<'a>(leaf: &'a str, [weight, bias]: [&str; 2]) -> (&'a str, &'a str) {
    let parts = Part::ALL.map(Part::ending).into_iter().chain([bias]);
    let module = parts.chain([weight]).find_map(|ending| leaf.strip_suffix(ending));
    leaf.split_at(module.unwrap_or(leaf).len())
}

impl ModelSpec {
    /// Where MLX has what is called `name`, a module of an expert or a tensor of one; `None` for anything else.
    pub fn expert_slice(&self, name: &str) -> Option<ExpertSlice> {
        self.expert_slices(name).next()
    }

    /// The same, and where other files of the family have it.
    pub(crate) fn expert_slices<'a>(&'a self, name: &'a str) -> impl Iterator<Item = ExpertSlice> {
        let of_one = || {
            let (found, rest) = self.mixture(name)?;
            let (number, leaf) = rest.strip_prefix(OF_EACH)?.split_once('.')?;
            let index = decimal(number).filter(|index| *index < found.experts.count)?;
            Some((found, index, leaf))
        };
        of_one().into_iter().flat_map(move |(found, index, leaf)| {
            let slice = move |stacks| {
                let name = found.name_of_all(self, stacks, leaf)?;
                Some(ExpertSlice { name, index, count: found.experts.count })
            };
            stacks(self).iter().filter_map(slice)
        })
    }

    /// Whether a tensor of this name has those of all experts of a layer.
    pub(crate) fn is_stacked(&self, name: &str) -> bool {
        self.stack(name).is_some()
    }

    /// Whether a tensor of this name has those of all experts of a layer, and these are turned, or rows of gate and up are in
    /// turn: their numbers lie apart.
    pub fn is_turned(&self, name: &str) -> bool {
        self.stack(name).is_some_and(|(_, stacks, _)| stacks.layout != Layout::Rows)
    }

    /// Whether this model's files have experts whose matrices are turned.
    pub fn turns_experts(&self) -> bool {
        let turned = stacks(self).first().is_some_and(|stacks| stacks.layout.is_turned());
        turned && self.layers.iter().flat_map(LayerSpec::ops).any(|op| matches!(op, Op::Experts(_)))
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
        let slices = Slices {
            tensor: &tensor,
            count: found.experts.count as u64,
            each: names(0).len() as u64,
        };
        let is_number = matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
        if stacks.layout.is_turned() && !is_number {
            let (dtype, expected) = (tensor.dtype, "experts stored so must be F32, F16 or BF16");
            return Err(CatalogError::UnsupportedDtype { tensor: tensor.name, dtype, expected });
        }
        let places = match stacks.layout {
            Layout::Rows => slices.of_rows(false),
            Layout::RowsInTurn => slices.of_rows(true),
            Layout::Columns => slices.of_columns(false),
            Layout::ColumnsInTurn => slices.of_columns(true),
        };
        let Some(Place { shape, bytes, between, lies }) = places else {
            let (experts, found) = (slices.count, tensor.shape.clone());
            return Err(CatalogError::NotOfAllExperts { tensor: tensor.name, experts, found });
        };
        for expert in 0..found.experts.count {
            // Below the tensor's end, which is in the file.
            let first = tensor.offset + expert as u64 * (tensor.bytes / slices.count);
            for (part, name) in (0..).zip(names(expert)) {
                let (shape, offset) = (shape.clone(), first + part * between);
                all.push(StoredTensor { name, shape, offset, bytes, lies, ..tensor });
            }
        }
    }
    Ok(all)
}

/// A tensor that has those of `count` experts, of each `each` matrices or vectors.
struct Slices<'a> {
    tensor: &'a StoredTensor,
    count: u64,
    each: u64,
}

/// Where each of these lies.
struct Place {
    shape: Vec<u64>,
    bytes: u64,
    /// From the first byte of one of an expert's to that of its next.
    between: u64,
    lies: Lies,
}

impl Slices<'_> {
    /// Those that lie behind each other, or whose rows lie in turn; `None` if there are not as many.
    fn of_rows(&self, in_turn: bool) -> Option<Place> {
        let (each, bytes) = (self.each, self.tensor.bytes);
        if !bytes.is_multiple_of(self.count * each) {
            return None;
        }
        let shape = match &self.tensor.shape[..] {
            [first, rest @ ..] if *first == self.count && each == 1 => rest.to_vec(),
            [first, rows, rest @ ..] if *first == self.count && rows.is_multiple_of(each) => {
                [&[rows / each], rest].concat()
            }
            _ => return None,
        };
        let bytes = bytes / (self.count * each);
        let (between, lies) = match shape.first() {
            Some(&rows) if in_turn && each > 1 => {
                let row = bytes / rows.max(1); // Those of one have a whole number each.
                (row, Lies::RowsApart(row * each))
            }
            _ => (bytes, Lies::Together),
        };
        Some(Place { shape, bytes, between, lies })
    }

    /// Those whose rows are columns of the tensor, `[count, columns, rows]`, or of a vector, `[count, rows]`: those of the one
    /// and of the other behind each other or in turn. `None` if there are not as many.
    fn of_columns(&self, in_turn: bool) -> Option<Place> {
        let (columns, all) = match self.tensor.shape[..] {
            [first, all] if first == self.count => (None, all),
            [first, columns, all] if first == self.count => (Some(columns), all),
            _ => return None,
        };
        if !all.is_multiple_of(self.each) {
            return None;
        }
        let rows = all / self.each;
        let width = self.tensor.dtype.bits() / 8;
        let row = if in_turn { self.each } else { 1 };
        Some(Place {
            shape: [rows].into_iter().chain(columns).collect(),
            bytes: self.tensor.bytes / (self.count * self.each),
            between: if in_turn { width } else { rows * width }, // No more than a slice has.
            lies: Lies::Apart(Strides { row, column: all }),
        })
    }
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
        let lies = Lies::Together;
        StoredTensor { name, file: 1, dtype, shape, offset: 1000, bytes, lies, encoding }
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
