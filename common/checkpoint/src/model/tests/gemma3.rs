//! Gemma 3 beside a model that sees.

use super::*;
use crate::model::RotationSpec;
use crate::testing::{TinyCheckpoint, made, tensors, warned};

/// What the Hub has of Gemma 3 4B: its `text_config` says what is not as the class has it.
fn published() -> Value {
    json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "boi_token_index": 255_999, "eoi_token_index": 256_000, "image_token_index": 262_144,
        "eos_token_id": [1, 106], "initializer_range": 0.02, "mm_tokens_per_image": 256,
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240,
            "num_hidden_layers": 34, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
        "vision_config": {
            "model_type": "siglip_vision_model", "hidden_size": 1152, "image_size": 896,
            "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27,
            "patch_size": 14, "vision_use_head": false,
        },
    })
}

/// The same with changes of its text model.
fn of_text(changes: Value) -> Result<ModelSpec, ConfigError> {
    let text = with(published()["text_config"].clone(), changes);
    parse(&with(published(), json!({ "text_config": text })))
}

#[test]
fn what_published_files_leave_out_is_as_the_class_has_it() {
    let model = parse(&published()).unwrap();
    assert_eq!((model.vocab_size, model.hidden_size, model.layers.len()), (262_208, 2560, 34));
    assert_eq!(model.max_position_embeddings, 131_072);
    assert!(model.tie_word_embeddings && model.final_norm.eps == 1e-6);
    assert_eq!(model.embedding_multiplier, 2560f32.sqrt());
    assert_eq!(model.eos_token_ids, [1, 106]);
    let first = attention(&model, 0);
    assert_eq!((first.heads, first.kv_heads, first.head_dim), (8, 4, 256));
    assert_eq!(first.scale, 1.0 / 16.0);
    let windows = windows_of(&model);
    for (layer, window) in windows.into_iter().enumerate() {
        let sees = layer % 6 == 5;
        assert_eq!(window, (!sees).then_some(1024), "layer {layer}");
        assert_eq!(attention(&model, layer).rotation, Some(usize::from(!sees)));
    }
    let stretched = RopeScaling::Linear { factor: 8.0 };
    let ropes: Vec<_> = model.rotations.into_iter().map(|RotationSpec { rope, .. }| rope).collect();
    let expected = [(1e6, stretched), (1e4, RopeScaling::None)];
    assert_eq!(ropes, expected.map(|(theta, scaling)| Rope { theta, scaling }));

    // 27B, whose heads are narrower than its scale says.
    let wider = json!({"hidden_size": 5376, "intermediate_size": 21_504, "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
        "query_pre_attn_scalar": 168});
    let model = of_text(wider).unwrap();
    let first = attention(&model, 0);
    assert_eq!((first.heads, first.kv_heads, first.head_dim), (32, 16, 128));
    assert_eq!(first.scale, 168f64.powf(-0.5));
}

#[test]
fn gemma_3_runs_inside_of_what_sees_under_the_names_that_it_has_there() {
    let alone = golden("gemma3");
    let text = without(configuration("gemma3"), "architectures");
    let around = parse(&with(published(), json!({ "text_config": text }))).unwrap();
    assert_eq!((&around.layers, &around.rotations), (&alone.layers, &alone.rotations));
    assert_eq!(around.layer_prefix, "language_model.model.layers.");
    assert_eq!(around.embedding, "language_model.model.embed_tokens.weight");
    assert_eq!(around.final_norm.path, "language_model.model.norm");
    for (wrong, words) in [
        (json!({"model_type": "gemma2"}), "text_config.model_type"),
        (json!({"hidden_size": null}), "text_config.hidden_size"),
        (json!({"use_bidirectional_attention": true}), "text_config.use_bidirectional_attention"),
        (json!({"attn_logit_softcapping": 50.0}), "text_config.attn_logit_softcapping"),
        (json!({"rope_scaling": {"rope_type": "linear"}}), "rope_scaling.factor"),
    ] {
        let error = of_text(wrong).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = parse(&with(published(), json!({"audio_config": {"layers": 1}}))).unwrap_err();
    assert!(error.to_string().contains("audio_config"), "{error}");
}

/// A tiny one, with something of what sees.
fn tiny() -> TinyCheckpoint {
    let text = json!({"model_type": "gemma3_text", "hidden_size": 4, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2,
        "vocab_size": 5});
    let mut tiny = TinyCheckpoint::single(1);
    tiny.config = with(published(), json!({ "text_config": text, "eos_token_id": 1 }));
    let mut all = tensors(&tiny.config);
    all.push(made("vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", &[6, 4]));
    all.push(made("multi_modal_projector.mm_soft_emb_norm.weight", &[4]));
    tiny.files.insert("model.safetensors".into(), all);
    tiny
}

/// The name that the tensor's module has in version 5 of the reference, for one as the Hub has it.
fn as_module(name: &str) -> String {
    match name.strip_prefix("language_model.model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => format!("model.{name}"),
    }
}

#[test]
fn both_ways_of_naming_its_tensors_are_read_and_what_sees_is_not_used() {
    let mut tiny = tiny();
    let usual = tiny.open().unwrap();
    assert_eq!(usual.config.layer_prefix, "language_model.model.layers.");
    for words in ["1 tensors of vision_tower ", "1 tensors of multi_modal_projector "] {
        assert!(warned(&usual, words), "{:?}", usual.warnings);
    }
    tiny.file("model.safetensors").iter_mut().for_each(|made| made.0 = as_module(&made.0));
    let other = tiny.open().unwrap();
    assert_eq!(other.config.layer_prefix, "model.language_model.layers.");
    assert!(warned(&other, "1 tensors of model.vision_tower "), "{:?}", other.warnings);
    assert_eq!(other.layer_bytes(1), usual.layer_bytes(1));
}

#[test]
fn what_an_index_lacks_is_found_under_either_name() {
    for rename in [str::to_owned, as_module] {
        let mut tiny = tiny();
        let mut all = tiny.files.remove("model.safetensors").unwrap();
        all.iter_mut().for_each(|made| made.0 = rename(&made.0));
        tiny.files.insert("weights.safetensors".into(), all);
        tiny.reindex();
        tiny.open().unwrap();
        let norm = rename("language_model.model.layers.1.input_layernorm.weight");
        tiny.file("weights.safetensors").retain(|made| made.0 != norm);
        let error = tiny.refusal().to_string();
        assert!(error.contains("index") && error.contains(&norm), "{error}");
    }
}

#[test]
fn names_of_both_kinds_at_once_are_refused() {
    let mut tiny = tiny();
    let norm = "language_model.model.layers.1.input_layernorm.weight";
    tiny.tensor(norm).0 = as_module(norm);
    let error = tiny.refusal().to_string();
    assert!(error.contains("model.language_model.layers.1.input_layernorm.weight"), "{error}");
}
