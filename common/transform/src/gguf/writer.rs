//! The bytes of a GGUF file's header (version 3): what is said of the model, and where its tensors lie.

use std::collections::HashSet;

use super::FORMAT;
use super::form::GgufType;
use crate::error::Unsupported;

/// Where tensors begin: what readers take where nothing is said, and the one that all of llama.cpp's tools write.
const ALIGNMENT: u64 = 32;
/// A name is shorter.
const NAME_BYTES: usize = 64;

/// What a key says.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
}

/// A tensor of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Info {
    pub(super) name: String,
    /// Outermost first, at most four dimensions.
    pub(super) shape: Vec<u64>,
    pub(super) kind: GgufType,
}

/// A file without the bytes of its tensors.
#[derive(Debug)]
pub(super) struct Layout {
    /// All before the first tensor.
    pub(super) header: Vec<u8>,
    /// Where each tensor begins in the file.
    pub(super) offsets: Vec<u64>,
    /// Length of the file.
    pub(super) bytes: u64,
}

/// Lays out a file with these keys and tensors, in this order.
///
/// # Errors
/// [`Unsupported`] for a name that is too long or there twice, or tensors that do not fit 64 bits.
pub(super) fn lay_out(keys: &[(String, Value)], infos: &[Info]) -> Result<Layout, Unsupported> {
    let mut names = HashSet::new();
    let mut header = b"GGUF".to_vec();
    header.extend_from_slice(&3u32.to_le_bytes());
    header.extend_from_slice(&(infos.len() as u64).to_le_bytes());
    header.extend_from_slice(&(keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        if !names.insert(key) {
            return Err(cannot(format!("the key {key:?} twice")));
        }
        text(&mut header, key);
        put(&mut header, value);
    }
    names.clear();
    let mut starts = Vec::with_capacity(infos.len());
    let (mut start, mut end) = (0u64, 0u64);
    for info in infos {
        let Info { name, shape, kind } = info;
        if name.len() >= NAME_BYTES {
            return Err(cannot(format!("a tensor's name of {} bytes ({name:?})", name.len())));
        }
        if !names.insert(name) {
            return Err(cannot(format!("the tensor {name:?} twice")));
        }
        text(&mut header, name);
        header.extend_from_slice(&(shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|size| header.extend_from_slice(&size.to_le_bytes()));
        header.extend_from_slice(&kind.id().to_le_bytes());
        header.extend_from_slice(&start.to_le_bytes());
        starts.push(start);
        let next = info.bytes().and_then(|bytes| {
            end = start.checked_add(bytes)?;
            end.checked_next_multiple_of(ALIGNMENT)
        });
        start = next.ok_or_else(|| cannot(format!("the size of tensor {name:?}")))?;
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
    let first = header.len() as u64;
    let too_long = || cannot("a file of more than 64 bits' bytes".into());
    let offset = |start: u64| first.checked_add(start).ok_or_else(too_long);
    let bytes = offset(end)?;
    let offsets = starts.into_iter().map(offset).collect::<Result<_, _>>()?;
    Ok(Layout { header, offsets, bytes })
}

impl Info {
    /// Size of its bytes; `None` past 64 bits.
    pub(super) fn bytes(&self) -> Option<u64> {
        let (columns, rows) = self.shape.split_last()?;
        rows.iter().try_fold(self.kind.row_bytes(*columns)?, |bytes, size| bytes.checked_mul(*size))
    }
}

fn cannot(what: String) -> Unsupported {
    Unsupported::Cannot { format: FORMAT, what }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The number of a type, then the value.
fn put(out: &mut Vec<u8>, value: &Value) {
    let mut number = |number: u32| out.extend_from_slice(&number.to_le_bytes());
    match value {
        Value::U32(value) => {
            number(4);
            number(*value);
        }
        Value::F32(value) => {
            number(6);
            number(value.to_bits());
        }
        Value::Bool(value) => {
            number(7);
            out.push(u8::from(*value));
        }
        Value::Text(value) => {
            number(8);
            text(out, value);
        }
        Value::Texts(values) => {
            array(out, 8, values.len());
            values.iter().for_each(|value| text(out, value));
        }
        Value::I32s(values) => {
            array(out, 5, values.len());
            values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        }
        Value::F32s(values) => {
            array(out, 6, values.len());
            values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        }
        Value::Bools(values) => {
            array(out, 7, values.len());
            out.extend(values.iter().map(|value| u8::from(*value)));
        }
    }
}

fn array(out: &mut Vec<u8>, kind: u32, count: usize) {
    out.extend_from_slice(&9u32.to_le_bytes());
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&(count as u64).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, shape: &[u64], kind: GgufType) -> Info {
        Info { name: name.into(), shape: shape.into(), kind }
    }

    #[test]
    fn a_file_has_the_bytes_that_the_format_says() {
        let keys =
            [("a".to_owned(), Value::U32(7)), ("b".to_owned(), Value::Texts(vec!["x".into()]))];
        let infos = [info("w", &[2, 3], GgufType::F16), info("v", &[32], GgufType::Q8_0)];
        let layout = lay_out(&keys, &infos).unwrap();
        let mut expected = b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0".to_vec();
        expected.extend_from_slice(b"\x01\0\0\0\0\0\0\0a\x04\0\0\0\x07\0\0\0");
        expected.extend_from_slice(b"\x01\0\0\0\0\0\0\0b\x09\0\0\0\x08\0\0\0\x01\0\0\0\0\0\0\0");
        expected.extend_from_slice(b"\x01\0\0\0\0\0\0\0x");
        expected.extend_from_slice(
            b"\x01\0\0\0\0\0\0\0w\x02\0\0\0\x03\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0",
        );
        expected.extend_from_slice(b"\x01\0\0\0\0\0\0\0\0\0\0\0");
        expected.extend_from_slice(b"\x01\0\0\0\0\0\0\0v\x01\0\0\0\x20\0\0\0\0\0\0\0");
        expected.extend_from_slice(b"\x08\0\0\0\x20\0\0\0\0\0\0\0");
        expected.resize(expected.len().next_multiple_of(32), 0);
        assert_eq!(layout.header, expected);
        let first = expected.len() as u64;
        assert_eq!((layout.offsets, layout.bytes), (vec![first, first + 32], first + 32 + 34));
    }

    #[test]
    fn what_a_file_cannot_have_is_refused() {
        let refused = |keys: &[(String, Value)], infos: &[Info]| {
            lay_out(keys, infos).unwrap_err().to_string()
        };
        let key = ("a".to_owned(), Value::Bool(true));
        assert!(refused(&[key.clone(), key], &[]).contains("the key \"a\" twice"));
        let tensor = info("w", &[1], GgufType::F32);
        assert!(refused(&[], &[tensor.clone(), tensor]).contains("the tensor \"w\" twice"));
        assert!(refused(&[], &[info(&"n".repeat(64), &[1], GgufType::F32)]).contains("64 bytes"));
        let large = info("w", &[1 << 40, 1 << 40], GgufType::F32);
        assert!(refused(&[], &[large]).contains("the size of tensor \"w\""));
    }
}
