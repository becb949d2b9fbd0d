//! A sequence from its question to its end, and the step that it has a part in.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use cake_proto::StepItem;
use tokio::sync::mpsc;
use tracing::{Span, debug_span};

use super::cache::{KvCache, Lease, Scope};
use super::sampler::Sampler;
use super::step::{Part, Pool, Want};
use super::{Event, Request};

/// A sequence that has no place yet.
pub(super) struct Waiting {
    pub(super) sequence: u64,
    pub(super) request: Request,
    pub(super) events: mpsc::UnboundedSender<Event>,
    pub(super) since: Instant,
    pub(super) span: Span,
    /// The time that it waits.
    pub(super) queue: Span,
}

/// A sequence that has one.
pub(super) struct Running {
    pub(super) sequence: u64,
    pub(super) scope: Scope,
    /// Its blocks; none from the loss of a stage until there is room for it once more.
    pub(super) lease: Option<Lease>,
    /// Away while a step is in flight whose logits choose the next token.
    pub(super) sampler: Option<Box<Sampler>>,
    /// Its final hidden states so far, if it is computed for its embedding.
    pub(super) pool: Option<Pool>,
    /// Tokens that are known: its prompt's and those that were chosen.
    pub(super) known: usize,
    /// Tokens whose rows are computed or on their way.
    pub(super) submitted: usize,
    /// Whether it is one of those that are ready.
    pub(super) is_ready: bool,
    /// Lines that were lost since its last token.
    pub(super) losses: usize,
    /// When the first of them was.
    pub(super) lost_since: Option<Instant>,
    pub(super) prompt_len: usize,
    /// Most rows of it in one step.
    pub(super) chunk_rows: usize,
    /// Tokens that it may grow to.
    pub(super) longest: usize,
    pub(super) stop_ids: Arc<HashSet<u32>>,
    pub(super) max_tokens: usize,
    pub(super) generated: usize,
    /// When it was asked for, or had its last token.
    pub(super) since: Instant,
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// The step that came next when it was admitted.
    pub(super) admitted_before: u64,
    /// Whether it reads blocks that others filled.
    pub(super) shares: bool,
    /// From its question to its end.
    pub(super) span: Span,
}

impl Running {
    /// Rows that are still to be read: of its prompt, or of all of it once more.
    pub(super) fn unread(&self) -> usize {
        if self.is_ready || self.lease.is_none() { 0 } else { self.known - self.submitted }
    }

    /// Those of them that may go into the next step: of the prompt or generated ones, which are
    /// computed in different ways.
    pub(super) fn next_unread(&self) -> usize {
        let prompt = self.prompt_len.saturating_sub(self.submitted).min(self.unread());
        let alike = if prompt > 0 { prompt } else { self.unread() };
        alike.min(self.chunk_rows)
    }

    /// Forgets what the stages held of it. If they held something, it may be the cause of their loss.
    pub(super) fn rewind(&mut self) {
        self.submitted = 0;
        if self.lease.take().is_some() {
            self.losses += 1;
            self.lost_since.get_or_insert_with(Instant::now);
        }
        (self.is_ready, self.shares) = (false, false);
        if let Some(pool) = &mut self.pool {
            *pool = Pool::default();
        }
    }
}

/// A step before it is submitted.
#[derive(Default)]
pub(super) struct Composed {
    pub(super) items: Vec<StepItem>,
    /// Ids of all rows.
    pub(super) ids: Vec<u32>,
    /// Rows whose logits are wanted.
    pub(super) wanted: Vec<u32>,
    /// What is to come of them, in their order.
    pub(super) wants: Vec<Want>,
    /// Its part in the time of each of its sequences.
    pub(super) spans: Vec<Part>,
}

impl Composed {
    /// Adds the next `rows` rows of a sequence that has a place and whose sampler is here.
    pub(super) fn add(&mut self, cache: &mut KvCache, one: &mut Running, rows: usize) {
        let Some(lease) = &mut one.lease else { return };
        let Some(sampler) = one.sampler.take() else { return };
        let (begin, end) = (one.submitted, one.submitted + rows);
        // What it is decides its arithmetic: a prompt's rows and generated ones are never one item.
        let prompt = begin < sampler.prompt_len();
        cache.cover(lease, end);
        cache.publish(lease, &sampler.ids()[..end]);
        let span = debug_span!(parent: &one.span, "step", position = begin, rows, prompt);
        self.items.push(StepItem {
            sequence: one.sequence,
            position: begin,
            rows,
            prompt,
            blocks: lease.blocks(end).to_vec(),
            trace: cake_telemetry::context_of(&span),
        });
        let chooses = end == sampler.ids().len();
        self.spans.push(Part { span, wanted: one.pool.is_some() || chooses });
        self.ids.extend_from_slice(&sampler.ids()[begin..end]);
        one.submitted = end;
        let here = self.ids.len() as u32;
        if one.pool.is_some() {
            self.wanted.extend(here - rows as u32..here);
            self.wants.push(Want::Pooled { sequence: one.sequence, position: begin, rows });
            one.sampler = Some(sampler);
        } else if chooses {
            self.wanted.push(here - 1);
            self.wants.push(Want::Token { sequence: one.sequence, sampler });
        } else {
            one.sampler = Some(sampler);
        }
    }
}
