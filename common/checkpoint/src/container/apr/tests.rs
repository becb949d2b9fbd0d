//! Golden files: what `apr-format` wrote, and what an independent reader says of it.

use serde_json::Value;
use std::path::{Path, PathBuf};

use super::*;
use crate::catalog::Checkpoint;
use crate::container::{Container, StoredTensor};
use crate::encoding::{AprType, Encoding, GgmlType, Part, RowsAt};
use crate::error::Error;
use crate::file::read_exact_at;
use crate::model::ConfigError;
use crate::testing::{golden, open};

/// Largest relative difference of a sum: both add in f64, in another order.
const SUM_TOLERANCE: f64 = 1e-9;

const NAMES: [&str; 4] = ["llama-f32", "llama-f16-bf16", "llama-q8-q4", "llama3-q4k"];

fn golden_apr(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden-apr");
    directory.join(format!("{name}.apr"))
}

fn expected(name: &str) -> Value {
    let text = std::fs::read(golden_apr(name).with_extension("json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// The numbers of a tensor of the checkpoint that is called so.
fn decoded(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let weight = checkpoint.tensor(name).unwrap();
    let bytes = |tensor| checkpoint.map(tensor).unwrap().bytes().to_vec();
    let Some(encoding) = weight.encoding else {
        let float = crate::encoding::FloatType::of(weight.dtype).unwrap();
        let mut out = vec![0.0; weight.bytes as usize / float.bytes()];
        float.widen(&bytes(weight), &mut out);
        return out;
    };
    let count = match encoding {
        Encoding::Ggml(kind) => weight.bytes as usize / kind.block_bytes() * kind.block(),
        Encoding::Apr(AprType::Q4) => weight.bytes as usize / 18 * 32,
        Encoding::Apr(AprType::Q8) => weight.bytes as usize,
        _ => weight.shape.iter().product::<u64>() as usize,
    };
    let mut parts = vec![weight];
    if encoding == Encoding::Apr(AprType::Q8) {
        let (module, _) = Part::split(name).unwrap();
        parts.push(checkpoint.tensor(&format!("{module}{}", Part::Scales.ending())).unwrap());
    }
    let stored: Vec<_> = parts.iter().map(|part| (part.dtype, bytes(part))).collect();
    let stored: Vec<_> = stored.iter().map(|(dtype, bytes)| (*dtype, &bytes[..])).collect();
    let mut out = vec![0.0; count];
    let columns = count / (weight.shape[0] as usize).max(1);
    encoding.decode_rows(RowsAt::start(columns), &stored, &mut out);
    out
}

#[test]
fn every_tensor_is_what_an_independent_reader_says() {
    for name in NAMES {
        let (path, expected) = (golden_apr(name), expected(name));
        let (head, file, file_bytes) = Head::read(&path).unwrap();
        let header = &expected["header"];
        assert_eq!(file_bytes, header["file_bytes"].as_u64().unwrap(), "{name}");
        assert_eq!(u64::from(head.header.flags), header["flags"].as_u64().unwrap(), "{name}");
        assert_eq!(head.header.data_start, header["data_offset"].as_u64().unwrap(), "{name}");
        let stored = Apr.stored(&path).unwrap();
        let checksum = stored.files[0].0.checksum.unwrap();
        let bytes = std::fs::read(&path).unwrap();
        checksum.check(&path, crc32fast::hash(&bytes[..checksum.bytes as usize])).unwrap();
        assert_eq!(checksum.bytes + 4, file_bytes, "{name}");
        let mut keys: Vec<&String> = head.metadata.keys().collect();
        keys.sort();
        assert_eq!(serde_json::to_value(keys).unwrap(), expected["metadata_keys"], "{name}");

        let checkpoint = open(&path).unwrap();
        let tensors = expected["tensors"].as_array().unwrap();
        assert_eq!(head.tensors.len(), tensors.len(), "{name}");
        for (tensor, expected) in head.tensors.iter().zip(tensors) {
            let TensorInfo { name: tensor, kind, shape, start, bytes } = tensor;
            let number = |field: &str| expected[field].as_u64().unwrap();
            assert_eq!(*tensor, expected["name"].as_str().unwrap());
            assert_eq!(u64::from(kind.id().unwrap()), number("dtype_id"), "{tensor}");
            assert_eq!(serde_json::to_value(shape).unwrap(), expected["shape"], "{tensor}");
            assert_eq!(start - head.header.data_start, number("offset"), "{tensor}");
            assert_eq!(*bytes, number("size"), "{tensor}");
            let mut stored = vec![0; *bytes as usize];
            read_exact_at(&file, &mut stored, *start).unwrap();
            let sum = format!("{:08x}", crc32fast::hash(&stored));
            assert_eq!(sum, expected["crc32"].as_str().unwrap(), "{tensor}");

            let found = decoded(&checkpoint, tensor);
            let weight = |value: &Value| value.as_f64().unwrap() as f32;
            let first: Vec<f32> =
                expected["first"].as_array().unwrap().iter().map(weight).collect();
            assert_eq!(found[..first.len()], first, "{name}: {tensor}");
            assert_eq!(*found.last().unwrap(), weight(&expected["last"]), "{name}: {tensor}");
            let sum: f64 = found.iter().copied().map(f64::from).sum();
            let size: f64 = found.iter().map(|weight| f64::from(weight.abs())).sum();
            let error = (sum - expected["sum"].as_f64().unwrap()).abs();
            assert!(error <= size * SUM_TOLERANCE, "{name}: {tensor}: {error:e} of {size}");
        }
    }
}

#[test]
fn a_file_says_what_the_model_is() {
    let checkpoint = open(&golden_apr("llama-f32")).unwrap();
    let same = golden("llama");
    assert_eq!(checkpoint.config.layers, same.config.layers);
    assert_eq!(checkpoint.config.rotations, same.config.rotations);
    assert_eq!(checkpoint.stop_token_ids(), [1]);
    assert_eq!(checkpoint.location.name, "llama-f32");
    assert!(checkpoint.texts.has("chat_template.jinja"));
    assert!(checkpoint.warnings[0].contains("as GPT-2 does"), "{:?}", checkpoint.warnings);
    let made = checkpoint.texts.read("tokenizer.json", 1 << 20).unwrap().unwrap();
    let made: Value = serde_json::from_slice(&made).unwrap();
    let hub = std::fs::read(crate::testing::golden_path("llama").join("tokenizer.json")).unwrap();
    let hub: Value = serde_json::from_slice(&hub).unwrap();
    assert_eq!(made["model"]["vocab"], hub["model"]["vocab"]);
    let ids = |tokenizer: &Value| {
        let added = tokenizer["added_tokens"].as_array().unwrap().iter();
        added.map(|token| token["id"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&made), ids(&hub));
    let tied = open(&golden_apr("llama3-q4k")).unwrap();
    assert!(tied.config.tie_word_embeddings && tied.head().is_none());
    assert_ne!(tied.config.rotations, same.config.rotations, "it is scaled");
    let encodings = |checkpoint: &Checkpoint| {
        let all = checkpoint.tensors.iter().filter_map(|tensor| tensor.encoding);
        all.map(|encoding| encoding.to_string()).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(encodings(&tied).into_iter().collect::<Vec<_>>(), ["ggml-q4_k", "ggml-q6_k"]);
    let codes = open(&golden_apr("llama-q8-q4")).unwrap();
    assert_eq!(encodings(&codes).into_iter().collect::<Vec<_>>(), ["apr-q4", "apr-q8"]);
}

/// A file with these metadata and tensors, in the order of their names, as the format's writers lay it out. The bytes of tensors
/// are zeros.
fn written(metadata: &Value, tensors: &[(&str, u8, &[u64])]) -> Vec<u8> {
    let json = metadata.to_string();
    let (mut index, mut data_bytes) = (Vec::new(), 0);
    for (name, id, shape) in tensors {
        index.extend((name.len() as u16).to_le_bytes());
        index.extend(name.as_bytes());
        index.extend([*id, shape.len() as u8]);
        index.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
        let bytes = Kind::of_id(*id).unwrap().bytes(shape).unwrap();
        index.extend([data_bytes, bytes].iter().flat_map(|number| number.to_le_bytes()));
        data_bytes += aligned(bytes).unwrap();
    }
    let index_at = HEADER_BYTES + aligned(json.len() as u64).unwrap();
    let data_at = index_at + aligned(index.len() as u64).unwrap();
    let mut file = [&MAGIC[..], &[MAJOR_VERSION, 0, 0, 4]].concat();
    file.extend((tensors.len() as u32).to_le_bytes());
    file.extend(HEADER_BYTES.to_le_bytes());
    file.extend((json.len() as u32).to_le_bytes());
    file.extend([index_at, data_at].iter().flat_map(|number| number.to_le_bytes()));
    file.resize(HEADER_BYTES as usize, 0);
    let sum = header_checksum(file.first_chunk().unwrap());
    file[40..44].copy_from_slice(&sum.to_le_bytes());
    file.extend(json.as_bytes());
    file.resize(index_at as usize, 0);
    file.extend(index);
    file.resize((data_at + data_bytes) as usize, 0);
    file.extend(crc32fast::hash(&file).to_le_bytes());
    file
}

/// What opening such a file gives.
fn opened(metadata: &Value, tensors: &[(&str, u8, &[u64])]) -> Result<Checkpoint, Error> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made.apr");
    std::fs::write(&path, written(metadata, tensors)).unwrap();
    open(&path)
}

/// Metadata of a model of one layer, with these keys put over them; a null takes one away.
fn metadata(over: Value) -> Value {
    let mut all = serde_json::json!({
        "hf_architecture": "LlamaForCausalLM", "hf_model_type": "llama", "hidden_size": 64, "num_layers": 1,
        "num_heads": 2, "num_kv_heads": 1, "vocab_size": 32, "intermediate_size": 96, "rope_theta": 1e4,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "head_dim": 32, "rope_type": 2,
    });
    let fields = all.as_object_mut().unwrap();
    fields.extend(over.as_object().unwrap().clone());
    all
}

/// The tensors of that model: norms in F32, all else of one kind, some of another one.
fn tensors(kind: u8, others: &[(&str, u8)]) -> Vec<(&'static str, u8, &'static [u64])> {
    const ALL: [(&str, &[u64]); 12] = [
        ("lm_head.weight", &[32, 64]),
        ("model.embed_tokens.weight", &[32, 64]),
        ("model.layers.0.input_layernorm.weight", &[64]),
        ("model.layers.0.mlp.down_proj.weight", &[64, 96]),
        ("model.layers.0.mlp.gate_proj.weight", &[96, 64]),
        ("model.layers.0.mlp.up_proj.weight", &[96, 64]),
        ("model.layers.0.post_attention_layernorm.weight", &[64]),
        ("model.layers.0.self_attn.k_proj.weight", &[32, 64]),
        ("model.layers.0.self_attn.o_proj.weight", &[64, 64]),
        ("model.layers.0.self_attn.q_proj.weight", &[64, 64]),
        ("model.layers.0.self_attn.v_proj.weight", &[32, 64]),
        ("model.norm.weight", &[64]),
    ];
    let of = |(name, shape): (&'static str, &'static [u64])| {
        let plain = if name.contains("norm") { 0 } else { kind };
        let other = others.iter().find(|(other, _)| *other == name);
        (name, other.map_or(plain, |(_, other)| *other), shape)
    };
    ALL.into_iter().map(of).collect()
}

#[test]
fn matrices_are_given_in_the_parts_of_their_encodings() {
    let checkpoint =
        opened(&metadata(serde_json::json!({})), &tensors(128, &[("lm_head.weight", 129)]))
            .unwrap();
    let stored = |name: &str| -> StoredTensor { checkpoint.tensor(name).unwrap().stored.clone() };
    let head = stored("lm_head.weight");
    let scale = stored(&format!("lm_head{}", Part::Scales.ending()));
    assert_eq!((scale.bytes, scale.offset + 4), (4, head.offset));
    assert_eq!((&head.shape[..], head.encoding), (&[32, 64][..], Some(Encoding::Apr(AprType::Q8))));
    let down = stored("model.layers.0.mlp.down_proj.weight");
    assert_eq!((&down.shape[..], down.bytes), (&[64, 54][..], 64 * 54));
    // Nothing of the file but its head was read: where the footer is wrong nobody sees it here.
    assert_eq!(checkpoint.head_matrix().unwrap().parts.len(), 2);
    assert_eq!(GgmlType::Q4K.bytes(256), Some(144));
}

#[test]
fn what_cannot_be_a_model_is_refused_by_name() {
    use serde_json::json;
    let cases: Vec<(Value, &str)> = vec![
        (json!({"hidden_size": null}), r#"metadata lack "hidden_size""#),
        (json!({"num_layers": null}), r#"metadata lack "num_layers""#),
        (json!({"rope_theta": null}), r#"metadata lack "rope_theta""#),
        (
            json!({"hf_architecture": null, "hf_model_type": null}),
            r#"metadata lack "hf_architecture""#,
        ),
        (json!({"num_heads": "2"}), r#""num_heads" in the metadata must be a number"#),
        (json!({"hf_architecture": 1}), r#""hf_architecture" in the metadata must be a string"#),
        (json!({"rope_type": 0}), r#""rope_type" 0 in the metadata is not read"#),
        (json!({"hf_architecture": "BertModel"}), "BertModel"),
        (json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping"),
        (
            json!({"huggingface.config_json": {}}),
            r#""huggingface.config_json" in the metadata must be a string"#,
        ),
        (json!({"huggingface.config_json": "{}"}), "architectures"),
        (
            json!({"huggingface.tokenizer_json": 1}),
            r#""huggingface.tokenizer_json" in the metadata"#,
        ),
    ];
    for (over, words) in cases {
        let error = opened(&metadata(over.clone()), &tensors(0, &[])).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("made.apr"), "{over}: {error}");
    }
    let error = opened(&metadata(json!({})), &tensors(0, &[("model.norm.weight", 6)])).unwrap_err();
    assert!(error.to_string().contains("\"model.norm.weight\" is I8"), "{error}");
    let error =
        opened(&metadata(json!({})), &tensors(0, &[("model.norm.weight", 129)])).unwrap_err();
    assert!(error.to_string().contains("\"model.norm.weight\" is U8"), "{error}");
}

#[test]
fn blocks_that_run_over_the_ends_of_rows_are_refused_by_name() {
    let mut list = tensors(0, &[]);
    list[1] = ("model.embed_tokens.weight", 128, &[32, 33]);
    let error = opened(&metadata(serde_json::json!({"hidden_size": 33})), &list).unwrap_err();
    let words =
        "\"model.embed_tokens.weight\" has rows of 33 weights, which cannot be stored as apr-q4";
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn a_scale_takes_no_name_of_another_tensor() {
    let scales = format!("a{}", Part::Scales.ending());
    let list: &[(&str, u8, &[u64])] = &[(&scales, 0, &[1]), ("a.weight", 129, &[2, 2])];
    let error = opened(&metadata(serde_json::json!({})), list).unwrap_err();
    let taken = matches!(&error, Error::Apr { cause: AprError::ScaleNameTaken { tensor }, .. } if *tensor == scales);
    assert!(taken, "{error}");
}

#[test]
fn texts_of_the_hub_are_kept_whole() {
    let config = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":64,"num_hidden_layers":1,
        "num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,"vocab_size":32,"intermediate_size":96,
        "max_position_embeddings":128,"rms_norm_eps":1e-6,"rope_theta":5e5}"#;
    let over = serde_json::json!({
        "huggingface.config_json": config, "huggingface.tokenizer_json": "{\"tokens\": 1}",
        "huggingface.generation_config_json": "{\"eos_token_id\": [7]}", "chat_template": "{{ x }}",
        "huggingface.chat_template_jinja": "{{ y }}", "hidden_size": 1, "num_layers": null,
    });
    let checkpoint = opened(&metadata(over), &tensors(30, &[])).unwrap();
    assert_eq!(checkpoint.stop_token_ids(), [7]);
    let text = |name: &str| {
        let text = checkpoint.texts.read(name, 1 << 20).unwrap().unwrap();
        String::from_utf8(text.into_owned()).unwrap()
    };
    assert_eq!(text("config.json"), config);
    assert_eq!(text("chat_template.jinja"), "{{ y }}");
    assert_eq!(text("tokenizer.json"), "{\"tokens\": 1}");
    assert!(checkpoint.warnings.is_empty(), "{:?}", checkpoint.warnings);
}

#[test]
fn what_is_no_model_of_ours_is_stored_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.apr");
    std::fs::write(&path, super::malformed::smallest()).unwrap();
    let stored = Apr.stored(&path).unwrap();
    assert_eq!(stored.tensors.len(), 2);
    assert!(!stored.texts.has("config.json"));
    let error = Apr.open(&path).unwrap_err();
    assert!(matches!(error, Error::Apr { cause: AprError::MissingKey { .. }, .. }), "{error}");
}

#[test]
fn files_are_known_by_their_first_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let whatever = directory.path().join("weights.bin");
    std::fs::copy(golden_apr("llama-f32"), &whatever).unwrap();
    assert_eq!(open(&whatever).unwrap().location.name, "weights");
    let renamed = directory.path().join("model.apr");
    std::fs::write(&renamed, "version https://git-lfs.github.com/spec/v1\n").unwrap();
    let error = open(&renamed).unwrap_err().to_string();
    assert!(error.contains("does not begin as an APR file"), "{error}");
    // A directory of that name is a directory.
    assert!(!Apr.recognise(directory.path()));
    let error =
        opened(&metadata(serde_json::json!({"vocab_size": 0})), &tensors(0, &[])).unwrap_err();
    assert!(
        matches!(error, Error::Config { cause: ConfigError::OutOfRange { .. }, .. }),
        "{error}"
    );
}
