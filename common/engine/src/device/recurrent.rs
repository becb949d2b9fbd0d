//! What recurrent operations are to a device: state that lies in slots, a convolution over rows, and a matrix of each head
//! that every row changes. How they are computed is said here once, number by number, for devices that have no kernels of
//! their own.

use std::ops::Range;

use crate::batch::{BatchItem, StateSlots};
use crate::error::Error;
use crate::options::EngineOptions;

/// Recurrent state of one operation, in parts that are computed apart: `[part][slots, numbers of a part]`.
pub(crate) struct States {
    parts: Vec<Vec<f32>>,
    /// Numbers of a part, in each slot.
    each: usize,
}

/// A causal depthwise convolution.
pub(crate) struct Convolution {
    /// `[taps, channels]`: the last tap meets the row itself.
    pub(crate) weights: Vec<f32>,
    /// `[channels]`: what is added, if anything is.
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) channels: usize,
    pub(crate) taps: usize,
}

/// What every row does with the matrix of each head, `S`, `[key_dim, value_dim]`, before the row's query reads it:
///
/// `S = g · S + key ⊗ added` with `g = exp(−rate · step)`, of a head or of each number of its key, and `added` the row's
/// value times its weight, or what the value has more than `(g · S)ᵀ · key`, times the weight.
///
/// The first is Mamba 2 (arXiv:2405.21060), the second the gated delta rule (arXiv:2412.06464). The result of a head is
/// `Sᵀ · query`, and of Mamba 2 a part of the value beside it.
pub(crate) struct Recurrence {
    /// Heads; each has a matrix.
    pub(crate) heads: usize,
    /// Heads of keys and queries; divides `heads`.
    pub(crate) key_heads: usize,
    /// Whether consecutive heads have these in turn; else they share one.
    pub(crate) keys_in_turn: bool,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// How fast each head forgets.
    pub(crate) rates: Vec<f32>,
    /// Whether each number of a key has a step of its own.
    pub(crate) steps_by_key: bool,
    /// Whether a row adds what its value has more than is there.
    pub(crate) corrects: bool,
    /// What of each head's value comes out beside the rest.
    pub(crate) skips: Option<Vec<f32>>,
}

/// The operands of a recurrence, each of all rows of a step.
pub(crate) struct Recurring<'a, R: ?Sized> {
    /// `[rows, key_heads × key_dim]`
    pub(crate) keys: &'a R,
    /// The same.
    pub(crate) queries: &'a R,
    /// `[rows, heads × value_dim]`
    pub(crate) values: &'a R,
    /// `[rows, heads]`, or `[rows, heads × key_dim]`
    pub(crate) steps: &'a R,
    /// `[rows, heads]`
    pub(crate) weights: &'a R,
}

impl<R: ?Sized> Clone for Recurring<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: ?Sized> Copy for Recurring<'_, R> {}

impl States {
    /// Zeros for so many parts of so many numbers in each slot.
    ///
    /// # Errors
    /// [`Error::StateMemory`] if there cannot be so much.
    pub(crate) fn new(parts: usize, each: usize, options: &EngineOptions) -> Result<States, Error> {
        let slots = options.state_slots;
        let numbers = each.checked_mul(slots).filter(|it| it.checked_mul(4 * parts).is_some());
        let refused = || Error::StateMemory { slots, numbers: each.saturating_mul(parts) };
        let numbers = numbers.ok_or_else(refused)?;
        let part = |_| {
            // Asked for in a way that can be refused, and then in one that sets nothing which is zero already.
            Vec::<f32>::new().try_reserve_exact(numbers).map_err(|_| refused())?;
            Ok(vec![0.0; numbers])
        };
        Ok(States { parts: (0..parts).map(part).collect::<Result<_, Error>>()?, each })
    }

    /// The parts, each `[slots, numbers of a part]`, and how many numbers of a part there are in each slot.
    pub(crate) fn parts(&mut self) -> (&mut [Vec<f32>], usize) {
        (&mut self.parts, self.each)
    }
}

/// The numbers of a part in the slot that gets the state after an item, which are now those before it.
pub(crate) fn begin(
    part: &mut [f32],
    each: usize,
    StateSlots { from, to }: StateSlots,
) -> &mut [f32] {
    let place = |slot: u32| slot as usize * each..(slot as usize + 1) * each;
    match from {
        None => part[place(to)].fill(0.0),
        Some(from) if from == to => {}
        Some(from) => part.copy_within(place(from), to as usize * each),
    }
    &mut part[place(to)]
}

/// Items with rows, each with its rows in the step and its slots.
///
/// # Panics
/// If one does not say where its state is: a stage with such layers refuses it before (`Batch::check_states`).
pub(crate) fn parts_of(items: &[BatchItem]) -> impl Iterator<Item = (Range<usize>, StateSlots)> {
    let mut end = 0;
    items.iter().filter_map(move |item| {
        let start = end;
        end += item.rows;
        (item.rows > 0).then(|| (start..end, item.state.expect("checked before the step")))
    })
}

impl Convolution {
    /// What it keeps.
    ///
    /// # Errors
    /// [`Error::StateMemory`]
    pub(crate) fn states(&self, options: &EngineOptions) -> Result<States, Error> {
        States::new(1, (self.taps - 1) * self.channels, options)
    }

    /// What meets each tap of a row, the last one itself; nothing before the first row of a sequence.
    pub(crate) fn inputs<'a>(
        &'a self,
        x: &'a [f32],
        past: Option<&'a [f32]>,
        (rows, row): (&Range<usize>, usize),
    ) -> impl Iterator<Item = Option<&'a [f32]>> + 'a {
        let (channels, before, offset) = (self.channels, self.taps - 1, row - rows.start);
        (0..self.taps).map(move |tap| match (offset + tap).checked_sub(before) {
            Some(_) => Some(&x[(row + tap - before) * channels..][..channels]),
            None => past.map(|past| &past[(offset + tap) * channels..][..channels]),
        })
    }

    /// What lies in a slot.
    pub(crate) fn past<'a>(&self, part: &'a [f32], slot: Option<u32>) -> Option<&'a [f32]> {
        let each = (self.taps - 1) * self.channels;
        slot.map(|slot| &part[slot as usize * each..][..each])
    }

    /// Keeps the last rows of each item for its next one.
    pub(crate) fn keep(&self, states: &mut States, items: &[BatchItem], x: &[f32]) {
        let (parts, each) = states.parts();
        let (before, channels) = (self.taps - 1, self.channels);
        for (rows, slots) in parts_of(items) {
            let state = begin(&mut parts[0], each, slots);
            let new = rows.len().min(before);
            state.copy_within(new * channels.., 0);
            let last = &x[(rows.end - new) * channels..rows.end * channels];
            state[(before - new) * channels..].copy_from_slice(last);
        }
    }

    /// The convolution of each row of `x`, `[rows, channels]`.
    #[cfg(any(test, feature = "candle"))]
    pub(crate) fn plainly(&self, states: &mut States, items: &[BatchItem], x: &[f32]) -> Vec<f32> {
        let mut out = Vec::with_capacity(x.len());
        for (rows, slots) in parts_of(items) {
            let past = self.past(&states.parts[0], slots.from);
            for row in rows.clone() {
                let mut sums = self.bias.clone().unwrap_or_else(|| vec![0.0; self.channels]);
                let weights = self.weights.chunks_exact(self.channels);
                for (input, weights) in self.inputs(x, past, (&rows, row)).zip(weights) {
                    let pairs = input.into_iter().flatten().zip(weights);
                    sums.iter_mut().zip(pairs).for_each(|(sum, (x, weight))| *sum += x * weight);
                }
                out.extend(sums);
            }
        }
        self.keep(states, items, x);
        out
    }
}

impl Recurrence {
    /// What it keeps.
    ///
    /// # Errors
    /// [`Error::StateMemory`]
    pub(crate) fn states(&self, options: &EngineOptions) -> Result<States, Error> {
        States::new(self.heads, self.key_dim * self.value_dim, options)
    }

    /// The key (or query) of a row for a head, of those of all rows.
    pub(crate) fn key_of<'a>(&self, keys: &'a [f32], row: usize, head: usize) -> &'a [f32] {
        let key_head = match self.keys_in_turn {
            false => head / (self.heads / self.key_heads),
            true => head % self.key_heads,
        };
        &keys[(row * self.key_heads + key_head) * self.key_dim..][..self.key_dim]
    }

    /// The value of a row for a head, of those of all rows.
    pub(crate) fn value_of<'a>(&self, values: &'a [f32], row: usize, head: usize) -> &'a [f32] {
        &values[(row * self.heads + head) * self.value_dim..][..self.value_dim]
    }

    /// The steps of a row for a head: one, or as many as a key has numbers.
    pub(crate) fn steps_of<'a>(&self, steps: &'a [f32], row: usize, head: usize) -> &'a [f32] {
        let each = if self.steps_by_key { self.key_dim } else { 1 };
        &steps[(row * self.heads + head) * each..][..each]
    }

    /// What comes out of all rows, `[rows, heads × value_dim]`.
    #[cfg(any(test, feature = "candle"))]
    pub(crate) fn plainly(
        &self,
        states: &mut States,
        items: &[BatchItem],
        of: Recurring<'_, [f32]>,
    ) -> Vec<f32> {
        let (width, mut out) = (self.value_dim, vec![0.0; of.values.len()]);
        let (parts, each) = states.parts();
        for (head, part) in parts.iter_mut().enumerate() {
            for (rows, slots) in parts_of(items) {
                let state = begin(part, each, slots);
                for row in rows {
                    let out = &mut out[(row * self.heads + head) * width..][..width];
                    self.row_plainly((row, head), state, of, out);
                }
            }
        }
        out
    }

    #[cfg(any(test, feature = "candle"))]
    fn row_plainly(
        &self,
        (row, head): (usize, usize),
        state: &mut [f32],
        of: Recurring<'_, [f32]>,
        out: &mut [f32],
    ) {
        let key = self.key_of(of.keys, row, head);
        let query = self.key_of(of.queries, row, head);
        let value = self.value_of(of.values, row, head);
        let steps = self.steps_of(of.steps, row, head).iter().cycle();
        let mut there = vec![0.0; self.value_dim];
        for ((row, step), key) in state.chunks_exact_mut(self.value_dim).zip(steps).zip(key) {
            let decay = (-self.rates[head] * step).exp();
            for (number, there) in row.iter_mut().zip(&mut there) {
                *number *= decay;
                *there += *number * key;
            }
        }
        let weight = of.weights[row * self.heads + head];
        let (corrects, skip) = (self.corrects, self.skips.as_ref().map_or(0.0, |it| it[head]));
        for (column, (value, there)) in value.iter().zip(there).enumerate() {
            let added = (value - if corrects { there } else { 0.0 }) * weight;
            let numbers = state.iter_mut().skip(column).step_by(self.value_dim);
            for ((number, key), query) in numbers.zip(key).zip(query) {
                *number += key * added;
                out[column] += *number * query;
            }
            out[column] += skip * value;
        }
    }
}

/// `ln(1 + exp(x + bias))` of rows as wide as `bias`.
#[cfg(any(test, feature = "candle"))]
pub(crate) fn softplus_plainly(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len().max(1)) {
        for (x, bias) in row.iter_mut().zip(bias) {
            let sum = f64::from(*x + bias);
            *x = (sum.max(0.0) + (-sum.abs()).exp().ln_1p()) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_share_the_keys_of_their_group_or_have_them_in_turn() {
        let of = |keys_in_turn| Recurrence {
            heads: 6,
            key_heads: 2,
            keys_in_turn,
            key_dim: 1,
            value_dim: 1,
            rates: vec![1.0; 6],
            steps_by_key: false,
            corrects: true,
            skips: None,
        };
        let keys = [1.0, 2.0, 3.0, 4.0]; // Of two rows.
        let second = |it: Recurrence| (0..6).map(|head| it.key_of(&keys, 1, head)[0]).collect();
        let [shared, in_turn]: [Vec<f32>; 2] = [false, true].map(|in_turn| second(of(in_turn)));
        assert_eq!(shared, [3.0, 3.0, 3.0, 4.0, 4.0, 4.0]);
        assert_eq!(in_turn, [3.0, 4.0, 3.0, 4.0, 3.0, 4.0]);
    }
}
