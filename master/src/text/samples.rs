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

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}
