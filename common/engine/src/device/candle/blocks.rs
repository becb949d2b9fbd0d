//! Blocks of ggml that candle knows: its own products with them, on any device.

use std::borrow::Cow;

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Result};

use cake_checkpoint::{Encoding, GgmlType};

/// A kind of block that candle knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind(GgmlDType);

impl Kind {
    /// That of a matrix's encoding; `None` for what candle does not know.
    pub(super) fn of(encoding: Encoding) -> Option<Kind> {
        let Encoding::Ggml(kind) = encoding else { return None };
        let kind = match kind {
            GgmlType::Q4_0 => GgmlDType::Q4_0,
            GgmlType::Q4_1 => GgmlDType::Q4_1,
            GgmlType::Q5_0 => GgmlDType::Q5_0,
            GgmlType::Q5_1 => GgmlDType::Q5_1,
            GgmlType::Q8_0 => GgmlDType::Q8_0,
            GgmlType::Q2K => GgmlDType::Q2K,
            GgmlType::Q3K => GgmlDType::Q3K,
            GgmlType::Q4K => GgmlDType::Q4K,
            GgmlType::Q5K => GgmlDType::Q5K,
            GgmlType::Q6K => GgmlDType::Q6K,
            GgmlType::Iq4Nl | GgmlType::Iq4Xs | GgmlType::Mxfp4 => return None,
        };
        Some(Kind(kind))
    }

    /// Whether [`product`] takes rows of so many inputs: candle asserts of small blocks that there are pairs of them.
    pub(super) fn is_multiplied_in_place(self, inputs: usize) -> bool {
        let size = self.0.block_size();
        size > GgmlDType::Q8_0.block_size() || inputs.is_multiple_of(2 * size)
    }

    /// Rows of blocks, brought to the device.
    pub(super) fn tensor(self, bytes: &[u8], inputs: usize, device: &Device) -> Result<QTensor> {
        let rows = bytes.len() / self.row_bytes(inputs);
        let brought = |bytes: &[u8]| QStorage::from_data(Cow::Borrowed(bytes), device, self.0);
        QTensor::new(at_even_address(bytes, brought)?, (rows, inputs))
    }

    fn row_bytes(self, inputs: usize) -> usize {
        inputs / self.0.block_size() * self.0.type_size()
    }
}

/// `x · weightᵀ` in the system's memory: each group of activations is rounded to 8 bits, of which whole numbers are added
/// up. A row with a number that is not finite gives none.
///
/// That is [`QMatMul`](candle_core::quantized::QMatMul) without the larger copy that this makes of some kinds for itself and
/// keeps: blocks are copied while they are multiplied, and how many rows travel together changes no bit.
pub(super) fn product(kind: Kind, bytes: &[u8], x: &[f32], inputs: usize) -> Result<Vec<f32>> {
    let (rows, outputs) = (x.len() / inputs, bytes.len() / kind.row_bytes(inputs));
    let mut product = vec![0.0; rows * outputs];
    let blocks = at_even_address(bytes, |bytes| kind.0.from_data(Cow::Borrowed(bytes)));
    blocks.matmul_t((rows, inputs, outputs), x, &mut product)?;
    for (x, product) in x.chunks(inputs).zip(product.chunks_mut(outputs.max(1))) {
        if !x.iter().all(|x| x.is_finite()) {
            product.fill(f32::NAN);
        }
    }
    Ok(product)
}

/// Calls `work` with the bytes at an even address, which candle asserts, since blocks have numbers of two bytes: a copy of
/// those that lie at an odd one.
fn at_even_address<R>(bytes: &[u8], work: impl FnOnce(&[u8]) -> R) -> R {
    let is_odd = |bytes: &[u8]| !bytes.as_ptr().addr().is_multiple_of(2);
    if !is_odd(bytes) {
        return work(bytes);
    }
    let mut room = vec![0; bytes.len() + 1];
    let place = usize::from(is_odd(&room))..;
    let room = &mut room[place][..bytes.len()];
    room.copy_from_slice(bytes);
    work(room)
}
