//! What requests ask for, what answers say of themselves, and what one client learns of another.
use std::path::{Path, PathBuf};

use cake_tests::{Golden, Master, Server, golden};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";

/// A server that asks for one of these keys.
fn with_keys(golden: &Golden, home: &Path, keys: &str, args: &[&str]) -> Server {
    let file: PathBuf = home.join("keys");
    std::fs::write(&file, keys).expect("written");
    let file = file.to_str().expect("plain").to_owned();
    let all = [&["--api-key-file", &file, "--context", "256"], args].concat();
    Server::start(&Master::alone(), &golden.path, &all)
}

/// How many tokens of the prompt were there already, as whoever has this key is told.
fn cached(server: &Server, key: &str, request: &Value) -> u64 {
    let body = server.post_text(COMPLETIONS, &request.to_string(), Some(key)).good();
    body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
}

/// A prompt of a hundred tokens that begins with those of the golden one.
fn long(golden: &Golden) -> Vec<u32> {
    golden.prompt_ids.iter().cycle().take(100).copied().collect()
}

#[test]
fn nobody_learns_what_prompts_of_another_key_began_with() {
    let golden = golden("llama");
    let home = tempfile::tempdir().expect("a temporary folder");
    let server = with_keys(&golden, home.path(), "one\ntwo\n", &[]);
    let request = json!({ "prompt": long(&golden), "max_tokens": 2, "temperature": 0 });
    assert_eq!(cached(&server, "one", &request), 0);
    assert_eq!(cached(&server, "two", &request), 0, "another key's prompt");
    assert_eq!(cached(&server, "one", &request), 96);
    assert_eq!(cached(&server, "two", &request), 96, "by now its own");
    // What was read for an embedding is kept, too.
    let other: Vec<u32> = long(&golden).into_iter().rev().collect();
    let embed = json!({ "input": [other] }).to_string();
    server.post_text(EMBEDDINGS, &embed, Some("one")).good();
    let request = json!({ "prompt": other, "max_tokens": 2, "temperature": 0 });
    assert_eq!(cached(&server, "two", &request), 0, "another key's text");
    assert_eq!(cached(&server, "one", &request), 96);
}

#[test]
fn keys_share_prefixes_where_that_is_asked_for() {
    let golden = golden("llama");
    let home = tempfile::tempdir().expect("a temporary folder");
    let server = with_keys(&golden, home.path(), "one\ntwo\n", &["--share-prefixes"]);
    let request = json!({ "prompt": long(&golden), "max_tokens": 2, "temperature": 0 });
    assert_eq!(cached(&server, "one", &request), 0);
    assert_eq!(cached(&server, "two", &request), 96);
}
