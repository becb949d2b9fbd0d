//! Who gets blocks: those that wait, as room comes free, and those that lost theirs with a stage.

use std::time::Duration;

use super::actor::Actor;
use super::cache::KvCache;
use super::compose::Line;
use super::ease::Ease;
use super::sampler::{Choice, Sampler};
use super::sequence::{Running, Waiting};
use super::step::Pool;
use super::{Error, Event, Goal, Resumed};
use crate::chunk::Chunk;

/// Lines that a sequence may lose before its next token: after so many, and so long without a token, it is taken
/// to be the cause. A bad link breaks as often within a second.
const MOST_LOSSES: usize = 5;
const LONG_WITHOUT: Duration = Duration::from_secs(60);

impl Actor {
    /// Computes everything again that runs, over another line.
    pub(super) fn resume(&mut self, Resumed { pipeline, chunk, prompt_rows }: Resumed) {
        let line = Line::new(pipeline, chunk, prompt_rows);
        self.ease = Ease::up_to(line.most_prompt_rows()); // Other devices, other times.
        self.line = Some(line);
        self.line_number += 1;
        self.ready.clear();
        let is_cause = |one: &&Running| {
            let long = one.lost_since.is_some_and(|since| since.elapsed() >= LONG_WITHOUT);
            one.losses >= MOST_LOSSES && long
        };
        let unlucky = self.running.iter().filter(is_cause);
        for sequence in unlucky.map(|one| one.sequence).collect::<Vec<_>>() {
            let error = Error::LostAgain { losses: MOST_LOSSES };
            self.end(sequence, Some(Event::Failed(error)));
        }
        self.cache = KvCache::new(self.shared.limits.kv_blocks);
        for one in &mut self.running {
            one.rewind();
            one.chunk_rows = chunk.rows(one.known);
        }
        self.place();
    }

    /// Gives those that lost their blocks with a stage others, in the order in which they were first admitted, as long
    /// as there is room; false if some still have none.
    ///
    /// They share nothing: whoever reads a prefix that another one is still to compute would have to wait for its
    /// steps, and rows that were computed as a prompt's would now be read as generated ones. So they may need more
    /// blocks than before, and some wait until others end. Each fits alone, so that all have their turn.
    fn place(&mut self) -> bool {
        let lost = self.running.iter_mut().filter(|one| one.lease.is_none());
        for one in lost {
            let lease = self.cache.admit(one.scope, &[], one.longest);
            let Ok((lease, _)) = lease else { return false };
            one.lease = Some(lease);
        }
        true
    }

    /// Admits those that wait, in order, as long as there is room for the first: blocks for all that it may need.
    pub(super) fn admit(&mut self, chunk: Chunk) {
        if !self.place() {
            return; // They have come before.
        }
        while self.running.len() < self.shared.limits.most_running
            && let Some(Waiting { request, .. }) = self.waiting.front()
        {
            let longest = self.shared.limits.longest(request);
            // An embedding needs the hidden states of all rows, which no block keeps.
            let known: &[u32] = match request.goal {
                Goal::Answer(_) => &request.prompt,
                Goal::Embedding => &[],
            };
            let Ok((lease, reused)) = self.cache.admit(request.scope, known, longest) else {
                return;
            };
            let Some(Waiting { sequence, request, events, since, span, queue }) =
                self.waiting.pop_front()
            else {
                unreachable!("it was there a moment ago");
            };
            drop(queue);
            span.record("cached_tokens", reused);
            self.shared.metrics.begun(since.elapsed(), request.prompt.len(), reused);
            events.send(Event::Begun { reused_tokens: reused }).ok(); // Its end comes as a command.
            let pool = matches!(request.goal, Goal::Embedding).then(Pool::default);
            let choice = match request.goal {
                Goal::Answer(choice) => *choice,
                Goal::Embedding => Choice::default(),
            };
            self.running.push(Running {
                sequence,
                scope: request.scope,
                lease: Some(lease),
                known: request.prompt.len(),
                submitted: reused,
                is_ready: false,
                losses: 0,
                lost_since: None,
                prompt_len: request.prompt.len(),
                chunk_rows: chunk.rows(request.prompt.len() - reused),
                longest,
                stop_ids: request.stop_ids,
                max_tokens: request.max_tokens,
                generated: 0,
                since,
                pool,
                sampler: Some(Box::new(Sampler::new(request.prompt, choice))),
                events,
                admitted_before: self.next_step,
                shares: reused > 0,
                span,
            });
        }
    }
}
