//! Why no checkpoint was found.

use std::path::PathBuf;

/// Why no checkpoint was found. Each sentence says where was looked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum LocateError {
    #[error(
        "no checkpoint {model:?}: looked for {}; give a directory with config.json and safetensors files, a .safetensors or .apr file, or org/name of a model in the local Hub cache",
        paths(looked)
    )]
    NotFound { model: String, looked: Vec<PathBuf> },
    #[error("{}: {found} is not a checkpoint; expected a directory, a .safetensors, .index.json or .apr file", path.display())]
    UnsupportedFile { path: PathBuf, found: &'static str },
    #[error("{}: the Hub cache knows this model but holds no snapshot of it; download it again", path.display())]
    NoSnapshot { path: PathBuf },
}

fn paths(looked: &[PathBuf]) -> String {
    looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
