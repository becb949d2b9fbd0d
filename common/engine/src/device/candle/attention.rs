//! Attention in candle's operations.

use candle_core::{D, Result, Tensor};

use super::{Candle, Kept, Numbers};
use crate::batch::{AttendRow, BatchItem};
use crate::device::Attending;
use crate::step::Step;

impl Candle {
    /// Attention sequence by sequence: gather, repeat, multiply, mask.
    pub(super) fn attended(
        &self,
        kept: &Kept,
        spec: &Attending,
        step: &Step<'_>,
        queries: &Tensor,
        sinks: Option<&[f32]>,
    ) -> Result<Tensor> {
        let &Attending { heads, kv_heads, head_dim, scale, softcap, .. } = spec;
        let mut outputs = Vec::new();
        let mut first = 0; // Row of the step that the item starts at.
        for item in step.items.iter().filter(|item| item.rows > 0) {
            let (rows, seen) = (item.rows, item.position + item.rows);
            let places =
                self.indices((0..seen).map(|position| kept.place(&item.blocks, position)))?;
            let by_head = |all: &Numbers| {
                all.read(&places)?
                    .reshape((seen, kv_heads, 1, head_dim))?
                    .broadcast_as((seen, kv_heads, heads / kv_heads, head_dim))?
                    .reshape((seen, heads, head_dim))?
                    .transpose(0, 1)?
                    .contiguous() // [heads, seen, head_dim]
            };
            let k = by_head(&kept.keys)?;
            let v = kept.values.as_ref().map(by_head).transpose()?.unwrap_or_else(|| k.clone());
            let q = queries.narrow(0, first, rows)?.reshape((rows, heads, head_dim))?;
            let q = q.transpose(0, 1)?.contiguous()?; // [heads, rows, head_dim]
            let scores = (q.matmul(&k.t()?)? * scale)?; // [heads, rows, seen]
            let scores = match softcap {
                None => scores,
                Some(softcap) => ((scores / softcap)?.tanh()? * softcap)?,
            };
            let scores = scores.broadcast_add(&self.mask(item, seen, spec)?)?;
            let weights = match sinks {
                None => candle_nn::ops::softmax(&scores, D::Minus1)?,
                Some(sinks) => {
                    let sinks = Tensor::new(sinks, &self.0)?.reshape((heads, 1, 1))?;
                    let sinks = sinks.broadcast_as((heads, rows, 1))?;
                    let scores = Tensor::cat(&[&scores, &sinks.contiguous()?], 2)?;
                    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
                    weights.narrow(2, 0, seen)?.contiguous()?
                }
            };
            let attended = weights.matmul(&v)?.transpose(0, 1)?; // [rows, heads, head_dim]
            outputs.push(attended.reshape((rows, heads * head_dim))?);
            first += rows;
        }
        Tensor::cat(&outputs, 0)
    }

    /// `[rows, seen]`: 0 where the key is visible, minus infinity elsewhere.
    fn mask(&self, item: &BatchItem, seen: usize, spec: &Attending) -> Result<Tensor> {
        let visible = |row: usize, key: usize| (spec.first_seen(row)..=row).contains(&key);
        let mask = (item.position..seen)
            .flat_map(|row| (0..seen).map(move |key| (row, key)))
            .map(|(row, key)| if visible(row, key) { 0.0 } else { f32::NEG_INFINITY })
            .collect();
        self.matrix(mask, item.rows, seen)
    }

    /// Writes rows into what is kept, which the tensors of a layer share with nobody.
    pub(super) fn written(
        &self,
        kept: &Kept,
        rows: &[AttendRow<'_>],
        keys: &Tensor,
        values: Option<&Tensor>,
    ) -> Result<()> {
        let of_row = |(index, row): (usize, &AttendRow<'_>)| {
            (!row.is_known).then(|| (index, kept.place(row.blocks, row.position)))
        };
        let places: Vec<_> = rows.iter().enumerate().filter_map(of_row).collect();
        for (all, new) in [(&kept.keys, keys)].into_iter().chain(kept.values.as_ref().zip(values)) {
            all.write(new, &places)?;
        }
        Ok(())
    }
}

impl Kept {
    /// The row of a position of the sequence with these blocks, which were checked to hold it.
    fn place(&self, blocks: &[u32], position: usize) -> usize {
        let block = blocks[position / self.block_positions] as usize;
        block * self.block_positions + position % self.block_positions
    }
}
