//! Tensors that one blob shares with another are not sent again.

use std::io::{Seek, SeekFrom, Write};

use super::*;

#[test]
fn only_the_tensor_that_differs_is_sent() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    receive(&store, &parts_blob(0));
    let (other, header) = (parts_blob(4), parts_blob(4).manifest.header().len() as u64);
    let mut writer = store.begin(other.manifest.clone()).unwrap();
    assert_eq!(send(&mut writer, &other).unwrap(), header + 3 * CHUNK_BYTES / 2);
    writer.finish().unwrap();
    assert_eq!(fs::read(store.inner.folders.blob(&other.name())).unwrap(), other.bytes);
}

#[test]
fn tensors_are_shared_also_where_they_lie_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let held = parts_blob(0);
    receive(&store, &held);
    let (first, last) = (data(1, MIB + 64), data(9, 2 * MIB + 192));
    let own = data(77, 192);
    let other = blob_of(&[last, own.clone(), first]);
    let (here, there) = (other.manifest.tensor_ranges(), held.manifest.tensor_ranges());
    assert!(here[0].start != there[2].start && here[2].start != there[0].start);
    let mut writer = store.begin(other.manifest.clone()).unwrap();
    let header_bytes = other.manifest.header().len();
    assert_eq!(send(&mut writer, &other).unwrap(), (header_bytes + own.len()) as u64);
    writer.finish().unwrap();
    assert!(fs::read(store.inner.folders.blob(&other.name())).unwrap() == other.bytes);
}

#[test]
fn what_is_wanted_of_a_blob_is_a_range_for_every_other_tensor_at_most() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let held: Vec<_> = (0..3).map(|seed| data(seed, 70_016)).collect();
    receive(&store, &blob_of(&held));
    let mut most = 0;
    for here in 0..1 << 5 {
        let part = |at: usize| match here >> at & 1 {
            0 => data(20 + at as u8, 70_016),
            _ => held[at % 3].clone(),
        };
        let blob = blob_of(&(0..5).map(part).collect::<Vec<_>>());
        let ranges = store.begin(blob.manifest).unwrap().wanted().len();
        assert!(ranges <= 5 / 2 + 1, "{ranges} ranges for {here:05b}");
        most = most.max(ranges);
    }
    assert_eq!(most, 5 / 2 + 1);
}

#[test]
fn sharing_and_resuming_go_together_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let other = parts_blob(4);
    let store = open(&directory);
    receive(&store, &parts_blob(0));
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
    let (held, other) = (parts_blob(0), parts_blob(4));
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
    let (held, other) = (parts_blob(0), parts_blob(4));
    receive(&store, &held);
    store.discard(&held.name()).unwrap();
    let writer = store.begin(other.manifest.clone()).unwrap();
    let wanted = writer.wanted();
    assert_eq!((wanted.len(), wanted[0].clone()), (1, 0..other.manifest.file_bytes));
}

#[test]
fn a_source_gives_way_where_the_limit_leaves_no_room_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let (held, other) = (parts_blob(0), parts_blob(4));
    let limit = held.manifest.file_bytes + CHUNK_BYTES;
    let store = Store::open(directory.path(), Some(limit)).unwrap();
    receive(&store, &held);
    let mut writer = store.begin(other.manifest.clone()).unwrap();
    assert!(!store.holds(&held.name()));
    assert_eq!(send(&mut writer, &other).unwrap(), other.manifest.file_bytes);
    writer.finish().unwrap();
    assert!(store.stored_bytes() <= limit);
}
