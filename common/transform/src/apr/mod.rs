//! APR files of version 2, as `aprender` and the crate `apr-format` read them.
//!
//! Start at [`convert`]: what is said of the model (`metadata.rs`), what its tensors are (`form.rs`), and how that is laid out.

mod form;
mod metadata;
mod plan;
#[cfg(test)]
mod tests;

pub use plan::convert;

/// What sentences call the format.
const FORMAT: &str = "APR";
