//! What a blob holds: its tensors, and digests of every MiB of each.

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{CHUNK_BYTES, Digest, Hasher};
use crate::container::safetensors::writer::{Entry, header_bytes};
use crate::dtype::{Dtype, SizeError};
use crate::encoding::Encoding;

/// Longest manifest accepted. A layer of 24 GiB, the largest in use, has 2 MiB of chunk digests.
pub const MAX_MANIFEST_BYTES: usize = 16 << 20;
/// Most tensors accepted in one blob; a layer with 256 experts in 8 bits has 1558.
pub const MAX_BLOB_TENSORS: usize = 65_536;
/// Most dimensions accepted; the largest in use is 4.
const MAX_RANK: usize = 16;
/// First bytes of what a blob's name is the digest of; the number changes with the layout.
const NAME_DOMAIN: &[u8] = b"cake blob 3\n";
/// The same of the layout before, whose manifests had no encodings.
const FORMER_NAME_DOMAIN: &[u8] = b"cake blob 2\n";
/// First bytes of what the digest of a tensor of several chunks is the digest of.
const TENSOR_DOMAIN: &[u8] = b"cake tensor 1\n";

/// One tensor of a blob.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// Name as in the checkpoint.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// How the matrix is stored whose weight this is; `None` for every other tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
}

/// Everything about a blob except its bytes, and enough to check each of them.
///
/// One built here or accepted by [`Manifest::from_json`] is consistent: sizes fit, tensors are in
/// blob order, and `file_bytes` and the number of chunks follow from the tensors.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The tensors, in blob order.
    pub tensors: Vec<TensorEntry>,
    /// Length of the whole blob file, header included.
    pub file_bytes: u64,
    /// Digest of each chunk, in file order. The header and each tensor are cut into chunks apart,
    /// after every [`CHUNK_BYTES`]; the last of each may be shorter.
    pub chunks: Vec<Digest>,
}

/// Why bytes are not a manifest.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum ManifestError {
    #[error("manifest of {bytes} bytes is longer than {MAX_MANIFEST_BYTES}")]
    TooLarge { bytes: usize },
    #[error("manifest is not valid: {0}")]
    Json(serde_json::Error),
    #[error("manifest lists {tensors} tensors, more than {MAX_BLOB_TENSORS}")]
    TooManyTensors { tensors: usize },
    #[error("manifest: tensor {tensor:?} has {dimensions} dimensions, more than {MAX_RANK}")]
    TooManyDimensions { tensor: String, dimensions: usize },
    #[error("manifest: tensor {tensor:?} of {dtype} {shape:?} has no size: {cause}")]
    Size { tensor: String, dtype: Dtype, shape: Vec<u64>, cause: SizeError },
    #[error("manifest: tensor {tensor:?} appears twice")]
    DuplicateTensor { tensor: String },
    #[error("manifest: no tensor may be called {tensor:?}")]
    ReservedName { tensor: String },
    #[error("manifest: tensor {tensor:?} is out of blob order")]
    OutOfOrder { tensor: String },
    #[error("manifest says the file has {found} bytes; its tensors make {expected}")]
    WrongFileBytes { expected: u64, found: u64 },
    #[error("manifest has {found} chunk digests; its header and tensors need {expected}")]
    WrongChunkCount { expected: u64, found: u64 },
}

impl Manifest {
    /// The blob's name: the digest of everything in the manifest. Equal content, equal name.
    pub fn name(&self) -> Digest {
        self.named(NAME_DOMAIN, &self.tensors)
    }

    /// What the blob was called before its manifest said how matrices are stored. Nobody asks for blobs by such names
    /// any more.
    pub fn former_name(&self) -> Digest {
        self.named(FORMER_NAME_DOMAIN, &[])
    }

    /// A name that covers the encodings of `tagged`.
    fn named(&self, domain: &[u8], tagged: &[TensorEntry]) -> Digest {
        let mut hasher = Hasher::default();
        hasher.update(domain);
        hasher.update(&self.header()); // Carries its own length, and names, types, shapes and order.
        for tensor in tagged {
            let encoding = tensor.encoding.map(|encoding| encoding.to_string());
            hasher.update(encoding.unwrap_or_default().as_bytes());
            hasher.update(b"\n"); // Is in no tag.
        }
        for chunk in &self.chunks {
            hasher.update(chunk.as_bytes());
        }
        hasher.finish()
    }

    /// As JSON text.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers always serialise")
    }

    /// Reads and checks a manifest from a peer or a disk.
    ///
    /// # Errors
    /// [`ManifestError`] when it is too large, malformed, or contradicts itself.
    pub fn from_json(json: &[u8]) -> Result<Manifest, ManifestError> {
        if json.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge { bytes: json.len() });
        }
        let manifest: Manifest = serde_json::from_slice(json).map_err(ManifestError::Json)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks that the manifest does not contradict itself.
    ///
    /// # Errors
    /// [`ManifestError`], naming the contradiction.
    pub fn check(&self) -> Result<(), ManifestError> {
        if self.tensors.len() > MAX_BLOB_TENSORS {
            return Err(ManifestError::TooManyTensors { tensors: self.tensors.len() });
        }
        let mut names = HashSet::new();
        let mut data_bytes = 0u64;
        for tensor in &self.tensors {
            let name = || tensor.name.clone();
            if tensor.shape.len() > MAX_RANK {
                let dimensions = tensor.shape.len();
                return Err(ManifestError::TooManyDimensions { tensor: name(), dimensions });
            }
            if tensor.name == "__metadata__" {
                return Err(ManifestError::ReservedName { tensor: name() });
            }
            if !names.insert(tensor.name.as_str()) {
                return Err(ManifestError::DuplicateTensor { tensor: name() });
            }
            let size_error = |cause| ManifestError::Size {
                tensor: name(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                cause,
            };
            let bytes = tensor.dtype.tensor_bytes(&tensor.shape).map_err(size_error)?;
            data_bytes = data_bytes
                .checked_add(bytes)
                .filter(|&sum| sum <= u64::MAX >> 1) // Leaves room for the header and for rounding.
                .ok_or_else(|| size_error(SizeError::Overflow))?;
        }
        let entries = self.entries();
        let sorted = |pair: &[Entry<'_>]| pair[0].order() < pair[1].order();
        if let Some(pair) = entries.windows(2).find(|pair| !sorted(pair)) {
            return Err(ManifestError::OutOfOrder { tensor: pair[1].name.to_owned() });
        }
        let expected = header_bytes(&entries).len() as u64 + data_bytes;
        if self.file_bytes != expected {
            return Err(ManifestError::WrongFileBytes { expected, found: self.file_bytes });
        }
        let parts = std::iter::once(expected - data_bytes).chain(entries.iter().map(|e| e.bytes));
        let expected = parts.map(|bytes| bytes.div_ceil(CHUNK_BYTES)).sum();
        let found = self.chunks.len() as u64;
        if found != expected {
            return Err(ManifestError::WrongChunkCount { expected, found });
        }
        Ok(())
    }

    /// The first bytes of the blob file, up to its data; their number is a multiple of 64.
    pub fn header(&self) -> Vec<u8> {
        header_bytes(&self.entries())
    }

    /// Bytes of all its tensors: the file without its header.
    pub fn data_bytes(&self) -> u64 {
        self.entries().iter().map(|entry| entry.bytes).sum()
    }

    /// Where each tensor's bytes lie in the blob file, in the order of `tensors`.
    pub fn tensor_ranges(&self) -> Vec<Range<u64>> {
        let mut end = self.header().len() as u64;
        let range = |entry: &Entry<'_>| {
            let start = end;
            end = end.saturating_add(entry.bytes);
            start..end
        };
        self.entries().iter().map(range).collect()
    }

    /// Where each chunk ends in the blob file, in the order of `chunks`; it begins where the one
    /// before it ends.
    pub fn chunk_ends(&self) -> Vec<u64> {
        let header_bytes = self.header().len() as u64;
        let parts = std::iter::once(0..header_bytes).chain(self.tensor_ranges());
        // A manifest that nobody checked may have more bytes than digests: no more chunks then.
        parts.flat_map(chunk_ends).take(self.chunks.len()).collect()
    }

    /// A digest of each tensor's bytes, in the order of `tensors`: that of its chunk, or of the
    /// digests of its chunks if it has several or none. Equal bytes, equal digest, in every blob.
    pub fn tensor_digests(&self) -> Vec<Digest> {
        let header_bytes = self.header().len() as u64;
        let mut rest = self.chunks.iter().skip(header_bytes.div_ceil(CHUNK_BYTES) as usize);
        let of = |entry: &Entry<'_>| {
            let count = usize::try_from(entry.bytes.div_ceil(CHUNK_BYTES)).unwrap_or(usize::MAX);
            let chunks: Vec<&Digest> = rest.by_ref().take(count).collect();
            if let [only] = chunks[..] {
                return *only;
            }
            let mut hasher = Hasher::default();
            hasher.update(TENSOR_DOMAIN);
            chunks.iter().for_each(|chunk| hasher.update(chunk.as_bytes()));
            hasher.finish()
        };
        self.entries().iter().map(of).collect()
    }

    /// Each tensor with its size. A size that does not fit counts as 0, so that a manifest nobody
    /// checked gives a wrong header and never a panic.
    pub(crate) fn entries(&self) -> Vec<Entry<'_>> {
        let mut total = 0u64;
        let sized = |tensor: &TensorEntry| {
            let bytes = tensor.dtype.tensor_bytes(&tensor.shape).ok()?;
            total = total.checked_add(bytes)?;
            Some(bytes)
        };
        let sizes: Vec<u64> =
            self.tensors.iter().map(sized).map(Option::unwrap_or_default).collect();
        let entry = |(tensor, bytes)| {
            let TensorEntry { name, dtype, shape, .. }: &TensorEntry = tensor;
            Entry { name, dtype: *dtype, shape, bytes }
        };
        self.tensors.iter().zip(sizes).map(entry).collect()
    }
}

/// Where the chunks of one part of a blob file end.
pub(super) fn chunk_ends(part: Range<u64>) -> impl Iterator<Item = u64> {
    let count = (part.end - part.start).div_ceil(CHUNK_BYTES);
    let end = move |index: u64| part.start.saturating_add(index.saturating_mul(CHUNK_BYTES));
    (1..=count).map(move |index| part.end.min(end(index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dtype: Dtype, shape: &[u64]) -> TensorEntry {
        TensorEntry { name: name.into(), dtype, shape: shape.into(), encoding: None }
    }

    fn manifest(tensors: Vec<TensorEntry>) -> Manifest {
        let mut manifest = Manifest { tensors, file_bytes: 0, chunks: vec![] };
        let header_bytes = manifest.header().len() as u64;
        manifest.file_bytes = header_bytes + manifest.data_bytes();
        let tensors = manifest.tensor_ranges().into_iter().map(|range| range.end - range.start);
        let parts = std::iter::once(header_bytes).chain(tensors);
        let chunks: u64 = parts.map(|bytes| bytes.div_ceil(CHUNK_BYTES)).sum();
        manifest.chunks = (0..chunks).map(|i| Digest::of(&i.to_le_bytes())).collect();
        manifest
    }

    fn sample() -> Manifest {
        manifest(vec![
            tensor("w", Dtype::F32, &[1024, 300]),
            tensor("v", Dtype::BF16, &[32]),
            tensor("odd", Dtype::BF16, &[3]),
        ])
    }

    fn refusal(change: impl FnOnce(&mut Manifest)) -> ManifestError {
        let mut manifest = sample();
        change(&mut manifest);
        Manifest::from_json(&manifest.to_json()).unwrap_err()
    }

    #[test]
    fn round_trips_and_keeps_its_name() {
        let manifest = sample();
        let read = Manifest::from_json(&manifest.to_json()).unwrap();
        assert_eq!(read, manifest);
        assert_eq!(read.name(), manifest.name());
        assert_eq!(manifest.data_bytes(), 1024 * 300 * 4 + 64 + 6);
        let header = manifest.header().len() as u64;
        let w = header + 1024 * 300 * 4;
        let ends = [header, header + CHUNK_BYTES, w, w + 64, w + 64 + 6];
        assert_eq!(manifest.chunk_ends(), ends);
    }

    #[test]
    fn a_tensor_has_the_digest_of_its_chunk_or_of_its_chunks() {
        let manifest = sample();
        let digests = manifest.tensor_digests();
        assert_eq!(digests[1..], manifest.chunks[3..]);
        let mut hasher = Hasher::default();
        hasher.update(b"cake tensor 1\n");
        manifest.chunks[1..3].iter().for_each(|chunk| hasher.update(chunk.as_bytes()));
        assert_eq!(digests[0], hasher.finish());
    }

    #[test]
    fn tensors_about_as_large_as_chunks_are_cut_where_they_should_be() {
        let sizes = [
            2 * CHUNK_BYTES,
            CHUNK_BYTES,
            CHUNK_BYTES + 1,
            CHUNK_BYTES - 1,
            2 * CHUNK_BYTES - 1,
            2 * CHUNK_BYTES + 1,
            0,
            1,
        ];
        let mut tensors: Vec<TensorEntry> =
            (0..).zip(sizes).map(|(i, n)| tensor(&i.to_string(), Dtype::U8, &[n])).collect();
        tensors.sort_by_key(|tensor| (tensor.shape[0] % 64 != 0, tensor.name.clone()));
        let manifest = manifest(tensors);
        manifest.check().unwrap();
        let mut expected = vec![manifest.header().len() as u64];
        let mut digests = Vec::new();
        for tensor in &manifest.tensors {
            let (start, mut left) = (expected.len(), tensor.shape[0]);
            while left > 0 {
                expected.push(expected[expected.len() - 1] + left.min(CHUNK_BYTES));
                left = left.saturating_sub(CHUNK_BYTES);
            }
            digests.push(match &manifest.chunks[start..expected.len()] {
                [only] => *only,
                several => {
                    let parts = several.iter().map(|chunk| chunk.as_bytes().as_slice());
                    let parts: Vec<&[u8]> =
                        std::iter::once(b"cake tensor 1\n".as_slice()).chain(parts).collect();
                    Digest::of(&parts.concat())
                }
            });
        }
        assert_eq!(manifest.chunk_ends(), expected);
        assert_eq!(manifest.tensor_digests(), digests);
    }

    #[test]
    fn a_header_of_several_chunks_is_cut_like_a_tensor() {
        let name = |index: u64| format!("model.layers.0.mlp.experts.{index:05}.{}", "n".repeat(60));
        let tensors = (0..9000).map(|index| tensor(&name(index), Dtype::U8, &[index % 3]));
        let mut tensors: Vec<TensorEntry> = tensors.collect();
        tensors.sort_by_key(|tensor| (tensor.shape[0] != 0, tensor.name.clone()));
        let manifest = manifest(tensors);
        let header_bytes = manifest.header().len() as u64;
        assert!(header_bytes > CHUNK_BYTES && header_bytes < 2 * CHUNK_BYTES, "{header_bytes}");
        assert_eq!(Manifest::from_json(&manifest.to_json()).unwrap(), manifest);

        // 3000 tensors without bytes, then 6000 of a chunk each.
        let mut expected = vec![CHUNK_BYTES, header_bytes];
        for tensor in &manifest.tensors[3000..] {
            expected.push(expected[expected.len() - 1] + tensor.shape[0]);
        }
        assert_eq!(manifest.chunk_ends(), expected);
        assert_eq!(expected.last(), Some(&manifest.file_bytes));
        let digests = manifest.tensor_digests();
        assert!(digests[..3000].iter().all(|digest| *digest == Digest::of(b"cake tensor 1\n")));
        assert_eq!(digests[3000..], manifest.chunks[2..]);

        let mut short = manifest;
        short.chunks.pop();
        let error = short.check().unwrap_err();
        assert!(matches!(error, ManifestError::WrongChunkCount { expected: 6002, found: 6001 }));
    }

    #[test]
    fn the_name_covers_everything() {
        let name = sample().name();
        let changes: [fn(&mut Manifest); 4] = [
            |m| m.tensors[2].dtype = Dtype::F16,
            |m| m.tensors[0].name = "x".into(),
            |m| m.tensors[0].shape = vec![300, 1024],
            |m| m.chunks[1] = Digest::of(b"y"),
        ];
        for change in changes {
            let mut other = sample();
            change(&mut other);
            assert_ne!(other.name(), name);
        }
    }

    #[test]
    fn rejects_contradictions() {
        use ManifestError::*;
        assert!(matches!(refusal(|m| m.file_bytes += 1), WrongFileBytes { .. }));
        assert!(matches!(refusal(|m| m.chunks.truncate(1)), WrongChunkCount { .. }));
        assert!(matches!(refusal(|m| m.tensors.swap(0, 2)), OutOfOrder { .. }));
        assert!(matches!(refusal(|m| m.tensors[1].name = "w".into()), DuplicateTensor { .. }));
        assert!(matches!(
            refusal(|m| m.tensors[1].name = "__metadata__".into()),
            ReservedName { .. }
        ));
        assert!(matches!(refusal(|m| m.tensors[0].shape = vec![1 << 63, 4]), Size { .. }));
        assert!(matches!(refusal(|m| m.tensors[0].shape = vec![1 << 60, 2]), Size { .. }));
        assert!(matches!(refusal(|m| m.tensors[0].shape = vec![1; 17]), TooManyDimensions { .. }));
        let many = |m: &mut Manifest| m.tensors = vec![m.tensors[0].clone(); MAX_BLOB_TENSORS + 1];
        assert!(matches!(refusal(many), TooManyTensors { .. }));
    }

    #[test]
    fn rejects_garbage_and_oversized_text() {
        for text in ["", "{}", "[]", "null", r#"{"tensors":[],"file_bytes":-1,"chunks":[]}"#] {
            assert!(matches!(Manifest::from_json(text.as_bytes()), Err(ManifestError::Json(_))));
        }
        let long = vec![b' '; MAX_MANIFEST_BYTES + 1];
        assert!(matches!(Manifest::from_json(&long), Err(ManifestError::TooLarge { .. })));
    }

    #[test]
    fn an_unchecked_manifest_never_panics() {
        let mut wild = Manifest {
            tensors: vec![
                tensor("a", Dtype::U64, &[u64::MAX, 2]),
                tensor("b", Dtype::U8, &[u64::MAX]),
                tensor("c", Dtype::U8, &[u64::MAX / 8]),
            ],
            file_bytes: u64::MAX,
            chunks: vec![],
        };
        let _ = (wild.header(), wild.name(), wild.data_bytes(), wild.check());
        assert_eq!((wild.chunk_ends().len(), wild.tensor_digests().len()), (0, 3));
        wild.chunks = vec![Digest::of(b"chunk"); 5];
        let header_bytes = wild.header().len() as u64;
        let expected: Vec<u64> = (0..5).map(|index| header_bytes + index * CHUNK_BYTES).collect();
        assert_eq!((wild.chunk_ends(), wild.tensor_digests().len()), (expected, 3));
        assert!(wild.check().is_err());
        // Its last chunk would end past what 64 bits count.
        let last = CHUNK_BYTES - 1;
        assert_eq!(chunk_ends(u64::MAX - last..u64::MAX).collect::<Vec<_>>(), [u64::MAX]);
    }
}
