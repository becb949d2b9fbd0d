//! How far what a request says may go: numbers, lengths and words. A bound is one constant (in
//! `bounds`, or where the API is that alone has it), which its check reads and the type of the request has as a `transform`
//! of its schema: what is described is what is refused.

use std::fmt::{self, Display};

use schemars::Schema;
use schemars::transform::Transform;
use serde_json::{Value, json};

use super::error::ApiError;

/// Numbers from `low` to `high`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<T> {
    pub(super) low: T,
    pub(super) high: T,
}

/// How long a text (in characters) or a list is, or how many fields an object has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length {
    pub(super) least: usize,
    pub(super) most: usize,
}

/// One of these words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words(pub(super) &'static [&'static str]);

/// A word of letters, digits, `_` and `-`, of at most so many of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word(pub(super) usize);

/// A number that has bounds.
pub(super) trait Number: PartialOrd + Display + Copy {
    /// As people write it; none where it is the type's own bound.
    fn told(self) -> Option<Value>;
}

impl<T: Number> Span<T> {
    /// The value, if there is one.
    ///
    /// # Errors
    /// [`ApiError::Parameter`] if it is not within.
    pub(super) fn check(
        self,
        param: &'static str,
        value: Option<T>,
    ) -> Result<Option<T>, ApiError> {
        match value {
            Some(found) if !(self.low..=self.high).contains(&found) => {
                Err(ApiError::parameter(param, found, self.to_string()))
            }
            value => Ok(value),
        }
    }
}

impl Length {
    pub(super) const fn most(most: usize) -> Self {
        Self { least: 0, most }
    }

    pub(super) fn has(self, found: usize) -> bool {
        (self.least..=self.most).contains(&found)
    }
}

impl Words {
    pub(super) fn has(self, word: &str) -> bool {
        self.0.contains(&word)
    }
}

impl Word {
    pub(super) const PATTERN: &'static str = "^[A-Za-z0-9_-]*$";

    pub(super) fn is(self, text: &str) -> bool {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        text.len() <= self.0 && text.chars().all(is_plain)
    }
}

impl Number for f32 {
    fn told(self) -> Option<Value> {
        self.to_string().parse::<f64>().ok().map(|number| json!(number))
    }
}

impl Number for u32 {
    fn told(self) -> Option<Value> {
        (self != Self::MAX).then(|| json!(self))
    }
}

impl Number for u64 {
    fn told(self) -> Option<Value> {
        (self != Self::MAX).then(|| json!(self))
    }
}

impl<T: Number> Display for Span<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.high.told() {
            Some(_) => write!(f, "{} to {}", self.low, self.high),
            None => write!(f, "at least {}", self.low),
        }
    }
}

impl Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.least {
            0 => write!(f, "at most {}", self.most),
            least => write!(f, "{least} to {}", self.most),
        }
    }
}

impl Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, word) in self.0.iter().enumerate() {
            let before = match index {
                0 => "",
                _ if index + 1 == self.0.len() => " or ",
                _ => ", ",
            };
            write!(f, "{before}\"{word}\"")?;
        }
        Ok(())
    }
}

impl<T: Number> Transform for Span<T> {
    fn transform(&mut self, schema: &mut Schema) {
        for (name, bound) in [("minimum", self.low.told()), ("maximum", self.high.told())] {
            if let Some(bound) = bound {
                schema.insert(name.to_owned(), bound);
            }
        }
    }
}

impl Transform for Length {
    fn transform(&mut self, schema: &mut Schema) {
        let of = ["array", "object"].into_iter().find(|kind| has_type(schema, kind));
        let (least, most) = match of {
            Some("array") => ("minItems", "maxItems"),
            Some(_) => ("minProperties", "maxProperties"),
            None => ("minLength", "maxLength"),
        };
        if self.least > 0 {
            schema.insert(least.to_owned(), json!(self.least));
        }
        schema.insert(most.to_owned(), json!(self.most));
    }
}

impl Transform for Words {
    fn transform(&mut self, schema: &mut Schema) {
        let mut words: Vec<Value> = self.0.iter().map(|word| json!(word)).collect();
        if has_type(schema, "null") {
            words.push(Value::Null);
        }
        schema.insert("enum".to_owned(), Value::Array(words));
    }
}

impl Transform for Word {
    fn transform(&mut self, schema: &mut Schema) {
        schema.insert("pattern".to_owned(), json!(Self::PATTERN));
        schema.insert("maxLength".to_owned(), json!(self.0));
    }
}

fn has_type(schema: &Schema, kind: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(found)) => found == kind,
        Some(Value::Array(found)) => found.iter().any(|found| found == kind),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_said_as_it_is_described() {
        const SPAN: Span<f32> = Span { low: 0.01, high: 2.0 };
        assert_eq!(SPAN.to_string(), "0.01 to 2");
        assert_eq!(SPAN.check("p", Some(0.01)).unwrap(), Some(0.01));
        assert_eq!(SPAN.check("p", None).unwrap(), None);
        let said = SPAN.check("p", Some(2.5)).unwrap_err().to_string();
        assert_eq!(said, "p is 2.5, expected 0.01 to 2");
        let described = |transform: &mut dyn FnMut(&mut Schema), schema: Value| {
            let mut schema = Schema::try_from(schema).expect("a schema");
            transform(&mut schema);
            schema.to_value()
        };
        let number = described(&mut |it| { SPAN }.transform(it), json!({ "type": "number" }));
        assert_eq!(number, json!({ "type": "number", "minimum": 0.01, "maximum": 2.0 }));
        let open = Span { low: 1, high: u64::MAX };
        assert_eq!(open.to_string(), "at least 1");
        let whole = described(&mut |it| { open }.transform(it), json!({}));
        assert_eq!(whole, json!({ "minimum": 1 }));
        let words = Words(&["a", "b", "c"]);
        assert_eq!(words.to_string(), "\"a\", \"b\" or \"c\"");
        let text = json!({ "type": ["string", "null"] });
        let one = described(&mut |it| { words }.transform(it), text);
        assert_eq!(one["enum"], json!(["a", "b", "c", null]));
        let length = Length { least: 1, most: 3 };
        assert_eq!((length.has(0), length.has(3), length.has(4)), (false, true, false));
        let list = described(&mut |it| { length }.transform(it), json!({ "type": "array" }));
        assert_eq!((&list["minItems"], &list["maxItems"]), (&json!(1), &json!(3)));
    }
}
