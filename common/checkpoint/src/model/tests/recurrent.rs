//! Recurrent operations: their tensors, what is kept of a sequence, and what families make of their configurations.

use super::*;
use crate::model::{DeltaInputs, DeltaSpec, Kept, LayerSpec, MambaSpec};

fn delta(layer: &LayerSpec) -> Option<&DeltaSpec> {
    layer.ops().find_map(|op| if let Op::Delta(it) = op { Some(it) } else { None })
}

fn mamba(layer: &LayerSpec) -> Option<&MambaSpec> {
    layer.ops().find_map(|op| if let Op::Mamba(it) = op { Some(it) } else { None })
}

fn shape_of(model: &ModelSpec, layer: usize, leaf: &str) -> Option<Vec<u64>> {
    model.layers[layer].tensors().into_iter().find(|it| it.leaf() == leaf).map(|it| it.shape)
}

#[test]
fn a_state_has_one_size_and_layers_with_one_keep_nothing_of_positions() {
    // The rows before the next one that convolutions meet, and the matrices of all heads.
    for (name, layer, state) in [
        ("lfm2", 0, 2 * 64),
        ("qwen3_5", 0, 3 * 112 + 4 * 12 * 16),
        ("qwen3-next", 0, 3 * 112 + 4 * 16 * 12),
        ("granite-hybrid", 0, 3 * 144 + 7 * 16 * 16),
        ("nemotron-h", 0, 3 * 192 + 8 * 16 * 16),
        ("kimi-linear", 0, 3 * 3 * 48 + 4 * 12 * 12),
    ] {
        let kept = golden(name).layers[layer].kept();
        assert_eq!(kept, Kept { state, ..Kept::default() }, "{name}");
    }
    let both = golden("falcon-h1").layers[0].kept();
    assert_eq!(both, Kept { keys: 32, values: 32, groups: 4, state: 3 * 128 + 6 * 16 * 16 });
    // As large as published models say: 9B, and 27B.
    let wide = with(
        configuration("qwen3_5"),
        json!({"linear_num_key_heads": 16, "linear_num_value_heads": 48,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128}),
    );
    let state = parse(&wide).unwrap().layers[0].kept().state;
    assert_eq!(state * 4, 3_145_728 + 30_720 * 4);
}

#[test]
fn layers_are_what_their_list_says() {
    let attends = |model: &ModelSpec| -> Vec<bool> {
        model.layers.iter().map(|layer| layer.kept().keys > 0).collect()
    };
    assert_eq!(attends(&golden("lfm2")), [false, false, true, false, true, false, false]);
    assert_eq!(attends(&golden("kimi-linear")), [false, false, true, false, false, true]);
    let listed = golden("qwen3_5");
    let every_fourth = parse(&without(configuration("qwen3_5"), "layer_types")).unwrap();
    assert_eq!(attends(&listed), attends(&every_fourth));
    let nemotron = golden("nemotron-h");
    let kinds = nemotron.layers.iter().map(|layer| match &layer.branches[0].op {
        Op::Mamba(_) => 'M',
        Op::Attention(_) => '*',
        Op::Sum(_) => 'E',
        Op::Mlp(_) => '-',
        other => panic!("{other:?}"),
    });
    assert_eq!(kinds.collect::<String>(), "MEM*E-*-");
    let words = json!(["mamba", "moe", "mamba", "attention", "moe", "mlp", "attention", "mlp"]);
    let base = without(configuration("nemotron-h"), "hybrid_override_pattern");
    let base = without(base, "num_hidden_layers");
    assert_eq!(parse(&with(base, json!({"layers_block_type": words}))).unwrap(), nemotron);
}

/// Of the size of Nemotron 3 Super.
#[test]
fn experts_may_see_fewer_numbers_than_their_router() {
    let config = with(
        without(configuration("nemotron-h-latent"), "num_hidden_layers"),
        json!({"hybrid_override_pattern": "MEMEMEMEM*E".repeat(8), "mtp_hybrid_override_pattern": "*E",
            "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
            "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
            "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 2688,
            "moe_latent_size": 1024, "moe_shared_expert_intermediate_size": 5376}),
    );
    let model = parse(&config).unwrap();
    assert_eq!(model.layers.len(), 88);
    for (module, shape) in [
        ("gate", [512, 4096]),
        ("fc1_latent_proj", [1024, 4096]),
        ("fc2_latent_proj", [4096, 1024]),
        ("experts.511.up_proj", [2688, 1024]),
        ("experts.511.down_proj", [1024, 2688]),
        ("shared_experts.up_proj", [5376, 4096]),
    ] {
        let leaf = format!("mixer.{module}.weight");
        assert_eq!(shape_of(&model, 1, &leaf), Some(shape.to_vec()), "{leaf}");
    }
    // Of each token, both projections, and 22 of 512 experts.
    let bytes =
        |path: &str| u64::from(path.ends_with("_latent_proj") || path.contains(".experts."));
    assert_eq!(model.layers[1].active_bytes(bytes), 2 + 2 * 22);
}

#[test]
fn convolutions_have_the_shape_of_who_wrote_them() {
    let weight = "linear_attn.conv1d.weight";
    assert_eq!(shape_of(&golden("qwen3_5"), 0, weight), Some(vec![112, 1, 4]));
    assert_eq!(shape_of(&golden("qwen3_5-mlx4"), 0, weight).unwrap()[1..], [4, 1]);
    let norm = |name| golden(name).layers[0].branches[0].pre.clone().unwrap();
    assert_eq!((norm("qwen3_5").offset, norm("qwen3_5-mlx4").offset), (1.0, 0.0));
    let of_delta = |name: &str| delta(&golden(name).layers[0]).unwrap().norm.offset;
    assert_eq!((of_delta("qwen3_5"), of_delta("qwen3_5-mlx4")), (0.0, 0.0));
}

#[test]
fn heads_of_a_narrower_layer_stay_in_their_groups() {
    for name in ["qwen3_5", "qwen3-next", "kimi-linear"] {
        let model = golden(name);
        let narrow = model.layers[0].narrowed(0.5, 16);
        let (whole, half) = (delta(&model.layers[0]).unwrap(), delta(&narrow).unwrap());
        assert_eq!(half.key_heads * 2, whole.key_heads, "{name}");
        assert_eq!(half.group(), whole.group(), "{name}");
        let model = ModelSpec { layers: vec![narrow], ..model };
        assert_eq!(ModelSpec::from_wire(&model.to_wire()).unwrap(), as_sent(model), "{name}");
    }
    let model = golden("nemotron-h");
    let narrow = model.layers[0].narrowed(0.5, 16);
    assert_eq!(mamba(&narrow).map(|it| (it.heads, it.groups)), Some((4, 2)));
    let model = ModelSpec { layers: vec![narrow], ..model };
    assert_eq!(ModelSpec::from_wire(&model.to_wire()).unwrap(), as_sent(model));
}

#[test]
fn multipliers_that_meet_are_one() {
    let model = golden("falcon-h1");
    let part = |index: usize| match &model.layers[0].branches[0].op {
        Op::Sum(parts) => match &parts[index] {
            Op::Normed(it) => it.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    assert_eq!((part(0).multiplier, part(1).multiplier), (Some(0.8), Some(0.9 * 1.1)));
    let Op::Attention(attention) = part(1).op else { panic!("the second one attends") };
    assert!((attention.scale - 0.25 * 1.1 * 1.1 * 0.7).abs() < 1e-12);
    let expected = [0.9, 0.8, 1.2, 1.1, 0.7].map(|it: f64| (it * 1.2) as f32);
    assert_eq!(mamba(&model.layers[0]).unwrap().multipliers, Some(expected));
}

#[test]
fn what_specifications_of_recurrent_layers_may_not_say_is_refused() {
    type Change = fn(&mut DeltaSpec);
    let changes: [(Change, &str); 7] = [
        (|it| it.gate = Activation::Xielu, "activation"),
        (|it| it.value_heads = 5, "5"),
        (|it| it.key_dim = 0, "numbers of a key"),
        (|it| it.convolutions.clear(), "number of convolutions"),
        (|it| it.convolutions[0].taps = 1, "taps of a convolution"),
        (|it| it.convolutions[0].channels = 7, "channels of a convolution"),
        (|it| it.norm.width = 3, "width of the norm"),
    ];
    for (change, words) in changes {
        let mut model = golden("qwen3_5");
        match &mut model.layers[0].branches[0].op {
            Op::Delta(it) => change(it),
            other => panic!("{other:?}"),
        }
        let error = ModelSpec::from_wire(&model.to_wire()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let mut model = golden("granite-hybrid");
    match &mut model.layers[0].branches[0].op {
        Op::Mamba(it) => it.groups = 2,
        other => panic!("{other:?}"),
    }
    assert!(ModelSpec::from_wire(&model.to_wire()).is_err(), "seven heads in two groups");
    let mut model = golden("granite-hybrid");
    match &mut model.layers[0].branches[0].op {
        Op::Mamba(it) => it.norm_groups = 7,
        other => panic!("{other:?}"),
    }
    assert!(ModelSpec::from_wire(&model.to_wire()).is_err(), "parts of a group");
    let mut model = golden("granite-hybrid");
    match &mut model.layers[0].branches[0].op {
        Op::Mamba(it) => it.norm.as_mut().unwrap().bias = true,
        other => panic!("{other:?}"),
    }
    let error = ModelSpec::from_wire(&model.to_wire()).unwrap_err().to_string();
    assert!(error.contains("norm of a state space has a bias"), "{error}");
}

#[test]
fn the_inputs_of_a_delta_rule_are_told_apart() {
    let inputs = |name: &str| delta(&golden(name).layers[0]).unwrap().inputs.clone();
    assert!(matches!(inputs("qwen3_5"), DeltaInputs::Joined { .. }));
    assert!(matches!(inputs("qwen3-next"), DeltaInputs::ByHead { .. }));
    assert!(matches!(inputs("kimi-linear"), DeltaInputs::Separate { .. }));
}

/// Keys that published configurations have and nobody asks for, or that mean the same as others.
#[test]
fn published_configurations_are_read() {
    for (name, more) in [
        (
            "falcon-h1",
            json!({"mamba_use_mlp": true, "mlp_expansion_factor": 8, "time_step_limit": [0.0, "Infinity"]}),
        ),
        (
            "granite-hybrid",
            json!({"init_method": "mup", "time_step_limit": [0.0, {"__float__": "Infinity"}],
            "time_step_min": 0.001, "time_step_max": 0.1}),
        ),
        (
            "nemotron-h",
            json!({"rms_norm_eps": 1e-5, "attention_head_dim": 16, "mtp_layers_block_type": ["attention", "moe"]}),
        ),
        ("kimi-linear", json!({"topk_method": "noaux_tc", "head_dim": 72})),
        ("lfm2-moe", json!({"block_auto_adjust_ff_dim": true, "block_multiple_of": 256})),
    ] {
        assert_eq!(parse(&with(configuration(name), more)).unwrap(), golden(name), "{name}");
    }
    let older = without(configuration("nemotron-h"), "head_dim");
    assert_eq!(
        parse(&with(older.clone(), json!({"attention_head_dim": 16}))).unwrap(),
        golden("nemotron-h")
    );
    assert_eq!(attention(&parse(&older).unwrap(), 3).head_dim, 128);
    let dense = with(
        configuration("granite-hybrid"),
        json!({"num_local_experts": 0,
        "layer_types": ["attention", "attention", "attention", "attention", "attention", "attention"],
        "time_step_limit": [0.0, 1e30]}),
    );
    assert!(parse(&dense).unwrap().layers.iter().all(|layer| layer.kept().state == 0));
}

/// MLX calls the networks of the first layers as it does experts (`lfm2_moe.py` in mlx-lm).
#[test]
fn mlx_has_names_of_its_own() {
    let quantization = json!({"quantization": {"group_size": 64, "bits": 4}});
    let model = parse(&with(configuration("lfm2-moe"), quantization)).unwrap();
    let leaves: Vec<String> = model.layers[0].tensors().iter().map(|it| it.leaf()).collect();
    assert!(leaves.contains(&"feed_forward.gate_proj.weight".to_owned()), "{leaves:?}");
    let experts: Vec<String> = model.layers[2].tensors().iter().map(|it| it.leaf()).collect();
    assert!(experts.contains(&"feed_forward.experts.0.w1.weight".to_owned()), "{experts:?}");
}

refuses! {
    refuses_bounds_of_steps: with(configuration("granite-hybrid"), json!({"time_step_limit": [0.001, 0.1]})),
        E::Unsupported { .. }, "time_step_limit";
    refuses_a_kind_of_layer_that_it_does_not_know:
        with(configuration("lfm2-moe"), json!({"layer_types": ["conv", "conv", "mamba", "conv", "conv", "conv"]})),
        E::UnsupportedLayerType { layer: 2, .. }, "mamba";
    refuses_fewer_kinds_than_layers:
        with(configuration("qwen3_5"), json!({"layer_types": ["linear_attention"]})),
        E::LayerTypesLength { expected: 8, found: 1 }, "8";
    refuses_a_layer_in_both_lists:
        with(configuration("kimi-linear"), json!({"linear_attn_config":
            {"head_dim": 12, "num_heads": 4, "full_attn_layers": [3, 6], "kda_layers": [1, 2, 3, 4, 5]}})),
        E::Unsupported { .. }, "layer 3";
    refuses_another_gate_of_a_delta_rule:
        with(configuration("kimi-linear"), json!({"linear_attn_config":
            {"head_dim": 12, "num_heads": 4, "full_attn_layers": [3, 6], "kda_layers": [1, 2, 4, 5],
             "gate_lower_bound": -5.0}})),
        E::Unsupported { .. }, "gate_lower_bound";
    refuses_experts_wider_than_hidden_states:
        with(configuration("nemotron-h"), json!({"moe_latent_size": 65})),
        E::OutOfRange { .. }, "moe_latent_size";
    refuses_biases_of_experts_that_have_none: with(configuration("nemotron-h"), json!({"mlp_bias": true})),
        E::Unsupported { .. }, "mlp_bias";
    refuses_a_window: with(configuration("nemotron-h"), json!({"sliding_window": 128})),
        E::Unsupported { .. }, "sliding_window";
    refuses_a_character_that_is_no_layer:
        with(configuration("nemotron-h"), json!({"hybrid_override_pattern": "MEM*E-*X"})),
        E::UnsupportedLayerType { layer: 7, .. }, "X";
    refuses_what_is_multiplied_after_something_was_added:
        with(configuration("falcon-h1"), json!({"mamba_proj_bias": true})),
        E::Unsupported { .. }, "mamba_proj_bias";
    refuses_heads_that_are_not_as_wide_as_is_said:
        with(configuration("granite-hybrid"), json!({"mamba_n_heads": 6})),
        E::Unsupported { .. }, "mamba_n_heads";
}
