//! A collector of traces, as any that takes OTLP over gRPC.
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// Keeps every span that it is sent.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
    _runtime: Runtime,
}

/// A span as it came.
#[derive(Clone, Debug)]
pub struct Span {
    /// Service that sent it.
    pub service: String,
    /// What it is the time of.
    pub name: String,
    /// Its trace.
    pub trace: Vec<u8>,
    /// Itself.
    pub id: Vec<u8>,
    /// The span that it is a part of; empty if of none.
    pub parent: Vec<u8>,
    /// Nanoseconds since 1970, from and to.
    pub time: (u64, u64),
    attributes: Vec<KeyValue>,
}

impl Span {
    /// A field of it, as text.
    pub fn field(&self, key: &str) -> Option<String> {
        text(&self.attributes, key)
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?;
    Some(match value.value.as_ref()? {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        other => format!("{other:?}"),
    })
}

struct Keep(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Keep {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut spans = self.0.lock().expect("no test panics with it");
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes);
            let service = text(&attributes.unwrap_or_default(), "service.name");
            let of = |span: v1::Span| Span {
                service: service.clone().unwrap_or_default(),
                name: span.name,
                trace: span.trace_id,
                id: span.span_id,
                parent: span.parent_span_id,
                time: (span.start_time_unix_nano, span.end_time_unix_nano),
                attributes: span.attributes,
            };
            spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans).map(of));
        }
        Ok(Response::new(ExportTraceServiceResponse { partial_success: None }))
    }
}

impl Collector {
    /// Listens on a port of its own.
    ///
    /// # Panics
    /// If there is none.
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let spans = Arc::new(Mutex::new(Vec::new()));
        let service = TraceServiceServer::new(Keep(spans.clone()));
        let server = tonic::transport::Server::builder().add_service(service);
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, spans, _runtime: runtime }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What came so far.
    ///
    /// # Panics
    /// Never, unless a test did.
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().expect("no test panics with it").clone()
    }
}
