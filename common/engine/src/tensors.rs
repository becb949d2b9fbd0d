//! Small bridges between candle tensors and slices.

use candle_core::{CpuStorage, Device, Layout, Storage, Tensor};

/// The values of a contiguous f32 operand of a custom operation.
pub(crate) fn values<'a>(
    storage: &'a CpuStorage,
    layout: &Layout,
) -> candle_core::Result<&'a [f32]> {
    let all = storage.as_slice::<f32>()?;
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&all[start..end]),
        None => candle_core::bail!("operand of a custom operation is not contiguous: {layout:?}"),
    }
}

/// Calls `work` with the values of a contiguous f32 tensor, which are not copied.
pub(crate) fn with_values<R>(
    tensor: &Tensor,
    work: impl FnOnce(&[f32]) -> R,
) -> candle_core::Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok(work(values(storage, layout)?)),
        _ => candle_core::bail!("tensor is not in the processor's memory"),
    }
}

/// `[rows, width]` on the processor; takes the vector without copying it.
pub(crate) fn matrix(values: Vec<f32>, rows: usize, width: usize) -> candle_core::Result<Tensor> {
    Tensor::from_vec(values, (rows, width), &Device::Cpu)
}
