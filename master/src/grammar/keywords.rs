//! The keywords of JSON Schema that the compiler knows: what they may have, and which of them have schemas in them.

use serde_json::{Map, Value};

use super::limits::{
    MAX_ALTERNATIVES, MAX_COUNT, MAX_COUNTED_PROPERTIES, MAX_DECIMALS, MAX_EXCLUSIVE, MAX_MULTIPLE,
    MAX_NAME_PATTERNS, MAX_PATTERN_BYTES, MAX_PROPERTIES, MAX_WRITTEN_OUT, Pointer, Refusal,
    within,
};
use super::pattern;

/// What they count must be a whole number from 0 on.
const COUNTS: [&str; 6] =
    ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];
/// Numbers, or in old drafts booleans beside `minimum` and `maximum`.
const NUMBERS: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
const TEXTS: [&str; 2] = ["pattern", "format"];
const SCHEMAS_BY_NAME: [&str; 2] = ["properties", "patternProperties"];
const LISTS: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "required"];
/// Keywords of which each is a schema by itself, all of which must hold.
const APPLICATORS: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];
/// Keywords that say nothing about a value.
const ANNOTATIONS: [&str; 15] = [
    "$anchor",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
];
/// Types that there are; a list of types names each once.
const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];

/// A schema in a schema.
pub(super) struct Child<'s> {
    pub(super) keyword: &'static str,
    /// Under which name or at which place, if the keyword has several.
    pub(super) name: Option<&'s str>,
    pub(super) schema: &'s Value,
}

/// The schemas that a keyword has, in the order in which they are written.
pub(super) fn children<'s>(keyword: &str, value: &'s Value) -> Vec<Child<'s>> {
    let known = |all: &[&'static str]| all.iter().copied().find(|known| *known == keyword);
    let named = known(&SCHEMAS_BY_NAME).zip(value.as_object());
    let listed = known(&["allOf", "anyOf", "oneOf", "prefixItems", "items"]).zip(value.as_array());
    let single = known(&["additionalProperties", "additionalItems", "items"]);
    match (named, listed, single) {
        (Some((keyword, fields)), _, _) => {
            let child = |(name, schema)| Child { keyword, name: Some(name), schema };
            fields
                .iter()
                .map(|(name, schema): (&String, _)| child((name.as_str(), schema)))
                .collect()
        }
        (_, Some((keyword, items)), _) => {
            items.iter().map(|schema| Child { keyword, name: None, schema }).collect()
        }
        (_, _, Some(keyword)) => vec![Child { keyword, name: None, schema: value }],
        _ => Vec::new(),
    }
}

/// Whether a keyword is a schema by itself.
pub(super) fn is_applicator(keyword: &str) -> bool {
    APPLICATORS.contains(&keyword)
}

/// Whether a keyword says nothing about a value.
pub(super) fn is_annotation(keyword: &str) -> bool {
    ANNOTATIONS.contains(&keyword)
}

/// Whether a keyword's schema is that of every other property or item.
pub(super) fn stands_for_many(keyword: &str) -> bool {
    ["additionalProperties", "patternProperties", "additionalItems", "items"].contains(&keyword)
}

/// How many values of JSON are in one, itself too.
pub(super) fn values(value: &Value) -> u64 {
    let (mut count, mut todo) = (0, vec![value]);
    while let Some(value) = todo.pop() {
        count += 1;
        match value {
            Value::Array(items) => todo.extend(items),
            Value::Object(fields) => todo.extend(fields.values()),
            _ => {}
        }
    }
    count
}

/// A number as the compiler takes it apart: what is left without its point, and its decimals. None if it has more
/// digits than the compiler computes with, as 0.07 has once it is binary.
pub(super) fn decimal(value: &Value) -> Option<(u64, u32)> {
    let mut number = value.as_f64()?.abs();
    let mut decimals = 0;
    while number.fract() != 0.0 {
        number *= 10.0;
        decimals += 1;
    }
    (number <= f64::from(u32::MAX)).then_some(())?;
    let mut whole = number as u64;
    while decimals > 0 && whole.is_multiple_of(10) {
        whole /= 10;
        decimals -= 1;
    }
    Some((whole, decimals))
}

/// Looks whether each keyword of a schema has what it should, and how much it asks for. `place` says where a keyword is,
/// or what it has of a name.
pub(super) fn check(
    fields: &Map<String, Value>,
    place: &dyn Fn(&str, Option<&str>) -> Pointer,
) -> Result<(), Refusal> {
    for (keyword, value) in fields {
        let known = |all: &[&'static str]| all.iter().copied().find(|known| known == keyword);
        let here = || place(keyword, None);
        let expect = |is_so: bool, keyword, expected| match is_so {
            true => Ok(()),
            false => Err(Refusal::Kind { keyword, place: here(), expected }),
        };
        if let Some(keyword) = known(&COUNTS) {
            expect(value.is_u64(), keyword, "a whole number from 0 on")?;
            within(keyword, value.as_u64().unwrap_or(0), MAX_COUNT, here)?;
        } else if let Some(keyword) = known(&NUMBERS) {
            let is_switch = value.is_boolean() && keyword.starts_with("exclusive");
            expect(value.is_number() || is_switch, keyword, "a number")?;
            if keyword == "multipleOf" {
                let (whole, decimals) = decimal(value).unwrap_or((u64::MAX, 0));
                expect(whole > 0, keyword, "greater than 0")?;
                within("multipleOf without its point", whole, MAX_MULTIPLE, here)?;
                within("decimals of multipleOf", decimals.into(), MAX_DECIMALS.into(), here)?;
            }
        } else if let Some(keyword) = known(&TEXTS) {
            expect(value.is_string(), keyword, "a string")?;
            if keyword == "pattern" {
                check_pattern(value.as_str().unwrap_or_default(), here)?;
            }
        } else if let Some(keyword) = known(&SCHEMAS_BY_NAME) {
            expect(value.is_object(), keyword, "an object")?;
            let names = value.as_object().into_iter().flat_map(Map::keys);
            if keyword == "patternProperties" {
                let count = value.as_object().map_or(0, Map::len) as u64;
                within("patterns for names", count, MAX_NAME_PATTERNS as u64, here)?;
                for pattern in names {
                    check_pattern(pattern, || place(keyword, Some(pattern)))?;
                }
            }
        } else if let Some(keyword) = known(&LISTS) {
            let expected = "a list";
            expect(value.is_array(), keyword, expected)?;
            let most = if keyword == "oneOf" { MAX_EXCLUSIVE } else { MAX_ALTERNATIVES };
            within(keyword, value.as_array().map_or(0, Vec::len) as u64, most as u64, here)?;
        } else if keyword == "enum" {
            expect(value.is_array(), "enum", "a list")?;
            let count = value.as_array().map_or(0, Vec::len) as u64;
            within("values of enum", count, MAX_ALTERNATIVES as u64, here)?;
        } else if keyword == "type" {
            expect(is_type(value), "type", "one of JSON's types, or a list of some, each once")?;
        }
    }
    let place = || place("properties", None);
    let most = if is_counted(fields) { MAX_COUNTED_PROPERTIES } else { MAX_PROPERTIES };
    within("properties", properties(fields) as u64, most as u64, place)
}

/// Whether a schema says how many properties there may be.
pub(super) fn is_counted(fields: &Map<String, Value>) -> bool {
    ["minProperties", "maxProperties"].iter().any(|name| fields.contains_key(*name))
}

/// How many properties a schema names: those it describes, and others that it requires.
pub(super) fn properties(fields: &Map<String, Value>) -> usize {
    let described = fields.get("properties").and_then(Value::as_object);
    let required = fields.get("required").and_then(Value::as_array);
    let is_new = |name: &&Value| match (name.as_str(), described) {
        (Some(name), Some(described)) => !described.contains_key(name),
        _ => true,
    };
    described.map_or(0, Map::len) + required.map_or(0, |names| names.iter().filter(is_new).count())
}

fn is_type(value: &Value) -> bool {
    let is_one = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    match value {
        Value::Array(names) => {
            let differ = (1..names.len()).all(|index| !names[..index].contains(&names[index]));
            names.len() <= TYPES.len() && differ && names.iter().all(is_one)
        }
        value => is_one(value),
    }
}

/// Looks how long a pattern is and how much it is written out.
fn check_pattern(pattern: &str, place: impl Fn() -> Pointer) -> Result<(), Refusal> {
    within("bytes of a pattern", pattern.len() as u64, MAX_PATTERN_BYTES as u64, &place)?;
    // Such a group is a way of the compiler's own to look ahead.
    if pattern.contains("<stop>") {
        let expected = "a pattern without a group of the name \"stop\"";
        return Err(Refusal::Kind { keyword: "pattern", place: place(), expected });
    }
    within(
        "characters of a pattern written out",
        pattern::written_out(pattern),
        MAX_WRITTEN_OUT,
        &place,
    )
}
