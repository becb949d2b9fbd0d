//! Responses that were given, so that later requests go on from them. In memory, within bounds, and gone with the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::bodies::MAX_BODY_BYTES;
use crate::api::owner::Owner;

/// Most responses: as many turns as a few dozen conversations have.
const MOST_RESPONSES: usize = 4096;
/// Most bytes of their texts: a few conversations of the largest that are read, or thousands of short ones.
const MOST_BYTES: usize = 64 << 20;

/// One response with what it answers.
#[derive(Debug)]
pub(super) struct Stored {
    /// The response that it goes on from.
    pub(super) before: Option<String>,
    /// What was said to the model: a list of items, as JSON.
    pub(super) input: String,
    /// What it said: another one.
    pub(super) output: String,
    /// The response as it went out.
    pub(super) response: Bytes,
}

impl Stored {
    fn bytes(&self) -> usize {
        let before = self.before.as_ref().map_or(0, String::len);
        before + self.input.len() + self.output.len() + self.response.len()
    }
}

/// Responses by their ids, each for who asked for it and for nobody else. Where there is no room for one more, that which
/// nobody has used for longest goes.
#[derive(Debug)]
pub struct Store {
    shelf: Mutex<Shelf>,
    /// Bytes of what is to be stored with answers that are being made.
    room: Arc<Semaphore>,
}

impl Default for Store {
    fn default() -> Self {
        Self { shelf: Mutex::default(), room: Arc::new(Semaphore::new(MOST_BYTES)) }
    }
}

#[derive(Debug, Default)]
struct Shelf {
    entries: HashMap<String, Entry>,
    bytes: usize,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    owner: Owner,
    /// When it was last used.
    used: u64,
    stored: Arc<Stored>,
}

impl Store {
    /// Room for so many bytes until they are stored, if there is any: no more than one body has.
    pub(super) fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).ok().filter(|_| bytes <= MAX_BODY_BYTES)?;
        self.room.clone().try_acquire_many_owned(bytes).ok()
    }

    /// Keeps a response of `owner`'s under a new id.
    pub(super) fn put(&self, owner: Owner, id: String, stored: Stored) {
        self.within(|shelf| shelf.put(owner, id, stored, (MOST_RESPONSES, MOST_BYTES)));
    }

    /// The response of this id, if `owner` has it.
    pub(super) fn get(&self, owner: Owner, id: &str) -> Option<Arc<Stored>> {
        self.within(|shelf| shelf.use_one(owner, id))
    }

    /// Forgets a response; false if `owner` has none of this id.
    pub(super) fn remove(&self, owner: Owner, id: &str) -> bool {
        self.within(|shelf| shelf.use_one(owner, id).is_some() && shelf.forget(id))
    }

    /// All responses up to this one, the first one first.
    ///
    /// # Errors
    /// The id of one that `owner` does not have, or not any more.
    pub(super) fn conversation(&self, owner: Owner, id: &str) -> Result<Vec<Arc<Stored>>, String> {
        self.within(|shelf| {
            let (mut turns, mut next) = (Vec::new(), Some(id.to_owned()));
            // It ends: each goes on from one that was there before it.
            while let Some(id) = next {
                let stored = shelf.use_one(owner, &id).ok_or(id)?;
                next = stored.before.clone();
                turns.push(stored);
            }
            turns.reverse();
            Ok(turns)
        })
    }

    fn within<T>(&self, work: impl FnOnce(&mut Shelf) -> T) -> T {
        work(&mut self.shelf.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shelf {
    /// Keeps a response where there are at most so many of them with so many bytes, or lets it be if it has more.
    fn put(
        &mut self,
        owner: Owner,
        id: String,
        stored: Stored,
        (most, most_bytes): (usize, usize),
    ) {
        let bytes = stored.bytes();
        if bytes > most_bytes {
            return;
        }
        while self.entries.len() >= most || self.bytes + bytes > most_bytes {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
            self.forget(&oldest);
        }
        self.clock += 1;
        let entry = Entry { owner, used: self.clock, stored: Arc::new(stored) };
        self.bytes += bytes;
        self.entries.insert(id, entry);
    }

    fn use_one(&mut self, owner: Owner, id: &str) -> Option<Arc<Stored>> {
        let entry = self.entries.get_mut(id).filter(|entry| entry.owner == owner)?;
        self.clock += 1;
        entry.used = self.clock;
        Some(entry.stored.clone())
    }

    fn forget(&mut self, id: &str) -> bool {
        let entry = self.entries.remove(id);
        self.bytes -= entry.as_ref().map_or(0, |entry| entry.stored.bytes());
        entry.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(before: Option<&str>, bytes: usize) -> Stored {
        let before = before.map(str::to_owned);
        let response = vec![b'x'; bytes - before.as_ref().map_or(0, String::len)].into();
        Stored { before, input: String::new(), output: String::new(), response }
    }

    #[test]
    fn what_waits_to_be_stored_has_a_bound() {
        let store = Store::default();
        assert!(store.room(MAX_BODY_BYTES + 1).is_none());
        let mut held: Vec<_> = (0..4).map(|_| store.room(MAX_BODY_BYTES)).collect();
        assert!(held.iter().all(Option::is_some) && store.room(1).is_none());
        held.pop();
        assert!(store.room(MAX_BODY_BYTES).is_some());
    }

    #[test]
    fn nobody_reads_or_deletes_what_is_anothers() {
        let (store, other) = (Store::default(), Owner::of_key(1));
        let owner = Owner::of_key(0);
        store.put(owner, "a".to_owned(), stored(None, 10));
        store.put(other, "b".to_owned(), stored(Some("a"), 10));
        assert!(store.get(other, "a").is_none() && store.get(Owner::ALL, "a").is_none());
        assert!(!store.remove(other, "a"));
        // Nor does a conversation lead there.
        assert_eq!(store.conversation(other, "b").map(drop), Err("a".to_owned()));
        assert!(store.get(owner, "a").is_some() && store.remove(owner, "a"));
        assert!(store.get(owner, "a").is_none() && !store.remove(owner, "a"));
    }

    #[test]
    fn a_conversation_is_in_order_and_what_it_lacks_is_named() {
        let (store, owner) = (Store::default(), Owner::ALL);
        for (id, before) in [("a", None), ("b", Some("a")), ("c", Some("b")), ("d", Some("a"))] {
            store.put(owner, id.to_owned(), stored(before, 10));
        }
        let before = |turns: Vec<Arc<Stored>>| {
            turns.iter().map(|stored| stored.before.clone()).collect::<Vec<_>>()
        };
        let expected = [None, Some("a".to_owned()), Some("b".to_owned())];
        assert_eq!(before(store.conversation(owner, "c").unwrap()), expected);
        assert!(store.remove(owner, "b"));
        assert_eq!(store.conversation(owner, "c").map(drop), Err("b".to_owned()));
        assert_eq!(store.conversation(owner, "d").unwrap().len(), 2);
        assert_eq!(store.conversation(owner, "e").map(drop), Err("e".to_owned()));
    }

    #[test]
    fn what_nobody_used_for_longest_goes_first() {
        let (mut shelf, owner) = (Shelf::default(), Owner::ALL);
        let put = |shelf: &mut Shelf, id: &str, bytes| {
            shelf.put(owner, id.to_owned(), stored(None, bytes), (3, 100));
        };
        let ids = |shelf: &Shelf| {
            let mut ids: Vec<String> = shelf.entries.keys().cloned().collect();
            ids.sort();
            ids.concat()
        };
        for id in ["a", "b", "c"] {
            put(&mut shelf, id, 30);
        }
        assert!(shelf.use_one(owner, "a").is_some());
        put(&mut shelf, "d", 10); // There are as many as there may be.
        assert_eq!((ids(&shelf).as_str(), shelf.bytes), ("acd", 70));
        put(&mut shelf, "e", 65); // There is room once the two oldest are gone.
        assert_eq!((ids(&shelf).as_str(), shelf.bytes), ("de", 75));
        put(&mut shelf, "f", 101);
        assert_eq!((ids(&shelf).as_str(), shelf.bytes), ("de", 75));
        put(&mut shelf, "g", 100);
        assert_eq!((ids(&shelf).as_str(), shelf.bytes), ("g", 100));
    }
}
