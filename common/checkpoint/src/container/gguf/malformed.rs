//! Files that must be refused, each by what is wrong in it, and odd ones that must be read: made from a golden file, as llama.cpp's
//! converter writes them. Where llama.cpp itself refuses more, or dies, the facts are beside the golden files.

use std::path::Path;

use super::made::{
    BOOL, I32, LIST, Made, Q, TEXT, U8, U32, U64, all_open, all_refused, list, opened, refused,
    text,
};
use super::tests::golden_gguf;
use crate::catalog::Checkpoint;
use crate::locate::locate_in;

#[test]
fn odd_files_are_read() {
    all_open(&[
        ("as it is", |_| ()),
        ("version 2", |it| it.version = 2),
        ("a truth of 2", |it| it.add(b"x.y", BOOL, [2])),
        ("a text that is not UTF-8", |it| it.add(b"general.description", TEXT, text(b"\xc3\x28"))),
        ("an empty list", |it| it.add(b"x.y", LIST, list(TEXT, &[]))),
        ("another order", |it| it.infos.reverse()),
        ("bytes behind the last tensor", |it| it.data.extend([0; 100])),
        ("a scale that is no number", |it| {
            let at = it.info(Q).offset as usize;
            it.data[at..at + 2].copy_from_slice(&[0, 0x7e]);
        }),
        ("block_count as u64", |it| {
            let count = u32::from_le_bytes(it.value("llama.block_count").try_into().unwrap());
            it.put("llama.block_count", U64, u64::from(count).to_le_bytes());
        }),
        ("an end of -1", |it| it.put("tokenizer.ggml.eos_token_id", I32, (-1i32).to_le_bytes())),
        ("one part of one", |it| it.split(0, 1, it.infos.len() as i32)),
        ("a template that is none", |it| {
            it.put("tokenizer.chat_template", TEXT, text(b"{% for m in %}{{"));
        }),
    ]);
}

#[test]
fn what_is_no_gguf_file_is_refused() {
    let good = Made::good().bytes();
    for (name, bytes) in [
        ("empty", &b""[..]),
        ("three bytes", &good[..3]),
        ("another magic", b"ggml0000"),
        ("an archive", &[b"PK\x03\x04", &good[4..]].concat()),
        ("safetensors", b"\x02\0\0\0\0\0\0\0{}"),
        ("a pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
        ("a page", b"<!DOCTYPE html><html><body>404</body></html>"),
    ] {
        refused(name, bytes, "does not begin as a GGUF file");
    }
    refused("only magic", &good[..4], "file ends early: the header at byte 4 needs 4 bytes");
    refused("only header", &good[..24], "have no room in the 0 bytes that are left");
    let big = [b"GGUF", &3u32.to_be_bytes()[..], &good[8..]].concat();
    refused("big-endian", &big, "the file is big-endian");
}

#[test]
fn a_file_cut_anywhere_in_its_header_is_refused() {
    let mut good = Made::good();
    // Short lists: each cut is read from the beginning.
    let texts = |of: &[&str]| of.iter().map(|it| text(it.as_bytes())).collect::<Vec<_>>();
    for (key, of, items) in [
        ("tokenizer.ggml.tokens", TEXT, texts(&["<unk>", "", "a", "\u{2581}the", "\n"])),
        ("tokenizer.ggml.merges", TEXT, texts(&["a b", "\u{2581} the"])),
        (
            "tokenizer.ggml.token_type",
            I32,
            [2i32, 1, 1, 1, 1].map(|it| it.to_le_bytes().to_vec()).into(),
        ),
    ] {
        good.put(key, LIST, list(of, &items));
    }
    let (header, file) = (good.head().len(), good.bytes());
    let whole = super::Head::parse(&file, file.len() as u64).unwrap();
    assert_eq!(whole.tensors.len(), good.infos.len());
    for end in 0..header {
        let error = super::Head::parse(&file[..end], end as u64).unwrap_err().to_string();
        let expected = ["ends early", "have no room", "not as a GGUF file"];
        assert!(expected.iter().any(|words| error.contains(words)), "{end}: {error}");
    }
    // All of the header is there, and the file is shorter than it says.
    let error = super::Head::parse(&file[..header], header as u64).unwrap_err().to_string();
    assert!(error.contains("file is truncated"), "{error}");
}

#[test]
fn wrong_headers_are_refused() {
    all_refused(&[
        ("version 0", |it| it.version = 0, "GGUF version 0 is not read"),
        ("version 1", |it| it.version = 1, "GGUF version 1 is not read"),
        ("version 4", |it| it.version = 4, "GGUF version 4 is not read"),
        ("2^63 tensors", |it| it.tensors = Some(1 << 63), "more than 500000"),
        ("2^32 tensors", |it| it.tensors = Some(1 << 32), "more than 500000"),
        ("a tensor more", |it| it.tensors = Some(it.infos.len() as u64 + 1), "tensor"),
        ("2^62 keys", |it| it.keys = Some(1 << 62), "more than 65536"),
        ("a key more", |it| it.keys = Some(it.values.len() as u64 + 1), "tensor"),
        ("a key less", |it| it.keys = Some(it.values.len() as u64 - 1), "tensor"),
    ]);
}

#[test]
fn wrong_metadata_are_refused() {
    fn key(length: u64) -> Option<Vec<u8>> {
        Some([&length.to_le_bytes()[..], b"x"].concat())
    }
    fn huge(of: u32, count: u64) -> Vec<u8> {
        [&of.to_le_bytes()[..], &count.to_le_bytes()].concat()
    }
    all_refused(&[
        ("key of 2^63 bytes", |it| it.first_key = key(1 << 63), "key 0 of the metadata"),
        ("key past the end", |it| it.first_key = key(1 << 30), "key 0 of the metadata"),
        ("empty key", |it| it.add(b"", U32, [1, 0, 0, 0]), "has 0 bytes"),
        ("key not UTF-8", |it| it.add(b"\xff\xfe", U32, [1, 0, 0, 0]), "is not UTF-8"),
        ("key twice", |it| it.values.push(it.values[0].clone()), "twice"),
        (
            "type 13",
            |it| it.add(b"x.y", 13, [1, 0, 0, 0]),
            "\"x.y\" in the metadata has a value of unknown type 13",
        ),
        ("type 2^31", |it| it.add(b"x.y", 1 << 31, [1, 0, 0, 0]), "unknown type 2147483648"),
        ("text of 2^64", |it| it.add(b"x.y", TEXT, [255; 8]), "the value of \"x.y\""),
        (
            "2^61 items",
            |it| it.add(b"x.y", LIST, huge(U32, 1 << 61)),
            "items of \"x.y\" have no room",
        ),
        (
            "items past the end",
            |it| it.add(b"x.y", LIST, huge(U8, 1 << 30)),
            "items of \"x.y\" have no room",
        ),
        (
            "2^40 texts",
            |it| it.add(b"x.y", LIST, huge(TEXT, 1 << 40)),
            "items of \"x.y\" have no room",
        ),
        (
            "a list of lists",
            |it| it.add(b"x.y", LIST, list(LIST, &[list(U32, &[])])),
            "\"x.y\" in the metadata is a list of lists",
        ),
        (
            "lists, deep",
            |it| {
                it.add(b"x.y", LIST, huge(LIST, 1).repeat(20_000));
            },
            "is a list of lists",
        ),
        ("list of type 99", |it| it.add(b"x.y", LIST, huge(99, 1)), "unknown type 99"),
        ("alignment 0", |it| it.put("general.alignment", U32, [0; 4]), "power of two, and is 0"),
        (
            "alignment 48",
            |it| it.put("general.alignment", U32, [48, 0, 0, 0]),
            "power of two, and is 48",
        ),
        (
            "alignment 2^31",
            |it| it.put("general.alignment", U32, [0, 0, 0, 128]),
            "file is truncated",
        ),
        (
            "alignment as u64",
            |it| it.put("general.alignment", U64, [32, 0, 0, 0, 0, 0, 0, 0]),
            "must be a u32",
        ),
        ("alignment as text", |it| it.put("general.alignment", TEXT, text(b"32")), "must be a u32"),
        (
            "another alignment",
            |it| it.put("general.alignment", U32, [0, 0, 2, 0]),
            "at a multiple of 131072",
        ),
    ]);
}

#[test]
fn wrong_tensors_are_refused() {
    fn first(name: u64, rank: u32) -> Option<Vec<u8>> {
        Some([&name.to_le_bytes()[..], b"x", &rank.to_le_bytes()].concat())
    }
    all_refused(&[
        (
            "a name of 64 bytes",
            |it| it.infos[0].name = vec![b'n'; 64],
            "the name of tensor 0 has 64 bytes",
        ),
        ("a name of 2^62 bytes", |it| it.first_info = first(1 << 62, 1), "the name of tensor 0"),
        ("an empty name", |it| it.infos[0].name.clear(), "the name of tensor 0 has 0 bytes"),
        (
            "a name not UTF-8",
            |it| it.infos[0].name = b"\xff.weight".into(),
            "the name of tensor 0 is not UTF-8",
        ),
        ("a name twice", |it| it.infos[1].name = it.infos[0].name.clone(), "is there twice"),
        ("a path", |it| it.infos[0].name = b"../../etc/x".into(), "\"../../etc/x\""),
        (
            "five dimensions",
            |it| it.info(Q).dims.extend([1, 1, 1]),
            "\"blk.0.attn_q.weight\" has 5 dimensions",
        ),
        ("2^32 dimensions", |it| it.first_info = first(1, u32::MAX), "has 4294967295 dimensions"),
        ("no dimensions", |it| it.info(Q).dims.clear(), "\"blk.0.attn_q.weight\" has 0 dimensions"),
        ("a dimension of 0", |it| it.info(Q).dims[1] = 0, "has a dimension of 0"),
        ("a dimension of 2^64", |it| it.info(Q).dims[1] = u64::MAX, "has no size"),
        ("dimensions past 64 bits", |it| it.info(Q).dims = vec![1 << 32; 3], "has no size"),
        (
            "bytes past the file",
            |it| it.info(Q).dims = vec![1 << 31, 1 << 31, 1],
            "file is truncated: tensor \"blk.0.attn_q.weight\"",
        ),
        (
            "type 99",
            |it| it.info(Q).kind = 99,
            "\"blk.0.attn_q.weight\" is of type 99, which is not read",
        ),
        ("type 2^31", |it| it.info(Q).kind = 1 << 31, "is of type 2147483648"),
        ("a removed type", |it| it.info(Q).kind = 4, "is of type 4"),
        ("a type that is not decoded", |it| it.info(Q).kind = 16, "is of type 16"),
        ("rows of other lengths", |it| it.info(Q).dims[0] -= 1, "has no size"),
        ("an odd place", |it| it.info(Q).offset += 1, "bytes into the data, expected"),
        ("an overlap", |it| it.info(Q).offset -= 32, "bytes into the data, expected"),
        ("a hole", |it| it.last().offset += 32, "bytes into the data, expected"),
        (
            "one place for two",
            |it| {
                let other = it.info("token_embd.weight").offset;
                it.info(Q).offset = other;
            },
            "bytes into the data, expected",
        ),
        (
            "a place past the end",
            |it| it.last().offset = (it.data.len() as u64).next_multiple_of(32) + 4096,
            "expected",
        ),
        ("a place past all numbers", |it| it.last().offset = u64::MAX - 31, "expected"),
    ]);
}

#[test]
fn files_that_end_early_are_refused() {
    let mut good = Made::good();
    let last = good.last().clone();
    let bytes = super::Kind::of_id(last.kind).unwrap().bytes(&last.dims).unwrap_or(0) as usize;
    let end = last.offset as usize + bytes;
    good.data.truncate(end);
    assert!(opened(&good.bytes()).is_ok());
    good.data.truncate(end - 1);
    let name = String::from_utf8(last.name).unwrap();
    refused("a byte less", &good.bytes(), &format!("file is truncated: tensor {name:?}"));
    good.data.truncate(end / 2);
    refused("half", &good.bytes(), "file is truncated");
    good.data.clear();
    refused("no data", &good.bytes(), "file is truncated");
}

#[test]
fn parts_that_are_not_all_there_are_refused() {
    all_refused(&[
        (
            "one of three",
            |it| it.split(0, 3, it.infos.len() as i32),
            "is not called NAME-00001-of-00003.gguf",
        ),
        (
            "part 6 of three",
            |it| it.split(5, 3, it.infos.len() as i32),
            "says that it is part 6 of 3",
        ),
        (
            "the second part",
            |it| it.split(1, 3, it.infos.len() as i32),
            "is part 2 of 3 of a model; name the first part",
        ),
        (
            "other tensors",
            |it| it.split(0, 1, it.infos.len() as i32 + 9),
            "tensors, the first one says",
        ),
    ]);
}

#[test]
fn a_missing_or_wrong_part_is_named() {
    let golden = golden_gguf("qwen3-split-q8_0");
    let part = |number| format!("model-0000{number}-of-00003.gguf");
    let open = |directory: &Path, name: &str| {
        let location = locate_in(directory.join(name).to_str().unwrap(), &[]).unwrap();
        Checkpoint::open_at(location).map_err(|error| error.to_string())
    };
    let directory = tempfile::tempdir().unwrap();
    let copy = |from, to| {
        std::fs::copy(golden.join(part(from)), directory.path().join(part(to))).unwrap();
    };
    copy(1, 1);
    copy(3, 3);
    let error = open(directory.path(), "").unwrap_err();
    assert!(error.contains("part 2 of 3 is missing: model-00002-of-00003.gguf"), "{error}");
    copy(3, 2);
    let error = open(directory.path(), &part(1)).unwrap_err();
    assert!(
        error.contains("expected part 2 of 3, found a file that says it is part 3 of 3"),
        "{error}"
    );
    copy(2, 2);
    let error = open(directory.path(), &part(2)).unwrap_err();
    assert!(error.contains("name the first part"), "{error}");
    assert_eq!(open(directory.path(), "").unwrap().files.len(), 3);
    std::fs::copy(directory.path().join(part(1)), directory.path().join("other.gguf")).unwrap();
    let error = open(directory.path(), "").unwrap_err();
    assert!(error.contains("several models") && error.contains("other.gguf"), "{error}");
}
