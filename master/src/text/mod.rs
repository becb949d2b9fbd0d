//! From people's words to token ids and back: tokenizer, chat template, streaming, stop strings.
//!
//! Start at [`Text`]. Everything is read once from the texts that come with a checkpoint; there is no network
//! and no async here. What transformers makes of the same files is the reference throughout, but for
//! control tokens in what people say (`prompt`, `guard`, `plain`): those are text.
//!
//! Neither people's texts nor a model's files are trusted: a text that cannot fit is not tokenized (`room`),
//! and templates run within bounds (`template`), those of a program in a process of their own (`apart`).

mod apart;
mod byte_chars;
mod config;
mod density;
mod detokenize;
mod error;
#[cfg(test)]
mod gguf;
mod guard;
pub mod hostile;
mod json;
mod literals;
mod plain;
mod prompt;
mod python;
#[cfg(test)]
mod rendered;
mod room;
#[cfg(test)]
mod samples;
mod stop;
mod strftime;
mod template;
mod token_bytes;
mod tokenizer;
mod told;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use cake_checkpoint::TextFiles;
use serde::{Deserialize, Serialize};
use tokenizers::Tokenizer;

pub use apart::{COMMAND as RENDER, render_apart, render_for_parent};
pub use detokenize::Detokenizer;
pub use error::{Bound, Error};
pub use prompt::{ChatPrompt, LARGE_BYTES, conversation_bytes};
pub use stop::{StopScan, StopStrings};
pub use told::{Ending, Told};

use crate::reply::{BLOCK, Marked, marks as marks_what};
use apart::Apart;
use config::TextConfig;
use guard::Guard;
use template::ChatTemplate;
use tokenizer::{TOKENIZER_FILE, guarded, named_id};

/// The tokenizer, special tokens and chat template of one checkpoint.
pub struct Text {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// Renders small conversations.
    small: Apart,
    /// Renders large ones, for which small ones do not wait.
    large: Apart,
    /// Keeps people from writing control tokens; none where there are none, or people may.
    guard: Option<Guard>,
    /// The most bytes behind one token, if that can be said.
    bytes_per_token: Option<usize>,
    /// Whether some tokens swallow the white space beside them.
    swallows_space: bool,
    /// Special tokens that mark thoughts, and those that mark calls as well.
    marks: (Marks, Marks),
    /// Special tokens by their key, such as `bos_token`; templates see them under these names.
    special: BTreeMap<String, String>,
    eos_id: Option<u32>,
    around: Around,
    model_max_length: Option<u64>,
    /// Whether tokens like `<0x0A>` are decoded as bytes.
    byte_fallback: bool,
    /// What was wrong with optional files, one sentence each.
    pub warnings: Vec<String>,
}

/// Tokens that have no text but for those who look for what they mark, and that text.
pub type Marks = Arc<HashMap<u32, String>>;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`, or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message by `role` saying `content`.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned() }
    }
}

/// What plain text gets around it when special tokens are wanted.
enum Around {
    /// What the post-processor of `tokenizer.json` says.
    PostProcessor,
    /// These, because `tokenizer_config.json` says so; it overrides the post-processor.
    Tokens { bos: Option<u32>, eos: Option<u32> },
}

impl Text {
    /// Reads the text files of a checkpoint directory, as [`Text::of`] does.
    ///
    /// # Errors
    /// As [`Text::of`].
    pub fn open(directory: &Path) -> Result<Text, Error> {
        Text::of(&TextFiles::Directory(directory.to_owned()))
    }

    /// Reads the texts that come with a checkpoint; only `tokenizer.json` must be there.
    ///
    /// # Errors
    /// [`Error::MissingTokenizer`], [`Error::Unreadable`], [`Error::TooLong`],
    /// [`Error::InvalidTokenizer`] and [`Error::UnsupportedDecoder`] about `tokenizer.json`;
    /// [`Error::UnknownSpecialToken`] if `eos_token`, or a `bos_token` that is to be added, has no
    /// id. Anything wrong with an optional file is one of [`Text::warnings`]; a chat template that
    /// does not parse also fails when it is used.
    pub fn of(texts: &TextFiles) -> Result<Text, Error> {
        let mut warnings = Vec::new();
        let config = config::read(texts, &mut warnings);
        let (tokenizer, byte_fallback) = tokenizer::open(texts, &config, &mut warnings)?;
        let eos_id = named_id(&tokenizer, &config, "eos_token")?;
        let around = Around::new(&tokenizer, &config, eos_id, &mut warnings)?;
        let template = config
            .template
            .map(|found| ChatTemplate::new(&found.source, found.origin, SystemTime::now));
        let small = Apart::default();
        if let Some(Err(error)) = template.as_ref().map(|template| small.check(template)) {
            warnings.push(error.to_string());
        }
        let literals = template.as_ref().map(|template| literals::literals(&template.source));
        let guard = guarded(|| Guard::new(&tokenizer, literals.unwrap_or_default()));
        let invalid = |source| Error::InvalidTokenizer { path: texts.path(TOKENIZER_FILE), source };
        let mut added = tokenizer.get_added_tokens_decoder().into_values();
        Ok(Text {
            guard: guard.map_err(invalid)?,
            bytes_per_token: density::bytes_per_token(&tokenizer),
            marks: (marks(&tokenizer, false), marks(&tokenizer, true)),
            swallows_space: added.any(|token| token.lstrip || token.rstrip),
            tokenizer,
            template,
            small,
            large: Apart::default(),
            special: config.named,
            eos_id,
            around,
            model_max_length: config.model_max_length,
            byte_fallback,
            warnings,
        })
    }

    /// Joins tokens to text. Special tokens and ids without a token are left out.
    ///
    /// The text is as the model wrote it: `clean_up_tokenization_spaces` is not applied.
    ///
    /// # Errors
    /// [`Error::Decode`] if the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        self.decoded(ids, true)
    }

    /// The same with special tokens, as they are written.
    ///
    /// # Errors
    /// [`Error::Decode`] if the tokenizer fails.
    pub fn decode_all(&self, ids: &[u32]) -> Result<String, Error> {
        self.decoded(ids, false)
    }

    /// The text of a token by itself; empty if it has none.
    pub fn token(&self, id: u32) -> String {
        self.decode(&[id]).unwrap_or_default()
    }

    fn decoded(&self, ids: &[u32], skip_special: bool) -> Result<String, Error> {
        guarded(|| self.tokenizer.decode(ids, skip_special))
            .map_err(|source| Error::Decode { tokens: ids.len(), source })
    }

    /// The special tokens that mark what of a reply is thoughts and, if they are looked for, calls of tools.
    pub fn marks(&self, calls: bool) -> &Marks {
        let (thoughts, all) = &self.marks;
        if calls { all } else { thoughts }
    }

    /// Whether the model has tokens for channels that it writes in.
    pub(crate) fn has_channels(&self) -> bool {
        let (thoughts, _) = &self.marks;
        thoughts.values().any(|mark| marks_what(mark) == Some(Marked::Channel))
    }

    /// Whether the model has tokens for thoughts that it begins anywhere.
    pub(crate) fn has_blocks(&self) -> bool {
        self.token_id(BLOCK.0).is_some()
    }

    /// The special tokens that have a name, such as `bos_token`, by it.
    pub fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.special
    }

    /// The chat template as it stands in the checkpoint, but for marks of what is trained on.
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_ref().map(|template| template.source.as_str())
    }

    /// Whether the checkpoint brings a chat template (that it works is not promised).
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The id of a token by its exact text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The id of `eos_token`, if one is named. The model's own files may name more ids that end
    /// an answer.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos_id
    }

    /// How many tokens there are, added ones included. Where ids have gaps some are not below it,
    /// and the model's own vocabulary is often larger.
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Most tokens the tokenizer's configuration promises for one sequence, if it sets a limit.
    pub fn model_max_length(&self) -> Option<u64> {
        self.model_max_length
    }

    /// The token that [`Text::decode`] sees behind `id`: none for special and unknown ones.
    fn visible_token(&self, id: u32) -> Option<String> {
        let token = self.tokenizer.id_to_token(id)?;
        let special = self.tokenizer.get_added_vocabulary().is_special_token(&token);
        (!special).then_some(token)
    }
}

/// The special tokens that mark thoughts and, if `calls`, calls of tools; parts of channels only where there are channels.
fn marks(tokenizer: &Tokenizer, calls: bool) -> Marks {
    let added = tokenizer.get_added_tokens_decoder();
    let special = || added.iter().filter(|(_, token)| token.special);
    let has_channels =
        special().any(|(_, token)| marks_what(&token.content) == Some(Marked::Channel));
    let is_one = |token: &str| match marks_what(token) {
        None => false,
        Some(Marked::Thoughts) => true,
        Some(Marked::Calls) => calls,
        Some(Marked::Channel | Marked::InChannels) => has_channels,
    };
    let marks = special().filter(|(_, token)| is_one(&token.content));
    Arc::new(marks.map(|(id, token)| (*id, token.content.clone())).collect())
}

impl Around {
    fn new(
        tokenizer: &Tokenizer,
        config: &TextConfig,
        eos_id: Option<u32>,
        warnings: &mut Vec<String>,
    ) -> Result<Around, Error> {
        if config.add_bos.is_none() && config.add_eos.is_none() {
            return Ok(Around::PostProcessor);
        }
        let bos = match config.add_bos {
            Some(true) => named_id(tokenizer, config, "bos_token")?,
            _ => None,
        };
        let eos = eos_id.filter(|_| config.add_eos == Some(true));
        for (wanted, found, name) in [(config.add_bos, bos, "bos"), (config.add_eos, eos, "eos")] {
            if wanted == Some(true) && found.is_none() {
                warnings.push(format!("add_{name}_token is ignored: there is no {name}_token"));
            }
        }
        Ok(Around::Tokens { bos, eos })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::samples::{self, TOKENIZER_CONFIG, directory_with};
    use serde_json::{Value, json};
    use std::fs;

    fn user(content: &str) -> Vec<Message> {
        vec![Message { role: "user".into(), content: content.into() }]
    }

    #[test]
    fn text_can_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Text>();
    }

    #[test]
    fn the_demo_model_reads_and_writes_as_its_reference_did() {
        let text = samples::demo();
        assert_eq!(text.warnings, [""; 0]);
        assert_eq!((text.vocab_size(), text.eos_id()), (1024, Some(2)));
        assert_eq!(text.model_max_length(), Some(1024));
        let expected = fs::read(samples::demo_directory().join("expected.json")).expect("reads");
        let expected: Value = serde_json::from_slice(&expected).expect("is JSON");
        let cases = expected["cases"].as_array().expect("has cases");
        assert!(cases.len() > 3);
        for case in cases {
            let ids = |key: &str| -> Vec<u32> {
                serde_json::from_value(case[key].clone()).expect("token ids")
            };
            let question = case["question"].as_str().expect("a question");
            let prompt = text.encode_chat(&user(question)).expect("encodes");
            assert_eq!((prompt.ids, prompt.thinks), (ids("prompt_ids"), None));
            assert_eq!(text.decode(&ids("greedy_ids")).expect("decodes"), case["text"]);
            let mut detokenizer = Detokenizer::new(text);
            let mut streamed = String::new();
            for id in ids("greedy_ids") {
                streamed += &detokenizer.push(id).expect("decodes");
            }
            streamed += &detokenizer.finish().expect("decodes");
            assert_eq!(streamed, case["text"]);
        }
    }

    #[test]
    fn the_golden_checkpoints_open() {
        let mut opened = 0;
        for entry in fs::read_dir(samples::golden_directory()).expect("lists") {
            let path = entry.expect("an entry").path();
            if !path.is_dir() {
                continue;
            }
            let text = Text::open(&path).expect("opens");
            assert_eq!(text.warnings, [""; 0], "{}", path.display());
            assert!(text.has_chat_template() && text.eos_id().is_some(), "{}", path.display());
            let ids = text.encode("Hello, wörld 🦉!", false).expect("encodes");
            assert_eq!(text.decode(&ids).expect("decodes"), "Hello, wörld 🦉!");
            assert!(!text.encode_chat(&user("Hello")).expect("encodes").ids.is_empty());
            opened += 1;
        }
        assert!(opened >= 7, "only {opened} golden checkpoints");
    }

    #[test]
    fn texts_inside_a_file_are_read_as_those_of_a_directory() {
        let directory = TextFiles::Directory(samples::golden_directory().join("llama"));
        let names = ["tokenizer.json", TOKENIZER_CONFIG, "chat_template.jinja"];
        let text = |name: &str| directory.read(name, u64::MAX - 1).expect("reads").expect("whole");
        let texts = names.map(|name| (name.to_owned(), text(name).into_owned()));
        let inside = |texts| TextFiles::Inside { file: "model.one".into(), texts };
        let there = Text::of(&directory).expect("opens");
        let here = Text::of(&inside(texts.into())).expect("opens");
        let ids = |text: &Text| text.encode_chat(&user("Hello, wörld 🦉!")).expect("encodes").ids;
        assert_eq!(ids(&here), ids(&there));
        assert_eq!((here.eos_id(), here.warnings), (there.eos_id(), there.warnings));

        let error = Text::of(&inside(BTreeMap::new())).err().expect("nothing there");
        assert_eq!(error.to_string(), "no tokenizer.json in model.one");
        let broken = BTreeMap::from([("tokenizer.json".to_owned(), b"{".to_vec())]);
        let error = Text::of(&inside(broken)).err().expect("refused").to_string();
        assert!(error.starts_with("model.one/tokenizer.json is not a valid tokenizer"), "{error}");
    }

    #[test]
    fn special_tokens_in_text_become_their_ids() {
        let text = samples::demo();
        let ids = text.encode("<|im_start|>user", false).expect("encodes");
        assert_eq!(ids.first(), text.token_id("<|im_start|>").as_ref());
        assert_eq!(text.token_id("no such token"), None);
    }

    #[test]
    fn the_post_processor_adds_special_tokens_unless_told_otherwise() {
        let encode = |config: Value, text: &str, add_special: bool| {
            let directory = directory_with(&[(TOKENIZER_CONFIG, config)]);
            let opened = Text::open(directory.path()).expect("opens");
            assert_eq!(opened.warnings, [""; 0]);
            let encoded = opened.encode(text, add_special).expect("encodes");
            let (lead, ids) = opened.encode_apart(text).expect("encodes");
            assert!(!add_special || encoded.starts_with(&[lead, ids].concat()));
            encoded
        };
        let tokens = || json!({"bos_token": "<s>", "eos_token": "</s>"});
        let with = |more: &[(&str, bool)]| {
            let mut config = tokens();
            for (key, value) in more {
                config[*key] = json!(value);
            }
            config
        };
        let plain = encode(tokens(), "a", false);
        let around = |bos: &[u32], eos: &[u32]| [bos, &plain[..], eos].concat();
        assert_eq!(encode(tokens(), "a", true), around(&[1], &[]));
        assert_eq!(encode(with(&[("add_bos_token", true)]), "a", true), around(&[1], &[]));
        assert_eq!(encode(with(&[("add_bos_token", false)]), "a", true), plain);
        assert_eq!(encode(with(&[("add_eos_token", true)]), "a", true), around(&[], &[2]));
        let both = [("add_bos_token", true), ("add_eos_token", true)];
        assert_eq!(encode(with(&both), "a", true), around(&[1], &[2]));
        assert_eq!(encode(with(&both), "a", false), plain);
    }

    #[test]
    fn a_chat_has_its_first_token_once() {
        let directory = directory_with(&[(
            TOKENIZER_CONFIG,
            json!({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true,
                   "chat_template": [{"name": "tool_use", "template": "wrong"},
                       {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"}]}),
        )]);
        let text = Text::open(directory.path()).expect("opens");
        assert_eq!(text.render_chat(&user("ab"), true).expect("renders"), "<s>ab");
        let ids = text.encode_chat(&user("ab")).expect("encodes").ids;
        assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 1);
        assert_eq!(ids.first(), Some(&1));
        assert_eq!(text.decode(&ids).expect("decodes"), "ab");
    }

    #[test]
    fn a_token_to_add_that_is_not_named_is_a_warning() {
        let config = json!({"add_bos_token": true, "add_eos_token": true});
        let directory = directory_with(&[(TOKENIZER_CONFIG, config)]);
        let text = Text::open(directory.path()).expect("opens");
        assert_eq!(
            text.warnings,
            [
                "add_bos_token is ignored: there is no bos_token",
                "add_eos_token is ignored: there is no eos_token"
            ]
        );
        assert_eq!(
            text.encode("a", true).expect("encodes"),
            text.encode("a", false).expect("encodes")
        );
        assert_eq!(text.eos_id(), None);
    }

    #[test]
    fn a_broken_template_does_not_stop_plain_text() {
        let directory = directory_with(&[(TOKENIZER_CONFIG, json!({"chat_template": "{% if %}"}))]);
        let text = Text::open(directory.path()).expect("opens");
        assert_eq!(text.warnings.len(), 1);
        assert!(
            text.warnings[0].starts_with(
                "the chat template in tokenizer_config.json cannot be used: syntax error"
            ),
            "{}",
            text.warnings[0]
        );
        assert!(text.has_chat_template());
        assert!(matches!(text.render_chat(&user("a"), true), Err(Error::ChatTemplate { .. })));
        assert!(text.encode("a", true).is_ok());
    }

    #[test]
    fn without_a_template_there_is_no_chat() {
        let directory = directory_with(&[]);
        let text = Text::open(directory.path()).expect("opens");
        assert!(!text.has_chat_template());
        let error = text.encode_chat(&user("a")).expect_err("no template");
        assert_eq!(error.to_string(), "the model has no chat template; give it plain text instead");
    }
}
