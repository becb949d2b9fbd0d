//! The numbers of the format, and the bounds of what is read of it.

/// First bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Longest beginning accepted, inclusive, as much as headers of other formats may have: the longest vocabularies take some 15 MB.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Most tensors of one file; the largest checkpoints have about 90,000, their experts each by itself.
pub(super) const MAX_TENSORS: u64 = 500_000;
/// Most keys; files have some fifty.
pub(super) const MAX_KEYS: u64 = 65_536;
/// Most items of a list: the largest vocabularies have a quarter of a million tokens, and twice as many merges.
pub(super) const MAX_ITEMS: u64 = 1 << 22;
/// Most items of all lists.
pub(super) const MAX_ALL_ITEMS: usize = 1 << 23;
/// Longest key, in bytes: the format's own limit. Those of real files have some fifty.
pub(super) const MAX_KEY_BYTES: u64 = 65_535;
/// Longest name of a tensor, in bytes: the format's own limit.
pub(super) const MAX_NAME_BYTES: usize = 63;
/// Most dimensions of a tensor: the format's own limit.
pub(super) const MAX_RANK: u32 = 4;
/// Fewest bytes of a key with its value,
pub(super) const LEAST_KEY_BYTES: u64 = 14;
/// and of what is said of a tensor.
pub(super) const LEAST_TENSOR_BYTES: u64 = 33;
/// Where the file says what tensors start at multiples of.
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
/// What they start at multiples of where it does not.
pub(super) const ALIGNMENT: u64 = 32;
