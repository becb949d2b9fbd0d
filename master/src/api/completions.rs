//! `POST /v1/completions`.

use std::collections::HashMap;

use axum::Extension;
use axum::response::Response;
use serde_json::{Value, json};

use super::error::ApiError;
use super::params::Terms;
use super::respond::{Sending, Shape, Whole, respond};
use super::wire::{CompletionLogprobs, CompletionRequest};
use super::{Body, Ready, Served, params};
use crate::scheduler::{Scope, Token};

/// New tokens where a request does not say: as OpenAI has it.
const DEFAULT_MAX_TOKENS: usize = 16;
/// Most prompts in one request.
const MAX_PROMPTS: usize = 64;

pub(super) async fn create(
    Ready(served): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    let CompletionRequest { prompt, logprobs, echo, suffix, best_of, common } = request;
    common.unmet.check()?;
    if suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::Unsupported { param: "suffix" });
    }
    // All answers are sent: to choose among more is the client's.
    let answers = common.n.unwrap_or(1);
    if let Some(found) = best_of.filter(|best_of| *best_of != answers) {
        return Err(ApiError::parameter("best_of", found, format!("n, which is {answers}")));
    }
    let echo = echo.unwrap_or(false);
    if echo && logprobs.is_some() {
        return Err(ApiError::parameter("echo", "true", "false beside logprobs"));
    }
    if !(1..=MAX_PROMPTS).contains(&prompt.count()) {
        let found = format!("{} prompts", prompt.count());
        return Err(ApiError::parameter("prompt", found, format!("1 to {MAX_PROMPTS}")));
    }
    let prompts = served.ids(prompt).await?;
    let sending = Sending::new(&common, &prompts);
    let terms = Terms {
        scope,
        top_logprobs: logprobs.unwrap_or(0),
        default_max_tokens: Some(DEFAULT_MAX_TOKENS),
        grammar: None,
    };
    let plan = params::plan(&served, &prompts, common, terms)?;
    drop(room); // Of what was sent, ids are left.
    let echoes = match echo {
        true => prompts.iter().map(|ids| served.text.decode(ids)).collect::<Result<_, _>>()?,
        false => Vec::new(),
    };
    let answers_each = plan.requests.len() / prompts.len();
    let shape =
        Completion { logprobs: logprobs.is_some(), echoes, answers_each, offsets: HashMap::new() };
    respond(served, plan, sending, shape).await
}

struct Completion {
    logprobs: bool,
    /// The prompts' texts, if they are to come before the answers.
    echoes: Vec<String>,
    answers_each: usize,
    /// Characters of each answer so far.
    offsets: HashMap<usize, usize>,
}

impl Completion {
    fn echo(&self, index: usize) -> &str {
        self.echoes.get(index / self.answers_each).map_or("", String::as_str)
    }

    fn logprobs(
        &mut self,
        served: &Served,
        index: usize,
        tokens: &[Token],
    ) -> Option<CompletionLogprobs> {
        if !self.logprobs {
            return None;
        }
        let offset = self.offsets.entry(index).or_default();
        let mut all = CompletionLogprobs::default();
        for token in tokens {
            let text = served.token_text(token.id);
            all.text_offset.push(*offset);
            *offset += text.chars().count();
            all.tokens.push(text);
            all.token_logprobs.push(token.logprob);
            let top = token.top.iter().map(|(id, logprob)| (served.token_text(*id), *logprob));
            all.top_logprobs.push(top.collect());
        }
        Some(all)
    }
}

impl Shape for Completion {
    const OBJECTS: (&'static str, &'static str) = ("text_completion", "text_completion");
    const PREFIX: &'static str = "cmpl";

    fn opening(&self, index: usize) -> Option<Value> {
        let text = Some(self.echo(index)).filter(|text| !text.is_empty())?;
        Some(json!({ "index": index, "text": text, "logprobs": null, "finish_reason": null }))
    }

    fn piece(
        &mut self,
        served: &Served,
        index: usize,
        text: &str,
        tokens: &[Token],
    ) -> Option<Value> {
        let logprobs = self.logprobs(served, index, tokens);
        Some(json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": null }))
    }

    fn end(&mut self, _: &Served, index: usize, reason: &str) -> Vec<Value> {
        vec![json!({ "index": index, "text": "", "logprobs": null, "finish_reason": reason })]
    }

    fn whole(&mut self, served: &Served, index: usize, answer: &Whole) -> Value {
        let logprobs = self.logprobs(served, index, &answer.tokens);
        let text = format!("{}{}", self.echo(index), answer.text);
        json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": answer.why.reason })
    }
}
