//! The store after restarts, crashes and damage.

use super::*;

#[test]
fn blobs_and_parts_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, begun) = (TestBlob::new(1, MIB), TestBlob::new(2, 4 * MIB));
    let store = open(&directory);
    receive(&store, &whole);
    receive_part(&store, &begun, 2 * MIB + MIB / 2);
    let before = store.list();
    drop(store);

    let store = open(&directory);
    assert_eq!(store.list().len(), 1);
    assert_eq!(store.list()[0].label, before[0].label);
    assert_eq!(store.list_partial()[0].bytes, begun.after(2));
    assert_eq!(store.resume_at(&begun.manifest).unwrap(), begun.after(2));
    receive(&store, &begun);
    assert_eq!(store.list().len(), 2);
    assert!(store.list_partial().is_empty());
    store.open_blob(&begun.name()).unwrap().blob.verify(&mut |_| {}).unwrap();
}

#[test]
fn resumes_before_the_first_torn_or_damaged_chunk() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let blob = TestBlob::new(0, 5 * MIB);
    let path = part_path(&directory, &blob);
    assert_eq!(store.resume_at(&blob.manifest).unwrap(), 0);

    fs::write(&path, &blob.bytes[..blob.after(3) as usize + 17]).unwrap(); // Torn in a chunk.
    assert_eq!(store.resume_at(&blob.manifest).unwrap(), blob.after(3));

    let mut damaged = blob.bytes.clone();
    damaged[blob.after(1) as usize + 5] ^= 1;
    fs::write(&path, &damaged).unwrap();
    assert_eq!(store.resume_at(&blob.manifest).unwrap(), blob.after(1));
    let writer = store.begin(blob.manifest.clone()).unwrap();
    assert_eq!(writer.offset(), blob.after(1));
    assert_eq!(fs::metadata(&path).unwrap().len(), blob.after(1));
    drop(writer);

    let mut longer = blob.bytes.clone();
    longer.extend_from_slice(b"more");
    fs::write(&path, &longer).unwrap();
    assert_eq!(store.resume_at(&blob.manifest).unwrap(), blob.bytes.len() as u64);
    assert_eq!(receive(&store, &blob), blob.name());
    store.open_blob(&blob.name()).unwrap().blob.verify(&mut |_| {}).unwrap();
}

#[test]
fn damaged_manifests_cost_no_bytes_and_foreign_files_stay() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let blob = TestBlob::new(0, 2 * MIB);
    receive(&store, &blob);
    drop(store);
    let folder = directory.path().join("blobs");
    let manifest = folder.join(format!("{}.json", blob.name()));
    let foreign = [folder.join("notes.txt"), folder.join("ABC.json"), folder.join("..tmp")];
    for path in foreign.iter().chain([&manifest]) {
        fs::write(path, "{\"tensors\": 1").unwrap();
    }
    let orphan = folder.join(format!("{}.json", digest(b"orphan")));
    fs::write(&orphan, blob.manifest.to_json()).unwrap();
    let unfinished = directory.path().join(format!("partial/{}.tmp", digest(b"unfinished")));
    fs::write(&unfinished, "{").unwrap();

    let store = open(&directory);
    assert!(!store.holds(&blob.name()));
    assert_eq!(store.list_partial().len(), 1);
    assert!(foreign.iter().all(|path| path.exists()));
    assert!(!manifest.exists() && !orphan.exists() && !unfinished.exists());
    let writer = store.begin(blob.manifest.clone()).unwrap();
    assert_eq!(writer.offset(), blob.bytes.len() as u64, "every chunk is still there and right");
    writer.finish().unwrap();
    store.open_blob(&blob.name()).unwrap().blob.verify(&mut |_| {}).unwrap();
}

#[test]
fn blobs_of_an_older_layout_are_dropped_as_nobody_will_ask_for_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let (kept, begun) = (TestBlob::new(0, 100), TestBlob::new(1, 2 * MIB));
    receive(&store, &kept);
    receive_part(&store, &begun, begun.after(1) as usize);
    drop(store);
    let tensor = format!(r#"{{"name":"w","dtype":"U8","shape":[3],"digest":"{}"}}"#, digest(b"w"));
    let chunk = digest(b"file");
    let older = format!(r#"{{"tensors":[{tensor}],"file_bytes":131,"chunks":["{chunk}"]}}"#);
    let path = |folder: &str, name: &Digest, end: &str| {
        directory.path().join(folder).join(format!("{name}.{end}"))
    };
    let [whole, part, between, damaged] =
        [b"whole", b"parts", b"betwe", b"damag"].map(|n| digest(n));
    // Its manifest reads as one of now does, but for its name.
    let last = TestBlob::new(3, 100).manifest;
    let (last_name, last) = (last.former_name(), String::from_utf8(last.to_json()).unwrap());
    for (name, folder, end, manifest_folder, manifest) in [
        (&whole, "blobs", "safetensors", "blobs", &older),
        (&part, "partial", "part", "partial", &older),
        (&between, "partial", "part", "blobs", &older), // A crash between the two renames.
        (&last_name, "blobs", "safetensors", "blobs", &last),
    ] {
        fs::write(path(folder, name, end), vec![7; 131]).unwrap();
        fs::write(path(manifest_folder, name, "json"), manifest).unwrap();
    }
    fs::write(path("partial", &damaged, "part"), b"some bytes").unwrap();
    fs::write(path("partial", &damaged, "json"), &older[..7]).unwrap();
    let before = cli::list_directory(directory.path(), true).unwrap();

    let store = open(&directory);
    assert!(store.holds(&kept.name()));
    let partial: Vec<Digest> = store.list_partial().iter().map(|blob| blob.name).collect();
    let mut expected = [begun.name(), damaged];
    expected.sort();
    assert_eq!(partial, expected);
    assert_eq!(store.resume_at(&begun.manifest).unwrap(), begun.after(1));
    assert_eq!(files(&directory.path().join("blobs")), 2);
    assert_eq!(files(&directory.path().join("partial")), 4);
    drop(store);
    let after = cli::list_directory(directory.path(), true).unwrap();
    assert_eq!(before, after, "a look that changes nothing says the same");
}

#[test]
fn a_part_with_a_torn_end_becomes_the_blob_with_only_what_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let blob = TestBlob::new(0, 5 * MIB + 77);
    let torn = [&blob.bytes[..blob.after(3) as usize + 17], &[0xee; 2 * MIB + 5]].concat();
    fs::write(part_path(&directory, &blob), torn).unwrap();
    let mut writer = store.begin(blob.manifest.clone()).unwrap();
    let rest = blob.after(3)..blob.manifest.file_bytes;
    assert_eq!(writer.wanted(), std::slice::from_ref(&rest));
    let sent = send(&mut writer, &blob).unwrap();
    assert_eq!(sent, rest.end - rest.start);
    writer.finish().unwrap();
    assert!(fs::read(store.inner.folders.blob(&blob.name())).unwrap() == blob.bytes);
}

#[test]
fn a_blob_whose_header_has_several_chunks_is_sent_resumed_and_opened() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let tensors: Vec<Vec<u8>> = (0..12_345).map(|seed| data(seed as u8, 64)).collect();
    let blob = blob_of(&tensors);
    let header_bytes = blob.manifest.header().len();
    assert!(header_bytes > MIB, "{header_bytes}");
    receive_part(&store, &blob, MIB + 9);
    let mut writer = store.begin(blob.manifest.clone()).unwrap();
    let rest = CHUNK_BYTES..blob.manifest.file_bytes;
    assert_eq!(writer.wanted(), std::slice::from_ref(&rest));
    send(&mut writer, &blob).unwrap();
    writer.finish().unwrap();
    let opened = store.open_blob(&blob.name()).unwrap();
    opened.blob.verify(&mut |_| {}).unwrap();
    assert!(fs::read(opened.blob.path()).unwrap() == blob.bytes);
    assert_eq!(opened.blob.tensor("model.layers.0.07777.weight").unwrap().bytes(), tensors[7777]);
}

#[test]
fn a_shortened_blob_is_completed_by_the_next_transfer() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let blob = TestBlob::new(0, 2 * MIB);
    receive(&store, &blob);
    let path = store.inner.folders.blob(&blob.name());
    drop(store);
    fs::File::options().write(true).open(path).unwrap().set_len(blob.after(1) + 5).unwrap();
    let store = open(&directory);
    assert!(!store.holds(&blob.name()));
    assert_eq!(store.resume_at(&blob.manifest).unwrap(), blob.after(1));
    receive(&store, &blob);
}

#[test]
fn a_crash_between_the_two_renames_loses_nothing() {
    for blob_first in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&directory);
        let blob = TestBlob::new(0, MIB);
        receive(&store, &blob);
        let (name, root) = (blob.name(), directory.path().to_owned());
        drop(store);
        let file = |folder: &str, end: &str| root.join(folder).join(format!("{name}.{end}"));
        if blob_first {
            fs::rename(file("blobs", "json"), file("partial", "json")).unwrap();
        } else {
            fs::rename(file("blobs", "safetensors"), file("partial", "part")).unwrap();
        }
        let store = open(&directory);
        assert_eq!(store.holds(&name), blob_first);
        let writer = store.begin(blob.manifest.clone()).unwrap();
        assert_eq!(writer.offset(), blob.bytes.len() as u64);
        writer.finish().unwrap();
        drop(store);
        assert!(open(&directory).holds(&name));
        assert_eq!(files(&root.join("partial")), 0);
    }
}

#[test]
fn a_damaged_blob_is_found_when_verified_and_discarded() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let blob = TestBlob::new(0, 2 * MIB);
    receive(&store, &blob);
    let path = store.inner.folders.blob(&blob.name());
    let mut bytes = fs::read(&path).unwrap();
    bytes[MIB + MIB / 2] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let opened = store.open_blob(&blob.name()).unwrap();
    assert!(opened.blob.verify(&mut |_| {}).is_err());
    store.discard(&blob.name()).unwrap();
    store.discard(&blob.name()).unwrap();
    drop(opened);
    assert!(!store.holds(&blob.name()));
    assert!(matches!(store.open_blob(&blob.name()), Err(Error::NotHeld { .. })));
    assert_eq!(store.manifest(&blob.name()).unwrap(), None);
    assert_eq!(files(&directory.path().join("blobs")), 0);

    receive(&store, &blob);
    fs::write(&path, b"short").unwrap();
    assert!(matches!(store.open_blob(&blob.name()), Err(Error::Corrupt { cause: Some(_), .. })));
    fs::write(store.inner.folders.manifest(&blob.name()), b"{}").unwrap();
    assert!(matches!(store.manifest(&blob.name()), Err(Error::Corrupt { .. })));
}

#[test]
fn a_store_belongs_to_one_worker() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let second = store.clone();
    drop(store);
    match Store::open(directory.path(), None) {
        Err(Error::Locked { path, holder }) => {
            assert_eq!((path.as_path(), holder), (directory.path(), Some(std::process::id())));
        }
        other => panic!("{other:?}"),
    }
    drop(second);
    open(&directory);
}

#[test]
fn a_place_that_cannot_be_a_store_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "in the way").unwrap();
    match Store::open(&file.join("store"), None) {
        Err(Error::Unusable { path, .. }) => assert!(path.starts_with(&file)),
        other => panic!("{other:?}"),
    }
}
