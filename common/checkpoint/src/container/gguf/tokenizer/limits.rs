//! How much of a vocabulary is read.

/// Most tokens: four times as many as the largest vocabularies in use have.
pub(super) const MAX_TOKENS: usize = 1 << 20;
/// Longest text of a token: the longest in use, 128 spaces in three bytes each, have a third of that.
pub(super) const MAX_TOKEN_BYTES: usize = 1024;
/// Most bytes of the texts of a list together; the largest vocabularies in use have less than 10 MiB.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 20;
/// Most pairs of pieces that become one; the largest vocabularies in use have half a million.
pub(super) const MAX_MERGES: usize = 1 << 22;
/// Most that the squares of the lengths of scored pieces add up to (bytes, squared): what cutting them at every place takes.
pub(super) const MAX_WORK: u64 = 1 << 30;
