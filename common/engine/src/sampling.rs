//! Choosing the next token: a pure function of logits, token ids, position and seed.

use std::borrow::Cow;

use crate::device::cpu::elementwise::largest;
use crate::device::cpu::exponential::sum_exp;
use crate::device::cpu::isa::tier::Tier;
use crate::random;

/// How to choose; the default is greedy.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SamplingOptions {
    /// What scores are divided by before the softmax; 0 (or less) takes the highest score.
    pub temperature: f32,
    /// Keep this many of the best tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest best tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as probable as the best; 0 keeps all.
    pub min_p: f32,
    /// Divide positive and multiply negative scores of tokens seen by this; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Fixes the random choices.
    pub seed: u64,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        SamplingOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

/// A chosen token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Its log-probability under the logits as given: temperature 1, no penalty, all tokens.
    pub logprob: f32,
}

/// Chooses a token from `logits`, one per token of the vocabulary.
///
/// * `ids_so_far`: prompt and generated tokens, for the repetition penalty.
/// * `position`: index of the token to be chosen; with the seed it fixes the random number.
///
/// The filters apply as in Hugging Face transformers: penalty, temperature, top-k, top-p, min-p.
/// Among equal scores the lowest id is better; a NaN is worse than everything. With no logits at
/// all the token is 0.
pub fn sample(
    logits: &[f32],
    ids_so_far: &[u32],
    position: u64,
    options: &SamplingOptions,
) -> Sampled {
    let scores = penalised(logits, ids_so_far, options.repetition_penalty);
    let token = match options.temperature > 0.0 {
        true => draw(&scores, random::unit(options.seed, position), options),
        false => best(&scores),
    };
    Sampled { token, logprob: logprob(logits, token) }
}

/// The scores with those of tokens seen made worse; as they are, and not copied, where the penalty
/// changes nothing or is none.
fn penalised<'a>(scores: &'a [f32], ids: &[u32], penalty: f32) -> Cow<'a, [f32]> {
    if penalty == 1.0 || !penalty.is_finite() || penalty <= 0.0 {
        return Cow::Borrowed(scores);
    }
    let mut scores = scores.to_vec();
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup(); // Once per token, however often it was seen.
    for id in ids {
        if let Some(score) = scores.get_mut(id as usize) {
            *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
        }
    }
    Cow::Owned(scores)
}

/// The first of the highest scores, of which those that are no number are none.
fn best(scores: &[f32]) -> u32 {
    /// Scores among which the place is looked for: enough for vectors to pay, few to look through.
    const BLOCK: usize = 1024;
    let tier = Tier::detect();
    let (mut highest, mut best) = (f32::NEG_INFINITY, 0);
    for (index, block) in scores.chunks(BLOCK).enumerate() {
        let here = largest(tier, block);
        if here > highest {
            let at = block.iter().position(|&score| score == here).unwrap_or(0);
            (highest, best) = (here, index * BLOCK + at);
        }
    }
    best as u32
}

/// A token of the vocabulary that is still in the running.
#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    /// Score divided by temperature, less that of the best.
    score: f32,
}

/// Best first; of equals the lowest id.
fn rank(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.score.total_cmp(&a.score).then(a.id.cmp(&b.id))
}

/// Filters, then takes the token at `unit` (in `[0, 1)`) of the remaining probability.
fn draw(scores: &[f32], unit: f64, options: &SamplingOptions) -> u32 {
    let top = best(scores);
    let Some(&top_score) = scores.get(top as usize).filter(|score| score.is_finite()) else {
        return top; // Nothing to weigh: all are minus infinity, or one is plus infinity.
    };
    // In f64 and from the best down, so that no temperature overflows.
    let score = |score: f32| {
        let score = if score.is_nan() { f32::NEG_INFINITY } else { score };
        ((f64::from(score) - f64::from(top_score)) / f64::from(options.temperature)) as f32
    };
    let mut candidates: Vec<Candidate> = scores
        .iter()
        .enumerate()
        .map(|(id, &raw)| Candidate { id: id as u32, score: score(raw) })
        .collect();
    if options.top_k > 0 && options.top_k < candidates.len() {
        candidates.select_nth_unstable_by(options.top_k - 1, rank);
        candidates.truncate(options.top_k);
        candidates.sort_unstable_by(rank);
    }
    keep_top_p(&mut candidates, options.top_p);
    if options.min_p > 0.0 {
        let least = f64::from(options.min_p.min(1.0)); // Relative to the best, whose weight is 1.
        candidates.retain(|candidate| weight(candidate) >= least);
    }
    let total: f64 = candidates.iter().map(weight).sum();
    let mut left = unit * total;
    for candidate in &candidates {
        left -= weight(candidate);
        if left < 0.0 {
            return candidate.id;
        }
    }
    top // Rounding left a sliver past the last one.
}

fn weight(candidate: &Candidate) -> f64 {
    f64::from(candidate.score).exp()
}

/// Keeps the fewest best candidates whose share of the weight reaches `top_p`, at least one, and
/// leaves them in order.
fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f32) {
    /// As many as nearly always reach it: sorting a whole vocabulary takes milliseconds.
    const LIKELY: usize = 256;
    if top_p >= 1.0 || top_p.is_nan() {
        return;
    }
    let wanted = f64::from(top_p) * candidates.iter().map(weight).sum::<f64>();
    let reach = |sorted: &[Candidate]| {
        let mut reached = 0.0;
        sorted.iter().position(|candidate| {
            reached += weight(candidate);
            reached >= wanted
        })
    };
    let mut last = None;
    if candidates.len() > LIKELY {
        candidates.select_nth_unstable_by(LIKELY - 1, rank);
        candidates[..LIKELY].sort_unstable_by(rank);
        last = reach(&candidates[..LIKELY]);
    }
    if last.is_none() {
        candidates.sort_unstable_by(rank);
        last = reach(candidates);
    }
    if let Some(last) = last {
        candidates.truncate(last + 1);
    }
}

/// Log-softmax of `logits` at `token`.
fn logprob(logits: &[f32], token: u32) -> f32 {
    logprobs(logits)(token)
}

/// Log-softmax of `logits` at any token; 0 where there is none.
pub fn logprobs(logits: &[f32]) -> impl Fn(u32) -> f32 {
    let tier = Tier::detect();
    let largest = largest(tier, logits);
    let total = sum_exp(tier, logits, largest).ln();
    move |token| {
        let Some(&score) = logits.get(token as usize) else { return 0.0 };
        (f64::from(score) - f64::from(largest) - total) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_first_of_the_highest_wherever_it_stands() {
        let by_definition = |scores: &[f32]| {
            (0..scores.len()).fold(0, |best, id| {
                let better = scores[id] > scores[best] || scores[best].is_nan();
                if better && !scores[id].is_nan() { id } else { best }
            })
        };
        let mut random = crate::testing::Random::new(61);
        for len in [1, 2, 15, 16, 17, 1023, 1024, 1025, 5000] {
            for case in 0..20 {
                let mut scores: Vec<f32> = (0..len).map(|_| random.signed()).collect();
                scores[random.below(len)] = f32::NAN;
                let highest = if case % 2 == 0 { 2.0 } else { f32::INFINITY };
                for _ in 0..case % 3 {
                    scores[random.below(len)] = highest;
                }
                let expected = by_definition(&scores) as u32;
                assert_eq!(best(&scores), expected, "{len} scores, case {case}");
            }
        }
        assert_eq!((best(&[]), best(&[f32::NAN; 40]), best(&[f32::NEG_INFINITY; 3])), (0, 0, 0));
    }

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, 3.0, -1.0];

    fn options(temperature: f32) -> SamplingOptions {
        SamplingOptions { temperature, ..SamplingOptions::default() }
    }

    /// How often each token is chosen over 4000 positions, in thousandths.
    fn shares(options: &SamplingOptions) -> Vec<u32> {
        let mut counts = vec![0; LOGITS.len()];
        for position in 0..4000 {
            counts[sample(&LOGITS, &[], position, options).token as usize] += 1;
        }
        counts.iter().map(|count| count / 4).collect()
    }

    /// The softmax of `LOGITS` over `kept`, in thousandths.
    fn expected(kept: &[usize]) -> Vec<u32> {
        let total: f32 = kept.iter().map(|&id| LOGITS[id].exp()).sum();
        (0..LOGITS.len())
            .map(|id| if kept.contains(&id) { (LOGITS[id].exp() / total * 1e3) as u32 } else { 0 })
            .collect()
    }

    fn assert_close(found: &[u32], expected: &[u32]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.abs_diff(*expected) <= 25, "{found} {expected}");
            assert!(*expected > 0 || *found == 0, "a token that was filtered out");
        }
    }

    #[test]
    fn greedy_takes_the_best_and_of_equals_the_lowest_id() {
        let sampled = sample(&LOGITS, &[], 0, &options(0.0));
        assert_eq!(sampled.token, 1);
        let total: f32 = LOGITS.iter().map(|score| score.exp()).sum();
        assert!((sampled.logprob - (3.0 - total.ln())).abs() < 1e-6);
    }

    #[test]
    fn draws_follow_the_probabilities_that_the_filters_leave() {
        let plain = options(1.0);
        assert_close(&shares(&plain), &expected(&[0, 1, 2, 3, 4]));
        assert_close(&shares(&SamplingOptions { top_k: 3, ..plain }), &expected(&[1, 2, 3]));
        // Probabilities: 0.40, 0.40, 0.15, 0.05, 0.007.
        assert_close(&shares(&SamplingOptions { top_p: 0.9, ..plain }), &expected(&[1, 2, 3]));
        assert_close(&shares(&SamplingOptions { top_p: 0.3, ..plain }), &expected(&[1]));
        assert_close(&shares(&SamplingOptions { top_p: 0.0, ..plain }), &expected(&[1]));
        assert_close(&shares(&SamplingOptions { min_p: 0.3, ..plain }), &expected(&[1, 2, 3]));
        assert_close(&shares(&SamplingOptions { min_p: 0.5, ..plain }), &expected(&[1, 3]));
    }

    #[test]
    fn top_p_sorts_everything_when_the_best_are_not_enough() {
        let all = |count: u32| -> Vec<Candidate> {
            (0..count).map(|id| Candidate { id, score: 0.0 }).collect()
        };
        for (count, top_p, kept) in [(1000, 0.1, 100), (1000, 0.5, 500), (100, 0.5, 50)] {
            let mut candidates = all(count);
            keep_top_p(&mut candidates, top_p);
            let found: Vec<u32> = candidates.iter().map(|candidate| candidate.id).collect();
            let least: Vec<u32> = (0..found.len() as u32).collect();
            assert_eq!(found, least, "of equals the lowest ids");
            assert!(found.len().abs_diff(kept) <= 1, "{} of {count}", found.len());
        }
    }

    #[test]
    fn a_high_temperature_levels_and_a_tiny_one_does_not_overflow() {
        assert_close(&shares(&options(1e6)), &[200; 5]);
        assert_close(&shares(&options(f32::MIN_POSITIVE)), &expected(&[1, 3]));
    }

    #[test]
    fn depends_on_nothing_but_its_arguments() {
        let options = SamplingOptions { seed: 9, ..options(1.0) };
        let tokens = |seed| {
            let options = SamplingOptions { seed, ..options };
            (0..50).map(|at| sample(&LOGITS, &[], at, &options).token).collect::<Vec<_>>()
        };
        assert_eq!(tokens(9), tokens(9));
        assert_ne!(tokens(9), tokens(10));
    }

    #[test]
    fn the_penalty_counts_a_token_once_and_leaves_the_logprob() {
        let options = SamplingOptions { repetition_penalty: 2.0, ..options(0.0) };
        assert_eq!(sample(&LOGITS, &[1, 1, 3, 99], 0, &options).token, 2);
        let sampled = sample(&[-1.0, -1.5], &[0, 0], 0, &options);
        assert_eq!(sampled.token, 1);
        assert!((sampled.logprob - (-0.5 - (1.0 + (-0.5f32).exp()).ln())).abs() < 1e-6);
    }

    #[test]
    fn survives_what_is_not_a_number() {
        let nan = f32::NAN;
        for temperature in [0.0, 1.0] {
            let options = options(temperature);
            let only = sample(&[nan, 1.0, nan], &[], 3, &options);
            assert_eq!((only.token, only.logprob), (1, 0.0));
            assert_eq!(sample(&[nan, nan], &[], 3, &options).token, 0);
            assert_eq!(sample(&[0.0, f32::INFINITY], &[], 3, &options).token, 1);
            assert_eq!(sample(&[], &[], 3, &options).token, 0);
        }
    }
}
