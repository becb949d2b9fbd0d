//! What those who asked hear in a simulation: each word has to be true, and the next one.

use std::time::Duration;

use super::asked::Asked;
use super::seen::What;
use super::{Effect, Simulation};
use crate::generate::Finish;
use crate::scheduler::cache::Scope;
use crate::scheduler::request::{Error, Event};

impl Simulation {
    /// Hears what is told to those who asked, each word of which has to be true and the next one.
    pub(super) fn hear(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Begun { sequence, prompt_tokens, reused_tokens, .. } => {
                    assert!(sequence > self.last_begun, "in the order of arrival");
                    self.last_begun = sequence;
                    let asked = self.asked.get_mut(&sequence).expect("it was asked for");
                    assert_eq!(prompt_tokens, asked.prompt_len);
                    let shared = self.shared_by(sequence);
                    assert!(reused_tokens <= shared && shared < prompt_tokens);
                    assert!(reused_tokens == shared || self.is_recurrent());
                    let (others, known) = self.history.split_at(sequence as usize - 1);
                    let (scope, ids) = &known[0];
                    let mut theirs = others.iter().filter(|(other, _)| other == scope);
                    let same = |(_, other): &(Scope, Vec<u32>)| other.starts_with(&ids[..shared]);
                    assert!(shared == 0 || theirs.any(same), "of its own scope");
                    let asked = self.asked.get_mut(&sequence).expect("as above");
                    assert!(asked.reused.replace(reused_tokens).is_none(), "once");
                    asked.shares_from = (shared > 0).then_some(self.next_step);
                    asked.losses = 0;
                    let from_snapshot = self.is_recurrent() && reused_tokens > 0;
                    self.seen.note(What::Reuse, usize::from(shared > 0));
                    self.seen.note(What::FromSnapshot, usize::from(from_snapshot));
                }
                Effect::Scored { sequence, tokens } => {
                    let asked = self.asked.get_mut(&sequence).expect("it was asked for");
                    assert_eq!((asked.reused, asked.heard), (Some(0), 0), "all of it, and first");
                    let found = tokens.iter().map(|token| (token.id, token.top[0].0)).collect();
                    assert_eq!(asked.scores.take(), Some(found));
                    self.seen.note(What::Scored, 1);
                }
                Effect::Token { sequence, token, is_first, .. } => {
                    let asked = self.asked.get_mut(&sequence).expect("it was asked for");
                    assert!(asked.reused.is_some() && asked.scores.is_none(), "it has begun");
                    assert_eq!(is_first, asked.heard == 0);
                    assert_eq!(Some(&token.id), asked.tokens.get(asked.heard), "the next token");
                    asked.heard += 1;
                    asked.losses = 0;
                }
                Effect::Over { sequence, event, generated } => {
                    let asked = self.asked.remove(&sequence).expect("it was asked for");
                    assert_eq!(generated, asked.heard);
                    self.over(sequence, &asked, event.expect("nobody cancelled it"));
                }
                Effect::StepFailed { .. } => {}
                Effect::PipelineLost { .. } => self.close(),
            }
        }
    }

    fn over(&mut self, sequence: u64, asked: &Asked, event: Event) {
        match event {
            Event::Ended(finish) => {
                assert_eq!((asked.heard, finish), (asked.tokens.len(), asked.finish));
                assert_eq!(asked.scores, None, "they were told");
                self.seen.note(What::Answer, 1);
                self.seen.note(What::FullContext, usize::from(finish == Finish::Context));
            }
            Event::Embedding(mean) => {
                assert_eq!(Some(mean), asked.embedding);
                self.seen.note(What::Embedding, 1);
            }
            Event::Failed(Error::Unrecovered(_)) => {
                assert!(self.gave_up);
                self.seen.note(What::GivenUp, 1);
            }
            Event::Failed(Error::LostAgain { losses }) => {
                let long = self.now - asked.lost_since >= Duration::from_secs(60);
                assert!(asked.losses > losses && long, "{losses} in a row");
                self.seen.note(What::Cause, 1);
            }
            Event::Failed(error) => {
                assert!(self.to_fail.remove(&sequence), "{sequence} fails: {error}");
                self.seen.note(What::Failure, 1);
            }
            Event::Begun { .. } | Event::Scored(_) | Event::Token(_) => {
                panic!("{event:?} is not the end")
            }
        }
    }
}
