//! What is said, as JSON has it: a text or a list, read as it comes and only as long as it is not too long.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Most messages of a request: some hundred bytes each while a template looks at them. No message has more parts, either.
pub(super) const MAX_MESSAGES: usize = 10_000;

/// A text, or a list of `T`: blocks, parts or items. Of no type that contains itself: a body may be nested as deeply as
/// JSON is read. It is written as it was read.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Said<T> {
    Text(String),
    Blocks(Vec<T>),
}

impl<T> Said<T> {
    /// Whether nothing is said.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Blocks(blocks) => blocks.is_empty(),
        }
    }

    /// All of it as one text, where `text` gives that of a part.
    pub(super) fn joined<E>(self, text: impl Fn(T) -> Result<String, E>) -> Result<String, E> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Blocks(blocks) => {
                let texts = blocks.into_iter().map(text);
                Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
            }
        }
    }
}

impl<T: JsonSchema> JsonSchema for Said<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Said_{}", T::schema_name()).into()
    }

    fn json_schema(schemas: &mut SchemaGenerator) -> Schema {
        let part = schemas.subschema_for::<T>();
        json_schema!({ "anyOf": [
            { "type": "string" },
            { "type": "array", "items": part, "maxItems": MAX_MESSAGES },
        ] })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Said<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(SaidVisitor(PhantomData))
    }
}

struct SaidVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for SaidVisitor<T> {
    type Value = Said<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text, or a list of at most {MAX_MESSAGES} messages or parts")
    }

    fn visit_str<E>(self, text: &str) -> Result<Said<T>, E> {
        Ok(Said::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Said<T>, E> {
        Ok(Said::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Said<T>, A::Error> {
        items(list).map(Said::Blocks)
    }
}

/// Reads messages as long as there are not too many.
pub(super) fn listed<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Listed<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Listed<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX_MESSAGES} messages")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new()) // `null`, as some programs write a list without anything in it.
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
            items(list)
        }
    }

    from.deserialize_any(Listed(PhantomData))
}

fn items<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(mut list: A) -> Result<Vec<T>, A::Error> {
    let mut items = Vec::new();
    while let Some(item) = list.next_element()? {
        if items.len() == MAX_MESSAGES {
            let many = format!("there are more than {MAX_MESSAGES} messages or parts of one");
            return Err(de::Error::custom(many));
        }
        items.push(item);
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_far_as_it_may_be_long() {
        let list = |length: usize| format!("[{}1]", "1,".repeat(length - 1));
        let said = |text: &str| serde_json::from_str::<Said<u8>>(text);
        let Said::Blocks(most) = said(&list(MAX_MESSAGES)).unwrap() else { panic!("a list") };
        assert_eq!(most.len(), MAX_MESSAGES);
        let refused = said(&list(MAX_MESSAGES + 1)).unwrap_err().to_string();
        assert!(refused.contains("more than 10000 messages"), "{refused}");
        assert!(matches!(said("\"a\"").unwrap(), Said::Text(text) if text == "a"));
        assert!(said("3").unwrap_err().to_string().contains("a text, or a list"));
    }
}
