//! What every request gets, whatever it asks: an id, a line in the log, its place in what is counted, and last words if
//! the server ends before its answer does.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use axum::response::IntoResponse;
use hyper::body::{Frame, Incoming, SizeHint};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::ServiceExt;
use tracing::info;

use super::door::Place;
use super::error::ApiError;
use super::{Server, Stop, guard, messages, ollama, responses};
use crate::request_id::{self, RequestId};
use crate::running::Asker;

/// Most characters of a path and of a method that are logged.
const LOGGED: usize = 200;

/// Answers one request.
pub(super) async fn handle(
    server: Arc<Server>,
    router: Router,
    mut request: Request<Incoming>,
    place: Arc<Place>,
) -> Response<Body> {
    let id = request.headers().get(request_id::HEADER).and_then(RequestId::given);
    let id = id.unwrap_or_else(RequestId::made);
    let mut line = Line {
        server: server.clone(),
        id: id.clone(),
        method: request.method().clone(),
        path: request.uri().path().chars().take(LOGGED).collect(),
        began: Instant::now(),
        status: 0,
        bytes: 0,
        whole: false,
    };
    let api = Api::of(request.uri().path(), request.headers());
    let client = client(&server, request.headers());
    let (running, chronicle) = (server.board.running.clone(), server.board.chronicle.clone());
    let asker = Asker { running, chronicle, client };
    let resting = Resting(place.clone());
    request.extensions_mut().insert(place);
    let answer = id.clone().scope(asker.scope(router.oneshot(request)));
    let mut response = tokio::select! {
        Ok(response) = answer => response,
        () = ends(server.stopping.clone()) => ApiError::Closed.into_response(),
    };
    let error = response.extensions_mut().remove::<Arc<ApiError>>();
    if let Some(error) = error.filter(|_| api != Api::OpenAi) {
        *response.body_mut() = Body::from(api.said(&error).to_string());
        response.headers_mut().remove(header::CONTENT_LENGTH); // It was that of the other words.
    }
    response.headers_mut().insert(request_id::HEADER, id.header());
    line.status = response.status().as_u16();
    let kind = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_stream = kind.is_some_and(|kind| {
        kind.starts_with(b"text/event-stream") || kind == ollama::LINES.as_bytes()
    });
    let end = is_stream.then(|| Box::pin(ends(server.stopping.clone())) as Pin<Box<_>>);
    response.map(|inner| Body::new(Told { inner, end, over: false, api, line, _resting: resting }))
}

/// Who asks, for people who watch: the program as it calls itself, and which key it has where one is asked for.
fn client(server: &Server, headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let agent = agent.and_then(|agent| agent.split_whitespace().next()).unwrap_or("unnamed");
    let agent: String = agent.chars().take(LOGGED).collect();
    match guard::check(server, headers) {
        Ok(owner) => owner.key().map_or(agent.clone(), |key| format!("{agent}, key {key}")),
        Err(_) => agent, // It gets nothing that would be listed.
    }
}

/// Completes when answers are to end now.
async fn ends(mut stopping: watch::Receiver<Stop>) {
    if stopping.wait_for(|stop| *stop == Stop::Now).await.is_err() {
        std::future::pending().await // Nobody is left to end them.
    }
}

/// What OpenAI's API and Anthropic's both have.
const MODELS: &str = "/v1/models";

/// Whose words an answer is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Api {
    OpenAi,
    /// OpenAI's newer one.
    Responses,
    /// Anthropic's.
    Messages,
    Ollama,
}

impl Api {
    /// That of who asks there; where both are asked, of who says which version of Anthropic's it speaks.
    fn of(path: &str, headers: &HeaderMap) -> Self {
        let is_beneath = |above| {
            let beneath = path.strip_prefix(above);
            beneath.is_some_and(|rest: &str| rest.is_empty() || rest.starts_with('/'))
        };
        let is_both = path.starts_with(MODELS) && headers.contains_key(messages::VERSION);
        match is_beneath(messages::PATH) || is_both {
            true => Self::Messages,
            false if is_beneath(responses::PATH) => Self::Responses,
            false if ollama::is_asked(path) => Self::Ollama,
            false => Self::OpenAi,
        }
    }

    /// An error.
    fn said(self, error: &ApiError) -> Value {
        match self {
            Self::OpenAi => error.json(),
            Self::Responses => error.of_responses(),
            Self::Messages => error.of_messages(),
            Self::Ollama => error.of_ollama(),
        }
    }

    /// What a stream says last when it is ended: why, and that nothing more comes.
    fn last_words(self) -> Bytes {
        let mut why = self.said(&ApiError::Closed);
        let words = match self {
            Self::OpenAi => format!("data: {why}\n\ndata: [DONE]\n\n"),
            // As an event of its own kind: without a number, as nobody knows here how many came before.
            Self::Responses => {
                let mut error = why["error"].take();
                error["type"] = "error".into();
                format!("event: error\ndata: {error}\n\n")
            }
            Self::Messages => format!("event: error\ndata: {why}\n\n"),
            Self::Ollama => format!("{why}\n"),
        };
        words.into()
    }
}

/// The body of an answer, which is told of when it is over.
struct Told {
    inner: Body,
    /// Of a stream: when it is to be ended.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    over: bool,
    api: Api,
    line: Line,
    _resting: Resting,
}

impl HttpBody for Told {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let ended = self.end.as_mut().is_some_and(|end| end.as_mut().poll(cx).is_ready());
        let frame = match ended {
            // What it has said so far is whole events, or whole lines.
            true => {
                self.over = true;
                Some(Ok(Frame::data(self.api.last_words())))
            }
            false => std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx)),
        };
        match &frame {
            Some(Ok(frame)) => self.line.bytes += frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) => {}
            None => self.line.whole = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.end {
            Some(_) => SizeHint::default(),
            None => self.inner.size_hint(),
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // An answer whose length is known is not asked for its end.
        self.line.whole |= !self.over && self.inner.is_end_stream();
    }
}

/// The connection of a request has nothing to do once this is dropped.
struct Resting(Arc<Place>);

impl Drop for Resting {
    fn drop(&mut self) {
        self.0.rests();
    }
}

/// One request in the log, written when its answer is over or its client has gone. What it asked and what it was
/// answered is never in it.
struct Line {
    server: Arc<Server>,
    id: RequestId,
    method: Method,
    path: String,
    began: Instant,
    /// None yet if it is 0.
    status: u16,
    bytes: usize,
    whole: bool,
}

impl Drop for Line {
    fn drop(&mut self) {
        let Self { server, id, method, path, began, status, bytes, whole } = self;
        if *status > 0 {
            server.board.metrics.http.answered(*status);
        }
        let method: String = method.as_str().chars().take(LOGGED).collect();
        let seconds = (began.elapsed().as_secs_f64() * 1e4).round() / 1e4;
        let status = (*status > 0).then_some(*status);
        // Only of an answer that did not reach its end.
        let broke_off = (!*whole).then_some(true);
        info!(%method, %path, status, seconds, bytes = *bytes, request_id = %id, broke_off, "request");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_messages_hears_anthropics_words() {
        let (none, mut version) = (HeaderMap::new(), HeaderMap::new());
        version.insert(messages::VERSION, HeaderValue::from_static("2023-06-01"));
        for path in ["/v1/messages", "/v1/messages/", "/v1/messages/count_tokens"] {
            assert_eq!(Api::of(path, &none), Api::Messages, "{path}");
        }
        for path in ["/v1/responses", "/v1/responses/resp_1/input_items"] {
            assert_eq!(Api::of(path, &none), Api::Responses, "{path}");
        }
        for path in ["/v1/messagesx", "/v1/responsesx", "/v1/chat/completions", "/", "/v1/models"] {
            assert_eq!(Api::of(path, &none), Api::OpenAi, "{path}");
        }
        for path in ["/api/chat", "/api/tags", "/api/blobs/sha256:1", "/api/of_a_later_version"] {
            assert_eq!(Api::of(path, &none), Api::Ollama, "{path}");
        }
        for path in ["/api/cluster", "/api/events", "/api", "/apix/chat"] {
            assert_eq!(Api::of(path, &none), Api::OpenAi, "{path}");
        }
        assert_eq!(Api::of("/v1/models/a", &version), Api::Messages);
        assert_eq!(Api::of("/v1/chat/completions", &version), Api::OpenAi);
    }

    #[test]
    fn a_stream_that_is_ended_ends_in_the_words_of_its_api() {
        let words = String::from_utf8(Api::Messages.last_words().to_vec()).unwrap();
        let data =
            words.strip_prefix("event: error\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
        let said: Value = serde_json::from_str(data).unwrap();
        assert_eq!(
            (&said["type"], &said["error"]["type"]),
            (&"error".into(), &"overloaded_error".into())
        );
        let words = String::from_utf8(Api::Responses.last_words().to_vec()).unwrap();
        let data = words.strip_prefix("event: error\ndata: ").unwrap();
        let said: Value = serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap();
        assert_eq!((&said["type"], said["message"].is_string()), (&"error".into(), true));
        let words = String::from_utf8(Api::OpenAi.last_words().to_vec()).unwrap();
        assert!(words.ends_with("\n\ndata: [DONE]\n\n"), "{words}");
        let words = String::from_utf8(Api::Ollama.last_words().to_vec()).unwrap();
        let said: Value = serde_json::from_str(words.strip_suffix('\n').unwrap()).unwrap();
        assert_eq!(said, serde_json::json!({ "error": ApiError::Closed.to_string() }));
    }

    #[test]
    fn parameters_have_the_names_that_the_client_gave_them() {
        let refused = |param| ApiError::parameter(param, "odd", "even");
        let said = |param| Api::Ollama.said(&refused(param))["error"].clone();
        assert_eq!(said("repetition_penalty"), "options.repeat_penalty is odd, expected even");
        assert_eq!(said("mirostat"), "options.mirostat is odd, expected even");
        assert_eq!(said("response_format"), "format is odd, expected even");
        assert_eq!(said("template"), "template is odd, expected even");
        let said = |param| Api::Messages.said(&refused(param))["error"]["message"].clone();
        assert_eq!(said("stop"), "stop_sequences is odd, expected even");
        assert_eq!(said("response_format.type"), "output_config.format is odd, expected even");
        assert_eq!(said("max_tokens"), "max_tokens is odd, expected even");
        let said = |param| Api::Responses.said(&refused(param))["error"].take();
        let found = said("max_completion_tokens");
        assert_eq!(found["message"], "max_output_tokens is odd, expected even");
        assert_eq!(found["param"], "max_output_tokens");
        assert_eq!(said("messages.role")["param"], "input");
        assert_eq!(said("response_format.json_schema")["param"], "text.format");
    }
}
