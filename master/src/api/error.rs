//! Errors as OpenAI's APIs give them, and as Anthropic's and Ollama's do.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cake_identity::NameError;
use serde_json::{Value, json};

use super::not_done::NotDone;
use super::ollama;
use crate::grammar;
use crate::membership;
use crate::monitor::Phase;
use crate::request_id::{self, RequestId};
use crate::scheduler::{self, Refusal};
use crate::shelf::WhyNot;
use crate::text;
use crate::wonder;

/// Seconds after which a client may try again when the queue is full or the model loads.
const RETRY_AFTER_SECONDS: u64 = 1;

/// Longest message: a sentence with names in it is a third of that.
const MAX_MESSAGE_CHARS: usize = 600;

/// The code of prompts that do not fit, and the words by which clients know them that see no code: Anthropic's.
const TOO_LONG: &str = "context_length_exceeded";
const TOO_LONG_WORDS: &str = "prompt is too long";

/// What a parameter is called in another API.
type Named = fn(&'static str) -> Cow<'static, str>;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// The body is not what it should be.
    #[error("{0}")]
    Body(String),
    /// A parameter has a value that cannot be.
    #[error("{param} is {found}, expected {expected}")]
    Parameter { param: &'static str, found: String, expected: String },
    /// A parameter that is not known how to follow.
    #[error("{param} is not supported here")]
    Unsupported { param: &'static str },
    /// Another model than those at hand.
    #[error("the model {found:?} is not served here, {}", are(at_hand))]
    UnknownModel { found: String, at_hand: Vec<String> },
    /// It is at hand, and could not be loaded.
    #[error("the model {model:?} cannot be loaded: {why}")]
    NotLoaded { model: String, why: WhyNot },
    /// It cannot be fetched.
    #[error(transparent)]
    Hub(#[from] cake_hub::Error),
    /// No response of this id, of those that who asks has; `param` named it, or the path did.
    #[error(
        "there is no response {id:?} here: it was not stored, was deleted, or gave way to newer ones"
    )]
    UnknownResponse { id: String, param: Option<&'static str> },
    /// Models are not changed from elsewhere.
    #[error("{path} is not done here: models are changed where the server runs")]
    OnlyServed { path: String },
    /// No such path.
    #[error("there is nothing at {path}")]
    UnknownPath { path: String },
    /// The path takes other methods.
    #[error("{path} does not take {method}")]
    Method { path: String, method: String },
    /// The scheduler does not take it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Template or tokenizer do not take it.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// No answer can be held to anything.
    #[error(transparent)]
    Grammar(#[from] grammar::Error),
    /// The answer cannot be held to what this parameter asks for.
    #[error("{param}: {error}")]
    Schema { param: &'static str, error: grammar::Error },
    /// It broke off.
    #[error(transparent)]
    Failed(#[from] scheduler::Error),
    /// The model is not there yet, or not any more.
    #[error("the model is not ready: {}", match reason {
        Some(reason) => reason.clone(),
        None => format!("{phase:?}").to_lowercase(),
    })]
    NotReady { phase: Phase, reason: Option<String> },
    /// The body has more bytes than are read.
    #[error("the body is larger than {} MiB", super::bodies::MAX_BODY_BYTES >> 20)]
    TooLarge,
    /// A prompt could not be read, by a fault of ours.
    #[error("reading the prompt ended unexpectedly")]
    PromptPanicked,
    /// Of a body nothing more comes, or hardly anything.
    #[error(
        "the body stopped after {received} bytes{}",
        missing.map_or(String::new(), |missing| format!(", and {missing} more were announced"))
    )]
    BodyStalled { received: usize, missing: Option<usize> },
    /// Other requests bring as much as there is room for.
    #[error("other requests bring {} MiB already, try again", bytes >> 20)]
    Crowded { bytes: usize },
    /// Others' large texts are read, one after the other.
    #[error("other large prompts are read first, try again")]
    ManyLargeTexts,
    /// Every connection has a request on it.
    #[error("all {connections} connections that this server takes are at work, try again")]
    Full { connections: usize },
    /// The scheduler has gone.
    #[error("the server is shutting down")]
    Closed,
    /// A page of another origin asks.
    #[error(
        "pages of {origin} may not ask here: the server was not started with --cors-origin {origin}"
    )]
    Origin { origin: String },
    /// It was sent under a name that may be anybody's.
    #[error(
        "this server does not know itself as {host:?}: start it with --cors-origin http://{host} if that is its name, or ask for it by its IP address"
    )]
    Host { host: String },
    /// What is done with devices was not done.
    #[error(transparent)]
    NotDone(#[from] NotDone),
    /// A key is asked for, and this is not it.
    #[error(
        "the API key is missing or wrong: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
    )]
    Unauthorized,
}

impl ApiError {
    pub(super) fn parameter(
        param: &'static str,
        found: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::Parameter { param, found: found.to_string(), expected: expected.into() }
    }

    /// Its status and OpenAI's words for the kind and the code.
    fn kind(&self) -> (StatusCode, &'static str, Option<&'static str>) {
        const INVALID: &str = "invalid_request_error";
        match self {
            Self::Body(_) | Self::Parameter { .. } | Self::Unsupported { .. } => {
                (StatusCode::BAD_REQUEST, INVALID, None)
            }
            Self::Schema { error: grammar::Error::Busy, .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("queue_full"))
            }
            // What a schema takes under way is the request's doing.
            Self::Grammar(_) | Self::Schema { .. } | Self::Failed(scheduler::Error::Grammar(_)) => {
                (StatusCode::BAD_REQUEST, INVALID, None)
            }
            Self::Text(error) => match error {
                text::Error::PromptTooLong { .. }
                | text::Error::TemplateExceeds { bound: text::Bound::Output(_), .. } => {
                    (StatusCode::BAD_REQUEST, INVALID, Some(TOO_LONG))
                }
                text::Error::NoRenderer { .. } | text::Error::RendererEnded { .. } => {
                    (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None)
                }
                _ => (StatusCode::BAD_REQUEST, INVALID, None),
            },
            Self::PromptPanicked => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None),
            Self::UnknownModel { .. } => (StatusCode::NOT_FOUND, INVALID, Some("model_not_found")),
            Self::Hub(cake_hub::Error::Name { .. }) => (StatusCode::BAD_REQUEST, INVALID, None),
            Self::Hub(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "server_error", Some("model_not_fetched"))
            }
            Self::NotLoaded { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, "server_error", Some("model_not_loaded"))
            }
            Self::UnknownResponse { param, .. } => {
                let code = param.map(|_| "previous_response_not_found");
                (StatusCode::NOT_FOUND, INVALID, code)
            }
            Self::UnknownPath { .. } => (StatusCode::NOT_FOUND, INVALID, None),
            Self::OnlyServed { .. } => (StatusCode::NOT_IMPLEMENTED, INVALID, None),
            Self::Method { .. } => (StatusCode::METHOD_NOT_ALLOWED, INVALID, None),
            Self::Origin { .. } => (StatusCode::FORBIDDEN, INVALID, Some("origin_not_allowed")),
            Self::Host { .. } => (StatusCode::FORBIDDEN, INVALID, Some("host_not_allowed")),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, INVALID, None),
            Self::BodyStalled { .. } => (StatusCode::REQUEST_TIMEOUT, INVALID, None),
            Self::Crowded { .. } | Self::ManyLargeTexts | Self::Full { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("overloaded"))
            }
            Self::NotReady { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("not_ready"))
            }
            Self::NotDone(error) => match error {
                NotDone::NotOwner => (StatusCode::FORBIDDEN, INVALID, Some("not_owner")),
                NotDone::Nobody { .. }
                | NotDone::Name(NameError::Unknown { .. } | NameError::Nobody { .. }) => {
                    (StatusCode::NOT_FOUND, INVALID, None)
                }
                NotDone::Name(NameError::Unfit { .. }) => (StatusCode::BAD_REQUEST, INVALID, None),
                NotDone::Name(_)
                | NotDone::Wonder(wonder::Error::Refused(_))
                | NotDone::Membership(membership::Error::NoAuthority { .. }) => {
                    (StatusCode::CONFLICT, INVALID, None)
                }
                NotDone::Wonder(wonder::Error::Busy) => {
                    (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("overloaded"))
                }
                NotDone::Membership(_) => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None),
            },
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, INVALID, Some("invalid_api_key")),
            Self::Refused(Refusal::Busy { .. }) => {
                (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("queue_full"))
            }
            Self::Closed
            | Self::Failed(scheduler::Error::Pipeline(_) | scheduler::Error::Unrecovered(_)) => {
                (StatusCode::SERVICE_UNAVAILABLE, "server_error", None)
            }
            Self::Refused(Refusal::PromptTooLong { .. } | Refusal::NeverFits { .. }) => {
                (StatusCode::BAD_REQUEST, INVALID, Some(TOO_LONG))
            }
            Self::Refused(_) => (StatusCode::BAD_REQUEST, INVALID, None),
            Self::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None),
        }
    }

    /// The parameter that is to blame.
    fn param(&self) -> Option<&'static str> {
        match self {
            Self::Parameter { param, .. }
            | Self::Unsupported { param }
            | Self::Schema { param, .. } => Some(param),
            Self::UnknownResponse { param, .. } => *param,
            Self::UnknownModel { .. } | Self::NotLoaded { .. } => Some("model"),
            _ => None,
        }
    }

    /// OpenAI's error object, which also ends a stream that breaks off.
    pub(super) fn json(&self) -> Value {
        self.naming(Cow::Borrowed)
    }

    /// The same of Responses, which have other names for some parameters.
    pub(super) fn of_responses(&self) -> Value {
        self.naming(|param| match param {
            "max_completion_tokens" => "max_output_tokens".into(),
            "reasoning_effort" => "reasoning.effort".into(),
            _ if param.starts_with("response_format") => "text.format".into(),
            _ if param.starts_with("messages") => "input".into(),
            _ => param.into(),
        })
    }

    /// OpenAI's error object with parameters by other names.
    fn naming(&self, named: Named) -> Value {
        let (_, kind, code) = self.kind();
        let (param, message) = (self.param().map(named), self.message(named));
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }

    /// What is said, with the parameter that it begins with by another name.
    fn message(&self, named: Named) -> String {
        let mut message = self.to_string();
        if let (.., Some(TOO_LONG)) = self.kind() {
            message = format!("the {TOO_LONG_WORDS}: {message}");
        }
        let renamed = self.param().and_then(|param| {
            let rest = message.strip_prefix(param)?;
            Some(named(param).into_owned() + rest)
        });
        shortened(renamed.unwrap_or(message))
    }

    /// Anthropic's error object, which also ends a stream that breaks off.
    pub(super) fn of_messages(&self) -> Value {
        let (status, ..) = self.kind();
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::REQUEST_TIMEOUT => "timeout_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::INTERNAL_SERVER_ERROR => "api_error",
            _ => "invalid_request_error",
        };
        // It has other names for some parameters.
        let message = self.message(|param| match param {
            "stop" => "stop_sequences".into(),
            "reasoning_effort" => "output_config.effort".into(),
            "continue_final_message" => "the assistant's turn at the end of messages".into(),
            _ if param.starts_with("response_format") => "output_config.format".into(),
            _ => param.into(),
        });
        json!({ "type": "error", "error": { "type": kind, "message": message } })
    }

    /// Ollama's error object, which also ends a stream that breaks off.
    pub(super) fn of_ollama(&self) -> Value {
        let message = match self {
            // Programs look for these words, and then offer to fetch it.
            Self::UnknownModel { found, at_hand } => {
                shortened(format!("model {found:?} not found: here {}", are(at_hand)))
            }
            _ => self.message(ollama::named),
        };
        json!({ "error": message })
    }

    /// The whole answer as bytes, to a request of this id whose connection is closed after it.
    pub(super) fn whole(&self, id: &RequestId) -> Vec<u8> {
        let ((status, ..), body) = (self.kind(), self.json().to_string());
        let head = [
            format!("HTTP/1.1 {status}"),
            "content-type: application/json".to_owned(),
            format!("content-length: {}", body.len()),
            format!("{}: {RETRY_AFTER_SECONDS}", header::RETRY_AFTER),
            format!("{}: {id}", request_id::HEADER),
            "connection: close".to_owned(),
        ];
        format!("{}\r\n\r\n{body}", head.join("\r\n")).into_bytes()
    }
}

/// What is there instead.
fn are(at_hand: &[String]) -> String {
    match at_hand {
        [] => "no model is".to_owned(),
        [one] => format!("{one:?} is"),
        several => {
            let names: Vec<String> = several.iter().map(|name| format!("{name:?}")).collect();
            format!("{} are", names.join(", "))
        }
    }
}

/// A message without what is too long in it: it may repeat what was sent.
fn shortened(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE_CHARS) {
        message.truncate(end);
        message.push('…');
    }
    message
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, _, _) = self.kind();
        let mut response = (status, Json(self.json())).into_response();
        let later = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
        if later.contains(&status) {
            let seconds = HeaderValue::from(RETRY_AFTER_SECONDS);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        let unauthorized = status == StatusCode::UNAUTHORIZED;
        // For who has another form for it.
        response.extensions_mut().insert(Arc::new(self));
        if unauthorized {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
