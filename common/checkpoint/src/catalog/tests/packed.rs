//! Packed matrices: golden checkpoints of MLX, and each way their tensors can be wrong.

use serde_json::json;

use super::super::CatalogError;
use super::catalog_error;
use crate::dtype::Dtype;
use crate::encoding::{Affine, Encoding, FloatType, RowsAt};
use crate::testing::{TinyCheckpoint, golden, made};

const BF16: Encoding = Encoding::Float(FloatType::BF16);
const UP: &str = "model.layers.0.mlp.up_proj";

fn part(module: &str, ending: &str) -> String {
    format!("{module}.{ending}")
}

/// The tensors of the tiny checkpoint.
fn tensors(tiny: &mut TinyCheckpoint) -> &mut Vec<crate::testing::Made> {
    tiny.file("model.safetensors")
}

/// Makes one matrix of the packed tiny checkpoint plain.
fn unpack(tiny: &mut TinyCheckpoint, module: &str, shape: &[u64]) {
    tensors(tiny).retain(|made| !made.0.starts_with(&format!("{module}.")));
    tensors(tiny).push(made(&part(module, "weight"), shape));
}

#[test]
fn golden_checkpoints_of_mlx_open_without_a_warning() {
    for (name, tensors, format) in
        [("qwen2-mlx4", 26, Affine::Q4), ("llama-mlx8", 23, Affine::new(8, 32).unwrap())]
    {
        let checkpoint = golden(name);
        assert!(checkpoint.warnings.is_empty(), "{name}: {:?}", checkpoint.warnings);
        for layer in 0..4 {
            assert_eq!(checkpoint.layer_tensors(layer).len(), tensors, "{name} layer {layer}");
        }
        assert_eq!(checkpoint.head().is_none(), checkpoint.config.tie_word_embeddings);
        let matrices = [Some(checkpoint.embedding_matrix()), checkpoint.head_matrix()];
        for matrix in matrices.into_iter().flatten() {
            assert_eq!(matrix.encoding, Encoding::Affine(format), "{name}");
            let [codes, scales, biases] = matrix.parts[..] else { panic!("three parts") };
            assert_eq!(codes.dtype, Dtype::U32);
            let params = 384 * 128 / format.group() as u64 * 2;
            assert_eq!((scales.bytes, biases.bytes), (params, params));
            assert_eq!(matrix.bytes(), 384 * 128 * format.bits() as u64 / 8 + 2 * params);
        }
        assert!(checkpoint.tensor("model.norm.weight").is_some());
        assert!(checkpoint.tensor("model.norm").is_none());
    }
    let plain = golden("llama").embedding_matrix().encoding;
    assert!(matches!(plain, Encoding::Float(_)), "{plain}");
}

#[test]
fn single_modules_may_be_plain_or_packed_otherwise() {
    let mut tiny = TinyCheckpoint::packed();
    tiny.open().unwrap();
    unpack(&mut tiny, UP, &[128, 64]);
    unpack(&mut tiny, "lm_head", &[5, 64]);
    assert_eq!(tiny.open().unwrap().head_matrix().unwrap().encoding, BF16);
    tiny.config["quantization"][UP] = json!(false);
    tiny.config["quantization"]["model.embed_tokens"] = json!({"bits": 8, "group_size": 64});
    let error = catalog_error(&tiny);
    assert!(matches!(&error, CatalogError::PackedShapeMismatch { .. }), "{error}");
    tiny.pack("model.embed_tokens", &[5, 64], Affine::Q8);
    let checkpoint = tiny.open().unwrap();
    assert_eq!(checkpoint.embedding_matrix().encoding, Encoding::Affine(Affine::Q8));
}

#[test]
fn every_width_of_mlx_opens_and_decodes() {
    for bits in [2, 3, 4, 5, 6, 8] {
        let mut tiny = TinyCheckpoint::packed();
        let format = Affine::new(bits, 64).unwrap();
        tiny.config["quantization"] = json!({"bits": bits, "group_size": 64});
        let shapes: Vec<_> = crate::testing::tensors(&tiny.config)
            .into_iter()
            .filter_map(|(name, _, shape, _)| {
                Some((name.strip_suffix(".weight")?.to_owned(), shape)).filter(|it| it.1.len() == 2)
            })
            .collect();
        shapes.iter().for_each(|(module, shape)| tiny.pack(module, shape, format));
        tiny.tensor(&part(UP, "scales")).3.fill(0x3f); // 0.746…
        tiny.tensor(&part(UP, "biases")).3.fill(0xc0); // -6.02…
        let checkpoint = tiny.open().unwrap();
        let read = |ending: &str| {
            let tensor = checkpoint.tensor(&part(UP, ending)).unwrap();
            (tensor.dtype, checkpoint.map(tensor).unwrap().bytes().to_vec())
        };
        let parts = ["weight", "scales", "biases"].map(read);
        let parts: Vec<_> = parts.iter().map(|(dtype, bytes)| (*dtype, &bytes[..])).collect();
        let mut found = vec![0.0; 128 * 64];
        Encoding::Affine(format).decode_rows(RowsAt::start(64), &parts, &mut found);
        let codes = parts[0].1;
        for (index, found) in found.iter().enumerate() {
            let bit = |at: u64| {
                let at = index as u64 * bits + at;
                u32::from(codes[at as usize / 8] >> (at % 8) & 1)
            };
            let code: u32 = (0..bits).map(|at| bit(at) << at).sum();
            let [scale, bias] =
                [0x3f3f_0000, 0xc0c0_0000].map(|bits| f64::from(f32::from_bits(bits)));
            let expected = scale * f64::from(code) + bias;
            assert_eq!(*found, expected as f32, "{bits} bits, weight {index}");
        }
    }
}

#[test]
fn a_tied_model_ignores_a_packed_head_that_is_the_embedding() {
    let mut tiny = TinyCheckpoint::packed();
    tiny.config["tie_word_embeddings"] = json!(true);
    assert!(tiny.open().unwrap().head_matrix().is_some(), "it is another one");
    for ending in ["weight", "scales", "biases"] {
        let same = tiny.tensor(&part("model.embed_tokens", ending)).3.clone();
        tiny.tensor(&part("lm_head", ending)).3 = same;
    }
    let with_head = tiny.open().unwrap();
    assert!(with_head.head_matrix().is_none());
    tensors(&mut tiny).retain(|made| !made.0.starts_with("lm_head"));
    assert_eq!(tiny.open().unwrap().total_bytes(), with_head.total_bytes());
}

#[test]
fn scales_where_the_configuration_says_plain() {
    let mut tiny = TinyCheckpoint::packed();
    tiny.config["quantization"][UP] = json!(false);
    let error = catalog_error(&tiny);
    let CatalogError::UnexpectedTensor { tensor, reason } = &error else { panic!("{error}") };
    assert_eq!(*tensor, part(UP, "scales"));
    assert!(reason.contains("not quantized"), "{error}");
}

#[test]
fn packed_tensors_of_a_configuration_without_quantization() {
    let mut tiny = TinyCheckpoint::packed();
    tiny.config.as_object_mut().unwrap().remove("quantization");
    let error = catalog_error(&tiny);
    assert!(error.to_string().contains("nothing of quantization"), "{error}");
}

#[test]
fn a_plain_matrix_that_the_configuration_says_is_packed() {
    let mut tiny = TinyCheckpoint::packed();
    unpack(&mut tiny, UP, &[128, 64]);
    tiny.config["quantization"][UP] = json!({"bits": 4, "group_size": 32});
    let error = catalog_error(&tiny);
    let CatalogError::UnsupportedDtype { tensor, dtype, .. } = &error else { panic!("{error}") };
    assert_eq!((tensor.as_str(), *dtype), (&*part(UP, "weight"), Dtype::BF16));
}

#[test]
fn a_packed_matrix_without_its_scales_or_biases() {
    for ending in ["scales", "biases"] {
        let mut tiny = TinyCheckpoint::packed();
        tensors(&mut tiny).retain(|made| made.0 != part(UP, ending));
        let error = catalog_error(&tiny);
        let CatalogError::MissingTensors { tensors } = &error else { panic!("{error}") };
        assert_eq!(tensors[..], [part(UP, ending)]);
    }
}

#[test]
fn biases_beside_a_plain_matrix() {
    let mut tiny = TinyCheckpoint::packed();
    unpack(&mut tiny, UP, &[128, 64]);
    tensors(&mut tiny).push(made(&part(UP, "biases"), &[128, 2]));
    let error = catalog_error(&tiny);
    assert!(error.to_string().contains("its matrix is not packed"), "{error}");
}

#[test]
fn shapes_that_are_not_the_formats() {
    for (ending, shape) in [("weight", [128, 16]), ("scales", [128, 1]), ("biases", [64, 4])] {
        let mut tiny = TinyCheckpoint::packed();
        let name = part(UP, ending);
        let dtype = tiny.tensor(&name).1;
        *tiny.tensor(&name) = made(&name, &shape);
        tiny.tensor(&name).1 = dtype;
        if dtype == "U32" {
            tiny.tensor(&name).3.resize(128 * 16 * 4, 0);
        }
        let error = catalog_error(&tiny);
        let CatalogError::PackedShapeMismatch { tensor, expected, found, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((tensor, &found[..]), (&name, &shape[..]));
        let (words, groups) = (64 * 4 / 32, 64 / 32);
        assert_eq!(expected[..], [128, if ending == "weight" { words } else { groups }]);
    }
    let mut tiny = TinyCheckpoint::packed();
    tiny.config["quantization"]["group_size"] = json!(64);
    let error = catalog_error(&tiny).to_string();
    assert!(error.contains("affine-4-64"), "{error}");
}

#[test]
fn rows_that_are_not_whole_groups() {
    let mut tiny = TinyCheckpoint::packed();
    tiny.config["quantization"]["group_size"] = json!(128);
    let error = catalog_error(&tiny);
    let CatalogError::NotWholeGroups { columns, encoding, .. } = &error else { panic!("{error}") };
    assert_eq!((*columns, Some(*encoding)), (64, Affine::new(4, 128).map(Encoding::Affine)));
}

#[test]
fn types_that_packed_tensors_cannot_have() {
    for (ending, dtype) in [("weight", "I32"), ("scales", "I16"), ("biases", "U16")] {
        let mut tiny = TinyCheckpoint::packed();
        tiny.tensor(&part(UP, ending)).1 = dtype;
        let error = catalog_error(&tiny);
        let CatalogError::UnsupportedDtype { tensor, .. } = &error else { panic!("{error}") };
        assert_eq!(*tensor, part(UP, ending));
    }
    let mut tiny = TinyCheckpoint::packed();
    tiny.tensor(&part(UP, "scales")).1 = "F16";
    let error = catalog_error(&tiny);
    let CatalogError::ParamTypesDiffer { module, scales, biases } = &error else {
        panic!("{error}")
    };
    assert_eq!((module.as_str(), *scales, *biases), (UP, Dtype::F16, Dtype::BF16));
    tiny.tensor(&part(UP, "biases")).1 = "F16";
    tiny.open().unwrap();
}
