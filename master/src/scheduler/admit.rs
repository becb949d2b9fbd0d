//! Who gets blocks: those that wait, as room comes free, and those that lost theirs with a stage.

use std::time::Duration;

use super::Goal;
use super::compose::Line;
use super::core::{Core, Effect};
use super::sampler::{Choice, Sampler};
use super::sequence::{Running, Waiting};
use super::want::Pool;

/// Lines that a sequence may lose before its next token: after so many, and so long without a token, it is taken
/// to be the cause. A bad link breaks as often within a second.
pub(super) const MOST_LOSSES: usize = 5;
const LONG_WITHOUT: Duration = Duration::from_secs(60);

impl Core {
    /// Those that seem to be the cause of the losses of lines.
    pub(super) fn causes(&self, now: Duration) -> Vec<u64> {
        let is_cause = |one: &&Running| {
            let long =
                one.lost_since.is_some_and(|since| now.saturating_sub(since) >= LONG_WITHOUT);
            one.losses >= MOST_LOSSES && long
        };
        self.running.iter().filter(is_cause).map(|one| one.sequence).collect()
    }

    /// Gives those that lost their blocks with a stage others, in the order in which they were first admitted, as long
    /// as there is room; false if some still have none.
    ///
    /// They share nothing: whoever reads a prefix that another one is still to compute would have to wait for its
    /// steps, and rows that were computed as a prompt's would now be read as generated ones. So they may need more
    /// blocks than before, and some wait until others end. Each fits alone, so that all have their turn.
    pub(super) fn place(&mut self) -> bool {
        let lost = self.running.iter_mut().filter(|one| one.lease.is_none());
        for one in lost {
            let lease = self.cache.admit(one.scope, &[], one.longest);
            let Ok((lease, _)) = lease else { return false };
            one.lease = Some(lease);
        }
        true
    }

    /// Admits those that wait, in order, as long as there is a line, and room for the first: blocks for all that it
    /// may need.
    pub(super) fn admit(&mut self, now: Duration) -> Vec<Effect> {
        // Whoever lost blocks with a stage has come before.
        if let Some(line) = self.line
            && self.place()
        {
            while self.running.len() < self.limits.most_running && self.admit_first(&line, now) {}
        }
        self.effects()
    }

    /// Admits the one that waits for the longest time; false if there is none, or no room for it.
    fn admit_first(&mut self, line: &Line, now: Duration) -> bool {
        let Some(Waiting { request, .. }) = self.waiting.front() else { return false };
        let longest = self.limits.longest(request);
        // An embedding needs the hidden states of all rows, which no block keeps.
        let known: &[u32] = match request.goal {
            Goal::Answer(_) => &request.prompt,
            Goal::Embedding => &[],
        };
        let Ok((lease, reused)) = self.cache.admit(request.scope, known, longest) else {
            return false;
        };
        let Some(Waiting { sequence, request, since }) = self.waiting.pop_front() else {
            unreachable!("it was there a moment ago");
        };
        let prompt_len = request.prompt.len();
        self.effects.push(Effect::Begun {
            sequence,
            waited: now.saturating_sub(since),
            prompt_tokens: prompt_len,
            reused_tokens: reused,
        });
        let pool = matches!(request.goal, Goal::Embedding).then(Pool::default);
        let choice = match request.goal {
            Goal::Answer(choice) => *choice,
            Goal::Embedding => Choice::default(),
        };
        self.running.push(Running {
            sequence,
            scope: request.scope,
            lease: Some(lease),
            known: prompt_len,
            submitted: reused,
            is_ready: false,
            losses: 0,
            lost_since: None,
            prompt_len,
            chunk_rows: line.chunk.rows(prompt_len - reused),
            longest,
            stop_ids: request.stop_ids,
            max_tokens: request.max_tokens,
            generated: 0,
            since,
            pool,
            sampler: Some(Box::new(Sampler::new(request.prompt, choice))),
            admitted_before: self.next_step,
            shares: reused > 0,
        });
        true
    }
}
