//! The models at hand, as Ollama's API tells of them, and of those that are loaded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::OriginalUri;
use cake_checkpoint::Checkpoint;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::wire::NameRequest;
use crate::api::error::ApiError;
use crate::api::{Body, Ready, Served, Server};
use crate::shelf::{About, AtHand, WhyNot};
use crate::text::Text;

/// The version of Ollama whose API this is: programs ask whether it has what they need. It is the first with
/// log-probabilities.
const VERSION: &str = "0.12.11";
/// What Ollama calls a model of which nobody says which one it is.
pub(super) const USUAL_TAG: &str = ":latest";
/// What `/api/ps` says of a model that stays for ever, in dates that every program can read.
const LOADED_FOR: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The name by which a client calls a model, and the model's own: the client's with Ollama's usual tag or without, and
/// Ollama's where it says none.
///
/// # Errors
/// As [`Server::meant`].
pub(super) fn called(server: &Server, found: Option<String>) -> Result<(String, String), ApiError> {
    let found = found.filter(|found| !found.is_empty());
    let Some(found) = found else { return server.meant(None).map(|name| (tagged(&name), name)) };
    let untagged = found
        .strip_suffix(USUAL_TAG)
        .filter(|name| block_in_place(|| server.shelf.find(name)).is_some());
    let name = untagged.unwrap_or(&found).to_owned();
    Ok((found, name))
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

pub(super) async fn tags(Ready(server): Ready) -> Json<Value> {
    let models = server.models().into_iter();
    let entries = models.filter_map(|(model, served)| {
        let about = about(&model, served.as_deref())?;
        let mut entry = entry(&model.name, about);
        entry["modified_at"] = json!(date(model.since));
        Some(entry)
    });
    Json(json!({ "models": entries.collect::<Vec<_>>() }))
}

pub(super) async fn running(Ready(server): Ready) -> Json<Value> {
    // Before they are looked at, which is a use of them.
    let names = server.desk.guests().into_iter().map(|guest| guest.name);
    let left = |name: &str| server.desk.keeps(name).map_or(LOADED_FOR, |left| left.min(LOADED_FOR));
    let left: HashMap<String, Duration> = names.map(|name| (name.clone(), left(&name))).collect();
    let entries = server.desk.loaded().into_iter().map(|served| {
        let left = left.get(&served.name).copied().unwrap_or(LOADED_FOR);
        let mut entry = entry(&served.name, &served.about);
        entry["expires_at"] = json!(date(SystemTime::now() + left));
        entry["size_vram"] = json!(0); // Whose memory it is in, `/api/cluster` says.
        entry["context_length"] = json!(served.scheduler.limits().context);
        entry
    });
    Json(json!({ "models": entries.collect::<Vec<_>>() }))
}

pub(super) async fn show(
    Ready(server): Ready,
    Body(request, _): Body<NameRequest>,
) -> Result<Json<Value>, ApiError> {
    let (name, own) = called(&server, request.named())?;
    let model = server.at_hand(&own)?;
    let served = server.desk.loaded_as(&own);
    let not_loaded = |why: WhyNot| ApiError::NotLoaded { model: own.clone(), why };
    let about = match (&served, &model.about) {
        (Some(served), _) => &served.about,
        (None, Ok(about)) => about,
        (None, Err(why)) => return Err(not_loaded(why.clone())),
    };
    let template = match &served {
        Some(served) => served.text.chat_template().map(str::to_owned),
        None => {
            // Whoever asks for many has them read one after the other.
            let _turn = server.bodies.turn.acquire().await.map_err(|_| ApiError::Closed)?;
            block_in_place(|| template(&model)).map_err(not_loaded)?
        }
    };
    let template = template.unwrap_or_default();
    let mut capabilities = vec!["completion"];
    capabilities.extend(can_call(&template).then_some("tools"));
    capabilities.extend(can_think(&template).then_some("thinking"));
    Ok(Json(json!({
        "modelfile": format!("FROM {name}\n"),
        "parameters": served.as_deref().map_or_else(String::new, parameters),
        "template": template,
        "details": details(about),
        "model_info": info(about, served.as_deref()),
        "capabilities": capabilities,
        "modified_at": date(model.since),
    })))
}

/// The chat template of a model that is not loaded, if it has one.
fn template(model: &AtHand) -> Result<Option<String>, WhyNot> {
    let checkpoint = Checkpoint::open(&model.model).map_err(|error| Arc::new(error) as WhyNot)?;
    let text = Text::of(&checkpoint.texts).map_err(|error| Arc::new(error) as WhyNot)?;
    Ok(text.chat_template().map(str::to_owned))
}

/// Refuses what would change which models there are.
pub(super) async fn only_told(OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::OnlyServed { path: uri.path().to_owned() }
}

/// What is told of a model: as it is loaded, if it is.
fn about<'a>(model: &'a AtHand, served: Option<&'a Served>) -> Option<&'a About> {
    served.map(|served| &served.about).or(model.about.as_ref().ok())
}

/// What both lists say of a model.
fn entry(name: &str, about: &About) -> Value {
    let name = tagged(name);
    json!({
        "name": name,
        "model": name,
        "size": about.bytes,
        "digest": about.digest,
        "details": details(about),
    })
}

fn details(about: &About) -> Value {
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
/// as much as is said here; how much that is, is known of a model that is loaded.
fn info(about: &About, served: Option<&Served>) -> Value {
    let family = family(&about.architecture);
    let mut info = json!({
        "general.architecture": family,
        "general.parameter_count": about.parameters,
        format!("{family}.block_count"): about.layers,
        format!("{family}.embedding_length"): about.hidden_size,
        format!("{family}.vocab_size"): about.vocab_size,
    });
    if let Some(served) = served {
        let context = served.scheduler.limits().context;
        info[format!("{family}.context_length")] = json!(context);
    }
    info
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
