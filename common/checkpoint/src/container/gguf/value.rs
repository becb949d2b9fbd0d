//! What a GGUF file says of a model beside its tensors: values under keys, each asked for by the type that it must have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A value, whatever width its numbers have in the file.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    Bools(Vec<bool>),
}

/// Why a value is not what was asked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum ValueError {
    #[error("metadata lack {key:?}")]
    Missing { key: String },
    #[error("{key:?} in the metadata must be {expected}, and is {found}")]
    WrongType { key: String, expected: &'static str, found: &'static str },
    #[error("{key:?} in the metadata has text that is not UTF-8")]
    NotUtf8 { key: String },
}

/// Values by their keys.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Metadata {
    values: BTreeMap<String, Value>,
    /// Keys with text that is not UTF-8, which only matters to who asks for it.
    unreadable: BTreeSet<String>,
}

/// A getter of values that one form of [`Value`] is: `None` where the key is not there.
macro_rules! getter {
    ($(#[$documentation:meta])* $name:ident: $variant:ident -> $type:ty, $expected:literal) => {
        $(#[$documentation])*
        pub(crate) fn $name(&self, key: &str) -> Result<Option<$type>, ValueError> {
            self.typed(key, $expected, |value| match value {
                Value::$variant(value) => Some(value),
                _ => None,
            })
        }
    };
}

impl Metadata {
    /// Keeps a value; `false` if there is one under that key, which stays.
    pub(super) fn insert(&mut self, key: String, value: Value) -> bool {
        if self.unreadable.contains(&key) || self.values.contains_key(&key) {
            return false;
        }
        self.values.insert(key, value);
        true
    }

    /// Remembers that there is text under that key which is not UTF-8; `false` if there was a value under it.
    pub(super) fn insert_unreadable(&mut self, key: String) -> bool {
        !self.values.contains_key(&key) && self.unreadable.insert(key)
    }

    /// The value under a key, if it is there and can be read.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Every key, ascending, whose value can be read.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    getter! {
        /// A text.
        text: Text -> &String, "a text"
    }
    getter! {
        /// A list of texts.
        texts: Texts -> &Vec<String>, "a list of texts"
    }
    getter! {
        /// Yes or no.
        bool: Bool -> &bool, "true or false"
    }
    getter! {
        /// A list of whole numbers.
        integers: Integers -> &Vec<i64>, "a list of whole numbers"
    }
    getter! {
        /// A list of numbers.
        floats: Floats -> &Vec<f32>, "a list of numbers with a point"
    }
    /// A whole number that is not negative, in whatever type it is written.
    ///
    /// # Errors
    /// [`ValueError`] if there is something else under the key.
    pub(crate) fn unsigned(&self, key: &str) -> Result<Option<u64>, ValueError> {
        self.typed(key, "a whole number from 0 on", |value| match *value {
            Value::Unsigned(number) => Some(number),
            Value::Signed(number) => u64::try_from(number).ok(),
            _ => None,
        })
    }

    /// A number, in whatever type it is written.
    ///
    /// # Errors
    /// [`ValueError`] if there is something else under the key.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ValueError> {
        self.typed(key, "a number", Value::number)
    }

    /// The value of a getter that must be there.
    ///
    /// # Errors
    /// [`ValueError::Missing`], or the getter's.
    pub(crate) fn required<T>(
        key: &str,
        value: Result<Option<T>, ValueError>,
    ) -> Result<T, ValueError> {
        value?.ok_or_else(|| ValueError::Missing { key: key.to_owned() })
    }

    /// What `take` makes of the value, `None` where there is none.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        take: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ValueError> {
        if self.unreadable.contains(key) {
            return Err(ValueError::NotUtf8 { key: key.to_owned() });
        }
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let wrong = || ValueError::WrongType { key: key.to_owned(), expected, found: value.form() };
        take(value).map(Some).ok_or_else(wrong)
    }
}

impl Value {
    /// How many items it has, if it is a list.
    pub(crate) fn items(&self) -> usize {
        match self {
            Value::Texts(list) => list.len(),
            Value::Integers(list) => list.len(),
            Value::Floats(list) => list.len(),
            Value::Bools(list) => list.len(),
            _ => 0,
        }
    }

    /// The number that it is. An f32 stands for the shortest decimal that rounds to it: writers put 1e-5 into one, and mean it.
    pub(crate) fn number(&self) -> Option<f64> {
        match *self {
            Value::Unsigned(number) => Some(number as f64),
            Value::Signed(number) => Some(number as f64),
            Value::F32(number) => Some(number.to_string().parse().expect("Rust reads its floats")),
            Value::F64(number) => Some(number),
            _ => None,
        }
    }

    /// What it is, in words.
    fn form(&self) -> &'static str {
        match self {
            Value::Signed(..0) => "a negative number",
            Value::Unsigned(_) | Value::Signed(_) => "a whole number",
            Value::F32(_) | Value::F64(_) => "a number with a point",
            Value::Bool(_) => "true or false",
            Value::Text(_) => "a text",
            Value::Texts(_) => "a list of texts",
            Value::Integers(_) => "a list of whole numbers",
            Value::Floats(_) => "a list of numbers with a point",
            Value::Bools(_) => "a list of true and false",
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(number) => number.fmt(f),
            Value::Signed(number) => number.fmt(f),
            Value::F32(number) => number.fmt(f),
            Value::F64(number) => number.fmt(f),
            Value::Bool(truth) => truth.fmt(f),
            Value::Text(text) => fmt::Debug::fmt(&short(text), f),
            list => f.write_str(list.form()),
        }
    }
}

/// As much of a text of a file as a sentence has room for.
pub(crate) fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_by_type_and_refused_by_key() {
        let mut metadata = Metadata::default();
        for (key, value) in [
            ("u", Value::Unsigned(7)),
            ("i", Value::Signed(-1)),
            ("f", Value::F32(1e-5)),
            ("t", Value::Text("x".into())),
        ] {
            assert!(metadata.insert(key.into(), value));
        }
        assert!(metadata.insert_unreadable("bad".into()));
        assert!(!metadata.insert("u".into(), Value::Bool(true)));
        assert!(!metadata.insert("bad".into(), Value::Bool(true)));
        assert_eq!(metadata.unsigned("u"), Ok(Some(7)));
        assert_eq!(metadata.number("i"), Ok(Some(-1.0)));
        assert_eq!(metadata.number("f"), Ok(Some(1e-5)));
        assert_eq!(metadata.text("t").unwrap().unwrap(), "x");
        assert_eq!(metadata.text("other"), Ok(None));
        let sentence = |error: ValueError| error.to_string();
        assert_eq!(
            sentence(metadata.unsigned("i").unwrap_err()),
            "\"i\" in the metadata must be a whole number from 0 on, and is a negative number"
        );
        assert!(sentence(metadata.text("u").unwrap_err()).contains("\"u\""));
        assert!(sentence(metadata.text("bad").unwrap_err()).contains("not UTF-8"));
        let missing = Metadata::required("other", metadata.text("other")).unwrap_err();
        assert_eq!(sentence(missing), "metadata lack \"other\"");
    }
}
