//! Checks what a client asks for and turns it into requests of the scheduler.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::Arc;

use cake_checkpoint::GenerationConfig;
use cake_engine::SamplingOptions;

use super::Served;
use super::answer::Plan;
use super::error::ApiError;
use super::wire::{Common, OneOrMany};
use crate::grammar::Grammar;
use crate::scheduler::{Choice, Goal, Limits, Refusal, Request, Scope};
use crate::text::Marks;

/// Most answers to one request.
const MAX_ANSWERS: u64 = 16;
/// Most stop strings, and most bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// Most tokens with a bias.
const MAX_BIAS: usize = 1024;
/// Most alternatives to each token.
const MAX_TOP_LOGPROBS: u64 = 20;

/// Most new tokens of a chat's answer where neither request, model nor person says.
const MOST_TOKENS_UNASKED: usize = 4096;

/// How tokens are chosen where requests do not say: as the model's own file has it, and else as OpenAI does.
pub fn default_sampling(model: &GenerationConfig) -> SamplingOptions {
    let temperature = match model.do_sample {
        Some(false) => 0.0,
        None | Some(true) => model.temperature.unwrap_or(1.0),
    };
    SamplingOptions {
        temperature,
        top_p: model.top_p.unwrap_or(1.0),
        top_k: model.top_k.unwrap_or(0),
        min_p: model.min_p.unwrap_or(0.0),
        repetition_penalty: model.repetition_penalty.unwrap_or(1.0),
        seed: 0, // Each request has its own.
    }
}

/// Most new tokens of a chat's answer where a request does not say: an answer that may fill the context is promised all
/// of it, and leaves as little room for others as the longest would.
pub fn default_max_tokens(model: &GenerationConfig, context: usize) -> usize {
    model.max_new_tokens.unwrap_or((context / 2).min(MOST_TOKENS_UNASKED)).max(1)
}

/// What a kind of answers asks for beside the parameters that all kinds share.
pub(super) struct Terms {
    /// Whose prefixes it shares.
    pub(super) scope: Scope,
    /// Alternatives to each token.
    pub(super) top_logprobs: u64,
    /// Whether the tokens of the prompts are scored, too.
    pub(super) scores_prompt: bool,
    /// Fewest new tokens that may be asked for.
    pub(super) least_tokens: u64,
    /// Most new tokens where the request does not say, if not as many as in a chat.
    pub(super) default_max_tokens: Option<usize>,
    /// What answers are held to.
    pub(super) grammar: Option<Grammar>,
}

/// The answers to `prompts`, as `common` asks for them: for each prompt `n`, one after the other.
pub(super) fn plan(
    served: &Served,
    prompts: &[Vec<u32>],
    common: Common,
    terms: Terms,
) -> Result<Plan, ApiError> {
    let Terms { scope, top_logprobs, scores_prompt, least_tokens, .. } = terms;
    let count = within("n", common.n, 1, MAX_ANSWERS)?.unwrap_or(1);
    check_answers(&served.scheduler.limits(), prompts.len(), count)?;
    let max_tokens = max_tokens(common.max_tokens, common.max_completion_tokens, least_tokens)?;
    let max_tokens = max_tokens.or(terms.default_max_tokens).unwrap_or(served.max_tokens);
    if top_logprobs > MAX_TOP_LOGPROBS {
        let expected = format!("at most {MAX_TOP_LOGPROBS}");
        return Err(ApiError::parameter("top_logprobs", top_logprobs, expected));
    }
    let options = sampling(&served.defaults, &common)?;
    let stop = stops(common.stop)?;
    let bias = common.logit_bias.unwrap_or_default();
    if bias.len() > MAX_BIAS {
        let found = format!("{} tokens", bias.len());
        return Err(ApiError::parameter("logit_bias", found, format!("at most {MAX_BIAS}")));
    }
    let bias = bias.into_iter().map(|(id, by)| {
        let found = || format!("{{{id:?}: {by}}}");
        let expected = "token ids with numbers from -100 to 100";
        let refused = || ApiError::parameter("logit_bias", found(), expected);
        let number: u32 = id.parse().map_err(|_| refused())?;
        ((-100.0..=100.0).contains(&by)).then_some((number, by)).ok_or_else(refused)
    });
    let choice = Choice {
        options,
        bias: bias.collect::<Result<_, _>>()?,
        presence_penalty: penalty("presence_penalty", common.presence_penalty)?,
        frequency_penalty: penalty("frequency_penalty", common.frequency_penalty)?,
        top_logprobs: top_logprobs as usize,
        scores_prompt,
        grammar: terms.grammar,
    };
    // One token after a prompt that is scored is told even if it would end the answer: clients count on it.
    let is_told_anyway = scores_prompt && max_tokens == 1;
    let stop_ids = match common.ignore_eos.unwrap_or(false) || is_told_anyway {
        true => Arc::new(HashSet::new()),
        false => served.stop_ids.clone(),
    };
    let request = |prompt: &Vec<u32>, index: u64| {
        let mut choice = choice.clone();
        choice.options.seed = options.seed.wrapping_add(index);
        Request {
            prompt: prompt.clone(),
            max_tokens, // Or as many as the context has room for, which is another end.
            stop_ids: stop_ids.clone(),
            goal: Goal::Answer(Box::new(choice)),
            scope,
        }
    };
    let requests = prompts.iter().flat_map(|prompt| (0..count).map(move |index| (prompt, index)));
    let requests = requests.map(|(prompt, index)| request(prompt, index)).collect();
    Ok(Plan { requests, stop, marks: Marks::default(), after: Vec::new() })
}

/// Refuses more answers than may ever run and wait, before anything is made for each of them.
fn check_answers(limits: &Limits, prompts: usize, count: u64) -> Result<(), Refusal> {
    let most = limits.queue.saturating_add(limits.parallel);
    let answers = prompts.saturating_mul(usize::try_from(count).unwrap_or(usize::MAX));
    if answers > most { Err(Refusal::TooMany { answers, most }) } else { Ok(()) }
}

fn stops(stop: Option<OneOrMany<String>>) -> Result<Vec<String>, ApiError> {
    let stop = stop.map_or_else(Vec::new, OneOrMany::into_vec);
    if stop.len() > MAX_STOPS {
        let expected = format!("at most {MAX_STOPS} of them");
        return Err(ApiError::parameter("stop", format!("{} strings", stop.len()), expected));
    }
    if let Some(long) = stop.iter().find(|stop| stop.len() > MAX_STOP_BYTES) {
        let expected = format!("at most {MAX_STOP_BYTES} bytes each");
        return Err(ApiError::parameter("stop", format!("{} bytes long", long.len()), expected));
    }
    Ok(stop)
}

/// Either name; the newer one first.
fn max_tokens(old: Option<u64>, new: Option<u64>, least: u64) -> Result<Option<usize>, ApiError> {
    let (param, value) = match (new, old) {
        (Some(new), _) => ("max_completion_tokens", Some(new)),
        (None, old) => ("max_tokens", old),
    };
    match value {
        Some(found) if found < least => {
            Err(ApiError::parameter(param, found, format!("at least {least}")))
        }
        value => Ok(value.map(|value| usize::try_from(value).unwrap_or(usize::MAX))),
    }
}

/// What the request says, else what the model's own files do.
fn sampling(defaults: &SamplingOptions, common: &Common) -> Result<SamplingOptions, ApiError> {
    let unit = |param, value: Option<f32>| within(param, value, 0.0, 1.0);
    Ok(SamplingOptions {
        temperature: within("temperature", common.temperature, 0.0, 2.0)?
            .unwrap_or(defaults.temperature),
        top_p: unit("top_p", common.top_p)?.unwrap_or(defaults.top_p),
        top_k: common.top_k.map_or(defaults.top_k, |k| usize::try_from(k).unwrap_or(usize::MAX)),
        min_p: unit("min_p", common.min_p)?.unwrap_or(defaults.min_p),
        repetition_penalty: within("repetition_penalty", common.repetition_penalty, 0.01, 100.0)?
            .unwrap_or(defaults.repetition_penalty),
        seed: common.seed.map_or_else(fresh_seed, |seed| seed as u64),
    })
}

/// Another one for every request that names none.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

fn penalty(param: &'static str, value: Option<f32>) -> Result<f32, ApiError> {
    Ok(within(param, value, -2.0, 2.0)?.unwrap_or(0.0))
}

/// The value, if there is one, and if it is within these bounds.
fn within<T: PartialOrd + Display + Copy>(
    param: &'static str,
    value: Option<T>,
    low: T,
    high: T,
) -> Result<Option<T>, ApiError> {
    match value {
        Some(value) if !(low..=high).contains(&value) => {
            Err(ApiError::parameter(param, value, format!("{low} to {high}")))
        }
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Chunk;

    #[test]
    fn a_model_that_does_not_say_is_sampled_as_openai_samples() {
        let parse = |text: &str| GenerationConfig::parse(text.as_bytes()).0;
        let silent = default_sampling(&parse(r#"{"eos_token_id": 2}"#));
        assert_eq!((silent.temperature, silent.top_p, silent.top_k), (1.0, 1.0, 0));
        assert_eq!(default_sampling(&parse(r#"{"do_sample": false}"#)).temperature, 0.0);
        let text =
            r#"{"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 40, "min_p": 0.1}"#;
        let full = default_sampling(&parse(text));
        assert_eq!((full.temperature, full.top_p, full.top_k, full.min_p), (0.6, 0.9, 40, 0.1));
        assert_eq!(default_sampling(&parse(r#"{"temperature": 0.3}"#)).temperature, 0.3);
    }

    #[test]
    fn more_answers_than_may_wait_are_refused_before_they_are_made() {
        let limits = Limits {
            context: 256,
            parallel: 4,
            most_running: 20,
            kv_blocks: 64,
            state_slots: 0,
            chunk: Chunk::exactly(64),
            prompt_rows: 64,
            queue: 60,
        };
        assert_eq!(check_answers(&limits, 64, 1), Ok(()));
        assert_eq!(check_answers(&limits, 4, 16), Ok(()));
        let refused = Err(Refusal::TooMany { answers: 80, most: 64 });
        assert_eq!(check_answers(&limits, 5, 16), refused);
    }

    #[test]
    fn an_answer_without_a_limit_leaves_half_of_the_context() {
        let silent = GenerationConfig::default();
        assert_eq!(default_max_tokens(&silent, 4096), 2048);
        assert_eq!(default_max_tokens(&silent, 131_072), 4096);
        assert_eq!(default_max_tokens(&silent, 1), 1);
        let says = GenerationConfig { max_new_tokens: Some(300), ..silent };
        assert_eq!(default_max_tokens(&says, 4096), 300);
    }
}
