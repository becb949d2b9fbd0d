//! Files that must be refused, one test each, made from the smallest file that `apr-format` 0.72.3 writes; and odd ones that must
//! be read. The reference checks less: neither version, flags but for columns, sizes, places nor the last checksum.

use std::path::PathBuf;

use super::*;
use crate::container::{Checksum, Container};
use crate::error::Error;

/// Metadata of the smallest file.
const META: &str = r#"{"model_type":"t","license":null,"data_source":null,"data_license":null,"total_size":0,"param_count":0}"#;
const HEADER: &str =
    "415052000200000402000000400000000000000067000000c0000000000000004001000000000000";
const HEADER_SUM: &str = "5c7919b3";
const INDEX_A: &str = "010061000201000000000000000100000000000000\
                       00000000000000000400000000000000";
const INDEX_B: &str = "01006200010200000000000000400000000000000008000000\
                       00000000";
const FOOTER: &str = "a48c8705";
/// Where the index starts in it,
const INDEX: usize = 192;
/// and the data.
const DATA: usize = 320;
/// Where the second entry of the index starts.
const B: usize = INDEX + 37;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

/// The smallest file: metadata of nothing but a type, and two tensors of F32, `a` `[[0.5]]` and `b` `[1, 2]`.
pub(super) fn smallest() -> Vec<u8> {
    let mut file = bytes(HEADER);
    file.extend(bytes(HEADER_SUM));
    file.resize(64, 0);
    file.extend(META.as_bytes());
    file.resize(INDEX, 0);
    file.extend(bytes(INDEX_A));
    file.extend(bytes(INDEX_B));
    file.resize(DATA, 0);
    file.extend(0.5f32.to_le_bytes());
    file.resize(DATA + 64, 0);
    file.extend([1f32.to_le_bytes(), 2f32.to_le_bytes()].concat());
    file.resize(DATA + 128, 0);
    file.extend(bytes(FOOTER));
    file
}

/// The smallest file with other bytes at some places, and the right checksum of its header.
fn with(changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut file = smallest();
    for (at, bytes) in changes {
        file[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    summed(file)
}

/// The same with this metadata, which may be up to 128 bytes.
fn with_meta(json: &str) -> Vec<u8> {
    let mut meta = json.as_bytes().to_vec();
    let length = (meta.len() as u32).to_le_bytes();
    meta.resize(128, 0);
    with(&[(20, &length), (64, &meta)])
}

fn summed(mut file: Vec<u8>) -> Vec<u8> {
    let sum = header_checksum(file.first_chunk().unwrap());
    file[40..44].copy_from_slice(&sum.to_le_bytes());
    file
}

fn parse(file: &[u8]) -> Result<Head, AprError> {
    Head::parse(file, file.len() as u64)
}

fn long(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

macro_rules! rejects {
    ($($name:ident: $file:expr => $pattern:pat,)*) => {$(
        #[test]
        fn $name() {
            let error = parse(&$file).expect_err("must be refused");
            assert!(matches!(error, $pattern), "{error:?}");
            assert!(!error.to_string().is_empty());
        }
    )*};
}

use AprError as E;
rejects! {
    rejects_an_empty_file: [] => E::TooShort { file_bytes: 0 },
    rejects_a_file_of_63_bytes: smallest()[..63] => E::TooShort { file_bytes: 63 },
    rejects_other_first_bytes: with(&[(0, b"APRN")]) => E::NotApr { found: [b'A', b'P', b'R', b'N'] },
    rejects_version_1: with(&[(4, &[1])]) => E::Version { major: 1, minor: 0 },
    rejects_version_9: with(&[(4, &[9, 3])]) => E::Version { major: 9, minor: 3 },
    rejects_a_wrong_header_checksum: { let mut file = smallest(); file[50] ^= 1; file } =>
        E::HeaderChecksum { found: 0xb319_795c, .. },
    rejects_lz4: with(&[(6, &[0x01, 0x04])]) => E::Unsupported { what: "compressed by LZ4" },
    rejects_zstandard: with(&[(6, &[0x02, 0x04])]) =>
        E::Unsupported { what: "compressed by Zstandard" },
    rejects_encrypted_data: with(&[(6, &[0x04, 0x04])]) => E::Unsupported { what: "encrypted" },
    rejects_one_file_of_several: with(&[(6, &[0x10, 0x04])]) => E::Unsupported { .. },
    rejects_columns_first: with(&[(6, &[0x00, 0x08])]) => E::Unsupported { what: "column-major" },
    rejects_unknown_flags: with(&[(6, &[0x00, 0x14])]) => E::UnknownFlags { bits: 0x1000 },

    rejects_metadata_past_the_end: with(&[(20, &500u32.to_le_bytes())]) =>
        E::SectionOutside { section: "metadata", end: 564, file_bytes: 452 },
    rejects_metadata_past_all_numbers: with(&[(12, &long(u64::MAX - 63))]) =>
        E::SectionOutside { section: "metadata", .. },
    rejects_metadata_inside_the_header: with(&[(12, &long(0))]) =>
        E::SectionOverlaps { section: "metadata", start: 0, before: 64 },
    rejects_metadata_over_the_index: with(&[(20, &129u32.to_le_bytes())]) =>
        E::SectionOverlaps { section: "index", start: 192, before: 193 },
    rejects_unaligned_metadata: with(&[(12, &long(65))]) =>
        E::SectionUnaligned { section: "metadata", offset: 65 },
    rejects_an_unaligned_index: with(&[(24, &long(200))]) =>
        E::SectionUnaligned { section: "index", offset: 200 },
    rejects_an_index_past_the_end: with(&[(24, &long(640)), (32, &long(640))]) =>
        E::SectionOutside { section: "index", end: 640, .. },
    rejects_unaligned_data: with(&[(32, &long(321))]) =>
        E::SectionUnaligned { section: "data", offset: 321 },
    rejects_data_before_the_index: with(&[(32, &long(128))]) =>
        E::SectionOverlaps { section: "data", start: 128, before: 192 },
    rejects_more_tensors_than_there_is_room: with(&[(8, &7u32.to_le_bytes())]) =>
        E::NoRoomForTensors { tensors: 7, bytes: 128 },
    rejects_all_tensors_that_can_be_counted: with(&[(8, &[0xff; 4])]) =>
        E::TooManyTensors { tensors: u32::MAX },
    rejects_an_entry_that_the_index_cuts: with(&[(8, &5u32.to_le_bytes()), (B + 29, &[1, 0, b'c', 0, 8])]) =>
        E::EntryCut { entry: 2 },

    rejects_a_long_name: with(&[(INDEX, &257u16.to_le_bytes())]) =>
        E::NameTooLong { entry: 0, bytes: 257 },
    rejects_a_name_past_the_index: with(&[(B, &200u16.to_le_bytes())]) => E::EntryCut { entry: 1 },
    rejects_a_name_that_is_not_utf8: with(&[(INDEX + 2, &[0xff])]) => E::NameNotUtf8 { entry: 0 },
    rejects_names_in_another_order: with(&[(INDEX + 2, b"c")]) => E::NotSorted { .. },
    rejects_a_name_given_twice: with(&[(INDEX + 2, b"b")]) => E::NotSorted { .. },
    rejects_an_unknown_element_type: with(&[(INDEX + 3, &[10])]) => E::UnknownKind { id: 10, .. },
    rejects_bf16_of_old_writers: with(&[(INDEX + 3, &[2])]) => E::FormerBf16 { .. },
    rejects_nine_dimensions: with(&[(INDEX + 4, &[9])]) =>
        E::TooManyDimensions { dimensions: 9, .. },
    rejects_a_size_that_is_not_the_shapes: with(&[(B + 5, &long(3))]) =>
        E::WrongSize { expected: 12, found: 8, .. },
    rejects_the_size_of_another_type: with(&[(B + 3, &[1])]) =>
        E::WrongSize { expected: 4, found: 8, .. },
    rejects_a_shape_that_overflows: with(&[(INDEX + 5, &long(1 << 63)), (INDEX + 13, &long(4))]) =>
        E::NoSize { .. },
    rejects_blocks_cut_by_rows: with(&[(INDEX + 3, &[12]), (INDEX + 13, &long(100))]) =>
        E::NoSize { .. },
    rejects_an_unaligned_tensor: with(&[(B + 13, &long(65))]) =>
        E::TensorUnaligned { offset: 65, .. },
    rejects_two_tensors_that_share_bytes: with(&[(B + 13, &long(0))]) => E::Overlap { .. },
    rejects_a_tensor_past_the_end: with(&[(B + 13, &long(128))]) =>
        E::Truncated { expected: 512, found: 452 },
    rejects_a_tensor_past_all_numbers: with(&[(B + 13, &long(u64::MAX - 63))]) =>
        E::TensorOutside { .. },
    rejects_a_file_without_its_last_bytes: smallest()[..447] =>
        E::Truncated { expected: 448, found: 447 },
    rejects_a_cut_checksum: smallest()[..450] => E::TrailingData { expected: 452, found: 450 },
    rejects_a_trailing_byte: [&smallest()[..], &[0]].concat() =>
        E::TrailingData { expected: 452, found: 453 },

    rejects_metadata_that_are_a_list: with_meta("[]") => E::Metadata(_),
    rejects_metadata_that_end_early: with_meta(r#"{"a":"#) => E::Metadata(_),
    rejects_two_json_values: with_meta("{}{}") => E::Metadata(_),
    rejects_no_metadata: with_meta("") => E::Metadata(_),
    rejects_metadata_that_are_not_utf8: with(&[(66, &[0xff])]) => E::Metadata(_),
    rejects_a_key_given_twice: with_meta(r#"{"a":1,"a":1}"#) => E::DuplicateKey { .. },
}

#[test]
fn the_smallest_file_is_read() {
    let file = smallest();
    assert_eq!(file.len(), 452);
    let head = parse(&file).unwrap();
    let tensor = |name: &str, shape: &[u64], start, bytes| TensorInfo {
        name: name.to_owned(),
        kind: Kind::Plain(crate::dtype::Dtype::F32),
        shape: shape.to_vec(),
        start,
        bytes,
    };
    assert_eq!(head.tensors, [tensor("a", &[1, 1], 320, 4), tensor("b", &[2], 384, 8)]);
    assert!(head.has_footer && head.warnings().is_empty());
    assert_eq!(head.metadata["model_type"], "t");
    assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926, "the checksum is that of IEEE 802.3");
}

#[test]
fn a_header_that_says_too_much_allocates_nothing() {
    // A sparse file that does have what its header claims.
    let (metadata, index) = (MAX_METADATA_BYTES + 1, u64::from(MAX_METADATA_BYTES) + 128);
    let file = with(&[(20, &metadata.to_le_bytes()), (24, &long(index)), (32, &long(index))]);
    let error = Head::parse(&file, 1 << 40).unwrap_err();
    assert!(matches!(error, E::MetadataTooLong { bytes } if bytes == metadata), "{error}");
    let file = with(&[(32, &long(100_000_320 / 64 * 64))]);
    let error = Head::parse(&file, 1 << 40).unwrap_err();
    assert!(matches!(error, E::IndexTooLong { .. }), "{error}");
    let file = with(&[(12, &long(1 << 37)), (24, &long(1 << 38)), (32, &long(1 << 38))]);
    let error = Head::parse(&file, 1 << 40).unwrap_err();
    assert!(matches!(error, E::IndexTooLong { .. }), "{error}");
}

#[test]
fn odd_files_are_read_with_a_word() {
    let without_footer = parse(&smallest()[..448]).unwrap();
    assert!(!without_footer.has_footer);
    assert!(
        without_footer.warnings()[0].contains("no checksum"),
        "{:?}",
        without_footer.warnings()
    );
    let silent = parse(&with(&[(6, &[0, 0])])).unwrap();
    assert!(silent.warnings()[0].contains("row by row"));
    // Nothing is signed, written as a stream or of a newer minor version in another layout.
    parse(&with(&[(5, &[7]), (6, &[0xe8, 0x07])])).unwrap();
    // Data in another order than names, a hole between them, a dimension of nothing, and a scalar.
    let swapped = with(&[(INDEX + 21, &long(64)), (B + 13, &long(0))]);
    assert_eq!(parse(&swapped).unwrap().tensors[0].start, 384);
    let empty = with(&[(B + 5, &long(0)), (B + 21, &long(0))]);
    assert_eq!(parse(&empty[..384]).unwrap().tensors[1].bytes, 0);
}

#[test]
fn former_numbers_of_codes_are_known() {
    for (id, kind) in KINDS {
        assert_eq!((Kind::of_id(id), kind.id()), (Some(kind), Some(id)));
    }
    assert_eq!(Kind::of_id(8), Kind::of_id(128));
    assert_eq!(Kind::of_id(9), Kind::of_id(129));
    assert_eq!(Kind::Plain(crate::dtype::Dtype::U32).id(), None);
}

/// The file under a name.
fn on_disk(file: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.apr");
    std::fs::write(&path, file).unwrap();
    (directory, path)
}

#[test]
fn the_checksum_at_the_end_is_given() {
    let (_home, path) = on_disk(&smallest());
    let checksum = Apr.stored(&path).unwrap().files[0].0.checksum.unwrap();
    let crc32 = crc32fast::hash(&smallest()[..448]);
    assert_eq!(checksum, Checksum { bytes: 448, crc32 });
    checksum.check(&path, crc32).unwrap();
    let error = checksum.check(&path, crc32 ^ 1).unwrap_err();
    assert!(matches!(error, Error::Checksum { .. }), "{error}");
    assert!(error.to_string().contains("model.apr"), "{error}");
    let (_home, path) = on_disk(&smallest()[..448]);
    assert_eq!(Apr.stored(&path).unwrap().files[0].0.checksum, None);
}

#[test]
fn every_cut_is_refused() {
    let whole = smallest();
    for length in (0..whole.len()).filter(|length| *length != 448) {
        assert!(parse(&whole[..length]).is_err(), "{length}");
        let (_home, path) = on_disk(&whole[..length]);
        assert!(Head::read(&path).is_err(), "{length}");
    }
}

proptest::proptest! {
    /// Whatever the bytes are, nothing panics, and what is accepted lies in the file without overlap.
    #[test]
    fn no_damage_panics(changes in proptest::collection::vec((0usize..452, proptest::num::u8::ANY), 1..6), sum: bool) {
        let mut file = smallest();
        for (place, byte) in changes {
            file[place] = byte;
        }
        let file = if sum { summed(file) } else { file };
        if let Ok(head) = parse(&file) {
            for tensor in &head.tensors {
                proptest::prop_assert!(tensor.start + tensor.bytes <= 452);
            }
        }
    }
}
