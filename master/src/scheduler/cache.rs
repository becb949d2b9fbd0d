//! KV blocks of all sequences: which are free, which are held, and which keep a prefix for later.
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

use std::collections::{BTreeMap, HashMap};

use cake_engine::{BLOCK_POSITIONS, blocks_for};
use serde::Serialize;

/// Names a known block for as long as the process runs; a block that is taken and becomes known again
/// has another one.
type NodeId = u64;

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

/// The blocks of every stage's pool: all stages have the same ones.
#[derive(Debug)]
pub(super) struct KvCache {
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

/// The blocks that one sequence holds. Given back with [`KvCache::release`].
#[derive(Debug, Default)]
pub(super) struct Lease {
    scope: Scope,
    blocks: Vec<u32>,
    /// The first blocks of it that are known, which others may hold too.
    known: Vec<NodeId>,
    /// No later block can become known, since an equal one is known already.
    private: bool,
    /// Blocks that it may still take.
    promised: usize,
}

/// There is no room now; there will be once others have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// How blocks are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// All there are.
    pub total: usize,
    /// Held by sequences.
    pub held: usize,
    /// Kept for a prefix that may come again, held by nobody.
    pub idle: usize,
    /// Empty.
    pub free: usize,
}

impl KvCache {
    /// A pool of `total` blocks, all free.
    pub(super) fn new(total: usize) -> Self {
        Self {
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
    /// many of the prompt's tokens are there already. The last one never is: its logits are needed.
    ///
    /// # Errors
    /// [`Full`] if the blocks that it may come to need cannot be promised now.
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
        for node in &known {
            let node = self.nodes.get_mut(node).expect("found above");
            node.holders += 1;
            if let Some(since) = node.idle_since.take() {
                self.idle.remove(&since);
            }
        }
        self.promised += promised;
        let blocks = known.iter().map(|node| self.nodes[node].block).collect();
        let reused = known.len() * BLOCK_POSITIONS;
        Ok((Lease { scope, blocks, known, private: false, promised }, reused))
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

    /// Takes back what a sequence held; known blocks stay until their room is needed.
    pub(super) fn release(&mut self, lease: Lease) {
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
    }

    /// How they are used.
    pub(super) fn usage(&self) -> Usage {
        let (free, idle) = (self.free.len(), self.idle.len());
        Usage { total: self.total, held: self.total - free - idle, idle, free }
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const B: usize = BLOCK_POSITIONS;

    fn ids(len: usize) -> Vec<u32> {
        (0..len as u32).collect()
    }

    /// Admits and covers a sequence, and says that its whole prompt is computed.
    fn begin(cache: &mut KvCache, prompt: &[u32], more: usize) -> (Lease, usize) {
        let (mut lease, reused) =
            cache.admit(Scope::ALL, prompt, prompt.len() + more).expect("room");
        cache.cover(&mut lease, prompt.len());
        cache.publish(&mut lease, prompt);
        (lease, reused)
    }

    #[test]
    fn a_prefix_is_shared_with_running_sequences_and_ended_ones() {
        let mut cache = KvCache::new(10);
        let prompt = ids(3 * B + 5);
        let (first, reused) = begin(&mut cache, &prompt, 0);
        assert_eq!((reused, first.blocks.len()), (0, 4));
        let (second, reused) = begin(&mut cache, &prompt, 0);
        assert_eq!(reused, 3 * B);
        assert_eq!(second.blocks[..3], first.blocks[..3]);
        assert_ne!(second.blocks[3], first.blocks[3]);
        assert_eq!(cache.usage(), Usage { total: 10, held: 5, idle: 0, free: 5 });
        cache.release(first);
        cache.release(second);
        assert_eq!(cache.usage(), Usage { total: 10, held: 0, idle: 3, free: 7 });
        let other: Vec<u32> = [&prompt[..2 * B], &[7; 40]].concat();
        let (third, reused) = begin(&mut cache, &other, 0);
        assert_eq!(reused, 2 * B);
        cache.release(third);
    }

    #[test]
    fn a_scope_finds_its_own_prefixes_and_nobody_elses() {
        let mut cache = KvCache::new(20);
        let prompt = ids(2 * B + 1);
        let scopes = [Scope::ALL, Scope::of_key(0), Scope::of_key(1)];
        for scope in scopes {
            let (mut lease, reused) = cache.admit(scope, &prompt, prompt.len()).expect("room");
            assert_eq!(reused, 0, "{scope:?}");
            cache.cover(&mut lease, prompt.len());
            cache.publish(&mut lease, &prompt);
            cache.release(lease);
        }
        assert_eq!(cache.usage().idle, 3 * 2, "each has its own");
        for scope in scopes {
            let (lease, reused) = cache.admit(scope, &prompt, prompt.len()).expect("room");
            assert_eq!(reused, 2 * B, "{scope:?}");
            cache.release(lease);
        }
    }

    #[test]
    fn the_last_prompt_token_is_always_computed() {
        let mut cache = KvCache::new(10);
        let (lease, _) = begin(&mut cache, &ids(2 * B), 0);
        cache.release(lease);
        let (lease, reused) = begin(&mut cache, &ids(2 * B), 0);
        assert_eq!(reused, B);
        cache.release(lease);
        let (lease, reused) = begin(&mut cache, &ids(2 * B + 1), 0);
        assert_eq!(reused, 2 * B);
        cache.release(lease);
    }

    #[test]
    fn what_is_generated_is_known_too_once_a_block_is_full() {
        let mut cache = KvCache::new(10);
        let all = ids(3 * B);
        let (mut lease, _) = begin(&mut cache, &all[..B + 3], 2 * B);
        cache.cover(&mut lease, 3 * B);
        cache.publish(&mut lease, &all[..2 * B - 1]);
        assert_eq!(lease.known.len(), 1);
        cache.publish(&mut lease, &all);
        assert_eq!(lease.known.len(), 3);
        cache.release(lease);
        assert_eq!(cache.admit(Scope::ALL, &all, 3 * B).expect("room").1, 2 * B);
    }

    #[test]
    fn a_block_that_is_promised_is_there_when_it_is_needed() {
        let mut cache = KvCache::new(4);
        let (mut first, _) = cache.admit(Scope::ALL, &ids(3), 2 * B).expect("room");
        let (mut second, _) = cache.admit(Scope::ALL, &[9, 9], 2 * B).expect("room");
        assert_eq!(cache.admit(Scope::ALL, &[5], 1).expect_err("all are promised"), Full);
        cache.cover(&mut first, 2 * B);
        cache.cover(&mut second, 2 * B);
        cache.release(first);
        let (third, _) = cache.admit(Scope::ALL, &[5], 1).expect("room again");
        cache.release(second);
        cache.release(third);
        assert_eq!(cache.usage().free, 4);
        assert_eq!(cache.promised, 0);
    }

    #[test]
    fn idle_blocks_that_a_sequence_shares_are_not_promised_to_it_twice() {
        let mut cache = KvCache::new(3);
        let (lease, _) = begin(&mut cache, &ids(3 * B), 0);
        cache.release(lease);
        assert_eq!(cache.usage().idle, 3);
        // Two blocks are shared, so that one is left, but two more are needed.
        assert_eq!(cache.admit(Scope::ALL, &ids(2 * B + 1), 4 * B).expect_err("no room"), Full);
        assert_eq!(cache.admit(Scope::ALL, &ids(2 * B + 1), 3 * B).expect("room").1, 2 * B);
    }

    #[test]
    fn the_least_recently_used_prefix_goes_first_and_from_its_end() {
        let mut cache = KvCache::new(4);
        let (old, _) = begin(&mut cache, &[vec![1; B], vec![2; B]].concat(), 0);
        let (new, _) = begin(&mut cache, &[vec![3; B], vec![4; B]].concat(), 0);
        cache.release(old);
        cache.release(new);
        let (lease, _) = begin(&mut cache, &[5; 3], 0);
        let reused = |cache: &KvCache, first: u32| {
            cache.known_prefix(Scope::ALL, &[vec![first; B], vec![first + 1; B]].concat()).len()
        };
        assert_eq!((reused(&cache, 1), reused(&cache, 3)), (1, 2));
        cache.release(lease);
    }

    #[test]
    fn two_that_compute_the_same_at_once_leave_one_copy() {
        let mut cache = KvCache::new(10);
        let prompt = ids(2 * B + 1);
        let (mut one, _) = cache.admit(Scope::ALL, &prompt, prompt.len()).expect("room");
        let (mut other, _) = cache.admit(Scope::ALL, &prompt, prompt.len()).expect("room");
        for lease in [&mut one, &mut other] {
            cache.cover(lease, prompt.len());
            cache.publish(lease, &prompt);
        }
        cache.release(one);
        cache.release(other);
        assert_eq!(cache.usage(), Usage { total: 10, held: 0, idle: 2, free: 8 });
    }

    #[test]
    fn what_is_forgotten_is_not_found_and_comes_back_as_free() {
        let mut cache = KvCache::new(6);
        let (ended, _) = begin(&mut cache, &[vec![1; B], vec![2; B]].concat(), 0);
        cache.release(ended);
        let (running, _) = begin(&mut cache, &[7; B], 0);
        cache.forget();
        assert_eq!(cache.usage(), Usage { total: 6, held: 1, idle: 0, free: 5 });
        let (again, reused) = begin(&mut cache, &[7; B + 1], 0);
        assert_eq!(reused, 0);
        cache.release(running);
        cache.release(again);
        let usage = cache.usage();
        assert_eq!((usage.held, usage.free + usage.idle), (0, 6));
    }

    proptest! {
        /// Whatever sequences come and go: no block is lost, none is held twice but as a shared prefix.
        #[test]
        fn no_block_is_lost_or_given_twice(
            moves in prop::collection::vec(
                (0..4usize, 0..3u32, 1..90usize, 0..60usize, 0..2usize), 1..60)
        ) {
            let mut cache = KvCache::new(12);
            let mut running: Vec<(Lease, Vec<u32>)> = Vec::new();
            for (what, first, len, more, key) in moves {
                let scope = Scope::of_key(key);
                let prompt: Vec<u32> = (0..len as u32).map(|at| at / 20 * first).collect();
                if what == 0 && !running.is_empty() {
                    let (lease, _) = running.remove(len % running.len());
                    cache.release(lease);
                } else if what == 3 && more == 0 {
                    cache.forget();
                } else if let Ok((mut lease, reused)) = cache.admit(scope, &prompt, len + more) {
                    prop_assert!(reused < len);
                    cache.cover(&mut lease, len + more);
                    let ids: Vec<u32> = prompt.iter().copied().chain((0..more as u32).map(|at| at % 3)).collect();
                    cache.publish(&mut lease, &ids);
                    running.push((lease, ids));
                }
                let usage = cache.usage();
                let mut held: Vec<u32> = running.iter().flat_map(|(lease, _)| lease.blocks.clone()).collect();
                held.sort_unstable();
                held.dedup();
                prop_assert_eq!(held.len(), usage.held);
                // Who shares a block is of the same scope and has the same tokens up to its end.
                for (index, (lease, ids)) in running.iter().enumerate() {
                    for (other, other_ids) in &running[..index] {
                        for (at, block) in lease.blocks.iter().enumerate() {
                            if let Some(there) = other.blocks.iter().position(|b| b == block) {
                                prop_assert_eq!(there, at);
                                prop_assert_eq!(lease.scope, other.scope);
                                let end = (at + 1) * B;
                                prop_assert!(ids.len() >= end && other_ids.len() >= end);
                                prop_assert_eq!(&ids[..end], &other_ids[..end]);
                            }
                        }
                    }
                }
            }
            for (lease, _) in running {
                cache.release(lease);
            }
            let usage = cache.usage();
            prop_assert_eq!((usage.held, usage.free + usage.idle), (0, 12));
        }
    }
}
