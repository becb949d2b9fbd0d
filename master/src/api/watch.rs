//! What people and programs watch: `/api/cluster`, `/api/events`, `/metrics`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use futures_util::Stream;
use serde::Serialize;

use super::{Served, Server};
use crate::metrics::TokenRates;
use crate::monitor::Snapshot;
use crate::scheduler::Load;

/// How often the page hears how the cluster is.
const EVERY: Duration = Duration::from_secs(1);

/// The cluster at one moment.
#[derive(Debug, Serialize)]
pub(super) struct Cluster {
    #[serde(flatten)]
    snapshot: Snapshot,
    /// How busy it is, once it is ready.
    load: Option<Load>,
    rates: TokenRates,
}

impl Cluster {
    fn of(server: &Server) -> Self {
        let load = |served: &Arc<Served>| served.scheduler.load();
        Self {
            snapshot: server.monitor.snapshot(),
            load: server.served.get().map(load),
            rates: server.monitor.metrics.token_rates(),
        }
    }
}

pub(super) async fn cluster(State(server): State<Arc<Server>>) -> Json<Cluster> {
    Json(Cluster::of(&server))
}

/// The cluster again and again, until the server stops.
pub(super) async fn events(
    State(server): State<Arc<Server>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let stopping = server.stopping.clone();
    let told = (server, stopping, true);
    Sse::new(futures_util::stream::unfold(told, |(server, mut stopping, first)| async move {
        if !first {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                _ = stopping.wait_for(|stopping| *stopping) => return None,
            }
        }
        // Numbers and strings alone: they can be written.
        let event = Event::default().event("cluster").json_data(Cluster::of(&server)).ok()?;
        Some((Ok(event), (server, stopping, false)))
    }))
}

/// Everything that is counted, for Prometheus.
pub(super) async fn metrics(State(server): State<Arc<Server>>) -> impl IntoResponse {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, OPEN_METRICS)], server.monitor.metrics.text())
}
