//! What is to come of a step's wanted rows, and what came of them.

use std::collections::BTreeMap;

use super::Error;
use super::sampler::{Sampler, Token};
use crate::grammar;

/// What is to come of the wanted rows of a sequence.
#[derive(Debug)]
pub(super) enum Want {
    /// The next token, by the logits of the last of so many rows if it `chooses`; the others score tokens of the prompt.
    Token { sequence: u64, sampler: Box<Sampler>, rows: usize, chooses: bool },
    /// The final hidden states of so many rows, from a position on.
    Pooled { sequence: u64, position: usize, rows: usize },
}

impl Want {
    /// Whose rows they are.
    pub(super) fn sequence(&self) -> u64 {
        match self {
            Self::Token { sequence, .. } | Self::Pooled { sequence, .. } => *sequence,
        }
    }

    /// How many they are.
    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Token { rows, .. } | Self::Pooled { rows, .. } => *rows,
        }
    }
}

/// What came of a sequence's wanted rows.
pub(super) enum Chosen {
    /// Its next token, unless it was only scored, and its sampler is back.
    Token { sequence: u64, sampler: Box<Sampler>, token: Option<Token> },
    /// No token: its grammar cannot go on.
    Failed { sequence: u64, error: grammar::Error },
    /// The final hidden states of so many of its rows, from a position on.
    Pooled { sequence: u64, position: usize, rows: Vec<f32>, count: usize },
}

impl Chosen {
    /// Whether it is a part of an embedding.
    pub(super) fn is_pooled(&self) -> bool {
        matches!(self, Self::Pooled { .. })
    }
}

/// A step that came to nothing.
pub(super) struct Failed {
    pub(super) error: Error,
    /// What was to come of it, if it is known: it can be computed again.
    pub(super) wants: Vec<Want>,
}

/// The sum of a prompt's final hidden states, row by row from the first one on: how steps cut the prompt,
/// and in which order they come back, changes no bit of it.
#[derive(Default)]
pub(super) struct Pool {
    sum: Vec<f32>,
    /// Rows in it.
    rows: usize,
    /// Rows that came before those they follow, by their first position.
    early: BTreeMap<usize, (Vec<f32>, usize)>,
}

impl Pool {
    /// Takes `count` rows from `position` on; the mean, once all of a prompt of this length are there.
    pub(super) fn add(
        &mut self,
        position: usize,
        rows: Vec<f32>,
        count: usize,
        prompt_len: usize,
    ) -> Option<Vec<f32>> {
        self.early.insert(position, (rows, count));
        while let Some((rows, count)) = self.early.remove(&self.rows) {
            let width = rows.len() / count.max(1);
            self.sum.resize(width, 0.0);
            for row in rows.chunks_exact(width.max(1)) {
                self.sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            self.rows += count;
        }
        (self.rows == prompt_len)
            .then(|| self.sum.iter().map(|sum| sum / prompt_len as f32).collect())
    }
}
