//! What dense families make of their configurations, and what each of them does not support.

use super::*;
use crate::model::{GateUp, NormKind, PositionScale, RotaryPairs};

/// A configuration of the golden model, changed.
fn changed(name: &str, changes: Value) -> Result<ModelSpec, ConfigError> {
    parse(&with(configuration(name), changes))
}

fn changed_llama(changes: Value) -> Result<ModelSpec, ConfigError> {
    parse(&with(llama(), changes))
}

/// Each is refused, and the error names the field.
fn refuses(name: &str, changes: &[Value]) {
    for change in changes {
        let field = change.as_object().unwrap().keys().next().unwrap();
        let error = changed(name, change.clone()).expect_err(&change.to_string()).to_string();
        assert!(error.contains(field.as_str()), "{name} {change}: {error}");
    }
}

#[test]
fn gemma_2_bounds_scores_and_logits_unless_that_is_null() {
    let gemma = golden("gemma2");
    assert_eq!((attention(&gemma, 0).softcap, gemma.logits.softcap), (Some(50.0), Some(30.0)));
    assert_eq!(windows_of(&gemma)[..4], [Some(8), None, Some(8), None]);
    let silent = parse(&without(configuration("gemma2"), "layer_types")).unwrap();
    assert_eq!(windows_of(&silent), windows_of(&gemma));
    refuses("gemma2", &[json!({"sliding_window_size": 16})]);
    assert!(changed("gemma2", json!({"sliding_window_size": 8})).is_ok());
    let none = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null});
    let free = changed("gemma2", none).unwrap();
    assert_eq!((attention(&free, 0).softcap, free.logits.softcap), (None, None));
    refuses(
        "gemma2",
        &[json!({"attn_logit_softcapping": -1}), json!({"hidden_activation": "gelu"})],
    );
}

#[test]
fn olmo_has_norms_after_operations_and_over_all_heads() {
    for name in ["olmo2", "olmo3"] {
        let olmo = golden(name);
        let branches = &olmo.layers[0].branches;
        assert!(branches.iter().all(|it| it.pre.is_none() && it.post.is_some()));
        let first = attention(&olmo, 0);
        let widths = first.qk_norm.as_ref().unwrap().each_ref().map(|norm| norm.width);
        assert_eq!(widths, [first.q_dim(), first.kv_dim()], "{name}");
        refuses(name, &[json!({"clip_qkv": 8.0})]);
    }
    let olmo = golden("olmo3");
    let of_full = windows_of(&olmo).iter().position(Option::is_none).unwrap();
    let rotation = |layer: usize| {
        let rotation = attention(&olmo, layer).rotation.unwrap();
        &olmo.rotations[rotation].rope.scaling
    };
    assert!(matches!(rotation(of_full), RopeScaling::Yarn { .. }));
    assert_eq!(*rotation((of_full + 1) % olmo.layers.len()), RopeScaling::None);
}

#[test]
fn layers_without_positions_are_those_that_the_family_says() {
    let rotates = |model: &ModelSpec| -> Vec<bool> {
        (0..model.layers.len()).map(|layer| attention(model, layer).rotation.is_some()).collect()
    };
    let smol = golden("smollm3");
    let said = configuration("smollm3")["no_rope_layers"].clone();
    let said: Vec<bool> = said.as_array().unwrap().iter().map(|it| it == 1).collect();
    assert_eq!(rotates(&smol), said);
    let exaone = golden("exaone4");
    let windowed: Vec<bool> = windows_of(&exaone).iter().map(Option::is_some).collect();
    let (local, all) = (true, false);
    assert_eq!(windowed, [local, local, all, local, local, all]);
    assert_eq!(rotates(&exaone), windowed);
    let lettered = without(configuration("exaone4"), "layer_types");
    let lettered =
        |letters: &str| parse(&with(lettered.clone(), json!({"sliding_window_pattern": letters})));
    assert_eq!(windows_of(&lettered("LLG").unwrap()), windows_of(&exaone));
    let (local, all) = (Some(7), None);
    let longer = windows_of(&lettered("LLLG").unwrap());
    assert_eq!(longer, [local, local, local, all, local, all], "the last one sees everything");
    assert!(lettered("LLXG").unwrap_err().to_string().contains("sliding_window_pattern"));
    let everywhere = without(configuration("exaone4"), "layer_types");
    let everywhere = parse(&with(everywhere, json!({"sliding_window": null}))).unwrap();
    assert!(rotates(&everywhere).iter().all(|it| *it));
}

#[test]
fn glm_4_and_ernie_turn_neighbours() {
    let glm = golden("glm4");
    let first = &glm.rotations[0];
    assert_eq!(
        (first.pairs, 2 * first.dim),
        (RotaryPairs::Neighbours, attention(&glm, 0).head_dim)
    );
    assert!(attention(&glm, 0).qkv_bias && !attention(&glm, 0).output_bias);
    let silent = without(configuration("glm4"), "partial_rotary_factor");
    let silent = parse(&without(silent, "attention_bias")).unwrap();
    assert!(attention(&silent, 0).qkv_bias && silent.rotations[0].dim == first.dim, "defaults");
    let ernie = golden("ernie4-5");
    assert_eq!(ernie.rotations[0].pairs, RotaryPairs::Neighbours);
    assert_eq!(ernie.rotations[0].dim, attention(&ernie, 0).head_dim);
    let biased = changed("ernie4-5", json!({"use_bias": true})).unwrap();
    assert!(attention(&biased, 0).output_bias && mlp(&biased).bias);
}

#[test]
fn granite_multiplies_what_its_configuration_says() {
    let more = json!({"embedding_multiplier": 12, "attention_multiplier": 0.25,
        "residual_multiplier": 0.5, "logits_scaling": 8});
    let granite = changed("granite", more).unwrap();
    assert_eq!((granite.embedding_multiplier, granite.logits.multiplier), (12.0, 0.125));
    assert_eq!(attention(&granite, 0).scale, 0.25);
    assert!(granite.layers.iter().flat_map(|it| &it.branches).all(|it| it.multiplier == 0.5));
    refuses("granite", &[json!({"logits_scaling": 0}), json!({"residual_multiplier": "x"})]);
}

#[test]
fn seed_has_biases_where_it_says_and_hunyuan_norms_after_the_rotation() {
    let seed = golden("seed-oss");
    assert!(attention(&seed, 0).qkv_bias && !attention(&seed, 0).output_bias);
    let other = json!({"attention_bias": false, "attention_out_bias": true, "mlp_bias": true});
    let other = changed("seed-oss", other).unwrap();
    assert!(!attention(&other, 0).qkv_bias && attention(&other, 0).output_bias && mlp(&other).bias);
    let hunyuan = golden("hunyuan-dense");
    assert!(attention(&hunyuan, 0).qk_norm_after_rotation);
    let head_dim = attention(&hunyuan, 0).head_dim as f64;
    let stretched = 10_000.0 * 1000f64.powf(head_dim / (head_dim - 2.0));
    assert!((rope(&hunyuan).theta / stretched - 1.0).abs() < 1e-12, "{:?}", rope(&hunyuan));
    let dynamic = json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}});
    let error = changed("hunyuan-dense", dynamic).unwrap_err().to_string();
    assert!(error.contains("rope_scaling.alpha"), "{error}");
}

#[test]
fn of_two_rotations_that_differ_none_is_taken() {
    let newer = json!({"rope_theta": 1e4, "rope_type": "default"});
    let two =
        |older: Value| changed_llama(json!({"rope_parameters": newer, "rope_scaling": older}));
    assert!(two(json!({})).is_ok() && two(json!({"type": "default"})).is_ok());
    let error = two(json!({"type": "linear", "factor": 2.0})).unwrap_err().to_string();
    assert!(error.contains("rope_scaling"), "{error}");
}

#[test]
fn yarn_is_read_with_its_factor_whatever_gives_it() {
    let yarn = |changes: Value| {
        let plain = json!({"rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 16});
        let model = accepted(json!({"rope_parameters": with(plain, changes)}));
        let RopeScaling::Yarn { attention_factor, truncate, original_max_position, .. } =
            rope(&model).scaling
        else {
            panic!("{model:?}")
        };
        (attention_factor, truncate, original_max_position)
    };
    let usual = 0.1 * 4f64.ln() + 1.0;
    assert_eq!(yarn(json!({})), (usual, true, 16.0));
    assert_eq!(yarn(json!({"truncate": false})), (usual, false, 16.0));
    assert_eq!(yarn(json!({"mscale": 1.0, "mscale_all_dim": 1.0})).0, 1.0);
    assert_eq!(yarn(json!({"mscale": 2.0, "mscale_all_dim": 0.0})).0, usual);
    assert_eq!(yarn(json!({"attention_factor": 1.25})).0, 1.25);
}

#[test]
fn cohere_2_adds_attention_and_network_of_one_norm() {
    let cohere = golden("cohere2");
    let [branch] = &cohere.layers[0].branches[..] else { panic!("one branch") };
    assert_eq!(branch.pre.as_ref().unwrap().kind, NormKind::Layer);
    assert!(matches!(&branch.op, Op::Sum(parts) if parts.len() == 2));
    assert_eq!(cohere.final_norm.kind, NormKind::Layer);
    for layer in 0..cohere.layers.len() {
        let attention = attention(&cohere, layer);
        assert_eq!(attention.rotation.is_some(), attention.window.is_some());
    }
    let words = json!({"position_embedding_type": "learned"});
    refuses("cohere2", &[words, json!({"order_of_interleaved_layers": "global_attn_first"})]);
}

#[test]
fn arcee_has_no_gate_and_yarn() {
    let arcee = golden("arcee");
    assert!(matches!(mlp(&arcee).gate_up, GateUp::Plain(_)));
    assert_eq!(mlp(&arcee).activation, Activation::Relu2);
    assert!(matches!(rope(&arcee).scaling, RopeScaling::Yarn { .. }));
    refuses("arcee", &[json!({"hidden_act": "silu"})]);
}

#[test]
fn starcoder_2_has_biases_everywhere_and_norms_that_have_them() {
    let star = golden("starcoder2");
    assert!(star.tie_word_embeddings && star.final_norm.bias);
    assert_eq!(star.final_norm.kind, NormKind::Layer);
    let pre = star.layers[0].branches.iter().map(|branch| branch.pre.as_ref().unwrap());
    assert!(pre.clone().count() == 2 && pre.clone().all(|norm| norm.bias));
    assert!(attention(&star, 0).qkv_bias && attention(&star, 0).output_bias && mlp(&star).bias);
    assert!(matches!(&mlp(&star).gate_up, GateUp::Plain(up) if up == "mlp.c_fc"));
    assert!(windows_of(&star).iter().all(|window| *window == Some(8)));
    let plain = changed("starcoder2", json!({"use_bias": false, "sliding_window": null})).unwrap();
    assert!(!attention(&plain, 0).qkv_bias && !mlp(&plain).bias && plain.final_norm.bias);
    assert_eq!(windows_of(&plain)[0], None);
    let outer: Vec<_> = star.outer_tensors().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(outer, ["model.embed_tokens.weight", "model.norm.weight", "model.norm.bias"]);
    refuses(
        "starcoder2",
        &[
            json!({"hidden_act": "gelu"}),
            json!({"norm_epsilon": -1}),
            json!({"use_bias": "x"}),
            json!({"norm_type": "rms_norm"}),
            json!({"mlp_type": "gated"}),
            json!({"attention_bias": true}),
        ],
    );
}

#[test]
fn ministral_3_runs_inside_of_what_sees_under_the_names_that_it_has_there() {
    let mistral = golden("mistral3");
    let text = configuration("mistral3")["text_config"].clone();
    let architecture = json!({"architectures": ["Ministral3ForCausalLM"]});
    let alone = parse(&with(text.clone(), architecture)).unwrap();
    assert_eq!(alone.layers, mistral.layers);
    assert_eq!(mistral.layer_prefix, "language_model.model.layers.");
    assert_eq!(mistral.head, "language_model.lm_head.weight");
    let scale = attention(&mistral, 0).query_scale.unwrap();
    assert_eq!(scale, PositionScale { beta: 0.3, span: 8.0, first: 0 });
    assert_eq!((scale.at(7), scale.at(8)), (1.0, (1.0 + 0.3 * 2f64.ln()) as f32));
    let none = with(text["rope_parameters"].clone(), json!({"llama_4_scaling_beta": 0.0}));
    let none = with(text.clone(), json!({ "rope_parameters": none }));
    let none = changed("mistral3", json!({ "text_config": none })).unwrap();
    assert_eq!(attention(&none, 0).query_scale, None);
    let silent = without(configuration("mistral3"), "tie_word_embeddings");
    assert!(parse(&silent).unwrap().tie_word_embeddings, "as the class has it");
    let older = with(text.clone(), json!({"model_type": "mistral", "rope_parameters": null}));
    let older = changed("mistral3", json!({"text_config": older})).unwrap();
    assert_eq!(attention(&older, 0).query_scale, None);
    for (wrong, words) in [
        (json!({"model_type": "qwen2"}), "text_config.model_type"),
        (json!({"rope_parameters": null}), "text_config.rope_parameters"),
        (json!({"attention_bias": true}), "text_config.attention_bias"),
        (json!({"sinks": true}), "text_config.sinks"),
    ] {
        let error = changed("mistral3", json!({"text_config": with(text.clone(), wrong)}));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = parse(&without(configuration("mistral3"), "text_config")).unwrap_err();
    assert!(error.to_string().contains("text_config"), "{error}");
}
