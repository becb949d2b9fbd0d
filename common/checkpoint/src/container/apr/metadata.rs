//! The metadata of an APR file: an object of which no key is there twice.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::error::AprError;

/// Reads metadata.
///
/// # Errors
/// [`AprError::Metadata`], or [`AprError::DuplicateKey`]: two readers may see two different models.
pub(super) fn parse(json: &[u8]) -> Result<Map<String, Value>, AprError> {
    let mut twice = None;
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let parsed = Once { twice: &mut twice }
        .deserialize(&mut deserializer)
        .and_then(|parsed| deserializer.end().map(|()| parsed));
    parsed.map_err(|cause| match twice {
        Some(key) => AprError::DuplicateKey { key },
        None => AprError::Metadata(cause),
    })
}

/// Keeps the key that is there twice, so that the error is a typed one.
struct Once<'a> {
    twice: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Once<'_> {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Once<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if found.contains_key(&key) {
                *self.twice = Some(key);
                return Err(de::Error::custom("refused"));
            }
            found.insert(key, map.next_value()?);
        }
        Ok(found)
    }
}
