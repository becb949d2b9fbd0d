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
