//! The tensors of a blob: those of the checkpoint, or what they are encoded as.

use std::ops::Range;

use rayon::prelude::*;

use super::beside::Beside;
use crate::anonymous::Memory;
use crate::catalog::{Checkpoint, Tensor};
use crate::container::Lies;
use crate::container::safetensors::writer::Entry;
use crate::dtype::Dtype;
use crate::encoding::{Encoding, FloatType, Part, PartSpec, Scheme};
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
    made: Option<Made>,
}

/// How one part of what a matrix becomes is made.
#[derive(Clone, Debug)]
struct Made {
    recipe: Recipe,
    /// Which of the parts that come of it this is.
    part: usize,
    /// What is known of the parts beside the first, which all of them share.
    beside: Beside,
}

/// How a matrix of plain numbers is packed.
#[derive(Clone, Copy, Debug)]
struct Recipe {
    /// What comes of it.
    encoding: Encoding,
    /// Neighbours that are encoded together.
    group: usize,
    /// Element type of the matrix, and of what comes of it where there is a choice.
    float: FloatType,
}

/// What tensors of a layer become: a matrix whose rows are whole groups becomes the parts of what the scheme makes of it,
/// scales and biases of the matrix's type where there is a choice; all else stays.
pub fn encoded_tensors<'a>(
    checkpoint: &Checkpoint,
    tensors: &[&'a Tensor],
    scheme: Scheme,
) -> Vec<BlobTensor<'a>> {
    let made = |tensor: &&'a Tensor| encoded(tensor, checkpoint.becomes(&tensor.name, scheme));
    tensors.iter().flat_map(made).collect()
}

/// Bytes of what a tensor becomes.
pub(crate) fn encoded_bytes(source: &Tensor, to: Option<Encoding>) -> u64 {
    encoded(source, to).iter().map(|tensor| tensor.bytes).sum()
}

/// The tensors that one becomes.
fn encoded(source: &Tensor, to: Option<Encoding>) -> Vec<BlobTensor<'_>> {
    match to.and_then(|to| packable(source, to)) {
        None => vec![BlobTensor {
            name: source.name.clone(),
            dtype: source.dtype,
            shape: source.shape.clone(),
            bytes: source.bytes,
            encoding: source.encoding,
            source,
            made: None,
        }],
        Some((recipe, module, parts)) => {
            let beside = Beside::default();
            let made = |(part, spec): (usize, PartSpec)| {
                let dtype = spec.dtype(recipe.float.dtype());
                let bytes = dtype.tensor_bytes(&spec.shape);
                BlobTensor {
                    name: format!("{module}{}", spec.part.ending()),
                    dtype,
                    shape: spec.shape,
                    bytes: bytes.expect("smaller than the tensor it is made from"),
                    encoding: (spec.part == Part::Weight).then_some(recipe.encoding),
                    source,
                    made: Some(Made { recipe, part, beside: beside.clone() }),
                }
            };
            parts.into_iter().enumerate().map(made).collect()
        }
    }
}

/// Whether a tensor is a matrix of plain numbers that can become `to`.
pub(super) fn is_packable(source: &Tensor, to: Encoding) -> bool {
    packable(source, to).is_some()
}

/// How to pack a matrix of plain numbers, the path of its module, and what it becomes; `None` for what
/// stays as it is.
fn packable(source: &Tensor, to: Encoding) -> Option<(Recipe, &str, Vec<PartSpec>)> {
    let Some(Encoding::Float(float)) = source.encoding else { return None };
    let module = source.name.strip_suffix(Part::Weight.ending())?;
    let &[rows, columns] = &source.shape[..] else { return None };
    let recipe = Recipe { encoding: to, group: to.encoded_group()?, float };
    let parts = to.parts([rows, columns])?;
    Some((recipe, module, parts))
}

impl BlobTensor<'_> {
    pub(crate) fn entry(&self) -> Entry<'_> {
        let BlobTensor { name, dtype, shape, bytes, .. } = self;
        Entry { name, dtype: *dtype, shape, bytes: *bytes }
    }

    /// Fills `buffer` with the tensor's bytes from `offset` on. What must be encoded is encoded on all
    /// cores, in small pieces; what comes of a matrix beside its codes is kept for who reads that later.
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
        let &Some(Made { recipe, part, ref beside }) = &self.made else {
            return checkpoint.read_at(self.source, offset, buffer);
        };
        let end = offset.saturating_add(buffer.len() as u64);
        if end > self.bytes {
            let what = format!("tensor {:?}", self.name);
            return Err(Error::OutOfRange { what, offset, end, bytes: self.bytes });
        }
        let units = recipe.units();
        let unit = units[part];
        // Within a file on this machine.
        if beside.copy(part, unit, offset as usize, buffer) {
            return Ok(());
        }
        let all = recipe.groups(self.source);
        let pieces = pieces(offset, buffer, unit, recipe.group);
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(()) };
        let (groups, step) = (first.groups.start..last.groups.end, PIECE_WEIGHTS / recipe.group);
        let origin = Origin::of(checkpoint, self.source, recipe, &pieces)?;
        let counts = checkpoint.counts(self.source);
        let encode = |parts_beside: Vec<&mut [u8]>| {
            // For every piece where each of the other parts goes, if it is kept.
            let mut others: Vec<Vec<Option<&mut [u8]>>> = Vec::new();
            others.resize_with(pieces.len(), Vec::new);
            for (kept, unit) in parts_beside.into_iter().zip(&units[1..]) {
                let of_part = others.iter_mut().zip(kept.chunks_mut(step * unit));
                of_part.for_each(|(piece, bytes)| piece.push(Some(bytes)));
            }
            let pieces = pieces.into_par_iter().zip(others);
            pieces.try_for_each_init(Scratch::default, |scratch, (piece, others)| {
                let Piece { groups, skip, out } = piece;
                let weights =
                    scratch.weights(&origin, recipe, counts.as_deref(), groups.clone())?;
                let mut whole = Vec::new();
                let bytes = groups.len() * unit;
                let in_place = out.len() == bytes;
                whole.resize(if in_place { 0 } else { bytes }, 0);
                let mut parts: Vec<Option<&mut [u8]>> = vec![None];
                parts.extend(others);
                parts.resize_with(units.len(), || None);
                parts[part] = Some(if in_place { &mut *out } else { &mut whole });
                recipe.encode(self.source, groups.start, weights, &mut parts)?;
                if !in_place {
                    out.copy_from_slice(&whole[skip..skip + out.len()]);
                }
                Ok(())
            })
        };
        match part {
            0 => beside.fill(&checkpoint.beside, groups, all, &units, encode),
            _ => encode(Vec::new()),
        }
    }
}

/// Encodes a whole matrix into memory; `None` if it stays as it is.
///
/// # Errors
/// [`Error::Io`], [`Error::Memory`], and [`Error::Encode`] for weights that cannot be packed.
pub(crate) fn encode_matrix(
    checkpoint: &Checkpoint,
    source: &Tensor,
    to: Encoding,
) -> Result<Option<MappedMatrix>, Error> {
    let Some((recipe, _, specs)) = packable(source, to) else {
        return Ok(None);
    };
    let groups = recipe.groups(source);
    let units = recipe.units();
    let refused = |bytes: usize| move |cause| Error::memory(&source.name, bytes, cause);
    let memory = |unit: &usize| Memory::zeroed(groups * unit).map_err(refused(groups * unit));
    let mut parts = units.iter().map(memory).collect::<Result<Vec<_>, _>>()?;
    let step = PIECE_WEIGHTS / recipe.group;
    let origin = Origin { checkpoint, source, gathered: None };
    let counts = checkpoint.counts(source);
    let mut pieces: Vec<Vec<Option<&mut [u8]>>> = Vec::new();
    pieces.resize_with(groups.div_ceil(step), Vec::new);
    for (part, unit) in parts.iter_mut().zip(&units) {
        let of_part = pieces.iter_mut().zip(part.chunks_mut(step * unit));
        of_part.for_each(|(piece, bytes)| piece.push(Some(bytes)));
    }
    pieces.into_par_iter().enumerate().try_for_each_init(
        Scratch::default,
        |scratch, (index, mut piece)| {
            let start = index * step;
            let groups = start..groups.min(start + step);
            let weights = scratch.weights(&origin, recipe, counts.as_deref(), groups)?;
            recipe.encode(source, start, weights, &mut piece)
        },
    )?;
    let tensor = |(memory, spec): (Memory, PartSpec)| {
        let (bytes, dtype) = (memory.len(), spec.dtype(source.dtype));
        MappedTensor::from_memory(memory, dtype, spec.shape).map_err(refused(bytes))
    };
    let parts = parts.into_iter().zip(specs).map(tensor);
    Ok(Some(MappedMatrix { encoding: recipe.encoding, parts: parts.collect::<Result<_, _>>()? }))
}

impl Recipe {
    /// Bytes of one group in each part.
    fn units(self) -> Vec<usize> {
        self.encoding.encoded_bytes(self.float)
    }

    /// Groups of a matrix.
    fn groups(self, source: &Tensor) -> usize {
        (source.bytes / self.float.bytes() as u64) as usize / self.group
    }

    /// Encodes weights that begin with the group `first` of `source`, whose errors count so; `out` as [`Encoding::encode`] has it.
    fn encode(
        self,
        source: &Tensor,
        first: usize,
        (weights, counts): (&[f32], Option<&[f32]>),
        out: &mut [Option<&mut [u8]>],
    ) -> Result<(), Error> {
        self.encoding.encode(weights, counts, self.float, out).map_err(|cause| Error::Encode {
            tensor: source.name.clone(),
            cause: cause.after(first * self.group),
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
            let group = (recipe.group * recipe.float.bytes()) as u64;
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
    counts: Vec<f32>,
}

impl Scratch {
    /// The weights of those groups, and how much the error of each counts, of which `counts` has a row's.
    fn weights(
        &mut self,
        origin: &Origin<'_>,
        recipe: Recipe,
        counts: Option<&[f32]>,
        groups: Range<usize>,
    ) -> Result<(&[f32], Option<&[f32]>), Error> {
        let count = groups.len() * recipe.group;
        self.bytes.resize(count * recipe.float.bytes(), 0);
        self.weights.resize(count, 0.0);
        let start = groups.start * recipe.group * recipe.float.bytes();
        origin.read(start as u64, &mut self.bytes)?;
        recipe.float.widen(&self.bytes, &mut self.weights);
        let Some(of_row) = counts else { return Ok((&self.weights, None)) };
        let begin = groups.start * recipe.group % of_row.len().max(1);
        self.counts.clear();
        self.counts.extend(of_row.iter().cycle().skip(begin).take(count));
        Ok((&self.weights, Some(&self.counts)))
    }
}

/// Part of a buffer, and the groups of which it holds bytes.
struct Piece<'a> {
    groups: Range<usize>,
    /// Bytes of the first group that come before those asked for.
    skip: usize,
    out: &'a mut [u8],
}

/// Cuts a read from `offset` on, of a part with `unit` bytes per group of so many weights, into pieces of bounded size.
fn pieces(offset: u64, mut buffer: &mut [u8], unit: usize, weights: usize) -> Vec<Piece<'_>> {
    let step = PIECE_WEIGHTS / weights;
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
