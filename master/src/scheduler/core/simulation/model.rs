//! What stands for the stages in a simulation: a pool of cells that steps write and read as the blocks say which they
//! carry, slots for states if the model is recurrent, and a language model whose next token is a pure function of the ids
//! that were sent for each position. Without a recurrent layer it is one of the cells; with one, of both, and the state is
//! one of the cells as well: as layers that read each other's hidden states have it.
//!
//! All stages take all steps in one order, so that one pool stands for those of all of them.

use std::collections::VecDeque;

use cake_engine::{BLOCK_POSITIONS, blocks_for};
use cake_proto::StateSlots;

use super::super::{ComposedStep, PipelineShape};
use crate::scheduler::request::Limits;
use crate::scheduler::want::{Chosen, Want};

/// Ids that there are.
pub(super) const VOCAB: usize = 24;

/// Mixes a number into another one: the output function of splitmix64.
pub(super) fn mix(before: u64, value: u64) -> u64 {
    let mixed = before.rotate_left(17) ^ value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// What a stage keeps of the id at a position, after what it keeps of the position before it.
fn kept(before: u64, id: u32, position: usize) -> u64 {
    mix(mix(before, u64::from(id)), position as u64)
}

/// The state after a position, of which a cell keeps so much.
fn state_after(before: u64, cell: u64, id: u32, position: usize) -> u64 {
    kept(mix(before, cell), id, position)
}

/// What is there before the first position.
const NOTHING: u64 = 7;

/// The token that follows a hidden state.
fn token_of(hidden: u64) -> u32 {
    (hidden % VOCAB as u64) as u32
}

/// The row of two values that an embedding has of a hidden state: small whole numbers, so that sums are exact.
fn row_of(hidden: u64, position: usize) -> [f32; 2] {
    [(hidden % 1009) as f32, position as f32]
}

/// The hidden states of a sequence as they have to be.
pub(super) struct Truth {
    position: usize,
    kept: u64,
    attended: u64,
    state: u64,
    is_recurrent: bool,
}

impl Truth {
    pub(super) fn new(is_recurrent: bool) -> Self {
        Self { position: 0, kept: NOTHING, attended: NOTHING, state: NOTHING, is_recurrent }
    }

    fn push(&mut self, id: u32) {
        self.kept = kept(self.kept, id, self.position);
        self.attended = mix(self.attended, self.kept);
        if self.is_recurrent {
            self.state = state_after(self.state, self.kept, id, self.position);
        }
        self.position += 1;
    }

    fn hidden(&self) -> u64 {
        mix(self.attended, self.state)
    }

    /// The token after these ids, which follow those before.
    pub(super) fn next(&mut self, ids: &[u32]) -> u32 {
        ids.iter().for_each(|id| self.push(*id));
        token_of(self.hidden())
    }

    /// The mean row of a prompt.
    pub(super) fn embedding(prompt: &[u32], is_recurrent: bool) -> Vec<f32> {
        let (mut truth, mut sum) = (Self::new(is_recurrent), [0.0; 2]);
        for (position, id) in prompt.iter().enumerate() {
            truth.push(*id);
            let row = row_of(truth.hidden(), position);
            sum = [sum[0] + row[0], sum[1] + row[1]];
        }
        sum.iter().map(|sum| sum / prompt.len() as f32).collect()
    }
}

/// The stages of one pipeline.
pub(super) struct Stages {
    pub(super) pipeline: PipelineShape,
    /// What each block holds at each of its positions; at first what others have left there.
    cells: Vec<[u64; BLOCK_POSITIONS]>,
    /// The state that each slot holds; at first what others have left there, too.
    slots: Vec<u64>,
    /// Steps on their way, the first to leave first.
    pub(super) queue: VecDeque<ComposedStep>,
    /// Nothing comes through any more.
    pub(super) broken: bool,
}

impl Stages {
    pub(super) fn new(pipeline: PipelineShape, limits: &Limits, litter: u64) -> Self {
        let Limits { kv_blocks, state_slots, .. } = *limits;
        let cells = (0..kv_blocks as u64).map(|block| [mix(litter, block); BLOCK_POSITIONS]);
        let slots = (0..state_slots as u64).map(|slot| mix(!litter, slot)).collect();
        Self { pipeline, cells: cells.collect(), slots, queue: VecDeque::new(), broken: false }
    }

    /// Computes the step that left first, and chooses what it was to choose.
    pub(super) fn compute(&mut self) -> Option<(u64, Vec<Chosen>)> {
        let ComposedStep { number, items, ids, wanted, wants } = self.queue.pop_front()?;
        let (mut ids, mut row) = (ids.into_iter(), 0);
        let (mut wanted, mut hidden) = (wanted.into_iter().peekable(), VecDeque::new());
        for item in items {
            let cell = |position: usize| {
                (item.blocks[position / BLOCK_POSITIONS] as usize, position % BLOCK_POSITIONS)
            };
            let from = item.state.and_then(|slots| slots.from);
            let mut state = from.map_or(NOTHING, |slot| self.slots[slot as usize]);
            for position in item.position..item.position + item.rows {
                let id = ids.next().expect("as many ids as rows");
                let before = match position.checked_sub(1).map(cell) {
                    Some((block, at)) => self.cells[block][at],
                    None => NOTHING,
                };
                let (block, at) = cell(position);
                if position >= item.known {
                    self.cells[block][at] = kept(before, id, position);
                }
                if item.state.is_some() {
                    state = state_after(state, self.cells[block][at], id, position);
                }
                if wanted.next_if_eq(&row).is_some() {
                    // It attends to all positions, as the blocks of this step say where they are.
                    let cells = (0..=position).map(|position| {
                        let (block, at) = cell(position);
                        self.cells[block][at]
                    });
                    hidden.push_back(mix(cells.fold(NOTHING, mix), state));
                }
                row += 1;
            }
            if let Some(StateSlots { to, .. }) = item.state {
                self.slots[to as usize] = state;
            }
        }
        assert!(wanted.next().is_none() && ids.next().is_none(), "rows, ids and wanted rows agree");
        Some((number, wants.into_iter().map(|want| choose(want, &mut hidden)).collect()))
    }
}

/// What comes of the next hidden states.
fn choose(want: Want, hidden: &mut VecDeque<u64>) -> Chosen {
    let mut next = || hidden.pop_front().expect("as many wanted rows as wants have");
    match want {
        Want::Token { sequence, mut sampler, rows, chooses } => {
            let mut logits = || {
                let mut logits = [0.0; VOCAB];
                logits[token_of(next()) as usize] = 1.0;
                logits
            };
            (0..rows - usize::from(chooses)).for_each(|_| sampler.score(&logits()));
            let token = chooses.then(|| sampler.choose(&logits()).expect("it has no grammar"));
            Chosen::Token { sequence, sampler, token }
        }
        Want::Pooled { sequence, position, rows: count } => {
            let rows = (position..position + count).flat_map(|at| row_of(next(), at)).collect();
            Chosen::Pooled { sequence, position, rows, count }
        }
    }
}

/// Whether a step is one that stages could take: its numbers agree, and its rows are as many as they have room for.
pub(super) fn check(step: &ComposedStep, most_rows: usize, limits: &Limits) {
    let Limits { kv_blocks, state_slots, .. } = *limits;
    assert!(!step.items.is_empty() && step.ids.len() <= most_rows);
    assert_eq!(step.items.iter().map(|item| item.rows).sum::<usize>(), step.ids.len());
    assert_eq!(step.wants.iter().map(Want::rows).sum::<usize>(), step.wanted.len());
    assert!(step.wanted.is_sorted_by(|one, next| one < next));
    for (index, item) in step.items.iter().enumerate() {
        assert!(item.rows > 0);
        assert!(step.items[..index].iter().all(|other| other.sequence != item.sequence));
        assert_eq!(item.blocks.len(), blocks_for(item.position + item.rows));
        assert!(item.blocks.iter().all(|block| (*block as usize) < kv_blocks));
        assert!(item.known >= item.position && (state_slots > 0 || item.known == item.position));
        assert_eq!(item.state.is_some(), state_slots > 0);
        let Some(StateSlots { from, to }) = item.state else { continue };
        assert_eq!(from.is_none(), item.position == 0, "the first rows begin with zeros");
        assert!(from.into_iter().chain([to]).all(|slot| (slot as usize) < state_slots));
        for earlier in step.items[..index].iter().filter_map(|earlier| earlier.state) {
            // An earlier item may read what this one writes over, but not the other way round.
            assert!(earlier.to != to && Some(earlier.to) != from, "{:?}", step.items);
        }
    }
}
