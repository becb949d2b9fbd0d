//! What is served, as Ollama's API tells of models: one, which is always loaded.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::OriginalUri;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::names::LINES;
use super::wire::NameRequest;
use crate::api::error::ApiError;
use crate::api::params::check_model;
use crate::api::{Body, Ready, Served};

/// The version of Ollama whose API this is: programs ask whether it has what they need. It is the first with
/// log-probabilities.
const VERSION: &str = "0.12.11";
/// What Ollama calls a model of which nobody says which one it is.
const USUAL_TAG: &str = ":latest";
/// For so long nothing that is served is let go of, says `/api/ps`: for ever, in dates that every program can read.
const LOADED_FOR: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The name by which a client calls the served model: its own, with Ollama's usual tag or without, and Ollama's where it says
/// none.
///
/// # Errors
/// [`ApiError::UnknownModel`].
pub(super) fn called(served: &Served, found: Option<String>) -> Result<String, ApiError> {
    let Some(found) = found else { return Ok(tagged(&served.name)) };
    match found.strip_suffix(USUAL_TAG) {
        Some(name) if name == served.name => {}
        _ => check_model(served, Some(&found))?,
    }
    Ok(found)
}

/// A model's name as Ollama lists it.
fn tagged(name: &str) -> String {
    if name.contains(':') { name.to_owned() } else { format!("{name}{USUAL_TAG}") }
}

/// Refuses what the model's template has no word for, in the words that programs look for.
///
/// # Errors
/// [`ApiError::Parameter`].
pub(super) fn capable(served: &Served, thinks: bool, calls: bool) -> Result<(), ApiError> {
    let template = served.text.chat_template().unwrap_or_default();
    let lacks = |what: &str| format!("none: {:?} does not support {what}", served.name);
    if thinks && !can_think(template) {
        return Err(ApiError::parameter("think", "asked for", lacks("thinking")));
    }
    if calls && !can_call(template) {
        return Err(ApiError::parameter("tools", "some", lacks("tools")));
    }
    Ok(())
}

/// Whether a template has a word for thoughts, or for how much to think.
fn can_think(template: &str) -> bool {
    template.contains("reasoning_effort") || template.to_ascii_lowercase().contains("think")
}

/// Whether a template tells a model of tools.
fn can_call(template: &str) -> bool {
    template.contains("tools")
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": VERSION }))
}

pub(super) async fn tags(Ready(served): Ready) -> Json<Value> {
    let mut entry = entry(&served);
    entry["modified_at"] = json!(date(loaded(&served)));
    Json(json!({ "models": [entry] }))
}

pub(super) async fn running(Ready(served): Ready) -> Json<Value> {
    let mut entry = entry(&served);
    entry["expires_at"] = json!(date(SystemTime::now() + LOADED_FOR));
    entry["size_vram"] = json!(0); // Whose memory it is in, `/api/cluster` says.
    entry["context_length"] = json!(served.scheduler.limits().context);
    Json(json!({ "models": [entry] }))
}

pub(super) async fn show(
    Ready(served): Ready,
    Body(request, _): Body<NameRequest>,
) -> Result<Json<Value>, ApiError> {
    let name = called(&served, request.named())?;
    let template = served.text.chat_template().unwrap_or_default();
    let mut capabilities = vec!["completion"];
    capabilities.extend(can_call(template).then_some("tools"));
    capabilities.extend(can_think(template).then_some("thinking"));
    Ok(Json(json!({
        "modelfile": format!("FROM {name}\n"),
        "parameters": parameters(&served),
        "template": template,
        "details": details(&served),
        "model_info": info(&served),
        "capabilities": capabilities,
        "modified_at": date(loaded(&served)),
    })))
}

/// What is served is here already; anything else is not fetched.
pub(super) async fn pull(
    Ready(served): Ready,
    Body(request, _): Body<NameRequest>,
) -> Result<Response, ApiError> {
    let is_stream = request.stream.unwrap_or(true);
    called(&served, request.named())?;
    let done = json!({ "status": "success" });
    match is_stream {
        true => Ok(([(header::CONTENT_TYPE, LINES)], format!("{done}\n")).into_response()),
        false => Ok(Json(done).into_response()),
    }
}

/// Refuses what would change which models there are.
pub(super) async fn only_served(Ready(served): Ready, OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::OnlyServed { path: uri.path().to_owned(), served: served.name.clone() }
}

/// What both lists say of it.
fn entry(served: &Served) -> Value {
    let name = tagged(&served.name);
    json!({
        "name": name,
        "model": name,
        "size": served.about.bytes,
        "digest": served.about.digest,
        "details": details(served),
    })
}

fn details(served: &Served) -> Value {
    let about = &served.about;
    let family = family(&about.architecture);
    json!({
        "parent_model": "",
        "format": about.format,
        "family": family,
        "families": [family],
        "parameter_size": short(about.parameters),
        "quantization_level": about.encoding.trim_start_matches("ggml-").to_uppercase(),
    })
}

/// Facts under the names that GGUF files have for them. The context is what the server has room for, since programs ask for
/// as much as is said here.
fn info(served: &Served) -> Value {
    let about = &served.about;
    let family = family(&about.architecture);
    json!({
        "general.architecture": family,
        "general.parameter_count": about.parameters,
        format!("{family}.block_count"): about.layers,
        format!("{family}.context_length"): served.scheduler.limits().context,
        format!("{family}.embedding_length"): about.hidden_size,
        format!("{family}.vocab_size"): about.vocab_size,
    })
}

/// How tokens are chosen unless a request says otherwise, a line for each parameter.
fn parameters(served: &Served) -> String {
    let options = &served.defaults;
    let all = [
        ("num_ctx", served.scheduler.limits().context.to_string()),
        ("num_predict", served.max_tokens.to_string()),
        ("temperature", options.temperature.to_string()),
        ("top_k", options.top_k.to_string()),
        ("top_p", options.top_p.to_string()),
        ("min_p", options.min_p.to_string()),
        ("repeat_penalty", options.repetition_penalty.to_string()),
    ];
    all.map(|(name, value)| format!("{name:<30} {value}")).join("\n")
}

/// `qwen3moe` of `Qwen3MoeForCausalLM`.
fn family(architecture: &str) -> String {
    let name = architecture.split("For").next().unwrap_or_default();
    name.to_ascii_lowercase()
}

/// A number of parameters in few letters: `8.0B`, `134.5M`.
fn short(parameters: u64) -> String {
    let number = parameters as f64;
    match parameters {
        1_000_000_000.. => format!("{:.1}B", number / 1e9),
        1_000_000.. => format!("{:.1}M", number / 1e6),
        _ => format!("{:.1}K", number / 1e3),
    }
}

fn loaded(served: &Served) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(served.created)
}

fn date(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_the_names_that_ollama_gives_it() {
        assert_eq!(tagged("demo"), "demo:latest");
        assert_eq!(tagged("qwen3:8b"), "qwen3:8b");
        assert_eq!(family("Qwen3MoeForCausalLM"), "qwen3moe");
        assert_eq!(family("Gemma3ForConditionalGeneration"), "gemma3");
        assert_eq!(family("GPT2LMHeadModel"), "gpt2lmheadmodel");
        let counts = [8_030_261_248, 134_515_008, 5_400, 999_999_999_999];
        assert_eq!(counts.map(short), ["8.0B", "134.5M", "5.4K", "1000.0B"]);
    }

    #[test]
    fn a_template_says_what_a_model_can_do() {
        let tells = "{% if tools %}{{ tools | tojson }}{% endif %}";
        assert!(can_call(tells) && !can_think(tells));
        for thinks in ["{% if enable_thinking %}", "[THINK]", "Reasoning: {{ reasoning_effort }}"] {
            assert!(can_think(thinks) && !can_call(thinks), "{thinks}");
        }
        assert!(!can_think("{{ messages }}") && !can_call("") && !can_think(""));
    }
}
