//! What families make of their configurations: windows, rotations, norms and biases.

use super::*;

#[test]
fn reads_the_golden_configurations() {
    let sharded = golden("llama-sharded");
    let first = attention(&sharded, 0);
    assert_eq!((sharded.layers.len(), first.head_dim, first.kv_heads), (12, 16, 2));
    assert_eq!(*rope(&sharded), Rope { theta: 10_000.0, scaling: RopeScaling::None });
    assert_eq!(sharded.eos_token_ids, [1]);
    assert_eq!(sharded.bos_token_id, Some(0));

    let tied = golden("llama3-tied");
    assert!(tied.tie_word_embeddings);
    let first = attention(&tied, 0);
    assert_eq!((first.head_dim, first.q_dim(), rope(&tied).theta), (32, 128, 50_000.0));
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position: 32.0,
    };
    assert_eq!(rope(&tied).scaling, expected);

    assert_eq!(windows_of(&golden("mistral")), [Some(8); 5]);
    let qwen2 = golden("qwen2");
    let first = attention(&qwen2, 0);
    assert!(first.qkv_bias && !first.output_bias && !mlp(&qwen2).bias);
    assert_eq!(windows_of(&qwen2), [None; 5]);
    let qwen3 = golden("qwen3");
    let first = attention(&qwen3, 0);
    assert_eq!((first.head_dim, first.q_dim(), qwen3.hidden_size), (24, 96, 64));
    assert!(!first.qkv_bias && !first.output_bias && first.qk_norm.is_some());
    assert_eq!(windows_of(&golden("phi3")), [None; 5]);
    assert_eq!(golden("phi3").rotations[0].dim, 16);
}

#[test]
fn gemma_3_has_windows_and_a_rotation_for_them_however_that_is_spelt() {
    let gemma = golden("gemma3");
    assert!(gemma.tie_word_embeddings && gemma.embedding_multiplier == 8.0);
    let (sees, slides) = (None, Some(8));
    assert_eq!(windows_of(&gemma), [slides, slides, sees, slides, slides, sees, slides]);
    let thetas = gemma.rotations.iter().map(|rotation| rotation.rope.theta);
    assert_eq!(thetas.collect::<Vec<_>>(), [1e6, 1e4]);
    let rotations = [0, 2].map(|layer| attention(&gemma, layer).rotation);
    assert_eq!(rotations, [Some(1), Some(0)]);
    let branches = &gemma.layers[0].branches;
    let norms = branches.iter().flat_map(|branch| branch.pre.iter().chain(&branch.post));
    assert!(
        norms.clone().count() == 4 && norms.chain([&gemma.final_norm]).all(|it| it.offset == 1.0)
    );
    assert_eq!(mlp(&gemma).activation, Activation::GeluTanh);

    // As older versions of the reference write it; the first rotation may be stretched, the second is not.
    let json = std::fs::read(golden_path("gemma3").join("config.json")).unwrap();
    let newer: Value = serde_json::from_slice(&json).unwrap();
    let old = ["rope_parameters", "layer_types", "_sliding_window_pattern"];
    let older = old.iter().fold(newer, |config, field| without(config, field));
    let scaling = json!({"rope_type": "linear", "factor": 8.0});
    let older = with(older, json!({"rope_theta": 1e6, "rope_local_base_freq": 1e4}));
    assert_eq!(parse(&older).unwrap(), gemma);
    let stretched = parse(&with(older.clone(), json!({"rope_scaling": scaling}))).unwrap();
    assert_eq!(stretched.rotations[0].rope.scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(stretched.rotations[1], gemma.rotations[1]);
    let bare = ["rope_theta", "rope_local_base_freq", "sliding_window_pattern", "sliding_window"];
    let bare =
        parse(&bare.iter().fold(older.clone(), |config, field| without(config, field))).unwrap();
    assert_eq!(bare.rotations, gemma.rotations);
    let error = parse(&with(older.clone(), json!({"sliding_window": null}))).unwrap_err();
    assert!(matches!(error, ConfigError::NoWindow { layer: 0, .. }), "{error}");
    let scale = |config: &Value| attention(&parse(config).unwrap(), 0).scale;
    let scaled = with(older.clone(), json!({"query_pre_attn_scalar": 168}));
    assert_eq!(scale(&scaled), 168f64.powf(-0.5));
    assert_eq!(scale(&without(scaled, "query_pre_attn_scalar")), 1.0 / 16.0);
    let nested = json!({"full_attention": {"rope_type": "default"},
        "sliding_attention": {"rope_type": "default"}});
    let nested = with(older, json!({"rope_theta": 5e5, "rope_parameters": nested}));
    let thetas = parse(&nested).unwrap().rotations.into_iter().map(|it| it.rope.theta);
    assert_eq!(thetas.collect::<Vec<_>>(), [5e5, 1e4], "each has a field of its own");
    let (sees, slides) = (None, Some(4096));
    assert_eq!(windows_of(&bare), [slides, slides, slides, slides, slides, sees, slides]);
}

#[test]
fn windows_follow_the_family_and_layer_types() {
    let windows = |base: Value, changes: Value| windows_of(&parse(&with(base, changes)).unwrap());
    let mistral = || family("MistralForCausalLM", "mistral");
    assert_eq!(windows(mistral(), json!({})), [Some(4096); 3], "the class default");
    assert_eq!(windows(mistral(), json!({"sliding_window": null})), [None; 3]);
    assert_eq!(windows(family("Phi3ForCausalLM", "phi3"), json!({})), [None; 3]);
    assert_eq!(windows(llama(), json!({"sliding_window": 8})), [None; 3]);

    let qwen = || family("Qwen2ForCausalLM", "qwen2");
    let on = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1});
    assert_eq!(windows(qwen(), on.clone()), [None, Some(8), Some(8)]);
    assert_eq!(windows(qwen(), with(on.clone(), json!({"use_sliding_window": false}))), [None; 3]);
    assert_eq!(windows(qwen(), with(on.clone(), json!({"max_window_layers": 28}))), [None; 3]);
    let types = json!({"layer_types": ["sliding_attention", "full_attention", "full_attention"]});
    assert_eq!(windows(qwen(), with(on, types)), [Some(8), None, None]);
}

#[test]
fn biases_follow_the_family_and_the_configuration() {
    let config = accepted(json!({"attention_bias": true, "mlp_bias": true}));
    let first = attention(&config, 0);
    assert!(first.qkv_bias && first.output_bias && mlp(&config).bias);
    let qwen2 = parse(&with(family("Qwen2ForCausalLM", "qwen2"), json!({"attention_bias": false})))
        .unwrap();
    let first = attention(&qwen2, 0);
    assert!(first.qkv_bias && !first.output_bias, "always there, whatever the key says");
    let phi3 =
        parse(&with(family("Phi3ForCausalLM", "phi3"), json!({"partial_rotary_factor": 0.75})));
    assert_eq!(phi3.unwrap().rotations[0].dim, 12);
}
