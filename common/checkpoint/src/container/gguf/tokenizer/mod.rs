//! The text side of a model in a GGUF file: from what `tokenizer.ggml` and `tokenizer.chat_template` say to the files that lie
//! beside a model on the Hub.
//!
//! Start at [`texts`]. `vocabulary.rs` has the tokens and what kind each is. How text becomes tokens depends on the kind of
//! tokenizer: `merged.rs` for vocabularies with merges, `scored.rs` for those with scores, `splits.rs` for how text is cut
//! before. `roles.rs` says which tokens begin and end texts, `templates.rs` has chat templates, `file.rs` the form of
//! `tokenizer.json`. The reference is libllama: what it makes of texts is compared in `tests/golden-gguf`.
//!
//! Not said by GGUF, and so not here: whether added tokens take the spaces beside them, and a normalization of Unicode.

mod error;
mod file;
mod limits;
mod merged;
mod roles;
mod scored;
mod splits;
mod templates;
#[cfg(test)]
mod tests;
mod vocabulary;

pub use error::TokenizerError;
pub use roles::ENDS;
pub use splits::{DIGIT, GPT2, SPLITS, Split};

use self::merged::Alphabet;
use self::roles::Roles;
use self::vocabulary::Vocabulary;
use super::value::Metadata;

/// What kind of tokenizer it is.
const MODEL: &str = "tokenizer.ggml.model";
/// How text is cut before tokens are looked up, by name.
const PRE: &str = "tokenizer.ggml.pre";
/// The way of cutting where no name is given.
const DEFAULT_PRE: &str = "default";

/// The texts of a model, each under the name that its file has on the Hub.
///
/// # Errors
/// [`TokenizerError`] for a tokenizer that is malformed or of a kind that is not read.
pub(crate) fn texts(metadata: &Metadata) -> Result<Vec<(String, Vec<u8>)>, TokenizerError> {
    let model = Metadata::required(MODEL, metadata.text(MODEL))?;
    let mut vocabulary = Vocabulary::read(metadata)?;
    let ends = roles::ends(&mut vocabulary)?;
    let (tokenizer, roles) = match model.as_str() {
        "gpt2" => {
            let pre = metadata.text(PRE)?.map_or(DEFAULT_PRE, String::as_str);
            let split = splits::of(pre)?;
            let roles =
                Roles::read(metadata, &vocabulary, roles::Defaults::of_merged(split.begins))?;
            let parts = merged::parts(metadata, &vocabulary, Alphabet::Bytes(split))?;
            (file::tokenizer(&vocabulary, parts, &roles), roles)
        }
        "gemma4" => {
            let roles = Roles::read(metadata, &vocabulary, roles::Defaults::of_merged(true))?;
            let parts = merged::parts(metadata, &vocabulary, Alphabet::Letters)?;
            (file::tokenizer(&vocabulary, parts, &roles), roles)
        }
        "llama" => {
            let roles = Roles::read(metadata, &vocabulary, roles::Defaults::OF_SCORED)?;
            let parts = scored::parts(metadata, &vocabulary, &roles)?;
            (file::tokenizer(&vocabulary, parts, &roles), roles)
        }
        other => return Err(TokenizerError::Model { model: other.to_owned() }),
    };
    let mut texts = vec![("tokenizer.json".to_owned(), tokenizer)];
    texts.push(("tokenizer_config.json".to_owned(), roles.tokenizer_config(&vocabulary)));
    texts.push(("generation_config.json".to_owned(), roles.generation_config(metadata, &ends)?));
    texts.extend(templates::texts(metadata)?);
    Ok(texts)
}

/// What is said of a file that does not say how text is cut before pieces are joined.
pub(crate) fn cut_unsaid(metadata: &Metadata) -> Option<String> {
    let joined = metadata.text(MODEL).ok().flatten().is_some_and(|model| model == "gpt2");
    let said = metadata.text(PRE).ok().flatten().is_some();
    (joined && !said).then(|| {
        format!(
            "{PRE:?} is not in the metadata: text is cut the default way, and its tokens may be others than the model's own"
        )
    })
}
