//! Loading `tokenizer.json`, and making the tokenizer what the other files say it is.

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cake_checkpoint::TextFiles;
use serde::de::IgnoredAny;
use tokenizers::{AddedToken, DecoderWrapper, Tokenizer};

use super::Error;
use super::config::TextConfig;

/// The one tokenizer format that is read.
pub(super) const TOKENIZER_FILE: &str = "tokenizer.json";

/// Longest `tokenizer.json` accepted; the largest vocabularies in use need about 35 MiB.
const MAX_TOKENIZER_BYTES: u64 = 512 << 20;

/// Tokenizers of other formats, named when they are all there is.
const OTHER_TOKENIZERS: [&str; 5] =
    ["tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "vocab.txt"];

/// Loads the tokenizer and adds what `config` knows about its tokens.
///
/// Also says whether it decodes tokens like `<0x0A>` as bytes.
pub(super) fn open(
    texts: &TextFiles,
    config: &TextConfig,
    warnings: &mut Vec<String>,
) -> Result<(Tokenizer, bool), Error> {
    let mut tokenizer = read(texts)?;
    let path = || texts.path(TOKENIZER_FILE);
    let byte_fallback = check_decoder(tokenizer.get_decoder())
        .map_err(|detail| Error::UnsupportedDecoder { path: path(), detail })?;
    guarded(|| add_tokens(&mut tokenizer, config, warnings))
        .map_err(|source| Error::InvalidTokenizer { path: path(), source })?;
    Ok((tokenizer, byte_fallback))
}

fn read(texts: &TextFiles) -> Result<Tokenizer, Error> {
    let path = texts.path(TOKENIZER_FILE);
    let bytes = match texts.read(TOKENIZER_FILE, MAX_TOKENIZER_BYTES) {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(bytes)) => {
            return Err(Error::TooLong { path, bytes, limit_bytes: MAX_TOKENIZER_BYTES });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let found = OTHER_TOKENIZERS.into_iter().find(|name| texts.has(name));
            return Err(Error::MissingTokenizer { directory: texts.place().to_owned(), found });
        }
        Err(source) => return Err(Error::Unreadable { path, source }),
    };
    let load = || -> tokenizers::Result<Tokenizer> {
        // The library panics on some files that end early, so syntax is checked before.
        serde_json::from_slice::<IgnoredAny>(&bytes)?;
        let mut tokenizer = guarded(|| Tokenizer::from_bytes(&bytes))?;
        // Settings of whoever saved it, not of the model: a prompt is never cut or filled up.
        tokenizer.with_truncation(None)?;
        tokenizer.with_padding(None);
        // A post-processor that names a token without giving its id fails only when it is used.
        guarded(|| tokenizer.encode_fast("a", true))?;
        Ok(tokenizer)
    };
    load().map_err(|source| Error::InvalidTokenizer { path, source })
}

/// Calls the tokenizer library; what it panics at is an error like any other, because a file that
/// somebody else wrote must not end the process.
pub(super) fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    // No call changes anything that is used after it fails, except caches that hold whole entries.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("the tokenizer library gave up: {}", text.unwrap_or("no reason given")).into())
    })
}

/// Whether a decoder reads tokens like `<0x0A>` as bytes, or what about it is not supported.
fn check_decoder(decoder: Option<&DecoderWrapper>) -> Result<bool, String> {
    match decoder {
        Some(DecoderWrapper::ByteFallback(_)) => Ok(true),
        Some(DecoderWrapper::Sequence(sequence)) => {
            let mut byte_fallback = false;
            for decoder in sequence.get_decoders() {
                byte_fallback |= check_decoder(Some(decoder))?;
            }
            Ok(byte_fallback)
        }
        // The library indexes before the start of a token shorter than `stop`.
        Some(DecoderWrapper::Strip(strip)) if strip.stop > 0 => {
            Err(format!("Strip with stop {}", strip.stop))
        }
        _ => Ok(false),
    }
}

/// Tells the tokenizer about tokens that only the configuration knows, and which are special.
///
/// Special tokens without an id are a warning: the model has no embedding for a new one.
fn add_tokens(
    tokenizer: &mut Tokenizer,
    config: &TextConfig,
    warnings: &mut Vec<String>,
) -> tokenizers::Result<()> {
    let known: BTreeSet<String> =
        tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    let missing = config.added.values().filter(|token| !known.contains(&token.content));
    tokenizer.add_tokens(missing.cloned().collect::<Vec<AddedToken>>())?;
    for (id, token) in &config.added {
        if tokenizer.token_to_id(&token.content) != Some(*id) {
            warnings.push(format!(
                "added_tokens_decoder gives {:?} the id {id}, tokenizer.json does not",
                token.content
            ));
        }
    }

    let mut special = Vec::new();
    let unnamed = config.extra.iter().map(|token| ("a further special token", token));
    let named = config.named.iter().map(|(name, token)| (name.as_str(), token));
    for (name, token) in named.chain(unnamed) {
        match tokenizer.token_to_id(token) {
            None => warnings.push(format!("{name} {token:?} is not in the vocabulary")),
            Some(_) if tokenizer.get_added_vocabulary().is_special_token(token) => {}
            Some(id) => {
                let added = tokenizer.get_added_tokens_decoder().remove(&id);
                let added = added.unwrap_or_else(|| AddedToken::from(token.as_str(), true));
                special.push(added.special(true));
            }
        }
    }
    tokenizer.add_special_tokens(special)?;
    Ok(())
}

/// The id of a named special token; none if none is named.
pub(super) fn named_id(
    tokenizer: &Tokenizer,
    config: &TextConfig,
    field: &'static str,
) -> Result<Option<u32>, Error> {
    let Some(token) = config.named.get(field) else {
        return Ok(None);
    };
    let unknown = || Error::UnknownSpecialToken { field, token: token.clone() };
    tokenizer.token_to_id(token).ok_or_else(unknown).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Text;
    use crate::text::samples::{self, TOKENIZER_CONFIG, directory_with};
    use serde_json::{Value, json};
    use std::fs;

    #[test]
    fn rejects_a_directory_without_a_tokenizer() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let sentence = |error: Error| {
            error.to_string().replace(&directory.path().display().to_string(), "DIR")
        };
        let error = Text::open(directory.path()).err().expect("nothing there");
        assert_eq!(sentence(error), "no tokenizer.json in DIR");
        fs::write(directory.path().join("tokenizer.model"), "sentencepiece").expect("writes");
        let error = Text::open(directory.path()).err().expect("another format");
        assert_eq!(
            sentence(error),
            "no tokenizer.json in DIR; tokenizer.model is there, but must be converted to \
             tokenizer.json first"
        );
        fs::create_dir(directory.path().join(TOKENIZER_FILE)).expect("creates");
        let error = Text::open(directory.path()).err().expect("a directory");
        let sentence = sentence(error);
        assert!(sentence.starts_with("cannot read DIR/tokenizer.json: "), "{sentence}");
    }

    #[test]
    fn rejects_a_truncated_tokenizer() {
        let whole = samples::byte_fallback_json().to_string();
        let directory = tempfile::tempdir().expect("temporary directory");
        for length in (0..whole.len()).step_by(37) {
            let path = directory.path().join(TOKENIZER_FILE);
            fs::write(path, whole.get(..length).unwrap_or("{")).expect("writes");
            let error = Text::open(directory.path()).err().expect("truncated");
            assert!(matches!(error, Error::InvalidTokenizer { .. }), "{length}: {error}");
        }
    }

    #[test]
    fn rejects_a_tokenizer_of_impossible_length() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let file = fs::File::create(directory.path().join(TOKENIZER_FILE)).expect("creates");
        file.set_len(MAX_TOKENIZER_BYTES + 1).expect("sparse");
        let error = Text::open(directory.path()).err().expect("too long");
        assert!(matches!(error, Error::TooLong { bytes: 536_870_913, .. }), "{error}");
    }

    #[test]
    fn rejects_a_decoder_that_would_read_before_a_token() {
        let mut tokenizer = samples::byte_fallback_json();
        tokenizer["decoder"]["decoders"][3]["stop"] = json!(1);
        let directory = directory_with(&[(TOKENIZER_FILE, tokenizer)]);
        let error = Text::open(directory.path()).err().expect("refused");
        assert!(error.to_string().ends_with("not supported: Strip with stop 1"), "{error}");
    }

    #[test]
    fn truncation_and_padding_of_the_file_are_not_applied() {
        let mut tokenizer = samples::byte_fallback_json();
        tokenizer["truncation"] =
            json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        tokenizer["padding"] = json!({"strategy": {"Fixed": 50}, "direction": "Right",
            "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"});
        let directory = directory_with(&[(TOKENIZER_FILE, tokenizer)]);
        let text = Text::open(directory.path()).expect("opens");
        let ids = text.encode("abababab", false).expect("encodes");
        assert_eq!(text.decode(&ids).expect("decodes"), "abababab");
        assert!(ids.len() < 50);
    }

    #[test]
    fn tokens_of_the_configuration_are_added() {
        let directory = directory_with(&[(
            TOKENIZER_CONFIG,
            json!({"eos_token": "b", "pad_token": "<pad>", "extra_special_tokens": ["▁b", "<gone>"],
                   "added_tokens_decoder": {"17": {"content": "<tool>", "special": false},
                                            "40": {"content": "<far>", "special": true}}}),
        )]);
        let text = Text::open(directory.path()).expect("opens");
        assert_eq!(text.token_id("<tool>"), Some(17));
        let ids = text.encode("a<tool>b", false).expect("encodes");
        assert!(ids.contains(&17) && ids.last() == text.eos_id().as_ref(), "{ids:?}");
        assert_eq!(text.decode(&ids).expect("decodes"), "a<tool>", "the end token is not shown");
        assert_eq!(
            text.warnings,
            [
                "added_tokens_decoder gives \"<far>\" the id 40, tokenizer.json does not",
                "pad_token \"<pad>\" is not in the vocabulary",
                "a further special token \"<gone>\" is not in the vocabulary",
            ]
        );
    }

    #[test]
    fn rejects_an_end_token_without_an_id() {
        for (config, sentence) in [
            (
                json!({"eos_token": "<|eot|>"}),
                "eos_token \"<|eot|>\" is not in the tokenizer's vocabulary",
            ),
            (
                json!({"bos_token": "<bos>", "add_bos_token": true}),
                "bos_token \"<bos>\" is not in the tokenizer's vocabulary",
            ),
        ] {
            let directory = directory_with(&[(TOKENIZER_CONFIG, config)]);
            let error = Text::open(directory.path()).err().expect("refused");
            assert_eq!(error.to_string(), sentence);
        }
    }

    /// The library panics at some of these; that must stay an error.
    #[test]
    fn a_hostile_tokenizer_is_an_error_not_a_panic() {
        let mut places = Vec::new();
        list_places(&samples::byte_fallback_json(), String::new(), &mut places);
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join(TOKENIZER_FILE);
        for place in places {
            for value in [json!(null), json!(u32::MAX), json!(-1), json!("x"), json!([]), json!({})]
            {
                let mut tokenizer = samples::byte_fallback_json();
                *tokenizer.pointer_mut(&place).expect("listed") = value;
                fs::write(&path, tokenizer.to_string()).expect("writes");
                if let Ok(text) = Text::open(directory.path()) {
                    let _ = text.encode("a \n<s>é", true);
                    let _ = text.decode(&Vec::from_iter(0..20));
                }
            }
        }
    }

    #[test]
    fn rejects_a_post_processor_whose_token_has_no_id() {
        let mut tokenizer = samples::byte_fallback_json();
        tokenizer["post_processor"]["special_tokens"] = json!({});
        let directory = directory_with(&[(TOKENIZER_FILE, tokenizer)]);
        let error = Text::open(directory.path()).err().expect("refused");
        assert!(matches!(error, Error::InvalidTokenizer { .. }), "{error}");
    }

    /// JSON pointers to `value` and everything in it.
    fn list_places(value: &Value, place: String, places: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                for (key, inner) in object {
                    let key = key.replace('~', "~0").replace('/', "~1");
                    list_places(inner, format!("{place}/{key}"), places);
                }
            }
            Value::Array(list) => {
                for (index, inner) in list.iter().enumerate() {
                    list_places(inner, format!("{place}/{index}"), places);
                }
            }
            _ => {}
        }
        places.push(place);
    }
}
