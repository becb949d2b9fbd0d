//! A settings file as it is: sections, keys, values, each with its line.

use std::io::Read;
use std::path::Path;

use clap::Arg;
use toml::de::{DeTable, DeValue};

use crate::Error;
use crate::error::At;

/// Most bytes read: more than anybody's settings, and little to hold.
const MOST_BYTES: u64 = 1 << 20;

/// What was read.
#[derive(Debug)]
pub(crate) struct File {
    /// In the order of their names.
    pub(crate) sections: Vec<Section>,
    /// Keys that stand in none.
    pub(crate) loose: Vec<Entry>,
}

#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) at: At,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) at: At,
    pub(crate) value: Value,
}

/// A value as an option may take it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Switch(bool),
    /// Numbers are kept as they are written.
    Number(String),
    Text(String),
    List(Vec<Value>),
    /// What no option takes, by its name.
    Other(&'static str),
}

impl File {
    /// Reads and parses, and knows nothing of what is meant.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MOST_BYTES {
            return Err(Error::TooLong { path: path.to_owned(), most: MOST_BYTES });
        }
        Self::parse(path, &text)
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let at = |offset: usize| {
            let before = text.as_bytes().iter().take(offset);
            At { path: path.to_owned(), line: 1 + before.filter(|byte| **byte == b'\n').count() }
        };
        let table = DeTable::parse(text).map_err(|error| Error::Syntax {
            at: at(error.span().map_or(0, |span| span.start)),
            reason: error.message().replace('\n', "; "),
        })?;
        let entry = |key: &str, offset: usize, value: &DeValue<'_>| Entry {
            key: key.to_owned(),
            at: at(offset),
            value: Value::of(value),
        };
        let mut file = Self { sections: Vec::new(), loose: Vec::new() };
        for (name, value) in table.get_ref() {
            let start = name.span().start;
            let DeValue::Table(table) = value.get_ref() else {
                file.loose.push(entry(name.get_ref(), start, value.get_ref()));
                continue;
            };
            let of = table.iter();
            let entries =
                of.map(|(key, value)| entry(key.get_ref(), key.span().start, value.get_ref()));
            let section = Section {
                name: name.get_ref().to_string(),
                at: at(start),
                entries: entries.collect(),
            };
            file.sections.push(section);
        }
        Ok(file)
    }

    /// What it says of an option in the section of this name.
    pub(crate) fn entry(&self, section: &str, arg: &Arg) -> Option<&Entry> {
        let section = self.sections.iter().find(|it| it.name == section)?;
        section.entries.iter().find(|entry| Some(entry.key.as_str()) == arg.get_long())
    }
}

impl Value {
    fn of(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::Boolean(switch) => Self::Switch(*switch),
            // Only decimal numbers mean the same on a command line.
            DeValue::Integer(number) if number.radix() == 10 => {
                Self::Number(number.as_str().to_owned())
            }
            DeValue::Integer(_) => Self::Other("a number that is not decimal"),
            DeValue::Float(number) => Self::Number(number.as_str().to_owned()),
            DeValue::String(text) => Self::Text(text.to_string()),
            DeValue::Array(values) => {
                Self::List(values.iter().map(|value| Self::of(value.get_ref())).collect())
            }
            DeValue::Datetime(_) => Self::Other("a date"),
            DeValue::Table(_) => Self::Other("a table"),
        }
    }

    /// Its type, in words.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Switch(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Other(name) => name,
        }
    }
}

impl std::fmt::Display for Value {
    /// As TOML has it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Switch(switch) => write!(f, "{switch}"),
            Self::Number(number) => f.write_str(number),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(values) => {
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", values.join(", "))
            }
            Self::Other(name) => f.write_str(name),
        }
    }
}
