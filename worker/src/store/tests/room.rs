//! Limits: the eviction limit, the disk, pruning.

use std::time::{Duration, SystemTime};

use super::*;

#[test]
fn the_limit_evicts_least_recently_used_and_spares_what_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let blobs: Vec<TestBlob> = (0..4).map(|layer| TestBlob::new(layer, MIB)).collect();
    let size = blobs[0].bytes.len() as u64;
    let store = Store::open(directory.path(), Some(3 * size + 10)).unwrap();
    for blob in &blobs[..3] {
        receive(&store, blob);
    }
    let in_use = store.open_blob(&blobs[0].name()).unwrap().in_use; // Now 1 is the oldest.
    receive(&store, &blobs[3]);
    let held = |blobs: &[TestBlob]| blobs.iter().map(|blob| store.holds(&blob.name())).collect();
    let now: Vec<bool> = held(&blobs);
    assert_eq!(now, [true, false, true, true]);

    let pins: Vec<InUse> = blobs[2..].iter().map(|blob| store.pin(&blob.name())).collect();
    match store.begin(blobs[1].manifest.clone()) {
        Err(Error::StoreFull { in_use_bytes, blob_bytes, .. }) => {
            assert_eq!((in_use_bytes, blob_bytes), (3 * size, size));
        }
        other => panic!("{other:?}"),
    }
    let now: Vec<bool> = held(&blobs);
    assert_eq!(now, [true, false, true, true]);
    drop((in_use, pins));
    receive(&store, &blobs[1]);
    let now: Vec<bool> = held(&blobs);
    assert_eq!(now, [true, true, false, true], "0 was opened after 2 arrived");
    assert_eq!(store.stored_bytes(), 3 * size);

    let larger = TestBlob::new(9, 4 * MIB);
    assert!(matches!(store.begin(larger.manifest.clone()), Err(Error::StoreFull { .. })));
    assert_eq!(store.list().len(), 3, "a refusal evicts nothing");
}

#[test]
fn the_order_of_use_survives_a_restart_and_blobs_under_way_count() {
    let directory = tempfile::tempdir().unwrap();
    let blobs: Vec<TestBlob> = (0..4).map(|layer| TestBlob::new(layer, MIB)).collect();
    let size = blobs[0].bytes.len() as u64;
    let store = open(&directory);
    for blob in &blobs[..2] {
        receive(&store, blob);
    }
    let used_ago = |blob: &TestBlob, seconds| {
        let time = SystemTime::now() - Duration::from_secs(seconds);
        let folders = &store.inner.folders;
        folders.set_last_use(&folders.manifest(&blob.name()), time);
    };
    used_ago(&blobs[0], 100);
    used_ago(&blobs[1], 200);
    drop(store);

    let store = Store::open(directory.path(), Some(2 * size)).unwrap();
    let first = store.begin(blobs[2].manifest.clone()).unwrap();
    assert!(store.holds(&blobs[0].name()) && !store.holds(&blobs[1].name()));
    let second = store.begin(blobs[3].manifest.clone()).unwrap();
    assert!(!store.holds(&blobs[0].name()));
    assert_eq!(store.stored_bytes(), 2 * size);
    assert!(matches!(store.begin(blobs[0].manifest.clone()), Err(Error::StoreFull { .. })));
    drop((first, second));
    receive(&store, &blobs[0]);
}

#[test]
fn a_blob_larger_than_the_disk_is_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let held = TestBlob::new(0, 100);
    receive(&store, &held);
    let huge = Manifest { file_bytes: 1 << 60, ..TestBlob::new(1, 100).manifest };
    match store.begin(huge) {
        Err(error @ Error::DiskFull { need_bytes, free_bytes, prunable_bytes, .. }) => {
            assert!(need_bytes > free_bytes);
            assert_eq!(prunable_bytes, held.bytes.len() as u64);
            let sentence = error.to_string();
            assert!(sentence.contains(&directory.path().display().to_string()), "{sentence}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(files(&directory.path().join("partial")), 0);
    assert!(store.holds(&held.name()));
    assert!(store.free_disk().unwrap() > 0);
}

#[test]
fn prune_removes_all_but_what_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let blobs: Vec<TestBlob> = (0..3).map(|layer| TestBlob::new(layer, 2 * MIB)).collect();
    receive(&store, &blobs[0]);
    receive(&store, &blobs[1]);
    let part = blobs[2].after(1);
    receive_part(&store, &blobs[2], part as usize + 1);
    let in_use = store.pin(&blobs[0].name());
    let size = blobs[0].bytes.len() as u64;

    let report = store.prune(size + part).unwrap();
    assert_eq!(report.removed.len(), 1);
    assert_eq!(report.removed[0].name, blobs[1].name());
    assert_eq!((report.freed_bytes, report.kept_bytes), (size, size + part));
    let report = store.prune(0).unwrap();
    assert_eq!((report.removed.len(), report.removed_partial.len()), (0, 1));
    assert_eq!((report.freed_bytes, report.kept_bytes), (part, size));
    drop(in_use);
    assert_eq!(store.prune(0).unwrap().kept_bytes, 0);
    assert_eq!(files(&directory.path().join("blobs")), 0);
    assert_eq!(files(&directory.path().join("partial")), 0);
}
