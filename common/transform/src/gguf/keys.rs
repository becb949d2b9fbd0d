//! What is said of a model beside its tensors and its text.

use cake_checkpoint::{
    AttentionSpec, ExpertsSpec, LayerSpec, ModelSpec, NormSpec, Op, RopeScaling, RouterScores,
};

use super::FORMAT;
use super::arch::Arch;
use super::form::GgufType;
use super::writer::Value;
use crate::error::Unsupported;

/// What the model is called.
pub(super) const NAME: &str = "general.name";
/// Which layers of Gemma 3 see everything, where nothing is said: each sixth.
const DEFAULT_PERIOD: usize = 6;
/// So many layers have the largest Gemma 3, whose queries llama.cpp scales in another way.
const LAYERS_OF_27B: usize = 62;

/// The keys of the model called `name`, in the order in which they are written. What GGUF or llama.cpp cannot know of it
/// goes to `lost`, as sentences.
///
/// # Errors
/// [`Unsupported`] for what would make another model of it.
pub(super) fn keys(
    arch: &Arch,
    spec: &ModelSpec,
    name: &str,
    to: GgufType,
    lost: &mut Vec<String>,
) -> Result<Vec<(String, Value)>, Unsupported> {
    let shape = Shape::of(arch, spec)?;
    let attention = &shape.attention;
    let mut keys = vec![
        ("general.architecture".to_owned(), Value::Text(arch.name.into())),
        ("general.type".to_owned(), Value::Text("model".into())),
        (NAME.to_owned(), Value::Text(name.into())),
        ("general.file_type".to_owned(), Value::U32(to.file_type())),
        ("general.quantization_version".to_owned(), Value::U32(2)),
    ];
    let mut put = |key: &str, value| keys.push((format!("{}.{key}", arch.name), value));
    // A specification's numbers are bounded far below 32 bits.
    let whole = |number: usize| Value::U32(u32::try_from(number).unwrap_or(u32::MAX));
    put("vocab_size", whole(spec.vocab_size));
    put("context_length", whole(spec.max_position_embeddings));
    put("embedding_length", whole(spec.hidden_size));
    put("block_count", whole(spec.layers.len()));
    put("feed_forward_length", whole(shape.inner_size));
    put("attention.head_count", whole(attention.heads));
    put("attention.head_count_kv", whole(attention.kv_heads));
    put("attention.key_length", whole(attention.head_dim));
    put("attention.value_length", whole(attention.head_dim));
    put("attention.layer_norm_rms_epsilon", Value::F32(spec.final_norm.eps as f32));
    if let Some(experts) = shape.experts {
        put("expert_count", whole(experts.count));
        put("expert_used_count", whole(experts.chosen));
        put("expert_feed_forward_length", whole(experts.expert.inner_size));
        if experts.router.renormalise.is_none() {
            lost.push(
                "the weights of chosen experts are not divided by their sum, which GGUF cannot say: llama.cpp divides them"
                    .into(),
            );
        }
    }
    let [full, others @ ..] = &spec.rotations[..] else {
        return Err(missing("a rotation of queries and keys"));
    };
    put("rope.dimension_count", whole(full.dim));
    put("rope.freq_base", Value::F32(full.rope.theta as f32));
    if let RopeScaling::Linear { factor } = full.rope.scaling {
        put("rope.scaling.type", Value::Text("linear".into()));
        put("rope.scaling.factor", Value::F32(factor as f32));
    }
    if let ([windowed], true) = (others, arch.windows) {
        put("rope.freq_base_swa", Value::F32(windowed.rope.theta as f32));
    }
    if let Some(window) = shape.windows.iter().flatten().next() {
        if arch.windows {
            put("attention.sliding_window", whole(*window));
            let is_default = (shape.windows.iter().enumerate())
                .all(|(layer, it)| it.is_some() != (layer + 1).is_multiple_of(DEFAULT_PERIOD));
            if !is_default {
                let slides = shape.windows.iter().map(Option::is_some).collect();
                put("attention.sliding_window_pattern", Value::Bools(slides));
            }
        } else {
            let layers = shape.windows.iter().flatten().count();
            lost.push(format!(
                "{layers} layers see {window} positions only, which llama.cpp does not know of {}: it lets them see all",
                arch.name
            ));
        }
    }
    let assumed = match arch.sandwich && spec.layers.len() == LAYERS_OF_27B {
        true => (spec.hidden_size / attention.heads) as f64,
        false => attention.head_dim as f64,
    };
    let assumed = assumed.powf(-0.5);
    if (attention.scale / assumed - 1.0).abs() > 1e-6 {
        let scale = attention.scale;
        lost.push(format!(
            "queries are scaled with {scale}, which GGUF cannot say: llama.cpp takes {assumed}"
        ));
    }
    Ok(keys)
}

/// What all layers have alike, and which of them see a window.
struct Shape<'a> {
    attention: AttentionSpec,
    inner_size: usize,
    experts: Option<&'a ExpertsSpec>,
    windows: Vec<Option<usize>>,
}

impl Shape<'_> {
    /// Reads it off the layers, and refuses whatever the architecture does not have.
    fn of<'a>(arch: &Arch, spec: &'a ModelSpec) -> Result<Shape<'a>, Unsupported> {
        check_ends(arch, spec)?;
        let mut layers = spec.layers.iter().enumerate();
        let first = layers.next().ok_or_else(|| missing("layers"))?;
        let mut windows = Vec::with_capacity(spec.layers.len());
        let shape = |(layer, it): (usize, &'a LayerSpec), windows: &mut Vec<_>| {
            let (attention, second) = ops(it, layer)?;
            check_layer(arch, spec, (layer, it), attention, second)?;
            windows.push(attention.window);
            Ok((AttentionSpec { window: None, rotation: None, ..attention.clone() }, second))
        };
        let (attention, second) = shape(first, &mut windows)?;
        for layer in layers {
            let number = layer.0;
            if shape(layer, &mut windows)? != (attention.clone(), second) {
                return Err(cannot(format!("that layer {number} is not like layer 0")));
            }
        }
        if windows.iter().flatten().any(|it| Some(it) != windows.iter().flatten().next()) {
            return Err(cannot("windows of several sizes".into()));
        }
        let (inner_size, experts) = match second {
            Op::Experts(it) => (it.expert.inner_size * it.chosen, Some(it)),
            Op::Mlp(it) => (it.inner_size, None),
            _ => {
                return Err(missing("a network after attention"));
            }
        };
        Ok(Shape { attention, inner_size, experts, windows })
    }
}

/// The operations of a layer.
fn ops(layer: &LayerSpec, number: usize) -> Result<(&AttentionSpec, &Op), Unsupported> {
    let branches: Vec<_> = layer.branches.iter().map(|branch| &branch.op).collect();
    match branches[..] {
        [Op::Attention(attention), second] => Ok((attention, second)),
        _ => Err(cannot(format!("what layer {number} computes"))),
    }
}

/// Checks what the architecture fixes outside the layers.
fn check_ends(arch: &Arch, spec: &ModelSpec) -> Result<(), Unsupported> {
    let multiplier = if arch.sandwich { (spec.hidden_size as f64).sqrt() as f32 } else { 1.0 };
    if spec.embedding_multiplier != multiplier {
        return Err(cannot(format!("embeddings times {}", spec.embedding_multiplier)));
    }
    for (index, rotation) in spec.rotations.iter().enumerate() {
        let is_fixed = match rotation.rope.scaling {
            RopeScaling::None => true,
            RopeScaling::Linear { .. } => index == 0,
            RopeScaling::Llama3 { .. } => arch.divisors && index == 0,
            RopeScaling::Yarn { .. }
            | RopeScaling::LongRope { .. }
            | RopeScaling::Proportional { .. } => false,
        };
        if !is_fixed {
            let what =
                format!("rotations stretched by {:?} in {}", rotation.rope.scaling, arch.name);
            return Err(cannot(what));
        }
    }
    Ok(())
}

/// Checks what the architecture fixes in a layer.
fn check_layer(
    arch: &Arch,
    spec: &ModelSpec,
    (number, layer): (usize, &LayerSpec),
    attention: &AttentionSpec,
    second: &Op,
) -> Result<(), Unsupported> {
    let refuse = |what: &str| Err(cannot(format!("{what} in {} (layer {number})", arch.name)));
    let mlp = match second {
        Op::Mlp(mlp) if !arch.experts => mlp,
        Op::Experts(ExpertsSpec { router, .. })
            if router.scores != RouterScores::Softmax
                || router.correction.is_some()
                || router.multiplier != 1.0 =>
        {
            return refuse("another choice of experts");
        }
        Op::Experts(experts) if arch.experts => &experts.expert,
        Op::Mlp(_) => return refuse("a network beside experts"),
        _ => {
            return refuse("another operation than a network");
        }
    };
    if (attention.output_bias || mlp.bias) && !arch.biases {
        return refuse("biases of outputs");
    }
    let windowed = arch.windows && attention.window.is_some();
    if attention.rotation != Some(usize::from(windowed)) {
        return refuse("another rotation");
    }
    let whole_head = spec.rotations.first().is_some_and(|it| it.dim == attention.head_dim);
    if arch.pairs && !(whole_head && attention.head_dim.is_multiple_of(2)) {
        return refuse("heads that rotate in part");
    }
    let sandwich = if arch.sandwich { 2 } else { 1 };
    for branch in &layer.branches {
        let norms: Vec<&NormSpec> = branch.pre.iter().chain(&branch.post).collect();
        if branch.multiplier != 1.0 || norms.len() != sandwich || branch.pre.is_none() {
            return refuse("other norms or multipliers");
        }
        if norms.into_iter().chain(branch.op.norms()).any(|it| it.eps != spec.final_norm.eps) {
            return refuse("norms with several epsilons");
        }
    }
    Ok(())
}

fn cannot(what: String) -> Unsupported {
    Unsupported::Cannot { format: FORMAT, what }
}

fn missing(what: &str) -> Unsupported {
    Unsupported::Missing { format: FORMAT, what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::{Rope, RotaryPairs, RotationSpec};

    use super::*;
    use crate::gguf::arch;

    fn spec(architecture: &str) -> ModelSpec {
        let own = match architecture {
            "Qwen3MoeForCausalLM" => {
                r#","num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":16,"norm_topk_prob":true"#
            }
            "Gemma3ForCausalLM" => r#","query_pre_attn_scalar":4"#,
            _ => "",
        };
        let json = format!(
            r#"{{"architectures":["{architecture}"],"hidden_size":8,"num_hidden_layers":2,
            "num_attention_heads":2,"intermediate_size":16,"vocab_size":32,"rms_norm_eps":1e-6,
            "max_position_embeddings":64{own}}}"#
        );
        ModelSpec::parse(json.as_bytes()).unwrap()
    }

    fn attention(spec: &mut ModelSpec, layer: usize) -> &mut AttentionSpec {
        match &mut spec.layers[layer].branches[0].op {
            Op::Attention(attention) => attention,
            _ => panic!("attention comes first"),
        }
    }

    /// Why the model is refused after such a change; what it loses if it is not.
    fn after(architecture: &str, change: impl Fn(&mut ModelSpec)) -> Result<Vec<String>, String> {
        let (mut spec, mut lost) = (spec(architecture), Vec::new());
        change(&mut spec);
        let arch = arch::of(architecture).unwrap();
        let keys = keys(arch, &spec, "name", GgufType::F16, &mut lost);
        keys.map(|_| lost).map_err(|error| error.to_string())
    }

    #[test]
    fn models_are_written_as_they_are_or_refused() {
        let (llama, qwen, moe) = ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM");
        for architecture in [llama, qwen, moe, "Gemma3ForCausalLM", "Qwen2ForCausalLM"] {
            assert_eq!(after(architecture, |_| ()), Ok(vec![]), "{architecture}");
        }
        let refused = |architecture: &str, change: &dyn Fn(&mut ModelSpec), what: &str| {
            let error = after(architecture, change).unwrap_err();
            assert!(error.contains(what), "{error}");
        };
        refused(llama, &|spec| spec.embedding_multiplier = 2.0, "embeddings times 2");
        refused(
            llama,
            &|spec| spec.layers[1].branches[0].multiplier = 2.0,
            "multipliers in llama (layer 1)",
        );
        refused(llama, &|spec| spec.rotations[0].dim = 2, "rotate in part");
        refused(llama, &|spec| attention(spec, 1).kv_heads = 1, "layer 1 is not like layer 0");
        refused(llama, &|spec| spec.final_norm.eps = 1e-3, "several epsilons");
        refused(qwen, &|spec| attention(spec, 0).output_bias = true, "biases of outputs");
        refused(
            moe,
            &|spec| spec.layers[1] = self::spec(qwen).layers[1].clone(),
            "a network beside experts",
        );
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 32.0,
        };
        let (rope, pairs) = (Rope { theta: 1e4, scaling }, RotaryPairs::Halves);
        let stretched = RotationSpec { rope, dim: 4, pairs };
        let stretch = |spec: &mut ModelSpec| spec.rotations[0] = stretched.clone();
        assert_eq!(after(llama, stretch), Ok(vec![]));
        refused(qwen, &stretch, "rotations stretched by Llama3");
        let lost = after(qwen, |spec| attention(spec, 1).window = Some(7)).unwrap();
        assert!(
            matches!(&lost[..], [only] if only.contains("1 layers see 7 positions")),
            "{lost:?}"
        );
        let other = arch::of("OtherForCausalLM").unwrap_err().to_string();
        assert!(other.starts_with("OtherForCausalLM cannot be written as GGUF; Llama"), "{other}");
    }
}
