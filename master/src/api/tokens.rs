//! What a model is told: `POST /tokenize` and `/detokenize` and `GET /tokenizer_info` as vLLM has them, `POST /apply-template` as
//! llama.cpp has it.

use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::chat::Asked as Chat;
use super::described::{Lets, NeedsOne};
use super::error::ApiError;
use super::measure::{Bound, Measured};
use super::wire::{ChatMessage, ChatRequest, token_ids};
use super::{Body, Ready};

/// About how many bytes of text a token stands for.
const TOKEN_BYTES: usize = 4;

/// `POST /tokenize`: a text, or a chat.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[schemars(transform = Lets(&["messages"]), transform = NeedsOne(&["prompt", "messages"]))]
pub(super) struct TokenizeRequest {
    prompt: Option<String>,
    /// Whether a text gets the tokens around it that the model expects there.
    add_special_tokens: Option<bool>,
    /// Whether each token's text is told, too.
    return_token_strs: Option<bool>,
    #[serde(flatten)]
    chat: ChatRequest,
}

/// `POST /detokenize`.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
}

impl Measured for TokenizeRequest {
    const BOUNDS: &'static [Bound] = ChatRequest::BOUNDS;
}

impl Measured for DetokenizeRequest {
    const BOUNDS: &'static [Bound] = &[token_ids("tokens")];
}

#[derive(Debug, Serialize)]
pub(super) struct Tokenized {
    count: usize,
    /// Tokens of the longest sequence.
    max_model_len: usize,
    tokens: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

/// What is to be tokenized.
pub(super) enum Asked {
    Text { text: String, add_special_tokens: bool, model: Option<String> },
    Chat(Box<Chat>),
}

impl Asked {
    /// # Errors
    /// [`ApiError::Parameter`] and [`ApiError::Unsupported`] for what cannot be done.
    pub(super) fn new(request: TokenizeRequest) -> Result<Self, ApiError> {
        let TokenizeRequest { prompt, add_special_tokens, chat, .. } = request;
        match (prompt, chat.messages.is_empty()) {
            (Some(text), true) => {
                // What is said beside it is looked at as that of a chat.
                let beside = Chat::new(ChatRequest {
                    messages: vec![ChatMessage::new("user", String::new())],
                    add_generation_prompt: None,
                    continue_final_message: None,
                    ..chat
                })?;
                let model = beside.model().map(str::to_owned);
                let add_special_tokens = add_special_tokens.unwrap_or(true);
                Ok(Self::Text { text, add_special_tokens, model })
            }
            (None, false) if add_special_tokens == Some(true) => {
                let expected = "false beside messages: the template writes all there are";
                Err(ApiError::parameter("add_special_tokens", true, expected))
            }
            (None, false) => Chat::new(chat).map(|chat| Self::Chat(Box::new(chat))),
            (Some(_), false) => {
                Err(ApiError::parameter("prompt", "there beside messages", "one of both"))
            }
            (None, true) => Err(ApiError::parameter("prompt", "missing", "a text, or messages")),
        }
    }
}

/// The tokens of a text or of a chat, as far as they fit into the context.
pub(super) async fn tokenize(
    Ready(server): Ready,
    Body(request, room): Body<TokenizeRequest>,
) -> Result<Json<Tokenized>, ApiError> {
    let return_token_strs = request.return_token_strs;
    let (served, tokens) = match Asked::new(request)? {
        Asked::Text { text, add_special_tokens, model } => {
            let served = server.model(model.as_deref(), None).await?;
            (served.clone(), served.text_ids(text, add_special_tokens).await?)
        }
        Asked::Chat(mut asked) => {
            let served = server.model(asked.model(), None).await?;
            (served.clone(), asked.prompt(&served).await?.ids)
        }
    };
    drop(room);
    let token_strs = return_token_strs
        .unwrap_or(false)
        .then(|| block_in_place(|| tokens.iter().map(|id| served.text.token(*id)).collect()));
    let max_model_len = served.scheduler.limits().context;
    Ok(Json(Tokenized { count: tokens.len(), max_model_len, tokens, token_strs }))
}

/// The text of tokens, of which there may be as many as fit into the context.
pub(super) async fn detokenize(
    Ready(server): Ready,
    Body(request, _room): Body<DetokenizeRequest>,
) -> Result<Json<Value>, ApiError> {
    let DetokenizeRequest { model, tokens } = request;
    let served = server.model(model.as_deref(), None).await?;
    let most = served.scheduler.limits().context;
    if tokens.len() > most {
        let expected = format!("at most {most}, the context");
        return Err(ApiError::parameter("tokens", format!("{} ids", tokens.len()), expected));
    }
    let vocab_size = served.scheduler.vocab_size();
    if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab_size) {
        let expected = format!("ids below {vocab_size}");
        return Err(ApiError::parameter("tokens", format!("a list with {id}"), expected));
    }
    let (decoding, bytes) = (served.clone(), tokens.len().saturating_mul(TOKEN_BYTES));
    let decode = move || Ok(decoding.text.decode_all(&tokens)?);
    let prompt = served.turns.take(bytes, decode).await?;
    Ok(Json(json!({ "prompt": prompt })))
}

/// The special tokens and the template of the loaded model, under the names that they have in `tokenizer_config.json`.
pub(super) async fn tokenizer_info(Ready(server): Ready) -> Result<Json<Value>, ApiError> {
    let served = server.model(None, None).await?;
    let mut info = json!(served.text.special_tokens());
    info["chat_template"] = json!(served.text.chat_template());
    Ok(Json(info))
}

/// The text that the template makes of a chat.
pub(super) async fn apply_template(
    Ready(server): Ready,
    Body(request, room): Body<ChatRequest>,
) -> Result<Json<Value>, ApiError> {
    let mut asked = Chat::new(request)?;
    let served = server.model(asked.model(), None).await?;
    let prompt = asked.text(&served).await?;
    drop(room);
    Ok(Json(json!({ "prompt": prompt })))
}
