//! What a tensor is stored in while it is timed: scratch memory with small numbers in it.

use cake_checkpoint::{
    Dtype, Encoding, FloatType, MappedTensor, Memory, Part, PartSpec, TensorKind,
};

use crate::memory::resident_bytes;
use crate::options::DeviceKind;
use crate::random::mix;

/// A tensor that something is stored in.
pub(super) struct Stored {
    pub(super) name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    /// Of the weight of a matrix.
    encoding: Option<Encoding>,
}

impl Stored {
    pub(super) fn bytes(&self) -> u64 {
        resident_bytes(self.dtype, self.shape.iter().product())
    }

    /// The same with what the device keeps beside them.
    pub(super) fn held_bytes(&self, device: DeviceKind) -> u64 {
        let permille = self.encoding.map_or(1000, |encoding| device.resident_permille(encoding));
        let held = (u128::from(self.bytes()) * u128::from(permille)).div_ceil(1000);
        u64::try_from(held).unwrap_or(u64::MAX)
    }

    /// The tensor with small numbers in it.
    pub(super) fn filled(&self) -> std::io::Result<MappedTensor> {
        Ok(scratch_weights(self.dtype, &self.shape)?.with_encoding(self.encoding))
    }
}

/// The tensors that one of this kind and shape is stored in: a matrix as `encoding`, where that has matrices of this
/// shape, else as numbers, as all else is.
pub(super) fn stored(
    name: &str,
    kind: TensorKind,
    shape: &[u64],
    encoding: Encoding,
) -> Vec<Stored> {
    let float = match encoding {
        Encoding::Float(float) => float,
        Encoding::Affine(_) | Encoding::Ggml(_) | Encoding::Apr(_) | Encoding::Integer(_) => {
            FloatType::BF16
        }
    };
    let numbers = |encoding| {
        vec![Stored {
            name: name.to_owned(),
            dtype: float.dtype(),
            shape: shape.to_vec(),
            encoding,
        }]
    };
    let (TensorKind::Matrix, &[rows, columns]) = (kind, shape) else { return numbers(None) };
    let module = name.strip_suffix(Part::Weight.ending()).unwrap_or(name);
    let Some(parts) = encoding.parts([rows, columns]) else {
        return numbers(Some(Encoding::Float(float)));
    };
    let stored = |spec: PartSpec| Stored {
        name: format!("{module}{}", spec.part.ending()),
        dtype: spec.dtype(float.dtype()),
        shape: spec.shape,
        encoding: (spec.part == Part::Weight).then_some(encoding),
    };
    parts.into_iter().map(stored).collect()
}

/// Small numbers of no meaning, written so that every page is really there: huge pages where the system gives them,
/// as weights that are computed with lie in them where that pays.
pub(super) fn scratch_weights(dtype: Dtype, shape: &[u64]) -> std::io::Result<MappedTensor> {
    /// Longer than a page and no multiple of one, so that pages differ.
    const PATTERN_WORDS: u64 = 1031;
    let pattern: Vec<u8> = (0..PATTERN_WORDS)
        .flat_map(|word| {
            // Exponent bits of about 2^-7 whether read as one f32, two bf16 or two f16.
            let bits = (mix(word) as u32 & 0x83ff_83ff) | 0x3c00_3c00;
            bits.to_le_bytes()
        })
        .collect();
    let bytes = resident_bytes(dtype, shape.iter().product());
    let bytes = usize::try_from(bytes).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
    let mut memory = Memory::zeroed(bytes)?;
    for piece in memory.chunks_mut(pattern.len()) {
        piece.copy_from_slice(&pattern[..piece.len()]);
    }
    MappedTensor::from_memory(memory, dtype, shape.to_vec())
}
