//! What comes back, as shapes (`shape`).

use serde_json::{Value, json};

use super::tag;

fn usage() -> Value {
    let details = json!({ "cached_tokens": "whole" });
    json!({ "prompt_tokens": "whole", "completion_tokens": "whole", "total_tokens": "whole", "prompt_tokens_details": details })
}

pub(super) fn chat() -> Value {
    let message = json!({
        "role": "=assistant", "content": "text?", "refusal": "text?", "reasoning_content?": "text", "tool_calls?": ["any"],
    });
    answer("=chat.completion", ("message", message))
}

pub(super) fn completion() -> Value {
    answer("=text_completion", ("text", json!("text")))
}

/// A piece of a stream of chats.
pub(super) fn chat_piece() -> Value {
    let delta = json!({
        "role?": "=assistant", "content?": "text", "reasoning_content?": "text", "tool_calls?": ["any"],
    });
    piece("=chat.completion.chunk", ("delta", delta))
}

/// A piece of a stream of completions.
pub(super) fn completion_piece() -> Value {
    piece("=text_completion", ("text", json!("text")))
}

fn piece(object: &str, (name, said): (&str, Value)) -> Value {
    let choice = json!({
        "index": "whole", name: said, "logprobs": "any", "finish_reason": "text?", "finish_details?": { "type": "text" },
    });
    json!({
        "id": "text", "object": object, "created": "whole", "model": "text", "choices": [choice], "usage?": usage(),
    })
}

/// What a stream of OpenAI's ends with if it broke off, before its last event.
pub(super) fn broken() -> Value {
    tag::openai()
}

/// Its last event.
pub(super) fn over() -> Value {
    json!("=[DONE]")
}

fn answer(object: &str, (name, said): (&str, Value)) -> Value {
    let choice = json!({
        "index": "whole", name: said, "logprobs": "any", "finish_reason": "text", "finish_details?": { "type": "text" },
    });
    json!({
        "id": "text", "object": object, "created": "whole", "model": "text", "choices": [choice], "usage": usage(),
    })
}

pub(super) fn embeddings() -> Value {
    // A vector is a list of numbers, or their bytes in base64.
    let one = json!({ "object": "=embedding", "index": "whole", "embedding": "any" });
    let usage = json!({ "prompt_tokens": "whole", "total_tokens": "whole" });
    json!({ "object": "=list", "data": [one], "model": "text", "usage": usage })
}

pub(super) fn model() -> Value {
    json!({
        "id": "text", "object": "=model", "created": "whole", "owned_by": "text", "type": "=model", "display_name": "text",
        "created_at": "text", "context_length?": "whole", "max_input_tokens?": "whole", "lifecycle": "text",
        "loaded": "flag", "bytes": "whole", "fits": "flag?", "needed_bytes?": "whole", "offered_bytes?": "whole",
    })
}

pub(super) fn models() -> Value {
    json!({ "object": "=list", "data": [model()], "has_more": "flag", "first_id": "text?", "last_id": "text?" })
}

pub(super) fn response() -> Value {
    json!({
        "id": "text", "object": "=response", "created_at": "whole", "completed_at": "whole?", "status": "text", "error": "any",
        "incomplete_details": "any", "instructions": "text?", "model": "text", "output": [{ "type": "text", "id": "text" }],
        "parallel_tool_calls": "flag", "previous_response_id": "text?", "store": "flag", "temperature": "number",
        "tools": ["any"], "top_p": "number", "metadata": { "*": "text" },
        "usage": { "input_tokens": "whole", "output_tokens": "whole", "total_tokens": "whole" },
    })
}

/// An event of a response, whose type says which of these it has.
pub(super) fn response_event() -> Value {
    json!({
        "type": "text", "sequence_number": "whole", "response?": { "id": "text", "object": "=response", "status": "text" },
        "output_index?": "whole", "content_index?": "whole", "item_id?": "text", "item?": { "type": "text", "id": "text" },
        "part?": { "type": "text" }, "delta?": "text", "text?": "text", "arguments?": "text",
    })
}

pub(super) fn deleted() -> Value {
    json!({ "id": "text", "object": "=response", "deleted": "flag" })
}

pub(super) fn items() -> Value {
    let item = json!({ "type": "text", "id": "text" });
    json!({ "object": "=list", "data": [item], "first_id": "text?", "last_id": "text?", "has_more": "flag" })
}

pub(super) fn message() -> Value {
    json!({
        "id": "text", "type": "=message", "role": "=assistant", "model": "text", "content": [{ "type": "text" }],
        "stop_reason": "text", "stop_sequence": "text?",
        "usage": {
            "input_tokens": "whole", "cache_read_input_tokens": "whole", "cache_creation_input_tokens": "whole",
            "output_tokens": "whole",
        },
    })
}

/// An event of a message, whose type says which of these it has.
pub(super) fn message_event() -> Value {
    json!({
        "type": "text", "message?": { "id": "text", "type": "=message", "role": "=assistant", "model": "text" },
        "index?": "whole", "content_block?": { "type": "text" }, "delta?": "any", "usage?": { "output_tokens": "whole" },
        "error?": { "type": "text", "message": "text" },
    })
}

pub(super) fn counted() -> Value {
    json!({ "input_tokens": "whole" })
}

pub(super) fn tokenized() -> Value {
    json!({ "count": "whole", "max_model_len": "whole", "tokens": ["whole"], "token_strs?": ["text"] })
}

pub(super) fn prompt() -> Value {
    json!({ "prompt": "text" })
}

pub(super) fn tokenizer() -> Value {
    json!({ "chat_template": "text?" })
}

pub(super) fn status() -> Value {
    json!({ "status": "text" })
}

pub(super) fn readiness() -> Value {
    json!({ "status": "text", "phase": "text", "reason": "text?" })
}

pub(super) fn cluster() -> Value {
    let device = json!({ "name": "text", "local": "flag", "state": "text", "layers": "text?" });
    let rates =
        json!({ "prompt_tokens_per_second": "number", "generated_tokens_per_second": "number" });
    let plan = json!({
        "model": "text?", "phase": "text", "reason": "text?", "encoding": "text", "context": "whole?", "parallel": "whole?",
        "layers": "whole?", "parts_of": "whole?", "devices": [device],
    });
    let mut all = plan.clone();
    all["members"] = json!([{ "worker_id": "text", "name": "text", "duty": "text" }]);
    all["awaited"] = json!([{
        "name": "text", "worker_id": "text?", "online": "flag", "held_by": "text?", "memory_bytes": "whole?",
        "devices": ["text"], "threads": "whole?", "why": "text?",
    }]);
    all["happened"] =
        json!([{ "number": "whole", "at_ms": "whole", "kind": "text", "words": "text" }]);
    all["models"] = json!([plan]);
    (all["load"], all["rates"], all["can_pull"]) = (json!("any"), rates, json!("flag"));
    all
}

pub(super) fn requests() -> Value {
    let request = json!({ "id": "text", "model": "text", "client": "text" });
    json!({ "requests": [request] })
}

pub(super) fn log() -> Value {
    let entry = json!({ "number": "whole", "at_ms": "whole", "kind": "text", "words": "text" });
    json!({ "entries": [entry], "last": "whole" })
}

pub(super) fn members() -> Value {
    json!({ "owner": "flag", "authority": "flag", "members": ["any"] })
}

pub(super) fn invited() -> Value {
    json!({
        "invitation": { "token": "text" }, "command": "text", "command_of_phones": "text", "code": "any",
    })
}

pub(super) fn member() -> Value {
    json!({ "worker_id": "text", "name": "text" })
}

pub(super) fn drained() -> Value {
    json!({ "worker_id": "text", "draining": "flag" })
}

pub(super) fn foreseen() -> Value {
    let speed = json!({ "alone_seconds": "number", "together_seconds": "number" });
    let stage = json!({ "device": "text", "layers": "text" });
    json!({ "model": "text", "used": "flag", "before": speed, "after": speed, "stages": [stage] })
}

/// What the answers of Ollama's two ways to ask have, beside what is said.
fn said(name: &str, what: Value, reason: &str) -> Value {
    json!({
        "model": "text", "created_at": "text", "done": "flag", name: what, reason: "text", "total_duration?": "whole",
        "load_duration?": "whole", "prompt_eval_count?": "whole", "prompt_eval_duration?": "whole", "eval_count?": "whole",
        "eval_duration?": "whole", "logprobs?": ["any"],
    })
}

fn ollama_message() -> Value {
    json!({ "role": "=assistant", "content": "text", "thinking?": "text", "tool_calls?": ["any"] })
}

pub(super) fn ollama_chat() -> Value {
    said("message", ollama_message(), "done_reason")
}

pub(super) fn ollama_text() -> Value {
    said("response", json!("text"), "done_reason")
}

/// A line of an answer; the last one says why it ended.
pub(super) fn ollama_chat_piece() -> Value {
    said("message", ollama_message(), "done_reason?")
}

/// The same of an answer to a prompt.
pub(super) fn ollama_text_piece() -> Value {
    said("response", json!("text"), "done_reason?")
}

/// A line of how far a model is fetched.
pub(super) fn pulling() -> Value {
    json!({ "status": "text", "digest?": "text", "total?": "whole", "completed?": "whole" })
}

/// The last line of what broke off.
pub(super) fn broken_line() -> Value {
    json!({ "error": "text" })
}

pub(super) fn vectors() -> Value {
    json!({ "model": "text", "embeddings": [["number"]] })
}

pub(super) fn vector() -> Value {
    json!({ "embedding": ["number"] })
}

pub(super) fn listed() -> Value {
    let details = json!({
        "parent_model": "text", "format": "text", "family": "text", "families": ["text"], "parameter_size": "text",
        "quantization_level": "text",
    });
    let model = json!({ "name": "text", "model": "text", "size": "whole", "digest": "text", "details": details });
    json!({ "models": [model] })
}

pub(super) fn shown() -> Value {
    json!({
        "modelfile": "text", "parameters": "text", "template": "text", "details": { "family": "text" },
        "model_info": { "*": "any" }, "capabilities": ["text"], "modified_at": "text",
    })
}

pub(super) fn version() -> Value {
    json!({ "version": "text" })
}

pub(super) fn description() -> Value {
    json!({ "openapi": "text", "info": "any", "paths": { "*": "any" }, "components": "any" })
}
