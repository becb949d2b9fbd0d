//! Answers of a chat as OpenAI gives them.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::api::respond::{Shape, Whole};
use crate::api::telling::Telling;
use crate::api::tools::ToolCall;
use crate::api::wire::{ChatLogprob, ChatLogprobs, TokenLogprob};
use crate::reply::Shown;
use crate::scheduler::Token;
use crate::text::Text;

/// Log-probabilities of tokens and of the alternatives to them.
pub(in crate::api) fn logprobs(words: &Text, tokens: &[Token]) -> Vec<ChatLogprob> {
    let entry = |id, logprob| {
        let token = words.token(id);
        TokenLogprob { bytes: token.clone().into_bytes(), token, logprob }
    };
    let of_token = |token: &Token| ChatLogprob {
        token: entry(token.id, token.logprob),
        top_logprobs: token.top.iter().map(|(id, logprob)| entry(*id, *logprob)).collect(),
    };
    tokens.iter().map(of_token).collect()
}

pub(super) struct Chat {
    logprobs: bool,
    /// What every answer begins as.
    begin: Telling,
    /// How far each answer of a stream is told.
    begun: HashMap<usize, Telling>,
}

impl Chat {
    /// Answers each of which begins as `begin` does, with log-probabilities if they are asked for.
    pub(super) fn new(begin: Telling, logprobs: bool) -> Self {
        Self { logprobs, begin, begun: HashMap::new() }
    }

    fn logprobs(&self, words: &Text, tokens: &[Token]) -> Option<ChatLogprobs> {
        self.logprobs.then(|| ChatLogprobs { content: logprobs(words, tokens) })
    }
}

impl Shape for Chat {
    const OBJECTS: (&'static str, &'static str) = ("chat.completion", "chat.completion.chunk");
    const PREFIX: &'static str = "chatcmpl";

    fn opening(&self, index: usize) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        Some(choice(index, &delta, Value::Null, None))
    }

    fn piece(&mut self, words: &Text, index: usize, text: &str, tokens: &[Token]) -> Option<Value> {
        let telling = self.begun.entry(index).or_insert_with(|| self.begin.clone());
        let (shown, told) = telling.push(text, tokens)?;
        let logprobs = self.logprobs(words, &told);
        Some(choice(index, &delta(&shown), json!(logprobs), None))
    }

    fn end(&mut self, words: &Text, index: usize, reason: &str) -> Vec<Value> {
        let telling = self.begun.remove(&index);
        let (rest, held, calls) = telling.map(Telling::finish).unwrap_or_default();
        let calls: Vec<ToolCall> = calls.into_iter().map(ToolCall::from).collect();
        let mut choices = Vec::new();
        if rest != Shown::default() || (calls.is_empty() && !held.is_empty()) {
            let logprobs = self.logprobs(words, &held);
            choices.push(choice(index, &delta(&rest), json!(logprobs), None));
        }
        if !calls.is_empty() {
            let numbered = calls.iter().enumerate().map(|(number, call)| {
                let mut call = json!(call);
                call["index"] = json!(number);
                call
            });
            let calls: Vec<Value> = numbered.collect();
            choices.push(choice(index, &json!({ "tool_calls": calls }), Value::Null, None));
        }
        choices.push(choice(index, &json!({}), Value::Null, Some(finish(reason, &calls))));
        choices
    }

    fn whole(&mut self, words: &Text, index: usize, answer: &Whole) -> Value {
        let mut telling = self.begin.clone();
        let (shown, _) = telling.push(&answer.text, &[]).unwrap_or_default();
        let (rest, _, calls) = telling.finish();
        let calls: Vec<ToolCall> = calls.into_iter().map(ToolCall::from).collect();
        let (content, thought) = (shown.text + &rest.text, shown.thought + &rest.thought);
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !thought.is_empty() {
            message["reasoning_content"] = json!(thought);
        }
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
            if content.is_empty() {
                message["content"] = Value::Null;
            }
        }
        let logprobs = self.logprobs(words, &answer.tokens);
        let reason = finish(answer.why.reason, &calls);
        json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": reason })
    }
}

/// What a piece of a stream adds to a message.
fn delta(Shown { thought, text }: &Shown) -> Value {
    match thought.is_empty() {
        true => json!({ "content": text }),
        false if text.is_empty() => json!({ "reasoning_content": thought }),
        false => json!({ "reasoning_content": thought, "content": text }),
    }
}

/// A choice of a stream.
fn choice(index: usize, delta: &Value, logprobs: Value, reason: Option<&str>) -> Value {
    json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason })
}

/// Why an answer ended, in OpenAI's words.
fn finish<'a>(reason: &'a str, calls: &[ToolCall]) -> &'a str {
    if calls.is_empty() { reason } else { "tool_calls" }
}
