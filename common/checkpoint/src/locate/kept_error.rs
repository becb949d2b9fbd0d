//! Why a model that another program keeps cannot be used.

use std::io;
use std::path::PathBuf;

/// Longest manifest read: they list a handful of layers.
pub(super) const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// The kinds of layers that are weights.
pub(super) const MODEL: &str = "application/vnd.ollama.image.model";
pub(super) const ADAPTER: &str = "application/vnd.ollama.image.adapter";

/// Why a model that another program keeps cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum KeptError {
    #[error("several models are called {name:?}; name one of them: {}", names.join(", "))]
    Several { name: String, names: Vec<String> },
    #[error("{}: this manifest of Ollama's gives no model: {cause}", path.display())]
    Manifest { path: PathBuf, cause: OllamaError },
    #[error("could not read {}: {cause}", path.display())]
    Unreadable { path: PathBuf, cause: io::Error },
}

/// Why a manifest says of no GGUF file that it is the model.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum OllamaError {
    #[error("it has {bytes} bytes, more than {MAX_MANIFEST_BYTES}")]
    TooLong { bytes: u64 },
    #[error("it is not the JSON of a manifest (line {line}, column {column})")]
    Json { line: usize, column: usize },
    #[error(
        "it lists {found} GGUF files (layers of {MODEL}), expected one; safetensors of Ollama's are not read"
    )]
    Models { found: usize },
    #[error(
        "it changes the model's weights by an adapter (a layer of {ADAPTER}), which is not supported"
    )]
    Adapter,
    #[error("expected sha256: and 64 hexadecimal digits for the model, found {digest:?}")]
    Digest { digest: String },
    #[error("the model's file {} is missing; `ollama pull` fetches it", blob.display())]
    NoBlob { blob: PathBuf },
    #[error("the model's file {} has {found} bytes, expected {expected}", blob.display())]
    BlobBytes { blob: PathBuf, expected: u64, found: u64 },
}
