//! What comes of a step: it is waited for, counted, and its wanted rows become tokens or parts of
//! embeddings.

use std::sync::Arc;
use std::time::Instant;

use tracing::{Span, debug_span};

use super::want::{Chosen, Failed, Want};
use super::{Error, Shared};
use crate::generate::Ends;
use crate::metrics::StepSeen;
use crate::pipeline::{Answer, Ticket};

/// A step's part in the time of one of its sequences.
pub(super) struct Part {
    pub(super) span: Span,
    /// Whether it waits for what the head makes of the step.
    pub(super) wanted: bool,
}

/// What is counted of a step when it comes back.
pub(super) struct Seen {
    pub(super) shared: Arc<Shared>,
    /// Names of the stages.
    pub(super) stages: Arc<[String]>,
    pub(super) sequences: usize,
    pub(super) prompt_rows: usize,
    pub(super) hops: usize,
    pub(super) submitted_at: Instant,
    /// For each of its sequences.
    pub(super) spans: Vec<Part>,
}

impl Seen {
    fn note(&self, answer: &Answer) {
        let seen = StepSeen {
            sequences: self.sequences,
            prompt_rows: self.prompt_rows,
            elapsed: self.submitted_at.elapsed(),
            hops: self.hops,
            stage_us: answer.stage_us.clone(),
            idle_us: answer.idle_us.clone(),
        };
        self.shared.metrics.step(&self.stages, &seen);
    }
}

/// Waits for a step, computes its logits and lets the samplers choose, on a thread that may block.
pub(super) async fn choose(
    ends: Arc<Ends>,
    ticket: Ticket,
    wants: Vec<Want>,
    seen: Seen,
) -> Result<Vec<Chosen>, Failed> {
    let answer = match ticket.answer().await {
        Ok(answer) => answer,
        Err(error) => return Err(Failed { error: error.into(), wants }),
    };
    seen.note(&answer);
    if wants.is_empty() {
        return Ok(Vec::new());
    }
    let work = move || {
        let parts = seen.spans.into_iter().filter(|part| part.wanted);
        let head = |Part { span, .. }| (debug_span!(parent: &span, "head"), span);
        let _heads: Vec<(Span, Span)> = parts.map(head).collect();
        fulfil(&ends, wants, answer.hidden, answer.rows)
    };
    let chosen = match tokio::task::spawn_blocking(work).await {
        Ok(chosen) => chosen.map_err(|error| Error::Engine(Arc::new(error))),
        Err(_) => Err(Error::Panicked),
    };
    chosen.map_err(|error| Failed { error, wants: Vec::new() })
}

/// Rows of a prompt that are scored at once: as many as keep the head's weights busy, and of whose logits, one for each
/// id of the vocabulary, there is room whatever the prompt's length is.
const SCORED_AT_ONCE: usize = 32;

/// What comes of `hidden`, `[rows, hidden_size]`: the rows that `wants` name, in their order.
fn fulfil(
    ends: &Ends,
    wants: Vec<Want>,
    hidden: Vec<f32>,
    rows: usize,
) -> Result<Vec<Chosen>, cake_engine::Error> {
    let width = hidden.len().checked_div(rows).unwrap_or(0);
    let mut chosen = Vec::with_capacity(wants.len());
    let (mut samplers, mut to_score) = (Vec::new(), Vec::new());
    let mut row = 0;
    for want in wants {
        let end = row + want.rows();
        let part = &hidden[row * width..end * width];
        match want {
            Want::Token { sequence, mut sampler, rows, chooses } => {
                let (scored, last) = part.split_at((rows - usize::from(chooses)) * width);
                for rows in scored.chunks(SCORED_AT_ONCE * width.max(1)) {
                    let logits = ends.score(rows.to_vec(), rows.len() / width)?;
                    logits.chunks_exact(ends.vocab_size()).for_each(|row| sampler.score(row));
                }
                match chooses {
                    true => samplers.push((sequence, sampler)),
                    false => chosen.push(Chosen::Token { sequence, sampler, token: None }),
                }
                to_score.extend_from_slice(last);
            }
            Want::Pooled { sequence, position, rows: count } => {
                let rows = ends.normed(part.to_vec(), count)?;
                chosen.push(Chosen::Pooled { sequence, position, rows, count });
            }
        }
        row = end;
    }
    // All rows that need logits at once: the head is read once.
    let logits = ends.score(to_score, samplers.len())?;
    let rows = logits.chunks_exact(ends.vocab_size());
    chosen.extend(samplers.into_iter().zip(rows).map(|((sequence, mut sampler), logits)| {
        match sampler.choose(logits) {
            Ok(token) => Chosen::Token { sequence, sampler, token: Some(token) },
            Err(error) => Chosen::Failed { sequence, error },
        }
    }));
    Ok(chosen)
}
