//! Everything that can be asked for: one entry for each method of each path.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use super::shapes;
use super::tag::Tag::{self, Anthropic, Devices, Models, Ollama, OpenAi, Server, Tokens};
use crate::api::household::{Drain, Invite, Nothing, Rename, WhatIf};
use crate::api::messages::MessagesRequest;
use crate::api::ollama::{ChatRequest as OllamaChat, EmbedRequest, GenerateRequest, NameRequest};
use crate::api::responses::{ResponsesRequest, list};
use crate::api::tokens::{DetokenizeRequest, TokenizeRequest};
use crate::api::wire::{ChatRequest, CompletionRequest, EmbeddingsRequest};

/// Gives a type's schema its place among all, and what refers to it.
type Asks = fn(&mut SchemaGenerator) -> Schema;

/// Gives the schema of what a query says.
type Says = fn() -> Value;

/// What comes back where all is well, of one content type.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    /// Of JSON; of a stream, of an event's data or of a line.
    pub(super) shape: Option<fn() -> Value>,
}

/// One method of a path.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) tag: Tag,
    /// One sentence.
    pub(super) says: &'static str,
    /// The body, if there is one.
    pub(super) asks: Option<Asks>,
    /// What a query may say, by its names.
    pub(super) queries: &'static [(&'static str, Says)],
    pub(super) answers: Vec<Answer>,
    /// The statuses of errors.
    pub(super) refuses: &'static [u16],
}

const JSON: &str = "application/json";
/// Of streams of server-sent events.
pub(super) const EVENTS: &str = "text/event-stream";

/// Statuses of what is for those alone who may ask, and may find the server at work or its model not there.
const GUARDED: &[u16] = &[401, 403, 503];
/// Of what has a name or an id in its path.
const NAMED: &[u16] = &[400, 401, 403, 404, 503];
/// Of requests that have a body.
const ASKED: &[u16] = &[400, 401, 403, 404, 408, 413, 429, 500, 503];
/// Of what the owner of the devices alone may ask for.
const OWNED: &[u16] = &[400, 401, 403, 404, 408, 409, 413, 429, 500, 503];
/// Of what is nobody's secret, and is asked for under a name of the server's own.
const PAGE: &[u16] = &[403, 404, 503];
/// Of what says no more than how the server is.
const OPEN: &[u16] = &[503];
/// Of what is refused in any case.
const NEVER: &[u16] = &[401, 403, 501, 503];

const fn json(shape: fn() -> Value) -> Answer {
    Answer { status: 200, kind: JSON, shape: Some(shape) }
}

const fn text(kind: &'static str) -> Answer {
    Answer { status: 200, kind, shape: None }
}

const fn events(shape: fn() -> Value) -> Answer {
    Answer { status: 200, kind: EVENTS, shape: Some(shape) }
}

const fn lines(shape: fn() -> Value) -> Answer {
    Answer { status: 200, kind: crate::api::ollama::LINES, shape: Some(shape) }
}

/// How a stream of OpenAI's may end.
const BROKEN: Answer = events(shapes::broken);
const OVER: Answer = events(shapes::over);

fn get(tag: Tag, path: &'static str, says: &'static str, answers: &[Answer]) -> Operation {
    let answers = answers.to_vec();
    let (asks, queries) = (None, &[] as &[_]);
    Operation { method: "get", path, tag, says, asks, queries, answers, refuses: GUARDED }
}

fn post<T: JsonSchema>(
    tag: Tag,
    path: &'static str,
    says: &'static str,
    answers: &[Answer],
) -> Operation {
    let asks: Asks = |schemas| schemas.subschema_for::<T>();
    Operation { method: "post", asks: Some(asks), refuses: ASKED, ..get(tag, path, says, answers) }
}

fn any_text() -> Value {
    json!({ "type": "string" })
}

fn number() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn never(method: &'static str, path: &'static str) -> Operation {
    let says = "Refused: models are made and put away by other means.";
    Operation { method, refuses: NEVER, ..get(Ollama, path, says, &[]) }
}

/// All of them, in the order in which they are described.
pub(super) fn all() -> Vec<Operation> {
    let named = |operation| Operation { refuses: NAMED, ..operation };
    let owned = |operation| Operation { refuses: OWNED, ..operation };
    let page = |operation| Operation { refuses: PAGE, ..operation };
    let open = |operation| Operation { refuses: OPEN, ..operation };
    let not_ready = Answer { status: 503, ..json(shapes::readiness) };
    let response = "/v1/responses/{id}";
    vec![
        post::<ChatRequest>(
            OpenAi,
            "/v1/chat/completions",
            "An answer in a chat.",
            &[json(shapes::chat), events(shapes::chat_piece), BROKEN, OVER],
        ),
        post::<CompletionRequest>(
            OpenAi,
            "/v1/completions",
            "What comes after a text.",
            &[json(shapes::completion), events(shapes::completion_piece), BROKEN, OVER],
        ),
        post::<EmbeddingsRequest>(
            OpenAi,
            "/v1/embeddings",
            "Texts as vectors.",
            &[json(shapes::embeddings)],
        ),
        get(Models, "/v1/models", "The models at hand.", &[json(shapes::models)]),
        named(get(
            Models,
            "/v1/models/{*name}",
            "One of them by its name.",
            &[json(shapes::model)],
        )),
        post::<ResponsesRequest>(
            OpenAi,
            "/v1/responses",
            "A response, which is stored unless it is not to be.",
            &[json(shapes::response), events(shapes::response_event)],
        ),
        Operation {
            queries: &[("stream", list::streams)],
            ..named(get(OpenAi, response, "One that is stored.", &[json(shapes::response)]))
        },
        Operation {
            method: "delete",
            ..named(get(OpenAi, response, "Forgets it.", &[json(shapes::deleted)]))
        },
        Operation {
            queries: &[("after", any_text), ("limit", list::limits), ("order", list::orders)],
            ..named(get(
                OpenAi,
                "/v1/responses/{id}/input_items",
                "What was said to the model in its request.",
                &[json(shapes::items)],
            ))
        },
        post::<MessagesRequest>(
            Anthropic,
            "/v1/messages",
            "An answer in a chat.",
            &[json(shapes::message), events(shapes::message_event)],
        ),
        post::<MessagesRequest>(
            Anthropic,
            "/v1/messages/count_tokens",
            "How many tokens a request's prompt has.",
            &[json(shapes::counted)],
        ),
        post::<TokenizeRequest>(
            Tokens,
            "/tokenize",
            "The tokens of a text, or of a chat.",
            &[json(shapes::tokenized)],
        ),
        post::<DetokenizeRequest>(
            Tokens,
            "/detokenize",
            "The text of tokens.",
            &[json(shapes::prompt)],
        ),
        post::<ChatRequest>(
            Tokens,
            "/apply-template",
            "The text that the template makes of a chat.",
            &[json(shapes::prompt)],
        ),
        Operation {
            refuses: ASKED,
            ..get(
                Tokens,
                "/tokenizer_info",
                "The special tokens and the template.",
                &[json(shapes::tokenizer)],
            )
        },
        post::<OllamaChat>(
            Ollama,
            "/api/chat",
            "An answer in a chat, in lines unless `stream` is false.",
            &[
                json(shapes::ollama_chat),
                lines(shapes::ollama_chat_piece),
                lines(shapes::broken_line),
            ],
        ),
        post::<GenerateRequest>(
            Ollama,
            "/api/generate",
            "An answer to a prompt, in lines unless `stream` is false.",
            &[
                json(shapes::ollama_text),
                lines(shapes::ollama_text_piece),
                lines(shapes::broken_line),
            ],
        ),
        post::<EmbedRequest>(
            Ollama,
            "/api/embed",
            "Texts as vectors of length 1.",
            &[json(shapes::vectors)],
        ),
        post::<EmbedRequest>(
            Ollama,
            "/api/embeddings",
            "A text, which may be called `prompt`, as a vector.",
            &[json(shapes::vector)],
        ),
        get(Ollama, "/api/tags", "The models at hand.", &[json(shapes::listed)]),
        get(Ollama, "/api/ps", "Those that are loaded.", &[json(shapes::listed)]),
        post::<NameRequest>(Ollama, "/api/show", "What is known of one.", &[json(shapes::shown)]),
        get(
            Ollama,
            "/api/version",
            "The version of Ollama whose API this is.",
            &[json(shapes::version)],
        ),
        post::<NameRequest>(
            Ollama,
            "/api/pull",
            "Fetches a model, unless it is at hand.",
            &[json(shapes::status), lines(shapes::pulling), lines(shapes::broken_line)],
        ),
        never("post", "/api/push"),
        never("post", "/api/create"),
        never("post", "/api/copy"),
        never("delete", "/api/delete"),
        never("head", "/api/blobs/{digest}"),
        never("post", "/api/blobs/{digest}"),
        get(
            Devices,
            "/api/cluster",
            "The devices, and how busy they are.",
            &[json(shapes::cluster)],
        ),
        get(
            Devices,
            "/api/events",
            "The same every second, without an end.",
            &[events(shapes::cluster)],
        ),
        get(
            Server,
            "/api/requests",
            "The requests that are computed or wait.",
            &[json(shapes::requests)],
        ),
        Operation {
            queries: &[("after", number)],
            ..named(get(Server, "/api/log", "What happened lately.", &[json(shapes::log)]))
        },
        owned(get(
            Devices,
            "/api/members",
            "Who joined, for the owner of the devices.",
            &[json(shapes::members)],
        )),
        owned(post::<Invite>(
            Devices,
            "/api/members/invite",
            "A token that lets a worker join.",
            &[json(shapes::invited)],
        )),
        owned(post::<Rename>(
            Devices,
            "/api/members/{id}/rename",
            "Gives a worker another name.",
            &[json(shapes::member)],
        )),
        owned(post::<Drain>(
            Devices,
            "/api/members/{id}/drain",
            "Frees a worker of its layers, or no longer.",
            &[json(shapes::drained)],
        )),
        owned(post::<Nothing>(
            Devices,
            "/api/members/{id}/revoke",
            "Shuts a worker out.",
            &[json(shapes::member)],
        )),
        owned(post::<WhatIf>(
            Devices,
            "/api/what-if",
            "What one more worker with so much memory would change.",
            &[json(shapes::foreseen)],
        )),
        get(
            Server,
            "/metrics",
            "What is counted, for Prometheus.",
            &[text("text/plain"), text("application/openmetrics-text")],
        ),
        open(get(Server, "/health", "Whether the server runs.", &[json(shapes::status)])),
        open(get(
            Server,
            "/ready",
            "Whether it answers requests.",
            &[json(shapes::readiness), not_ready],
        )),
        page(get(Server, "/openapi.json", "This description.", &[json(shapes::description)])),
        page(get(Server, "/", "The page.", &[text("text/html")])),
        page(get(
            Server,
            "/page/{name}",
            "A file of the page.",
            &[text("text/css"), text("text/javascript")],
        )),
    ]
}
