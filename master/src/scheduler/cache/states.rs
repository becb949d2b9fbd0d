//! Slots for the state of recurrent layers: which are free, where each sequence's state is, and which keep one for later.
//!
//! The state of a sequence has one size however long that is. It holds every token so far and cannot be cut back, so that
//! another sequence can only begin where one was kept: in a snapshot, which is the state after exactly the positions up
//! to the end of a known block. A slot is in one of four states:
//!
//! ```text
//! free ──take──▶ one sequence's own ──keep──▶ a snapshot that sequences are at
//!   ▲              │ end      ▲ ▲               │      │ the last of them goes on, or ends  ▲
//!   ├──────────────┘          │ └── take over ──┘      ▼                                    │ begin
//!   │                         └───── take ────── a snapshot that nobody is at ──────────────┘
//!   └───────────────────────────────────────────────────┘ forgotten
//! ```
//!
//! At most as many sequences have begun as there are slots, and each is in one slot at most: its own, or a snapshot that it
//! shares with others. So whoever needs a slot finds a free one, or a snapshot that nobody is at, of which the one that was
//! not used for the longest time goes; or else it is alone at its snapshot, and takes that over.

use std::collections::{BTreeMap, HashMap};

use cake_proto::StateSlots;

use super::terms::{Full, NodeId, Usage};

/// Where the state of a sequence is. Given back with [`States::end`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum StateIn {
    /// Nothing of it is computed, or the model has no such state.
    #[default]
    Nothing,
    /// A slot of its own.
    Own(u32),
    /// The snapshot of this block, which stays until the sequence goes on.
    Snapshot(NodeId),
}

/// The slots of every stage's pool: all stages have the same ones. None, if the model has no recurrent layer.
#[derive(Debug)]
pub(super) struct States {
    free: Vec<u32>,
    snapshots: HashMap<NodeId, Snapshot>,
    /// Snapshots that nobody is at, by when they were last used.
    idle: BTreeMap<u64, NodeId>,
    /// Sequences that have begun and not ended.
    begun: usize,
    clock: u64,
    total: usize,
}

#[derive(Debug)]
struct Snapshot {
    slot: u32,
    /// Sequences that are at it.
    pins: usize,
    /// Its place in `idle`, while there are none.
    used: u64,
    /// Nobody begins at it any more, and it goes with the last of those that are at it.
    forgotten: bool,
}

impl States {
    /// A pool of `total` slots, all free.
    pub(super) fn new(total: usize) -> Self {
        Self {
            // Taken from the end: low numbers first, as blocks are.
            free: (0..total as u32).rev().collect(),
            snapshots: HashMap::new(),
            idle: BTreeMap::new(),
            begun: 0,
            clock: 0,
            total,
        }
    }

    /// Lets a sequence begin that shares a chain of known blocks: where its state is, and how many blocks of the chain it
    /// is after. Without recurrent layers that is all of them.
    ///
    /// # Errors
    /// [`Full`] if as many sequences have begun as there are slots.
    pub(super) fn begin(&mut self, chain: &[NodeId]) -> Result<(StateIn, usize), Full> {
        if self.total > 0 && self.begun == self.total {
            return Err(Full);
        }
        self.begun += 1;
        if self.total == 0 {
            return Ok((StateIn::Nothing, chain.len()));
        }
        let is_kept = |node| self.snapshots.get(node).is_some_and(|kept| !kept.forgotten);
        let Some(last) = chain.iter().rposition(is_kept) else {
            return Ok((StateIn::Nothing, 0));
        };
        self.pin(chain[last]);
        Ok((StateIn::Snapshot(chain[last]), last + 1))
    }

    /// Lets a sequence go on by some rows: the slots that they read and write, if the model has such. From now on its
    /// state is in a slot of its own.
    pub(super) fn advance(&mut self, state: &mut StateIn) -> Option<StateSlots> {
        if self.total == 0 {
            return None;
        }
        let (from, to) = match *state {
            StateIn::Nothing => {
                (None, self.take().expect("others hold fewer slots than there are"))
            }
            StateIn::Own(slot) => (Some(slot), slot),
            StateIn::Snapshot(node) => {
                let from = self.snapshots[&node].slot;
                let to = match self.take() {
                    Some(to) => {
                        self.unpin(node);
                        to
                    }
                    // Every other sequence holds another slot, so that nobody else is at this one.
                    None => {
                        let taken = self.snapshots.remove(&node);
                        debug_assert!(taken.is_some_and(|taken| taken.pins == 1));
                        from
                    }
                };
                (Some(from), to)
            }
        };
        *state = StateIn::Own(to);
        Some(StateSlots { from, to })
    }

    /// Makes the slot that is a sequence's own the snapshot of `node`, where that sequence then is. False if there is one
    /// of that block already, which counts as used.
    pub(super) fn keep(&mut self, state: &mut StateIn, node: NodeId) -> bool {
        let StateIn::Own(slot) = *state else { return false };
        if self.snapshots.contains_key(&node) {
            self.pin(node);
            self.unpin(node);
            return false;
        }
        self.clock += 1;
        let snapshot = Snapshot { slot, pins: 1, used: self.clock, forgotten: false };
        self.snapshots.insert(node, snapshot);
        *state = StateIn::Snapshot(node);
        true
    }

    /// Takes back what a sequence held; a snapshot stays until its slot is needed.
    pub(super) fn end(&mut self, state: StateIn) {
        self.begun -= 1;
        match state {
            StateIn::Nothing => {}
            StateIn::Own(slot) => self.free.push(slot),
            StateIn::Snapshot(node) => self.unpin(node),
        }
    }

    /// Frees the snapshot of a block, if there is one that nobody is at.
    pub(super) fn drop_idle(&mut self, node: NodeId) {
        if let Some(&Snapshot { slot, pins: 0, used, .. }) = self.snapshots.get(&node) {
            self.snapshots.remove(&node);
            self.idle.remove(&used);
            self.free.push(slot);
        }
    }

    /// Forgets all snapshots: what the stages hold of them is not known any more.
    pub(super) fn forget(&mut self) {
        while let Some((_, node)) = self.idle.pop_first() {
            self.free.extend(self.snapshots.remove(&node).map(|snapshot| snapshot.slot));
        }
        for pinned in self.snapshots.values_mut() {
            pinned.forgotten = true;
        }
    }

    /// How they are used.
    pub(super) fn usage(&self) -> Usage {
        let (free, idle) = (self.free.len(), self.idle.len());
        Usage { total: self.total, held: self.total - free - idle, idle, free }
    }

    /// A free slot, else that of the snapshot that was not used for the longest time; none if sequences hold all.
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let (_, node) = self.idle.pop_first()?;
            self.snapshots.remove(&node).map(|snapshot| snapshot.slot)
        })
    }

    /// One more sequence is at a snapshot.
    fn pin(&mut self, node: NodeId) {
        let snapshot = self.snapshots.get_mut(&node).expect("it was found");
        self.idle.remove(&snapshot.used);
        self.clock += 1;
        snapshot.used = self.clock;
        snapshot.pins += 1;
    }

    /// One sequence less is.
    fn unpin(&mut self, node: NodeId) {
        let snapshot = self.snapshots.get_mut(&node).expect("it stays while somebody is at it");
        snapshot.pins -= 1;
        if snapshot.pins > 0 {
            return;
        }
        self.idle.insert(snapshot.used, node);
        if snapshot.forgotten {
            self.drop_idle(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Begins a sequence that shares these blocks, and says that it is after so many of them.
    fn begin(states: &mut States, chain: &[NodeId], after: usize) -> StateIn {
        let (state, found) = states.begin(chain).expect("room");
        assert_eq!(found, after);
        state
    }

    /// A sequence of no shared blocks that has written its state, which is in the returned slot, too.
    fn written(states: &mut States) -> (StateIn, u32) {
        let mut state = begin(states, &[], 0);
        let slots = states.advance(&mut state).expect("there are slots");
        assert_eq!(slots.from, None);
        (state, slots.to)
    }

    /// Leaves a snapshot of a block that nobody is at.
    fn leave(states: &mut States, node: NodeId) -> u32 {
        let (mut state, slot) = written(states);
        assert!(states.keep(&mut state, node));
        states.end(state);
        slot
    }

    fn usage(states: &States) -> (usize, usize, usize) {
        let Usage { held, idle, free, .. } = states.usage();
        (held, idle, free)
    }

    #[test]
    fn without_slots_everything_that_is_known_is_there() {
        let mut states = States::new(0);
        for _ in 0..3 {
            let mut state = begin(&mut states, &[4, 5], 2);
            assert_eq!(states.advance(&mut state), None);
            assert!(!states.keep(&mut state, 5));
            states.end(state);
        }
        assert_eq!(states.usage(), Usage::default());
    }

    #[test]
    fn a_sequence_begins_at_the_last_snapshot_and_goes_on_elsewhere() {
        let mut states = States::new(4);
        let (first, second) = (leave(&mut states, 1), leave(&mut states, 2));
        let mut state = begin(&mut states, &[1, 2, 3], 2);
        assert_eq!(usage(&states), (1, 1, 2));
        let slots = states.advance(&mut state).expect("there are slots");
        assert_eq!(slots.from, Some(second));
        assert!(![first, second].contains(&slots.to));
        let next = states.advance(&mut state).expect("there are slots");
        assert_eq!(
            (next.from, next.to),
            (Some(slots.to), slots.to),
            "in its own slot from then on"
        );
        assert_eq!(usage(&states), (1, 2, 1));
        states.end(state);
        assert_eq!(usage(&states), (0, 2, 2));
    }

    #[test]
    fn the_snapshot_that_was_not_used_for_the_longest_time_goes_first() {
        let mut states = States::new(3);
        let slots = [1, 2, 3].map(|node| leave(&mut states, node));
        let state = begin(&mut states, &[1], 1);
        states.end(state); // The first one was used last.
        let (mut writer, slot) = written(&mut states);
        assert_eq!(slot, slots[1]);
        assert!(!states.keep(&mut writer, 3), "there is one, which is used by that");
        let (_, slot) = written(&mut states);
        assert_eq!(slot, slots[0]);
        begin(&mut states, &[1, 2, 3], 3);
    }

    #[test]
    fn a_snapshot_that_somebody_is_at_stays() {
        let mut states = States::new(3);
        let kept = leave(&mut states, 1);
        let (mut one, mut other) = (begin(&mut states, &[1], 1), begin(&mut states, &[1], 1));
        states.drop_idle(1);
        let (_, third) = written(&mut states);
        assert_ne!(third, kept);
        let first = states.advance(&mut one).expect("there are slots");
        assert_eq!(first.from, Some(kept));
        assert!(![kept, third].contains(&first.to));
        let second = states.advance(&mut other).expect("there are slots");
        assert_eq!((second.from, second.to), (Some(kept), kept), "nobody else is at it any more");
        assert_eq!(states.begin(&[]).expect_err("as many as there are slots"), Full);
    }

    #[test]
    fn in_the_only_slot_a_sequence_takes_its_own_snapshot_over() {
        let mut states = States::new(1);
        let (mut state, slot) = written(&mut states);
        assert!(states.keep(&mut state, 1));
        assert_eq!(states.begin(&[1]).expect_err("it is held"), Full);
        let slots = states.advance(&mut state).expect("there are slots");
        assert_eq!((slots.from, slots.to), (Some(slot), slot));
        assert!(states.keep(&mut state, 2));
        states.end(state);
        let state = begin(&mut states, &[1], 0);
        states.end(state);
        begin(&mut states, &[1, 2], 2);
    }

    #[test]
    fn what_is_forgotten_is_free_once_nobody_is_at_it() {
        let mut states = States::new(4);
        leave(&mut states, 1);
        let kept = leave(&mut states, 2);
        let (mut one, other) = (begin(&mut states, &[2], 1), begin(&mut states, &[2], 1));
        states.forget();
        assert_eq!(usage(&states), (1, 0, 3));
        let late = begin(&mut states, &[1, 2], 0);
        states.end(other);
        assert_eq!(usage(&states), (1, 0, 3));
        assert_eq!(states.advance(&mut one).expect("there are slots").from, Some(kept));
        assert_eq!(usage(&states), (1, 0, 3), "its own one, and the snapshot is free");
        states.end(one);
        states.end(late);
        assert_eq!(usage(&states), (0, 0, 4));
    }

    /// A sequence, and what its state has to be.
    struct Run {
        state: StateIn,
        wanted: u64,
    }

    proptest! {
        /// Whatever sequences come and go: each reads what it or the snapshot's maker wrote, always finds a slot, and no
        /// slot is lost.
        #[test]
        fn every_state_is_where_it_was_written(
            total in 1..6usize,
            moves in prop::collection::vec((0..9usize, 0..8usize, 0..8u64), 1..120),
        ) {
            let mut states = States::new(total);
            let (mut slots, mut kept) = (vec![0u64; total], HashMap::new());
            let mut running: Vec<Run> = Vec::new();
            for (written, (what, which, node)) in (1u64..).zip(moves) {
                if what < 3 || running.is_empty() {
                    let chain: Vec<NodeId> = (node / 2..=node).collect();
                    match states.begin(&chain) {
                        Ok((state, 0)) => running.push(Run { state, wanted: 0 }),
                        Ok((state, after)) => {
                            running.push(Run { state, wanted: kept[&chain[after - 1]] });
                        }
                        Err(Full) => prop_assert_eq!(running.len(), total),
                    }
                    continue;
                }
                let which = which % running.len();
                let Run { state, wanted } = &mut running[which];
                match what {
                    3..6 => {
                        let StateSlots { from, to } = states.advance(state).expect("there are slots");
                        prop_assert_eq!(from.map_or(0, |slot| slots[slot as usize]), *wanted);
                        slots[to as usize] = written;
                        *wanted = written;
                    }
                    6 => {
                        if states.keep(state, node) {
                            kept.insert(node, *wanted);
                        }
                    }
                    7 => states.end(running.remove(which).state),
                    _ if node == 0 => states.forget(),
                    _ => states.drop_idle(node),
                }
                let held = |run: &Run| match &run.state {
                    StateIn::Nothing => None,
                    StateIn::Own(slot) => Some(*slot),
                    StateIn::Snapshot(node) => Some(states.snapshots[node].slot),
                };
                let mut held: Vec<u32> = running.iter().filter_map(held).collect();
                held.sort_unstable();
                held.dedup();
                prop_assert_eq!(held.len(), states.usage().held);
                prop_assert_eq!(states.idle.len() + held.len() + states.free.len(), total);
            }
            running.into_iter().for_each(|run| states.end(run.state));
            prop_assert_eq!(states.usage().held, 0);
            states.forget();
            prop_assert_eq!(states.usage().free, total);
        }
    }
}
