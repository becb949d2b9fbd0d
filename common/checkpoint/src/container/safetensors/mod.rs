//! The safetensors container: reading headers, writing them, and the index over several files.

pub mod header;
pub mod index;
#[cfg(test)]
mod malformed;
pub mod writer;
