//! A model's specification, as a master sends it, and everything that a worker works out from it.
use std::hint::black_box;

use cake_checkpoint::{Affine, Encoding, FloatType, KvDtype, LayerSpec, ModelSpec};
use cake_engine::DeviceKind;
use serde_json::Value;

use super::golden::golden_files;

/// Widths that layers are timed with are multiples of this.
const GRANULE: usize = 128;

pub(super) fn run(bytes: &[u8]) {
    let Ok(model) = ModelSpec::from_wire(bytes) else { return };
    let again = ModelSpec::from_wire(&model.to_wire()).expect("it was accepted before");
    assert_eq!(again, model);
    black_box(model.outer_tensors());
    black_box(model.kv_bytes_per_token(KvDtype::F32));
    for most in [1, usize::MAX] {
        for (_, device) in DeviceKind::ALL {
            black_box(cake_engine::scratch_bytes(*device, &model, most, most, most));
        }
        black_box(cake_engine::kv_bytes(&model.layers, most, most, KvDtype::F16));
        black_box(cake_engine::state_bytes(&model.layers, most));
        black_box(cake_engine::copied_bytes(&model.layers));
    }
    let mut layers = model.layers.iter();
    layers.clone().for_each(layer);
    if let Some(first) = layers.next() {
        for share in [0.0, 0.3, 1.0] {
            layer(&first.narrowed(share, GRANULE));
        }
    }
    for encoding in [Encoding::Float(FloatType::F32), Encoding::Affine(Affine::Q4)] {
        let nothing = cake_engine::probe_layer(DeviceKind::Cpu, &model, encoding, 1, 0, 1);
        nothing.expect_err("no layer fits into no memory");
    }
}

fn layer(spec: &LayerSpec) {
    let tensors = spec.tensors();
    assert!(!tensors.is_empty() && tensors.iter().all(|it| it.shape.iter().all(|size| *size > 0)));
    let numbers = |path: &str| {
        let of_module = tensors.iter().find(|it| it.path == path);
        of_module.map_or(0, |it| it.shape.iter().product())
    };
    let kept = spec.kept();
    assert_eq!(kept.bytes(KvDtype::F32), 4 * (kept.keys + kept.values) as u64);
    if tensors.len() < 100 {
        assert!(spec.active_bytes(numbers) > 0); // It looks for each among all.
    }
    // One of which later experts are elsewhere has no projection of their sum.
    assert!(spec.is_partial() || spec.active().tensors().len() <= tensors.len());
}

/// What one number of a model becomes, wherever it stands: sizes have to agree. The largest of each are among these.
const SIZES: [u64; 13] =
    [1, 2, 3, 31, 128, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 22, 1 << 24, 1 << 28];
const FACTORS: [f64; 4] = [1.2e-38, 1.0, 1e9, 1e15];

/// Golden models, and what becomes of them with other numbers where that is a model, too.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for config in golden_files("config.json") {
        let mut model = ModelSpec::parse(&config).expect("a golden model");
        model.layers.truncate(2); // Inputs are no longer than some thousand bytes.
        seeds.push(model.to_wire());
        let json: Value = serde_json::from_slice(&model.to_wire()).expect("it was just made");
        let mut numbers = Vec::new();
        each_number(&mut json["model"].clone(), &mut |number| numbers.push(number.clone()));
        numbers.sort_by_key(ToString::to_string);
        numbers.dedup();
        let others: Vec<Value> =
            SIZES.map(Value::from).into_iter().chain(FACTORS.map(Value::from)).collect();
        for (number, other) in
            numbers.iter().flat_map(|it| others.iter().map(move |other| (it, other)))
        {
            let mut json = json.clone();
            let mut replace = |it: &mut Value| {
                if it == number {
                    *it = other.clone()
                }
            };
            each_number(&mut json["model"], &mut replace);
            let sent = json.to_string().into_bytes();
            if ModelSpec::from_wire(&sent).is_ok() {
                seeds.push(sent);
            }
        }
    }
    seeds
}

fn each_number(json: &mut Value, visit: &mut impl FnMut(&mut Value)) {
    match json {
        Value::Number(_) => visit(json),
        Value::Array(items) => items.iter_mut().for_each(|item| each_number(item, visit)),
        Value::Object(fields) => fields.values_mut().for_each(|value| each_number(value, visit)),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
