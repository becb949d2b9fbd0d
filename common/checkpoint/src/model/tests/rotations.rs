//! What configurations say of positions.

use super::*;

#[test]
fn a_parameter_of_a_rotation_that_nobody_understands_is_refused_by_its_name() {
    for (changes, field) in [
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 1000.0}}),
            "rope_scaling.alpha",
        ),
        (
            json!({"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2]}}),
            "mrope_section",
        ),
        (
            json!({"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "attention_factor": 1.2}}),
            "rope_parameters.attention_factor",
        ),
    ] {
        assert!(refused(changes).to_string().contains(field), "{field}");
    }
    let theta = json!({"rope_type": "default", "rope_theta": 1e4});
    let others =
        json!({"full_attention": theta, "sliding_attention": theta, "chunked_attention": theta});
    let gemma =
        with(family("Gemma3ForCausalLM", "gemma3_text"), json!({"rope_parameters": others}));
    let error = parse(&gemma).expect_err("a rotation that no layer has").to_string();
    assert!(error.contains("rope_parameters.chunked_attention"), "{error}");
    let idle =
        json!({"rope_type": "default", "factor": 8.0, "original_max_position_embeddings": 4096});
    assert_eq!(rope(&accepted(json!({"rope_parameters": idle}))).scaling, RopeScaling::None);
}

#[test]
fn attention_in_chunks_is_left_to_sequences_that_are_shorter_than_one() {
    let chunks = json!({"dual_chunk_attention_config": {"chunk_size": 200, "local_size": 80}});
    let model = parse(&with(family("Qwen2ForCausalLM", "qwen2"), chunks.clone())).unwrap();
    assert_eq!(model.max_position_embeddings, 120, "of 256");
    assert!(refused(chunks).to_string().contains("dual_chunk_attention_config"), "of a Llama");
    let qwen = |chunks: Value| {
        let chunks = json!({"dual_chunk_attention_config": chunks});
        parse(&with(family("Qwen2ForCausalLM", "qwen2"), chunks))
    };
    let trained = json!({"chunk_size": 200, "local_size": 80,
        "original_max_position_embeddings": 100});
    assert_eq!(qwen(trained).unwrap().max_position_embeddings, 100);
    let sparse = json!({"chunk_size": 200, "local_size": 80, "sparse_attention_enabled": true});
    let error = qwen(sparse).unwrap_err().to_string();
    assert!(error.contains("dual_chunk_attention_config.sparse_attention_enabled"), "{error}");
    let nothing = json!({"chunk_size": 200, "local_size": 200});
    assert!(qwen(nothing).unwrap_err().to_string().starts_with("local_size"));
}

#[test]
fn a_top_level_original_context_takes_priority_and_the_longest_is_the_fallback() {
    let original = |changes| match rope(&accepted(changes)).scaling.clone() {
        RopeScaling::Llama3 { original_max_position, .. } => original_max_position,
        other => panic!("{other:?}"),
    };
    let mut dict = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
        "high_freq_factor": 4});
    assert_eq!(original(json!({"rope_scaling": dict})), 256.0);
    dict["original_max_position_embeddings"] = json!(64);
    assert_eq!(original(json!({"rope_scaling": dict})), 64.0);
    let top = json!({"rope_scaling": dict, "original_max_position_embeddings": 128});
    assert_eq!(original(top), 128.0);
}

/// What the Hub has of Phi-4-mini, smaller.
fn phi4_mini() -> Value {
    let factors = |first: f64| (0..6).map(|pair| json!(first + f64::from(pair))).collect();
    let (short, long): (Value, Value) = (factors(1.0), factors(2.0));
    with(
        family("Phi3ForCausalLM", "phi3"),
        json!({
            "attention_bias": false, "full_attn_mod": 1, "interpolate_factor": 1,
            "lm_head_bias": false, "mlp_bias": false, "max_position_embeddings": 131_072,
            "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
            "rope_scaling": {"long_factor": long, "short_factor": short, "type": "longrope"},
            "rope_theta": 10_000.0, "sliding_window": 262_144, "tie_word_embeddings": true,
        }),
    )
}

#[test]
fn longrope_has_factors_for_short_contexts_and_for_long_ones() {
    let model = parse(&phi4_mini()).unwrap();
    assert_eq!((model.rotations[0].dim, model.short_context()), (12, Some(4096)));
    assert!(model.tie_word_embeddings);
    let RopeScaling::LongRope {
        short_factor,
        long_factor,
        original_max_position,
        attention_factor,
    } = &rope(&model).scaling
    else {
        panic!("{model:?}")
    };
    assert_eq!(short_factor[..], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(long_factor[..], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    assert_eq!(*original_max_position, 4096.0);
    assert_eq!(*attention_factor, (1.0 + 32f64.ln() / 4096f64.ln()).sqrt());
    // Under the names that it had first.
    for older in ["su", "yarn"] {
        let mut config = phi4_mini();
        config["rope_scaling"]["type"] = older.into();
        assert_eq!(parse(&config).unwrap(), model);
    }
    let scaled = |field: &str, value: f64| {
        let mut config = phi4_mini();
        config["rope_scaling"][field] = value.into();
        let RopeScaling::LongRope { attention_factor, .. } =
            parse(&config).unwrap().rotations[0].rope.scaling
        else {
            panic!("{config}")
        };
        attention_factor
    };
    assert_eq!(scaled("attention_factor", 1.25), 1.25);
    assert_eq!(scaled("factor", 1.0), 1.0);
    // A model that has no longer contexts has one kind.
    let short = with(phi4_mini(), json!({"max_position_embeddings": 4096}));
    assert_eq!(parse(&short).unwrap().short_context(), None);
    for (field, other) in [("full_attn_mod", 2), ("interpolate_factor", 4)] {
        let error = parse(&with(phi4_mini(), json!({ field: other }))).unwrap_err().to_string();
        assert!(error.starts_with(field), "{error}");
    }
    let biased = parse(&with(phi4_mini(), json!({"lm_head_bias": true}))).unwrap_err();
    assert!(biased.to_string().starts_with("lm_head_bias"), "{biased}");
}

#[test]
fn a_dynamic_rotation_is_none_as_no_sequence_is_longer_than_the_model_has_positions() {
    let dynamic = accepted(json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}));
    assert_eq!(dynamic, accepted(json!({})));
}

#[test]
fn positions_of_pictures_are_those_of_text_where_there_is_only_text() {
    let qwen = configuration("qwen3_5");
    let mut parameters = qwen["rope_parameters"].clone();
    parameters["rope_type"] = "mrope".into();
    let named = parse(&with(qwen, json!({ "rope_parameters": parameters }))).unwrap();
    assert_eq!(named, golden("qwen3_5"));
}
