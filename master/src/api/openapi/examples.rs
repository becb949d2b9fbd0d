//! Bodies that each path takes, by which its description is tried.

use serde_json::{Value, json};

use crate::api::chat::Asked;
use crate::api::error::ApiError;
use crate::api::household::{Drain, Invite, Nothing, Rename, WhatIf};
use crate::api::measure::{Measured, parse};
use crate::api::messages::MessagesRequest;
use crate::api::ollama::{self, EmbedRequest, NameRequest};
use crate::api::responses::ResponsesRequest;
use crate::api::tokens::{self, DetokenizeRequest, TokenizeRequest};
use crate::api::wire::{ChatRequest, CompletionRequest, EmbeddingsRequest};
use crate::api::{completions, embeddings, messages, responses};

/// Reads a body as far as no model is needed.
pub(super) type Read = fn(&[u8]) -> Result<(), ApiError>;

/// What a path's body may be, by examples in which every described field is, and who reads it.
pub(super) type Reader = (&'static [&'static str], Read, Vec<Value>);

fn parsed<T: serde::de::DeserializeOwned + Measured>(body: &[u8]) -> Result<(), ApiError> {
    parse::<T>(body).map(drop)
}

/// How tokens are chosen, as OpenAI's requests say it.
fn chosen() -> Value {
    json!({
        "model": "m", "stream": true, "stream_options": { "include_usage": true }, "max_tokens": 2, "temperature": 1,
        "max_completion_tokens": 2, "top_p": 0.5, "top_k": 2, "min_p": 0.5, "repetition_penalty": 1, "n": 1,
        "presence_penalty": 0, "frequency_penalty": 0, "seed": 1, "stop": ["a"], "logit_bias": { "1": 2 }, "ignore_eos": false,
    })
}

fn with(mut body: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// All paths that take a body.
pub(super) fn readers() -> Vec<Reader> {
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": {} } });
    let flat = json!({ "type": "function", "name": "f", "description": "d", "parameters": {}, "strict": true });
    let call = json!({ "function": { "name": "f", "arguments": {} } });
    let user = json!({ "role": "user", "content": [{ "type": "text", "text": "a" }] });
    let held = json!({ "type": "json_schema", "json_schema": { "schema": {} } });
    let chat = with(
        json!({
            "messages": [user, { "role": "assistant", "content": "b", "tool_calls": [call] }], "logprobs": true,
            "top_logprobs": 1, "tools": [tool], "tool_choice": "auto", "response_format": held, "reasoning_effort": "low",
            "chat_template_kwargs": { "a": "b" }, "parallel_tool_calls": true, "enable_thinking": true,
        }),
        &chosen(),
    );
    let named = json!({ "type": "function", "function": { "name": "f" } });
    let other = with(chat.clone(), &json!({ "tool_choice": named, "stop": "a" }));
    let completion = with(
        json!({ "prompt": "a", "logprobs": 1, "echo": true, "suffix": "", "best_of": 1, "max_tokens": 0 }),
        &with(chosen(), &json!({ "max_tokens": 0, "max_completion_tokens": 0 })),
    );
    // Only one answer is scored with its prompt, and `best_of` must be `n`.
    let several = with(chosen(), &json!({ "prompt": "a", "n": 16, "stop": "a" }));
    let best = with(chosen(), &json!({ "prompt": "a", "n": 16, "best_of": 16 }));
    let prompts = [json!([1]), json!(["a"]), json!([[1]])];
    let prompts = |name: &str| prompts.clone().map(|prompt| json!({ name: prompt }));
    let completions = [completion, several, best].into_iter().chain(prompts("prompt"));
    let embedded = json!({ "input": "a", "encoding_format": "float", "model": "m" });
    let embeddings = [embedded].into_iter().chain(prompts("input"));
    let item = |kind: &str, more: Value| with(json!({ "type": kind }), &more);
    let part = |kind: &str| json!([{ "type": kind, "text": "a" }]);
    let response = json!({
        "input": [
            item("message", json!({ "role": "user", "content": part("input_text") })),
            item("message", json!({ "role": "assistant", "content": part("output_text"), "status": "completed" })),
            item("reasoning", json!({ "summary": part("summary_text") })),
            item("reasoning", json!({ "content": part("reasoning_text") })),
            item("function_call", json!({ "call_id": "c", "name": "f", "arguments": "{}" })),
            item("function_call_output", json!({ "call_id": "c", "output": part("input_text") })),
        ],
        "tools": [flat], "tool_choice": "auto", "text": { "format": item("json_schema", json!({ "schema": {} })), "verbosity": "medium" },
        "max_output_tokens": 2, "top_logprobs": 1, "include": ["message.output_text.logprobs"], "reasoning": { "effort": "low" },
        "truncation": "disabled", "metadata": { "a": "b" }, "conversation": null, "prompt": null, "context_management": null,
    });
    let responses = vec![
        with(chosen(), &response),
        // It is looked at where nothing includes it, too.
        json!({ "input": "a", "top_logprobs": 1 }),
        with(
            response,
            &json!({ "input": [{ "role": "user", "content": "a" }], "stop": "a", "tool_choice": { "type": "function", "name": "f" } }),
        ),
    ];
    let turns = json!({
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "a" }] },
            { "role": "assistant", "content": [
                { "type": "text", "text": "a" }, { "type": "thinking", "thinking": "a" }, { "type": "redacted_thinking" },
                { "type": "tool_use", "id": "c", "name": "f", "input": {} },
            ] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c", "content": [{ "type": "text", "text": "a" }] }] },
            { "role": "system", "content": "a" },
        ],
        "max_tokens": 2, "temperature": 1, "top_p": 0.5, "top_k": 2, "stop_sequences": ["a"],
        "tools": [{ "name": "f", "type": "custom", "input_schema": {} }], "tool_choice": { "type": "tool", "name": "f" },
        "thinking": { "type": "enabled" }, "output_config": { "effort": "low", "format": { "type": "json_schema", "schema": {} } },
        "mcp_servers": [],
    });
    let system = json!([{ "type": "text", "text": "a" }]);
    let told = with(turns.clone(), &json!({ "system": system, "tool_choice": { "type": "auto" } }));
    let turns = vec![turns, told];
    let options = json!({
        "temperature": 1, "top_p": 0.5, "min_p": 0.5, "stop": ["a"], "repeat_penalty": 1, "presence_penalty": 0,
        "frequency_penalty": 0, "top_k": 1, "seed": 1, "num_predict": 1, "num_ctx": 1,
    });
    let shared = json!({ "options": options, "think": "low", "format": "json", "logprobs": true, "top_logprobs": 1, "stream": true });
    let ollama = json!({ "messages": [
        { "role": "user", "content": "a", "images": [] }, { "role": "assistant", "content": "a", "tool_calls": [call] },
    ], "tools": [tool], "tool_choice": "auto" });
    let ollama = with(ollama, &shared);
    let one_stop =
        with(ollama.clone(), &json!({ "options": { "stop": "a" }, "tool_choice": named }));
    let one = with(json!({ "prompt": "a" }), &shared);
    let one_of = with(one.clone(), &json!({ "options": { "stop": "a" } }));
    let embed = [json!({ "input": "a", "dimensions": 0 }), json!({ "prompt": "a" })];
    let embed = embed.into_iter().chain(prompts("input")).chain(prompts("prompt"));
    let embed: Vec<Value> = embed.collect();
    let without = |body: &Value, name: &str| {
        let mut body = body.clone();
        body.as_object_mut().expect("an object").remove(name);
        body
    };
    let text = json!({ "prompt": "a", "return_token_strs": true });
    let text = with(without(&chat, "messages"), &text);
    let (loads_for_chat, loads_for_text) = (without(&ollama, "messages"), without(&one, "prompt"));
    let name = json!({ "model": "m", "stream": true });
    vec![
        (
            &["/v1/chat/completions", "/apply-template"],
            |body| Asked::new(parse::<ChatRequest>(body)?).map(drop),
            vec![chat.clone(), other.clone()],
        ),
        (
            &["/v1/completions"],
            |body| completions::Asked::new(parse::<CompletionRequest>(body)?).map(drop),
            completions.collect(),
        ),
        (
            &["/v1/embeddings"],
            |body| embeddings::Asked::new(parse::<EmbeddingsRequest>(body)?).map(drop),
            embeddings.collect(),
        ),
        (
            &["/v1/responses"],
            |body| responses::first(parse::<ResponsesRequest>(body)?).map(drop),
            responses,
        ),
        (
            &["/v1/messages", "/v1/messages/count_tokens"],
            |body| messages::asked(parse::<MessagesRequest>(body)?).map(drop),
            turns,
        ),
        (
            &["/tokenize"],
            |body| tokens::Asked::new(parse::<TokenizeRequest>(body)?).map(drop),
            vec![chat, other, text],
        ),
        (
            &["/detokenize"],
            parsed::<DetokenizeRequest>,
            vec![json!({ "tokens": [1], "model": "m" })],
        ),
        (&["/api/chat"], ollama::read_chat, vec![ollama, one_stop, loads_for_chat]),
        (&["/api/generate"], ollama::read_generate, vec![one, one_of, loads_for_text]),
        (
            &["/api/embed", "/api/embeddings"],
            |body| parse::<EmbedRequest>(body)?.checked().map(drop),
            embed,
        ),
        (&["/api/show", "/api/pull"], parsed::<NameRequest>, vec![name]),
        (
            &["/api/members/invite"],
            |body| parse::<Invite>(body)?.terms().map(drop),
            vec![json!({ "ttl_seconds": 60, "uses": 1 })],
        ),
        (
            &["/api/members/{id}/rename"],
            |body| parse::<Rename>(body)?.name().map(drop),
            vec![json!({ "name": "a" })],
        ),
        (&["/api/members/{id}/drain"], parsed::<Drain>, vec![json!({ "drain": true })]),
        (&["/api/members/{id}/revoke"], parsed::<Nothing>, vec![json!({})]),
        (
            &["/api/what-if"],
            |body| parse::<WhatIf>(body)?.bytes().map(drop),
            vec![json!({ "bytes": 1 << 30 })],
        ),
    ]
}
