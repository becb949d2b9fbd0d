//! The layout of one step: which rows belong to which sequence, and where their past lies.

use std::collections::HashSet;
use std::ops::Range;

use crate::error::Error;
use crate::options::{EngineOptions, Numerics};

/// One step's layout; the rows of `hidden` follow in item order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// The parts of the step.
    pub items: Vec<BatchItem>,
}

/// Consecutive rows of one sequence.
///
/// A stage keeps no length of a sequence, so rolling back needs no call: an item whose `position` is
/// lower than before overwrites what lay there, and rows see no position after their own. Of recurrent layers that needs a
/// slot in which the state at that position was left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchItem {
    /// The sequence, for messages only.
    pub sequence: u64,
    /// Positions of this sequence that are in the KV cache already; the index of the first row.
    pub position: usize,
    /// Rows of this item.
    pub rows: usize,
    /// Whether the rows are of a prompt, whose arithmetic may be coarser than that of generated rows
    /// ([`Numerics`]). Running a step again must say the same.
    pub prompt: bool,
    /// The blocks that hold positions `0..position + rows`, in order; more are ignored.
    pub blocks: Vec<u32>,
    /// Positions whose keys and values are in the blocks already and stay as they are; some of its own rows' perhaps,
    /// which then are computed for the state of recurrent layers.
    pub known: usize,
    /// Where the state of recurrent layers is; needed by stages that have such.
    pub state: Option<StateSlots>,
}

/// The slots of the state of recurrent layers that one item reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateSlots {
    /// Holds the state before the item's rows; `None` where these are the sequence's first, which begin with zeros.
    pub from: Option<u32>,
    /// Gets the state after them, over what was there; may be the same.
    pub to: u32,
}

impl Batch {
    /// The rows of all items, each with its position and blocks, after checking every number.
    pub(crate) fn rows(&self, options: &EngineOptions) -> Result<Vec<AttendRow<'_>>, Error> {
        let mut rows = Vec::new();
        for item in &self.items {
            item.check(options)?;
            // `rows` is at most `max_positions` here, and the caller compares with `hidden`.
            rows.extend((item.position..item.position + item.rows).map(|position| AttendRow {
                position,
                blocks: &item.blocks,
                is_known: position < item.known,
            }));
        }
        Ok(rows)
    }

    /// Checks that every item says where the state of its sequence is, and that none overwrites what another one needs.
    ///
    /// # Errors
    /// [`Error::NoState`], [`Error::NoSuchSlot`], [`Error::WrongState`] or [`Error::SlotInUse`].
    pub(crate) fn check_states(&self, options: &EngineOptions) -> Result<(), Error> {
        let mut written = HashSet::new();
        // An item without rows changes nothing, whatever it says.
        for &BatchItem { sequence, position, state, .. } in
            self.items.iter().filter(|item| item.rows > 0)
        {
            let StateSlots { from, to } = state.ok_or(Error::NoState { sequence })?;
            let state_slots = options.state_slots;
            let mut named = from.into_iter().chain([to]);
            if let Some(slot) = named.find(|slot| *slot as usize >= state_slots) {
                return Err(Error::NoSuchSlot { sequence, slot, state_slots });
            }
            if from.is_some() != (position > 0) {
                return Err(Error::WrongState { sequence, position, from });
            }
            // Items pass one after the other: what comes later may overwrite what was read.
            if let Some(slot) = from.filter(|slot| written.contains(slot)) {
                return Err(Error::SlotInUse { sequence, slot });
            }
            if !written.insert(to) {
                return Err(Error::SlotInUse { sequence, slot: to });
            }
        }
        Ok(())
    }

    /// What kind of arithmetic each row gets.
    pub(crate) fn kinds(&self, numerics: Numerics) -> RowKinds {
        let mut kinds = RowKinds { runs: Vec::new() };
        for item in &self.items {
            kinds.push(item.prompt && numerics.rounds(), item.rows);
        }
        kinds
    }

    /// Rows of all items together, or `None` when that overflows.
    pub(crate) fn row_count(&self) -> Option<usize> {
        self.items.iter().try_fold(0usize, |sum, item| sum.checked_add(item.rows))
    }
}

/// Whose past one row sees.
#[derive(Clone, Copy)]
pub(crate) struct AttendRow<'a> {
    /// The row's own position, whose key and value are in the cache already.
    pub(crate) position: usize,
    /// The blocks of its sequence, in order of position.
    pub(crate) blocks: &'a [u32],
    /// Whether these have its key and value from before, which stay as they are.
    pub(crate) is_known: bool,
}

/// Which rows of a step may have their activations rounded as a prompt's, as runs of rows of one kind.
///
/// The choice follows what a row is, never how many rows come with it, so that neither batches nor
/// chunks of a prompt change a bit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RowKinds {
    /// Whether the rows may be rounded, and how many of them follow each other; none are empty and
    /// neighbours differ.
    runs: Vec<(bool, usize)>,
}

impl RowKinds {
    /// `rows` rows that are not of a prompt.
    pub(crate) fn generated(rows: usize) -> RowKinds {
        let mut kinds = RowKinds { runs: Vec::new() };
        kinds.push(false, rows);
        kinds
    }

    /// The kinds of some of these rows, ascending.
    pub(crate) fn select(&self, rows: &[usize]) -> RowKinds {
        let mut kinds = RowKinds { runs: Vec::new() };
        let mut rest = rows;
        for (run, rounded) in self.runs() {
            let (these, others) = rest.split_at(rest.partition_point(|row| *row < run.end));
            kinds.push(rounded, these.len());
            rest = others;
        }
        kinds
    }

    fn push(&mut self, rounded: bool, rows: usize) {
        match self.runs.last_mut() {
            _ if rows == 0 => {}
            Some((last, count)) if *last == rounded => *count += rows,
            _ => self.runs.push((rounded, rows)),
        }
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.runs.iter().map(|(_, rows)| rows).sum()
    }

    /// The runs in order: rows, and whether they may be rounded.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Range<usize>, bool)> {
        self.runs.iter().scan(0, |start, &(rounded, rows)| {
            let run = *start..*start + rows;
            *start = run.end;
            Some((run, rounded))
        })
    }
}

impl BatchItem {
    fn check(&self, options: &EngineOptions) -> Result<(), Error> {
        let &BatchItem { sequence, position, rows, .. } = self;
        let max_positions = options.max_positions;
        let positions = position
            .checked_add(rows)
            .filter(|&end| end <= max_positions)
            .ok_or(Error::ContextFull { sequence, position, rows, max_positions })?;
        let (need, have) = (positions.div_ceil(options.block_positions), self.blocks.len());
        if have < need {
            return Err(Error::TooFewBlocks { sequence, positions, need, have });
        }
        let kv_blocks = options.kv_blocks;
        match self.blocks.iter().find(|&&block| block as usize >= kv_blocks) {
            Some(&block) => Err(Error::NoSuchBlock { sequence, block, kv_blocks }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(position: usize, rows: usize, blocks: &[u32]) -> BatchItem {
        BatchItem {
            sequence: 7,
            position,
            rows,
            prompt: false,
            blocks: blocks.to_vec(),
            known: 0,
            state: None,
        }
    }

    fn check(item: BatchItem) -> Result<usize, Error> {
        let options = EngineOptions { max_positions: 40, ..EngineOptions::new(4) };
        Batch { items: vec![item] }.rows(&options).map(|rows| rows.len())
    }

    #[test]
    fn accepts_rows_that_their_blocks_hold() {
        assert_eq!(check(item(14, 3, &[3, 0])).unwrap(), 3);
        assert_eq!(check(item(0, 16, &[1, 2, 3])).unwrap(), 16);
    }

    #[test]
    fn rows_of_one_kind_form_runs() {
        let item = |rows, prompt| BatchItem { prompt, ..item(0, rows, &[]) };
        let items = [(1, false), (1, false), (0, true), (4, true), (2, true), (1, false)];
        let batch = Batch { items: items.map(|(rows, prompt)| item(rows, prompt)).to_vec() };
        let runs: Vec<_> = batch.kinds(Numerics::Fast).runs().collect();
        assert_eq!(runs, [(0..2, false), (2..8, true), (8..9, false)]);
        assert_eq!(batch.kinds(Numerics::Exact), RowKinds::generated(9));
        assert_eq!(RowKinds::generated(0).runs().count(), 0);
    }

    #[test]
    fn some_rows_keep_their_kinds() {
        let item = |rows, prompt| BatchItem { prompt, ..item(0, rows, &[]) };
        let batch = Batch { items: vec![item(2, false), item(3, true), item(2, false)] };
        let kinds = batch.kinds(Numerics::Fast).select(&[1, 2, 4, 6]);
        assert_eq!(kinds.runs().collect::<Vec<_>>(), [(0..1, false), (1..3, true), (3..4, false)]);
        assert_eq!(batch.kinds(Numerics::Fast).select(&[]), RowKinds::generated(0));
    }

    #[test]
    fn rejects_too_few_blocks() {
        let error = check(item(14, 3, &[3])).unwrap_err();
        assert!(matches!(error, Error::TooFewBlocks { need: 2, have: 1, positions: 17, .. }));
    }

    #[test]
    fn rejects_a_block_outside_the_pool() {
        let error = check(item(0, 1, &[4])).unwrap_err();
        assert!(matches!(error, Error::NoSuchBlock { block: 4, kv_blocks: 4, .. }));
    }

    #[test]
    fn rejects_states_that_are_nowhere_or_overwritten_too_early() {
        let options = EngineOptions { state_slots: 3, ..EngineOptions::new(4) };
        type Slots = Option<(Option<u32>, u32)>;
        let check = |items: &[(usize, Slots)]| {
            let state = |(from, to)| StateSlots { from, to };
            let item = |&(position, slots): &(usize, Slots)| BatchItem {
                state: slots.map(state),
                ..item(position, 1, &[0])
            };
            Batch { items: items.iter().map(item).collect() }.check_states(&options)
        };
        assert!(matches!(check(&[(0, None)]), Err(Error::NoState { sequence: 7 })));
        let outside = check(&[(4, Some((Some(3), 0)))]);
        assert!(matches!(outside, Err(Error::NoSuchSlot { slot: 3, state_slots: 3, .. })));
        let outside = check(&[(0, Some((None, 3)))]);
        assert!(matches!(outside, Err(Error::NoSuchSlot { slot: 3, .. })));
        for wrong in [(0, Some((Some(1), 1))), (4, Some((None, 1)))] {
            assert!(matches!(check(&[wrong]), Err(Error::WrongState { .. })));
        }
        // What was read may be overwritten, what was written not be read, nor written once more.
        assert!(check(&[(4, Some((Some(1), 0))), (0, Some((None, 1)))]).is_ok());
        for (second, slot) in [((4, Some((Some(0), 2))), 0), ((0, Some((None, 0))), 0)] {
            let found = check(&[(4, Some((Some(1), 0))), second]);
            assert!(matches!(found, Err(Error::SlotInUse { slot: it, .. }) if it == slot));
        }
    }

    #[test]
    fn rejects_positions_past_the_context_and_past_arithmetic() {
        for (position, rows) in [(40, 1), (0, 41), (usize::MAX, 2)] {
            let error = check(item(position, rows, &[0, 1, 2, 3])).unwrap_err();
            assert!(matches!(error, Error::ContextFull { max_positions: 40, .. }));
        }
    }
}
