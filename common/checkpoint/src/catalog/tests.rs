//! Whole checkpoints: golden ones, and tensors that do not make the model.

mod bitsandbytes;
mod narrow;
mod packed;

use serde_json::{Value, json};

use super::CatalogError;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::model::Role;
use crate::testing::{TinyCheckpoint, file_name, golden, golden_path, made, open, warned};

fn catalog_error(tiny: &TinyCheckpoint) -> CatalogError {
    match tiny.refusal() {
        Error::Catalog(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn golden_checkpoints_open_without_a_warning() {
    for (name, layers, tensors, files) in [
        ("llama", 5, 9, 1),
        ("llama-sharded", 12, 9, 6),
        ("llama3-tied", 5, 9, 1),
        ("mistral", 5, 9, 1),
        ("phi3", 5, 6, 1),
        ("qwen2", 5, 12, 1),
        ("qwen3", 5, 11, 1),
    ] {
        let checkpoint = golden(name);
        assert!(checkpoint.warnings.is_empty(), "{name}: {:?}", checkpoint.warnings);
        assert_eq!(checkpoint.files.len(), files);
        assert_eq!(checkpoint.config.layers.len(), layers);
        for layer in 0..layers {
            assert_eq!(checkpoint.layer_tensors(layer).len(), tensors, "{name} layer {layer}");
        }
        assert_eq!(checkpoint.head().is_none(), checkpoint.config.tie_word_embeddings);
        assert_eq!(checkpoint.stop_token_ids(), [1]);
        let layer_bytes: u64 = (0..layers).map(|layer| checkpoint.layer_bytes(layer)).sum();
        let outer =
            [Some(checkpoint.embedding()), Some(checkpoint.final_norm()), checkpoint.head()];
        let outer: u64 = outer.into_iter().flatten().map(|tensor| tensor.bytes).sum();
        assert_eq!(checkpoint.total_bytes(), layer_bytes + outer);
    }
}

#[test]
fn layer_1_is_not_layer_10() {
    let checkpoint = golden("llama-sharded");
    for layer in [1, 10, 11] {
        for tensor in checkpoint.layer_tensors(layer) {
            assert!(tensor.name.starts_with(&format!("model.layers.{layer}.")), "{}", tensor.name);
            assert!(matches!(tensor.role, Role::Layer { layer: own, .. } if own == layer));
        }
    }
    assert!(checkpoint.layer_tensors(12).is_empty());
}

#[test]
fn a_map_and_a_read_give_the_same_bytes() {
    let checkpoint = golden("qwen3");
    for tensor in checkpoint.tensors.iter() {
        let mut bytes = vec![0; tensor.bytes as usize];
        checkpoint.read_at(tensor, 0, &mut bytes).unwrap();
        let mapped = checkpoint.map(tensor).unwrap();
        assert_eq!(mapped.bytes(), bytes);
        assert_eq!((mapped.dtype(), mapped.shape()), (tensor.dtype, &tensor.shape[..]));
    }
    let norm = checkpoint.final_norm();
    let past = checkpoint.read_at(norm, norm.bytes - 1, &mut [0; 2]);
    assert!(matches!(past, Err(Error::OutOfRange { .. })));
    assert!(checkpoint.read_at(norm, u64::MAX, &mut [0; 2]).is_err());
}

#[test]
fn one_file_of_an_indexed_checkpoint_is_not_the_model() {
    let path = golden_path("llama-sharded").join("model-00002-of-00006.safetensors");
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("no tensors for layers 0..1, 5..12"), "{error}");
}

#[test]
fn an_index_can_be_named() {
    let path = golden_path("llama-sharded").join("model.safetensors.index.json");
    assert_eq!(open(&path).unwrap().tensors.len(), 12 * 9 + 3);
}

#[test]
fn tiny_checkpoints_open_with_null_metadata_and_no_padding() {
    assert!(TinyCheckpoint::single(3).open().unwrap().warnings.is_empty());
    let mut tiny = TinyCheckpoint::indexed();
    assert!(tiny.open().unwrap().warnings.is_empty());
    tiny.index["metadata"] = Value::Null;
    assert!(tiny.open().unwrap().warnings.is_empty(), "an index without metadata");
}

// Faults of the tensors themselves.

#[test]
fn fewer_layers_than_the_configuration_says() {
    let mut tiny = TinyCheckpoint::single(2);
    tiny.config["num_hidden_layers"] = json!(4);
    let error = catalog_error(&tiny);
    let counted = matches!(&error, CatalogError::LayerCountMismatch { expected: 4, .. });
    assert!(counted && error.to_string().contains("2..4"), "{error}");
}

#[test]
fn more_layers_than_the_configuration_says_are_prediction_layers() {
    let mut tiny = TinyCheckpoint::single(3);
    tiny.config["num_hidden_layers"] = json!(2);
    tiny.config["num_nextn_predict_layers"] = json!(1);
    for leaf in ["eh_proj.weight", "shared_head.norm.weight", "enorm.weight"] {
        tiny.file("model.safetensors").push(made(&format!("model.layers.2.{leaf}"), &[4]));
    }
    let checkpoint = tiny.open().unwrap();
    assert!(warned(&checkpoint, "12 tensors belong to layers past the 2"));
    assert!(checkpoint.layer_tensors(2).is_empty());
    let used: u64 = (0..2).map(|layer| checkpoint.layer_bytes(layer)).sum();
    assert_eq!(checkpoint.total_bytes(), used + (5 * 4 * 2 + 4) * 2);
}

#[test]
fn a_stale_index_does_not_hide_what_the_headers_hold() {
    let mut tiny = TinyCheckpoint::indexed();
    let name = "model.layers.1.mlp.up_proj.scales";
    tiny.file(&file_name(2)).push(made(name, &[6, 1]));
    let error = catalog_error(&tiny);
    assert!(
        matches!(&error, CatalogError::UnexpectedTensor { tensor, reason } if tensor == name
        && reason.contains("nothing of quantization")),
        "{error}"
    );
}

#[test]
fn an_unknown_weight_is_an_unknown_model() {
    let mut tiny = TinyCheckpoint::single(1);
    tiny.file("model.safetensors").push(made("model.layers.0.self_attn.sinks", &[2]));
    assert!(catalog_error(&tiny).to_string().contains("model.layers.0.self_attn.sinks"));
}

#[test]
fn a_bias_that_the_configuration_does_not_ask_for() {
    let mut tiny = TinyCheckpoint::single(1);
    tiny.file("model.safetensors").push(made("model.layers.0.self_attn.q_proj.bias", &[4]));
    assert!(matches!(catalog_error(&tiny), CatalogError::UnexpectedTensor { .. }));
    tiny.config["attention_bias"] = json!(true);
    let error = catalog_error(&tiny);
    let CatalogError::MissingTensors { tensors } = error else { panic!("{error}") };
    let leaf = |name| format!("model.layers.0.self_attn.{name}_proj.bias");
    assert_eq!(tensors, [leaf("k"), leaf("v"), leaf("o")]);
}

#[test]
fn biases_of_zeros_that_the_configuration_does_not_ask_for_are_not_used() {
    let name = "model.layers.0.self_attn.q_proj.bias";
    let mut tiny = TinyCheckpoint::single(1);
    let plain = tiny.open().unwrap().total_bytes();
    let mut zeros = made(name, &[4]);
    zeros.3.fill(0);
    tiny.file("model.safetensors").push(zeros);
    let checkpoint = tiny.open().unwrap();
    assert!(warned(&checkpoint, "1 biases") && checkpoint.total_bytes() == plain);
    *tiny.tensor(name).3.last_mut().unwrap() = 1;
    assert!(catalog_error(&tiny).to_string().contains(name));
    // Where they are asked for, they are what the model adds.
    tiny.config["attention_bias"] = json!(true);
    for module in ["q", "k", "v", "o"] {
        let name = format!("model.layers.0.self_attn.{module}_proj.bias");
        tiny.file("model.safetensors").retain(|tensor| tensor.0 != name);
        let mut zeros = made(&name, &[4]);
        zeros.3.fill(0);
        tiny.file("model.safetensors").push(zeros);
    }
    let checkpoint = tiny.open().unwrap();
    assert_eq!(checkpoint.total_bytes(), plain + 4 * 8);
    assert!(checkpoint.warnings.is_empty(), "{:?}", checkpoint.warnings);
}

#[test]
fn an_untied_model_without_a_head() {
    let mut tiny = TinyCheckpoint::single(1);
    tiny.file("model.safetensors").retain(|made| made.0 != "lm_head.weight");
    let error = catalog_error(&tiny);
    assert!(
        matches!(&error, CatalogError::MissingTensors { tensors } if tensors[..] == ["lm_head.weight"])
    );
    tiny.config["tie_word_embeddings"] = json!(true);
    assert!(tiny.open().unwrap().head().is_none());
}

#[test]
fn a_tied_model_that_stores_a_head_uses_it_if_it_is_another() {
    let mut tiny = TinyCheckpoint::single(1);
    tiny.config["tie_word_embeddings"] = json!(true);
    let checkpoint = tiny.open().unwrap();
    assert_eq!(checkpoint.head().unwrap().name, "lm_head.weight");
    assert!(!checkpoint.config.tie_word_embeddings);
    let same = tiny.tensor("model.embed_tokens.weight").3.clone();
    tiny.tensor("lm_head.weight").3 = same;
    let checkpoint = tiny.open().unwrap();
    assert!(checkpoint.head().is_none() && checkpoint.config.tie_word_embeddings);
    assert_eq!(checkpoint.embedding().name, "model.embed_tokens.weight");
}

#[test]
fn a_shape_that_is_not_the_configurations() {
    let mut tiny = TinyCheckpoint::single(1);
    *tiny.tensor("model.layers.0.mlp.up_proj.weight") =
        made("model.layers.0.mlp.up_proj.weight", &[4, 6]);
    match catalog_error(&tiny) {
        CatalogError::ShapeMismatch { tensor, expected, found } => {
            assert_eq!(tensor, "model.layers.0.mlp.up_proj.weight");
            assert_eq!((expected, found), (vec![6, 4], vec![4, 6]));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_weight_of_a_type_that_is_not_computed_with() {
    let mut tiny = TinyCheckpoint::single(1);
    tiny.tensor("model.layers.0.mlp.up_proj.weight").1 = "I16";
    let error = catalog_error(&tiny);
    assert!(matches!(error, CatalogError::UnsupportedDtype { dtype: Dtype::I16, .. }), "{error}");
}

#[test]
fn the_identity_changes_with_the_files() {
    let tiny = TinyCheckpoint::indexed();
    let first = tiny.open().unwrap().identity().unwrap();
    assert_eq!(open(tiny.directory.path()).unwrap().identity().unwrap(), first);
    let path = tiny.directory.path().join(file_name(2));
    let file = std::fs::File::options().append(true).open(&path).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    file.set_modified(later).unwrap();
    assert_ne!(open(tiny.directory.path()).unwrap().identity().unwrap(), first);
}

#[test]
fn a_file_cut_after_opening_is_an_error_and_no_crash() {
    let tiny = TinyCheckpoint::single(1);
    let checkpoint = tiny.open().unwrap();
    let path = tiny.directory.path().join("model.safetensors");
    std::fs::File::options().write(true).open(path).unwrap().set_len(100).unwrap();
    let tensor = checkpoint.final_norm();
    assert!(checkpoint.read_at(tensor, 0, &mut [0; 2]).is_err());
    assert!(checkpoint.map(tensor).is_err());
}

#[test]
fn generation_defaults_override_end_tokens() {
    let tiny = TinyCheckpoint::single(1);
    let path = tiny.write().join("generation_config.json");
    assert_eq!(tiny.open().unwrap().stop_token_ids(), [1]);
    std::fs::write(&path, r#"{"eos_token_id":[4,3,4]}"#).unwrap();
    assert_eq!(tiny.open().unwrap().stop_token_ids(), [3, 4]);
    std::fs::write(&path, "{").unwrap();
    let checkpoint = tiny.open().unwrap();
    assert!(warned(&checkpoint, "generation_config.json"));
    assert_eq!(checkpoint.stop_token_ids(), [1]);
}

#[test]
fn numbers_that_cannot_choose_experts_are_refused_with_their_tensor_and_file() {
    for (model, name, bytes) in [
        ("gpt-oss", "model.layers.2.mlp.router.bias", [0x80, 0x7f]), // Infinite.
        ("glm4-moe", "model.layers.3.mlp.gate.e_score_correction_bias", [0xff, 0xff]),
        ("gemma4-moe", "model.language_model.layers.1.router.per_expert_scale", [0xc0, 0xff]),
    ] {
        let home = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(golden_path(model)).unwrap().flatten() {
            std::fs::copy(entry.path(), home.path().join(entry.file_name())).unwrap();
        }
        let before = open(home.path()).unwrap();
        let tensor = before.tensor(name).unwrap();
        assert_eq!(tensor.dtype.tensor_bytes(&[1]), Ok(bytes.len() as u64), "{name}");
        let path = before.files[tensor.file].path.clone();
        let mut file = std::fs::read(&path).unwrap();
        let second = tensor.offset as usize + bytes.len();
        file[second..second + bytes.len()].copy_from_slice(&bytes);
        std::fs::write(&path, file).unwrap();
        let error = open(home.path()).unwrap_err();
        let is_it =
            |error: &CatalogError| matches!(error, CatalogError::NotFinite { index: 1, .. });
        assert!(matches!(&error, Error::Catalog(error) if is_it(error)), "{error}");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains(path.to_str().unwrap()), "{text}");
    }
}

#[test]
fn digests_of_parts_are_remembered_for_one_way_to_part_alone() {
    let path = golden_path("qwen3-moe").display().to_string();
    let open = || crate::Checkpoint::open(&path).unwrap();
    let ways = [Some(open()), open().sliced(2), open().sliced(3)];
    let identities: Vec<String> = ways.iter().flatten().map(|it| it.identity().unwrap()).collect();
    assert_eq!(identities.len(), 3);
    assert!(identities[0] != identities[1] && identities[1] != identities[2]);
    let again = ways[2].as_ref().and_then(|thirds| thirds.sliced(2)).unwrap();
    assert_eq!(again.identity().unwrap(), identities[1], "parts are made of whole layers");
    // All of the layer's tensors are in its parts, what chooses experts in each slice.
    let [whole, halves, _] = ways.map(Option::unwrap);
    let names = |it: &crate::Checkpoint, layers: std::ops::Range<usize>| -> Vec<String> {
        let tensors = layers.flat_map(|layer| it.layer_tensors(layer));
        tensors.map(|tensor| tensor.name.clone()).collect()
    };
    let (mut parts, of_whole) = (names(&halves, 3..6), names(&whole, 1..2));
    assert_eq!(parts.len(), of_whole.len() + 2, "the router and the norm before it");
    parts.sort();
    parts.dedup();
    let mut of_whole = of_whole;
    of_whole.sort();
    assert_eq!(parts, of_whole);
}
