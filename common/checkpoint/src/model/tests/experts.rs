//! Mixtures of experts: which layers have them, what their tensors are, and what a token reads of them.

use super::*;
use crate::model::{ExpertsSpec, LayerSpec, RouterGroups, RouterScores};

/// A small Qwen3 with experts.
fn qwen3_moe(changes: Value) -> Value {
    let experts = json!({
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
        "norm_topk_prob": true, "head_dim": 16,
    });
    with(with(family("Qwen3MoeForCausalLM", "qwen3_moe"), experts), changes)
}

fn experts(layer: &LayerSpec) -> Option<&ExpertsSpec> {
    layer.ops().find_map(|op| if let Op::Experts(it) = op { Some(it) } else { None })
}

/// Which layers have experts.
fn sparse(changes: Value) -> Vec<bool> {
    let model = parse(&qwen3_moe(changes)).unwrap();
    model.layers.iter().map(|layer| experts(layer).is_some()).collect()
}

#[test]
fn layers_have_experts_but_for_those_that_the_configuration_names() {
    let first = parse(&qwen3_moe(json!({}))).unwrap();
    let found = experts(&first.layers[0]).unwrap();
    assert_eq!((found.count, found.chosen, found.expert.inner_size), (8, 2, 48));
    assert_eq!(found.router.renormalise, Some(0.0));
    assert_eq!(sparse(json!({})), [true, true, true]);
    assert_eq!(sparse(json!({"mlp_only_layers": [1]})), [true, false, true]);
    assert_eq!(sparse(json!({"decoder_sparse_step": 2})), [false, true, false]);
    let spelt = with(without(qwen3_moe(json!({})), "num_experts"), json!({"num_local_experts": 8}));
    assert_eq!(parse(&spelt).unwrap(), first, "version 5 of the reference spells it so");
    assert_eq!(parse(&qwen3_moe(json!({"num_local_experts": 8}))).unwrap(), first, "in both");
    let error = parse(&qwen3_moe(json!({"num_local_experts": 4}))).unwrap_err().to_string();
    assert!(error.starts_with("num_local_experts"), "{error}");
    let golden = golden("qwen3-moe");
    assert!(golden.layers.iter().all(|layer| experts(layer).is_some()));
}

#[test]
fn weights_are_not_divided_by_their_sum_unless_that_is_said() {
    let silent = parse(&without(qwen3_moe(json!({})), "norm_topk_prob")).unwrap();
    assert_eq!(experts(&silent.layers[0]).unwrap().router.renormalise, None);
}

#[test]
fn what_cannot_be_a_mixture_is_refused_by_the_name_of_the_field() {
    for (changes, field) in [
        (json!({"num_experts_per_tok": 9}), "num_experts_per_tok"),
        (json!({"num_experts_per_tok": 0}), "num_experts_per_tok"),
        (json!({"num_experts": 0}), "num_experts"),
        (json!({"num_experts": crate::model::limit::EXPERTS / 3 + 1}), "num_experts"),
        (json!({"moe_intermediate_size": null}), "moe_intermediate_size"),
        (json!({"mlp_only_layers": [-1]}), "mlp_only_layers"),
        (json!({"mlp_only_layers": 1}), "mlp_only_layers"),
        (json!({"decoder_sparse_step": 0}), "decoder_sparse_step"),
        (json!({"use_sliding_window": true}), "use_sliding_window"),
        (json!({"n_group": 4}), "n_group"),
        (json!({"shared_expert_intermediate_size": 64}), "shared_expert_intermediate_size"),
    ] {
        let error = parse(&qwen3_moe(changes)).expect_err(field).to_string();
        assert!(error.contains(field), "{error}");
    }
    let dense = refused(json!({"num_experts": 8})).to_string();
    assert!(dense.contains("num_experts"), "a family without experts: {dense}");
}

#[test]
fn a_mixture_has_a_router_and_three_matrices_of_each_expert() {
    let layer = &parse(&qwen3_moe(json!({}))).unwrap().layers[0];
    let leaves: Vec<String> = layer.tensors().iter().map(|it| it.leaf()).collect();
    assert_eq!(leaves.len(), 8 + 1 + 8 * 3, "attention and norms, router, experts");
    for leaf in
        ["mlp.gate.weight", "mlp.experts.0.gate_proj.weight", "mlp.experts.7.down_proj.weight"]
    {
        assert_eq!(leaves.iter().filter(|it| *it == leaf).count(), 1, "{leaf} in {leaves:?}");
    }
    let down = layer.tensors().pop().unwrap();
    assert_eq!(
        (down.leaf().as_str(), down.shape),
        ("mlp.experts.7.down_proj.weight", vec![64, 48])
    );
}

#[test]
fn a_token_reads_the_chosen_experts_and_everything_else() {
    let layer = &parse(&qwen3_moe(json!({}))).unwrap().layers[0];
    let stored = |path: &str| if path.starts_with("mlp.experts.") { 100 } else { 7 };
    let others = layer.tensors().iter().filter(|it| !it.path.starts_with("mlp.experts.")).count();
    assert_eq!(layer.active_bytes(stored), others as u64 * 7 + 2 * 3 * 100);
    assert_eq!(experts(&layer.active()).unwrap().count, 2);
    let dense = &parse(&llama()).unwrap().layers[0];
    assert_eq!(dense.active_bytes(|_| 1), dense.tensors().len() as u64);
    assert_eq!(dense.active(), *dense);
}

/// The operations of a layer's network: the experts, and what is beside them.
fn parts(model: &ModelSpec, layer: usize) -> Vec<&Op> {
    model.layers[layer].branches.last().unwrap().op.parts()
}

#[test]
fn a_network_beside_experts_is_as_wide_as_the_family_says() {
    for (name, width) in [("qwen2-moe", 64), ("glm4-moe", 48), ("dots1", 32), ("ernie4-5-moe", 32)]
    {
        let model = golden(name);
        let [Op::Experts(_), Op::Mlp(shared)] = parts(&model, 3)[..] else { panic!("{name}") };
        assert_eq!(shared.inner_size, width, "{name}");
        assert_eq!(shared.output_gate.is_some(), name == "qwen2-moe");
    }
    let none = with(configuration("glm4-moe"), json!({"n_shared_experts": 0}));
    assert!(matches!(parts(&parse(&none).unwrap(), 3)[..], [Op::Experts(_)]));
}

#[test]
fn the_first_layers_are_dense_where_a_family_says_so() {
    let sparse = |name: &str| -> Vec<bool> {
        golden(name).layers.iter().map(|layer| experts(layer).is_some()).collect()
    };
    assert_eq!(sparse("glm4-moe"), [false, true, true, true, true]);
    assert_eq!(sparse("dots1"), [false, false, true, true]);
    assert_eq!(sparse("ernie4-5-moe"), [false, true, true, true, true]);
    assert_eq!(sparse("minimax-m2"), [true; 4]);
    let last = with(configuration("ernie4-5-moe"), json!({"moe_layer_end_index": -1}));
    assert!(experts(parse(&last).unwrap().layers.last().unwrap()).is_some());
}

#[test]
fn routers_are_corrected_divided_and_multiplied_as_the_family_says() {
    let router = |model: &ModelSpec| experts(&model.layers[3]).unwrap().router.clone();
    let glm = router(&golden("glm4-moe"));
    assert_eq!((glm.scores, glm.multiplier, glm.groups), (RouterScores::Sigmoid, 1.5, None));
    assert_eq!(glm.correction.unwrap().name, "mlp.gate.e_score_correction_bias");
    let grouped = json!({"n_group": 4, "topk_group": 2, "norm_topk_prob": false});
    let grouped = router(&parse(&with(configuration("glm4-moe"), grouped)).unwrap());
    assert_eq!(grouped.groups, Some(RouterGroups { count: 4, chosen: 2 }));
    assert_eq!(grouped.renormalise, None);
    let ernie = router(&golden("ernie4-5-moe"));
    assert_eq!((ernie.scores, ernie.renormalise), (RouterScores::Softmax, Some(1e-12)));
    assert_eq!(ernie.correction.unwrap().axes, 2);
    let minimax = golden("minimax-m2");
    assert_eq!(router(&minimax).correction.unwrap().axes, 1);
    assert_eq!(minimax.rotations[0].dim, 12);
    for (name, change, field) in [
        ("glm4-moe", json!({"n_group": 3}), "n_group"),
        ("glm4-moe", json!({"n_group": 8, "topk_group": 1}), "n_group"),
        ("glm4-moe", json!({"n_routed_experts": 0}), "n_routed_experts"),
        ("minimax-m2", json!({"scoring_func": "softmax"}), "scoring_func"),
        ("minimax-m2", json!({"qk_norm_type": "per_head"}), "qk_norm_type"),
        ("minimax-m2", json!({"use_routing_bias": false}), "use_routing_bias"),
        ("minimax-m2", json!({"attn_type_list": [1, 0, 1, 1]}), "attn_type_list"),
        ("minimax-m2", json!({"shared_intermediate_size": 8}), "shared_intermediate_size"),
        ("ernie4-5-moe", json!({"use_bias": true}), "use_bias"),
        ("mixtral", json!({"attention_bias": true}), "attention_bias"),
        ("dots1", json!({"scoring_func": "softmax"}), "scoring_func"),
        ("dots1", json!({"moe_layer_freq": 2}), "moe_layer_freq"),
        ("ernie4-5-moe", json!({"moe_gate": "random"}), "moe_gate"),
        ("qwen2-moe", json!({"use_sliding_window": true}), "use_sliding_window"),
    ] {
        let error = parse(&with(configuration(name), change)).expect_err(name).to_string();
        assert!(error.contains(field), "{name}: {error}");
    }
}

#[test]
fn what_a_configuration_does_not_say_is_as_the_reference_has_it() {
    let router = |name: &str, silent: &str| {
        let model = parse(&without(configuration(name), silent)).unwrap();
        experts(&model.layers[3]).unwrap().router.clone()
    };
    assert!(router("glm4-moe", "norm_topk_prob").renormalise.is_some());
    assert_eq!(router("dots1", "norm_topk_prob").renormalise, None);
    assert_eq!(router("qwen2-moe", "norm_topk_prob").renormalise, None);
    let biased = parse(&without(configuration("qwen2-moe"), "qkv_bias")).unwrap();
    assert!(attention(&biased, 0).qkv_bias);
    // What published files say beside, and that changes nothing.
    for (name, beside) in [
        ("minimax-m2", json!({"mlp_intermediate_size": 8192, "shared_moe_mode": "sigmoid"})),
        ("dots1", json!({"scoring_func": "noaux_tc", "topk_method": "noaux_tc", "ep_size": 1})),
        (
            "ernie4-5-moe",
            json!({"moe_capacity": [64, 64, 64], "moe_gate": "topk",
            "moe_use_aux_free": true}),
        ),
        (
            "hunyuan-dense",
            json!({"use_qk_norm": true, "attention_head_dim": 24,
            "cla_share_factor": 2, "use_cla": false}),
        ),
    ] {
        let found = parse(&with(configuration(name), beside)).unwrap();
        assert_eq!(found, golden(name), "{name}");
    }
}
