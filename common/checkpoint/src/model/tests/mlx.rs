//! What families' files are under MLX, which has some in another form.

use super::*;

/// The golden model's configuration as files packed by MLX have it.
fn packed(name: &str) -> Value {
    with(configuration(name), json!({"quantization": {"group_size": 32, "bits": 4}}))
}

fn names(model: &ModelSpec, layer: usize) -> Vec<String> {
    model.layers[layer].tensors().iter().map(|tensor| tensor.leaf()).collect()
}

#[test]
fn falcons_multipliers_are_in_the_weights_but_for_those_of_keys_and_values() {
    let factors = |model: &ModelSpec| {
        let layer = &model.layers[0];
        let Op::Sum(both) = &layer.branches[0].op else { panic!("no sum") };
        let normed = |op: &Op| if let Op::Normed(it) = op { it.multiplier } else { None };
        let attention = layer.ops().find_map(|op| match op {
            Op::Attention(it) => Some(it.clone()),
            _ => None,
        });
        (
            both.iter().map(normed).collect::<Vec<_>>(),
            attention.expect("attention").scale,
            [model.embedding_multiplier, model.logits.multiplier, layer.branches[1].multiplier],
        )
    };
    let plain = factors(&parse(&configuration("falcon-h1")).unwrap());
    let expected = (vec![Some(0.8), Some((0.9_f64 * 1.1) as f32)], 0.25 * 1.1 * 1.1 * 0.7);
    assert_eq!((plain.0, plain.2), (expected.0, [2.0, 0.5, 0.6]));
    assert!((plain.1 - expected.1).abs() < 1e-12, "{}", plain.1);
    let mlx = factors(&parse(&packed("falcon-h1")).unwrap());
    assert_eq!((mlx.0, mlx.2), (vec![Some(1.0), Some(1.1)], [1.0; 3]));
    assert!((mlx.1 - 0.25 * 0.7).abs() < 1e-12, "{}", mlx.1);
    // A head that is the embedding has what that was multiplied with.
    let tied = with(packed("falcon-h1"), json!({"tie_word_embeddings": true}));
    assert_eq!(factors(&parse(&tied).unwrap()).2, [1.0, 0.25, 1.0]);
}

#[test]
fn what_corrects_ernies_scores_is_not_in_its_files() {
    let of = |config: &Value| names(&parse(config).unwrap(), 2);
    let correction = "mlp.moe_statics.e_score_correction_bias".to_owned();
    assert!(of(&configuration("ernie4-5-moe")).contains(&correction));
    let mlx = of(&packed("ernie4-5-moe"));
    assert!(mlx.contains(&"mlp.gate.weight".to_owned()) && !mlx.contains(&correction), "{mlx:?}");
}

#[test]
fn a_module_that_has_all_experts_may_be_packed_another_way_under_any_of_its_names() {
    let module = |of: &str| format!("model.layers.1.feed_forward.experts.{of}");
    for (whole, one) in [("down_proj", "0.down_proj"), ("gate_proj", "2.gate_proj")] {
        let mut config = packed("llama4");
        config["quantization"][module(whole)] = json!({"group_size": 64, "bits": 8});
        let model = parse(&config).unwrap();
        let affine = |bits, group| Encoding::Affine(Affine::new(bits, group).unwrap());
        let said = model.module_format(&module(one));
        assert_eq!(said, Some(ModuleFormat::Packed(affine(8, 64))), "{whole}");
        let other = model.module_format(&module("0.up_proj"));
        assert_eq!(other, Some(ModuleFormat::IfPacked(affine(4, 32))), "{whole}");
    }
}

#[test]
fn layers_have_mlxs_names() {
    for (name, layer, hub, mlx) in [
        ("kimi-linear", 1, "block_sparse_moe.gate.weight", "mlp.gate.weight"),
        ("kimi-linear", 0, "self_attn.q_conv1d.weight", "self_attn.q_conv.conv.weight"),
        ("laguna", 1, "mlp.gate.weight", "mlp.gate.proj.weight"),
        ("exaone-moe", 1, "mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias"),
        ("gemma4-moe", 1, "experts.0.gate_up_proj.weight", "experts.0.up_proj.weight"),
    ] {
        let has = |config: &Value| {
            let names = names(&parse(config).unwrap(), layer);
            [hub, mlx].map(|it| names.contains(&it.to_owned()))
        };
        assert_eq!(has(&configuration(name)), [true, false], "{name}");
        assert_eq!(has(&packed(name)), [false, true], "{name}");
    }
}
