//! What things are called in Ollama's API, for whoever speaks of them. It uses nothing else.

use std::borrow::Cow;

/// The content type of a stream: JSON, a line for each value.
pub(in crate::api) const LINES: &str = "application/x-ndjson";
/// What is beneath `/api/` and not Ollama's.
const OURS: [&str; 6] = ["cluster", "events", "requests", "log", "members", "what-if"];

/// Options that are followed or refused and have the same name in chats of other APIs, if one at all.
const OPTIONS: [&str; 14] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "num_ctx",
    "repeat_last_n",
    "mirostat",
    "penalize_newline",
    "tfs_z",
    "typical_p",
];

/// Whether whoever asks for `path` speaks Ollama's API.
pub(in crate::api) fn is_asked(path: &str) -> bool {
    let first = |rest: &str| rest.split('/').next().is_some_and(|first| OURS.contains(&first));
    path.strip_prefix("/api/").is_some_and(|rest| !first(rest))
}

/// The name that a parameter of a chat has here.
pub(in crate::api) fn named(param: &'static str) -> Cow<'static, str> {
    match param {
        "continue_final_message" => "the assistant's turn at the end of messages".into(),
        "max_tokens" | "max_completion_tokens" => "options.num_predict".into(),
        "repetition_penalty" => "options.repeat_penalty".into(),
        "reasoning_effort" | "enable_thinking" => "think".into(),
        _ if param.starts_with("response_format") => "format".into(),
        _ if OPTIONS.contains(&param) => format!("options.{param}").into(),
        _ => param.into(),
    }
}
