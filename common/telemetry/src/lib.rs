//! Logs and traces of both programs.
//!
//! Start at [`Options::start`]. Logs go to standard error. With `--otlp`, spans also go to a collector, by
//! the OpenTelemetry protocol over gRPC; a span of a master and those that workers open for it are one trace,
//! since its [`TraceContext`] travels with the work.
//!
//! Invariants:
//! - Nothing waits for a collector but the end of the process, and that not longer than [`LAST_WORDS`].
//! - Without a collector no context travels, and a span that no log asks for costs nothing.

use std::io::IsTerminal;
use std::time::Duration;

use cake_proto::TraceContext;
use clap::Args;
use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Runtime;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

/// Variable with the filter of logs.
const FILTER: &str = "CAKE_LOG";
/// Variable with the address of a collector.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// How long spans that wait may take to leave when the process ends.
pub const LAST_WORDS: Duration = Duration::from_secs(2);
/// Our crates: what libraries do with their own connections is no part of a trace.
const CRATES: [&str; 7] = [
    "cake_master",
    "cake_worker",
    "cake_engine",
    "cake_checkpoint",
    "cake_platform",
    "cake_proto",
    "cake_stage",
];

/// Where traces go.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// Send traces to this OpenTelemetry collector, by OTLP over gRPC (such as http://127.0.0.1:4317).
    /// Default: what OTEL_EXPORTER_OTLP_ENDPOINT says, if it can be used.
    #[arg(long, value_name = "URL", global = true)]
    pub otlp: Option<String>,
}

/// Traces cannot be sent to where they were asked to go.
#[derive(Debug, thiserror::Error)]
#[error("cannot send traces to {url:?}: {reason}")]
pub struct Error {
    url: String,
    reason: String,
}

/// What must live as long as spans shall leave: dropping it sends those that wait.
#[derive(Debug)]
pub struct Telemetry {
    export: Option<Export>,
}

#[derive(Debug)]
struct Export {
    provider: SdkTracerProvider,
    /// The exporter's connection lives here, apart from the threads that carry steps.
    _runtime: Runtime,
}

impl Options {
    /// Logs from now on, at `level` unless the environment says otherwise, and sends traces of `service`.
    ///
    /// # Errors
    /// [`Error`] if the collector's address is none.
    pub fn start(&self, service: &'static str, level: &str) -> Result<Telemetry, Error> {
        let filter = EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new(level));
        let logs = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(colours(std::io::stderr().is_terminal(), |name| std::env::var(name).ok()))
            .with_span_events(FmtSpan::CLOSE)
            .with_filter(filter);
        let export = match &self.otlp {
            Some(url) => Some(Export::to(url, service)?),
            None => Export::of_environment(service),
        };
        let traces = export.as_ref().map(|export| {
            let ours = Targets::new().with_targets(CRATES.map(|name| (name, LevelFilter::DEBUG)));
            let tracer = export.provider.tracer(service);
            tracing_opentelemetry::layer().with_tracer(tracer).with_filter(ours)
        });
        Registry::default().with(logs).with(traces).init();
        Ok(Telemetry { export })
    }
}

/// Whether logs have colours: on a terminal, unless the environment says otherwise, as <https://no-color.org> and
/// <https://bixense.com/clicolors> have it. Escape codes in a file or a pipe are in everybody's way.
fn colours(terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let forced = set("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    let dumb = variable("TERM").is_some_and(|terminal| terminal == "dumb");
    set("NO_COLOR").is_none() && (forced || (terminal && !dumb))
}

impl Export {
    /// To where the environment says, which other programs may have been meant by.
    fn of_environment(service: &'static str) -> Option<Self> {
        let url = std::env::var(ENDPOINT).ok().filter(|url| !url.is_empty())?;
        let refused = |error| eprintln!("warning: {ENDPOINT}: {error}");
        Self::to(&url, service).map_err(refused).ok()
    }

    fn to(url: &str, service: &'static str) -> Result<Self, Error> {
        let refused = |reason: String| Error { url: url.to_owned(), reason };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("cake-traces")
            .enable_all()
            .build()
            .map_err(|error| refused(error.to_string()))?;
        let inside = runtime.enter(); // Its connection is made here, at the first batch.
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(url).build();
        drop(inside);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter.map_err(|error| refused(error.to_string()))?)
            .with_resource(Resource::builder().with_service_name(service).build())
            .build();
        Ok(Self { provider, _runtime: runtime })
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(export) = &self.export {
            // A collector that is away takes nothing, and nobody is left to be told.
            export.provider.shutdown_with_timeout(LAST_WORDS).ok();
        }
    }
}

/// What another machine needs to know to go on with the trace of `span`; nothing unless it is sent to a
/// collector.
pub fn context_of(span: &Span) -> Option<TraceContext> {
    let context = span.context();
    let context = context.span().span_context().clone();
    let mut bytes = [0; 25];
    bytes[..16].copy_from_slice(&context.trace_id().to_bytes());
    bytes[16..24].copy_from_slice(&context.span_id().to_bytes());
    bytes[24] = context.trace_flags().to_u8();
    context.is_valid().then_some(bytes)
}

/// Makes `span`, which has not been entered, part of the trace of a span on another machine. A context
/// that names no trace changes nothing.
pub fn continue_trace(span: &Span, context: &TraceContext) {
    let (trace, rest) = context.split_at(16);
    let trace = trace.try_into().map_or(TraceId::INVALID, TraceId::from_bytes);
    let parent = rest[..8].try_into().map_or(SpanId::INVALID, SpanId::from_bytes);
    let flags = TraceFlags::new(rest[8]);
    let remote = SpanContext::new(trace, parent, flags, true, TraceState::NONE);
    if remote.is_valid() {
        // Refused only where no span is sent anywhere.
        span.set_parent(Context::new().with_remote_span_context(remote)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_travels_without_a_collector() {
        let subscriber = Registry::default().with(tracing_subscriber::fmt::layer());
        tracing::subscriber::with_default(subscriber, || {
            assert_eq!(context_of(&tracing::info_span!("request")), None);
        });
        assert_eq!(context_of(&Span::none()), None);
    }

    #[test]
    fn colours_are_for_terminals_and_for_who_asks() {
        let with = |terminal, environment: &[(&str, &str)]| {
            let value = |name: &str| environment.iter().find(|(known, _)| *known == name);
            colours(terminal, |name| value(name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(with(true, &[]) && !with(false, &[]));
        assert!(!with(true, &[("NO_COLOR", "1")]) && with(true, &[("NO_COLOR", "")]));
        assert!(
            with(false, &[("CLICOLOR_FORCE", "1")]) && !with(false, &[("CLICOLOR_FORCE", "0")])
        );
        assert!(!with(false, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
        assert!(!with(true, &[("TERM", "dumb")]) && with(true, &[("TERM", "xterm")]));
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        let error = Export::to("no address", "test").expect_err("refused").to_string();
        assert!(error.contains("\"no address\""), "{error}");
    }
}
