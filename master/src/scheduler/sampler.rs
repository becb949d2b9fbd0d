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
    /// What the answer must keep to.
    pub grammar: Option<Grammar>,
}

/// A token that was chosen.
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
}

impl Sampler {
    pub(super) fn new(prompt: Vec<u32>, choice: Choice) -> Self {
        Self { prompt_len: prompt.len(), ids: prompt, choice }
    }

    /// Prompt and generated ids.
    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// How many of them are the prompt's.
    pub(super) fn prompt_len(&self) -> usize {
        self.prompt_len
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
        let (logprob, top) = match (&scores, self.choice.top_logprobs) {
            (None, 0) => (chosen.logprob, Vec::new()),
            (_, count) => {
                let logprob = logprobs(logits);
                let top = best(logits, count).into_iter().map(|id| (id, logprob(id))).collect();
                (logprob(chosen.token), top)
            }
        };
        if let Some(grammar) = &mut self.choice.grammar {
            grammar.take(chosen.token)?;
        }
        self.ids.push(chosen.token);
        Ok(Token { id: chosen.token, logprob, top })
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

/// The ids of the `count` highest scores, the best first and of equals the lowest; what is no number
/// is none of them.
fn best(logits: &[f32], count: usize) -> Vec<u32> {
    if count == 0 {
        return Vec::new();
    }
    let mut ids: Vec<u32> =
        (0..logits.len() as u32).filter(|id| !logits[*id as usize].is_nan()).collect();
    let rank =
        |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
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
    fn a_prompt_is_not_penalised() {
        let choice = Choice { presence_penalty: 9.0, ..Choice::default() };
        assert_eq!(Sampler::new(vec![1, 1], choice).choose(&[0.0, 1.0]).unwrap().id, 1);
    }
}
