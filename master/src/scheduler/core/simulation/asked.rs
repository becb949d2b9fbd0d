//! What is asked for in a simulation, by numbers that follow from its seed, and what the answers have to be.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::super::PipelineShape;
use super::model::{Truth, VOCAB, mix};
use crate::chunk::Chunk;
use crate::generate::Finish;
use crate::scheduler::cache::Scope;
use crate::scheduler::request::{Goal, Request};
use crate::scheduler::sampler::Choice;

/// Numbers that follow from a seed.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    /// One of `[0, sides)`.
    pub(super) fn below(&mut self, sides: usize) -> usize {
        self.0 = mix(self.0, 1);
        (self.0 >> 32) as usize % sides.max(1)
    }

    /// One of `[least, most]`.
    pub(super) fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    pub(super) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// So many ids.
pub(super) fn ids(dice: &mut Dice, len: usize) -> Vec<u32> {
    (0..len).map(|_| dice.below(VOCAB) as u32).collect()
}

/// Some stages, whose steps have room for so many rows of prompts at most.
pub(super) fn pipeline(dice: &mut Dice, prompt_rows: usize) -> PipelineShape {
    let alone = dice.one_in(3);
    let stages = if alone { 1 } else { dice.between(1, 4) };
    let chunk = match dice.one_in(2) {
        true => Chunk::exactly(dice.between(1, prompt_rows)),
        false => Chunk::over_stages(stages, prompt_rows),
    };
    PipelineShape::new(stages, alone, chunk, dice.between(1, prompt_rows))
}

/// What somebody might ask for where sequences may have `context` tokens: prompts begin as others do with a part of one of
/// `prefixes`, or go on with all that one of `earlier` sequences came to.
pub(super) fn request(
    dice: &mut Dice,
    context: usize,
    prefixes: &[Vec<u32>],
    earlier: &[(Scope, Vec<u32>)],
) -> Request {
    let most = context - 1;
    let scope = match dice.below(4) {
        0 => Scope::of_key(0),
        1 => Scope::of_key(1),
        _ => Scope::ALL,
    };
    let prefix = &prefixes[dice.below(prefixes.len())];
    let shared = dice.below(prefix.len().min(most) + 1);
    let (scope, prefix, shared) = match earlier.get(dice.below(3 * earlier.len())) {
        Some((scope, ids)) => (*scope, ids, ids.len().min(most)),
        None => (scope, prefix, shared),
    };
    let own = dice.between(usize::from(shared == 0), (most - shared).clamp(1, 12));
    let mut prompt = [&prefix[..shared], &ids(dice, own)].concat();
    prompt.truncate(most);
    let stop_ids: HashSet<u32> = match dice.one_in(3) {
        true => HashSet::from([dice.below(VOCAB) as u32]),
        false => HashSet::new(),
    };
    let goal = match dice.one_in(6) {
        true => Goal::Embedding,
        false => {
            let scores_prompt = dice.one_in(4);
            Goal::Answer(Box::new(Choice { scores_prompt, top_logprobs: 1, ..Choice::default() }))
        }
    };
    let max_tokens = match dice.one_in(4) {
        true => dice.between(1, 200),
        false => dice.between(0, 20),
    };
    Request { prompt, max_tokens, stop_ids: Arc::new(stop_ids), goal, scope }
}

/// A sequence that was asked for and is not over.
pub(super) struct Asked {
    pub(super) prompt_len: usize,
    pub(super) embedding: Option<Vec<f32>>,
    /// If its prompt is to be scored and was not yet: each token of it but the first, and what is most probable there.
    pub(super) scores: Option<Vec<(u32, u32)>>,
    /// The tokens that are to come, and how they end.
    pub(super) tokens: Vec<u32>,
    pub(super) finish: Finish,
    /// Of these, so many have come.
    pub(super) heard: usize,
    pub(super) reused: Option<usize>,
    /// The step that was to leave next when it was given blocks that others fill; none where it has none of theirs.
    pub(super) shares_from: Option<u64>,
    /// Pipelines lost since the last token, and since when.
    pub(super) losses: usize,
    pub(super) lost_since: Duration,
    /// Steps that left since one left that brought it on.
    pub(super) passed_over: usize,
}

impl Asked {
    /// Nothing of it has been heard yet.
    pub(super) fn new(request: &Request, context: usize, is_recurrent: bool) -> Self {
        let prompt = &request.prompt;
        let (mut truth, mut tokens) = (Truth::new(is_recurrent), Vec::new());
        let mut next = truth.next(prompt);
        let is_answer = matches!(request.goal, Goal::Answer(_));
        let is_scored = matches!(&request.goal, Goal::Answer(choice) if choice.scores_prompt);
        let scores = is_scored.then(|| {
            let mut truth = Truth::new(is_recurrent);
            prompt.windows(2).map(|ids| (ids[1], truth.next(&ids[..1]))).collect()
        });
        let finish = loop {
            if is_answer && request.max_tokens == 0 {
                break Finish::Length;
            }
            if !is_answer || request.stop_ids.contains(&next) {
                break Finish::Stop;
            }
            tokens.push(next);
            if tokens.len() == request.max_tokens {
                break Finish::Length;
            }
            if prompt.len() + tokens.len() == context {
                break Finish::Context;
            }
            next = truth.next(&[next]);
        };
        Self {
            prompt_len: prompt.len(),
            embedding: (!is_answer).then(|| Truth::embedding(prompt, is_recurrent)),
            scores,
            tokens,
            finish,
            heard: 0,
            reused: None,
            shares_from: None,
            losses: 0,
            lost_since: Duration::ZERO,
            passed_over: 0,
        }
    }
}
