//! Files that must be refused, one test each, and odd ones that must be read.
//!
//! Every refusal is compared with the reference implementation, which must refuse the file as well.

use ::safetensors::SafeTensors;
use ::safetensors::tensor::{Dtype as ReferenceDtype, TensorView, serialize};

use super::header::{FileError, Header, HeaderError};
use crate::testing::{file_of, golden_path};

/// Whether the reference reads a file.
#[derive(PartialEq)]
enum Reference {
    Refuses,
    /// It keeps the last of two tensors of one name.
    Reads,
}
use Reference::{Reads, Refuses};

fn parse(file: &[u8]) -> Result<Header, HeaderError> {
    Header::parse(file, file.len() as u64)
}

/// A file whose header has that JSON and whose data has that many bytes.
fn with_data(json: &str, data_bytes: usize) -> Vec<u8> {
    file_of(json, &vec![7; data_bytes])
}

/// A file with one tensor called `a`.
fn one(dtype: &str, shape: &str, offsets: &str, data_bytes: usize) -> Vec<u8> {
    let json = format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
    with_data(&json, data_bytes)
}

/// A file with two U8 tensors of 4 elements at those offsets.
fn two(a: &str, b: &str, data_bytes: usize) -> Vec<u8> {
    let json = format!(
        r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{a}}},
             "b":{{"dtype":"U8","shape":[4],"data_offsets":{b}}}}}"#
    );
    with_data(&json, data_bytes)
}

/// A file whose length field is `length`, whatever follows.
fn with_length(length: u64, rest: &[u8]) -> Vec<u8> {
    [&length.to_le_bytes(), rest].concat()
}

macro_rules! rejects {
    ($($name:ident: $file:expr, $reference:ident => $pattern:pat,)*) => {$(
        #[test]
        fn $name() {
            let file: Vec<u8> = $file;
            let error = parse(&file).expect_err("must be refused");
            assert!(matches!(error, $pattern), "{error:?}");
            assert!(!error.to_string().is_empty());
            let reference = SafeTensors::deserialize(&file).is_err();
            assert_eq!(reference, $reference == Refuses);
        }
    )*};
}

use HeaderError as E;
rejects! {
    rejects_an_empty_file: vec![], Refuses => E::TooShort { file_bytes: 0 },
    rejects_a_file_of_7_bytes: vec![0; 7], Refuses => E::TooShort { file_bytes: 7 },
    rejects_an_empty_header: with_length(0, b""), Refuses => E::Empty,
    rejects_a_header_over_the_limit: with_length(100_000_001, b"{}"), Refuses =>
        E::TooLong { header_bytes: 100_000_001 },
    rejects_a_length_of_all_ones: with_length(u64::MAX, b"{}"), Refuses => E::TooLong { .. },
    rejects_a_header_past_the_end: with_length(3, b"{}"), Refuses =>
        E::PastEnd { header_end: 11, file_bytes: 10 },
    rejects_a_header_that_is_not_utf8: file_of(b"\xff", b""), Refuses => E::NotUtf8,
    rejects_json_that_ends_early: with_data(r#"{"a":"#, 0), Refuses => E::Malformed { .. },
    rejects_a_header_that_is_a_list: with_data("[]", 0), Refuses => E::Json(_),
    rejects_two_json_values: with_data("{}{}", 0), Refuses => E::Json(_),
    rejects_a_byte_order_mark: with_data("\u{feff}{}", 0), Refuses => E::Json(_),
    rejects_nul_padding: with_data("{}\0\0\0\0\0\0", 0), Refuses => E::Json(_),
    rejects_a_hole: two("[0,4]", "[8,12]", 12), Refuses =>
        E::NotTiled { expected_start: 4, start: 8, .. },
    rejects_overlapping_ranges: two("[0,4]", "[2,6]", 6), Refuses =>
        E::NotTiled { expected_start: 4, start: 2, .. },
    rejects_two_tensors_sharing_one_range: two("[0,4]", "[0,4]", 4), Refuses =>
        E::NotTiled { expected_start: 4, start: 0, .. },
    rejects_a_first_tensor_not_at_the_start: one("U8", "[4]", "[8,12]", 12), Refuses =>
        E::NotTiled { expected_start: 0, start: 8, .. },
    rejects_an_end_before_its_start: two("[0,4]", "[4,2]", 4), Refuses =>
        E::Backwards { start: 4, end: 2, .. },
    rejects_a_size_that_is_not_the_shapes: one("F32", "[2]", "[0,4]", 4), Refuses =>
        E::WrongSize { expected: 8, found: 4, .. },
    rejects_a_shape_that_overflows: one("U8", "[9223372036854775808,4]", "[0,4]", 4), Refuses =>
        E::NoSize { .. },
    rejects_a_negative_dimension: one("U8", "[-1]", "[0,1]", 1), Refuses => E::Malformed { .. },
    rejects_a_fractional_dimension: one("U8", "[2.0]", "[0,2]", 2), Refuses =>
        E::Malformed { .. },
    rejects_a_lowercase_dtype: one("f32", "[1]", "[0,4]", 4), Refuses => E::UnknownDtype { .. },
    rejects_an_unknown_dtype: one("F31", "[1]", "[0,4]", 4), Refuses => E::UnknownDtype { .. },
    rejects_three_offsets: one("U8", "[4]", "[0,4,8]", 4), Refuses => E::Malformed { .. },
    rejects_one_offset: one("U8", "[4]", "[0]", 4), Refuses => E::Malformed { .. },
    rejects_a_missing_dtype: with_data(r#"{"a":{"shape":[1],"data_offsets":[0,1]}}"#, 1), Refuses =>
        E::Malformed { .. },
    rejects_a_missing_shape: with_data(r#"{"a":{"dtype":"U8","data_offsets":[0,1]}}"#, 1), Refuses =>
        E::Malformed { .. },
    rejects_a_number_in_the_metadata: with_data(r#"{"__metadata__":{"a":1}}"#, 0), Refuses =>
        E::Metadata(_),
    rejects_a_map_in_the_metadata: with_data(r#"{"__metadata__":{"a":{}}}"#, 0), Refuses =>
        E::Metadata(_),
    rejects_metadata_given_twice: with_data(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), Refuses =>
        E::DuplicateMetadata,
    rejects_an_odd_number_of_f4: one("F4", "[3]", "[0,2]", 2), Refuses => E::NoSize { .. },
    rejects_three_f6: one("F6_E2M3", "[3]", "[0,3]", 3), Refuses => E::NoSize { .. },
    rejects_a_trailing_byte: one("U8", "[4]", "[0,4]", 5), Refuses => E::TrailingData { .. },
    rejects_a_file_one_byte_short: one("U8", "[4]", "[0,4]", 3), Refuses => E::Truncated { .. },
    rejects_a_name_given_twice: with_data(
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
            "a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}"#, 4), Reads =>
        E::DuplicateTensor { .. },
    rejects_a_git_lfs_pointer: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
        .to_vec(), Refuses => E::LfsPointer,
    rejects_a_web_page: b"<!DOCTYPE html>\n<html><body>404</body></html>".to_vec(), Refuses =>
        E::HtmlPage,
    rejects_a_page_that_starts_with_blanks: b"\n  <HTML><body>sign in</body></html>".to_vec(),
        Refuses => E::HtmlPage,
    rejects_too_many_dimensions: one("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]", 1), Reads =>
        E::Malformed { .. },
}

#[test]
fn refusals_read_from_disk_name_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    for (bytes, words) in [
        (&b""[..], "too short"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"<!doctype html><html>", "web page"),
        (b"\x10\0\0\0\0\0\0\0{}", "truncated"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = Header::read(&path).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("model.safetensors"), "{error}");
    }
    let error = Header::read(&directory.path().join("absent.safetensors")).unwrap_err();
    assert!(matches!(error, FileError::Io { .. }), "{error}");
}

#[test]
fn a_huge_length_allocates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    // A sparse file that does have the bytes its length claims, one more than the limit.
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(200_000_000).unwrap();
    std::io::Write::write_all(&mut &file, &100_000_001u64.to_le_bytes()).unwrap();
    let error = Header::read(&path).unwrap_err();
    let refused = matches!(error, FileError::Header { cause: E::TooLong { .. }, .. });
    assert!(refused, "{error}");
}

#[test]
fn reads_the_reference_documentations_sample() {
    let json = r#"{"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}"#;
    assert_eq!(json.len(), 60, "not a multiple of 8: readers must not need padding");
    let header = parse(&with_data(json, 16)).unwrap();
    assert_eq!((header.data_start, header.tensors.len()), (68, 1));
    assert_eq!(header.metadata, None);
}

#[test]
fn reads_null_metadata_unknown_fields_blanks_and_odd_names() {
    let json = " \t\n{\"__metadata__\":null,\"\":{\"dtype\":\"U8\",\"shape\":[],\"more\":[{}],\
                \"data_offsets\":[0,1]},\"z\":{\"dtype\":\"U8\",\"shape\":[0,7],\
                \"data_offsets\":[1,1]}}  \n";
    let file = with_data(json, 1);
    let header = parse(&file).unwrap();
    assert_eq!(header.metadata, None);
    assert_eq!(header.tensors.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["", "z"]);
    assert!(SafeTensors::deserialize(&file).is_ok());
    assert!(parse(&with_data("{}", 0)).unwrap().tensors.is_empty());
}

#[test]
fn offsets_decide_the_order_and_may_be_odd() {
    let json = r#"{"a":{"dtype":"BF16","shape":[2],"data_offsets":[3,7]},
                   "b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
    let header = parse(&with_data(json, 7)).unwrap();
    assert_eq!(header.tensors[1].name, "a");
    assert_eq!((header.tensors[1].start, header.tensors[1].end), (3, 7));
}

#[test]
fn agrees_with_the_reference_on_what_it_writes() {
    let data = [1u8, 2, 3, 4, 5, 6, 7, 8];
    let view = |dtype, shape, bytes| TensorView::new(dtype, shape, bytes).unwrap();
    let file = serialize(
        [
            ("bytes", view(ReferenceDtype::U8, vec![3], &data[..3])),
            ("halves", view(ReferenceDtype::BF16, vec![2, 2], &data)),
            ("fours", view(ReferenceDtype::F4, vec![4], &data[..2])),
        ],
        None,
    )
    .unwrap();
    let header = parse(&file).unwrap();
    let names: Vec<&str> = header.tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["halves", "bytes", "fours"]);
}

#[test]
fn every_cut_of_a_real_file_is_refused() {
    let whole = std::fs::read(golden_path("qwen2").join("model.safetensors")).unwrap();
    let header = parse(&whole).unwrap();
    assert_eq!(header.metadata.unwrap()["format"], "pt");
    let cuts = (0..whole.len().min(9000)).chain((9000..whole.len()).step_by(4097));
    for length in cuts {
        assert!(parse(&whole[..length]).is_err(), "{length}");
    }
}

proptest::proptest! {
    /// Whatever the reference reads we read, and the other way round, but for what we add.
    #[test]
    fn no_damage_panics_and_verdicts_agree(place in 0usize..200, byte: u8) {
        let mut file = two("[0,4]", "[4,8]", 8);
        let place = place % file.len();
        file[place] = byte;
        let ours = parse(&file);
        let theirs = SafeTensors::deserialize(&file);
        let added = matches!(ours, Err(E::DuplicateTensor { .. }));
        proptest::prop_assert!(added || ours.is_ok() == theirs.is_ok(), "{ours:?} {theirs:?}");
    }
}
