//! What people and programs watch: `/api/cluster`, `/api/events`, `/api/requests`, `/api/log`, `/metrics`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Uri, header};
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use axum::{Extension, Json};
use futures_util::Stream;
use serde::Serialize;

use super::door::Place;
use super::error::ApiError;
use super::respond::unix_seconds;
use super::{Server, Stop};
use crate::board::Watched;
use crate::chronicle::Entry;
use crate::metrics::{TokenRates, Totals};
use crate::running::RequestNow;
use crate::scheduler::Load;

/// How often the page hears how the cluster is.
const EVERY: Duration = Duration::from_secs(1);

/// The cluster at one moment.
#[derive(Debug, Serialize)]
pub(super) struct Cluster {
    #[serde(flatten)]
    watched: Watched,
    /// How busy it is, if a model is loaded.
    load: Option<Load>,
    rates: TokenRates,
    totals: Totals,
    /// When the service began, in seconds since 1970.
    since_seconds: u64,
    /// Whether models of the Hub can be fetched, and are at hand then.
    can_pull: bool,
}

impl Cluster {
    fn of(server: &Server) -> Self {
        let (totals, up) = server.board.metrics.totals();
        Self {
            totals,
            since_seconds: unix_seconds().saturating_sub(up.as_secs()),
            watched: server.board.snapshot(),
            load: server.desk.load(),
            rates: server.board.metrics.token_rates(),
            can_pull: server.shelf.has_hub(),
        }
    }
}

pub(super) async fn cluster(State(server): State<Arc<Server>>) -> Json<Cluster> {
    Json(Cluster::of(&server))
}

/// The requests that are computed or wait.
#[derive(Debug, Serialize)]
pub(super) struct Requests {
    requests: Vec<RequestNow>,
}

pub(super) async fn requests(State(server): State<Arc<Server>>) -> Json<Requests> {
    Json(Requests { requests: server.board.running.now() })
}

/// What happened lately.
#[derive(Debug, Serialize)]
pub(super) struct Log {
    entries: Vec<Entry>,
    /// The number of the latest, 0 before there is one: whoever has seen more saw another service.
    last: u64,
}

pub(super) async fn log(
    State(server): State<Arc<Server>>,
    uri: Uri,
) -> Result<Json<Log>, ApiError> {
    let after = after(uri.query())?;
    let chronicle = &server.board.chronicle;
    Ok(Json(Log { entries: chronicle.after(after), last: chronicle.last() }))
}

/// The number of the last entry that somebody has seen, 0 if that is not said.
fn after(query: Option<&str>) -> Result<u64, ApiError> {
    let mut fields = query.unwrap_or_default().split('&');
    let given = fields.find_map(|field| field.strip_prefix("after="));
    let refused = |_| ApiError::parameter("after", "no number", "that of the last entry seen");
    given.map_or(Ok(0), |number| number.parse().map_err(refused))
}

/// The cluster again and again, until the server stops or somebody needs the place.
pub(super) async fn events(
    State(server): State<Arc<Server>>,
    Extension(place): Extension<Arc<Place>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    place.watches();
    let stopping = server.stopping.clone();
    let told = (server, stopping, true);
    Sse::new(futures_util::stream::unfold(told, |(server, mut stopping, first)| async move {
        if !first {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                _ = stopping.wait_for(|stop| *stop != Stop::No) => return None,
            }
        }
        // Numbers and strings alone: they can be written.
        let event = Event::default().event("cluster").json_data(Cluster::of(&server)).ok()?;
        Some((Ok(event), (server, stopping, false)))
    }))
}

/// Everything that is counted, for Prometheus: as OpenMetrics for whoever asks for that, else in its own format.
pub(super) async fn metrics(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
) -> impl IntoResponse {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
    let metrics = &server.board.metrics;
    metrics.http.bodies(server.bodies.held_bytes());
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    match wants_open_metrics(accepted) {
        true => ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics.text()),
        false => ([(header::CONTENT_TYPE, PLAIN)], metrics.plain_text()),
    }
}

/// Whether these values of `Accept` name OpenMetrics and prefer nothing that is plain text to it.
fn wants_open_metrics<'a>(accepted: impl Iterator<Item = &'a str>) -> bool {
    let (mut open_metrics, mut plain) = (0.0, 0.0);
    for range in accepted.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.trim().parse::<f32>().ok());
        let best = match kind.as_str() {
            "application/openmetrics-text" => &mut open_metrics,
            "text/plain" | "text/*" => &mut plain,
            _ => continue,
        };
        *best = weight.unwrap_or(1.0).max(*best);
    }
    open_metrics > 0.0 && open_metrics >= plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_has_seen_is_a_number_or_nothing() {
        let number = |query| after(query).ok();
        assert_eq!([None, Some(""), Some("x=1")].map(number), [Some(0); 3]);
        assert_eq!(number(Some("x=1&after=7")), Some(7));
        assert_eq!([Some("after="), Some("after=-1"), Some("after=x")].map(number), [None; 3]);
    }

    #[test]
    fn openmetrics_is_for_those_who_name_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            (prometheus, true),
            ("application/openmetrics-text", true),
            ("Application/OpenMetrics-Text; version=1.0.0; charset=utf-8", true),
            ("application/openmetrics-text;q=0", false),
            ("application/openmetrics-text;q=0.3, text/plain;q=0.5", false),
            ("text/plain", false),
            ("*/*", false),
            ("text/html,application/xhtml+xml,*/*;q=0.8", false),
            ("", false),
        ] {
            assert_eq!(wants_open_metrics([accept].into_iter()), expected, "{accept}");
        }
        assert!(wants_open_metrics(["text/html", "application/openmetrics-text"].into_iter()));
        assert!(!wants_open_metrics(std::iter::empty()));
    }
}
