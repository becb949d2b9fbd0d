//! The KV pool of one layer: an array of blocks, indexed by the numbers that the master gives out.

use cake_checkpoint::KvDtype;
use memmap2::MmapMut;

use super::attention::KvView;
use crate::batch::AttendRow;
use crate::device::Attending;
use crate::device::cpu::element::{Element, F16, F32, FloatType};
use crate::error::Error;
use crate::options::EngineOptions;

/// Keys and values of one layer, each `[blocks, kv_heads, block_positions, head_dim]`: what a head of
/// the cache holds of a block lies together, since kernels read one head at a time.
///
/// Anonymous zeroed memory: a block that was never written costs no page.
pub(crate) struct KvPool {
    keys: MmapMut,
    /// `None` where keys are the values, too.
    values: Option<MmapMut>,
    float: FloatType,
    block_positions: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl KvPool {
    /// A pool for what this keeps.
    ///
    /// # Errors
    /// [`Error::KvTooLarge`] or [`Error::KvMemory`] if there cannot be so much memory.
    pub(crate) fn new(spec: &Attending, options: &EngineOptions) -> Result<KvPool, Error> {
        let &Attending { kv_heads, head_dim, keys_alone, .. } = spec;
        let (blocks, block_positions) = (options.kv_blocks, options.block_positions);
        let float = match options.kv {
            KvDtype::F32 => FloatType::F32,
            KvDtype::F16 => FloatType::F16,
        };
        let bytes = blocks
            .checked_mul(block_positions)
            .and_then(|positions| positions.checked_mul(kv_heads * head_dim * float.bytes()))
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or(Error::KvTooLarge { blocks, block_positions })?;
        let reserve = || {
            MmapMut::map_anon(bytes.max(1)) // A pool without blocks is allowed; an empty map is not.
                .map_err(|source| Error::KvMemory { bytes: bytes as u64, source })
        };
        Ok(KvPool {
            keys: reserve()?,
            values: (!keys_alone).then(reserve).transpose()?,
            float,
            block_positions,
            kv_heads,
            head_dim,
        })
    }

    /// Writes the keys and, where they are kept, the values of `rows` that are not known, each `[rows, kv_heads × head_dim]`.
    pub(crate) fn append(&mut self, rows: &[AttendRow<'_>], keys: &[f32], values: Option<&[f32]>) {
        match self.float {
            FloatType::F16 => self.append_as::<F16>(rows, keys, values),
            _ => self.append_as::<F32>(rows, keys, values),
        }
    }

    fn append_as<E: Element>(
        &mut self,
        rows: &[AttendRow<'_>],
        keys: &[f32],
        values: Option<&[f32]>,
    ) {
        let head_bytes = self.head_dim * E::BYTES;
        let mut values = values.map(|values| values.chunks_exact(self.head_dim));
        for (index, key) in keys.chunks_exact(self.head_dim).enumerate() {
            let (row, kv_head) = (&rows[index / self.kv_heads], index % self.kv_heads);
            let value = values.as_mut().and_then(Iterator::next);
            if row.is_known {
                continue;
            }
            let start = self.view().offset(row.blocks, row.position, kv_head);
            let range = start..start + head_bytes;
            E::store(key, &mut self.keys[range.clone()]);
            if let (Some(all), Some(value)) = (&mut self.values, value) {
                E::store(value, &mut all[range]);
            }
        }
    }

    /// The pool as kernels read it.
    pub(crate) fn view(&self) -> KvView<'_> {
        KvView {
            keys: &self.keys,
            values: self.values.as_ref().unwrap_or(&self.keys),
            float: self.float,
            block_positions: self.block_positions,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }
}
