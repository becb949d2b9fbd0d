//! The APR container, version 2: a model in one file, which `aprender` and the crate `apr-format` read and write.
//!
//! ```text
//! 0         64                                                                          end - 4    end
//! | header  | metadata, JSON | index: names, types, shapes, places | data, tensor by tensor | footer |
//! ```
//!
//! Every section and every tensor starts at a multiple of 64. The header has a checksum of itself, the footer one of all bytes
//! before it: opening a file checks the first and gives the second ([`Checksum`](super::Checksum)), for whoever reads
//! everything.

mod config;
mod error;
mod footer;
mod format;
mod head;
mod header;
mod index;
mod kind;
pub mod layout;
#[cfg(test)]
mod malformed;
mod metadata;
mod places;
#[cfg(test)]
mod tests;
mod texts;
mod tokenizer;

pub use error::AprError;
pub use format::Apr;
pub use head::Head;
pub use header::Header;
pub use index::TensorInfo;
pub use kind::{KINDS, Kind};
pub use layout::{
    ALIGNMENT, FOOTER_BYTES, HEADER_BYTES, MAGIC, MAJOR_VERSION, MAX_METADATA_BYTES,
    MAX_NAME_BYTES, MAX_RANK, aligned, header_checksum,
};
pub use texts::TEXT_KEYS;
