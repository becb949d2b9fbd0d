//! Gemma 4: two kinds of heads, sums of operations with norms of their own, stacks of experts.

use super::*;
use crate::model::{
    ExpertsSpec, GivenSpec, Joined, LayerSpec, Names, NormedSpec, Role, WithGivenSpec,
};
use crate::range::LayerRange;

/// The golden configuration with these changes in its text model.
fn changed(changes: Value) -> Result<ModelSpec, ConfigError> {
    changed_of("gemma4-moe", changes)
}

fn changed_of(name: &str, changes: Value) -> Result<ModelSpec, ConfigError> {
    let mut config = configuration(name);
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
fn what_is_not_supported_is_refused_by_its_name() {
    for (changes, field) in [
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

#[test]
fn layers_of_the_smallest_are_given_numbers_and_the_last_attend_to_keys_of_earlier_ones() {
    let model = golden("gemma4-e");
    let given = model.given.as_ref().expect("something");
    assert_eq!((given.width, given.rows, model.given_width()), (8, 384, 8));
    assert_eq!((given.row_multiplier, given.multiplier), (8f32.sqrt(), 0.5f32.sqrt()));
    assert_eq!(given.table, "model.language_model.embed_tokens_per_layer");
    let widths: Vec<usize> = (0..=8).map(|layer| model.row_width(layer)).collect();
    assert_eq!(widths, [112, 104, 96, 88, 80, 72, 64, 56, 48]);
    let keys_of: Vec<_> = model.layers.iter().map(LayerSpec::keys_of).collect();
    assert_eq!(keys_of, [None, None, None, None, Some(3), Some(2), Some(3), Some(2)]);
    let begins: Vec<usize> = (0..8).filter(|layer| model.may_begin(*layer)).collect();
    assert_eq!(begins, [0, 1, 2]);
    let pieces = model.pieces(LayerRange::new(1, 8));
    assert_eq!(pieces, [LayerRange::new(1, 2), LayerRange::new(2, 8)]);
    let inner = |layer: usize| match &model.layers[layer].branches[1].op {
        Op::Mlp(mlp) => mlp.inner_size,
        other => panic!("{other:?}"),
    };
    assert_eq!([inner(3), inner(4)], [48, 96]);
    let kept = |layer: usize| model.layers[layer].kept();
    assert_eq!((kept(3).keys, kept(4).keys, kept(4).values), (16, 0, 0));
    let leaves = |layer: usize| -> Vec<String> {
        model.layers[layer].tensors().iter().map(|tensor| tensor.leaf()).collect()
    };
    let of_keys = ["self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight"];
    let has = |layer: usize| of_keys.map(|leaf| leaves(layer).contains(&leaf.to_owned()));
    assert_eq!((has(3), has(4)), ([true; 3], [false; 3]));
    let role = |leaf: &str| {
        let name = format!("model.language_model.layers.4.{leaf}");
        Names::of(&model).role(&name)
    };
    // Files have them all the same.
    assert!(of_keys.iter().all(|leaf| matches!(role(leaf), Ok(Role::Ignored))));
    assert!(matches!(role("self_attn.q_norm.weight"), Ok(Role::Layer { layer: 4, .. })));
    assert!(role("self_attn.k_proj.sinks").is_err());
    let outer = Names::of(&model).role("model.language_model.per_layer_projection_norm.weight");
    assert!(matches!(outer, Ok(Role::Outer)));
}

#[test]
fn what_the_smallest_cannot_say_is_refused_by_its_name() {
    for (changes, field) in [
        (json!({ "num_kv_shared_layers": 8 }), "num_kv_shared_layers"),
        (json!({ "num_kv_shared_layers": 9 }), "num_kv_shared_layers"),
        (json!({ "num_kv_shared_layers": 7 }), "num_kv_shared_layers"), // The first one has a window.
        (json!({ "vocab_size_per_layer_input": 383 }), "vocab_size_per_layer_input"),
        (json!({ "hidden_size_per_layer_input": 262_144 }), "numbers of a row"),
        (json!({ "use_double_wide_mlp": 2 }), "use_double_wide_mlp"),
    ] {
        let error = changed_of("gemma4-e", changes).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    let defaults = json!({ "hidden_size_per_layer_input": null, "vocab_size_per_layer_input": null,
        "num_kv_shared_layers": null });
    let defaults = changed_of("gemma4-e", defaults).unwrap();
    let given = defaults.given.as_ref().expect("something");
    assert_eq!((given.width, given.rows), (256, 262_144));
    assert!((0..8).all(|layer| defaults.may_begin(layer)));
    let none = changed_of("gemma4-e", json!({ "hidden_size_per_layer_input": 0 })).unwrap();
    assert!(none.given.is_none() && none.row_width(0) == 48);
    assert_eq!(none.layers[0].branches.len(), 2);
}

/// As it comes from a peer.
#[test]
fn what_specifications_may_not_say_of_given_numbers_and_keys_is_refused() {
    let sent = |change: &dyn Fn(&mut ModelSpec)| {
        let mut model = golden("gemma4-e");
        change(&mut model);
        ModelSpec::from_wire(&model.to_wire()).map(drop).map_err(|error| error.to_string())
    };
    sent(&|_| {}).unwrap();
    fn given(model: &mut ModelSpec) -> &mut GivenSpec {
        model.given.as_mut().expect("something")
    }
    fn attends(model: &mut ModelSpec, layer: usize) -> &mut AttentionSpec {
        let Op::Attention(it) = &mut model.layers[layer].branches[0].op else { panic!("it does") };
        it
    }
    fn with_given(model: &mut ModelSpec) -> &mut WithGivenSpec {
        let Op::WithGiven(it) = &mut model.layers[1].branches[2].op else { panic!("it has one") };
        it
    }
    type Change = fn(&mut ModelSpec);
    let cases: [(Change, &str); 17] = [
        (|it| it.given = None, "layer 0: numbers that a layer is given is 8, expected 0"),
        (|it| given(it).width = 0, "numbers that a layer is given is 0"),
        (|it| given(it).width = 7, "norm of what layers are given is 8, expected 7"),
        (|it| given(it).rows = 0, "table of what layers are given is 0"),
        (|it| given(it).table = "".into(), "table of what layers are given \"\""),
        (|it| given(it).projection = "".into(), "projection to what layers are given"),
        (|it| given(it).multiplier = 1e20, "multiplier of what layers are given"),
        (|it| given(it).norm.eps = 0.0, "eps is 0"),
        (|it| with_given(it).width = 9, "layer 1: numbers that a layer is given is 9, expected 8"),
        (|it| with_given(it).hidden_size = 7, "hidden_size of what a layer is given is 7"),
        (|it| with_given(it).gate = "".into(), "gate of what a layer is given"),
        (|it| with_given(it).activation = Activation::Xielu, "activation"),
        (|it| attends(it, 4).keys_of = Some(4), "layer 4: keys of layer 4"),
        (|it| attends(it, 4).keys_of = Some(9), "layer 4: keys of layer 9"),
        (|it| attends(it, 4).keys_of = Some(2), "layer 4: keys of layer 2"), // Wider heads.
        (|it| attends(it, 6).keys_of = Some(4), "layer 6: keys of layer 4"), // It has none.
        (|it| attends(it, 4).qkv = Joined::Fused("qkv".into()), "layer 4: keys of layer 3"),
    ];
    for (change, words) in cases {
        let error = sent(&change).unwrap_err();
        assert!(error.contains(words), "{words}: {error}");
    }
}
