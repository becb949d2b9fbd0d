//! The header of a file that is written: tensor order, offsets, padding.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::dtype::Dtype;

/// The data of a blob starts at a multiple of this, so that its large tensors are aligned in a map.
pub const ALIGNMENT: u64 = 64;

/// What a header says of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Name as in the checkpoint.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: &'a [u64],
    /// Size of its data.
    pub bytes: u64,
}

impl<'a> Entry<'a> {
    /// Where the tensor stands in an ordinary file: wide element types before narrow ones, then by name. As the reference
    /// implementation writes.
    pub fn reference_order(&self) -> (Reverse<Dtype>, &'a str) {
        (Reverse(self.dtype), self.name)
    }

    /// Where the tensor stands in a blob: sizes that are multiples of 64 first, so that they all
    /// start at such a multiple, then wide element types before narrow ones, then by name.
    pub fn order(&self) -> (bool, Reverse<Dtype>, &'a str) {
        (!self.bytes.is_multiple_of(ALIGNMENT), Reverse(self.dtype), self.name)
    }
}

/// Bytes of a blob up to its data: the length, the JSON, and spaces to a multiple of 64.
///
/// As [`file_header`]; the bytes are part of what a blob's digests cover.
pub fn header_bytes(entries: &[Entry<'_>]) -> Vec<u8> {
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    file_header(entries, &metadata, ALIGNMENT)
}

/// Bytes of a file up to its data: the length, the JSON, and spaces to a multiple of `alignment`.
///
/// Offsets follow the order of `entries`, without holes; `metadata` is free text, of which `format` says for whom the file
/// is. One input gives one output.
///
/// The sum of the sizes must fit 64 bits; the callers check it.
pub fn file_header(
    entries: &[Entry<'_>],
    metadata: &BTreeMap<String, String>,
    alignment: u64,
) -> Vec<u8> {
    let metadata = serde_json::to_string(metadata).expect("texts are JSON");
    let mut json = format!(r#"{{"__metadata__":{metadata}"#);
    let mut start = 0;
    for entry in entries {
        let end = start + entry.bytes;
        let name = serde_json::Value::from(entry.name); // Prints with JSON's escapes.
        let shape: Vec<String> = entry.shape.iter().map(u64::to_string).collect();
        json += &format!(
            r#",{name}:{{"dtype":"{}","shape":[{}],"data_offsets":[{start},{end}]}}"#,
            entry.dtype,
            shape.join(","),
        );
        start = end;
    }
    json.push('}');
    let padded = (8 + json.len() as u64).next_multiple_of(alignment) - 8;
    let mut bytes = padded.to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(8 + padded as usize, b' ');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::safetensors::header::Header;

    #[test]
    fn data_starts_at_a_multiple_of_64_for_every_name_length() {
        for length in 0..130 {
            let name = "n".repeat(length);
            let entry = Entry { name: &name, dtype: Dtype::U8, shape: &[3], bytes: 3 };
            let bytes = header_bytes(&[entry]);
            assert_eq!(bytes.len() % 64, 0);
            let header = Header::parse(&bytes, bytes.len() as u64 + 3).unwrap();
            assert_eq!(header.data_start, bytes.len() as u64);
            assert_eq!(header.tensors[0].name, name);
        }
    }

    #[test]
    fn names_are_escaped() {
        let name = "a\"b\\c\u{1}\u{e9}";
        let entry = Entry { name, dtype: Dtype::F32, shape: &[], bytes: 4 };
        let bytes = header_bytes(&[entry]);
        assert_eq!(Header::parse(&bytes, bytes.len() as u64 + 4).unwrap().tensors[0].name, name);
    }

    #[test]
    fn multiples_of_64_come_first_then_wide_types_then_names() {
        let entry = |name, dtype, bytes| Entry { name, dtype, shape: &[], bytes };
        let mut entries = [
            entry("b", Dtype::BF16, 128),
            entry("odd", Dtype::F32, 12),
            entry("a", Dtype::BF16, 64),
            entry("wide", Dtype::F32, 64),
            entry("empty", Dtype::U8, 0),
        ];
        entries.sort_by(|a, b| a.order().cmp(&b.order()));
        assert_eq!(entries.map(|e| e.name), ["wide", "a", "b", "empty", "odd"]);
    }
}
