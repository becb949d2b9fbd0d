//! Memory that several may take a share of, up to a bound for all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are left.
#[derive(Debug)]
pub(crate) struct Room(AtomicUsize);

/// Bytes that were taken; they are left again once this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    pub(crate) fn of(bytes: usize) -> Arc<Room> {
        Arc::new(Room(AtomicUsize::new(bytes)))
    }

    /// So many bytes, if they are left.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Some(Share { room: self.clone(), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_left_again() {
        let room = Room::of(10);
        let six = room.take(6).unwrap();
        assert!(room.take(5).is_none());
        let four = room.take(4).unwrap();
        assert!(room.take(1).is_none());
        drop(six);
        assert!(room.take(7).is_none());
        drop(four);
        assert!(room.take(10).is_some());
    }
}
