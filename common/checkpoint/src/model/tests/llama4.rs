//! Llama 4: segments, queries that grow, experts on some layers, and a model that sees around it.

use super::*;
use crate::container::{Lies, StoredTensor, Strides};
use crate::dtype::Dtype;
use crate::model::{PositionScale, RouterScores, unstack};

fn changed(changes: Value) -> Result<ModelSpec, ConfigError> {
    parse(&with(configuration("llama4"), changes))
}

/// Which layers have experts.
fn sparse(model: &ModelSpec) -> Vec<bool> {
    let has_some =
        |layer: &crate::model::LayerSpec| layer.ops().any(|op| matches!(op, Op::Experts(_)));
    model.layers.iter().map(has_some).collect()
}

fn segments(model: &ModelSpec) -> Vec<Option<usize>> {
    (0..model.layers.len()).map(|layer| attention(model, layer).segment).collect()
}

#[test]
fn layers_turn_heads_in_segments_or_let_queries_grow() {
    let model = golden("llama4");
    let growing = PositionScale { beta: 0.3, span: 4.0, first: 1 };
    for layer in 0..6 {
        let (found, turns) = (attention(&model, layer), layer % 3 != 2);
        assert_eq!((found.rotation, found.segment), (turns.then_some(0), turns.then_some(8)));
        assert_eq!(
            (found.turned_norm, found.query_scale),
            match turns {
                true => (Some(1e-5), None),
                false => (None, Some(growing)),
            }
        );
    }
    let factors = [0, 2, 3, 7].map(|position| growing.at(position));
    let grown = |spans: f64| (1.0 + 0.3 * spans.ln_1p()) as f32;
    assert_eq!(factors, [1.0, 1.0, grown(1.0), grown(2.0)]);
    let off = changed(json!({"attn_temperature_tuning": 0, "use_qk_norm": false})).unwrap();
    assert_eq!((attention(&off, 2).query_scale, attention(&off, 0).turned_norm), (None, None));
    assert_eq!(changed(json!({"attn_temperature_tuning": 4})).unwrap(), model);
    let narrow = ModelSpec { layers: vec![model.layers[0].narrowed(0.5, 16)], ..model };
    assert_eq!(segments(&narrow), [None], "nothing is left out of what is timed");
}

#[test]
fn what_is_not_said_is_as_the_reference_has_it() {
    let bare = ["layer_types", "attention_chunk_size", "no_rope_layers", "moe_layers"];
    let bare = bare.into_iter().fold(configuration("llama4"), without);
    let bare = with(bare, json!({"interleave_moe_layer_step": 2}));
    let model = parse(&bare).unwrap();
    let size = Some(8192);
    assert_eq!(segments(&model), [size, size, size, None, size, size]);
    assert_eq!(sparse(&model), [false, true, false, true, false, true]);
    let all = parse(&without(without(bare, "interleave_moe_layer_step"), "intermediate_size_mlp"));
    assert_eq!(sparse(&all.unwrap()), [true; 6]);
    let dense = changed(json!({"moe_layers": [], "interleave_moe_layer_step": 0,
        "num_local_experts": 0, "no_rope_layers": []}));
    assert_eq!(sparse(&dense.unwrap()), [false; 6]);
    let whole = without(configuration("llama4"), "layer_types");
    let whole = parse(&with(whole, json!({"attention_chunk_size": null}))).unwrap();
    assert_eq!(segments(&whole), [None; 6]);
    // As Scout's is stretched: nothing blends.
    let stretched = json!({"rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0,
        "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}});
    parse(&with(without(configuration("llama4"), "rope_parameters"), stretched)).unwrap();
}

#[test]
fn experts_get_rows_that_are_weighed_and_a_network_is_beside_them() {
    let model = golden("llama4");
    assert_eq!(sparse(&model), [false, true, false, true, false, true]);
    let Op::Sum(parts) = &model.layers[1].branches[1].op else { panic!("both") };
    let [Op::Experts(experts), Op::Mlp(shared)] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!(experts.router.scores, RouterScores::SigmoidOfChosen);
    assert!(experts.router.weighs_inputs && experts.router.renormalise.is_none());
    assert_eq!((experts.expert.inner_size, shared.inner_size), (32, 32));
    assert_eq!(mlp(&model).inner_size, 96);
    let name = "model.layers.1.feed_forward.experts.gate_up_proj".to_owned();
    let (dtype, shape, bytes) = (Dtype::F32, vec![4, 64, 64], 4 * 64 * 64 * 4);
    let (lies, encoding) = (Lies::Together, None);
    let whole = StoredTensor { name, file: 0, dtype, shape, offset: 8, bytes, lies, encoding };
    let found = unstack(vec![whole], &model).unwrap();
    let up = &found[5];
    assert_eq!(up.name, "model.layers.1.feed_forward.experts.2.up_proj.weight");
    assert_eq!((&up.shape[..], up.offset), (&[32, 64][..], 8 + 2 * 64 * 64 * 4 + 32 * 4));
    assert_eq!(up.lies, Lies::Apart(Strides { row: 1, column: 64 }));
}

#[test]
fn the_text_model_runs_inside_of_one_that_sees() {
    let text = configuration("llama4");
    let wrapper = json!({"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4",
        "boi_token_index": 7, "eoi_token_index": 8, "image_token_index": 9, "text_config": text,
        "vision_config": {"model_type": "llama4_vision_model"}});
    let model = parse(&wrapper).unwrap();
    assert_eq!(model.layers, golden("llama4").layers);
    assert_eq!(model.layer_prefix, "language_model.model.layers.");
    assert_eq!(model.head, "language_model.lm_head.weight");
    assert!(model.is_turned("language_model.model.layers.1.feed_forward.experts.down_proj"));
    assert_eq!(model.other_prefixes, ["vision_model.", "multi_modal_projector."]);
}

refuses! {
    refuses_heads_whose_width_is_not_said: without(configuration("llama4"), "head_dim"),
        E::Missing { .. }, "head_dim";
    refuses_heads_of_the_cache_that_are_not_said: without(configuration("llama4"), "num_key_value_heads"),
        E::Missing { .. }, "num_key_value_heads";
    refuses_segments_without_a_size: with(configuration("llama4"), json!({"attention_chunk_size": null})),
        E::Unsupported { .. }, "attention_chunk_size";
    refuses_segments_of_nothing: with(configuration("llama4"), json!({"attention_chunk_size": 0})),
        E::OutOfRange { .. }, "attention_chunk_size";
    refuses_layers_of_another_kind: with(configuration("llama4"),
        json!({"layer_types": ["full_attention", "sliding_attention", "full_attention",
            "full_attention", "full_attention", "full_attention"]})),
        E::UnsupportedLayerType { layer: 1, .. }, "sliding_attention";
    refuses_kinds_of_other_layers: with(configuration("llama4"), json!({"layer_types": ["full_attention"]})),
        E::LayerTypesLength { expected: 6, found: 1 }, "layer_types";
    refuses_rotations_of_fewer_layers: with(configuration("llama4"), json!({"no_rope_layers": [1, 0]})),
        E::WrongType { .. }, "no_rope_layers";
    refuses_a_span_of_nothing: with(configuration("llama4"), json!({"floor_scale": 0})),
        E::OutOfRange { .. }, "floor_scale";
    refuses_a_tuning_that_is_no_flag: with(configuration("llama4"), json!({"attn_temperature_tuning": "on"})),
        E::WrongType { .. }, "attn_temperature_tuning";
    refuses_no_width_of_a_network_without_experts: without(configuration("llama4"), "intermediate_size_mlp"),
        E::Missing { .. }, "intermediate_size_mlp";
    refuses_experts_on_each_layer_of_none: without(with(configuration("llama4"),
        json!({"interleave_moe_layer_step": 0})), "moe_layers"),
        E::OutOfRange { .. }, "interleave_moe_layer_step";
    refuses_a_text_model_of_another_kind: json!({"architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4", "text_config": {"model_type": "llama"}}),
        E::Unsupported { .. }, "text_config.model_type";
}
