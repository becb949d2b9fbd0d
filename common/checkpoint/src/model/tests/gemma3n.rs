//! Gemma 3n: streams of hidden states, bounded gates, networks of several widths.

use super::*;
use crate::model::{Branch, GateUp, LayerSpec, LayerStreamsSpec, LowRankSpec};

fn changed(changes: Value) -> Result<ModelSpec, ConfigError> {
    parse(&with(configuration("gemma3n"), changes))
}

fn mlp_of(model: &ModelSpec, layer: usize) -> &MlpSpec {
    let Op::Mlp(it) = &model.layers[layer].branches[1].op else { panic!("it has a network") };
    it
}

#[test]
fn a_row_carries_all_streams_and_what_layers_are_given() {
    let model = golden("gemma3n");
    assert_eq!((model.hidden_size, model.stream_count(), model.hidden_width()), (64, 4, 256));
    let widths: Vec<usize> = (0..=7).map(|layer| model.row_width(layer)).collect();
    assert_eq!(widths, [312, 304, 296, 288, 280, 272, 264, 256]);
    let begins: Vec<usize> = (0..7).filter(|layer| model.may_begin(*layer)).collect();
    assert_eq!(begins, [0, 1]);
    let keys_of: Vec<_> = model.layers.iter().map(LayerSpec::keys_of).collect();
    assert_eq!(keys_of, [None, None, None, None, Some(1), Some(1), Some(3)]);
    let outer: Vec<_> = model.outer_tensors().into_iter().map(|(name, ..)| name).collect();
    for name in [
        "model.altup_projections.0.weight",
        "model.altup_unembed_projections.2.weight",
        "model.embed_tokens_per_layer.weight",
    ] {
        assert!(outer.contains(&name.to_owned()), "{outer:?}");
    }
}

#[test]
fn a_layer_computes_with_the_active_stream_and_gives_the_others_what_it_was_given() {
    let model = golden("gemma3n");
    let layer = &model.layers[0];
    let streams = layer.streams.as_ref().expect("several");
    assert_eq!((streams.count, streams.active, streams.router_multiplier), (4, 0, 1.0 / 64.0));
    assert!(matches!(
        &layer.others,
        Some(Branch { pre: None, op: Op::WithGiven(_), post: Some(_), .. })
    ));
    let half = Some(0.5f32.sqrt());
    assert_eq!((Some(layer.branches[0].multiplier), layer.branches[0].residual), (half, half));
    let Op::Sum(parts) = &layer.branches[0].op else { panic!("a sum") };
    assert!(matches!(&parts[..], [Op::Normed(_), Op::LowRank(LowRankSpec { rank: 8, .. })]));
    let leaves: Vec<String> = layer.tensors().iter().map(|tensor| tensor.leaf()).collect();
    for leaf in [
        "altup.correct_output_scale",
        "altup.prediction_coefs.weight",
        "laurel.linear_left.weight",
        "per_layer_projection.weight",
        "post_per_layer_input_norm.weight",
    ] {
        assert!(leaves.contains(&leaf.to_owned()), "{leaves:?}");
    }
}

#[test]
fn gates_have_bounds_and_networks_widths_where_lists_say_so() {
    let model = golden("gemma3n");
    let bounds = |model: &ModelSpec| -> Vec<bool> {
        (0..7).map(|layer| mlp_of(model, layer).gate_cutoff.is_some()).collect()
    };
    assert_eq!(bounds(&model), [true, true, false, false, false, false, false]);
    let cutoff = mlp_of(&model, 0).gate_cutoff.unwrap();
    assert!((cutoff - 1.644_853_6).abs() < 1e-6, "{cutoff}");
    let silent = parse(&without(configuration("gemma3n"), "activation_sparsity_pattern")).unwrap();
    assert_eq!(bounds(&silent), [false; 7], "it has too few layers");
    let one = changed(json!({"intermediate_size": 96})).unwrap();
    assert!((0..7).all(|layer| mlp_of(&one, layer).inner_size == 96));
    let several = changed(json!({"intermediate_size": [1, 2, 3, 4, 5, 6, 7]})).unwrap();
    assert!((0..7).all(|layer| mlp_of(&several, layer).inner_size == layer + 1));
}

#[test]
fn beside_what_sees_and_hears_the_text_model_runs_under_the_names_that_it_has_there() {
    let text = configuration("gemma3n");
    let outside = json!({"architectures": ["Gemma3nForConditionalGeneration"],
        "model_type": "gemma3n", "text_config": text, "vision_config": {}, "audio_config": {},
        "audio_token_id": 1, "vision_soft_tokens_per_image": 256});
    let model = parse(&outside).unwrap();
    assert_eq!(model.layers, golden("gemma3n").layers);
    assert!(model.tie_word_embeddings);
    let streams = model.streams.as_ref().unwrap();
    assert_eq!(streams.begin[0], "model.language_model.altup_projections.0");
    assert_eq!(streams.end[2], "model.language_model.altup_unembed_projections.2");
    assert!(model.other_prefixes.iter().any(|prefix| prefix == "model.audio_tower."));
}

#[test]
fn what_is_not_supported_is_refused_by_its_name() {
    for (changes, field) in [
        (json!({"hidden_size_per_layer_input": 0}), "hidden_size_per_layer_input"),
        (json!({"altup_correct_scale": false}), "altup_correct_scale"),
        (json!({"altup_num_inputs": 1}), "altup_num_inputs"),
        (json!({"altup_num_inputs": 17}), "altup_num_inputs"),
        (json!({"altup_active_idx": 4}), "altup_active_idx"),
        (json!({"laurel_rank": 0}), "laurel_rank"),
        (json!({"intermediate_size": [64, 64]}), "intermediate_size"),
        (json!({"intermediate_size": [64, 64, 64, 64, 64, 64, 0]}), "intermediate_size"),
        (json!({"intermediate_size": null}), "intermediate_size"),
        (json!({"activation_sparsity_pattern": 0.95}), "activation_sparsity_pattern"),
        (json!({"activation_sparsity_pattern": [0.95]}), "activation_sparsity_pattern"),
        (json!({"activation_sparsity_pattern": [1, 0, 0, 0, 0, 0, 0]}), "activation_sparsity"),
        (json!({"num_kv_shared_layers": null}), "num_kv_shared_layers"), // Fifteen of seven.
        (json!({"hidden_activation": "silu"}), "hidden_activation"),
        (json!({"laurel_norm": true}), "laurel_norm"),
    ] {
        let error = changed(changes.clone()).expect_err(&changes.to_string()).to_string();
        assert!(error.contains(field), "{error}");
    }
}

/// As it comes from a peer.
#[test]
fn what_specifications_may_not_say_of_streams_is_refused() {
    fn streams(model: &mut ModelSpec) -> &mut LayerStreamsSpec {
        model.layers[1].streams.as_mut().expect("several")
    }
    fn others(model: &mut ModelSpec) -> &mut Branch {
        model.layers[1].others.as_mut().expect("for the others")
    }
    fn low_rank(model: &mut ModelSpec) -> &mut LowRankSpec {
        let Op::Sum(parts) = &mut model.layers[1].branches[0].op else { panic!("a sum") };
        let Op::LowRank(it) = &mut parts[1] else { panic!("a residual") };
        it
    }
    type Change = fn(&mut ModelSpec);
    let cases: [(Change, &str); 22] = [
        (|it| it.streams = None, "layer 0: streams of the layer is 4, expected 1"),
        (|it| it.layers[2].streams = None, "layer 2: what is added to other streams"),
        (
            |it| (it.layers[2].streams, it.layers[2].others) = (None, None),
            "layer 2: streams of the layer is 1, expected 4",
        ),
        (|it| it.streams.as_mut().unwrap().begin.clear(), "streams of hidden states is 1"),
        (|it| drop(it.streams.as_mut().unwrap().end.pop()), "ends of streams is 2, expected 3"),
        (|it| it.streams.as_mut().unwrap().end[1] = "".into(), "module of a stream"),
        (
            |it| it.streams.as_mut().unwrap().begin = vec!["a".into(); 16],
            "streams of hidden states is 17",
        ),
        (|it| streams(it).count = 5, "layer 1: streams of the layer is 5, expected 4"),
        (|it| streams(it).active = 4, "active stream is 4"),
        (|it| streams(it).norm.width = 63, "norm of streams is 63"),
        (|it| streams(it).router_multiplier = 1e20, "router of streams"),
        (|it| streams(it).prediction = "".into(), "module of streams"),
        (|it| streams(it).scale = "".into(), "scale of a stream"),
        (|it| others(it).residual = Some(1.0), "added to other streams"),
        (|it| it.layers[1].others = None, "layer 1: what is added to other streams is not there"),
        (|it| others(it).op = Op::Sum(Vec::new()), "added to other streams"),
        (|it| low_rank(it).rank = 0, "numbers of a residual is 0"),
        (|it| low_rank(it).hidden_size = 63, "hidden_size of a residual is 63"),
        (|it| low_rank(it).second = "".into(), "module of a residual"),
        (|it| low_rank(it).norm.width = 63, "norm of a residual is 63"),
        (|it| it.layers[1].branches[0].residual = Some(1e20), "multiplier of hidden states"),
        (
            |it| {
                let Op::Mlp(mlp) = &mut it.layers[1].branches[1].op else { panic!("a network") };
                mlp.gate_up = GateUp::Plain("up".into());
            },
            "gates are bounded where there are none",
        ),
    ];
    for (change, words) in cases {
        let mut model = golden("gemma3n");
        change(&mut model);
        let error = ModelSpec::from_wire(&model.to_wire()).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
    let mut model = golden("llama");
    model.layers[0].others = Some(model.layers[0].branches[0].clone());
    let error = ModelSpec::from_wire(&model.to_wire()).unwrap_err().to_string();
    assert!(error.contains("added to other streams"), "{error}");
    let mut model = golden("gemma3n");
    let Op::Mlp(mlp) = &mut model.layers[0].branches[1].op else { panic!("a network") };
    mlp.gate_cutoff = Some(f32::MAX);
    let error = ModelSpec::from_wire(&model.to_wire()).unwrap_err().to_string();
    assert!(error.contains("bound of gates"), "{error}");
}

#[test]
fn fields_that_published_files_have_and_the_reference_does_not_read_change_nothing() {
    let published =
        json!({"altup_lr_multiplier": 1.0, "query_pre_attn_scalar": 256, "altup_coef_clip": 120.0});
    assert_eq!(changed(published).unwrap(), golden("gemma3n"));
}
