//! What a tensor is for, by its name.

use std::collections::HashMap;

use super::spec::{LayerSpec, Op, TensorKind, TensorSpec};
use super::whole::ModelSpec;
use crate::catalog::CatalogError;
use crate::encoding::Part;

/// What a tensor is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// The embedding matrix.
    Embedding(Part),
    /// Part of one decoder layer.
    Layer {
        /// The layer's number.
        layer: usize,
        /// The rest of the name, such as `self_attn.q_proj.weight`.
        leaf: String,
    },
    /// The norm after the last layer.
    FinalNorm,
    /// The output head.
    Head(Part),
    /// Part of something else outside the layers, with the master as these are.
    Outer,
    /// Nothing that inference needs: buffers of old files, prediction layers past the last one.
    Ignored,
}

/// What the name of a bias ends in.
pub(crate) const BIAS: &str = ".bias";
/// Ends of names that old files carry and inference computes itself.
const IGNORED_ENDS: &[&str] =
    &[".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"];
/// Starts of the names of multi-token prediction modules stored outside the layers.
const PREDICTION_PREFIXES: [&str; 2] = ["mtp.", "model.mtp_"];

/// The part that is called `name` in the module whose weight is called `weight`.
fn part_of(name: &str, weight: &str) -> Option<Part> {
    let module = weight.strip_suffix(Part::Weight.ending())?;
    let (own, part) = Part::split(name)?;
    (own == module).then_some(part)
}

/// Whether a text is a number as names have it: without a sign or leading zeros.
fn is_decimal(number: &str) -> bool {
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    digits && (number.len() == 1 || !number.starts_with('0'))
}

/// The number that a name has, if it is one and not too large for any.
pub(super) fn decimal(number: &str) -> Option<usize> {
    number.parse().ok().filter(|_| is_decimal(number))
}

/// The names of a model's tensors.
pub(crate) struct Names<'a> {
    spec: &'a ModelSpec,
    /// The modules outside the layers beside embedding, final norm and head, and tensors that belong to none.
    outer: Modules,
    /// Of each layer the modules, and tensors that belong to none.
    layers: Vec<Modules>,
}

/// Modules by name, and tensors that belong to none.
type Modules = HashMap<String, Owner>;

/// What a name is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// A module with a matrix.
    Linear,
    /// A module with nothing but a vector.
    Norm,
    /// A tensor.
    Parameter,
    /// A module that another layer's stands for.
    Unused,
}

impl<'a> Names<'a> {
    pub(crate) fn of(spec: &'a ModelSpec) -> Self {
        let of_layer = |layer: &LayerSpec| {
            let mut modules = modules(layer.tensors());
            for op in layer.ops() {
                let Op::Attention(it) = op else { continue };
                it.unused().for_each(|path| {
                    modules.entry(path.into_owned()).or_insert(Owner::Unused);
                });
            }
            modules
        };
        let outer = modules(spec.other_outer_tensors());
        Self { spec, outer, layers: spec.layers.iter().map(of_layer).collect() }
    }

    /// The model.
    pub(crate) fn spec(&self) -> &ModelSpec {
        self.spec
    }

    /// Whether the model cannot do without the tensor called `name`, or without what it is a part of.
    pub(crate) fn needs(&self, name: &str) -> bool {
        if self.spec.is_stacked(name) {
            return true;
        }
        match self.role(name) {
            Ok(Role::Head(_)) => !self.spec.tie_word_embeddings,
            Ok(Role::Ignored) | Err(_) => false,
            Ok(_) => true,
        }
    }

    /// What the tensor called `name` is for. A bias or part of a packed matrix may be one that the model has no place
    /// for: that is for whoever knows what there should be.
    ///
    /// The layer number is parsed: `model.layers.1.` is not `model.layers.10.`, and a number with a
    /// leading zero is not a number. Layers past the last one predict further tokens and are ignored.
    ///
    /// # Errors
    /// [`CatalogError::UnknownTensor`] for a name this model has no place for.
    pub(crate) fn role(&self, name: &str) -> Result<Role, CatalogError> {
        let spec = self.spec;
        let unknown = || CatalogError::UnknownTensor {
            tensor: name.to_owned(),
            architecture: spec.architecture.to_string(),
        };
        if let Some(part) = part_of(name, &spec.embedding) {
            return Ok(Role::Embedding(part));
        }
        if name.strip_suffix(Part::Weight.ending()) == Some(&*spec.final_norm.path) {
            return Ok(Role::FinalNorm);
        }
        if let Some(part) = part_of(name, &spec.head) {
            return Ok(Role::Head(part));
        }
        if owner(&self.outer, name).is_some() {
            return Ok(Role::Outer);
        }
        let mut others = spec.other_prefixes.iter().map(|prefix| &**prefix);
        let mut predictions = PREDICTION_PREFIXES.into_iter();
        let begins = |prefix: &str| name.starts_with(prefix);
        if predictions.any(begins) || others.any(begins) {
            return Ok(Role::Ignored);
        }
        if IGNORED_ENDS.iter().any(|end| name.ends_with(end)) {
            return Ok(Role::Ignored);
        }
        let (number, leaf) = name
            .strip_prefix(&*spec.layer_prefix)
            .and_then(|rest| rest.split_once('.'))
            .ok_or_else(unknown)?;
        if !is_decimal(number) {
            return Err(unknown());
        }
        let layer = decimal(number);
        let Some((layer, modules)) = layer.and_then(|it| Some((it, self.layers.get(it)?))) else {
            return Ok(Role::Ignored);
        };
        if spec.other_modules.iter().any(|beginning| leaf.starts_with(&**beginning)) {
            return Ok(Role::Ignored);
        }
        match owner(modules, leaf) {
            Some(Owner::Unused) => Ok(Role::Ignored),
            Some(_) => Ok(Role::Layer { layer, leaf: leaf.to_owned() }),
            None => Err(unknown()),
        }
    }
}

fn modules(tensors: impl IntoIterator<Item = TensorSpec>) -> Modules {
    let mut modules = Modules::new();
    for tensor in tensors {
        let owner = match tensor.kind {
            TensorKind::Matrix | TensorKind::Bias => Owner::Linear,
            TensorKind::Vector => Owner::Norm,
            TensorKind::Parameter => Owner::Parameter,
        };
        modules.insert(tensor.path.into_owned(), owner);
    }
    modules
}

/// What the one of these is whose name it is, or of whose part. (The bias of a norm makes its module look like that of a
/// matrix; whoever knows what there should be finds out.)
fn owner(modules: &Modules, name: &str) -> Option<Owner> {
    if modules.get(name) == Some(&Owner::Parameter) {
        return Some(Owner::Parameter);
    }
    let bias = || name.strip_suffix(BIAS).map(|module| (module, None));
    let part = Part::split(name).map(|(module, part)| (module, Some(part)));
    let (module, part) = part.or_else(bias)?;
    let found = modules.get(module).copied();
    found.filter(|owner| match owner {
        Owner::Linear | Owner::Unused => true,
        Owner::Norm => part == Some(Part::Weight),
        Owner::Parameter => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(architecture: &str, layers: usize) -> ModelSpec {
        let json = format!(
            r#"{{"architectures":["{architecture}"],"hidden_size":8,"num_hidden_layers":{layers},
            "num_attention_heads":2,"intermediate_size":16,"vocab_size":32,"rms_norm_eps":1e-6,
            "max_position_embeddings":64}}"#
        );
        ModelSpec::parse(json.as_bytes()).unwrap()
    }

    /// In a model of so many layers.
    fn role(architecture: &str, name: &str, layers: usize) -> Result<Role, CatalogError> {
        Names::of(&spec(architecture, layers)).role(name)
    }

    const LLAMA: &str = "LlamaForCausalLM";
    const MISTRAL: &str = "MistralForCausalLM";

    fn layer(layer: usize, leaf: &str) -> Role {
        Role::Layer { layer, leaf: leaf.into() }
    }

    #[test]
    fn parses_the_layer_number_and_never_compares_prefixes() {
        let leaf = "mlp.up_proj.weight";
        for number in [0, 1, 10, 11, 100, 119] {
            let name = format!("model.layers.{number}.{leaf}");
            assert_eq!(role(LLAMA, &name, 120).unwrap(), layer(number, leaf));
        }
    }

    #[test]
    fn rejects_numbers_that_are_not_plain() {
        for number in ["01", "+1", "-1", "1e1", "", "0x1", "１"] {
            let name = format!("model.layers.{number}.mlp.up_proj.weight");
            let error = role(LLAMA, &name, 120).unwrap_err();
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn ignores_prediction_layers_and_buffers() {
        for name in [
            "model.layers.4.eh_proj.weight",
            "model.layers.5.shared_head.head.weight",
            "model.layers.99999999999999999999999.x",
            "mtp.fc.weight",
            "model.mtp_block.0.mlp.up_proj.weight",
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "model.rotary_emb.inv_freq",
            "model.layers.0.attention.masked_bias",
            "model.layers.0.attention.bias",
        ] {
            assert_eq!(role(LLAMA, name, 4).unwrap(), Role::Ignored, "{name}");
        }
    }

    #[test]
    fn an_unknown_weight_is_an_unknown_model() {
        for name in [
            "model.layers.0.self_attn.sinks",
            "model.layers.0.self_attn.q_norm.weight",
            "model.layers.0.input_layernorm.scales",
            "model.layers.0.mlp.up_proj.scale",
            "model.layers.0.mlp.up_proj",
            "model.embed_tokens.bias",
            "vision_tower.encoder.layers.0.mlp.up_proj.weight",
            "language_model.model.layers.0.mlp.up_proj.weight",
            "model.layers.0",
            "model.layers.",
            "",
        ] {
            let unknown = role(LLAMA, name, 4);
            assert!(matches!(unknown, Err(CatalogError::UnknownTensor { .. })), "{name}");
        }
        assert!(role("Qwen3ForCausalLM", "model.layers.0.self_attn.q_norm.weight", 4).is_ok());
        assert!(role("Phi3ForCausalLM", "model.layers.0.self_attn.q_proj.weight", 4).is_err());
    }

    #[test]
    fn a_matrix_may_have_scales_and_biases() {
        for leaf in ["mlp.up_proj.scales", "mlp.up_proj.biases", "self_attn.q_proj.biases"] {
            let name = format!("model.layers.3.{leaf}");
            assert_eq!(role(MISTRAL, &name, 4).unwrap(), layer(3, leaf));
        }
        let outer = |name: &str| role(MISTRAL, name, 4);
        assert_eq!(outer("model.embed_tokens.scales").unwrap(), Role::Embedding(Part::Scales));
        assert_eq!(outer("model.embed_tokens.weight").unwrap(), Role::Embedding(Part::Weight));
        assert_eq!(outer("lm_head.biases").unwrap(), Role::Head(Part::Biases));
        assert!(outer("model.norm.scales").is_err());
    }
}
