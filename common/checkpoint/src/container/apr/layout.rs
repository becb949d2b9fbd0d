//! How an APR file is laid out: the numbers that who reads and who writes one share.

use crc32fast::Hasher;

/// First bytes of a file.
pub const MAGIC: [u8; 4] = *b"APR\0";
/// The version of the layout.
pub const MAJOR_VERSION: u8 = 2;
/// Bytes of the header.
pub const HEADER_BYTES: u64 = 64;
/// Sections and tensors start at a multiple of this, and are filled up with zeros to one.
pub const ALIGNMENT: u64 = 64;
/// Bytes of the checksum that ends a file.
pub const FOOTER_BYTES: u64 = 4;
/// Longest metadata accepted, inclusive: the format's own limit. Stops a hostile length from allocating.
pub const MAX_METADATA_BYTES: u32 = 16 << 20;
/// Longest index accepted: as much as headers of other formats may have.
pub const MAX_INDEX_BYTES: u64 = 100_000_000;
/// Most tensors accepted in one file; the largest checkpoints have about 90,000 in all.
pub const MAX_TENSORS: u32 = 500_000;
/// Longest name of a tensor, in bytes: the format's writers cut longer ones.
pub const MAX_NAME_BYTES: usize = 256;
/// Most dimensions: the format's writers cut more.
pub const MAX_RANK: usize = 8;

/// Where the header's numbers stand in it: the checksum covers all of it but itself.
pub const CHECKSUM_AT: usize = 40;
/// First byte after the checksum.
pub const CHECKSUM_END: usize = 44;

/// What a file is, as bits of the header's flags.
pub mod flags {
    /// Data are compressed by LZ4.
    pub const LZ4: u16 = 0x1;
    /// Data are compressed by Zstandard.
    pub const ZSTD: u16 = 0x2;
    /// Data are encrypted.
    pub const ENCRYPTED: u16 = 0x4;
    /// Somebody signed the file.
    pub const SIGNED: u16 = 0x8;
    /// The file is one of several.
    pub const SHARDED: u16 = 0x10;
    /// Some tensors are stored as codes.
    pub const QUANTIZED: u16 = 0x20;
    /// There is a filter bank, for models of speech.
    pub const FILTERBANK: u16 = 0x40;
    /// The metadata have a model card.
    pub const MODEL_CARD: u16 = 0x80;
    /// The file was written tensor by tensor.
    pub const STREAMING: u16 = 0x100;
    /// The metadata have a vocabulary.
    pub const VOCABULARY: u16 = 0x200;
    /// Matrices lie row by row. Writers always say so.
    pub const ROW_MAJOR: u16 = 0x400;
    /// Matrices lie column by column. Readers refuse that.
    pub const COLUMN_MAJOR: u16 = 0x800;
    /// Every flag that there is.
    pub const ALL: u16 = 0xfff;
}

/// That many bytes with the zeros behind them; `None` if there are not so many.
pub fn aligned(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

/// The checksum (CRC-32 of IEEE 802.3) of a header, whose own four bytes do not count.
pub fn header_checksum(header: &[u8; HEADER_BYTES as usize]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&header[..CHECKSUM_AT]);
    hasher.update(&header[CHECKSUM_END..]);
    hasher.finalize()
}
