//! Checks what a client asks for and turns it into requests of the scheduler.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use cake_checkpoint::GenerationConfig;
use cake_engine::SamplingOptions;

use super::Served;
use super::answer::Plan;
use super::bounds::{
    ANSWERS, BIAS, BIASES, ID_DIGITS, PENALTY, REPETITION, SHARE, STOP, STOPS, TEMPERATURE,
    TOP_LOGPROBS,
};
use super::error::ApiError;
use super::extent::Span;
use super::wire::{Common, OneOrMany};
use crate::grammar::Grammar;
use crate::scheduler::{Choice, Goal, Limits, Refusal, Request, Scope};
use crate::text::Marks;

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

/// What a request says of how many tokens there are to be, how they are chosen and how they are sent: within bounds, as far
/// as that can be known without a model.
pub(super) struct Wishes {
    pub(super) model: Option<String>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    answers: u64,
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<u64>,
    bias: Vec<(u32, f32)>,
    presence_penalty: f32,
    frequency_penalty: f32,
    top_logprobs: usize,
    stop: Vec<String>,
    ignore_eos: bool,
}

impl Wishes {
    /// What `common` asks for beside so many alternatives to each token, which a field of this name says, and so many
    /// new tokens.
    ///
    /// # Errors
    /// [`ApiError::Parameter`] for what is out of bounds.
    pub(super) fn new(
        common: Common,
        (field, top_logprobs): (&'static str, Option<u64>),
        new_tokens: Span<u64>,
    ) -> Result<Self, ApiError> {
        let Common { max_tokens, max_completion_tokens, .. } = common;
        let older = new_tokens.check("max_tokens", max_tokens)?;
        let newer = new_tokens.check("max_completion_tokens", max_completion_tokens)?;
        let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let top_logprobs = TOP_LOGPROBS.check(field, top_logprobs)?;
        Ok(Self {
            answers: ANSWERS.check("n", common.n)?.unwrap_or(1),
            max_tokens: newer.or(older).map(size),
            top_logprobs: top_logprobs.map_or(0, size),
            temperature: TEMPERATURE.check("temperature", common.temperature)?,
            top_p: SHARE.check("top_p", common.top_p)?,
            top_k: common.top_k.map(size),
            min_p: SHARE.check("min_p", common.min_p)?,
            repetition_penalty: REPETITION
                .check("repetition_penalty", common.repetition_penalty)?,
            seed: common.seed.map(|seed| seed as u64),
            stop: stops(common.stop)?,
            bias: biases(common.logit_bias.unwrap_or_default())?,
            presence_penalty: PENALTY
                .check("presence_penalty", common.presence_penalty)?
                .unwrap_or(0.0),
            frequency_penalty: PENALTY
                .check("frequency_penalty", common.frequency_penalty)?
                .unwrap_or(0.0),
            ignore_eos: common.ignore_eos.unwrap_or(false),
            include_usage: common
                .stream_options
                .and_then(|options| options.include_usage)
                .unwrap_or(false),
            stream: common.stream.unwrap_or(false),
            model: common.model,
        })
    }

    /// How tokens are chosen: as the request says, else as the model's own files do.
    fn sampling(&self, defaults: &SamplingOptions) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            seed: self.seed.unwrap_or_else(fresh_seed),
        }
    }
}

/// What a kind of answers asks for beside the parameters that all kinds share.
pub(super) struct Terms {
    /// Whose prefixes it shares.
    pub(super) scope: Scope,
    /// Whether the tokens of the prompts are scored, too.
    pub(super) scores_prompt: bool,
    /// Most new tokens where the request does not say, if not as many as in a chat.
    pub(super) default_max_tokens: Option<usize>,
    /// What answers are held to.
    pub(super) grammar: Option<Grammar>,
}

/// The answers to `prompts`, as they are wished for: for each prompt so many, one after the other.
pub(super) fn plan(
    served: &Served,
    prompts: &[Vec<u32>],
    wishes: Wishes,
    terms: Terms,
) -> Result<Plan, ApiError> {
    let Terms { scope, scores_prompt, .. } = terms;
    let count = wishes.answers;
    check_answers(&served.scheduler.limits(), prompts.len(), count)?;
    let max_tokens = wishes.max_tokens.or(terms.default_max_tokens).unwrap_or(served.max_tokens);
    let options = wishes.sampling(&served.defaults);
    let choice = Choice {
        options,
        bias: wishes.bias.into_iter().collect(),
        presence_penalty: wishes.presence_penalty,
        frequency_penalty: wishes.frequency_penalty,
        top_logprobs: wishes.top_logprobs,
        scores_prompt,
        grammar: terms.grammar,
    };
    // One token after a prompt that is scored is told even if it would end the answer: clients count on it.
    let is_told_anyway = scores_prompt && max_tokens == 1;
    let stop_ids = match wishes.ignore_eos || is_told_anyway {
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
    Ok(Plan { requests, stop: wishes.stop, marks: Marks::default(), after: Vec::new() })
}

/// Refuses more answers than may ever run and wait, before anything is made for each of them.
fn check_answers(limits: &Limits, prompts: usize, count: u64) -> Result<(), Refusal> {
    let most = limits.queue.saturating_add(limits.parallel);
    let answers = prompts.saturating_mul(usize::try_from(count).unwrap_or(usize::MAX));
    if answers > most { Err(Refusal::TooMany { answers, most }) } else { Ok(()) }
}

fn stops(stop: Option<OneOrMany<String>>) -> Result<Vec<String>, ApiError> {
    let stop = stop.map_or_else(Vec::new, OneOrMany::into_vec);
    if !STOPS.has(stop.len()) {
        let expected = format!("{STOPS} of them");
        return Err(ApiError::parameter("stop", format!("{} strings", stop.len()), expected));
    }
    if let Some(long) = stop.iter().map(|stop| stop.chars().count()).find(|it| !STOP.has(*it)) {
        let expected = format!("{STOP} characters each");
        return Err(ApiError::parameter("stop", format!("{long} characters long"), expected));
    }
    Ok(stop)
}

fn biases(bias: BTreeMap<String, f32>) -> Result<Vec<(u32, f32)>, ApiError> {
    if !BIASES.has(bias.len()) {
        let found = format!("{} tokens", bias.len());
        return Err(ApiError::parameter("logit_bias", found, BIASES.to_string()));
    }
    let read = |(id, by): (String, f32)| {
        let expected = || format!("token ids with numbers from {BIAS}");
        let refused = || ApiError::parameter("logit_bias", format!("{{{id:?}: {by}}}"), expected());
        let is_id = ID_DIGITS.has(id.len()) && id.bytes().all(|it| it.is_ascii_digit());
        let number = id.parse::<u32>().ok().filter(|_| is_id).ok_or_else(refused)?;
        BIAS.check("logit_bias", Some(by)).map_err(|_| refused())?;
        Ok((number, by))
    };
    bias.into_iter().map(read).collect()
}

/// Another one for every request that names none.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::bounds::ANY_TOKENS;
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
    fn what_is_out_of_bounds_is_called_as_the_request_calls_it() {
        let refused = |common: Value, logprobs| {
            let common: Common = serde_json::from_value(common).expect("parameters");
            Wishes::new(common, ("logprobs", logprobs), ANY_TOKENS)
                .map(drop)
                .unwrap_err()
                .to_string()
        };
        assert!(refused(json!({}), Some(21)).starts_with("logprobs is 21"));
        for id in ["", "+1", "1000000000", "a"] {
            let said = refused(json!({ "logit_bias": { id: 1 } }), None);
            assert!(said.starts_with("logit_bias is"), "{said}");
        }
    }

    #[test]
    fn a_text_is_as_long_as_it_has_characters() {
        let stop = |length: usize| stops(Some(OneOrMany::One("é".repeat(length))));
        assert!(stop(STOP.most).is_ok());
        let said = stop(STOP.most + 1).unwrap_err().to_string();
        assert!(said.ends_with("at most 1024 characters each"), "{said}");
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
