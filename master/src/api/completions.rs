//! `POST /v1/completions`.

use std::collections::{BTreeMap, HashMap};

use axum::Extension;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::bounds::{ANY_TOKENS, NEW_TOKENS, NOTHING, PROMPTS};
use super::error::ApiError;
use super::params::{Terms, Wishes};
use super::respond::{Sending, Shape, Whole, respond};
use super::wire::{CompletionLogprobs, CompletionRequest, Prompt};
use super::{Body, Ready, params};
use crate::scheduler::{Scope, Token};
use crate::text::Text;

/// New tokens where a request does not say: as OpenAI has it.
const DEFAULT_MAX_TOKENS: usize = 16;
/// Most log-probabilities of a request's prompts, alternatives among them: as many as a body may have values. Each takes
/// some hundred bytes until the answer is written.
const MAX_SCORES: usize = 1 << 18;

/// What a request asks for, as far as that can be known without a model.
pub(super) struct Asked {
    prompt: Prompt,
    wishes: Wishes,
    echo: bool,
    logprobs: Option<u64>,
    scores_prompt: bool,
}

impl Asked {
    /// # Errors
    /// [`ApiError::Parameter`] and [`ApiError::Unsupported`] for what cannot be done.
    pub(super) fn new(request: CompletionRequest) -> Result<Self, ApiError> {
        let CompletionRequest { prompt, logprobs, echo, suffix, best_of, common } = request;
        common.unmet.check()?;
        if suffix.is_some_and(|suffix| !NOTHING.has(suffix.len())) {
            return Err(ApiError::Unsupported { param: "suffix" });
        }
        // All answers are sent: to choose among more is the client's.
        let answers = common.n.unwrap_or(1);
        if let Some(found) = best_of.filter(|best_of| *best_of != answers) {
            return Err(ApiError::parameter("best_of", found, format!("n, which is {answers}")));
        }
        let echo = echo.unwrap_or(false);
        let scores_prompt = echo && logprobs.is_some();
        if scores_prompt && answers > 1 {
            // All of them would say the same of the prompt.
            return Err(ApiError::parameter("n", answers, "1 beside echo and logprobs"));
        }
        if !PROMPTS.has(prompt.count()) {
            let found = format!("{} prompts", prompt.count());
            return Err(ApiError::parameter("prompt", found, PROMPTS.to_string()));
        }
        prompt.check_ids("prompt")?;
        let new_tokens = if echo { ANY_TOKENS } else { NEW_TOKENS };
        let wishes = Wishes::new(common, ("logprobs", logprobs), new_tokens)?;
        Ok(Self { prompt, wishes, echo, logprobs, scores_prompt })
    }
}

pub(super) async fn create(
    Ready(server): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    let Asked { prompt, wishes, echo, logprobs, scores_prompt } = Asked::new(request)?;
    let served = server.model(wishes.model.as_deref(), None).await?;
    let prompts = served.ids(prompt).await?;
    if scores_prompt {
        check_scores(prompts.iter().map(Vec::len).sum(), logprobs.unwrap_or(0))?;
    }
    let sending = Sending::new(&wishes, &prompts);
    let default_max_tokens = Some(DEFAULT_MAX_TOKENS);
    let terms = Terms { scope, scores_prompt, default_max_tokens, grammar: None };
    let plan = params::plan(&served, &prompts, wishes, terms)?;
    drop(room); // Of what was sent, ids are left.
    let text =
        |ids: &Vec<u32>| Ok(Echo { first: ids.first().copied(), text: served.text.decode(ids)? });
    let echoes = match echo {
        true => block_in_place(|| prompts.iter().map(text).collect::<Result<_, ApiError>>())?,
        false => Vec::new(),
    };
    let answers_each = plan.requests.len() / prompts.len();
    let logprobs = logprobs.is_some();
    let shape = Completion { logprobs, echoes, answers_each, offsets: HashMap::new() };
    respond(served, plan, sending, shape).await
}

/// Refuses to score so many tokens of prompts, if what is said of them would be more than is kept.
fn check_scores(tokens: usize, top_logprobs: u64) -> Result<(), ApiError> {
    let each = usize::try_from(top_logprobs).unwrap_or(usize::MAX).saturating_add(1);
    let scores = tokens.saturating_mul(each);
    if scores > MAX_SCORES {
        let found = format!("given for {tokens} tokens of prompts, with {each} numbers for each");
        let expected = format!("at most {MAX_SCORES} numbers");
        return Err(ApiError::parameter("logprobs", found, expected));
    }
    Ok(())
}

/// A prompt that comes before its answers.
struct Echo {
    /// Its first token, of which nothing is known. An empty prompt, which is refused later, has none.
    first: Option<u32>,
    text: String,
}

struct Completion {
    logprobs: bool,
    /// The prompts, if they are to come before the answers.
    echoes: Vec<Echo>,
    answers_each: usize,
    /// Characters of each answer so far.
    offsets: HashMap<usize, usize>,
}

impl Completion {
    fn echo(&self, index: usize) -> Option<&Echo> {
        self.echoes.get(index / self.answers_each)
    }

    /// What is known of the next tokens of an answer, after `begun`, if log-probabilities are asked for.
    fn logprobs(
        &mut self,
        words: &Text,
        index: usize,
        begun: Option<CompletionLogprobs>,
        tokens: &[Token],
    ) -> Option<CompletionLogprobs> {
        if !self.logprobs {
            return None;
        }
        let mut all = begun.unwrap_or_default();
        let offset = self.offsets.entry(index).or_default();
        for token in tokens {
            all.push(words.token(token.id), Some(token.logprob), offset);
            let mut top = BTreeMap::new();
            for (id, logprob) in &token.top {
                // Of two with one text the more probable one, which comes first.
                top.entry(words.token(*id)).or_insert(*logprob);
            }
            // The token itself is among them, also where others are more probable.
            top.entry(words.token(token.id)).or_insert(token.logprob);
            all.top_logprobs.push(Some(top));
        }
        Some(all)
    }

    /// The same of a prompt whose tokens from the second on are `tokens`.
    fn of_prompt(
        &mut self,
        words: &Text,
        index: usize,
        tokens: &[Token],
    ) -> Option<CompletionLogprobs> {
        let first = self.echo(index).filter(|_| self.logprobs)?.first?;
        let mut all = CompletionLogprobs::default();
        let offset = self.offsets.entry(index).or_default();
        all.push(words.token(first), None, offset);
        all.top_logprobs.push(None);
        // Of a long prompt this takes a while.
        block_in_place(|| self.logprobs(words, index, Some(all), tokens))
    }
}

impl CompletionLogprobs {
    /// Adds a token whose text begins at `offset`, in characters, and moves that to its end.
    fn push(&mut self, text: String, logprob: Option<f32>, offset: &mut usize) {
        self.text_offset.push(*offset);
        *offset += text.chars().count();
        self.tokens.push(text);
        self.token_logprobs.push(logprob);
    }
}

impl Shape for Completion {
    const OBJECTS: (&'static str, &'static str) = ("text_completion", "text_completion");
    const PREFIX: &'static str = "cmpl";

    fn opening(&self, index: usize) -> Option<Value> {
        // With log-probabilities it comes when they do.
        let echo = self.echo(index).filter(|echo| !echo.text.is_empty() && !self.logprobs)?;
        Some(piece(index, &echo.text, None))
    }

    fn scored(&mut self, words: &Text, index: usize, tokens: &[Token]) -> Option<Value> {
        let logprobs = self.of_prompt(words, index, tokens);
        self.echo(index).map(|echo| piece(index, &echo.text, logprobs))
    }

    fn piece(&mut self, words: &Text, index: usize, text: &str, tokens: &[Token]) -> Option<Value> {
        let logprobs = self.logprobs(words, index, None, tokens);
        Some(piece(index, text, logprobs))
    }

    fn end(&mut self, _: &Text, index: usize, reason: &str) -> Vec<Value> {
        vec![json!({ "index": index, "text": "", "logprobs": null, "finish_reason": reason })]
    }

    fn whole(&mut self, words: &Text, index: usize, answer: &Whole) -> Value {
        let prompt = self.of_prompt(words, index, &answer.scored);
        let logprobs = self.logprobs(words, index, prompt, &answer.tokens);
        let echo = self.echo(index).map_or("", |echo| &echo.text);
        let text = format!("{echo}{}", answer.text);
        json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": answer.why.reason })
    }
}

/// A choice of a stream that is not the last one.
fn piece(index: usize, text: &str, logprobs: Option<CompletionLogprobs>) -> Value {
    json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": null })
}
