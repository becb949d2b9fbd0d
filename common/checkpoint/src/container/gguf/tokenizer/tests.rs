//! What GGUF says of a tokenizer, and what is made of it. That libllama's ids come out is shown where the library is that reads the
//! files: `master/src/text`.

use serde_json::{Value as Json, json};

use super::{TokenizerError, texts};
use crate::container::gguf::value::{Metadata, Value, ValueError};

/// Metadata with those keys of `tokenizer.ggml`; a key with a dot stands as it is.
fn metadata(values: &[(&str, Value)]) -> Metadata {
    let mut metadata = Metadata::default();
    for (key, value) in values {
        let key =
            if key.contains('.') { (*key).to_owned() } else { format!("tokenizer.ggml.{key}") };
        assert!(metadata.insert(key, value.clone()), "twice");
    }
    metadata
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn list(texts: &[&str]) -> Value {
    Value::Texts(texts.iter().map(|&text| text.to_owned()).collect())
}

/// A vocabulary of merges, with some values in the place of others.
fn merged(other: &[(&str, Value)]) -> Metadata {
    let own = [
        ("model", text("gpt2")),
        ("pre", text("qwen2")),
        ("tokens", list(&["<s>", "a", "b", "ab", "<tool>", "[PAD5]", ""])),
        ("token_type", Value::Integers(vec![3, 1, 1, 1, 4, 5, 77])),
        ("merges", list(&["a b"])),
        ("bos_token_id", Value::Unsigned(0)),
    ];
    replaced(&own, other)
}

/// A vocabulary of scores, with some values in the place of others.
fn scored(other: &[(&str, Value)]) -> Metadata {
    let own = [
        ("model", text("llama")),
        (
            "tokens",
            list(&["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "▁a", "▁▁", "\n\n", "a\n\n"]),
        ),
        ("scores", Value::Floats(vec![0.0, 0.0, 0.0, 0.0, -3.0, -4.0, -1.0, -2.0, -1.5, -0.5])),
        ("token_type", Value::Integers(vec![2, 3, 3, 6, 1, 1, 1, 1, 1, 1])),
    ];
    replaced(&own, other)
}

fn replaced(own: &[(&str, Value)], other: &[(&str, Value)]) -> Metadata {
    let kept = own.iter().filter(|(key, _)| other.iter().all(|(new, _)| new != key));
    metadata(&kept.chain(other).cloned().collect::<Vec<_>>())
}

/// The text of that name, as JSON.
fn file(metadata: &Metadata, name: &str) -> Json {
    let texts = texts(metadata).unwrap();
    let (_, text) = texts.into_iter().find(|(own, _)| own == name).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn refusal(metadata: &Metadata) -> TokenizerError {
    texts(metadata).unwrap_err()
}

#[test]
fn merges_are_pairs_and_tokens_have_their_kinds() {
    let tokenizer = file(&merged(&[]), "tokenizer.json");
    let model = &tokenizer["model"];
    assert_eq!(model["merges"], json!([["a", "b"]]));
    assert_eq!(
        model["vocab"],
        json!({"<s>": 0, "a": 1, "b": 2, "ab": 3, "<tool>": 4, "[PAD5]": 5, "[EMPTY_6]": 6})
    );
    assert_eq!(model["ignore_merges"], false);
    let added = tokenizer["added_tokens"].as_array().unwrap();
    let added: Vec<_> = added.iter().map(|it| (&it["content"], &it["special"])).collect();
    assert_eq!(added, [(&json!("<s>"), &json!(true)), (&json!("<tool>"), &json!(false))]);
    assert_eq!(tokenizer["pre_tokenizer"]["pretokenizers"].as_array().unwrap().len(), 2);
    assert_eq!(tokenizer["post_processor"], Json::Null);
    let config = file(&merged(&[]), "tokenizer_config.json");
    assert_eq!((&config["bos_token"], &config["add_bos_token"]), (&json!("<s>"), &json!(false)));
    // No name of a way to cut is the default one; letters need none.
    let steps =
        |it: &Metadata| file(it, "tokenizer.json")["pre_tokenizer"]["pretokenizers"].clone();
    assert_eq!(steps(&replaced_without(&merged(&[]), "pre")).as_array().unwrap().len(), 5);
    let letters = file(&merged(&[("model", text("gemma4"))]), "tokenizer.json");
    assert_eq!(
        (&letters["model"]["byte_fallback"], &letters["normalizer"]["content"]),
        (&json!(true), &json!("▁"))
    );
}

/// The same without a key of `tokenizer.ggml`.
fn replaced_without(metadata: &Metadata, key: &str) -> Metadata {
    let mut rest = Metadata::default();
    for own in metadata.keys().filter(|own| *own != format!("tokenizer.ggml.{key}")) {
        rest.insert(own.to_owned(), metadata.get(own).unwrap().clone());
    }
    rest
}

#[test]
fn scores_become_merges_in_their_order() {
    let tokenizer = file(&scored(&[]), "tokenizer.json");
    let model = &tokenizer["model"];
    // "\n" is a byte: pieces that have it are called by its name, so that it can be joined.
    let expected = json!([["a", "<0x0A><0x0A>"], ["▁", "a"], ["<0x0A>", "<0x0A>"], ["▁", "▁"],]);
    assert_eq!(model["merges"], expected);
    assert_eq!(
        (&model["vocab"]["<0x0A><0x0A>"], &model["vocab"]["a<0x0A><0x0A>"]),
        (&json!(8), &json!(9))
    );
    assert_eq!((&model["unk_token"], &model["byte_fallback"]), (&json!("<unk>"), &json!(true)));
    let kinds = |part: &str, list: &str| -> Vec<String> {
        let steps = tokenizer[part][list].as_array().unwrap().iter();
        steps.map(|step| step["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds("normalizer", "normalizers"), ["Prepend", "Replace"]);
    assert_eq!(
        kinds("decoder", "decoders"),
        ["Replace", "Replace", "ByteFallback", "Fuse", "Strip"]
    );
    let around = &tokenizer["post_processor"];
    assert_eq!(around["single"].as_array().unwrap().len(), 2, "begins with <s>");
    assert_eq!(around["special_tokens"]["<s>"]["ids"], json!([1]));
    let without = file(&scored(&[("add_space_prefix", Value::Bool(false))]), "tokenizer.json");
    assert_eq!(without["normalizer"]["normalizers"].as_array().unwrap().len(), 1);
}

#[test]
fn equal_scores_join_longer_pieces_first() {
    let other = [
        ("tokens", list(&["<unk>", "<s>", "</s>", "▁", "▁▁", "▁▁▁"])),
        ("scores", Value::Integers(vec![0; 6])),
        ("token_type", Value::Integers(vec![2, 3, 3, 1, 4, 1])),
    ];
    let tokenizer = file(&scored(&other), "tokenizer.json");
    let expected = json!([["▁", "▁▁"], ["▁▁", "▁"], ["▁", "▁"]]);
    assert_eq!(tokenizer["model"]["merges"], expected);
}

#[test]
fn answers_end_at_what_is_said_and_at_what_is_called_an_end() {
    let ends = |tokens: &[&str], other: &[(&str, Value)]| {
        let tokens = [
            ("tokens", list(tokens)),
            ("token_type", Value::Integers(vec![1; tokens.len()])),
            ("merges", list(&[])),
        ];
        let all = [&tokens[..], other].concat();
        (
            file(&merged(&all), "generation_config.json")["eos_token_id"].clone(),
            file(&merged(&all), "tokenizer.json"),
        )
    };
    let (ids, tokenizer) =
        ends(&["a", "<|eot_id|>", "x", "<|im_end|>"], &[("eos_token_id", Value::Unsigned(2))]);
    assert_eq!(ids, json!([2, 1, 3]));
    assert_eq!(tokenizer["added_tokens"][0]["special"], true, "whatever its kind says");
    let more = [
        ("eot_token_id", Value::Signed(2)),
        ("eom_token_id", Value::Unsigned(0)),
        ("eos_token_id", Value::Signed(-1)),
    ];
    assert_eq!(ends(&["a", "</s>", "x"], &more).0, json!([2, 0, 1]));
    // One part of an answer ends before the answer does.
    assert_eq!(ends(&["<|end|>", "<|return|>", "<|call|>"], &[]).0, json!([1, 2]));
    assert_eq!(ends(&["<|end|>", "a"], &[]).0, json!([0]));
    // Gemma 4 writes a struck-out text so.
    assert_eq!(ends(&["</s>", "<|tool_response>"], &[]).0, json!([1]));
}

#[test]
fn recommendations_and_templates_come_along() {
    let other = [
        ("general.sampling.temp", Value::F32(0.6)),
        ("general.sampling.top_k", Value::Signed(20)),
        ("tokenizer.chat_template", text("{{ a }}")),
        ("tokenizer.chat_templates", list(&["tool_use", "default", "tool_use", "../x"])),
        ("tokenizer.chat_template.tool_use", text("{{ b }}")),
        ("tokenizer.chat_template.../x", text("{{ c }}")),
    ];
    let metadata = merged(&other);
    let config = file(&metadata, "generation_config.json");
    assert_eq!((&config["temperature"], &config["top_k"]), (&json!(0.6), &json!(20)));
    assert_eq!(config["do_sample"], true);
    let texts = texts(&metadata).unwrap();
    let rest: Vec<_> = texts[3..].iter().map(|(name, text)| (&**name, &**text)).collect();
    let expected: [(&str, &[u8]); 2] = [
        ("chat_template.jinja", b"{{ a }}"),
        ("additional_chat_templates/tool_use.jinja", b"{{ b }}"),
    ];
    assert_eq!(rest, expected);
    assert!(file(&merged(&[]), "generation_config.json").get("do_sample").is_none());
}

#[test]
fn what_is_not_read_is_named() {
    let of = |other: &[(&str, Value)]| refusal(&merged(other));
    let error = of(&[("model", text("wordsalad"))]);
    assert_eq!(error, TokenizerError::Model { model: "wordsalad".into() });
    let error = of(&[("pre", text("gpt-99"))]);
    assert_eq!(error, TokenizerError::Pre { pre: "gpt-99".into() });
    for key in ["model", "tokens", "merges"] {
        let error = refusal(&replaced_without(&merged(&[]), key));
        let key = format!("tokenizer.ggml.{key}");
        assert_eq!(error, TokenizerError::Value(ValueError::Missing { key }));
    }
    let error = of(&[("tokens", Value::Integers(vec![1; 7]))]);
    assert!(matches!(error, TokenizerError::Value(ValueError::WrongType { .. })), "{error}");
    let error = of(&[("token_type", Value::Floats(vec![1.0; 7]))]);
    assert!(matches!(error, TokenizerError::Value(ValueError::WrongType { .. })), "{error}");
}

#[test]
fn lists_that_do_not_belong_together_are_refused_by_key() {
    for count in [6, 8] {
        let error = refusal(&merged(&[("token_type", Value::Integers(vec![1; count]))]));
        let key = "tokenizer.ggml.token_type";
        assert_eq!(error, TokenizerError::Lengths { key, found: count, tokens: 7 });
    }
    let error = refusal(&scored(&[("scores", Value::Floats(vec![0.0; 9]))]));
    let key = "tokenizer.ggml.scores";
    assert_eq!(error, TokenizerError::Lengths { key, found: 9, tokens: 10 });
    let error =
        refusal(&scored(&[("scores", Value::Floats([vec![0.0; 9], vec![f32::NAN]].concat()))]));
    assert_eq!(error, TokenizerError::Score { id: 9 });
}

#[test]
fn tokens_and_merges_that_mean_nothing_are_refused() {
    let of = |other: &[(&str, Value)]| refusal(&merged(other));
    assert_eq!(of(&[("tokens", list(&[]))]), TokenizerError::Count { found: 0 });
    let long = "x".repeat(1025);
    let error = of(&[("tokens", list(&["a", &long]))]);
    assert_eq!(error, TokenizerError::LongToken { id: 1, bytes: 1025 });
    let error = of(&[("tokens", list(&["a", "b", "same", "ab", "same", "c", "d"]))]);
    assert_eq!(error, TokenizerError::Same { first: 2, second: 4, text: "same".into() });
    for line in ["ab", "a ", " b"] {
        let error = of(&[("merges", list(&["a b", line]))]);
        assert_eq!(error, TokenizerError::NoPair { index: 1, line: line.into() });
    }
    for (line, piece) in [("z a", "z"), ("a z", "z"), ("b a", "ba")] {
        let error = of(&[("merges", list(&[line]))]);
        let (line, piece) = (line.to_owned(), piece.to_owned());
        assert_eq!(error, TokenizerError::UnknownPiece { index: 0, line, piece });
    }
}

#[test]
fn ids_are_those_of_tokens_and_flags_have_theirs() {
    let error = refusal(&merged(&[("eos_token_id", Value::Unsigned(7))]));
    let key = "tokenizer.ggml.eos_token_id";
    assert_eq!(error, TokenizerError::Outside { key, id: 7, tokens: 7 });
    let error = refusal(&merged(&[("add_eos_token", Value::Bool(true))]));
    assert_eq!(error, TokenizerError::NoToken { flag: "tokenizer.ggml.add_eos_token", key });
    // A padding that no row has is nobody's loss, and a piece of text is not made a sign by being one.
    for padding in [7, 1] {
        let other = merged(&[("padding_token_id", Value::Unsigned(padding))]);
        assert!(file(&other, "tokenizer_config.json").get("pad_token").is_none());
    }
    let both = merged(&[
        ("add_bos_token", Value::Bool(true)),
        ("add_eos_token", Value::Bool(true)),
        ("eos_token_id", Value::Unsigned(3)),
    ]);
    let around = &file(&both, "tokenizer.json")["post_processor"];
    assert_eq!(
        (around["single"].as_array().unwrap().len(), around["pair"].as_array().unwrap().len()),
        (3, 6)
    );
}
