//! Gemma 4: two kinds of heads, sums of operations with norms of their own, stacks of experts.

use super::*;
use crate::model::{ExpertsSpec, NormedSpec};

/// The golden configuration with these changes in its text model.
fn changed(changes: Value) -> Result<ModelSpec, ConfigError> {
    let mut config = configuration("gemma4-moe");
    config["text_config"] = with(config["text_config"].clone(), changes);
    parse(&config)
}

fn parts(model: &ModelSpec) -> &[Op] {
    let Op::Sum(parts) = &model.layers[0].branches[1].op else { panic!("it has a sum") };
    parts
}

#[test]
fn layers_without_a_window_have_other_heads_and_values_of_what_makes_keys() {
    let model = golden("gemma4-moe");
    let (slides, sees) = (attention(&model, 0), attention(&model, 2));
    assert_eq!((slides.head_dim, slides.kv_heads, slides.window), (16, 2, Some(8)));
    assert_eq!((sees.head_dim, sees.kv_heads, sees.window), (32, 1, None));
    assert_eq!([slides.rotation, sees.rotation], [Some(1), Some(0)]);
    let modules = |layer: usize| {
        let paths = attention(&model, layer).qkv().into_iter().map(|it| it.path.into_owned());
        paths.collect::<Vec<_>>()
    };
    assert_eq!(modules(0)[2], "self_attn.v_proj");
    assert_eq!(modules(2)[1..], ["self_attn.k_proj", "self_attn.k_proj"]);
    let leaves = |layer: usize| -> Vec<String> {
        model.layers[layer].tensors().iter().map(|tensor| tensor.leaf()).collect()
    };
    assert!(!leaves(2).contains(&"self_attn.v_proj.weight".to_owned()));
    assert!(leaves(2).contains(&"layer_scalar".to_owned()));
    assert_eq!(model.layers[2].kept().keys, 32);
    assert!((0..6).all(|layer| attention(&model, layer).value_norm == Some(1e-5)));
}

#[test]
fn a_part_of_the_pairs_rotates_with_frequencies_as_if_all_did() {
    let model = golden("gemma4-moe");
    let scaling = |index: usize| model.rotations[index].rope.scaling.clone();
    assert_eq!(scaling(0), RopeScaling::Proportional { rotating: 4, factor: 1.0 });
    assert_eq!((model.rotations[0].dim, model.rotations[1].dim), (32, 16));
    assert_eq!(scaling(1), RopeScaling::None);
}

#[test]
fn both_spellings_of_the_wider_heads_say_the_same() {
    let each = json!({ "head_dim": 32, "num_key_value_heads": 1 });
    let newer = json!({ "per_layer_config": { "2": each, "5": each },
        "global_head_dim": null, "num_global_key_value_heads": null });
    assert_eq!(changed(newer).unwrap(), golden("gemma4-moe"));
    let other = json!({ "per_layer_config": { "2": each, "5": { "head_dim": 64 } } });
    assert!(changed(other).unwrap_err().to_string().contains("per_layer_config"));
    // Where keys do not make values, heads of the cache are as many as elsewhere.
    let apart = changed(json!({ "attention_k_eq_v": false })).unwrap();
    assert_eq!(attention(&apart, 2).kv_heads, 2);
}

#[test]
fn the_unified_model_has_defaults_of_its_own() {
    let mut config = configuration("gemma4-moe");
    config["architectures"] = json!(["Gemma4UnifiedForConditionalGeneration"]);
    config["model_type"] = json!("gemma4_unified");
    config["text_config"]["model_type"] = json!("gemma4_unified_text");
    for field in ["hidden_size_per_layer_input", "sliding_window"] {
        config["text_config"].as_object_mut().expect("fields").remove(field);
    }
    let model = parse(&config).unwrap();
    assert_eq!(windows_of(&model)[..3], [Some(1024), Some(1024), None]);
    let name = "model.language_model.layers.1.experts.3.down_proj.weight";
    assert!(model.expert_slice(name).is_some());
    config["text_config"]["model_type"] = json!("gemma4_text");
    assert!(parse(&config).unwrap_err().to_string().contains("gemma4_text"));
}

#[test]
fn the_router_sees_what_no_norm_of_the_experts_has_changed() {
    let model = golden("gemma4-moe");
    let [Op::Normed(network), Op::Normed(mixture)] = parts(&model) else { panic!("two") };
    assert!(matches!(&**network, NormedSpec { pre: Some(_), op: Op::Mlp(_), post: Some(_), .. }));
    let NormedSpec { pre: None, op: Op::Experts(experts), post: Some(_), .. } = &**mixture else {
        panic!("{mixture:?}")
    };
    let ExpertsSpec { router, norm: Some(norm), .. } = experts else { panic!("{experts:?}") };
    assert_eq!(norm.path, "pre_feedforward_layernorm_2");
    let before = router.norm.as_ref().expect("a norm of its own");
    assert_eq!((&*before.scale, before.factor), ("router.scale", 48f64.powf(-0.5)));
    assert_eq!(router.expert_scale.as_deref(), Some("router.per_expert_scale"));
}

#[test]
fn a_model_without_a_mixture_has_a_network_alone() {
    let dense = json!({ "enable_moe_block": false, "num_experts": null, "top_k_experts": null,
        "moe_intermediate_size": null });
    let dense = changed(dense).unwrap();
    assert!(matches!(dense.layers[0].branches[1].op, Op::Mlp(_)));
    assert!(dense.layers[0].branches[1].pre.is_some());
}

#[test]
fn the_last_layer_sees_everything_whatever_is_said_of_it() {
    let types = vec!["sliding_attention"; 6];
    let model = changed(json!({ "layer_types": types })).unwrap();
    assert_eq!(windows_of(&model), [Some(8), Some(8), Some(8), Some(8), Some(8), None]);
}

#[test]
fn what_the_smallest_have_is_refused_by_its_name() {
    for (changes, field) in [
        (json!({ "hidden_size_per_layer_input": 8 }), "hidden_size_per_layer_input"),
        (json!({ "hidden_size_per_layer_input": null }), "hidden_size_per_layer_input \"256\""),
        (json!({ "num_kv_shared_layers": 2 }), "num_kv_shared_layers"),
        (json!({ "rope_parameters": null }), "rope_parameters is missing"),
        (json!({ "use_bidirectional_attention": "all" }), "use_bidirectional_attention"),
    ] {
        let error = changed(changes).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    assert!(changed(json!({ "use_bidirectional_attention": "vision" })).is_ok());
    // No other family has its rotation.
    let rope = json!({ "rope_type": "proportional", "partial_rotary_factor": 0.25 });
    let error = refused(json!({ "rope_scaling": rope }));
    assert!(matches!(error, ConfigError::UnsupportedRope { .. }), "{error}");
}

#[test]
fn experts_lie_in_tensors_without_an_ending() {
    let model = golden("gemma4-moe");
    let name = "model.language_model.layers.1.experts.3.gate_up_proj.weight";
    let slice = model.expert_slice(name).expect("a slice");
    assert_eq!(slice.name, "model.language_model.layers.1.experts.gate_up_proj");
    assert_eq!((slice.index, slice.count), (3, 8));
    let down = model.expert_slice("model.language_model.layers.1.experts.0.down_proj").unwrap();
    assert_eq!(down.name, "model.language_model.layers.1.experts.down_proj");
}

#[test]
fn norms_of_their_own_are_parts_of_sums_and_of_nothing_else() {
    let sent = |change: &dyn Fn(&mut ModelSpec)| {
        let mut model = golden("gemma4-moe");
        change(&mut model);
        ModelSpec::from_wire(&model.to_wire()).map(drop).map_err(|error| error.to_string())
    };
    sent(&|_| {}).unwrap();
    let normed =
        |op: Op| Op::Normed(Box::new(NormedSpec { pre: None, op, post: None, multiplier: None }));
    let alone = |model: &mut ModelSpec| {
        let branch = &mut model.layers[0].branches[0];
        branch.op = normed(branch.op.clone());
    };
    assert!(sent(&alone).unwrap_err().contains("where it cannot be"));
    let twice = |model: &mut ModelSpec| {
        let Op::Sum(parts) = &mut model.layers[0].branches[1].op else { panic!("a sum") };
        parts[0] = normed(parts[0].clone());
    };
    assert!(sent(&twice).unwrap_err().contains("where it cannot be"));
    let narrow = |model: &mut ModelSpec| {
        let Op::Sum(parts) = &mut model.layers[0].branches[1].op else { panic!("a sum") };
        let Op::Normed(part) = &mut parts[0] else { panic!("with norms") };
        part.post.as_mut().expect("one").width = 47;
    };
    assert!(sent(&narrow).unwrap_err().contains("norm in a sum is 47"));
}
