//! The form of `tokenizer.json`, as the library that reads it has it.

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::roles::Roles;
use super::vocabulary::Vocabulary;

/// The letter that stands for a space in tokens of letters.
pub(super) const SPACE: &str = "▁";

/// What a tokenizer of one kind has beside its vocabulary. What is null is not done.
pub(super) struct Parts<'a> {
    /// What is done to text first.
    pub(super) normalizer: Value,
    /// How text is cut.
    pub(super) pre_tokenizer: Value,
    /// How tokens become text.
    pub(super) decoder: Value,
    /// Pairs of pieces that become one, the first ones first.
    pub(super) merges: Pairs<'a>,
    /// Texts of tokens that are others in the file, by id, ascending.
    pub(super) renamed: Vec<(u32, String)>,
    /// The token for text without one.
    pub(super) unknown: Option<u32>,
    /// Whether a letter without a token becomes those of its bytes.
    pub(super) byte_fallback: bool,
    /// Whether a whole piece that is a token is taken as it is.
    pub(super) whole: bool,
}

type Cow<'a> = std::borrow::Cow<'a, str>;

/// Pairs of pieces that become one.
pub(super) type Pairs<'a> = Vec<(Cow<'a>, Cow<'a>)>;

#[derive(Serialize)]
struct File<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<Added<'a>>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model<'a>,
}

#[derive(Serialize)]
struct Model<'a> {
    r#type: &'static str,
    dropout: (),
    unk_token: Option<&'a str>,
    continuing_subword_prefix: (),
    end_of_word_suffix: (),
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    #[serde(serialize_with = "by_text")]
    vocab: &'a [&'a str],
    merges: &'a [(Cow<'a>, Cow<'a>)],
}

/// A token that is found before text is cut, as it is written.
#[derive(Serialize)]
struct Added<'a> {
    id: u32,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

/// The text of `tokenizer.json`.
pub(super) fn tokenizer(vocabulary: &Vocabulary<'_>, parts: Parts<'_>, roles: &Roles) -> Vec<u8> {
    let mut texts: Vec<&str> = vocabulary.texts.iter().map(AsRef::as_ref).collect();
    for (id, text) in &parts.renamed {
        texts[*id as usize] = text;
    }
    let added = texts.iter().zip(0..).filter(|(_, id)| vocabulary.kind(*id).is_added());
    let added = added.map(|(content, id)| {
        let special = vocabulary.kind(id).is_special();
        Added { id, content, special, ..PLAIN }
    });
    let file = File {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: added.collect(),
        normalizer: parts.normalizer,
        pre_tokenizer: parts.pre_tokenizer,
        post_processor: around(vocabulary, roles),
        decoder: parts.decoder,
        model: Model {
            r#type: "BPE",
            dropout: (),
            unk_token: parts.unknown.map(|id| texts[id as usize]),
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: parts.unknown.is_some(),
            byte_fallback: parts.byte_fallback,
            ignore_merges: parts.whole,
            vocab: &texts,
            merges: &parts.merges,
        },
    };
    serde_json::to_vec(&file).expect("texts and numbers are JSON")
}

const PLAIN: Added<'static> = Added {
    id: 0,
    content: "",
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: false,
};

/// A map from texts to the places that they have in the list.
fn by_text<S: Serializer>(texts: &&[&str], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(texts.iter().zip(0u32..))
}

/// The post-processor that puts the tokens around a text that belong there.
fn around(vocabulary: &Vocabulary<'_>, roles: &Roles) -> Value {
    let (before, behind) = roles.around();
    if before.is_none() && behind.is_none() {
        return Value::Null;
    }
    let with = |sequence: &str, type_id: u8| {
        let token =
            |id: u32| json!({"SpecialToken": {"id": vocabulary.text(id), "type_id": type_id}});
        let text = json!({"Sequence": {"id": sequence, "type_id": type_id}});
        let pieces = before.map(token).into_iter().chain([text]).chain(behind.map(token));
        pieces.collect::<Vec<Value>>()
    };
    let tokens = before.into_iter().chain(behind).map(|id| {
        let text = vocabulary.text(id);
        (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}))
    });
    let pair = [with("A", 0), with("B", 1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": with("A", 0),
        "pair": pair,
        "special_tokens": tokens.collect::<serde_json::Map<_, _>>(),
    })
}

/// A step that puts one text in the place of another.
pub(super) fn replace(text: &str, by: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": text}, "content": by})
}

/// A step that cuts text around what a pattern finds.
pub(super) fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}
