//! Typed access to the fields of a configuration; every refusal names the field, and so does the one for a field that
//! nobody understood.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::error::ConfigError;
use super::harmless::{HARMLESS, NEUTRAL};
use super::limit;

/// A JSON object whose null fields count as absent. Whoever asks for a field understands it.
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    understood: RefCell<BTreeSet<String>>,
    /// Whether the files are in MLX's form, where families have one.
    pub(super) is_of_mlx: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn new(value: &'a Value) -> Result<Self, ConfigError> {
        match value.as_object() {
            Some(map) => Ok(Self::of(map)),
            None => Err(ConfigError::NotAnObject { found: kind(value) }),
        }
    }

    pub(super) fn of(map: &'a Map<String, Value>) -> Self {
        Self { map, understood: RefCell::default(), is_of_mlx: false }
    }

    /// The value, unless absent or null.
    pub(super) fn get(&self, field: &str) -> Option<&'a Value> {
        self.understand(&[field]);
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// Whether the key is there, even if null.
    pub(super) fn has(&self, field: &str) -> bool {
        self.understand(&[field]);
        self.map.contains_key(field)
    }

    /// Who calls this answers for these fields: they change nothing here, or are read in another way.
    pub(super) fn understand(&self, fields: &[&str]) {
        self.understood.borrow_mut().extend(fields.iter().map(|&field| field.to_owned()));
    }

    /// Refuses a field that is switched on and that nobody asked for, unless it is known to change no arithmetic in any
    /// family: nothing is computed as something else.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`]
    pub(super) fn refuse_others(&self, architecture: &'static str) -> Result<(), ConfigError> {
        let understood = self.understood.borrow();
        let known = |field: &str| understood.contains(field) || HARMLESS.contains(&field);
        let is_nothing = |field: &str, value: &Value| match NEUTRAL.iter().find(|it| it.0 == field)
        {
            Some((_, neutral)) => value.is_null() || value.as_f64() == Some(*neutral),
            None => is_off(value),
        };
        match self.map.iter().find(|(field, value)| !known(field) && !is_nothing(field, value)) {
            None => Ok(()),
            Some((field, value)) => {
                let (field, found) = (field.clone(), shown(value));
                Err(ConfigError::Unsupported { field, found, architecture })
            }
        }
    }

    /// An object, unless absent or null.
    pub(super) fn object(&self, field: &str) -> Result<Option<Fields<'a>>, ConfigError> {
        self.get(field)
            .map(|value| match value.as_object() {
                Some(map) => Ok(Self::of(map)),
                None => Err(wrong(field, "an object", value)),
            })
            .transpose()
    }

    /// The values of the object.
    pub(super) fn values(&self) -> impl Iterator<Item = &'a Value> {
        self.map.values()
    }

    /// The fields of the object, null ones among them.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<&'a str>, ConfigError> {
        self.get(field)
            .map(|value| value.as_str().ok_or_else(|| wrong(field, "a string", value)))
            .transpose()
    }

    /// The first string of a list of strings; `None` for an absent or empty list.
    pub(super) fn first_text(&self, field: &str) -> Result<Option<&'a str>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let list = value.as_array().ok_or_else(|| wrong(field, "a list of strings", value))?;
        let text =
            |item: &'a Value| item.as_str().ok_or_else(|| wrong(field, "a list of strings", value));
        list.first().map(text).transpose()
    }

    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        self.get(field)
            .map(|value| value.as_bool().ok_or_else(|| wrong(field, "true or false", value)))
            .transpose()
    }

    /// A whole number from 1 to `most`; it must be there.
    pub(super) fn size(&self, field: &str, most: usize) -> Result<usize, ConfigError> {
        self.optional_size(field, most)?
            .ok_or_else(|| ConfigError::Missing { field: field.to_owned() })
    }

    /// A whole number from 1 to `most`, if it is there.
    pub(super) fn optional_size(
        &self,
        field: &str,
        most: usize,
    ) -> Result<Option<usize>, ConfigError> {
        self.optional_whole(field, 1, most)
    }

    /// A whole number from `least` to `most`, if it is there.
    pub(super) fn optional_whole(
        &self,
        field: &str,
        least: usize,
        most: usize,
    ) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        if !value.is_i64() && !value.is_u64() {
            return Err(wrong(field, "a whole number", value));
        }
        let found = value.as_u64().and_then(|number| usize::try_from(number).ok());
        found.filter(|number| (least..=most).contains(number)).map(Some).ok_or_else(|| {
            ConfigError::OutOfRange {
                field: field.to_owned(),
                found: shown(value),
                least: least.to_string(),
                most: most.to_string(),
            }
        })
    }

    /// Whole numbers from 0 to `most`, no more of them than any model has layers; none for an absent list.
    pub(super) fn wholes(&self, field: &str, most: usize) -> Result<Vec<usize>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(Vec::new());
        };
        let refused = || wrong(field, "a list of numbers of layers", value);
        let items = value.as_array().filter(|items| items.len() <= limit::LAYERS);
        let whole = |item: &Value| {
            let number = item.as_u64().and_then(|number| usize::try_from(number).ok());
            number.filter(|number| *number <= most).ok_or_else(refused)
        };
        items.ok_or_else(refused)?.iter().map(whole).collect()
    }

    /// A number greater than `above`, at most `most`; it must be there.
    pub(super) fn number(&self, field: &str, above: f64, most: f64) -> Result<f64, ConfigError> {
        self.optional_number(field, above, most)?
            .ok_or_else(|| ConfigError::Missing { field: field.to_owned() })
    }

    /// A number greater than `above`, at most `most`, if it is there; written as integer or float.
    pub(super) fn optional_number(
        &self,
        field: &str,
        above: f64,
        most: f64,
    ) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let number = value.as_f64().ok_or_else(|| wrong(field, "a number", value))?;
        if number > above && number <= most {
            return Ok(Some(number));
        }
        Err(ConfigError::OutOfRange {
            field: field.to_owned(),
            found: shown(value),
            least: format!("more than {above}"),
            most: most.to_string(),
        })
    }

    /// A list of numbers greater than `above`, each at most `most`, and no more of them than `count`; it must be there.
    pub(super) fn numbers(
        &self,
        field: &str,
        above: f64,
        most: f64,
        count: usize,
    ) -> Result<Vec<f64>, ConfigError> {
        let missing = || ConfigError::Missing { field: field.to_owned() };
        let value = self.get(field).ok_or_else(missing)?;
        let refused = || wrong(field, "a list of numbers that may be divided by", value);
        let items = value.as_array().filter(|items| items.len() <= count).ok_or_else(refused)?;
        let number = |item: &Value| {
            item.as_f64().filter(|number| *number > above && *number <= most).ok_or_else(refused)
        };
        items.iter().map(number).collect()
    }

    /// One token id, a list of them, or none. Negative ids mean "no token" in some files.
    pub(super) fn token_ids(&self, field: &str) -> Result<Vec<u32>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(Vec::new());
        };
        let one = |item: &Value| match item.as_i64() {
            Some(id) if id < 0 => Ok(None),
            Some(id) if id <= i64::from(u32::MAX) => Ok(u32::try_from(id).ok()),
            _ => Err(wrong(field, "a token id or a list of them", value)),
        };
        let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        if items.len() > limit::END_TOKENS {
            return Err(wrong(field, "at most 64 token ids", value));
        }
        items.iter().filter_map(|item| one(item).transpose()).collect()
    }
}

/// Whether a value says that what it is about is not there.
pub(super) fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// A wrong-type refusal.
pub(super) fn wrong(field: &str, expected: &'static str, value: &Value) -> ConfigError {
    ConfigError::WrongType { field: field.to_owned(), expected, found: shown(value) }
}

/// A value as text, cut to a length that fits a sentence.
pub(super) fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    match value {
        Value::Array(_) | Value::Object(_) => kind(value).to_owned(),
        _ => {
            let text = value.to_string();
            match text.char_indices().nth(LONGEST) {
                Some((cut, _)) => format!("{}…", &text[..cut]),
                None => text,
            }
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
