//! Why no checkpoint was found.

use std::path::PathBuf;

use super::kept_error::KeptError;

/// Why no checkpoint was found. Each sentence says where was looked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum LocateError {
    #[error(
        "no checkpoint {model:?}: looked for {}; give a directory with config.json and safetensors files or with GGUF files, a .safetensors, .gguf or .apr file, org/name of a model in the local Hub cache, or ollama:NAME or lmstudio:NAME of one that Ollama or LM Studio keeps here{}",
        paths(looked),
        pull_hint(model, *is_of_hub)
    )]
    NotFound { model: String, looked: Vec<PathBuf>, is_of_hub: bool },
    #[error("{}: {found} is not a checkpoint; expected a directory, a .safetensors, .index.json, .gguf or .apr file", path.display())]
    UnsupportedFile { path: PathBuf, found: &'static str },
    #[error("{}: the Hub cache knows this model but holds no snapshot of {}; `cake-master pull` downloads it", path.display(), revision.as_deref().unwrap_or("it"))]
    NoSnapshot { path: PathBuf, revision: Option<String> },
    #[error(
        "{program} keeps no model {name:?} here: looked in {}; {}",
        paths(looked),
        listed(kept, *more)
    )]
    NotKept {
        program: &'static str,
        name: String,
        looked: Vec<PathBuf>,
        kept: Vec<String>,
        /// Models there beside those in `kept`.
        more: usize,
    },
    #[error(transparent)]
    Kept(#[from] KeptError),
}

/// What to do if it may be a model of the Hub.
fn pull_hint(model: &str, is_of_hub: bool) -> String {
    match is_of_hub {
        true => format!("; if it is one of the Hub's, `cake-master pull {model}` downloads it"),
        false => String::new(),
    }
}

fn paths(looked: &[PathBuf]) -> String {
    looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// What there is in place of what was looked for.
fn listed(kept: &[String], more: usize) -> String {
    let beyond = if more == 0 { String::new() } else { format!(", and {more} more") };
    match kept {
        [] => "there is none".to_owned(),
        kept => format!("there are {}{beyond}", kept.join(", ")),
    }
}
