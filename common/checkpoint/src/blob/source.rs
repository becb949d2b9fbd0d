//! Layers of a checkpoint as the bytes of a blob, without holding them.

use std::io::Write;

use super::manifest::chunk_ends;
use super::{BlobTensor, CHUNK_BYTES, Digest, Manifest, TensorEntry, encoded_tensors};
use crate::catalog::Checkpoint;
use crate::container::safetensors::writer::{Entry, header_bytes};
use crate::encoding::Scheme;
use crate::error::Error;
use crate::range::LayerRange;

/// One layer (or a range of them) of a checkpoint, readable at any position as a blob file.
///
/// Nothing is copied: every read goes to the checkpoint file at the right place, and what is encoded is encoded for that read.
/// Of what is encoded, the scales and biases that come beside the codes stay as long as this does, those of all blobs of a
/// checkpoint in 32 MiB: memory does not grow with the layer.
#[derive(Debug)]
pub struct BlobSource<'a> {
    checkpoint: &'a Checkpoint,
    /// In blob order.
    tensors: Vec<BlobTensor<'a>>,
    header: Vec<u8>,
    /// Where each tensor starts in the blob file.
    starts: Vec<u64>,
    file_bytes: u64,
}

impl<'a> BlobSource<'a> {
    /// The blob of one layer. A layer the model does not have gives a blob without tensors.
    pub fn new(checkpoint: &'a Checkpoint, layer: usize) -> BlobSource<'a> {
        BlobSource::encoded(checkpoint, layer, Scheme::AsStored)
    }

    /// The blob of one layer in that encoding; see [`encoded_tensors`].
    pub fn encoded(checkpoint: &'a Checkpoint, layer: usize, encoding: Scheme) -> BlobSource<'a> {
        let tensors = encoded_tensors(checkpoint, &checkpoint.layer_tensors(layer), encoding);
        BlobSource::of_tensors(checkpoint, tensors)
    }

    /// A file with the tensors of several layers, in blob order and ready to be written.
    pub fn of_layers(checkpoint: &'a Checkpoint, layers: LayerRange) -> BlobSource<'a> {
        let known = layers.start..layers.end.min(checkpoint.config.layers.len());
        let layers: Vec<_> = known.flat_map(|layer| checkpoint.layer_tensors(layer)).collect();
        let tensors = encoded_tensors(checkpoint, &layers, Scheme::AsStored);
        BlobSource::of_tensors(checkpoint, tensors)
    }

    fn of_tensors(checkpoint: &'a Checkpoint, mut tensors: Vec<BlobTensor<'a>>) -> BlobSource<'a> {
        tensors.sort_by(|a, b| a.entry().order().cmp(&b.entry().order()));
        let entries: Vec<Entry<'_>> = tensors.iter().map(|tensor| tensor.entry()).collect();
        let header = header_bytes(&entries);
        let mut end = header.len() as u64;
        let starts = tensors
            .iter()
            .map(|tensor| {
                let start = end;
                end += tensor.bytes; // Fits: each is part of a file on this machine.
                start
            })
            .collect();
        BlobSource { checkpoint, tensors, header, starts, file_bytes: end }
    }

    /// The tensors of the blob file, in its order.
    pub fn tensors(&self) -> &[BlobTensor<'a>] {
        &self.tensors
    }

    /// Length of what comes before the first tensor.
    pub fn header_bytes(&self) -> u64 {
        self.header.len() as u64
    }

    /// Length of the blob file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Fills `buffer` with the bytes of the blob file from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] past the end; [`Error::Io`] if the checkpoint cannot be read;
    /// [`Error::Encode`] for weights that cannot be encoded.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let end = offset.saturating_add(buffer.len() as u64);
        if end > self.file_bytes {
            let what = "a blob".to_owned();
            return Err(Error::OutOfRange { what, offset, end, bytes: self.file_bytes });
        }
        let mut rest = buffer;
        let mut position = offset;
        let skipped = usize::try_from(position).unwrap_or(usize::MAX);
        let header_left = self.header.get(skipped..).unwrap_or_default();
        let (head, tail) = rest.split_at_mut(header_left.len().min(rest.len()));
        head.copy_from_slice(&header_left[..head.len()]);
        position += head.len() as u64;
        rest = tail;
        // The last tensor that starts at or before the position; empty ones are passed over.
        let mut index = self.starts.partition_point(|&start| start <= position).saturating_sub(1);
        while !rest.is_empty() {
            let (tensor, inside) = (&self.tensors[index], position - self.starts[index]);
            let piece = (tensor.bytes - inside).min(rest.len() as u64) as usize;
            let (head, tail) = rest.split_at_mut(piece);
            tensor.read(self.checkpoint, inside, head)?;
            position += piece as u64;
            rest = tail;
            index += 1;
        }
        Ok(())
    }

    /// Reads the blob once, chunk by chunk, and describes it.
    ///
    /// # Errors
    /// As [`BlobSource::read`].
    pub fn manifest(&self) -> Result<Manifest, Error> {
        let mut chunks = Vec::new();
        self.for_each_chunk(|chunk| {
            chunks.push(Digest::of(chunk));
            Ok(())
        })?;
        let tensors = self.tensors.iter().map(|tensor| TensorEntry {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            encoding: tensor.encoding,
        });
        Ok(Manifest { tensors: tensors.collect(), file_bytes: self.file_bytes, chunks })
    }

    /// Writes the whole blob file to `out`, in pieces of at most a MiB.
    ///
    /// # Errors
    /// As [`BlobSource::read`], and [`Error::Write`].
    pub fn write_to(&self, out: &mut dyn Write) -> Result<(), Error> {
        self.for_each_chunk(|chunk| out.write_all(chunk).map_err(Error::Write))
    }

    fn for_each_chunk(
        &self,
        mut visit: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut buffer = vec![0; CHUNK_BYTES.min(self.file_bytes) as usize];
        let header = 0..self.header.len() as u64;
        let tensors = self.tensors.iter().zip(&self.starts);
        let parts = tensors.map(|(tensor, &start)| start..start + tensor.bytes);
        let mut offset = 0;
        for end in std::iter::once(header).chain(parts).flat_map(chunk_ends) {
            let chunk = &mut buffer[..(end - offset) as usize]; // At most a chunk.
            self.read(offset, chunk)?;
            visit(chunk)?;
            offset = end;
        }
        Ok(())
    }
}
