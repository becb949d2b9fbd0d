//! KV blocks of all sequences: which are free, which are held, and which keep a prefix for later. Beside them are the
//! slots for the state of recurrent layers (`states`), if the model has such: a sequence holds blocks and a state, and both
//! come to be known by the same prefix.
//!
//! A block is in one of three states:
//!
//! ```text
//! free ──take──▶ held by one sequence ──publish──▶ known by its prefix, held by any number
//!   ▲                │ release                        │ release of the last holder   ▲
//!   └────────────────┘                                ▼                              │ share
//!   ▲                                          known, held by nobody ────────────────┘
//!   └──────────────── taken for another ──────────────┘ (least recently used first)
//! ```
//!
//! A known block is full and never written again, so every sequence that begins with its prefix may read
//! it. It is found by the block before it and its own token ids, compared as they are: no hash decides. The first
//! block of a chain is found by the scope that computed it: nobody learns what prompts of another scope began with.
//!
//! With recurrent layers, a sequence that finds known blocks shares them all the same, but begins at the last of them
//! that has a snapshot of the state, or at position 0: rows up to the end of those blocks are computed once more for the
//! state alone, and write no keys and values.

use std::collections::{BTreeMap, HashMap};

use cake_engine::{BLOCK_POSITIONS, blocks_for};
use cake_proto::StateSlots;

use states::{StateIn, States};
pub(super) use terms::Full;
use terms::NodeId;
pub use terms::Usage;

mod states;
mod terms;
#[cfg(test)]
mod tests;

/// What a known block is found by: what comes before it, and its token ids.
type Key = (Before, Box<[u32]>);

/// What comes before a known block: another one, or nothing in its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Before {
    Nothing(Scope),
    Block(NodeId),
}

/// Whose sequences share prefixes with each other, and with nobody else's: how many tokens of a prompt were there
/// already, and how fast it is read, would tell one client what the prompts of another begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope(Option<u32>);

impl Scope {
    /// All who need not be told from each other.
    pub const ALL: Self = Self(None);

    /// Whoever asks with the key at this place of the list of keys.
    pub fn of_key(index: usize) -> Self {
        Self(Some(u32::try_from(index).unwrap_or(u32::MAX)))
    }
}

/// The blocks and slots of every stage's pools: all stages have the same ones.
#[derive(Debug)]
pub(super) struct KvCache {
    states: States,
    free: Vec<u32>,
    /// Known blocks.
    nodes: HashMap<NodeId, Node>,
    children: HashMap<Key, NodeId>,
    /// Known blocks that nobody holds, by when they were last used.
    idle: BTreeMap<u64, NodeId>,
    /// Blocks that running sequences may still take.
    promised: usize,
    next_node: NodeId,
    clock: u64,
    total: usize,
}

#[derive(Debug)]
struct Node {
    block: u32,
    key: Key,
    holders: usize,
    /// Its place in `idle`, while nobody holds it.
    idle_since: Option<u64>,
}

/// The blocks that one sequence holds, and where its state is. Given back with [`KvCache::release`].
#[derive(Debug, Default)]
pub(super) struct Lease {
    scope: Scope,
    blocks: Vec<u32>,
    /// The first blocks of it that are known, which others may hold too.
    known: Vec<NodeId>,
    /// How many of them were known when it began.
    shared: usize,
    /// No later block can become known, since an equal one is known already.
    private: bool,
    /// Blocks that it may still take.
    promised: usize,
    state: StateIn,
    /// The block after which it last kept its state until it would do so again.
    kept: Option<NodeId>,
}

/// How long the state after some rows is worth a slot, if they end a known block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// It is not.
    No,
    /// Until the slot is needed: others may begin there.
    Long,
    /// Until the sequence keeps a later one: whoever goes on with all of it begins at the last.
    UntilNext,
}

impl KvCache {
    /// Pools of `total` blocks and of `state_slots` slots, all free. Without recurrent layers there are no slots.
    pub(super) fn new(total: usize, state_slots: usize) -> Self {
        Self {
            states: States::new(state_slots),
            // Taken from the end: low numbers first, so that a short sequence touches little memory.
            free: (0..total as u32).rev().collect(),
            nodes: HashMap::new(),
            children: HashMap::new(),
            idle: BTreeMap::new(),
            promised: 0,
            next_node: 0,
            clock: 0,
            total,
        }
    }

    /// A lease for a sequence of `scope` that begins with `prompt` and grows to at most `positions` tokens, and how
    /// many of the prompt's tokens need not be computed. The last one always is: its logits are needed.
    ///
    /// # Errors
    /// [`Full`] if the blocks that it may come to need, or a slot, cannot be promised now.
    pub(super) fn admit(
        &mut self,
        scope: Scope,
        prompt: &[u32],
        positions: usize,
    ) -> Result<(Lease, usize), Full> {
        let reusable = prompt.len().saturating_sub(1);
        let known = self.known_prefix(scope, &prompt[..reusable]);
        let promised = blocks_for(positions).saturating_sub(known.len());
        let woken = known.iter().filter(|node| self.nodes[node].holders == 0).count();
        let available = self.free.len() + self.idle.len() - woken;
        if available < self.promised + promised {
            return Err(Full);
        }
        let (state, begin) = self.states.begin(&known)?;
        for node in &known {
            let node = self.nodes.get_mut(node).expect("found above");
            node.holders += 1;
            if let Some(since) = node.idle_since.take() {
                self.idle.remove(&since);
            }
        }
        self.promised += promised;
        let blocks = known.iter().map(|node| self.nodes[node].block).collect();
        let shared = known.len();
        let lease =
            Lease { scope, blocks, known, shared, private: false, promised, state, kept: None };
        Ok((lease, begin * BLOCK_POSITIONS))
    }

    /// The longest chain of known blocks of `scope` that `ids` begins with.
    fn known_prefix(&self, scope: Scope, ids: &[u32]) -> Vec<NodeId> {
        let mut known: Vec<NodeId> = Vec::new();
        for ids in ids.chunks_exact(BLOCK_POSITIONS) {
            match self.children.get(&(Before::last_of(&known, scope), ids.into())) {
                Some(node) => known.push(*node),
                None => break,
            }
        }
        known
    }

    /// Makes `lease` cover positions `[0, positions)`, taking what was promised to it.
    ///
    /// # Panics
    /// If that is more than was promised.
    pub(super) fn cover(&mut self, lease: &mut Lease, positions: usize) {
        while lease.blocks.len() < blocks_for(positions) {
            lease.promised = lease.promised.checked_sub(1).expect("within what was admitted");
            self.promised -= 1;
            lease.blocks.push(self.take());
        }
    }

    /// A free block, else the one that was not used for the longest time.
    fn take(&mut self) -> u32 {
        if let Some(block) = self.free.pop() {
            return block;
        }
        let (_, node) = self.idle.pop_first().expect("a promised block is free or idle");
        self.unknow(node)
    }

    /// Forgets a known block that nobody holds.
    fn unknow(&mut self, id: NodeId) -> u32 {
        let node = self.nodes.remove(&id).expect("idle blocks are known");
        if self.children.get(&node.key) == Some(&id) {
            self.children.remove(&node.key);
        }
        self.states.drop_idle(id); // Nobody is at a snapshot of a block that nobody holds.
        node.block
    }

    /// Says that `ids`, the first tokens of the sequence, are computed or will be before any later step:
    /// blocks that are full of them become known.
    pub(super) fn publish(&mut self, lease: &mut Lease, ids: &[u32]) {
        for ids in ids.chunks_exact(BLOCK_POSITIONS).skip(lease.known.len()) {
            if lease.private {
                return;
            }
            let key: Key = (Before::last_of(&lease.known, lease.scope), ids.into());
            if self.children.contains_key(&key) {
                lease.private = true; // Somebody else was first; what follows hangs on that block.
                return;
            }
            let node = self.next_node;
            self.next_node += 1;
            let block = lease.blocks[lease.known.len()];
            self.children.insert(key.clone(), node);
            self.nodes.insert(node, Node { block, key, holders: 1, idle_since: None });
            lease.known.push(node);
        }
    }

    /// Lets a sequence go on by rows that end at position `end`, after they were covered and published: the slots that
    /// they read and write, if the model has a state. What is written is kept there for as long as `keep` says, unless it
    /// does not end a known block, or that has a snapshot already.
    pub(super) fn advance(
        &mut self,
        lease: &mut Lease,
        end: usize,
        keep: Keep,
    ) -> Option<StateSlots> {
        let slots = self.states.advance(&mut lease.state)?;
        let is_border = end.is_multiple_of(BLOCK_POSITIONS);
        let block = (end / BLOCK_POSITIONS).checked_sub(1).filter(|_| is_border);
        if keep != Keep::No
            && let Some(node) = block.and_then(|block| lease.known.get(block))
            && self.states.keep(&mut lease.state, *node)
            && keep == Keep::UntilNext
            && let Some(before) = lease.kept.replace(*node)
        {
            self.states.drop_idle(before);
        }
        Some(slots)
    }

    /// Takes back what a sequence held; known blocks and snapshots stay until their room is needed.
    pub(super) fn release(&mut self, lease: Lease) {
        self.states.end(lease.state);
        self.promised -= lease.promised;
        self.free.extend(lease.blocks[lease.known.len()..].iter().rev());
        // From the end, so that of a chain the last block goes first.
        for id in lease.known.iter().rev() {
            let node = self.nodes.get_mut(id).expect("held blocks are known");
            node.holders -= 1;
            if node.holders == 0 {
                self.clock += 1;
                node.idle_since = Some(self.clock);
                self.idle.insert(self.clock, *id);
            }
        }
    }

    /// Forgets all prefixes: what the stages hold of them is not known any more.
    pub(super) fn forget(&mut self) {
        while let Some((_, node)) = self.idle.pop_first() {
            let block = self.unknow(node);
            self.free.push(block);
        }
        // Those that are held are not found any more.
        self.children.clear();
        self.states.forget();
    }

    /// How blocks are used.
    pub(super) fn usage(&self) -> Usage {
        let (free, idle) = (self.free.len(), self.idle.len());
        Usage { total: self.total, held: self.total - free - idle, idle, free }
    }

    /// How slots are used; there are none without recurrent layers.
    pub(super) fn state_usage(&self) -> Usage {
        self.states.usage()
    }
}

impl Before {
    /// What comes before the block that follows these.
    fn last_of(known: &[NodeId], scope: Scope) -> Self {
        known.last().map_or(Self::Nothing(scope), |node| Self::Block(*node))
    }
}

impl Lease {
    /// The blocks of positions `[0, positions)`, in order.
    pub(super) fn blocks(&self, positions: usize) -> &[u32] {
        &self.blocks[..blocks_for(positions)]
    }

    /// Positions whose keys and values were there when it began; more perhaps than need not be computed.
    pub(super) fn shared(&self) -> usize {
        self.shared * BLOCK_POSITIONS
    }

    /// Whether its state is in a snapshot.
    #[cfg(test)]
    pub(super) fn is_at_snapshot(&self) -> bool {
        matches!(self.state, StateIn::Snapshot(_))
    }
}
