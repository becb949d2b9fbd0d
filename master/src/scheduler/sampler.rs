//! One sequence's ids, and how its next one is chosen.

use std::collections::HashMap;

use cake_engine::{SamplingOptions, logprobs, sample};

use crate::grammar::{self, Grammar};

/// How tokens are chosen.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Temperature, filters, seed.
    pub options: SamplingOptions,
    /// Added to the scores of these tokens.
    pub bias: Vec<(u32, f32)>,
    /// Taken from the score of every token that was generated.
    pub presence_penalty: f32,
    /// Taken from it for each time that it was.
    pub frequency_penalty: f32,
    /// So many of the most probable tokens come with each chosen one.
    pub top_logprobs: usize,
    /// Whether the prompt's own tokens are scored before the first one is chosen.
    pub scores_prompt: bool,
    /// What the answer must keep to.
    pub grammar: Option<Grammar>,
}

/// A token that was chosen, or one of a prompt that is scored.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its log-probability by the model alone.
    pub logprob: f32,
    /// The most probable tokens with theirs, the best first.
    pub top: Vec<(u32, f32)>,
}

/// Ids so far, and how to choose the next.
#[derive(Debug)]
pub(super) struct Sampler {
    ids: Vec<u32>,
    prompt_len: usize,
    choice: Choice,
    /// The prompt's tokens from the second on, as far as they are scored.
    scores: Vec<Token>,
}

impl Sampler {
    pub(super) fn new(prompt: Vec<u32>, choice: Choice) -> Self {
        Self { prompt_len: prompt.len(), ids: prompt, choice, scores: Vec::new() }
    }

    /// Prompt and generated ids.
    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// How many of them are the prompt's.
    pub(super) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Of the rows at positions `[begin, end)`, how many have logits that are wanted: always the last ones. The last of
    /// all rows chooses a token; where the prompt is scored, each other row of it scores the token after its own, once.
    pub(super) fn wanted(&self, begin: usize, end: usize) -> usize {
        let chooses = usize::from(end == self.ids.len());
        match self.choice.scores_prompt {
            true => {
                end.min(self.prompt_len - 1).saturating_sub(begin.max(self.scores.len())) + chooses
            }
            false => chooses,
        }
    }

    /// Scores the next of the prompt's tokens by the model's `logits` of the row before it, one for each id.
    pub(super) fn score(&mut self, logits: &[f32]) {
        if let Some(&id) = self.ids[..self.prompt_len].get(self.scores.len() + 1) {
            let token = scored(id, logits, self.choice.top_logprobs);
            self.scores.push(token);
        }
    }

    /// The prompt's tokens from the second on, scored; given once, and only if they were to be scored.
    pub(super) fn take_scores(&mut self) -> Option<Vec<Token>> {
        let scores_prompt = std::mem::take(&mut self.choice.scores_prompt);
        scores_prompt.then(|| std::mem::take(&mut self.scores))
    }

    /// Whether the answer is complete, whatever the model might go on with.
    pub(super) fn is_complete(&self) -> bool {
        self.choice.grammar.as_ref().is_some_and(Grammar::is_over)
    }

    /// Chooses the next token by the model's `logits`, one for each id, and takes it.
    ///
    /// # Errors
    /// If the grammar cannot go on.
    pub(super) fn choose(&mut self, logits: &[f32]) -> Result<Token, grammar::Error> {
        let position = self.ids.len() as u64;
        let scores = self.adjusted(logits)?;
        let chosen =
            sample(scores.as_deref().unwrap_or(logits), &self.ids, position, &self.choice.options);
        // Those of the model alone, also where the scores were changed.
        let token = match (&scores, self.choice.top_logprobs) {
            (None, 0) => Token { id: chosen.token, logprob: chosen.logprob, top: Vec::new() },
            (_, count) => scored(chosen.token, logits, count),
        };
        if let Some(grammar) = &mut self.choice.grammar {
            grammar.take(chosen.token)?;
        }
        self.ids.push(chosen.token);
        Ok(token)
    }

    /// The scores with bias, penalties and what the grammar forbids, if there is any of it.
    fn adjusted(&mut self, logits: &[f32]) -> Result<Option<Vec<f32>>, grammar::Error> {
        let Choice { bias, presence_penalty, frequency_penalty, grammar, .. } = &mut self.choice;
        let penalised = *presence_penalty != 0.0 || *frequency_penalty != 0.0;
        if bias.is_empty() && !penalised && grammar.is_none() {
            return Ok(None);
        }
        let mut scores = logits.to_vec();
        let mut change = |id: u32, by: f32| {
            if let Some(score) = scores.get_mut(id as usize) {
                *score += by;
            }
        };
        bias.iter().for_each(|(id, by)| change(*id, *by));
        if penalised {
            let mut counts: HashMap<u32, f32> = HashMap::new();
            for id in &self.ids[self.prompt_len..] {
                *counts.entry(*id).or_default() += 1.0;
            }
            for (id, count) in counts {
                change(id, -(*presence_penalty + *frequency_penalty * count));
            }
        }
        if let Some(grammar) = grammar {
            grammar.mask(&mut scores)?;
        }
        Ok(Some(scores))
    }
}

/// The token of this id by the model's `logits`, with the `count` most probable ones.
fn scored(id: u32, logits: &[f32], count: usize) -> Token {
    let logprob = logprobs(logits);
    let top = best(logits, count).into_iter().map(|id| (id, logprob(id))).collect();
    Token { id, logprob: logprob(id), top }
}

/// The ids of the `count` highest scores, the best first and of equals the lowest; what is no number
/// is none of them.
fn best(logits: &[f32], count: usize) -> Vec<u32> {
    let numbers = (0..logits.len() as u32).filter(|id| !logits[*id as usize].is_nan());
    let rank =
        |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if count <= 1 {
        return numbers.min_by(rank).into_iter().take(count).collect();
    }
    let mut ids: Vec<u32> = numbers.collect();
    if count < ids.len() {
        ids.select_nth_unstable_by(count - 1, rank);
        ids.truncate(count);
    }
    ids.sort_unstable_by(rank);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(choice: Choice) -> Sampler {
        Sampler::new(vec![0], choice)
    }

    #[test]
    fn the_best_come_with_each_token() {
        let mut sampler = sampler(Choice { top_logprobs: 2, ..Choice::default() });
        let token = sampler.choose(&[0.0, 2.0, f32::NAN, 1.0, 2.0]).unwrap();
        assert_eq!(token.id, 1);
        assert_eq!(token.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(sampler.ids(), [0, 1]);
        let mut plain = sampler_without_nan();
        let token = plain.choose(&[0.0, 2.0, 1.0]).unwrap();
        let total = (0f64.exp() + 2f64.exp() + 1f64.exp()).ln();
        assert!((f64::from(token.top[0].1) - (2.0 - total)).abs() < 1e-6);
        assert!((token.logprob - token.top[0].1).abs() < 1e-6);
    }

    fn sampler_without_nan() -> Sampler {
        sampler(Choice { top_logprobs: 1, ..Choice::default() })
    }

    #[test]
    fn bias_and_penalties_change_the_choice_but_not_the_logprob() {
        let logits = [1.0, 1.5, 0.0];
        let mut biased = sampler(Choice { bias: vec![(2, 5.0), (9, 1.0)], ..Choice::default() });
        let token = biased.choose(&logits).unwrap();
        assert_eq!(token.id, 2);
        assert_eq!(token.logprob, logprobs(&logits)(2));
        let mut penalised = sampler(Choice { frequency_penalty: 0.3, ..Choice::default() });
        let chosen: Vec<u32> = (0..4).map(|_| penalised.choose(&logits).unwrap().id).collect();
        assert_eq!(chosen, [1, 1, 0, 1], "1.5, 1.2, then 0.9 < 1.0, then 0.9 > 0.7");
        let mut present = sampler(Choice { presence_penalty: 1.0, ..Choice::default() });
        let chosen: Vec<u32> = (0..3).map(|_| present.choose(&logits).unwrap().id).collect();
        assert_eq!(chosen, [1, 0, 1]);
    }

    #[test]
    fn every_token_of_a_prompt_but_the_first_is_scored_once_by_the_row_before_it() {
        let choice = Choice { scores_prompt: true, top_logprobs: 1, ..Choice::default() };
        let mut sampler = Sampler::new(vec![2, 0, 1, 1], choice);
        assert_eq!((sampler.wanted(0, 2), sampler.wanted(0, 4), sampler.wanted(3, 4)), (2, 4, 1));
        let rows = [[0.0, 1.0, 2.0], [3.0, 1.0, 0.5], [0.0, 9.0, 0.0]];
        rows[..2].iter().for_each(|logits| sampler.score(logits));
        // Computed once more, after a loss: what is scored is not wanted again.
        assert_eq!((sampler.wanted(0, 2), sampler.wanted(0, 3), sampler.wanted(2, 4)), (0, 1, 2));
        sampler.score(&rows[2]);
        assert_eq!((sampler.wanted(0, 3), sampler.wanted(0, 4)), (0, 1));
        sampler.choose(&[1.0, 0.0, 0.0]).unwrap();
        assert_eq!((sampler.wanted(0, 4), sampler.wanted(4, 5)), (0, 1));
        let scores = sampler.take_scores().expect("asked for");
        assert_eq!(scores.iter().map(|token| token.id).collect::<Vec<_>>(), [0, 1, 1]);
        for (token, logits) in scores.iter().zip(&rows) {
            assert_eq!(token.logprob, logprobs(logits)(token.id));
        }
        let best: Vec<u32> = scores.iter().map(|token| token.top[0].0).collect();
        assert_eq!((best, sampler.take_scores()), (vec![2, 0, 1], None));
        let plain = Sampler::new(vec![2, 0, 1], Choice::default());
        assert_eq!((plain.wanted(0, 2), plain.wanted(0, 3)), (0, 1));
    }

    #[test]
    fn a_prompt_is_not_penalised() {
        let choice = Choice { presence_penalty: 9.0, ..Choice::default() };
        assert_eq!(Sampler::new(vec![1, 1], choice).choose(&[0.0, 1.0]).unwrap().id, 1);
    }
}
