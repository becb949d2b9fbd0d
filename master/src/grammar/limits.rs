//! The bounds of what a schema may ask for, and the refusal of one that asks for more.

use std::fmt;

/// Most bytes of a schema's names and texts: OpenAI takes 120,000 characters.
pub const MAX_BYTES: usize = 128 << 10;
/// Most values of JSON in it, wherever they are.
pub const MAX_VALUES: usize = 32_768;
/// Most schemas in it that count for anything; the compiler's stack is as deep as they are many at worst.
pub const MAX_SCHEMAS: usize = 8_192;
/// Deepest nesting of schemas in each other, without `$ref`. The JSON itself nests 128 levels at most.
pub const MAX_DEPTH: usize = 64;
/// Longest way over one `$ref` after the other: more than the types that refer to each other in any grammar seen.
pub const MAX_HOPS: usize = 128;
/// Most `$ref` that are written differently: the compiler keeps a copy of what each leads to.
pub const MAX_REFERENCES: usize = 1_024;
/// Most properties of one object: the compiler's time grows with the square of them.
pub const MAX_PROPERTIES: usize = 1_024;
/// Most of them beside `minProperties` or `maxProperties`, for which each has an alternative with all the others.
pub const MAX_COUNTED_PROPERTIES: usize = 32;
/// Most patterns for the names of an object's properties: each is compared with each, and with each name.
pub const MAX_NAME_PATTERNS: usize = 8;
/// Most values of one `enum`, and alternatives of one `anyOf`, `oneOf` or `allOf`.
pub const MAX_ALTERNATIVES: usize = 2_048;
/// Most alternatives of a `oneOf`: each is compared with each.
pub const MAX_EXCLUSIVE: usize = 256;
/// Most of anything that is counted (items, characters, properties): more than an answer has room for.
pub const MAX_COUNT: u64 = 1_000_000;
/// Longest pattern in bytes.
pub const MAX_PATTERN_BYTES: usize = 1_024;
/// Most characters of a pattern in which `(a{9}b){3}` counts as 30.
pub const MAX_WRITTEN_OUT: u64 = 10_000;
/// Largest `multipleOf` once its point is taken away: the automaton has as many states.
pub const MAX_MULTIPLE: u64 = 4_096;
/// Most decimals of a `multipleOf`: the compiler computes with 32 bits.
pub const MAX_DECIMALS: u32 = 4;
/// Most schemas that may come of it when alternatives are multiplied out and references are followed.
pub const MAX_EXPANDED: u64 = 20_000;
/// Why a schema is not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is more of something than is taken.
    #[error("{what} at {place}: {found}, expected at most {most}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// A JSON pointer into the schema.
        place: Pointer,
        /// How much there is, or more.
        found: u64,
        /// How much is taken.
        most: u64,
    },
    /// A keyword does not have what it should.
    #[error("{keyword} at {place} is not {expected}")]
    Kind {
        /// Which.
        keyword: &'static str,
        /// Where.
        place: Pointer,
        /// What it should be.
        expected: &'static str,
    },
    /// A reference leads nowhere, or out of the schema.
    #[error(
        "$ref at {place} is {reference:?}, expected a place in the schema such as \"#/$defs/NAME\""
    )]
    Reference {
        /// Where.
        place: Pointer,
        /// What it says.
        reference: String,
    },
}

/// Where something is in a schema: a JSON pointer, shortened if it is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer(pub(super) String);

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "the top" } else { &self.0 })
    }
}

/// Refuses what is more than `most`.
pub(super) fn within(
    what: &'static str,
    found: u64,
    most: u64,
    place: impl FnOnce() -> Pointer,
) -> Result<(), Refusal> {
    match found > most {
        true => Err(Refusal::TooMuch { what, place: place(), found, most }),
        false => Ok(()),
    }
}
