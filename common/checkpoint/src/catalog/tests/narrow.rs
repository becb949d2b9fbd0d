//! Numbers of a byte and of 4 bits behind scales: golden checkpoints as they are published, and each way their tensors can be
//! wrong, by the names that the files have.

use serde_json::{Value, json};

use super::super::{CatalogError, Checkpoint};
use super::catalog_error;
use crate::dtype::Dtype;
use crate::encoding::{Affine, Encoding, Fp4, Fp8};
use crate::testing::{Made, TinyCheckpoint, golden, made};

const UP: &str = "model.layers.0.mlp.up_proj";

fn blocks() -> Encoding {
    Fp8::block(128, 128).map(Encoding::Fp8).unwrap()
}

/// How the matrix of a module of layer 1 is stored.
fn stored(checkpoint: &Checkpoint, module: &str) -> Encoding {
    let prefix = &checkpoint.config.layer_prefix;
    let name = format!("{prefix}1.{module}.weight");
    checkpoint.tensor(&name).unwrap_or_else(|| panic!("{name}")).encoding.unwrap()
}

#[test]
fn golden_checkpoints_open_and_say_how_each_matrix_is_stored() {
    let eight = Affine::new(8, 32).map(Encoding::Affine).unwrap();
    for (name, module, encoding, shapes) in [
        ("qwen2-fp8-block", "mlp.up_proj", blocks(), &[&[320, 128][..], &[3, 1]][..]),
        ("qwen3-moe-fp8", "mlp.experts.3.down_proj", blocks(), &[&[136, 32], &[2, 1]]),
        ("mistral3-fp8", "self_attn.k_proj", Encoding::Fp8(Fp8::Matrix), &[&[32, 64], &[1]]),
        (
            "llama-nvfp4",
            "mlp.down_proj",
            Encoding::Fp4(Fp4::NvDivided),
            &[&[128, 128], &[128, 16], &[1]],
        ),
        (
            "llama-modelopt",
            "mlp.down_proj",
            Encoding::Fp4(Fp4::NvMultiplied),
            &[&[128, 128], &[128, 16], &[1]],
        ),
        ("llama-modelopt", "self_attn.k_proj", Encoding::Fp8(Fp8::Matrix), &[&[64, 128], &[1]]),
        ("llama-modelopt", "self_attn.o_proj", Encoding::Fp8(Fp8::Row), &[&[128, 128], &[128, 1]]),
        ("gpt-oss-mxfp4", "mlp.experts.2.up_proj", Encoding::Fp4(Fp4::Mx), &[&[96, 32], &[96, 2]]),
        (
            "gpt-oss-mxfp4",
            "mlp.experts.2.down_proj",
            Encoding::Fp4(Fp4::Mx),
            &[&[64, 48], &[64, 3]],
        ),
        ("gpt-oss-mlx", "mlp.experts.2.up_proj", Encoding::Fp4(Fp4::Mx), &[&[64, 32], &[64, 2]]),
        ("gpt-oss-mlx", "self_attn.k_proj", eight, &[&[32, 16], &[32, 2], &[32, 2]]),
    ] {
        let checkpoint = golden(name);
        let odd: Vec<_> =
            checkpoint.warnings.iter().filter(|it| !it.contains("something else")).collect();
        assert!(odd.is_empty(), "{name}: {odd:?}");
        assert_eq!(stored(&checkpoint, module), encoding, "{name} {module}");
        let rows = checkpoint.config.layers[1].tensors();
        let rows = rows.iter().find(|it| *it.path == *module && it.shape.len() == 2).unwrap();
        let parts = encoding.parts([rows.shape[0], rows.shape[1]]).unwrap();
        let prefix = &checkpoint.config.layer_prefix;
        for (part, shape) in parts.iter().zip(shapes) {
            let tensor = checkpoint.tensor(&format!("{prefix}1.{module}{}", part.part.ending()));
            assert_eq!(tensor.unwrap().shape, *shape, "{name} {module} {:?}", part.part);
        }
        assert_eq!(parts.len(), shapes.len(), "{name} {module}");
    }
}

/// The numbers that a tensor has, read in pieces of no round size.
fn bytes_of(checkpoint: &Checkpoint, name: &str) -> Vec<u8> {
    let tensor = checkpoint.tensor(name).unwrap();
    let mut bytes = vec![0; tensor.bytes as usize];
    let mut done = 0;
    for piece in bytes.chunks_mut(37) {
        checkpoint.read_at(tensor, done, piece).unwrap();
        done += piece.len() as u64;
    }
    bytes
}

#[test]
fn rows_of_gate_and_up_are_every_other_one_of_the_file() {
    let checkpoint = golden("gpt-oss-mxfp4");
    let file = std::fs::read(&checkpoint.files[0].path).unwrap();
    let header = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let json: Value = serde_json::from_slice(&file[8..8 + header]).unwrap();
    let experts = "model.layers.2.mlp.experts";
    for (part, ending, row) in [("blocks", "weight", 32), ("scales", "scales", 2)] {
        let offsets = &json[format!("{experts}.gate_up_proj_{part}")]["data_offsets"];
        let whole = &file[8 + header + offsets[0].as_u64().unwrap() as usize..];
        for (index, module) in ["gate_proj", "up_proj"].into_iter().enumerate() {
            let found = bytes_of(&checkpoint, &format!("{experts}.3.{module}.{ending}"));
            assert_eq!(found.len(), 96 * row);
            for (at, found) in found.chunks(row).enumerate() {
                let first = (3 * 192 + 2 * at + index) * row;
                assert_eq!(found, &whole[first..first + row], "{module}.{ending} row {at}");
            }
        }
    }
}

/// One layer whose matrices are numbers of a byte in blocks of 32 × 64, cut at the edges.
fn in_blocks() -> TinyCheckpoint {
    let mut tiny = TinyCheckpoint::single(1);
    tiny.config["hidden_size"] = 96.into();
    tiny.config["intermediate_size"] = 80.into();
    tiny.files.insert("model.safetensors".into(), crate::testing::tensors(&tiny.config));
    tiny.config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [32, 64], "activation_scheme": "static"});
    let mut all = Vec::new();
    for (name, dtype, shape, bytes) in tiny.file("model.safetensors").drain(..) {
        match (name.strip_suffix(".weight"), &shape[..]) {
            (Some(module), &[rows, columns]) if module.contains("_proj") => {
                let half = bytes[..bytes.len() / 2].to_vec();
                all.push((name.clone(), "F8_E4M3", shape.clone(), half));
                let grid = [rows.div_ceil(32), columns.div_ceil(64)];
                all.push(made(&format!("{module}.weight_scale_inv"), &grid));
            }
            _ => all.push((name, dtype, shape, bytes)),
        }
    }
    *tiny.file("model.safetensors") = all;
    tiny
}

/// Gives a tensor of a tiny checkpoint another type, shape, and as many bytes as these need.
fn change(tiny: &mut TinyCheckpoint, name: &str, dtype: &'static str, shape: &[u64]) {
    let bytes = Dtype::parse(dtype).unwrap().tensor_bytes(shape).unwrap() as usize;
    *tiny.tensor(name) = (name.to_owned(), dtype, shape.to_vec(), vec![0x3c; bytes]);
}

fn tensors(tiny: &mut TinyCheckpoint) -> &mut Vec<Made> {
    tiny.file("model.safetensors")
}

fn scales_of(module: &str) -> String {
    format!("{module}.weight_scale_inv")
}

/// What others than `fp8` call them.
fn scale_of(module: &str) -> String {
    format!("{module}.weight_scale")
}

#[test]
fn scales_may_be_of_several_types_and_have_an_older_name() {
    let mut tiny = in_blocks();
    assert_eq!(stored_up(&tiny), "fp8-32x64");
    let scales = scales_of(UP);
    for (dtype, found) in [
        ("F32", Dtype::F32),
        ("F16", Dtype::F16),
        ("F8_E8M0", Dtype::F8E8M0),
        ("U8", Dtype::F8E8M0),
    ] {
        change(&mut tiny, &scales, dtype, &[3, 2]);
        let checkpoint = tiny.open().unwrap();
        assert_eq!(checkpoint.tensor(&format!("{UP}.scales")).unwrap().dtype, found);
    }
    tiny.tensor(&scales).0 = format!("{UP}.weight_scale");
    // How others scale activations is passed over.
    tensors(&mut tiny).push(made(&format!("{UP}.activation_scale"), &[]));
    tensors(&mut tiny).push(made("model.layers.0.self_attn.k_scale", &[1]));
    let checkpoint = tiny.open().unwrap();
    assert_eq!(checkpoint.layer_tensors(0).len(), 9 + 7);
    tensors(&mut tiny).push(made(&scales, &[3, 2]));
    assert!(matches!(catalog_error(&tiny), CatalogError::TensorTwice { .. }));
}

fn stored_up(tiny: &TinyCheckpoint) -> String {
    let checkpoint = tiny.open().unwrap();
    checkpoint.tensor(&format!("{UP}.weight")).unwrap().encoding.unwrap().to_string()
}

#[test]
fn without_blocks_the_scales_say_whether_each_row_has_one() {
    let mut tiny = in_blocks();
    tiny.config["quantization_config"]["weight_block_size"] = Value::Null;
    let others: Vec<String> = tensors(&mut tiny)
        .iter()
        .map(|it| it.0.clone())
        .filter(|it| it.ends_with("_inv"))
        .collect();
    others.iter().for_each(|name| change(&mut tiny, name, "F32", &[]));
    for (shape, text) in
        [(&[][..], "fp8-matrix"), (&[1], "fp8-matrix"), (&[80], "fp8-row"), (&[80, 1], "fp8-row")]
    {
        change(&mut tiny, &scales_of(UP), "F32", shape);
        assert_eq!(stored_up(&tiny), text);
    }
    change(&mut tiny, &scales_of(UP), "F32", &[3, 2]);
    let error = catalog_error(&tiny);
    let CatalogError::PackedShapeMismatch { tensor, found, .. } = &error else { panic!("{error}") };
    assert_eq!((tensor, &found[..]), (&scales_of(UP), &[3, 2][..]));
}

#[test]
fn numbers_without_scales_and_scales_without_numbers() {
    for (gone, kept) in [(scales_of(UP), "scale_inv"), (format!("{UP}.weight"), "weight")] {
        let mut tiny = in_blocks();
        tensors(&mut tiny).retain(|made| made.0 != gone);
        let error = catalog_error(&tiny);
        let CatalogError::MissingTensors { tensors } = &error else { panic!("{error}") };
        assert_eq!(tensors[..], [gone], "{kept}");
    }
}

#[test]
fn a_grid_of_other_blocks_and_types_that_are_none() {
    let mut tiny = in_blocks();
    change(&mut tiny, &scales_of(UP), "F32", &[2, 2]);
    let error = catalog_error(&tiny);
    let CatalogError::PackedShapeMismatch { tensor, expected, found, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((tensor, &expected[..], &found[..]), (&scales_of(UP), &[3, 2][..], &[2, 2][..]));
    let mut tiny = in_blocks();
    change(&mut tiny, &scales_of(UP), "I16", &[3, 2]);
    let error = catalog_error(&tiny);
    let CatalogError::UnsupportedDtype { tensor, .. } = &error else { panic!("{error}") };
    assert_eq!(*tensor, scales_of(UP));
    let mut tiny = in_blocks();
    change(&mut tiny, &format!("{UP}.weight"), "F8_E5M2", &[80, 96]);
    let error = catalog_error(&tiny);
    assert!(error.to_string().contains("F8_E5M2"), "{error}");
}

/// What a file calls the parts of pairs of 4 bits: the pairs, their scales and what all scales have in common; and a scale of
/// activations.
type PairWords = [&'static str; 4];
const COMPRESSED: PairWords =
    ["weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"];
const OPTIMIZED: PairWords = ["weight", "weight_scale", "weight_scale_2", "input_scale"];

/// A tiny checkpoint whose network has pairs of 4 bits, of compressed-tensors, all else plain.
fn in_pairs() -> TinyCheckpoint {
    let config = json!({"quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized", "ignore": ["re:.*attn.*", "lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4,
            "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": true}}}});
    pairs(config, COMPRESSED, &[1])
}

/// The same of NVIDIA's Model Optimizer.
fn optimized(algorithm: &str) -> TinyCheckpoint {
    let config = json!({"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["*attn*"]});
    pairs(config, OPTIMIZED, &[])
}

fn pairs(config: Value, words: PairWords, one_number: &[u64]) -> TinyCheckpoint {
    let mut tiny = TinyCheckpoint::single(1);
    tiny.config["hidden_size"] = 64.into();
    tiny.config["intermediate_size"] = 32.into();
    tiny.files.insert("model.safetensors".into(), crate::testing::tensors(&tiny.config));
    tiny.config["quantization_config"] = config;
    let all = tensors(&mut tiny);
    for module in ["gate_proj", "up_proj", "down_proj"].map(|it| format!("model.layers.0.mlp.{it}"))
    {
        let place = all.iter().position(|made| made.0 == format!("{module}.weight")).unwrap();
        let (_, _, shape, bytes) = all.swap_remove(place);
        let (rows, columns) = (shape[0], shape[1]);
        let codes = bytes[..(rows * columns / 2) as usize].to_vec();
        let scales = vec![0x38; (rows * columns / 16) as usize];
        let one = 1f32.to_le_bytes().to_vec();
        let [packed, scale, global, input] = words.map(|word| format!("{module}.{word}"));
        all.extend([
            (packed, "U8", vec![rows, columns / 2], codes),
            (scale, "F8_E4M3", vec![rows, columns / 16], scales),
            (global, "F32", one_number.to_vec(), one.clone()),
            (input, "F32", one_number.to_vec(), one),
        ]);
    }
    tiny
}

#[test]
fn pairs_of_four_bits_without_one_of_their_tensors_or_with_an_odd_one() {
    let nvfp4 = || optimized("NVFP4");
    assert_eq!(
        [stored_up(&in_pairs()), stored_up(&nvfp4())],
        ["nvfp4-divided", "nvfp4-multiplied"]
    );
    for (tiny, [packed, scale, global, _]) in
        [(&in_pairs as &dyn Fn() -> TinyCheckpoint, COMPRESSED), (&nvfp4, OPTIMIZED)]
    {
        for word in [packed, scale, global] {
            let mut tiny = tiny();
            let gone = format!("{UP}.{word}");
            tensors(&mut tiny).retain(|made| made.0 != gone);
            let error = catalog_error(&tiny);
            let CatalogError::MissingTensors { tensors } = &error else { panic!("{error}") };
            assert_eq!(tensors[..], [gone]);
        }
        for (word, dtype, shape) in [
            (packed, "U8", &[32, 16][..]),
            (packed, "I32", &[32, 8]),
            (scale, "F8_E4M3", &[32, 2]),
            (scale, "I8", &[32, 4]),
            (global, "F32", &[2]),
            (global, "BF16", &[1]),
        ] {
            let mut tiny = tiny();
            let name = format!("{UP}.{word}");
            change(&mut tiny, &name, dtype, shape);
            let error = catalog_error(&tiny);
            assert!(error.to_string().contains(&name), "{error}");
        }
    }
    // What U8 says of scales, only one of the two programs means.
    let mut tiny = in_pairs();
    change(&mut tiny, &scale_of(UP), "U8", &[32, 4]);
    assert!(catalog_error(&tiny).to_string().contains(&scale_of(UP)));
    let mut tiny = nvfp4();
    change(&mut tiny, &scale_of(UP), "U8", &[32, 4]);
    assert_eq!(stored_up(&tiny), "nvfp4-multiplied");
    // In the same files there may be numbers of a byte.
    let mut tiny = in_pairs();
    tensors(&mut tiny).retain(|made| !made.0.starts_with(UP));
    tensors(&mut tiny).push(made(&format!("{UP}.weight_scale"), &[32, 1]));
    tensors(&mut tiny).push(made(&format!("{UP}.weight"), &[32, 64]));
    change(&mut tiny, &format!("{UP}.weight"), "F8_E4M3", &[32, 64]);
    assert_eq!(stored_up(&tiny), "fp8-row");
}

#[test]
fn numbers_of_a_byte_of_nvidias_optimizer() {
    for (algorithm, shape, scales, dtype, text) in [
        ("FP8", &[80, 96][..], &[][..], "F32", "fp8-matrix"),
        ("FP8_PER_CHANNEL_PER_TOKEN", &[80, 96], &[80], "F32", "fp8-row"),
        ("fp8_pb_wo", &[80, 96], &[1, 1, 1, 1], "F32", "fp8-128x128"),
        ("MXFP8", &[80, 96], &[80, 3], "U8", "fp8-1x32"),
    ] {
        let mut tiny = optimized(algorithm);
        tiny.config["hidden_size"] = 96.into();
        tiny.config["intermediate_size"] = 80.into();
        tiny.files.insert("model.safetensors".into(), crate::testing::tensors(&tiny.config));
        change(&mut tiny, &format!("{UP}.weight"), "F8_E4M3", shape);
        tensors(&mut tiny).push(made(&scale_of(UP), &[1]));
        change(&mut tiny, &scale_of(UP), dtype, scales);
        assert_eq!(stored_up(&tiny), text, "{algorithm}");
        change(&mut tiny, &scale_of(UP), dtype, &[3, 2]);
        let error = catalog_error(&tiny).to_string();
        assert!(error.contains(&scale_of(UP)), "{algorithm}: {error}");
    }
    // Older ones say it in a file of its own.
    let mut tiny = optimized("NVFP4");
    tiny.config.as_object_mut().unwrap().remove("quantization_config");
    let file = tiny.write().join("hf_quant_config.json");
    let write = |algorithm: Value| {
        let said = json!({"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "group_size": 16,
            "exclude_modules": ["lm_head"]});
        let said = json!({"producer": {"name": "modelopt"}, "quantization": said});
        std::fs::write(&file, said.to_string()).unwrap();
    };
    write("NVFP4".into());
    assert_eq!(stored_up(&tiny), "nvfp4-multiplied");
    for (algorithm, refusals) in [
        (json!("NVFP4_AWQ"), ["hf_quant_config.json", "NVFP4_AWQ"]),
        (Value::Null, [UP, "is not part of"]),
    ] {
        write(algorithm);
        let error = tiny.refusal().to_string();
        assert!(refusals.iter().all(|refusal| error.contains(refusal)), "{error}");
    }
    std::fs::write(&file, "{}").unwrap();
    assert!(tiny.refusal().to_string().contains("quantization"));
    // Where the configuration says it, nobody looks there.
    tiny.config["quantization_config"] = optimized("NVFP4").config["quantization_config"].clone();
    assert_eq!(stored_up(&tiny), "nvfp4-multiplied");
    // What weights are multiplied with before they are packed is no part of a model's arithmetic here.
    let mut tiny = optimized("NVFP4");
    tensors(&mut tiny).push(made(&format!("{UP}.pre_quant_scale"), &[64]));
    let error = catalog_error(&tiny).to_string();
    assert!(error.contains(&format!("{UP}.pre_quant_scale")), "{error}");
}

#[test]
fn modes_of_mlx_are_bytes_in_words() {
    for (mode, bits, group, text) in
        [("mxfp4", 4, 32, "mxfp4"), ("mxfp8", 8, 32, "fp8-1x32"), ("nvfp4", 4, 16, "nvfp4")]
    {
        let mut tiny = TinyCheckpoint::packed();
        let of_up = json!({"mode": mode, "bits": bits, "group_size": group});
        tiny.config["quantization"][UP] = of_up;
        tensors(&mut tiny).retain(|made| !made.0.starts_with(&format!("{UP}.")));
        tensors(&mut tiny).push(made(&format!("{UP}.weight"), &[128, 64]));
        tensors(&mut tiny).push(made(&format!("{UP}.scales"), &[128, 64]));
        change(&mut tiny, &format!("{UP}.weight"), "U32", &[128, 64 * bits / 32]);
        change(&mut tiny, &format!("{UP}.scales"), "U8", &[128, 64 / group]);
        assert_eq!(stored_up(&tiny), text);
        // Of numbers of a byte, scales may be of other types, too.
        change(&mut tiny, &format!("{UP}.scales"), "I8", &[128, 64 / group]);
        let error = catalog_error(&tiny).to_string();
        assert!(error.contains(&format!("{UP}.scales")), "{error}");
        change(&mut tiny, &format!("{UP}.scales"), "U8", &[128, 64 / group + 1]);
        let error = catalog_error(&tiny);
        assert!(matches!(error, CatalogError::PackedShapeMismatch { .. }), "{error}");
        change(&mut tiny, &format!("{UP}.scales"), "U8", &[128, 64 / group]);
        tensors(&mut tiny).push(made(&format!("{UP}.biases"), &[128, 2]));
        let error = catalog_error(&tiny);
        assert!(matches!(error, CatalogError::UnexpectedTensor { .. }), "{error}");
        tensors(&mut tiny).retain(|made| !made.0.starts_with(&format!("{UP}.scales")));
        let error = catalog_error(&tiny);
        assert!(matches!(error, CatalogError::MissingTensors { .. }), "{error}");
    }
}

/// The file of a golden checkpoint with another header, opened.
fn with_header(name: &str, edit: impl Fn(&mut Value)) -> CatalogError {
    let home = tempfile::tempdir().unwrap();
    let from = crate::testing::golden_path(name);
    std::fs::copy(from.join("config.json"), home.path().join("config.json")).unwrap();
    let file = std::fs::read(from.join("model.safetensors")).unwrap();
    let end = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let mut json = serde_json::from_slice(&file[8..end]).unwrap();
    edit(&mut json);
    let file = crate::testing::file_of(json.to_string(), &file[end..]);
    std::fs::write(home.path().join("model.safetensors"), file).unwrap();
    match crate::testing::open(home.path()).map(|it| it.tensors).expect_err("must be refused") {
        crate::error::Error::Catalog(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn blocks_of_experts_without_scales_or_of_another_length() {
    let blocks = "model.layers.1.mlp.experts.down_proj_blocks";
    let scales = "model.layers.1.mlp.experts.down_proj_scales";
    let error = with_header("gpt-oss-mxfp4", |json| {
        // Under another name that the model ignores.
        let tensor = json.as_object_mut().unwrap().remove(scales).unwrap();
        json["model.layers.1.attention.bias"] = tensor;
    });
    let CatalogError::MissingTensors { tensors } = &error else { panic!("{error}") };
    assert_eq!(tensors[..], [scales]);
    let error = with_header("gpt-oss-mxfp4", |json| json[blocks]["shape"] = json!([4, 64, 6, 8]));
    assert!(matches!(error, CatalogError::PackedShapeMismatch { .. }), "{error}");
    let error = with_header("gpt-oss-mxfp4", |json| json[blocks]["shape"] = json!([2, 128, 3, 16]));
    assert!(matches!(error, CatalogError::NotOfAllExperts { experts: 4, .. }), "{error}");
}
