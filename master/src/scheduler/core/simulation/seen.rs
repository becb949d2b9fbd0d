//! What happened in simulations, so that it is known what they try.

/// What happens in simulations.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Answer,
    Embedding,
    Scored,
    FullContext,
    Reuse,
    FromSnapshot,
    BranchSnapshot,
    AnswerSnapshot,
    Eviction,
    TakeOver,
    FullPool,
    Cancel,
    LostLine,
    LateToken,
    Failure,
    Cause,
    Unplaced,
    GivenUp,
}

impl What {
    pub(super) const ALL: [Self; 18] = [
        Self::Answer,
        Self::Embedding,
        Self::Scored,
        Self::FullContext,
        Self::Reuse,
        Self::FromSnapshot,
        Self::BranchSnapshot,
        Self::AnswerSnapshot,
        Self::Eviction,
        Self::TakeOver,
        Self::FullPool,
        Self::Cancel,
        Self::LostLine,
        Self::LateToken,
        Self::Failure,
        Self::Cause,
        Self::Unplaced,
        Self::GivenUp,
    ];
}

/// How often each of it happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen(pub(super) [usize; What::ALL.len()]);

impl Seen {
    pub(super) fn note(&mut self, what: What, times: usize) {
        self.0[what as usize] += times;
    }

    pub(super) fn with(mut self, more: &Self) -> Self {
        self.0.iter_mut().zip(more.0).for_each(|(count, more)| *count += more);
        self
    }
}
