//! What a configuration says of how weights are stored, said anew.

use cake_checkpoint::container::safetensors::CONFIG;
use cake_checkpoint::{Affine, FloatType, LayerSpec, ModelSpec, Op, RopeScaling, TextFiles};
use serde_json::{Map, Value, json};

use crate::error::{Error, Unsupported};

/// Longest configuration that is read.
const MAX_BYTES: u64 = 1 << 24;
/// Where a configuration says how matrices are packed; two places with the same.
const PACKED: [&str; 2] = ["quantization", "quantization_config"];
/// What other programs than MLX say there.
const METHOD: &str = "quant_method";
/// Where it says what type numbers have.
const TYPES: [&str; 2] = ["dtype", "torch_dtype"];

/// The configuration, as text to be changed.
pub(crate) fn read(texts: &TextFiles) -> Result<Map<String, Value>, Error> {
    let path = texts.path(CONFIG);
    let text = texts.read(CONFIG, MAX_BYTES).map_err(|cause| Error::io("read", &path, cause))?;
    let value = text.ok().and_then(|text| serde_json::from_slice(&text).ok());
    match value {
        Some(Value::Object(map)) => Ok(map),
        _ => Err(Unsupported::Cannot {
            format: "a configuration",
            what: "what this one says".into(),
        }
        .into()),
    }
}

/// Says that all numbers are plain ones of that type.
pub(super) fn say_plain(config: &mut Map<String, Value>, float: FloatType) {
    PACKED.iter().for_each(|key| drop(config.shift_remove(*key)));
    let name = match float {
        FloatType::F32 => "float32",
        FloatType::F16 => "float16",
        FloatType::BF16 => "bfloat16",
    };
    match TYPES.iter().find(|key| config.contains_key(**key)) {
        Some(key) => drop(config.insert((*key).to_owned(), name.into())),
        None => drop(config.insert(TYPES[0].to_owned(), name.into())),
    }
}

/// Says nothing any more of single modules that MLX packed another way than the rest, as they are packed no more. Returns whether
/// anything was said.
pub(crate) fn forget_packed_modules(config: &mut Map<String, Value>) -> bool {
    /// What is said of all.
    const GENERAL: [&str; 3] = ["group_size", "bits", "mode"];
    let mut is_changed = false;
    for key in PACKED {
        if let Some(Value::Object(said)) = config.get_mut(key)
            && said.get(METHOD).is_none_or(Value::is_null)
        {
            let before = said.len();
            said.retain(|field, _| GENERAL.contains(&field.as_str()));
            is_changed |= said.len() < before;
        }
    }
    is_changed
}

/// Says that matrices are packed as `format`, but for some `modules`: as another format, or not at all.
pub(super) fn say_packed(
    config: &mut Map<String, Value>,
    format: Affine,
    modules: &[(String, Option<Affine>)],
) {
    let said = |format: Affine| json!({ "group_size": format.group(), "bits": format.bits() });
    let mut packed = said(format);
    for (module, format) in modules {
        packed[module] = format.map_or(Value::Bool(false), said);
    }
    // Programs look in one or the other.
    PACKED.iter().for_each(|key| drop(config.insert((*key).to_owned(), packed.clone())));
}

/// Repeats what the model computes under the keys that transformers 4 used: the rotation, the number of experts, and which
/// layers see a window. mlx-lm knows only these for most families: without them it refuses, or takes what is usual.
///
/// # Errors
/// [`Unsupported::Cannot`] for what these keys cannot say.
pub(super) fn say_in_older_keys(
    config: &mut Map<String, Value>,
    model: &ModelSpec,
) -> Result<(), Error> {
    if KNOWN_BY_NEWER_KEYS.contains(&&*model.architecture) {
        return Ok(());
    }
    let (Some(full), sliding) = (model.rotations.first(), model.rotations.get(1)) else {
        return Ok(());
    };
    say_number(config, "rope_theta", full.rope.theta);
    let mut scaling = scaling(&full.rope.scaling);
    if let Some(scaling) = &mut scaling {
        add_scales_of_latents(scaling, config, model);
    }
    match scaling {
        Some(scaling) => drop(config.insert(SCALING.to_owned(), scaling)),
        // What another key says of the same does not count, and nobody shall take it for what does.
        None if config.contains_key(SCALING) => {
            drop(config.insert(SCALING.to_owned(), Value::Null))
        }
        None => {}
    }
    let attention = || {
        model.layers.iter().flat_map(LayerSpec::ops).filter_map(|op| match op {
            Op::Attention(attention) => Some(attention),
            _ => None,
        })
    };
    if let Some(whole) = attention().map(|it| it.head_dim).find(|whole| *whole != full.dim) {
        say_number(config, "partial_rotary_factor", full.dim as f64 / whole as f64);
    }
    if let Some(sliding) = sliding.filter(|_| BY_PATTERN.contains(&&*model.architecture)) {
        let windows: Vec<bool> = attention().map(|it| it.window.is_some()).collect();
        let pattern = pattern(&windows).filter(|_| sliding.rope.scaling == RopeScaling::None);
        let cannot = || Unsupported::Cannot {
            format: "a configuration for MLX",
            what: "which layers see a window, or how positions are stretched in these".into(),
        };
        let pattern = pattern.ok_or_else(cannot)?;
        say_number(config, "rope_local_base_freq", sliding.rope.theta);
        config.insert("sliding_window_pattern".to_owned(), pattern.into());
    }
    if let Some(count) = config.get("num_local_experts").cloned()
        && COUNTED_AS_NUM_EXPERTS.contains(&&*model.architecture)
    {
        config.insert("num_experts".to_owned(), count);
    }
    Ok(())
}

/// Families that mlx-lm reads by the keys of transformers 5, as they came after it, or by those that published files have in
/// the text model's part.
const KNOWN_BY_NEWER_KEYS: &[&str] = &[
    "Gemma3ForConditionalGeneration",
    "Ministral3ForCausalLM",
    "Mistral3ForConditionalGeneration",
    "Gemma3nForCausalLM",
    "Gemma3nForConditionalGeneration",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
];
/// Families whose number of experts had another name before.
const COUNTED_AS_NUM_EXPERTS: &[&str] = &["Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"];
/// Families of which mlx-lm knows only a number that says which layers see a window.
const BY_PATTERN: &[&str] = &["Gemma3ForCausalLM"];
/// Where transformers 4 has how positions are stretched.
const SCALING: &str = "rope_scaling";

/// Says a number, unless it is said already.
fn say_number(config: &mut Map<String, Value>, key: &str, value: f64) {
    if config.get(key).and_then(Value::as_f64) != Some(value) {
        config.insert(key.to_owned(), value.into());
    }
}

/// How positions are stretched; the kind under both of its names.
fn scaling(scaling: &RopeScaling) -> Option<Value> {
    let parameters = match scaling {
        RopeScaling::None => return None,
        RopeScaling::Linear { factor } | RopeScaling::Proportional { factor, .. } => {
            json!({ "factor": factor })
        }
        RopeScaling::LongRope {
            short_factor,
            long_factor,
            original_max_position,
            attention_factor,
        } => {
            json!({
                "short_factor": short_factor,
                "long_factor": long_factor,
                "original_max_position_embeddings": positions(*original_max_position),
                "attention_factor": attention_factor,
            })
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position,
        } => {
            json!({
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": positions(*original_max_position),
            })
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_max_position,
            truncate,
            attention_factor,
        } => {
            let mut parameters = json!({
                "factor": factor,
                "beta_fast": beta_fast,
                "beta_slow": beta_slow,
                "original_max_position_embeddings": positions(*original_max_position),
                "truncate": truncate,
                "attention_factor": attention_factor,
            });
            if *factor > 1.0 {
                // What mlx-lm makes the same factor of.
                parameters["mscale"] = json!((attention_factor - 1.0) / (0.1 * factor.ln()));
            }
            parameters
        }
    };
    let kind = scaling.name();
    let mut all = json!({ "rope_type": kind, "type": kind });
    all.as_object_mut()?.extend(parameters.as_object()?.clone());
    Some(all)
}

/// Adds to how positions are stretched what latent attention asks for beside a rotation (`mscale_all_dim`), and what that stands
/// beside, where the configuration says both.
fn add_scales_of_latents(scaling: &mut Value, config: &Map<String, Value>, model: &ModelSpec) {
    const OF_ALL: &str = "mscale_all_dim";
    let mut ops = model.layers.iter().flat_map(LayerSpec::ops);
    let said = ["rope_parameters", SCALING].map(|key| config.get(key).and_then(Value::as_object));
    let Some(said) = said.into_iter().flatten().next() else { return };
    let number = |key: &str| said.get(key).filter(|value| value.is_number());
    let Some(of_all) = number(OF_ALL) else { return };
    if let Some(scaling) = scaling.as_object_mut()
        && ops.any(|op| matches!(op, Op::Latent(_)))
    {
        scaling.insert(OF_ALL.to_owned(), of_all.clone());
        match number("mscale") {
            Some(own) => drop(scaling.insert("mscale".to_owned(), own.clone())),
            None => drop(scaling.shift_remove("mscale")), // What was made of the attention's factor has that in it.
        }
    }
}

/// A number of positions, which may be any; whole where it is.
fn positions(number: f64) -> Value {
    match number {
        whole if whole.fract() == 0.0 && (0.0..1e15).contains(&whole) => json!(whole as u64),
        other => json!(other),
    }
}

/// The number of which each layer, counted from one, that is a multiple sees everything, where the others see a window.
fn pattern(windows: &[bool]) -> Option<usize> {
    let first = windows.iter().position(|windowed| !windowed).unwrap_or(windows.len());
    let every = first + 1;
    let has_it = |(layer, windowed): (usize, &bool)| *windowed == ((layer + 1) % every != 0);
    windows.iter().enumerate().all(has_it).then_some(every)
}

/// Says of modules that have another name now what it said of them, of several with one name what it said of the last.
pub(super) fn rename_modules(
    config: &mut Map<String, Value>,
    renamed: impl Fn(&str) -> Option<String>,
) {
    for key in PACKED {
        let Some(Value::Object(modules)) = config.get_mut(key) else { continue };
        let said = std::mem::take(modules).into_iter();
        modules.extend(said.map(|(module, form)| (renamed(&module).unwrap_or(module), form)));
    }
}

/// As the file's text.
pub(crate) fn to_text(config: &Map<String, Value>) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(config).expect("it was JSON");
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: &str = r#"{"num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 32, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64}"#;

    fn with(architecture: &str, more: &Value) -> Map<String, Value> {
        let Ok(Value::Object(mut config)) = serde_json::from_str(SIZES) else { unreachable!() };
        config.insert("architectures".to_owned(), json!([architecture]));
        config.extend(more.as_object().unwrap().clone());
        config
    }

    /// What a configuration says of these keys in the end; our own reader must read of it what it read before.
    fn said(architecture: &str, more: Value, keys: &[&str]) -> Value {
        let mut config = with(architecture, &more);
        let read = |config: &Map<String, Value>| {
            ModelSpec::parse(Value::from(config.clone()).to_string().as_bytes()).unwrap()
        };
        let before = read(&config);
        say_in_older_keys(&mut config, &before).unwrap();
        assert_eq!(read(&config), before, "{config:?}");
        keys.iter().map(|key| config.get(*key).cloned().unwrap_or(json!("absent"))).collect()
    }

    #[test]
    fn a_rotation_is_said_under_the_older_keys_as_our_reader_reads_it() {
        let keys = ["rope_theta", "rope_scaling"];
        let cases = [
            (
                json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}),
                json!([5e5, "absent"]),
            ),
            // What does not count, and another program would believe.
            (
                json!({"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 1e4, "rope_scaling": {}}),
                json!([5e5, null]),
            ),
            (json!({"rope_scaling": {"type": "none"}}), json!([1e4, null])),
            (json!({}), json!([1e4, "absent"])),
            (
                json!({"rope_parameters": {"type": "linear", "factor": 2}}),
                json!([1e4, {"rope_type": "linear", "type": "linear", "factor": 2.0}]),
            ),
            (
                json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0}}),
                json!([1e4, {"rope_type": "llama3", "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64}]),
            ),
        ];
        for (more, expected) in cases {
            assert_eq!(said("LlamaForCausalLM", more.clone(), &keys), expected, "{more}");
        }
        let part = json!({"rope_parameters": {"partial_rotary_factor": 0.5}});
        assert_eq!(said("Phi3ForCausalLM", part, &["partial_rotary_factor"]), json!([0.5]));
    }

    #[test]
    fn what_latent_attention_is_stretched_by_is_said_as_it_was() {
        let sizes = json!({"num_key_value_heads": 2, "kv_lora_rank": 16, "q_lora_rank": null,
            "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 4,
            "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
            "n_group": 1, "topk_group": 1});
        let plain = json!({"type": "yarn", "factor": 40, "beta_fast": null, "mscale": null,
            "original_max_position_embeddings": 16});
        let with = |mut yarn: Value, scale: f64, of_all: f64| {
            (yarn["mscale"], yarn["mscale_all_dim"]) = (scale.into(), of_all.into());
            yarn
        };
        let usual = 0.1 * 40_f64.ln() + 1.0;
        for key in ["rope_scaling", "rope_parameters"] {
            let found = |yarn: Value| {
                let mut more = sizes.clone();
                more[key] = yarn;
                said("DeepseekV3ForCausalLM", more, &["rope_scaling"])[0].clone()
            };
            let both = found(with(plain.clone(), 0.7, 1.0));
            assert_eq!([&both["mscale"], &both["mscale_all_dim"]], [0.7, 1.0], "{both}");
            assert_eq!([&both["beta_fast"], &both["factor"]], [32.0, 40.0], "{both}");
            assert_eq!([&both["type"], &both["rope_type"]], ["yarn"; 2], "{both}");
            let neither = found(plain.clone());
            let factor = neither["attention_factor"].as_f64().unwrap();
            assert!((factor - usual).abs() < 1e-6 && neither.get("mscale_all_dim").is_none());
        }
    }

    #[test]
    fn experts_are_counted_under_both_keys() {
        let more =
            json!({"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16});
        let keys = ["num_experts", "num_local_experts"];
        assert_eq!(said("Qwen3MoeForCausalLM", more, &keys), json!([8, 8]));
    }

    #[test]
    fn windows_and_their_rotation_are_said_where_a_number_says_them() {
        let layers = |kinds: [&str; 4]| {
            let kinds = kinds.map(|kind| format!("{kind}_attention"));
            json!({"sliding_window": 8, "layer_types": kinds, "rope_parameters": {
                "full_attention": {"rope_theta": 3e6, "rope_type": "linear", "factor": 8.0},
                "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"}}})
        };
        let keys = ["sliding_window_pattern", "rope_theta", "rope_local_base_freq", "rope_scaling"];
        let found =
            said("Gemma3ForCausalLM", layers(["sliding", "full", "sliding", "full"]), &keys);
        let scaling = json!({"rope_type": "linear", "type": "linear", "factor": 8.0});
        assert_eq!(found, json!([2, 3e6, 2e4, scaling]));
        let odd = with("Gemma3ForCausalLM", &layers(["full", "sliding", "sliding", "full"]));
        let model = ModelSpec::parse(Value::from(odd.clone()).to_string().as_bytes()).unwrap();
        let error = say_in_older_keys(&mut odd.clone(), &model).unwrap_err().to_string();
        assert!(error.contains("which layers see a window"), "{error}");
    }
}
