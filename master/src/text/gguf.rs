//! Tokenizers of GGUF files against libllama's: ids of texts, and text again of ids.
//!
//! `CAKE_GOLDEN_GGUF` names a directory of other files, such as real models' (`tests/clients/gguf_tokenizers.py`).

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use cake_checkpoint::TextFiles;
use cake_checkpoint::container::recognise;
use serde_json::Value;

use super::plain::Finder;
use super::samples::in_repository;
use super::{Message, Text};

/// The texts of the first file of a model.
fn texts(directory: &Path) -> TextFiles {
    let entries = fs::read_dir(directory).expect("lists").map(|entry| entry.expect("one").path());
    let files = entries.filter(|path| path.extension().is_some_and(|ending| ending == "gguf"));
    let first = files.min().expect("a file");
    recognise(&first).expect("GGUF").stored(&first).expect("opens").texts
}

fn ids(case: &Value, key: &str) -> Vec<u32> {
    serde_json::from_value(case[key].clone()).expect("ids")
}

#[test]
fn texts_become_the_tokens_that_libllama_makes_of_them() {
    let given = env::var_os("CAKE_GOLDEN_GGUF").map(PathBuf::from);
    let golden = given.unwrap_or_else(|| in_repository("tests/golden-gguf"));
    let (mut models, mut wrong) = (0, Vec::new());
    for entry in fs::read_dir(golden).expect("lists") {
        let directory = entry.expect("an entry").path();
        let Ok(expected) = fs::read(directory.join("expected.json")) else { continue };
        let expected: Value = serde_json::from_slice(&expected).expect("is JSON");
        let text = Text::of(&texts(&directory)).expect("opens");
        assert_eq!(text.warnings, [""; 0], "{}", directory.display());
        assert!(text.eos_id().is_some(), "{}", directory.display());
        let finder = Finder::new(&text.tokenizer).expect("made");
        for case in expected["tokenizer_cases"].as_array().expect("cases") {
            let given = case["text"].as_str().expect("a text");
            let found = text.encode(given, true).expect("encodes");
            // As if all of it had been written by somebody who may not write signs.
            let places = Vec::from_iter(0..given.len());
            let plain = finder.encode(&text.tokenizer, given, &places).expect("encodes");
            if (&found, &plain) != (&ids(case, "llama_cpp"), &ids(case, "llama_cpp_plain")) {
                wrong.push(format!("{}: {given:?}: {found:?} {plain:?}", directory.display()));
            }
            // Vocabularies of letters write a space as this one, and cannot tell which it was.
            let spaced = |text: &str| text.replace('▁', " ");
            let back = text.decode(&plain).expect("decodes");
            assert_eq!(spaced(&back), spaced(given), "{}", directory.display());
        }
        if let Some(chat) = expected["chat"]["text"].as_str() {
            let messages = [Message::new("user", "Hi")];
            assert_eq!(text.render_chat(&messages, true).expect("renders"), chat);
        }
        models += 1;
    }
    assert_eq!(wrong, [""; 0]);
    assert!(models > 0, "no models");
}
