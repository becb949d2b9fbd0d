//! The store against right, wrong and competing writes; what all its tests share.

mod recovery;
mod room;
mod sharing;

use std::fs;
use std::path::Path;

use cake_checkpoint::{CHUNK_BYTES, Digest, Dtype, Manifest, TensorEntry};
use tempfile::TempDir;

use super::*;

const MIB: usize = CHUNK_BYTES as usize;

pub(super) fn digest(bytes: &[u8]) -> Digest {
    Digest::of(bytes)
}

/// A blob with one tensor of `data_bytes` bytes, whose content depends on its layer.
pub(crate) struct TestBlob {
    pub(crate) manifest: Manifest,
    pub(super) bytes: Vec<u8>,
}

impl TestBlob {
    pub(crate) fn new(layer: usize, data_bytes: usize) -> TestBlob {
        let data: Vec<u8> = (0..data_bytes).map(|at| (at * 31 + at / 251 + layer) as u8).collect();
        let tensor = TensorEntry {
            name: format!("model.layers.{layer}.mlp.up_proj.weight"),
            dtype: Dtype::U8,
            shape: vec![data_bytes as u64],
            encoding: None,
        };
        let norm = TensorEntry {
            name: format!("model.layers.{layer}.input_layernorm.weight"),
            dtype: Dtype::U8,
            shape: vec![0],
            encoding: None,
        };
        let mut manifest = Manifest { tensors: vec![tensor, norm], file_bytes: 0, chunks: vec![] };
        manifest.tensors.sort_by(|a, b| a.name.cmp(&b.name)); // The empty one first, as in a blob.
        let mut bytes = manifest.header();
        bytes.extend_from_slice(&data);
        TestBlob::describing(manifest, bytes)
    }

    /// The manifest completed with the digests of these bytes, right or wrong as they are.
    fn describing(mut manifest: Manifest, bytes: Vec<u8>) -> TestBlob {
        manifest.file_bytes = bytes.len() as u64;
        let header = 0..manifest.header().len() as u64;
        let parts = std::iter::once(header).chain(manifest.tensor_ranges());
        manifest.chunks = parts
            .flat_map(|part| bytes[part.start as usize..part.end as usize].chunks(MIB))
            .map(Digest::of)
            .collect();
        TestBlob { manifest, bytes }
    }

    /// Where the header and that many whole chunks of the first tensor end.
    pub(super) fn after(&self, chunks: u64) -> u64 {
        self.manifest.header().len() as u64 + chunks * CHUNK_BYTES
    }

    pub(crate) fn name(&self) -> Digest {
        self.manifest.name()
    }
}

/// A blob of three tensors, each of several chunks; `change` makes the middle one its own.
pub(super) fn parts_blob(change: u8) -> TestBlob {
    blob_of(&[data(1, MIB + 64), data(2 + change, 3 * MIB / 2), data(9, 2 * MIB + 192)])
}

/// A blob whose tensors have these bytes, in this order.
fn blob_of(parts: &[Vec<u8>]) -> TestBlob {
    let tensor = |(index, data): (usize, &Vec<u8>)| TensorEntry {
        name: format!("model.layers.0.{index:05}.weight"),
        dtype: Dtype::U8,
        shape: vec![data.len() as u64],
        encoding: None,
    };
    let tensors = parts.iter().enumerate().map(tensor).collect();
    let manifest = Manifest { tensors, file_bytes: 0, chunks: vec![] };
    let bytes = [manifest.header(), parts.concat()].concat();
    TestBlob::describing(manifest, bytes)
}

/// Bytes that depend on `seed`.
fn data(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 253) as u8 ^ seed).collect()
}

pub(crate) fn open(directory: &TempDir) -> Store {
    Store::open(directory.path(), None).unwrap()
}

/// Sends what is missing of a blob, and finishes it.
pub(crate) fn receive(store: &Store, blob: &TestBlob) -> Digest {
    let mut writer = store.begin(blob.manifest.clone()).unwrap();
    let offset = writer.offset() as usize;
    writer.write(&blob.bytes[offset..]).unwrap();
    writer.finish().unwrap()
}

/// Sends what a writer wants, in pieces of an odd size. Returns the bytes sent.
pub(super) fn send(writer: &mut Writer, blob: &TestBlob) -> Result<u64, Error> {
    let mut sent = 0;
    for range in writer.wanted() {
        let bytes = &blob.bytes[range.start as usize..range.end as usize];
        for piece in bytes.chunks(100_003) {
            writer.write(piece)?;
            sent += piece.len() as u64;
        }
    }
    Ok(sent)
}

/// Sends the first `bytes` of a blob, and vanishes.
fn receive_part(store: &Store, blob: &TestBlob, bytes: usize) {
    store.begin(blob.manifest.clone()).unwrap().write(&blob.bytes[..bytes]).unwrap();
}

fn part_path(directory: &TempDir, blob: &TestBlob) -> std::path::PathBuf {
    directory.path().join(format!("partial/{}.part", blob.name()))
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_blob_arrives_in_pieces_of_any_size_and_can_be_opened() {
    for piece in [1000, 65_536, MIB - 1, MIB, 3 * MIB + 7] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&directory);
        let blob = TestBlob::new(3, 3 * MIB + 123);
        let mut writer = store.begin(blob.manifest.clone()).unwrap();
        assert!(!store.holds(&blob.name()));
        for part in blob.bytes.chunks(piece) {
            writer.write(part).unwrap();
        }
        assert_eq!(writer.offset(), writer.blob_bytes());
        assert_eq!(writer.finish().unwrap(), blob.name());

        assert!(store.holds(&blob.name()));
        assert_eq!(store.manifest(&blob.name()).unwrap(), Some(blob.manifest.clone()));
        let held = store.list();
        assert_eq!((held.len(), held[0].bytes), (1, blob.bytes.len() as u64));
        assert_eq!((held[0].label.as_str(), held[0].tensors), ("model.layers.3", 2));
        assert_eq!(files(&directory.path().join("partial")), 0);

        let opened = store.open_blob(&blob.name()).unwrap();
        opened.blob.verify(&mut |_| {}).unwrap();
        let tensor = opened.blob.tensor("model.layers.3.mlp.up_proj.weight").unwrap();
        assert_eq!(tensor.bytes(), &blob.bytes[blob.bytes.len() - (3 * MIB + 123)..]);
        assert!(store.list()[0].in_use);
        drop(opened);
        assert!(!store.list()[0].in_use);
    }
}

#[test]
fn a_held_blob_needs_no_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let blob = TestBlob::new(0, 100);
    receive(&store, &blob);
    assert_eq!(store.resume_at(&blob.manifest).unwrap(), blob.bytes.len() as u64);
    let mut writer = store.begin(blob.manifest.clone()).unwrap();
    assert_eq!(writer.offset(), blob.bytes.len() as u64);
    assert!(matches!(writer.write(b"x"), Err(Error::TooLong { .. })));
    assert_eq!(writer.finish().unwrap(), blob.name());
}

#[test]
fn a_wrong_chunk_is_refused_and_can_be_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let blob = TestBlob::new(0, 3 * MIB);
    let mut damaged = blob.bytes.clone();
    damaged[blob.after(1) as usize + 9] ^= 0x40;
    for piece in [MIB, MIB / 2] {
        let mut writer = store.begin(blob.manifest.clone()).unwrap();
        let from = writer.offset() as usize;
        let error = damaged[from..].chunks(piece).find_map(|part| writer.write(part).err());
        match error {
            Some(Error::WrongDigest { blob: name, chunk: 2, offset }) => {
                assert_eq!((name, offset), (blob.name(), blob.after(1)));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(writer.offset(), blob.after(1));
        assert_eq!(fs::metadata(part_path(&directory, &blob)).unwrap().len(), blob.after(1));
        if piece != MIB {
            writer.write(&blob.bytes[blob.after(1) as usize..]).unwrap();
            writer.finish().unwrap();
        }
    }
    assert!(store.holds(&blob.name()));
}

#[test]
fn too_many_and_too_few_bytes_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let blob = TestBlob::new(0, 2 * MIB);
    let mut writer = store.begin(blob.manifest.clone()).unwrap();
    let some = blob.after(1) as usize + 1;
    writer.write(&blob.bytes[..some]).unwrap();
    let rest = [&blob.bytes[some..], b"xyz"].concat();
    assert!(matches!(writer.write(&rest), Err(Error::TooLong { extra_bytes: 3, .. })));
    let have = blob.after(1);
    assert_eq!(writer.offset(), have);
    match writer.finish() {
        Err(Error::Incomplete { have_bytes, .. }) => assert_eq!(have_bytes, have),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.resume_at(&blob.manifest).unwrap(), have);
}

#[test]
fn a_blob_with_the_header_of_other_tensors_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let TestBlob { manifest, mut bytes } = TestBlob::new(0, 100);
    let at = bytes.windows(7).position(|name| name == b"up_proj").unwrap();
    bytes[at..at + 7].copy_from_slice(b"xx_proj");
    let forged = TestBlob::describing(manifest, bytes);
    let mut writer = store.begin(forged.manifest.clone()).unwrap();
    writer.write(&forged.bytes).unwrap();
    assert!(matches!(writer.finish(), Err(Error::WrongHeader { .. })));
    assert!(!store.holds(&forged.name()));
    assert!(store.list_partial().is_empty());
}

#[test]
fn one_writer_per_blob() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let (one, two) = (TestBlob::new(1, 10), TestBlob::new(2, 10));
    let writer = store.begin(one.manifest.clone()).unwrap();
    assert!(matches!(store.begin(one.manifest.clone()), Err(Error::Busy { .. })));
    receive(&store, &two);
    drop(writer);
    receive(&store, &one);
    assert_eq!(store.list().len(), 2);
}

#[test]
fn writers_in_parallel_share_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let blobs: Vec<TestBlob> = (0..4).map(|layer| TestBlob::new(layer, 3 * MIB)).collect();
    std::thread::scope(|scope| {
        for blob in &blobs {
            scope.spawn(|| receive(&store, blob));
        }
    });
    assert_eq!(store.list().len(), 4);
    for blob in &blobs {
        store.open_blob(&blob.name()).unwrap().blob.verify(&mut |_| {}).unwrap();
    }
}
