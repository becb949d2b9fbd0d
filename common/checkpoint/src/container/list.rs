//! The list of containers.

use std::path::Path;

use super::apr::Apr;
use super::format::Container;
use super::gguf::Gguf;
use super::safetensors::Safetensors;

/// Every container; the first that recognises what it is given opens it. Safetensors takes every directory, and comes
/// last.
pub static CONTAINERS: &[&dyn Container] = &[&Apr, &Gguf, &Safetensors];

/// The container of what lies at `path`; `None` if it is of no format that is read.
pub fn recognise(path: &Path) -> Option<&'static dyn Container> {
    CONTAINERS.iter().copied().find(|container| container.recognise(path))
}
