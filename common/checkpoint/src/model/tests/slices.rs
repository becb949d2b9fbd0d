//! Layers with experts, in parts.

use std::collections::HashSet;
use std::ops::Range;

use super::*;
use crate::model::ExpertRange;

fn parts(name: &str, slices: usize) -> Option<(ModelSpec, ModelSpec)> {
    let whole = golden(name);
    whole.sliced(slices).map(|parted| (whole, parted))
}

#[test]
fn a_layer_becomes_attention_and_slices_that_follow_each_other() {
    let (whole, parted) = parts("qwen3-moe", 3).unwrap();
    assert_eq!(parted.layers.len(), 4 * whole.layers.len());
    assert_eq!(parted.numbers[..5], [0, 0, 0, 0, 1]);
    let ranges: Vec<_> = parted.layers[..4]
        .iter()
        .map(|layer| {
            layer.ops().find_map(|op| if let Op::Experts(it) = op { it.slice } else { None })
        })
        .collect();
    let range = |start, end| Some(ExpertRange { start, end });
    assert_eq!(ranges, [None, range(0, 2), range(2, 5), range(5, 8)]);
    let partial: Vec<bool> = parted.layers[..4].iter().map(LayerSpec::is_partial).collect();
    assert_eq!(partial, [false, true, true, false]);
    let hidden = whole.hidden_size;
    let widths: Vec<usize> = (0..5).map(|layer| parted.row_width(layer)).collect();
    assert_eq!(widths, [hidden, hidden, 2 * hidden, 2 * hidden, hidden]);
    // Every tensor of the layer is in some part, under its own name, and keys and values are kept once.
    let names = |spec: &ModelSpec, layers: Range<usize>| -> HashSet<String> {
        let of = |layer: usize| {
            let tensors = spec.layers[layer].tensors().into_iter();
            tensors.map(move |tensor| spec.layer_tensor_name(layer, &tensor.leaf()))
        };
        layers.flat_map(of).collect()
    };
    assert_eq!(names(&parted, 4..8), names(&whole, 1..2));
    let kv = KvDtype::F16;
    assert_eq!(parted.kv_bytes_per_token(kv), whole.kv_bytes_per_token(kv));
    let received = ModelSpec::from_wire(&parted.to_wire()).unwrap();
    assert_eq!(received, as_sent(parted));
}

#[test]
fn every_slice_leads_to_its_experts_and_the_last_one_from_their_sum() {
    let (_, parted) = parts("nemotron-h-latent", 3).unwrap();
    let with = |module: &str| -> Vec<bool> {
        let has = |layer: &LayerSpec| layer.tensors().iter().any(|it| it.path.ends_with(module));
        parted.layers[1..4].iter().map(has).collect()
    };
    assert_eq!(with("fc1_latent_proj"), [true; 3]);
    assert_eq!(with("fc2_latent_proj"), [false, false, true]);
}

#[test]
fn what_cannot_be_parted_stays_whole() {
    assert!(parts("llama", 2).is_none());
    // The first layers are dense, and stay as they are.
    let (whole, parted) = parts("deepseek-v3", 2).unwrap();
    let dense =
        whole.layers.iter().filter(|layer| !layer.ops().any(|op| matches!(op, Op::Experts(_))));
    let dense = dense.count();
    assert!(dense > 0);
    assert_eq!(parted.layers.len(), dense + 3 * (whole.layers.len() - dense));
    // No more slices than experts.
    let (whole, parted) = parts("qwen3-moe", 64).unwrap();
    assert_eq!(parted.layers.len(), whole.layers.len() * (1 + 8));
}

#[test]
fn slices_that_are_not_each_others_are_refused() {
    let refusal = |change: &dyn Fn(&mut ModelSpec)| {
        let (_, mut parted) = parts("qwen3-moe", 3).unwrap();
        change(&mut parted);
        ModelSpec::from_wire(&parted.to_wire()).unwrap_err().to_string()
    };
    let slice = |layer: &mut LayerSpec, range: ExpertRange| {
        let Op::Experts(it) = &mut layer.branches[0].op else { panic!("no experts") };
        it.slice = Some(range);
    };
    let range = |start, end| ExpertRange { start, end };
    let after_norm = |it: &mut ModelSpec| {
        let norm = it.layers[0].branches[0].pre.clone();
        it.layers[1].branches[0].post = norm;
    };
    for (word, said) in [
        (
            "experts from 2 on do not follow",
            refusal(&|it| {
                it.layers.remove(1);
                it.numbers.remove(1);
            }),
        ),
        ("do not follow", refusal(&|it| slice(&mut it.layers[2], range(3, 5)))),
        ("start of a slice", refusal(&|it| slice(&mut it.layers[2], range(5, 5)))),
        ("end of a slice", refusal(&|it| slice(&mut it.layers[2], range(2, usize::MAX)))),
        ("something beside", refusal(&|it| it.layers[1].branches[0].multiplier = 2.0)),
        ("something beside", refusal(&after_norm)),
        ("numbers of layers", refusal(&|it| it.numbers[5] = 7)),
        ("numbers of layers", refusal(&|it| it.numbers[0] = usize::MAX)),
        ("numbers of layers", refusal(&|it| _ = it.numbers.pop())),
        ("numbers of layers", refusal(&|it| it.numbers[3..].iter_mut().for_each(|it| *it += 1))),
        (
            "nothing has the others",
            refusal(&|it| {
                it.layers.truncate(2);
                it.numbers.truncate(2);
            }),
        ),
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
}
