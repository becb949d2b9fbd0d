//! Specifications on their way to a worker, and one refusal for each thing that whoever computes relies on.

use super::*;
use crate::model::{MAX_SPEC_BYTES, SpecError};

/// What a worker has of it.
fn received(model: &ModelSpec) -> ModelSpec {
    ModelSpec::from_wire(&model.to_wire()).unwrap()
}

/// A golden model as a peer may send it: changed at a place (as RFC 6901 says it).
fn sent(name: &str, place: &str, value: Value) -> Result<ModelSpec, SpecError> {
    let mut json: Value = serde_json::from_slice(&golden(name).to_wire()).unwrap();
    *json.pointer_mut(place).unwrap_or_else(|| panic!("no {place}")) = value;
    ModelSpec::from_wire(json.to_string().as_bytes())
}

#[test]
fn every_golden_model_arrives_as_it_was_sent_but_for_how_its_files_are_packed() {
    for name in golden_names() {
        let model = golden(&name);
        assert_eq!(received(&model), as_sent(model), "{name}");
    }
}

#[test]
fn numbers_arrive_to_the_last_bit() {
    let mut model = golden("gemma3");
    for seed in 1..600_u32 {
        let part = f64::from(seed.wrapping_mul(2_654_435_761)) / f64::from(u32::MAX);
        model.final_norm.eps = part / 3.0;
        model.embedding_multiplier = (part * 7.0) as f32;
        assert_eq!(received(&model), model, "{part}");
    }
}

/// A mixture of the largest kind in use would have some hundred layers.
#[test]
fn the_largest_models_are_far_below_the_limit() {
    let mut model = golden("qwen3-moe");
    model.layers = model.layers.iter().cycle().take(128).cloned().collect();
    assert_eq!(received(&model), model);
    let bytes = model.to_wire().len();
    assert!(bytes < MAX_SPEC_BYTES / 4, "{bytes} bytes");
    model.layers = model.layers.iter().cycle().take(4096).cloned().collect();
    let error = ModelSpec::from_wire(&model.to_wire()).unwrap_err();
    assert!(matches!(error, SpecError::TooLarge { most: MAX_SPEC_BYTES, .. }), "{error}");
}

#[test]
fn another_version_is_told_from_what_is_malformed() {
    let error = ModelSpec::from_wire(br#"{"version": 7, "model": {"shape": "unheard of"}}"#);
    let text = error.unwrap_err().to_string();
    assert_eq!(text, "this worker reads model specifications of version 2, found 7");
    let golden = golden("llama").to_wire();
    for cut in [0, 1, golden.len() / 2, golden.len() - 1] {
        assert!(matches!(ModelSpec::from_wire(&golden[..cut]), Err(SpecError::Json(_))), "{cut}");
    }
    for malformed in
        [r#"{"version": 2}"#, r#"{"version": -1}"#, r#"{"model": {}}"#, "[]", "1", "null"]
    {
        let error = ModelSpec::from_wire(malformed.as_bytes()).unwrap_err();
        assert!(matches!(error, SpecError::Json(_)), "{malformed}: {error}");
    }
}

/// What an older worker does not know would change what it computes.
#[test]
fn what_is_not_known_is_refused_by_its_name() {
    let text = String::from_utf8(golden("qwen3-moe").to_wire()).unwrap();
    for (known, unknown) in [
        (r#"{"version":2,"#, r#"{"version":2,"tides":1,"#),
        (r#""hidden_size":"#, r#""tides":1,"hidden_size":"#),
        (r#""heads":"#, r#""tides":1,"heads":"#),
        (r#""chosen":"#, r#""tides":1,"chosen":"#),
        (r#""eps":"#, r#""tides":1,"eps":"#),
        (r#""theta":"#, r#""tides":1,"theta":"#),
        (r#""renormalise":"#, r#""tides":1,"renormalise":"#),
        (r#"{"attention":"#, r#"{"tides":"#),
        (r#""silu""#, r#""tides""#),
    ] {
        assert!(text.contains(known), "{known} in {text}");
        let error = ModelSpec::from_wire(text.replacen(known, unknown, 1).as_bytes()).unwrap_err();
        assert!(
            matches!(&error, SpecError::Json(it) if it.to_string().contains("tides")),
            "{error}"
        );
    }
}

const LAYER: &str = "/model/layers/1/branches";

#[test]
fn everything_that_computing_relies_on_is_refused_by_its_name() {
    let attention = |field: &str| format!("{LAYER}/0/op/attention/{field}");
    let experts = |field: &str| format!("{LAYER}/1/op/experts/{field}");
    let network = |field: &str| format!("{LAYER}/1/op/experts/expert/{field}");
    let model = |field: &str| format!("/model/{field}");
    let cases = [
        (model("architecture"), json!(""), "architecture \"\""),
        (model("architecture"), json!("a\nb"), "control characters"),
        (model("embedding"), json!("e".repeat(129)), "embedding"),
        (model("head"), json!(""), "head"),
        (model("layer_prefix"), json!("\u{7f}"), "layer_prefix"),
        (model("hidden_size"), json!(0), "hidden_size is 0"),
        (model("hidden_size"), json!(1 << 19), "hidden_size is 524288"),
        (model("vocab_size"), json!(0), "vocab_size is 0"),
        (model("max_position_embeddings"), json!(1_u64 << 40), "max_position_embeddings"),
        (model("embedding_multiplier"), json!(1e10), "embedding_multiplier is 1"),
        (model("eos_token_ids"), json!(vec![1; 65]), "end tokens is 65"),
        (model("final_norm/width"), json!(63), "final norm is 63"),
        (model("rotations"), json!([]), "rotation is 0, there are 0"),
        (model("rotations/0/dim"), json!(0), "0 numbers of a head rotate"),
        (model("rotations/0/dim"), json!(15), "15 numbers of a head rotate"),
        (model("rotations/0/dim"), json!(1 << 13), "8192 numbers of a head rotate"),
        (model("rotations/0/rope/theta"), json!(0.0), "theta is 0"),
        (model("rotations/0/rope/theta"), json!(1e-300), "theta"),
        (model("rotations/0/rope/theta"), json!(-1e4), "theta"),
        (model("layers"), json!([]), "number of layers is 0"),
        (LAYER.to_owned(), json!([]), "layer 1: number of branches is 0"),
        (format!("{LAYER}/0/multiplier"), json!(-1e10), "multiplier"),
        (format!("{LAYER}/0/pre/width"), json!(16), "before or after an operation is 16"),
        (format!("{LAYER}/0/pre/eps"), json!(0.0), "eps is 0"),
        (format!("{LAYER}/0/pre/eps"), json!(1e-60), "eps"),
        (format!("{LAYER}/0/pre/offset"), json!(1e20), "offset"),
        (format!("{LAYER}/0/pre/path"), json!("a\u{0}"), "module of a norm"),
        (attention("hidden_size"), json!(32), "hidden_size of attention is 32"),
        (attention("heads"), json!(0), "heads is 0"),
        (attention("heads"), json!(3), "heads 3 is not a multiple of kv_heads 2"),
        (attention("kv_heads"), json!(0), "kv_heads is 0"),
        (attention("head_dim"), json!(0), "head_dim is 0"),
        (attention("head_dim"), json!(1 << 15), "head_dim is 32768"),
        (attention("output"), json!(""), "module of the output"),
        (attention("qkv"), json!({"fused": ""}), "module of queries"),
        (attention("qkv/separate/1"), json!("\r"), "module of queries"),
        (attention("qk_norm/1/width"), json!(64), "queries or keys is 64"),
        (attention("scale"), json!(0.0), "scale is 0"),
        (attention("scale"), json!(1e40), "scale"),
        (attention("window"), json!(0), "window is 0"),
        (attention("rotation"), json!(1), "rotation is 1, there are 1"),
        (experts("count"), json!(0), "count of experts is 0"),
        (experts("count"), json!(4097), "count of experts is 4097"),
        (experts("chosen"), json!(0), "chosen experts is 0"),
        (experts("chosen"), json!(4096), "chosen experts is 4096"),
        (experts("prefix"), json!(""), "prefix of experts"),
        (experts("router/path"), json!(""), "module of the router"),
        (network("hidden_size"), json!(1), "hidden_size of a network is 1"),
        (network("inner_size"), json!(0), "inner_size is 0"),
        (network("down"), json!(""), "module of down"),
        (network("gate_up/gated/separate/0"), json!(""), "module of gate or up"),
        (network("down"), json!("gate_proj"), "gate_proj.weight\" would be both"),
        (
            experts("router/path"),
            json!("input_layernorm"),
            "input_layernorm.weight\" would be both",
        ),
    ];
    for (place, value, words) in cases {
        let shown = format!("{place} {value}");
        let Err(error) = sent("qwen3-moe", &place, value) else { panic!("{shown} is accepted") };
        assert!(error.to_string().contains(words), "{shown}: {error}");
        let in_layer = matches!(error, SpecError::Layer { layer: 0 | 1, .. });
        assert!(in_layer || matches!(error, SpecError::Model(_)), "{shown}: {error:?}");
    }
}

/// The same of what only some families have.
#[test]
fn what_few_models_have_is_refused_by_its_name_too() {
    let mixture = "/model/layers/1/branches/1/op/sum/0/experts/router";
    let mixer = "/model/layers/1/branches/0/op/sum/0/experts";
    let (projections, narrow) =
        (format!("{mixer}/projections"), format!("{mixer}/expert/hidden_size"));
    let attention = "/model/layers/1/branches/0/op/attention";
    let yarn = "/model/rotations/0/rope/scaling/yarn";
    let long = "/model/rotations/0/rope/scaling/longrope";
    let of_experts = "/model/layers/1/branches/1/op/experts/expert";
    let clamped = format!("{of_experts}/clamped");
    let cases = [
        ("gemma2", "/model/logits/softcap".to_owned(), json!(0.0), "softcap of logits is 0"),
        ("granite", "/model/logits/multiplier".to_owned(), json!(1e20), "multiplier of logits"),
        ("gemma2", format!("{attention}/softcap"), json!(-1.0), "softcap is -1"),
        ("olmo2", format!("{attention}/qk_norm/0/width"), json!(63), "queries or keys is 63"),
        ("mistral3", format!("{attention}/query_scale/span"), json!(0.0), "queries grow is 0"),
        ("mistral3", format!("{attention}/query_scale/beta"), json!(1e20), "growth of queries"),
        ("cohere2", "/model/layers/1/branches/0/op/sum".to_owned(), json!([]), "in a sum is 0"),
        (
            "cohere2",
            "/model/layers/1/branches/0/op/sum/0".to_owned(),
            json!({"sum": []}),
            "is where it cannot be",
        ),
        (
            "arcee",
            "/model/layers/1/branches/1/op/mlp/gate_up/plain".to_owned(),
            json!(""),
            "module of up",
        ),
        ("arcee", format!("{yarn}/factor"), json!(0.0), "factor is 0"),
        ("arcee", format!("{yarn}/beta_fast"), json!(0.0), "beta_fast is 0"),
        ("arcee", format!("{yarn}/beta_slow"), json!(-1.0), "beta_slow is -1"),
        ("arcee", format!("{yarn}/original_max_position"), json!(0), "original_max_position is 0"),
        ("arcee", format!("{yarn}/attention_factor"), json!(1e20), "attention_factor"),
        ("phi3-longrope", format!("{long}/short_factor"), json!([1.0]), "frequencies is 1"),
        ("phi3-longrope", format!("{long}/long_factor"), json!([]), "frequencies is 0"),
        ("phi3-longrope", format!("{long}/long_factor/5"), json!(0.0), "a frequency is 0"),
        ("phi3-longrope", format!("{long}/short_factor/0"), json!(1e20), "a frequency is 1"),
        ("phi3-longrope", format!("{long}/original_max_position"), json!(0), "position is 0"),
        ("phi3-longrope", format!("{long}/attention_factor"), json!(1e20), "attention_factor"),
        (
            "qwen2-moe",
            "/model/layers/1/branches/1/op/sum/1/mlp/output_gate".to_owned(),
            json!(""),
            "an output's gate",
        ),
        ("nemotron-h-latent", format!("{projections}/hidden_size"), json!(63), "of experts is 63"),
        ("nemotron-h-latent", format!("{projections}/input"), json!(""), "projection to experts"),
        (
            "nemotron-h-latent",
            format!("{projections}/output"),
            json!("\n"),
            "projection from experts",
        ),
        ("nemotron-h-latent", narrow, json!(65), "width of experts is 65"),
        ("glm4-moe", format!("{mixture}/multiplier"), json!(1e20), "multiplier of weights"),
        ("glm4-moe", format!("{mixture}/renormalise"), json!(-1.0), "sum of weights is -1"),
        ("glm4-moe", format!("{mixture}/correction/name"), json!(""), "correction of the router"),
        ("glm4-moe", format!("{mixture}/correction/axes"), json!(0), "axes of the correction is 0"),
        ("glm4-moe", format!("{mixture}/scores"), json!("sigmoid_of_chosen"), "chosen alone"),
        ("gpt-oss", format!("{attention}/sinks"), json!(""), "sinks of attention"),
        ("gpt-oss", format!("{clamped}/alpha"), json!(0.0), "alpha of a clamped gate is 0"),
        ("gpt-oss", format!("{clamped}/limit"), json!(-7.0), "limit of a clamped gate is -7"),
        ("gpt-oss", format!("{of_experts}/activation"), json!("relu2"), "gate that is clamped"),
        (
            "gpt-oss",
            format!("{of_experts}/gate_up"),
            json!({"plain": "up"}),
            "gate that is clamped",
        ),
        ("llama4", format!("{attention}/turned_norm"), json!(0.0), "norm of turned heads is 0"),
        ("llama4", format!("{attention}/segment"), json!(0), "segment is 0"),
        (
            "llama4",
            "/model/layers/2/branches/0/op/attention/query_scale/first".to_owned(),
            json!(2),
            "the first position is 2",
        ),
    ];
    for (name, place, value, words) in cases {
        let shown = format!("{name} {place} {value}");
        let Err(error) = sent(name, &place, value) else { panic!("{shown} is accepted") };
        assert!(error.to_string().contains(words), "{shown}: {error}");
    }
    let groups = |groups: Value| {
        let mut json: Value = serde_json::from_slice(&golden("glm4-moe").to_wire()).unwrap();
        let router = json.pointer_mut(mixture).unwrap().as_object_mut().unwrap();
        router.insert("groups".to_owned(), groups);
        ModelSpec::from_wire(json.to_string().as_bytes()).map_err(|error| error.to_string())
    };
    assert!(groups(json!({"count": 4, "chosen": 1})).is_ok());
    for (wrong, words) in [
        (json!({"count": 0, "chosen": 1}), "groups of experts is 0"),
        (json!({"count": 4, "chosen": 5}), "chosen groups of experts is 5"),
        (json!({"count": 3, "chosen": 1}), "groups of one size is 6, expected 8"),
        (json!({"count": 8, "chosen": 1}), "experts chosen of groups is 2"),
    ] {
        let error = groups(wrong.clone()).unwrap_err();
        assert!(error.contains(words), "{wrong}: {error}");
    }
}

#[test]
fn stretched_rotations_divide_by_numbers_that_are_there() {
    let place = |field: &str| format!("/model/rotations/0/rope/scaling/llama3/{field}");
    for field in ["factor", "low_freq_factor", "high_freq_factor", "original_max_position"] {
        for value in [json!(0.0), json!(-1.0), json!(1e10), json!(1e-50)] {
            let error = sent("llama3-tied", &place(field), value).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
    let error = sent("llama3-tied", &place("high_freq_factor"), json!(0.5)).unwrap_err();
    assert!(error.to_string().contains("high_freq_factor − low_freq_factor is -0.5"), "{error}");
    sent("llama3-tied", &place("high_freq_factor"), json!(1.0)).unwrap(); // Then nothing blends.
    let linear = json!({"linear": {"factor": 0.0}});
    let error = sent("llama", "/model/rotations/0/rope/scaling", linear).unwrap_err();
    assert!(error.to_string().contains("factor is 0"), "{error}");
}

/// No number stands for what is none: such text would be another number elsewhere.
#[test]
fn numbers_that_are_none_do_not_arrive() {
    for eps in [f64::NAN, f64::INFINITY] {
        let mut model = golden("llama");
        model.final_norm.eps = eps;
        assert!(matches!(ModelSpec::from_wire(&model.to_wire()), Err(SpecError::Json(_))));
    }
}

#[test]
fn many_branches_experts_and_rotations_are_too_many() {
    let mut model = golden("qwen3-moe");
    let layer = &mut model.layers[2];
    layer.branches = layer.branches.iter().cycle().take(17).cloned().collect();
    let error = ModelSpec::from_wire(&model.to_wire()).unwrap_err().to_string();
    assert!(error.contains("layer 2: number of branches is 17"), "{error}");

    let with_experts = |counts: &[usize], layers: usize| {
        let mut model = golden("qwen3-moe");
        let mut layer = model.layers[0].clone();
        let of_experts = layer.branches.pop().unwrap();
        for &count in counts {
            let mut branch = of_experts.clone();
            let Op::Experts(experts) = &mut branch.op else { panic!("it has experts") };
            experts.count = count;
            layer.branches.push(branch);
        }
        model.layers = vec![layer; layers];
        ModelSpec::from_wire(&model.to_wire()).map(drop).map_err(|error| error.to_string())
    };
    with_experts(&[4096], 16).unwrap();
    let error = with_experts(&[4096, 8], 1).unwrap_err();
    assert!(error.contains("experts of the layer is 4104"), "{error}");
    let error = with_experts(&[4096], 17).unwrap_err();
    assert!(error.contains("layer 16: number of experts up to here is 69632"), "{error}");

    let mut model = golden("llama");
    model.rotations = vec![model.rotations[0].clone(); 17];
    let error = ModelSpec::from_wire(&model.to_wire()).unwrap_err().to_string();
    assert!(error.contains("number of rotations is 17"), "{error}");
}

#[test]
fn a_network_that_an_attention_lends_its_matrix_to_must_fit_it() {
    let mut json: Value = serde_json::from_slice(&golden("llama").to_wire()).unwrap();
    json["model"]["layers"][0]["branches"][1]["op"]["mlp"]["down"] = json!("self_attn.q_proj");
    let error = ModelSpec::from_wire(json.to_string().as_bytes()).unwrap_err();
    assert!(
        error.to_string().contains("self_attn.q_proj.weight\" would be both [64, 64]"),
        "{error}"
    );
}
