//! Tensors that one blob shares with another are not sent again.

use std::io::{Seek, SeekFrom, Write};

use super::*;

/// A blob of three tensors, each of several chunks; `change` makes the middle one its own.
fn blob(change: u8) -> TestBlob {
    let data = |seed: u8, bytes: usize| -> Vec<u8> {
        (0..bytes).map(|at| (at * 7 + at / 253) as u8 ^ seed).collect()
    };
    let parts = [data(1, MIB + 64), data(2 + change, 3 * MIB / 2), data(9, 2 * MIB + 192)];
    let tensor = |(index, data): (usize, &Vec<u8>)| TensorEntry {
        name: format!("model.layers.0.{index}.weight"),
        dtype: Dtype::U8,
        shape: vec![data.len() as u64],
    };
    let tensors = parts.iter().enumerate().map(tensor).collect();
    let manifest = Manifest { tensors, file_bytes: 0, chunks: vec![] };
    let mut bytes = manifest.header();
    parts.iter().for_each(|data| bytes.extend_from_slice(data));
    TestBlob::describing(manifest, bytes)
}

/// Sends what a writer wants, in pieces of an odd size.
fn send(writer: &mut Writer, blob: &TestBlob) -> Result<u64, Error> {
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

#[test]
fn only_the_tensor_that_differs_is_sent() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    receive(&store, &blob(0));
    let (other, header) = (blob(4), blob(4).manifest.header().len() as u64);
    let mut writer = store.begin(other.manifest.clone()).unwrap();
    assert_eq!(send(&mut writer, &other).unwrap(), header + 3 * CHUNK_BYTES / 2);
    writer.finish().unwrap();
    assert_eq!(fs::read(store.inner.folders.blob(&other.name())).unwrap(), other.bytes);
}

#[test]
fn sharing_and_resuming_go_together_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let other = blob(4);
    let store = open(&directory);
    receive(&store, &blob(0));
    let mut writer = store.begin(other.manifest.clone()).unwrap();
    let first = writer.wanted()[0].clone();
    writer.write(&other.bytes[first.start as usize..first.end as usize]).unwrap();
    let second = writer.wanted()[0].clone();
    writer.write(&other.bytes[second.start as usize..][..MIB]).unwrap();
    drop((writer, store));
    let store = open(&directory);
    let mut writer = store.begin(other.manifest.clone()).unwrap();
    assert!(writer.offset() >= 2 * CHUNK_BYTES, "{}", writer.offset());
    assert!(send(&mut writer, &other).unwrap() <= 3 * CHUNK_BYTES / 2);
    writer.finish().unwrap();
    assert_eq!(fs::read(store.inner.folders.blob(&other.name())).unwrap(), other.bytes);
}

#[test]
fn a_damaged_source_makes_the_blob_be_sent_whole() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let (held, other) = (blob(0), blob(4));
    receive(&store, &held);
    let mut file =
        fs::File::options().write(true).open(store.inner.folders.blob(&held.name())).unwrap();
    file.seek(SeekFrom::End(-5)).unwrap();
    file.write_all(&[0xff; 5]).unwrap();
    let mut writer = store.begin(other.manifest.clone()).unwrap();
    let error = send(&mut writer, &other).unwrap_err();
    assert!(matches!(error, Error::Spoilt { .. }), "{error}");
    drop(writer);
    let mut writer = store.begin(other.manifest.clone()).unwrap();
    assert!(writer.offset() >= CHUNK_BYTES, "what was verified stays");
    send(&mut writer, &other).unwrap();
    writer.finish().unwrap();
    assert_eq!(fs::read(store.inner.folders.blob(&other.name())).unwrap(), other.bytes);
}

#[test]
fn a_source_that_was_evicted_is_no_source() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let (held, other) = (blob(0), blob(4));
    receive(&store, &held);
    store.discard(&held.name()).unwrap();
    let writer = store.begin(other.manifest.clone()).unwrap();
    let wanted = writer.wanted();
    assert_eq!((wanted.len(), wanted[0].clone()), (1, 0..other.manifest.file_bytes));
}

#[test]
fn a_source_gives_way_where_the_limit_leaves_no_room_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let (held, other) = (blob(0), blob(4));
    let limit = held.manifest.file_bytes + CHUNK_BYTES;
    let store = Store::open(directory.path(), Some(limit)).unwrap();
    receive(&store, &held);
    let mut writer = store.begin(other.manifest.clone()).unwrap();
    assert!(!store.holds(&held.name()));
    assert_eq!(send(&mut writer, &other).unwrap(), other.manifest.file_bytes);
    writer.finish().unwrap();
    assert!(store.stored_bytes() <= limit);
}
