//! gpt-oss: what its configurations say, and how its experts lie.

use super::*;
use crate::catalog::CatalogError;
use crate::container::{Lies, StoredTensor, Strides};
use crate::dtype::Dtype;
use crate::model::{ClampedGate, RouterScores, unstack};

fn changed(changes: Value) -> Result<ModelSpec, ConfigError> {
    parse(&with(configuration("gpt-oss"), changes))
}

#[test]
fn layers_have_sinks_biases_and_every_other_one_a_window() {
    let model = golden("gpt-oss");
    assert_eq!(windows_of(&model), [Some(8), None, Some(8), None, Some(8)]);
    let first = attention(&model, 0);
    assert!(first.qkv_bias && first.output_bias);
    let sinks = first.sinks().unwrap();
    assert_eq!((&*sinks.leaf(), &sinks.shape[..]), ("self_attn.sinks", &[4][..]));
    let Op::Experts(experts) = &model.layers[3].branches[1].op else { panic!("a mixture") };
    assert_eq!(experts.router.scores, RouterScores::SoftmaxOfChosen);
    assert!(experts.router.bias && experts.expert.bias && !experts.router.weighs_inputs);
    assert_eq!(experts.expert.clamped, Some(ClampedGate { alpha: 1.702, limit: 7.0 }));
    let names: Vec<String> = model.layers[3].tensors().iter().map(|it| it.leaf()).collect();
    for name in ["mlp.router.bias", "mlp.experts.3.up_proj.bias", "mlp.experts.0.down_proj.bias"] {
        assert!(names.iter().any(|it| it == name), "{name} in {names:?}");
    }
    let silent = ["layer_types", "swiglu_alpha", "swiglu_limit", "attention_bias"];
    let silent = silent.into_iter().fold(configuration("gpt-oss"), without);
    assert_eq!(parse(&silent).unwrap(), model, "as the reference has it");
    let none = changed(json!({"attention_bias": false})).unwrap();
    assert!(!attention(&none, 0).qkv_bias && attention(&none, 0).sinks.is_some());
    let published = json!({"experts_per_token": 2, "initial_context_length": 4096});
    assert_eq!(changed(published).unwrap(), model);
    let narrow = ModelSpec { layers: vec![model.layers[0].narrowed(0.5, 16)], ..model };
    assert_eq!(attention(&narrow, 0).sinks().unwrap().shape, [2]);
}

refuses! {
    refuses_a_stretch_that_is_not_said: without(configuration("gpt-oss"), "rope_parameters"),
        E::Missing { .. }, "rope_parameters";
    refuses_another_gate: with(configuration("gpt-oss"), json!({"hidden_act": "gelu"})),
        E::Unsupported { .. }, "hidden_act";
    refuses_a_limit_that_is_none: with(configuration("gpt-oss"), json!({"swiglu_limit": 0.0})),
        E::OutOfRange { .. }, "swiglu_limit";
    refuses_an_alpha_that_is_none: with(configuration("gpt-oss"), json!({"swiglu_alpha": -1})),
        E::OutOfRange { .. }, "swiglu_alpha";
    refuses_windows_without_a_size: with(configuration("gpt-oss"), json!({"sliding_window": null})),
        E::NoWindow { layer: 0, .. }, "sliding_window is null";
}

fn tensor(name: &str, dtype: Dtype, shape: &[u64]) -> StoredTensor {
    let (name, shape) = (format!("model.layers.1.mlp.experts.{name}"), shape.to_vec());
    let bytes = dtype.tensor_bytes(&shape).unwrap();
    let (lies, encoding) = (Lies::Together, None);
    StoredTensor { name, file: 0, dtype, shape, offset: 100, bytes, lies, encoding }
}

#[test]
fn gate_and_up_lie_in_turn_and_so_do_their_biases() {
    let model = golden("gpt-oss");
    let apart = |name: &str, shape: &[u64]| {
        let found = unstack(vec![tensor(name, Dtype::BF16, shape)], &model).unwrap();
        let prefix = "model.layers.1.mlp.experts.";
        found.into_iter().map(move |it| (it.name.strip_prefix(prefix).unwrap().to_owned(), it))
    };
    let found: Vec<_> = apart("gate_up_proj", &[4, 64, 320]).collect();
    assert_eq!(found.len(), 8);
    for (index, (name, slice)) in found.into_iter().enumerate() {
        let (expert, is_up) = (index as u64 / 2, index as u64 % 2);
        assert_eq!(name, format!("{expert}.{}_proj.weight", ["gate", "up"][is_up as usize]));
        assert_eq!((&slice.shape[..], slice.bytes), (&[160, 64][..], 160 * 64 * 2));
        assert_eq!(slice.offset, 100 + expert * 64 * 320 * 2 + is_up * 2);
        assert_eq!(slice.lies, Lies::Apart(Strides { row: 2, column: 320 }));
    }
    let (name, bias) = apart("gate_up_proj_bias", &[4, 320]).nth(7).unwrap();
    assert_eq!((&*name, &bias.shape[..]), ("3.up_proj.bias", &[160][..]));
    assert_eq!(bias.offset, 100 + 3 * 320 * 2 + 2);
    assert_eq!(bias.lies, Lies::Apart(Strides { row: 2, column: 320 }));
    let (name, down) = apart("down_proj", &[4, 160, 64]).nth(2).unwrap();
    assert_eq!((&*name, &down.shape[..]), ("2.down_proj.weight", &[64, 160][..]));
    assert_eq!(down.lies, Lies::Apart(Strides { row: 1, column: 64 }));
    assert_eq!(apart("down_proj_bias", &[4, 64]).next().unwrap().0, "0.down_proj.bias");
    for (name, is_turned) in
        [("gate_up_proj", true), ("gate_up_proj.scales", true), ("gate_proj.scales", false)]
    {
        let name = format!("model.layers.1.mlp.experts.{name}");
        assert_eq!(model.is_turned(&name), is_turned, "{name}");
    }
    assert!(model.turns_experts());
}

#[test]
fn rows_of_packed_gates_and_ups_lie_in_turn() {
    let model = golden("gpt-oss-mxfp4");
    let blocks = tensor("gate_up_proj.weight", Dtype::U8, &[4, 192, 32]);
    let found = unstack(vec![blocks], &model).unwrap();
    assert_eq!(found.len(), 8);
    for (index, slice) in found.into_iter().enumerate() {
        let (expert, is_up) = (index as u64 / 2, index as u64 % 2);
        let part = ["gate", "up"][is_up as usize];
        assert_eq!(slice.name, format!("model.layers.1.mlp.experts.{expert}.{part}_proj.weight"));
        assert_eq!((&slice.shape[..], slice.bytes), (&[96, 32][..], 96 * 32));
        assert_eq!(slice.offset, 100 + expert * 192 * 32 + is_up * 32);
        assert_eq!(slice.lies, Lies::RowsApart(64));
    }
    let down = tensor("down_proj.scales", Dtype::F8E8M0, &[4, 64, 3]);
    let slice = unstack(vec![down], &model).unwrap().pop().unwrap();
    assert_eq!((&slice.shape[..], slice.lies), (&[64, 3][..], Lies::Together));
    let of_mlx = tensor("up_proj.scales", Dtype::F8E8M0, &[4, 64, 2]);
    let slice = unstack(vec![of_mlx], &model).unwrap().remove(1);
    assert!(slice.name.ends_with("experts.1.up_proj.scales"), "{slice:?}");
    for (name, shape) in
        [("gate_up_proj.weight", &[4, 191, 32][..]), ("down_proj.scales", &[3, 64, 3])]
    {
        let error = unstack(vec![tensor(name, Dtype::U8, shape)], &model).unwrap_err();
        assert!(matches!(error, CatalogError::NotOfAllExperts { experts: 4, .. }), "{error}");
    }
}

#[test]
fn what_are_no_experts_of_this_model_is_refused_by_its_name() {
    let model = golden("gpt-oss");
    for (name, shape) in [
        ("gate_up_proj", &[3, 64, 320][..]),
        ("gate_up_proj", &[4, 64, 321]),
        ("gate_up_proj", &[4, 64, 320, 1]),
        ("down_proj_bias", &[4]),
        ("down_proj_bias", &[]),
    ] {
        let error = unstack(vec![tensor(name, Dtype::BF16, shape)], &model).unwrap_err();
        assert!(matches!(error, CatalogError::NotOfAllExperts { experts: 4, .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let bytes = tensor("down_proj", Dtype::U8, &[4, 160, 64]);
    let error = unstack(vec![bytes], &model).unwrap_err();
    assert!(matches!(error, CatalogError::UnsupportedDtype { dtype: Dtype::U8, .. }), "{error}");
}
