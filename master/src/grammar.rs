//! JSON and nothing else: which tokens may come next so that an answer keeps to a schema.
//!
//! The grammars are llguidance's; here they meet our tokenizers and our scores.

use std::fmt;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

/// Grammars over the tokens of one model.
pub struct Grammars {
    factory: ParserFactory,
}

/// What an answer must keep to, and how far it is.
#[derive(Clone)]
pub struct Grammar {
    matcher: Matcher,
}

/// Why an answer cannot be held to a schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The tokenizer is none that grammars know what to do with.
    #[error("grammars cannot be used with this tokenizer: {0}")]
    Tokenizer(String),
    /// The schema is none, or asks for what cannot be enforced.
    #[error("the schema cannot be enforced: {0}")]
    Schema(String),
    /// It was enforced, until this.
    #[error("the schema could not be enforced any longer: {0}")]
    Broken(String),
}

impl Grammars {
    /// * `tokens`: the bytes of each token by id; none if it is no text.
    /// * `end_ids`: ids that end an answer.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn new(tokens: &[Option<Vec<u8>>], end_ids: &[u32]) -> Result<Self, Error> {
        let mut words: Vec<Vec<u8>> = Vec::with_capacity(tokens.len());
        for (id, bytes) in tokens.iter().enumerate() {
            words.push(match bytes {
                Some(bytes) if !bytes.is_empty() => bytes.clone(),
                // No text has the marker, so no grammar asks for them.
                _ => [&[TokTrie::SPECIAL_TOKEN_MARKER], format!("<{id}>").as_bytes()].concat(),
            });
        }
        let ends: Vec<u32> =
            end_ids.iter().copied().filter(|id| (*id as usize) < words.len()).collect();
        let Some(&first_end) = ends.first() else {
            return Err(Error::Tokenizer("no token ends an answer".to_owned()));
        };
        let info = TokRxInfo::new(words.len() as u32, first_end);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&env).map_err(|error| Error::Tokenizer(error.to_string()))?;
        factory.quiet();
        Ok(Self { factory })
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// As [`Grammars::json_schema`].
    pub fn json_object(&self) -> Result<Grammar, Error> {
        self.json_schema(json!({ "type": "object" }))
    }

    /// JSON that keeps to a schema, without white space but a space after colons and commas: a model may
    /// go on with white space for ever.
    ///
    /// # Errors
    /// [`Error::Schema`].
    pub fn json_schema(&self, mut schema: Value) -> Result<Grammar, Error> {
        let Some(fields) = schema.as_object_mut() else {
            return Err(Error::Schema(format!("it is {schema}, expected an object")));
        };
        let style = json!({
            "whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?",
        });
        fields.insert("x-guidance".to_owned(), style);
        let grammar = TopLevelGrammar::from_json_schema(schema);
        let parser = self.factory.create_parser(grammar);
        let parser = parser.map_err(|error| Error::Schema(error.to_string()))?;
        Ok(Grammar { matcher: Matcher::new(Ok(parser)) })
    }
}

impl Grammar {
    /// Makes the tokens that may not come next impossible: `scores` has one for each id.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub fn mask(&mut self, scores: &mut [f32]) -> Result<(), Error> {
        let allowed = self.matcher.compute_mask_or_eos();
        let allowed = allowed.map_err(|error| Error::Broken(error.to_string()))?;
        for (id, score) in scores.iter_mut().enumerate() {
            if id >= allowed.len() || !allowed.get(id) {
                *score = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// [`Error::Broken`], also if it was not allowed.
    pub fn take(&mut self, id: u32) -> Result<(), Error> {
        self.matcher.consume_token(id).map_err(|error| Error::Broken(error.to_string()))
    }

    /// Whether nothing can follow any more.
    pub fn is_over(&self) -> bool {
        self.matcher.is_stopped()
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("over", &self.is_over()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token for each byte of ASCII, one of several, and two that end.
    fn grammars() -> Grammars {
        let mut tokens: Vec<Option<Vec<u8>>> = (0..128u8).map(|byte| Some(vec![byte])).collect();
        tokens.extend([Some(b"\"name\"".to_vec()), None, None]);
        Grammars::new(&tokens, &[129, 130, 999]).expect("a tokenizer")
    }

    fn allowed(grammar: &mut Grammar) -> Vec<u32> {
        let mut scores = vec![0.0; 140];
        grammar.mask(&mut scores).expect("a mask");
        (0..140).filter(|id| scores[*id as usize] == 0.0).collect()
    }

    #[test]
    fn only_what_the_schema_allows_can_come() {
        let schema = json!({
            "type": "object",
            "properties": { "name": { "enum": ["a", "b"] } },
            "required": ["name"],
            "additionalProperties": false,
        });
        let mut grammar = grammars().json_schema(schema).expect("a schema");
        assert_eq!(allowed(&mut grammar), [u32::from(b'{')]);
        grammar.take(u32::from(b'{')).unwrap();
        assert_eq!(allowed(&mut grammar), [u32::from(b'"'), 128]);
        let mut other = grammar.clone();
        other.take(u32::from(b'"')).unwrap();
        assert_eq!(allowed(&mut other), [u32::from(b'n')]);
        grammar.take(128).unwrap();
        for byte in b":\"" {
            grammar.take(u32::from(*byte)).unwrap();
        }
        assert_eq!(allowed(&mut grammar), [u32::from(b'a'), u32::from(b'b')]);
        for byte in b"b\"}" {
            assert!(!grammar.is_over());
            grammar.take(u32::from(*byte)).unwrap();
        }
        assert!(grammar.is_over());
        assert!(other.take(u32::from(b'x')).is_err());
    }

    #[test]
    fn what_may_end_or_go_on_allows_an_end() {
        let mut number = grammars().json_schema(json!({ "type": "integer" })).expect("a schema");
        number.take(u32::from(b'7')).unwrap();
        let allowed = allowed(&mut number);
        assert!(allowed.contains(&129) && allowed.contains(&130), "{allowed:?}");
        assert!(allowed.contains(&u32::from(b'0')) && !allowed.contains(&u32::from(b' ')));
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        let grammars = grammars();
        for schema in [json!([]), json!({ "type": "nothing" }), json!({ "$ref": "#/nowhere" })] {
            let refused = grammars.json_schema(schema.clone());
            assert!(matches!(refused, Err(Error::Schema(_))), "{schema}: {refused:?}");
        }
        assert!(matches!(Grammars::new(&[Some(vec![65])], &[]), Err(Error::Tokenizer(_))));
        assert!(grammars.json_object().is_ok());
    }
}
