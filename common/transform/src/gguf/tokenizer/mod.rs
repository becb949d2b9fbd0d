//! What is said of a model's text: from `tokenizer.json` and what lies beside it to the keys of `tokenizer.ggml`.

mod bpe;
mod file;
mod pre;
mod scored;
mod special;
mod template;
mod tokens;

use std::collections::{BTreeSet, HashMap};

use cake_checkpoint::Checkpoint;

use self::file::TokenizerFile;
use self::special::TokenizerConfig;
use self::tokens::Tokens;
use super::FORMAT;
use super::texts;
use super::writer::Value;
use crate::error::{Error, Unsupported};

const TOKENIZER: &str = "tokenizer.json";

/// The keys of the checkpoint's tokenizer, in the order in which they are written. `guess`: whether a tokenizer that
/// splits text in a way without a name in GGUF is written as one that splits it in the default way. What GGUF cannot say
/// goes to `lost`, as sentences.
///
/// # Errors
/// [`Error::Text`] or [`Error::Io`] for a text that cannot be used, [`Unsupported`] for one that GGUF cannot express.
pub(super) fn keys(
    checkpoint: &Checkpoint,
    guess: bool,
    lost: &mut Vec<String>,
) -> Result<Vec<(String, Value)>, Error> {
    let texts = &checkpoint.texts;
    let Some(bytes) = texts::bytes(texts, TOKENIZER, texts::MAX_TOKENIZER_BYTES)? else {
        let what = format!("{TOKENIZER}, which says how text becomes tokens,");
        return Err(Unsupported::Missing { format: FORMAT, what }.into());
    };
    let file: TokenizerFile = texts::parsed(texts, TOKENIZER, &bytes)?;
    let kind = file.kind()?;
    let model = texts::parsed::<file::WithModel>(texts, TOKENIZER, &bytes)?.model;
    drop(bytes);
    let config = TokenizerConfig::read(texts)?;
    let rows = checkpoint.config.vocab_size;
    let mut keys = Vec::new();
    let mut put = |key: &str, value| keys.push((format!("tokenizer.ggml.{key}"), value));
    let mut tokens = Tokens::of(&model.vocab, rows)?;
    let unknown = match kind {
        file::Kind::Bytes => None,
        file::Kind::Scored => model.unk_token.as_deref(),
    };
    let mut left_out = BTreeSet::new();
    tokens.add(&file.added_tokens, kind, &mut left_out);
    tokens.add(&config.added_tokens, kind, &mut left_out);
    match left_out.first() {
        None => {}
        Some(token) if left_out.len() == 1 => {
            lost.push(format!("the token {token:?} is left out, as no row is its embedding"));
        }
        Some(token) => lost.push(format!(
            "{} tokens, {token:?} among them, are left out, as no row is their embedding",
            left_out.len()
        )),
    }
    match kind {
        file::Kind::Bytes => {
            let pre = pre::of(&file.pre_tokenizer, model.ignore_merges, guess, lost)?;
            bpe::check_normalizer(&file.normalizer, lost)?;
            put("model", Value::Text("gpt2".into()));
            put("pre", Value::Text(pre.into()));
        }
        file::Kind::Scored => {
            tokens.mark_bytes();
            let prefix = scored::has_prefix(&file.normalizer, &file.pre_tokenizer, |it| {
                model.vocab.contains_key(it)
            })?;
            if prefix
                && (scored::is_first_only(&file.normalizer)
                    || scored::is_first_only(&file.pre_tokenizer))
            {
                lost.push("the tokenizer puts a space before the first word of a text alone, and llama.cpp behind every special token, too".into());
            }
            put("model", Value::Text("llama".into()));
            put("pre", Value::Text("default".into()));
            put("add_space_prefix", Value::Bool(prefix));
        }
    }
    if let Some(unknown) = unknown {
        tokens.mark_unknown(unknown);
    }
    let lossy = file.added_tokens.iter().chain(&config.added_tokens).filter(|it| it.is_picky());
    if let Some(token) = lossy.clone().next() {
        let (count, text) = (lossy.count(), &token.content);
        lost.push(format!(
            "{count} added tokens, {text:?} first, take spaces beside them or stand between words only, which GGUF cannot say"
        ));
    }
    let ids: HashMap<String, u32> = tokens.ids();
    let (texts_of_tokens, types) = tokens.finish()?;
    special::check_known(&texts_of_tokens)?;
    match kind {
        file::Kind::Bytes => {
            put("tokens", Value::Texts(texts_of_tokens));
            put("token_type", Value::I32s(types));
            put("merges", Value::Texts(bpe::merges(model.merges)));
        }
        file::Kind::Scored => {
            let scores = scored::scores(&model, rows, lost);
            put("tokens", Value::Texts(texts_of_tokens));
            put("scores", Value::F32s(scores));
            put("token_type", Value::I32s(types));
        }
    }
    keys.extend(special::keys(checkpoint, &config, &file, unknown, &ids, lost));
    keys.extend(template::keys(texts, &config)?);
    Ok(keys)
}
