//! One test for each way an index and its files can disagree, and for each choice between files.

use serde_json::json;

use super::WeightsError;
use super::header::{FileError, HeaderError};
use super::index::IndexError;
use crate::error::Error;
use crate::testing::{NORM, TinyCheckpoint, file_name, made, open, warned};

fn weights_error(tiny: &TinyCheckpoint) -> WeightsError {
    match tiny.refusal() {
        Error::Weights(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn index_names_a_tensor_its_file_lacks() {
    let mut tiny = TinyCheckpoint::indexed();
    tiny.file(&file_name(2)).retain(|made| made.0 != NORM);
    match weights_error(&tiny) {
        WeightsError::IndexTensorMissing { tensor, file } => {
            assert_eq!((tensor.as_str(), file), (NORM, file_name(2)));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn index_names_an_absent_tensor_that_nothing_needs() {
    let mut tiny = TinyCheckpoint::indexed();
    tiny.index["weight_map"]["mtp.fc.weight"] = json!(file_name(1));
    assert!(warned(&tiny.open().unwrap(), "mtp.fc.weight"));
}

#[test]
fn index_maps_a_tensor_to_the_wrong_file() {
    let mut tiny = TinyCheckpoint::indexed();
    tiny.index["weight_map"][NORM] = json!(file_name(1));
    match weights_error(&tiny) {
        WeightsError::IndexWrongFile { tensor, mapped, found } => {
            assert_eq!((tensor.as_str(), mapped, found), (NORM, file_name(1), file_name(2)));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn absent_files_are_listed_all_at_once() {
    let mut tiny = TinyCheckpoint::indexed();
    tiny.index["weight_map"]["x"] = json!("model-00003-of-00003.safetensors");
    tiny.files.remove(&file_name(2));
    let error = weights_error(&tiny);
    let WeightsError::FilesMissing { expected, files, .. } = &error else { panic!("{error}") };
    assert_eq!(*expected, 3);
    assert_eq!(files[..], [file_name(2), "model-00003-of-00003.safetensors".into()]);
    assert!(error.to_string().contains("2 of 3"), "{error}");
}

#[test]
fn a_file_shorter_than_its_header_says() {
    let tiny = TinyCheckpoint::indexed();
    let path = tiny.write().join(file_name(2));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let error = open(tiny.directory.path()).unwrap_err();
    let Error::File(FileError::Header { path: named, cause }) = &error else { panic!("{error}") };
    assert!(matches!(cause, HeaderError::Truncated { .. }), "{error}");
    assert_eq!(named, &path);
}

#[test]
fn a_tensor_that_the_index_does_not_name_is_usable() {
    let mut tiny = TinyCheckpoint::indexed();
    tiny.index["weight_map"].as_object_mut().unwrap().remove(NORM);
    let checkpoint = tiny.open().unwrap();
    assert!(warned(&checkpoint, NORM), "{:?}", checkpoint.warnings);
    assert_eq!(checkpoint.layer_tensors(1).len(), 9);
}

#[test]
fn of_a_tensor_in_two_files_the_index_decides() {
    let mut tiny = TinyCheckpoint::indexed();
    let mut other = made(NORM, &[4]);
    other.3.fill(9);
    tiny.file(&file_name(1)).push(other);
    let checkpoint = tiny.open().unwrap();
    assert!(warned(&checkpoint, "in two files"), "{:?}", checkpoint.warnings);
    let tensors = checkpoint.layer_tensors(1);
    let tensor = tensors.iter().find(|tensor| tensor.name == NORM).unwrap();
    assert!(checkpoint.files[tensor.file].path.ends_with(file_name(2)));

    tiny.index["weight_map"].as_object_mut().unwrap().remove(NORM);
    let error = weights_error(&tiny);
    assert!(matches!(&error, WeightsError::DuplicateTensor { tensor, .. } if tensor == NORM));
}

#[test]
fn file_names_that_leave_the_directory() {
    for name in [
        "../x.safetensors",
        "/abs.safetensors",
        "C:\\x.safetensors",
        "\\\\srv\\x.safetensors",
        "a/../../b.safetensors",
        "a\0b.safetensors",
        "",
    ] {
        let mut tiny = TinyCheckpoint::indexed();
        tiny.index["weight_map"][NORM] = json!(name);
        let error = tiny.refusal();
        let refused =
            matches!(error, Error::Index { cause: IndexError::UnsafeFileName { .. }, .. });
        assert!(refused, "{name:?}: {error}");
    }
}

#[test]
fn file_names_of_pickles() {
    let mut tiny = TinyCheckpoint::indexed();
    tiny.index["weight_map"][NORM] = json!("pytorch_model-00001-of-00002.bin");
    let error = tiny.refusal();
    assert!(error.to_string().contains("does not end in .safetensors"), "{error}");
}

#[test]
fn an_index_that_is_none() {
    for index in [json!([]), json!({}), json!({"weight_map": []}), json!({"weight_map": {"a": 1}})]
    {
        let mut tiny = TinyCheckpoint::indexed();
        tiny.index = index;
        let error = tiny.refusal();
        assert!(matches!(error, Error::Index { cause: IndexError::Json(_), .. }), "{error}");
    }
    let mut tiny = TinyCheckpoint::indexed();
    tiny.index["metadata"] = json!("x".repeat(11 << 20));
    let error = tiny.refusal();
    assert!(matches!(error, Error::Index { cause: IndexError::TooLarge { .. }, .. }), "{error}");
}

#[test]
fn a_wrong_total_size_is_only_a_warning() {
    let mut tiny = TinyCheckpoint::indexed();
    tiny.index["metadata"]["total_size"] = json!(12);
    assert!(warned(&tiny.open().unwrap(), "12 bytes in all"));
}

// Which files count.

#[test]
fn no_weights_at_all() {
    let mut tiny = TinyCheckpoint::single(1);
    tiny.files.clear();
    assert!(matches!(weights_error(&tiny), WeightsError::NoWeights { hint: "", .. }));
    std::fs::write(tiny.directory.path().join("pytorch_model.bin"), "x").unwrap();
    assert!(weights_error(&tiny).to_string().contains("convert"));
}

#[test]
fn no_configuration() {
    let tiny = TinyCheckpoint::single(1);
    std::fs::remove_file(tiny.write().join("config.json")).unwrap();
    let error = open(tiny.directory.path()).unwrap_err().to_string();
    assert!(error.contains("config.json"), "{error}");
}

#[test]
fn a_single_file_beside_its_own_index() {
    let mut tiny = TinyCheckpoint::single(2);
    tiny.reindex();
    assert!(tiny.open().unwrap().warnings.is_empty());
}

#[test]
fn a_single_file_beside_other_files_counts_if_it_is_whole() {
    let mut tiny = TinyCheckpoint::indexed();
    let whole = TinyCheckpoint::single(2).files.remove("model.safetensors").unwrap();
    tiny.files.insert("model.safetensors".into(), whole);
    let checkpoint = tiny.open().unwrap();
    assert_eq!(checkpoint.files.len(), 1);
    assert!(warned(&checkpoint, "the single file is used"));

    tiny.file("model.safetensors").retain(|made| made.0 != NORM);
    let error = weights_error(&tiny);
    assert!(matches!(&error, WeightsError::Ambiguous { missing, .. } if missing[..] == [NORM]));
    // Naming one of them settles it.
    let index = tiny.directory.path().join("model.safetensors.index.json");
    assert_eq!(open(&index).unwrap().files.len(), 2);
}

#[test]
fn files_in_a_subdirectory_are_allowed() {
    let mut tiny = TinyCheckpoint::indexed();
    let tensors = tiny.files.remove(&file_name(2)).unwrap();
    tiny.files.insert("sub/second.safetensors".into(), tensors);
    tiny.reindex();
    assert_eq!(tiny.open().unwrap().layer_tensors(1).len(), 9);
}
