//! Blobs made from checkpoints: read by the reference library, aligned, verified, refused.

mod codes;
mod encoded;
mod narrow;

use std::collections::BTreeMap;

use ::safetensors::SafeTensors;

use super::{Blob, BlobError, BlobSource, CHUNK_BYTES, Digest, Manifest};
use crate::catalog::Checkpoint;
use crate::error::Error;
use crate::range::LayerRange;
use crate::testing::{TinyCheckpoint, golden, golden_path, made};

/// Golden models of every layout of a layer: a fixed choice, which families are not added to.
const GOLDEN: [&str; 7] =
    ["llama", "llama-sharded", "llama3-tied", "mistral", "phi3", "qwen2", "qwen3"];

fn bytes_of(source: &BlobSource<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    source.write_to(&mut bytes).unwrap();
    bytes
}

/// Every tensor of a golden checkpoint as the reference library reads it.
fn reference_tensors(name: &str) -> BTreeMap<String, Vec<u8>> {
    let mut tensors = BTreeMap::new();
    for entry in std::fs::read_dir(golden_path(name)).unwrap().flatten() {
        let file = entry.file_name().into_string().unwrap();
        if !file.starts_with("model") || !file.ends_with(".safetensors") {
            continue;
        }
        let bytes = std::fs::read(entry.path()).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
            tensors.insert(name.to_owned(), view.data().to_vec());
        }
    }
    tensors
}

#[test]
fn the_reference_library_reads_every_blob_and_finds_exactly_its_layer() {
    for name in GOLDEN {
        let expected = reference_tensors(name);
        let checkpoint = golden(name);
        for layer in 0..checkpoint.config.layers.len() {
            let bytes = bytes_of(&BlobSource::new(&checkpoint, layer));
            let blob = SafeTensors::deserialize(&bytes).unwrap();
            let prefix = format!("model.layers.{layer}.");
            let names = expected.keys().filter(|name| name.starts_with(&prefix)).count();
            assert_eq!(blob.len(), names, "{name} layer {layer}");
            for (tensor, view) in blob.iter() {
                assert!(tensor.starts_with(&prefix), "{tensor}");
                assert_eq!(view.data(), expected[tensor], "{tensor}");
            }
            let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
            assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        }
    }
}

#[test]
fn tensors_that_can_be_aligned_are() {
    for name in GOLDEN {
        let checkpoint = golden(name);
        let source = BlobSource::new(&checkpoint, 0);
        let manifest = source.manifest().unwrap();
        let header = manifest.header();
        assert_eq!(header.len() % 64, 0);
        let mut offset = header.len() as u64;
        let mut unaligned = 0;
        for tensor in checkpoint.layer_tensors(0) {
            if tensor.bytes % 64 == 0 {
                assert_eq!(offset % 64, 0, "{name}: {}", tensor.name);
            } else {
                unaligned += 1;
            }
            offset += tensor.bytes;
        }
        assert_eq!(offset, source.file_bytes());
        let odd_norms = if name == "qwen3" { 2 } else { 0 }; // Its q and k norms have 24 numbers.
        assert_eq!(unaligned, odd_norms, "{name}");
    }
}

#[test]
fn a_manifest_describes_the_bytes_exactly() {
    let checkpoint = golden("llama");
    let source = BlobSource::new(&checkpoint, 3);
    let (bytes, manifest) = (bytes_of(&source), source.manifest().unwrap());
    manifest.check().unwrap();
    assert_eq!(bytes.len() as u64, manifest.file_bytes);
    assert_eq!(manifest.data_bytes(), checkpoint.layer_bytes(3));
    assert!(bytes.starts_with(&manifest.header()));
    assert_eq!(manifest.chunks, chunks(&manifest, &bytes));
    assert_eq!(Manifest::from_json(&manifest.to_json()).unwrap(), manifest);
}

/// Digests of the header and of each tensor as the reference library finds it, MiB by MiB.
fn chunks(manifest: &Manifest, bytes: &[u8]) -> Vec<Digest> {
    let blob = SafeTensors::deserialize(bytes).unwrap();
    let tensors = manifest.tensors.iter();
    let tensors = tensors.map(|tensor| blob.tensor(&tensor.name).unwrap().data());
    std::iter::once(&bytes[..manifest.header().len()])
        .chain(tensors)
        .flat_map(|part| part.chunks(CHUNK_BYTES as usize))
        .map(Digest::of)
        .collect()
}

/// One layer of 3.5 MiB, with tensors of several chunks.
fn several_chunks() -> (TinyCheckpoint, Checkpoint) {
    let mut tiny = TinyCheckpoint::single(1);
    for (field, value) in
        [("hidden_size", 128), ("intermediate_size", 4611), ("num_attention_heads", 2)]
    {
        tiny.config[field] = value.into();
    }
    tiny.files.insert("model.safetensors".into(), crate::testing::tensors(&tiny.config));
    let checkpoint = tiny.open().unwrap();
    (tiny, checkpoint)
}

#[test]
fn reads_of_any_range_are_pieces_of_one_file() {
    let (_directory, checkpoint) = several_chunks();
    let source = BlobSource::new(&checkpoint, 0);
    let whole = bytes_of(&source);
    assert!(whole.len() as u64 > 3 * CHUNK_BYTES);
    let manifest = source.manifest().unwrap();
    assert_eq!(manifest.chunks, chunks(&manifest, &whole));
    let mut seed = 7u64;
    for _ in 0..300 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let start = (seed >> 20) as usize % (whole.len() + 1);
        let length = (seed >> 40) as usize % 70_000;
        let end = (start + length).min(whole.len());
        let mut buffer = vec![0; end - start];
        source.read(start as u64, &mut buffer).unwrap();
        assert!(buffer == whole[start..end], "{start}..{end}");
    }
    let past = source.read(whole.len() as u64, &mut [0]);
    assert!(matches!(past, Err(Error::OutOfRange { .. })));
    assert!(matches!(source.read(u64::MAX, &mut [0; 9]), Err(Error::OutOfRange { .. })));
}

#[test]
fn equal_content_has_an_equal_name_wherever_it_is() {
    let (one, other) = (golden("qwen2"), golden("qwen2"));
    let name = |checkpoint, layer| BlobSource::new(checkpoint, layer).manifest().unwrap().name();
    assert_eq!(name(&one, 1), name(&other, 1));
    assert_ne!(name(&one, 1), name(&one, 2));
    // The same tensors in another order, with other gaps before them, in more files.
    let (mut single, mut indexed) = (TinyCheckpoint::single(2), TinyCheckpoint::indexed());
    single.file("model.safetensors").reverse();
    for tensors in indexed.files.values_mut() {
        tensors.rotate_left(3);
    }
    let (single, indexed) = (single.open().unwrap(), indexed.open().unwrap());
    assert_eq!(name(&single, 1), name(&indexed, 1));
}

#[test]
fn several_layers_make_one_file() {
    let checkpoint = golden("llama-sharded");
    let bytes = bytes_of(&BlobSource::of_layers(&checkpoint, LayerRange::new(9, 99)));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), 27);
    assert!(file.names().iter().any(|name| name.starts_with("model.layers.11.")));
    let none = bytes_of(&BlobSource::new(&checkpoint, 12));
    assert!(SafeTensors::deserialize(&none).unwrap().is_empty());
}

#[test]
fn odd_offsets_and_empty_checkpoint_padding_change_nothing() {
    let mut tiny = TinyCheckpoint::single(1);
    let mut odd = made("model.layers.0.self_attn.rotary_emb.inv_freq", &[1]);
    (odd.1, odd.2, odd.3) = ("U8", vec![3], vec![1, 2, 3]);
    tiny.file("model.safetensors").insert(0, odd);
    let expected = tiny.tensor("model.layers.0.mlp.up_proj.weight").3.clone();
    let checkpoint = tiny.open().unwrap();
    let tensor = &checkpoint.layer_tensors(0)[0].clone();
    let starts: Vec<u64> = checkpoint.tensors.iter().map(|tensor| tensor.offset % 2).collect();
    assert!(starts[0] != starts[1], "tensors start at odd bytes here");
    let mut bytes = vec![0; tensor.bytes as usize];
    checkpoint.read_at(tensor, 0, &mut bytes).unwrap();
    assert_eq!(checkpoint.map(tensor).unwrap().bytes(), bytes);
    let blob = bytes_of(&BlobSource::new(&checkpoint, 0));
    let blob = SafeTensors::deserialize(&blob).unwrap();
    let up = blob.tensor("model.layers.0.mlp.up_proj.weight").unwrap();
    assert_eq!(up.data(), expected);
    assert_eq!(blob.len(), 9, "the buffer is not part of it");
}

/// A blob of a golden layer on disk, with its manifest.
fn stored(name: &str) -> (tempfile::TempDir, std::path::PathBuf, Manifest, Vec<u8>) {
    let checkpoint = golden(name);
    let source = BlobSource::new(&checkpoint, 2);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("blob.safetensors");
    let bytes = bytes_of(&source);
    std::fs::write(&path, &bytes).unwrap();
    (directory, path, source.manifest().unwrap(), bytes)
}

#[test]
fn a_stored_blob_opens_verifies_and_gives_its_tensors() {
    for name in GOLDEN {
        let (_directory, path, manifest, bytes) = stored(name);
        let blob = Blob::open(&path, &manifest).unwrap();
        let mut seen = Vec::new();
        blob.verify(&mut |done| seen.push(done)).unwrap();
        assert_eq!(seen.last(), Some(&manifest.file_bytes));
        let reference = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(blob.tensors().count(), reference.len());
        for (tensor, mapped) in blob.tensors() {
            let expected = reference.tensor(tensor).unwrap();
            assert_eq!(mapped.bytes(), expected.data());
            let shape: Vec<usize> = mapped.shape().iter().map(|&n| n as usize).collect();
            assert_eq!(shape, expected.shape());
        }
        let layer = format!("model.layers.2.{}", "input_layernorm.weight");
        let tensor = blob.tensor(&layer).unwrap();
        drop(blob);
        assert_eq!(tensor.bytes(), reference.tensor(&layer).unwrap().data());
    }
}

#[test]
fn a_tensor_of_a_blob_is_aligned_in_memory() {
    let (_directory, path, manifest, _) = stored("llama");
    let blob = Blob::open(&path, &manifest).unwrap();
    assert!(blob.tensors().all(|(_, tensor)| tensor.bytes().as_ptr().addr() % 64 == 0));
}

#[test]
fn refuses_a_blob_of_another_length() {
    let (_directory, path, manifest, bytes) = stored("llama");
    for wrong in [&bytes[..bytes.len() - 1], &[&bytes[..], b"x"].concat(), b""] {
        std::fs::write(&path, wrong).unwrap();
        let error = Blob::open(&path, &manifest).unwrap_err();
        assert!(matches!(error, Error::Blob(BlobError::WrongLength { .. })), "{error}");
    }
}

#[test]
fn refuses_a_blob_with_another_header() {
    let (_directory, path, manifest, mut bytes) = stored("llama");
    bytes[100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = Blob::open(&path, &manifest).unwrap_err();
    assert!(matches!(error, Error::Blob(BlobError::WrongHeader { .. })), "{error}");
}

#[test]
fn refuses_an_inconsistent_manifest() {
    let (_directory, path, mut manifest, _) = stored("llama");
    manifest.chunks.clear();
    assert!(matches!(Blob::open(&path, &manifest), Err(Error::Manifest(_))));
}

#[test]
fn verify_names_the_damaged_chunk() {
    let (_directory, checkpoint) = several_chunks();
    let source = BlobSource::new(&checkpoint, 0);
    let (mut bytes, manifest) = (bytes_of(&source), source.manifest().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("blob.safetensors");
    let ends = manifest.chunk_ends();
    assert!(ends.len() > manifest.tensors.len() + 1, "some tensor has several chunks");
    let place = ends[1] as usize + 5;
    bytes[place] ^= 0x80;
    std::fs::write(&path, &bytes).unwrap();
    let blob = Blob::open(&path, &manifest).unwrap();
    match blob.verify(&mut |_| {}).unwrap_err() {
        Error::Blob(BlobError::WrongDigest { chunk, offset, expected, .. }) => {
            assert_eq!((chunk, offset), (2, ends[1]));
            assert_eq!(expected, manifest.chunks[2]);
        }
        other => panic!("{other}"),
    }
}
