//! Mixtures of experts: which layers have them, what their tensors are, and what a token reads of them.

use super::*;
use crate::model::{ExpertsSpec, LayerSpec};

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
