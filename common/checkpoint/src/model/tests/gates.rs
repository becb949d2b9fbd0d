//! Gates of heads, and activations with numbers of their own.

use super::*;
use crate::model::{OutputGate, SpecError, same_vector};

#[test]
fn each_layer_of_laguna_has_its_heads_and_their_gates() {
    let model = golden("laguna");
    for layer in 0..6 {
        let found = attention(&model, layer);
        let heads = if layer % 3 == 0 { 4 } else { 6 };
        assert_eq!((found.heads, found.window), (heads, (heads == 6).then_some(8)));
        let gate = found.gate().unwrap();
        assert_eq!((&*gate.path, gate.stored_rows), ("self_attn.g_proj", heads));
        assert_eq!(found.rotation, Some(usize::from(heads == 6)));
    }
    assert_eq!((model.rotations[0].dim, model.rotations[1].dim), (8, 16));
    let each = with(configuration("laguna"), json!({"gating": "per-element"}));
    let each = parse(&each).unwrap();
    assert_eq!(attention(&each, 1).gate().unwrap().stored_rows, 6 * 16);
    let narrow = model.layers[1].narrowed(0.5, 16);
    let narrow = ModelSpec { layers: vec![narrow], ..model };
    assert_eq!(attention(&narrow, 0).gate().unwrap().stored_rows, 3);
    let alike = without(configuration("laguna"), "num_attention_heads_per_layer");
    assert!((0..6).all(|layer| attention(&parse(&alike).unwrap(), layer).heads == 4));
}

#[test]
fn gates_of_queries_are_no_layer_of_their_own() {
    let found = golden("qwen3_5");
    let found = attention(&found, 3);
    assert_eq!(found.output_gate, Some(OutputGate::WithQueries));
    assert!(found.gate().is_none() && found.qkv()[0].stored_rows == 2 * 4 * 16);
}

#[test]
fn an_activation_has_its_numbers_and_others_have_none() {
    let model = golden("apertus");
    let names = mlp(&model).activation_numbers().unwrap().map(|it| it.leaf());
    let expected = ["alpha_p", "alpha_n", "beta", "eps"].map(|it| format!("mlp.act_fn.{it}"));
    assert_eq!(names, expected);
    let changed = |change: fn(&mut MlpSpec)| {
        let mut model = golden("apertus");
        match &mut model.layers[2].branches[1].op {
            Op::Mlp(mlp) => change(mlp),
            other => panic!("{other:?}"),
        }
        ModelSpec::from_wire(&model.to_wire())
    };
    assert!(changed(|_| {}).is_ok());
    for change in [(|it| it.activation_numbers = None) as fn(&mut MlpSpec), |it| {
        it.activation = Activation::Silu
    }] {
        assert!(matches!(changed(change), Err(SpecError::Layer { layer: 2, .. })));
    }
    // One number has no axis, or some of 1.
    assert!(same_vector(&[], &[1]) && same_vector(&[1, 1], &[1]) && same_vector(&[1, 3, 1], &[3]));
    assert!(!same_vector(&[2], &[1]) && !same_vector(&[1], &[2]) && !same_vector(&[2, 3], &[6]));
}

refuses! {
    refuses_a_gate_that_it_does_not_know: with(configuration("laguna"), json!({"gating": false})),
        E::Unsupported { .. }, "gating";
    refuses_heads_for_other_layers:
        with(configuration("laguna"), json!({"num_attention_heads_per_layer": [4, 6]})),
        E::Unsupported { .. }, "num_attention_heads_per_layer";
    refuses_heads_that_do_not_share_keys:
        with(configuration("laguna"), json!({"num_attention_heads_per_layer": [4, 6, 6, 5, 6, 6]})),
        E::HeadsNotDivisible { heads: 5, kv_heads: 2 }, "5";
    refuses_bounds_of_a_routers_products:
        with(configuration("laguna"), json!({"moe_router_logit_softcapping": 30.0})),
        E::Unsupported { .. }, "moe_router_logit_softcapping";
    refuses_weights_before_experts:
        with(configuration("laguna"), json!({"moe_apply_router_weight_on_input": true})),
        E::Unsupported { .. }, "moe_apply_router_weight_on_input";
    refuses_another_activation_of_apertus: with(configuration("apertus"), json!({"hidden_act": "silu"})),
        E::Unsupported { .. }, "hidden_act";
}
