//! Who asks, as far as requests are told from each other.

use crate::scheduler::Scope;

/// Whoever asks with one key, or all who ask where no key is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(Option<usize>);

impl Owner {
    /// All, as nobody needs a key.
    pub(super) const ALL: Self = Self(None);

    /// Whoever asks with the key at this place of the list of keys.
    pub(super) fn of_key(index: usize) -> Self {
        Self(Some(index))
    }

    /// Which line of the list of keys it has, from 1, where keys are asked for.
    pub(super) fn key(self) -> Option<usize> {
        self.0.map(|index| index + 1)
    }

    /// With whom it shares what prompts begin with.
    pub(super) fn scope(self, share_prefixes: bool) -> Scope {
        match self.0 {
            Some(index) if !share_prefixes => Scope::of_key(index),
            _ => Scope::ALL,
        }
    }
}
