//! Reading the metadata of a GGUF file.

use super::cursor::{Cursor, Stop};
use super::error::GgufError;
use super::limits::{ALIGNMENT_KEY, MAX_ALL_ITEMS, MAX_ITEMS};
use super::value::{Metadata, Value};

/// The types of values, as the format numbers them; lists and texts are apart.
mod id {
    pub(super) const U32: u32 = 4;
    pub(super) const BOOL: u32 = 7;
    pub(super) const TEXT: u32 = 8;
    pub(super) const LIST: u32 = 9;
}

/// Text that is there, and is not UTF-8.
struct Unreadable;

/// Reads so many keys with their values.
///
/// # Errors
/// [`Stop`], naming the key.
pub(super) fn parse(cursor: &mut Cursor<'_>, keys: u64) -> Result<Metadata, Stop> {
    let mut metadata = Metadata::default();
    let mut items = 0;
    for number in 0..keys {
        let key = cursor.name(&format!("key {number} of the metadata"))?;
        let is_new = match value(cursor, &key)? {
            Ok(value) => {
                items += value.items();
                if items > MAX_ALL_ITEMS {
                    return Err(GgufError::ManyItems { key, items }.into());
                }
                metadata.insert(key.clone(), value)
            }
            Err(Unreadable) => metadata.insert_unreadable(key.clone()),
        };
        if !is_new {
            return Err(GgufError::DuplicateKey { key }.into());
        }
    }
    Ok(metadata)
}

fn value(cursor: &mut Cursor<'_>, key: &str) -> Result<Result<Value, Unreadable>, Stop> {
    let what = format!("the value of {key:?}");
    let kind = cursor.u32(&what)?;
    if key == ALIGNMENT_KEY && kind != id::U32 {
        return Err(GgufError::Alignment { found: format!("of type {kind}") }.into());
    }
    match kind {
        id::TEXT => {
            let bytes = cursor.text(&what)?;
            let text = std::str::from_utf8(bytes).map(|text| Value::Text(text.to_owned()));
            Ok(text.map_err(|_| Unreadable))
        }
        id::LIST => list(cursor, key, &what),
        found => {
            let number = Number::read(cursor, found, &what)?;
            let unknown = || GgufError::ValueType { key: key.to_owned(), found };
            Ok(Ok(number.ok_or_else(unknown)?.value()))
        }
    }
}

fn list(cursor: &mut Cursor<'_>, key: &str, what: &str) -> Result<Result<Value, Unreadable>, Stop> {
    let of = cursor.u32(what)?;
    let items = cursor.u64(what)?;
    let key = || key.to_owned();
    let least = match of {
        id::LIST => return Err(GgufError::Nested { key: key() }.into()),
        id::TEXT => 8,
        _ => Number::width(of).ok_or_else(|| GgufError::ValueType { key: key(), found: of })?,
    };
    cursor.has_room(items, least, &format!("items of {:?}", key()))?;
    if items > MAX_ITEMS {
        return Err(GgufError::TooManyItems { key: key(), items }.into());
    }
    if of == id::TEXT {
        let mut texts = Vec::new();
        let mut readable = true;
        for _ in 0..items {
            match std::str::from_utf8(cursor.text(what)?) {
                Ok(text) => texts.push(text.to_owned()),
                Err(_) => readable = false,
            }
        }
        return Ok(if readable { Ok(Value::Texts(texts)) } else { Err(Unreadable) });
    }
    // Taken at once: only what was read already is allocated for.
    let bytes = cursor.take(items * least, what)?;
    let numbers = bytes.chunks_exact(least as usize).map(|item| Number::of(of, item));
    let unknown = || GgufError::ValueType { key: key(), found: of };
    let mut list = match of {
        id::BOOL => Value::Bools(Vec::new()),
        6 | 12 => Value::Floats(Vec::new()),
        _ => Value::Integers(Vec::new()),
    };
    for number in numbers {
        match (&mut list, number.ok_or_else(unknown)?) {
            (Value::Bools(all), Number::Bool(it)) => all.push(it),
            (Value::Floats(all), Number::F32(it)) => all.push(it),
            (Value::Floats(all), Number::F64(it)) => all.push(it as f32),
            (Value::Integers(all), Number::Signed(it)) => all.push(it),
            (Value::Integers(all), Number::Unsigned(it)) => {
                all.push(i64::try_from(it).map_err(|_| GgufError::LargeItem { key: key() })?);
            }
            _ => return Err(unknown().into()),
        }
    }
    Ok(Ok(list))
}

/// A value of fixed width.
#[derive(Clone, Copy)]
enum Number {
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
}

impl Number {
    /// Bytes of a value of that type; `None` for one that has no fixed width, or is not known.
    fn width(id: u32) -> Option<u64> {
        match id {
            0 | 1 | id::BOOL => Some(1),
            2 | 3 => Some(2),
            4..=6 => Some(4),
            10..=12 => Some(8),
            _ => None,
        }
    }

    fn read(cursor: &mut Cursor<'_>, id: u32, what: &str) -> Result<Option<Number>, Stop> {
        match Number::width(id) {
            None => Ok(None),
            Some(width) => Ok(Number::of(id, cursor.take(width, what)?)),
        }
    }

    /// The value of these bytes; `None` if they are not as many as the type has.
    fn of(id: u32, bytes: &[u8]) -> Option<Number> {
        fn le<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
            bytes.try_into().ok()
        }
        Some(match id {
            0 => Number::Unsigned(u8::from_le_bytes(le(bytes)?).into()),
            1 => Number::Signed(i8::from_le_bytes(le(bytes)?).into()),
            2 => Number::Unsigned(u16::from_le_bytes(le(bytes)?).into()),
            3 => Number::Signed(i16::from_le_bytes(le(bytes)?).into()),
            4 => Number::Unsigned(u32::from_le_bytes(le(bytes)?).into()),
            5 => Number::Signed(i32::from_le_bytes(le(bytes)?).into()),
            6 => Number::F32(f32::from_le_bytes(le(bytes)?)),
            id::BOOL => Number::Bool(le::<1>(bytes)? != [0]), // As the reference takes it.
            10 => Number::Unsigned(u64::from_le_bytes(le(bytes)?)),
            11 => Number::Signed(i64::from_le_bytes(le(bytes)?)),
            12 => Number::F64(f64::from_le_bytes(le(bytes)?)),
            _ => return None,
        })
    }

    fn value(self) -> Value {
        match self {
            Number::Unsigned(it) => Value::Unsigned(it),
            Number::Signed(it) => Value::Signed(it),
            Number::F32(it) => Value::F32(it),
            Number::F64(it) => Value::F64(it),
            Number::Bool(it) => Value::Bool(it),
        }
    }
}
