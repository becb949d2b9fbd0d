//! Why no checkpoint was found.

use std::path::PathBuf;

/// Why no checkpoint was found. Each sentence says where was looked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum LocateError {
    #[error(
        "no checkpoint {model:?}: looked for {}; give a directory with config.json and safetensors files, a .safetensors, .gguf or .apr file, or org/name of a model in the local Hub cache{}",
        paths(looked),
        pull_hint(model, *is_of_hub)
    )]
    NotFound { model: String, looked: Vec<PathBuf>, is_of_hub: bool },
    #[error("{}: {found} is not a checkpoint; expected a directory, a .safetensors, .index.json, .gguf or .apr file", path.display())]
    UnsupportedFile { path: PathBuf, found: &'static str },
    #[error("{}: the Hub cache knows this model but holds no snapshot of {}; `cake-master pull` downloads it", path.display(), revision.as_deref().unwrap_or("it"))]
    NoSnapshot { path: PathBuf, revision: Option<String> },
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
