//! APR files, by what the container that reads them makes of them.

use std::path::Path;

use cake_checkpoint::{Encoding, FloatType, GgmlType, ModelSpec, Scheme, StoredTensor};

use super::convert;
use crate::convert::Encode;
use crate::digests::digests;
use crate::testing::{GOLDEN, Quiet, golden};
use crate::{Changed, Error, Options, Source, Target, compare};

const OPTIONS: Options = Options { force: false, threads: 2 };

/// Writes a model as APR and opens what came of it.
fn written(source: Source, encode: Encode, path: &Path) -> Source {
    let checkpoint = source.checkpoint().unwrap();
    let target = Target::File(path.into());
    let (job, lost) = convert(source, &checkpoint, encode, target).unwrap();
    assert_eq!(lost, [""; 0]);
    job.run(OPTIONS, &Quiet).unwrap();
    let found = Source::open(path.to_str().unwrap()).unwrap();
    digests(&found, 2, &Quiet).unwrap();
    assert_eq!(found.warnings, [""; 0]);
    found
}

#[test]
fn every_golden_model_is_the_same_in_an_apr_file() {
    let home = tempfile::tempdir().unwrap();
    for name in ["llama", "qwen2", "qwen3", "gemma3", "phi3", "qwen3-moe", "llama-sharded"] {
        let path = home.path().join(format!("{name}.apr"));
        let found = written(golden(name), Encode::AsStored, &path);
        let (before, after) = (golden(name), found.checkpoint().unwrap());
        assert_eq!(after.config, before.checkpoint().unwrap().config, "{name}");
        let same = compare((&before, None), (&found, Some(&after)), 2, &Quiet).unwrap();
        assert_eq!((same.equal, same.changed.len()), (before.tensors.len(), 0), "{same:?}");
        // The texts too.
        let text = |source: &Source| {
            let read = source.texts.read("tokenizer.json", 1 << 24).unwrap().unwrap();
            read.into_owned()
        };
        assert!(text(&before) == text(&found), "{name}");
    }
}

#[test]
fn what_mlx_packed_is_a_model_without_packed_modules() {
    let home = tempfile::tempdir().unwrap();
    // What chooses experts has other bits than the rest; names of MLX; another form.
    for name in ["qwen3-moe-mlx4", "gemma4-e-mlx4", "falcon-h1-mlx4"] {
        let path = home.path().join(format!("{name}.apr"));
        let found = written(golden(name), Encode::Float(FloatType::F32), &path);
        let (before, after) = (golden(name), found.checkpoint().unwrap());
        let checkpoint = before.checkpoint().unwrap();
        let plain = |config: &ModelSpec| ModelSpec { quantization: None, ..config.clone() };
        assert_eq!(plain(&after.config), plain(&checkpoint.config), "{name}");
        let all = (&before, Some(&checkpoint));
        let same = compare(all, (&found, Some(&after)), 2, &Quiet).unwrap();
        let changed = |it: &Changed| it.by.is_none_or(|by| by.largest > 0.0);
        assert!(!same.changed.iter().any(changed), "{same:?}");
        assert!(same.equal + same.changed.len() > 10, "{same:?}");
    }
}

#[test]
fn the_checksum_at_the_end_finds_what_changed() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("model.apr");
    let found = written(golden("qwen2"), Encode::AsStored, &path);
    let (whole, last) = (std::fs::read(&path).unwrap(), found.tensors.last().unwrap());
    // A letter of a text that nothing depends on.
    let license = whole.windows(9).position(|it| it == b"\"license\"").unwrap();
    let mut places = vec![license + 1, last.offset as usize, whole.len() - 1];
    // The zeros behind a tensor, of whichever there are some.
    let has_zeros = |end: &u64| !end.is_multiple_of(64);
    let ends = found.tensors.iter().map(|tensor| tensor.offset + tensor.bytes);
    places.extend(ends.filter(has_zeros).map(|end| end as usize).take(1));
    for place in places {
        let mut file = whole.clone();
        file[place] ^= 1;
        std::fs::write(&path, file).unwrap();
        let source = Source::open(path.to_str().unwrap()).unwrap();
        let error = digests(&source, 2, &Quiet).unwrap_err();
        let is_named = matches!(&error, Error::Checkpoint(cake_checkpoint::Error::Checksum { .. }));
        assert!(is_named && error.to_string().contains("model.apr"), "{place}: {error}");
    }
}

#[test]
fn tensors_without_bytes_change_no_checksum() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("model.apr");
    let mut source = golden("llama");
    let checkpoint = source.checkpoint().unwrap();
    // Before its neighbour in the file, behind it in name.
    let first = source.tensors[0].clone();
    let empty = StoredTensor { name: "zz".into(), shape: vec![0, 4], bytes: 0, ..first };
    source.tensors.insert(0, empty);
    let found = {
        let target = Target::File(path.clone());
        let (job, _) = convert(source, &checkpoint, Encode::AsStored, target).unwrap();
        job.run(OPTIONS, &Quiet).unwrap();
        Source::open(path.to_str().unwrap()).unwrap()
    };
    assert!(found.tensors.iter().any(|tensor| tensor.bytes == 0));
    digests(&found, 2, &Quiet).unwrap();
}

#[test]
fn codes_are_near_what_they_were_made_of_and_copied_as_they_are() {
    let home = tempfile::tempdir().unwrap();
    for (scheme, kind) in [(Scheme::Q8, "apr-q8"), (Scheme::Q4, "apr-q4")] {
        let path = home.path().join(format!("{kind}.apr"));
        let found = written(golden("llama"), Encode::Affine(scheme), &path);
        let checkpoint = found.checkpoint().unwrap();
        let encoding = |name: &str| checkpoint.tensor(name).unwrap().encoding.unwrap().to_string();
        assert_eq!(encoding("model.layers.1.mlp.up_proj.weight"), kind);
        assert_eq!(encoding("lm_head.weight"), "apr-q8");
        let before = golden("llama");
        let by = compare((&before, None), (&found, Some(&checkpoint)), 2, &Quiet).unwrap();
        assert!(by.added.is_empty() && by.removed.is_empty(), "{by:?}");
        let most = if scheme == Scheme::Q8 { 0.02 } else { 0.2 };
        for changed in &by.changed {
            assert!(changed.by.is_some_and(|by| by.largest < most && by.odd == 0), "{changed:?}");
        }
        // Once more, they are copied.
        let again = home.path().join("again.apr");
        let copied = written(found, Encode::AsStored, &again);
        let found = Source::open(path.to_str().unwrap()).unwrap();
        let (one, other) = (found.checkpoint().unwrap(), copied.checkpoint().unwrap());
        let by = compare((&found, Some(&one)), (&copied, Some(&other)), 2, &Quiet).unwrap();
        assert_eq!((by.changed.len(), by.added.len(), by.removed.len()), (0, 0, 0), "{by:?}");
        std::fs::remove_file(again).unwrap();
    }
}

#[test]
fn golden_files_are_written_again_with_the_same_numbers() {
    let home = tempfile::tempdir().unwrap();
    for name in ["llama-f16-bf16", "llama-q8-q4", "llama3-q4k"] {
        let file = format!("{GOLDEN}-apr/{name}.apr");
        let path = home.path().join(name);
        let source = Source::open(&file).unwrap();
        let checkpoint = source.checkpoint().unwrap();
        let target = Target::File(path.clone());
        let (job, _) = convert(source, &checkpoint, Encode::AsStored, target).unwrap();
        job.run(OPTIONS, &Quiet).unwrap();
        let (before, after) =
            (Source::open(&file).unwrap(), Source::open(path.to_str().unwrap()).unwrap());
        let other = after.checkpoint().unwrap();
        let by = compare((&before, Some(&checkpoint)), (&after, Some(&other)), 2, &Quiet).unwrap();
        assert_eq!((by.changed.len(), by.added.len(), by.removed.len()), (0, 0, 0), "{by:?}");
        // And as plain numbers, for whoever has no such blocks.
        let path = home.path().join(format!("{name}-plain"));
        let plain = written(before, Encode::Float(FloatType::F32), &path);
        let same = plain.checkpoint().unwrap();
        let float = Encoding::Float(FloatType::F32);
        assert!(same.tensors.iter().all(|tensor| tensor.encoding.is_none_or(|it| it == float)));
        let by = compare((&after, Some(&other)), (&plain, Some(&same)), 2, &Quiet).unwrap();
        assert_eq!((by.changed.len(), by.added.len(), by.removed.len()), (0, 0, 0), "{by:?}");
    }
}

#[test]
fn what_apr_cannot_say_is_refused_by_name() {
    let refusal = |name: &str, encode| {
        let source = golden(name);
        let checkpoint = source.checkpoint().unwrap();
        let target = Target::File("nowhere.apr".into());
        convert(source, &checkpoint, encode, target).unwrap_err().to_string()
    };
    let said = refusal("qwen2-mlx4", Encode::AsStored);
    assert!(said.contains("affine-4-64, which APR does not have; convert with --encode"), "{said}");
    let said = refusal("llama", Encode::Blocks(GgmlType::Q8_0));
    assert!(said.contains("q8_0, which APR does not have"), "{said}");
}
