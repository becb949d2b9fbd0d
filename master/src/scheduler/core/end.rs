//! How sequences end before their time, and what is done whenever one ends.

use super::effect::Effect;
use super::sequence::{Running, Waiting};
use super::state::Core;
use crate::scheduler::request::{Error, Event};

impl Core {
    /// Ends a sequence that nobody asks for any more, if it is there still.
    pub(in crate::scheduler) fn cancel(&mut self, sequence: u64) -> Vec<Effect> {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.sequence != sequence);
        if self.waiting.len() < before {
            self.effects.push(Effect::Over { sequence, event: None, generated: 0 });
        }
        self.end(sequence, None);
        self.effects()
    }

    /// Ends everything, if it waits for a pipeline.
    pub(in crate::scheduler) fn give_up(&mut self, error: &Error) -> Vec<Effect> {
        if self.pipeline.is_some() {
            return Vec::new();
        }
        for Waiting { sequence, .. } in std::mem::take(&mut self.waiting) {
            let event = Some(Event::Failed(error.clone()));
            self.effects.push(Effect::Over { sequence, event, generated: 0 });
        }
        let running: Vec<u64> = self.running.iter().map(|one| one.sequence).collect();
        for sequence in running {
            self.end(sequence, Some(Event::Failed(error.clone())));
        }
        self.effects()
    }

    /// Ends a running sequence, if it is one, and says so.
    pub(super) fn end(&mut self, sequence: u64, event: Option<Event>) {
        let Some(index) = self.running.iter().position(|one| one.sequence == sequence) else {
            return;
        };
        let Running { lease, generated, .. } = self.running.remove(index);
        if let Some(lease) = lease {
            self.cache.release(lease);
        }
        self.ready.retain(|ready| *ready != sequence);
        self.effects.push(Effect::Over { sequence, event, generated });
    }
}
