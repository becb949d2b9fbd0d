//! From a checkpoint to the job that writes it as one APR file.

use std::sync::Arc;

use cake_checkpoint::container::apr::layout::{CHECKSUM_AT, CHECKSUM_END, flags};
use cake_checkpoint::container::apr::{
    ALIGNMENT, FOOTER_BYTES, HEADER_BYTES, Kind, MAGIC, MAJOR_VERSION, MAX_NAME_BYTES, MAX_RANK,
    header_checksum,
};
use cake_checkpoint::{AprType, Checkpoint, Encoding, FloatType, Scheme, StoredTensor};

use super::form::{Q4, Q8};
use super::{FORMAT, metadata};
use crate::convert::Encode;
use crate::error::{Error, PLAIN_FIRST, Unsupported};
use crate::foreign::Foreign;
use crate::form::{FloatForm, Form};
use crate::job::{Job, Output, Target};
use crate::numbers::Numbers;
use crate::piece::{Piece, Place, Rows};
use crate::source::Source;

/// What the only file is called in a directory.
const FILE: &str = "model.apr";

/// The job that writes the checkpoint, which is `source`'s, as one APR file; with it, as sentences, what the file will not
/// say of the model.
///
/// # Errors
/// [`Error::Unsupported`] for what APR has no way to say, [`Error::Io`] for a text that cannot be read.
pub fn convert(
    mut source: Source,
    checkpoint: &Checkpoint,
    encode: Encode,
    target: Target,
) -> Result<(Job, Vec<String>), Error> {
    Source::refuse_made(checkpoint, FORMAT)?;
    source.unstack(&checkpoint.config)?;
    let foreign = Foreign::of(&source, checkpoint)?;
    source.refuse_turned(&checkpoint.config, FORMAT)?;
    let mut all = Numbers::of(&source, Some(checkpoint));
    foreign.retain_named(&mut all);
    let mut lost = Vec::new();
    // What the model has no use for is no reason to refuse it.
    all.retain(|numbers| {
        let dtype = source.tensors[numbers.parts[0]].dtype;
        let stays = !numbers.is_ignored || Kind::Plain(dtype).id().is_some();
        if !stays {
            lost.push(format!("{} is left out: APR has no {dtype}", numbers.name));
        }
        stays
    });
    let mut tensors = Vec::with_capacity(all.len());
    for numbers in &all {
        tensors.push(Tensor::of(&source, numbers, encode, &foreign)?);
    }
    let turned = tensors.iter().filter(|tensor| tensor.is_turned).count();
    if turned > 0 {
        lost.push(format!("{turned} matrices whose rows change places are written as F16"));
    }
    let total = tensors.iter().map(|tensor| tensor.bytes).sum();
    let count = all.iter().map(Numbers::count).sum();
    let metadata = metadata::metadata(checkpoint, total, count, &mut lost)?;
    let head = Head::new(&metadata, &tensors)?;
    let mut pieces = vec![Piece::Known { bytes: head.bytes, place: at(0) }];
    for (tensor, offset) in tensors.into_iter().zip(head.offsets) {
        pieces.extend(tensor.pieces(&source, offset));
    }
    let end = head.end;
    pieces.push(Piece::Checksum { place: at(end) });
    let name = match &target {
        Target::File(path) => path.file_name().map(|it| it.to_string_lossy().into_owned()),
        Target::Directory(_) => None,
    };
    let name = name.unwrap_or_else(|| FILE.to_owned());
    let outputs = vec![Output { name, bytes: end + FOOTER_BYTES }];
    Ok((Job { source, target, outputs, pieces }, lost))
}

/// One tensor of the file.
struct Tensor<'a> {
    numbers: &'a Numbers,
    kind: Kind,
    bytes: u64,
    /// What it is written in, if it is not copied.
    form: Option<Arc<dyn Form>>,
    /// What is added to its numbers.
    add: f32,
    /// Whether its blocks became plain numbers, as rows change places.
    is_turned: bool,
}

impl<'a> Tensor<'a> {
    fn of(
        source: &Source,
        numbers: &'a Numbers,
        encode: Encode,
        foreign: &Foreign,
    ) -> Result<Tensor<'a>, Error> {
        let (mut kind, mut form) = kind(source, numbers, encode)?;
        let is_moved = form.is_none() && foreign.changes(numbers);
        let is_turned = is_moved && matches!(numbers.encoding, Some(Encoding::Ggml(_)));
        if let (true, Some(found)) = (is_moved, numbers.encoding) {
            let float = if let Encoding::Float(float) = found { float } else { FloatType::F16 };
            kind = Kind::Plain(float.dtype());
            form = Some(Arc::new(FloatForm(float)));
        }
        let cannot = |what: String| Unsupported::Cannot { format: FORMAT, what };
        let Numbers { name, shape, .. } = numbers;
        if name.len() > MAX_NAME_BYTES {
            return Err(cannot(format!("a name of {} bytes ({name:?})", name.len())).into());
        }
        if shape.len() > MAX_RANK {
            return Err(cannot(format!("the {} dimensions of {name:?}", shape.len())).into());
        }
        let bytes = kind.bytes(shape).ok_or_else(|| cannot(format!("the size of {name:?}")))?;
        Ok(Tensor { numbers, kind, bytes, form, add: foreign.added(numbers), is_turned })
    }

    /// What fills it, from `offset` on.
    fn pieces(self, source: &Source, offset: u64) -> Vec<Piece> {
        let Tensor { numbers, form, add, .. } = self;
        let stretches = numbers.stretches(source);
        if let Some(form) = form {
            let rows = Rows {
                name: numbers.name.clone(),
                encoding: numbers.encoding.expect("only what is known is written in another form"),
                parts: stretches,
                shape: numbers.matrix_shape(),
                order: numbers.order,
                add,
                form,
                places: vec![at(offset)],
            };
            return vec![Piece::Rows(rows)];
        }
        // Of codes with one scale, the scale comes first, and is a part of its own.
        let mut offset = offset;
        let in_file = stretches.into_iter().rev();
        in_file
            .map(|(_, from)| {
                let place = at(offset);
                offset += from.bytes;
                Piece::Copy { from, place }
            })
            .collect()
    }
}

/// What a tensor becomes, and the form that makes it so.
fn kind(
    source: &Source,
    numbers: &Numbers,
    encode: Encode,
) -> Result<(Kind, Option<Arc<dyn Form>>), Error> {
    let refused = |found: String, hint| {
        let (tensor, format) = (numbers.name.clone(), FORMAT);
        Err(Unsupported::Encoding { tensor, found, format, hint }.into())
    };
    let float = |float: FloatType| {
        let form: Arc<dyn Form> = Arc::new(FloatForm(float));
        Ok((Kind::Plain(float.dtype()), Some(form)))
    };
    match (encode, numbers.encoding) {
        (Encode::Blocks(_) | Encode::Affine(Scheme::Q6 | Scheme::Q5 | Scheme::Mxfp4), _) => {
            refused(encode.to_string(), "; q8 and q4 are what it has of that kind")
        }
        (_, None) => {
            let StoredTensor { dtype, .. } = source.tensors[numbers.parts[0]];
            match Kind::Plain(dtype).id() {
                Some(_) => Ok((Kind::Plain(dtype), None)),
                None => refused(dtype.to_string(), ""),
            }
        }
        (Encode::Float(to), Some(found)) if found != Encoding::Float(to) => float(to),
        (Encode::Affine(scheme), Some(Encoding::Float(_))) if numbers.is_matrix => {
            let blocks = numbers.matrix_shape()[1].is_multiple_of(AprType::BLOCK as u64);
            match scheme {
                Scheme::Q4 if !numbers.is_end && blocks => {
                    Ok((Kind::Codes(AprType::Q4), Some(Arc::new(Q4))))
                }
                _ => Ok((Kind::Codes(AprType::Q8), Some(Arc::new(Q8)))),
            }
        }
        (_, Some(Encoding::Float(found))) => Ok((Kind::Plain(found.dtype()), None)),
        (_, Some(Encoding::Apr(kind))) => Ok((Kind::Codes(kind), None)),
        (_, Some(Encoding::Ggml(found))) => match Kind::Ggml(found).id() {
            Some(_) => Ok((Kind::Ggml(found), None)),
            None => refused(found.to_string(), PLAIN_FIRST),
        },
        (_, Some(found)) => refused(found.to_string(), PLAIN_FIRST),
    }
}

/// All that comes before the data.
struct Head {
    bytes: Vec<u8>,
    /// Where each tensor begins in the file, in the order in which they were given.
    offsets: Vec<u64>,
    /// Where the last one ends, with the zeros behind it.
    end: u64,
}

impl Head {
    fn new(metadata: &[u8], tensors: &[Tensor<'_>]) -> Result<Head, Error> {
        let too_many = || Unsupported::Cannot { format: FORMAT, what: "so many tensors".into() };
        let count = u32::try_from(tensors.len()).map_err(|_| too_many())?;
        let mut at = 0u64;
        let mut offsets = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            offsets.push(at);
            let room = tensor.bytes.checked_next_multiple_of(ALIGNMENT);
            at = room.and_then(|room| at.checked_add(room)).ok_or_else(too_many)?;
        }
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_key(|&index| &tensors[index].numbers.name);
        let mut index = Vec::new();
        for of in order {
            entry(&mut index, &tensors[of], offsets[of]);
        }
        let index_at = HEADER_BYTES + (metadata.len() as u64).next_multiple_of(ALIGNMENT);
        let data_at = index_at + (index.len() as u64).next_multiple_of(ALIGNMENT);
        let has_codes = tensors.iter().any(|tensor| !matches!(tensor.kind, Kind::Plain(_)));
        let mut said = flags::ROW_MAJOR;
        if has_codes {
            said |= flags::QUANTIZED;
        }
        let mut header = [0; HEADER_BYTES as usize];
        header[..4].copy_from_slice(&MAGIC);
        header[4] = MAJOR_VERSION;
        header[6..8].copy_from_slice(&said.to_le_bytes());
        header[8..12].copy_from_slice(&count.to_le_bytes());
        header[12..20].copy_from_slice(&HEADER_BYTES.to_le_bytes());
        header[20..24].copy_from_slice(&(metadata.len() as u32).to_le_bytes()); // At most 16 MiB.
        header[24..32].copy_from_slice(&index_at.to_le_bytes());
        header[32..40].copy_from_slice(&data_at.to_le_bytes());
        let checksum = header_checksum(&header);
        header[CHECKSUM_AT..CHECKSUM_END].copy_from_slice(&checksum.to_le_bytes());
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(metadata);
        bytes.resize(index_at as usize, 0);
        bytes.extend_from_slice(&index);
        bytes.resize(data_at as usize, 0);
        let offsets = offsets.into_iter().map(|offset| data_at + offset).collect();
        Ok(Head { bytes, offsets, end: data_at + at })
    }
}

/// Adds what the index says of a tensor.
fn entry(index: &mut Vec<u8>, tensor: &Tensor<'_>, offset: u64) {
    let Numbers { name, shape, .. } = tensor.numbers;
    index.extend((name.len() as u16).to_le_bytes()); // Bounded, as are the dimensions, when it was looked at.
    index.extend(name.as_bytes());
    index.push(tensor.kind.id().expect("a kind that is written has a number"));
    index.push(shape.len() as u8);
    shape.iter().for_each(|size| index.extend(size.to_le_bytes()));
    index.extend(offset.to_le_bytes());
    index.extend(tensor.bytes.to_le_bytes());
}

fn at(offset: u64) -> Place {
    Place { output: 0, offset }
}
