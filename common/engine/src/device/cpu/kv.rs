//! The KV pool of one layer: an array of blocks, indexed by the numbers that the master gives out.

use cake_checkpoint::KvDtype;
use memmap2::MmapMut;

use super::attention::{KvView, store};
use crate::batch::AttendRow;
use crate::device::Attending;
use crate::error::Error;
use crate::options::EngineOptions;

/// Keys and values of one layer, each `[blocks, kv_heads, block_positions, head_dim]`: what a head of
/// the cache holds of a block lies together, since kernels read one head at a time. Scales, where there are such, lie behind
/// the codes of the head of each position.
///
/// Anonymous zeroed memory: a block that was never written costs no page.
pub(crate) struct KvPool {
    keys: MmapMut,
    /// `None` where keys are the values, too.
    values: Option<MmapMut>,
    kv: KvDtype,
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
        let EngineOptions { kv, kv_blocks: blocks, block_positions, .. } = *options;
        let bytes = blocks
            .checked_mul(block_positions)
            .and_then(|positions| positions.checked_mul(kv_heads * kv.head_bytes(head_dim)))
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or(Error::KvTooLarge { blocks, block_positions })?;
        let reserve = || {
            MmapMut::map_anon(bytes.max(1)) // A pool without blocks is allowed; an empty map is not.
                .map_err(|source| Error::KvMemory { bytes: bytes as u64, source })
        };
        Ok(KvPool {
            keys: reserve()?,
            values: (!keys_alone).then(reserve).transpose()?,
            kv,
            block_positions,
            kv_heads,
            head_dim,
        })
    }

    /// Writes the keys and, where they are kept, the values of `rows` that are not known, each `[rows, kv_heads × head_dim]`.
    pub(crate) fn append(&mut self, rows: &[AttendRow<'_>], keys: &[f32], values: Option<&[f32]>) {
        let head_bytes = self.view().head_bytes();
        let mut values = values.map(|values| values.chunks_exact(self.head_dim));
        for (index, key) in keys.chunks_exact(self.head_dim).enumerate() {
            let (row, kv_head) = (&rows[index / self.kv_heads], index % self.kv_heads);
            let value = values.as_mut().and_then(Iterator::next);
            if row.is_known {
                continue;
            }
            let start = self.view().offset(row.blocks, row.position, kv_head);
            let range = start..start + head_bytes;
            store(self.kv, key, &mut self.keys[range.clone()]);
            if let (Some(all), Some(value)) = (&mut self.values, value) {
                store(self.kv, value, &mut all[range]);
            }
        }
    }

    /// The pool as kernels read it.
    pub(crate) fn view(&self) -> KvView<'_> {
        KvView {
            keys: &self.keys,
            values: self.values.as_ref().unwrap_or(&self.keys),
            kv: self.kv,
            block_positions: self.block_positions,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::{ModelSpec, Op};

    use super::*;
    use crate::memory::block_bytes;
    use crate::options::BLOCK_POSITIONS;
    use crate::testing::Random;

    fn golden(name: &str) -> ModelSpec {
        let path = format!("{}/../../tests/golden/{name}/config.json", env!("CARGO_MANIFEST_DIR"));
        ModelSpec::parse(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn a_pool_has_the_bytes_that_are_planned() {
        for name in ["llama", "deepseek-v3", "gemma3", "falcon-h1"] {
            for layer in &golden(name).layers {
                let attending = layer.ops().find_map(|op| match op {
                    Op::Attention(it) => Some(Attending::from(it)),
                    Op::Latent(it) => Some(Attending::from(it)),
                    _ => None,
                });
                for kv in KvDtype::ALL {
                    let options = EngineOptions { kv, ..EngineOptions::new(3) };
                    let pool = KvPool::new(&attending.unwrap(), &options).unwrap();
                    let bytes = pool.keys.len() + pool.values.as_ref().map_or(0, |it| it.len());
                    let planned = 3 * block_bytes(std::slice::from_ref(layer), kv);
                    assert_eq!(bytes as u64, planned, "{name} in {kv}");
                }
            }
        }
    }

    #[test]
    fn each_head_is_written_to_its_place_alone_and_rows_that_are_known_are_not() {
        let mut random = Random::new(3);
        let (kv_heads, head_dim) = (2, 70);
        let spec = Attending {
            heads: 4,
            kv_heads,
            head_dim,
            keys_alone: false,
            scale: 1.0,
            softcap: None,
            has_sinks: false,
            window: None,
            segment: None,
        };
        for kv in KvDtype::ALL {
            let options = EngineOptions { kv, ..EngineOptions::new(3) };
            let mut pool = KvPool::new(&spec, &options).unwrap();
            let blocks = [2, 0];
            // The last of a block, and the first two of the next.
            let row = |position, is_known| AttendRow { position, blocks: &blocks, is_known };
            let first = BLOCK_POSITIONS - 1;
            let rows = [row(first, false), row(first + 1, true), row(first + 2, false)];
            let mut numbers = || -> Vec<f32> {
                (0..rows.len() * kv_heads * head_dim).map(|_| random.signed()).collect()
            };
            let (keys, values) = (numbers(), numbers());
            pool.append(&rows, &keys, Some(&values));

            let head_bytes = kv.head_bytes(head_dim);
            let all = pool.values.as_ref().unwrap();
            for (stored, numbers) in [(&pool.keys, &keys), (all, &values)] {
                let mut expected = vec![0; stored.len()];
                for (index, head) in numbers.chunks_exact(head_dim).enumerate() {
                    let (row, kv_head) = (&rows[index / kv_heads], index % kv_heads);
                    if !row.is_known {
                        let at = pool.view().offset(&blocks, row.position, kv_head);
                        store(kv, head, &mut expected[at..at + head_bytes]);
                    }
                }
                assert!(stored[..] == expected, "{kv}");
                let written =
                    expected.chunks_exact(head_bytes).filter(|it| it.iter().any(|b| *b > 0));
                assert_eq!(written.count(), 2 * kv_heads, "no two in one place");
            }
        }
    }
}
