//! Tokenizers that the tests of this module share.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::Text;

/// The name of the file that says which tokens are special.
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The demo model: byte-level, so that any bytes are some tokens.
pub(super) fn demo() -> &'static Text {
    static DEMO: LazyLock<Text> =
        LazyLock::new(|| Text::open(&demo_directory()).expect("the demo model opens"));
    &DEMO
}

/// A tiny tokenizer in SentencePiece's manner: spaces are `▁`, unknown characters fall to bytes.
pub(super) fn byte_fallback() -> &'static Text {
    static TINY: LazyLock<Text> = LazyLock::new(|| {
        let directory = directory_with(&[]);
        Text::open(directory.path()).expect("the tiny tokenizer opens")
    });
    &TINY
}

/// `tokenizer.json` of [`byte_fallback`]: 17 tokens, `<s>` is 1 and `</s>` is 2.
pub(super) fn byte_fallback_json() -> Value {
    let tokens = [
        "<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "<0xA9>", "<0xE2>", "<0x82>", "<0xAC>",
        "<0xFF>", "▁", "a", "b", "▁a", "▁b", "ab", "\u{FFFD}",
    ];
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.to_string(), json!(id))).collect();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true,
                  "byte_fallback": true, "vocab": vocab,
                  "merges": ["▁ a", "▁ b", "a b"]},
    })
}

/// A directory with these JSON files, and [`byte_fallback_json`] unless another tokenizer is given.
pub(super) fn directory_with(files: &[(&str, Value)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("temporary directory");
    let tokenizer = ("tokenizer.json", byte_fallback_json());
    for (name, content) in [&tokenizer].into_iter().chain(files) {
        fs::write(directory.path().join(name), content.to_string()).expect("writes");
    }
    directory
}

/// Where the demo model lies in the repository.
pub(super) fn demo_directory() -> PathBuf {
    in_repository("master/demo-model")
}

/// Where the golden checkpoints lie in the repository.
pub(super) fn golden_directory() -> PathBuf {
    in_repository("tests/golden")
}

pub(super) fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Kinds of tokenizers that real models have; `samples/make.py` made small ones of each.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Byte-level, without a normalizer.
    Gpt2,
    /// Byte-level, with composed characters, and tokens that are added but not special.
    Qwen,
    /// Byte-level, with another expression for words.
    Llama3,
    /// SentencePiece's BPE that falls to bytes, with tokens that strip.
    SentencePiece,
    /// SentencePiece's Unigram, lower case.
    Unigram,
    /// BERT's.
    WordPiece,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] =
        [Kind::Gpt2, Kind::Qwen, Kind::Llama3, Kind::SentencePiece, Kind::Unigram, Kind::WordPiece];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Gpt2 => "gpt2",
            Kind::Qwen => "qwen",
            Kind::Llama3 => "llama3",
            Kind::SentencePiece => "sentencepiece",
            Kind::Unigram => "unigram",
            Kind::WordPiece => "wordpiece",
        }
    }

    /// Its `tokenizer.json`.
    pub(super) fn json(self) -> Value {
        let file = in_repository(&format!("master/src/text/samples/{}.json", self.name()));
        serde_json::from_slice(&fs::read(file).expect("reads")).expect("is JSON")
    }

    /// Its control tokens.
    pub(super) fn control(self) -> Vec<String> {
        let tokens = self.json()["added_tokens"].as_array().cloned().unwrap_or_default();
        let special = tokens.into_iter().filter(|token| token["special"] == true);
        special.map(|token| token["content"].as_str().expect("text").to_owned()).collect()
    }
}

/// What transformers made of texts with these tokenizers.
pub(super) fn expected() -> Value {
    let file = in_repository("master/src/text/samples/expected.json");
    serde_json::from_slice(&fs::read(file).expect("reads")).expect("is JSON")
}

/// As [`byte_fallback_json`], with all bytes.
pub(super) fn all_bytes_json() -> Value {
    let mut tokenizer = byte_fallback_json();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    for byte in 0..=255u8 {
        let next = vocab.len();
        vocab.entry(format!("<0x{byte:02X}>")).or_insert(json!(next));
    }
    tokenizer
}

/// Pieces of what people write: words, code, white space, characters of all kinds, and what is nearly a
/// control token.
const PIECES: [&str; 48] = [
    "Hello",
    " world",
    "wörld",
    "naïve",
    "\n",
    "\n\n",
    "\t",
    " ",
    "  ",
    "   \r\n",
    "🦉",
    "👩‍👩‍👧",
    "日本語",
    "كلام",
    "e\u{301}",
    "ﬁ",
    "１２",
    "3.14",
    "12345",
    "if (a<b && c>d) { x[i] }",
    "def f(x):\n    return x\n",
    "<",
    ">",
    "|",
    "<|",
    "|>",
    "<|im_en|>",
    "<|im_end",
    "im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "<mask>",
    "</div>",
    "[INS]",
    "[INST",
    "<s",
    "<S>",
    "[cls",
    "'s",
    "don't",
    "—",
    "\u{200b}",
    "\u{fdd0}",
    "<0x0A>",
    "▁",
    "{\"a\": [1, null]}",
    " and so on. ",
];

/// So many texts of such pieces, the same for the same seed, with these among them.
pub(super) fn texts(count: usize, seed: u64, control: &[String]) -> Vec<String> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    // xorshift64*, by Vigna (arXiv:1402.6246).
    let mut below = |bound: usize| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        ((state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound as u64) as usize
    };
    let mut text = || {
        let pieces = 1 + below(12);
        let mut piece = |_| match below(4) {
            0 if !control.is_empty() => control[below(control.len())].clone(),
            _ => PIECES[below(PIECES.len())].to_owned(),
        };
        (0..pieces).map(&mut piece).collect()
    };
    (0..count).map(|_| text()).collect()
}
