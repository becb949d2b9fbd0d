//! The tensors of a blob: those of the checkpoint, or what they are encoded as.

use std::ops::Range;

use rayon::prelude::*;

use crate::anonymous::Memory;
use crate::catalog::{Checkpoint, Tensor};
use crate::container::Lies;
use crate::container::safetensors::writer::Entry;
use crate::dtype::Dtype;
use crate::encoding::{Affine, Encoding, FloatType, Part, PartSpec, Scheme, Sink, encode_into};
use crate::error::Error;
use crate::mapped::MappedTensor;
use crate::mapped_matrix::MappedMatrix;

/// Weights encoded at once: what is read of them, and what they are widened to, fits a core's cache.
const PIECE_WEIGHTS: usize = 16 << 10;

/// One tensor of a blob.
#[derive(Clone, Debug)]
pub struct BlobTensor<'a> {
    /// Name in the blob.
    pub name: String,
    /// Element type in the blob.
    pub dtype: Dtype,
    /// Dimensions in the blob, outermost first.
    pub shape: Vec<u64>,
    /// Size in the blob.
    pub bytes: u64,
    /// How the matrix is stored whose weight this is; `None` for every other tensor.
    pub encoding: Option<Encoding>,
    /// What it is made from.
    source: &'a Tensor,
    /// How, if it is not copied.
    recipe: Option<(Recipe, Part)>,
}

/// How a matrix of plain numbers is packed.
#[derive(Clone, Copy, Debug)]
struct Recipe {
    format: Affine,
    /// Element type of the matrix, and of its scales and biases.
    float: FloatType,
}

/// What tensors of a layer become: a matrix whose rows are whole groups becomes codes, scales and
/// biases (of the matrix's type) under the names that MLX gives them; all else stays.
pub fn encoded_tensors<'a>(tensors: &[&'a Tensor], encoding: Scheme) -> Vec<BlobTensor<'a>> {
    let format = encoding.of_layers();
    tensors.iter().flat_map(|tensor| encoded(tensor, format)).collect()
}

/// Bytes of what a tensor becomes.
pub(crate) fn encoded_bytes(source: &Tensor, format: Option<Affine>) -> u64 {
    encoded(source, format).iter().map(|tensor| tensor.bytes).sum()
}

/// The tensors that one becomes.
fn encoded(source: &Tensor, format: Option<Affine>) -> Vec<BlobTensor<'_>> {
    match format.and_then(|format| packable(source, format)) {
        None => vec![BlobTensor {
            name: source.name.clone(),
            dtype: source.dtype,
            shape: source.shape.clone(),
            bytes: source.bytes,
            encoding: source.encoding,
            source,
            recipe: None,
        }],
        Some((recipe, module, parts)) => {
            let made = |spec: PartSpec| {
                let dtype = spec.dtype(recipe.float.dtype());
                let bytes = dtype.tensor_bytes(&spec.shape);
                BlobTensor {
                    name: format!("{module}{}", spec.part.ending()),
                    dtype,
                    shape: spec.shape,
                    bytes: bytes.expect("smaller than the tensor it is made from"),
                    encoding: (spec.part == Part::Weight).then_some(recipe.encoding()),
                    source,
                    recipe: Some((recipe, spec.part)),
                }
            };
            parts.into_iter().map(made).collect()
        }
    }
}

/// How to pack a matrix of plain numbers, the path of its module, and what it becomes; `None` for what
/// stays as it is.
fn packable(source: &Tensor, format: Affine) -> Option<(Recipe, &str, Vec<PartSpec>)> {
    let Some(Encoding::Float(float)) = source.encoding else { return None };
    let module = source.name.strip_suffix(Part::Weight.ending())?;
    let &[rows, columns] = &source.shape[..] else { return None };
    let recipe = Recipe { format, float };
    let parts = recipe.encoding().parts([rows, columns])?;
    Some((recipe, module, parts))
}

impl BlobTensor<'_> {
    pub(crate) fn entry(&self) -> Entry<'_> {
        let BlobTensor { name, dtype, shape, bytes, .. } = self;
        Entry { name, dtype: *dtype, shape, bytes: *bytes }
    }

    /// Fills `buffer` with the tensor's bytes from `offset` on. What must be encoded is encoded on all
    /// cores, in small pieces: nothing is kept from one call to the next.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] past the end, [`Error::Io`], and [`Error::Encode`] for weights that cannot
    /// be packed.
    pub(crate) fn read(
        &self,
        checkpoint: &Checkpoint,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let Some((recipe, part)) = self.recipe else {
            return checkpoint.read_at(self.source, offset, buffer);
        };
        let end = offset.saturating_add(buffer.len() as u64);
        if end > self.bytes {
            let what = format!("tensor {:?}", self.name);
            return Err(Error::OutOfRange { what, offset, end, bytes: self.bytes });
        }
        let pieces = pieces(offset, buffer, recipe.part_bytes(part), recipe.format);
        let origin = Origin::of(checkpoint, self.source, recipe, &pieces)?;
        pieces.into_par_iter().try_for_each_init(Scratch::default, |scratch, piece| {
            let Piece { groups, skip, out } = piece;
            let weights = scratch.weights(&origin, recipe, groups.clone())?;
            let bytes = groups.len() * recipe.part_bytes(part);
            if out.len() == bytes {
                return recipe.encode(self.source, groups.start, weights, recipe.sink(part, out));
            }
            let mut whole = vec![0; bytes];
            recipe.encode(self.source, groups.start, weights, recipe.sink(part, &mut whole))?;
            out.copy_from_slice(&whole[skip..skip + out.len()]);
            Ok(())
        })
    }
}

/// Encodes a whole matrix into memory; `None` if it stays as it is.
///
/// # Errors
/// [`Error::Io`], [`Error::Memory`], and [`Error::Encode`] for weights that cannot be packed.
pub(crate) fn encode_matrix(
    checkpoint: &Checkpoint,
    source: &Tensor,
    format: Affine,
) -> Result<Option<MappedMatrix>, Error> {
    let Some((recipe, _, specs)) = packable(source, format) else {
        return Ok(None);
    };
    let groups = (source.bytes / recipe.float.bytes() as u64) as usize / format.group();
    let (code_bytes, param_bytes) = (format.group_bytes(), recipe.float.bytes());
    let refused = |bytes: usize| move |cause| Error::memory(&source.name, bytes, cause);
    let memory = |bytes: usize| Memory::zeroed(bytes).map_err(refused(bytes));
    let (mut codes, mut scales) = (memory(groups * code_bytes)?, memory(groups * param_bytes)?);
    let mut biases = memory(groups * param_bytes)?;
    let step = PIECE_WEIGHTS / format.group();
    let origin = Origin { checkpoint, source, gathered: None };
    codes
        .par_chunks_mut(step * code_bytes)
        .zip(scales.par_chunks_mut(step * param_bytes))
        .zip(biases.par_chunks_mut(step * param_bytes))
        .enumerate()
        .try_for_each_init(Scratch::default, |scratch, (index, ((codes, scales), biases))| {
            let start = index * step;
            let range = start..start + codes.len() / code_bytes;
            let weights = scratch.weights(&origin, recipe, range)?;
            let sink = Sink { codes: Some(codes), scales: Some(scales), biases: Some(biases) };
            recipe.encode(source, start, weights, sink)
        })?;
    let tensor = |(memory, spec): (Memory, PartSpec)| {
        let (bytes, dtype) = (memory.len(), spec.dtype(source.dtype));
        MappedTensor::from_memory(memory, dtype, spec.shape).map_err(refused(bytes))
    };
    let parts = [codes, scales, biases].into_iter().zip(specs).map(tensor);
    Ok(Some(MappedMatrix { encoding: recipe.encoding(), parts: parts.collect::<Result<_, _>>()? }))
}

impl Recipe {
    /// What comes of it.
    fn encoding(self) -> Encoding {
        Encoding::Affine(self.format)
    }

    /// Bytes of one part of one group.
    fn part_bytes(self, part: Part) -> usize {
        match part {
            Part::Weight => self.format.group_bytes(),
            Part::Scales | Part::Biases | Part::Zeros | Part::Global | Part::Groups => {
                self.float.bytes()
            }
        }
    }

    /// Only that part.
    fn sink(self, part: Part, out: &mut [u8]) -> Sink<'_> {
        match part {
            Part::Weight => Sink { codes: Some(out), ..Sink::default() },
            Part::Scales => Sink { scales: Some(out), ..Sink::default() },
            Part::Biases => Sink { biases: Some(out), ..Sink::default() },
            Part::Zeros | Part::Global | Part::Groups => {
                unreachable!("affine weights have no such part")
            }
        }
    }

    /// Encodes weights that begin with the group `first` of `source`.
    fn encode(
        self,
        source: &Tensor,
        first: usize,
        weights: &[f32],
        sink: Sink<'_>,
    ) -> Result<(), Error> {
        encode_into(weights, self.format, self.float, sink).map_err(|cause| Error::Encode {
            tensor: source.name.clone(),
            cause: cause.after(first * self.format.group()),
        })
    }
}

/// Where weights are read before they are encoded.
struct Origin<'a> {
    checkpoint: &'a Checkpoint,
    source: &'a Tensor,
    /// Of a matrix whose numbers lie apart, what all pieces need of it, and where that begins: a column is no piece's alone.
    gathered: Option<(u64, Vec<u8>)>,
}

impl<'a> Origin<'a> {
    /// That of these pieces, which follow each other: of a matrix whose numbers lie apart, up to 64 times as many bytes as are
    /// asked for are held, and no more than it has.
    fn of(
        checkpoint: &'a Checkpoint,
        source: &'a Tensor,
        recipe: Recipe,
        pieces: &[Piece<'_>],
    ) -> Result<Self, Error> {
        let mut gathered = None;
        if let (Lies::Apart(_), [first, ..], [.., last]) = (source.lies, pieces, pieces) {
            let group = (recipe.format.group() * recipe.float.bytes()) as u64;
            let start = first.groups.start as u64 * group;
            let end = (last.groups.end as u64 * group).min(source.bytes);
            let mut bytes = vec![0; end.saturating_sub(start) as usize];
            checkpoint.read_at(source, start, &mut bytes)?;
            gathered = Some((start, bytes));
        }
        Ok(Self { checkpoint, source, gathered })
    }

    /// Fills `buffer` from the matrix's bytes, beginning `offset` into it.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let Some((start, bytes)) = &self.gathered else {
            return self.checkpoint.read_at(self.source, offset, buffer);
        };
        // All pieces' groups were gathered, and each is inside the matrix.
        buffer.copy_from_slice(&bytes[(offset - start) as usize..][..buffer.len()]);
        Ok(())
    }
}

/// What is read and widened before it is encoded, used again from piece to piece.
#[derive(Default)]
struct Scratch {
    bytes: Vec<u8>,
    weights: Vec<f32>,
}

impl Scratch {
    /// The weights of those groups.
    fn weights(
        &mut self,
        origin: &Origin<'_>,
        recipe: Recipe,
        groups: Range<usize>,
    ) -> Result<&[f32], Error> {
        let count = groups.len() * recipe.format.group();
        self.bytes.resize(count * recipe.float.bytes(), 0);
        self.weights.resize(count, 0.0);
        let start = groups.start * recipe.format.group() * recipe.float.bytes();
        origin.read(start as u64, &mut self.bytes)?;
        recipe.float.widen(&self.bytes, &mut self.weights);
        Ok(&self.weights)
    }
}

/// Part of a buffer, and the groups of which it holds bytes.
struct Piece<'a> {
    groups: Range<usize>,
    /// Bytes of the first group that come before those asked for.
    skip: usize,
    out: &'a mut [u8],
}

/// Cuts a read from `offset` on, of a part with `unit` bytes per group, into pieces of bounded size.
fn pieces(offset: u64, mut buffer: &mut [u8], unit: usize, format: Affine) -> Vec<Piece<'_>> {
    let step = PIECE_WEIGHTS / format.group();
    let mut group = (offset / unit as u64) as usize; // Within a file on this machine.
    let mut skip = (offset % unit as u64) as usize;
    let mut pieces = Vec::with_capacity(buffer.len() / (step * unit) + 2);
    while !buffer.is_empty() {
        let length = (step * unit - skip).min(buffer.len());
        let (out, rest) = buffer.split_at_mut(length);
        let groups = group..group + (skip + length).div_ceil(unit);
        group += step;
        pieces.push(Piece { groups, skip, out });
        (buffer, skip) = (rest, 0);
    }
    pieces
}
