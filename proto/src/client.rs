//! Opening a connection to a worker, and the tags every call carries.
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cake_identity::{Peer, Security, lines};
use hyper_util::rt::TokioIo;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::wire::worker_client::WorkerClient;
use crate::{PROTOCOL, limits};

/// Metadata key of the protocol number.
pub const PROTOCOL_KEY: &str = "cake-protocol";
/// Metadata key of the lease.
pub const LEASE_KEY: &str = "cake-lease";
/// Metadata key of the pipeline token on streams between stages.
pub const PIPELINE_KEY: &str = "cake-pipeline";

/// How long opening a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a peer is asked for a sign of life, and how long it may take to give one: longer than Wi-Fi
/// stalls, short enough that nobody waits long for a device that sleeps.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// See [`KEEPALIVE_INTERVAL`].
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Flow-control windows: enough to keep a fast link full, small enough for a phone (bytes).
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// A worker's services, every call tagged.
pub type Client = WorkerClient<InterceptedService<Channel, Tag>>;

/// The metadata put on every call.
#[derive(Clone, Debug, Default)]
pub struct Tag {
    lease: Option<MetadataValue<Ascii>>,
    pipeline: Option<MetadataValue<Ascii>>,
}

impl Tag {
    /// Calls made by the holder of `lease`.
    pub fn lease(lease: &str) -> Self {
        Self { lease: lease.parse().ok(), pipeline: None }
    }

    /// Calls made by one stage of a pipeline to the next.
    pub fn pipeline(token: &str) -> Self {
        Self { lease: None, pipeline: token.parse().ok() }
    }
}

impl Interceptor for Tag {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert(PROTOCOL_KEY, MetadataValue::from(PROTOCOL));
        if let Some(lease) = &self.lease {
            metadata.insert(LEASE_KEY, lease.clone());
        }
        if let Some(token) = &self.pipeline {
            metadata.insert(PIPELINE_KEY, token.clone());
        }
        Ok(request)
    }
}

/// Refuses a caller that speaks another protocol.
///
/// # Errors
/// `FAILED_PRECONDITION` naming both numbers.
pub fn check_protocol(metadata: &MetadataMap) -> Result<(), Status> {
    let theirs = metadata.get(PROTOCOL_KEY).and_then(|value| value.to_str().ok());
    if theirs.and_then(|text| text.parse().ok()) == Some(PROTOCOL) {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "this worker (cake {}) speaks protocol {PROTOCOL}, the caller speaks {}; install the same version on both",
        crate::VERSION,
        theirs.unwrap_or("none"),
    )))
}

/// Refuses a caller that is not the master.
///
/// # Errors
/// `PERMISSION_DENIED` naming the caller.
pub fn check_master(extensions: &tonic::Extensions) -> Result<(), Status> {
    match extensions.get::<Peer>() {
        None => Err(Status::permission_denied("nobody knows who asks")),
        Some(peer) if peer.may_command() => Ok(()),
        Some(peer) => Err(Status::permission_denied(format!("{peer} is not the master"))),
    }
}

/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Not of the form HOST:PORT.
    #[error("{address:?} is not an address: expected HOST:PORT, such as 192.168.1.7:7117")]
    Address {
        /// What was given.
        address: String,
    },
    /// Nobody answered there.
    #[error("no worker answers at {address}: {reason}")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// The innermost cause, such as `connection refused`.
        reason: String,
    },
}

/// Opens a connection to the worker at `address` (HOST:PORT, or [`lines::address`]), which has to be `expected`, if somebody is;
/// returns who is there, too.
///
/// # Errors
/// [`ConnectError`] after at most five seconds.
pub async fn connect(
    security: &Security,
    address: &str,
    expected: Option<&Peer>,
    tag: Tag,
) -> Result<(Client, Peer), ConnectError> {
    let bad = || ConnectError::Address { address: address.to_owned() };
    let authority = match lines::worker_at(address) {
        Some(worker_id) => worker_id, // Nobody is asked for a name: the connection is there.
        None => {
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            port.map(|_| address).ok_or_else(bad)?
        }
    };
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))
        .map_err(|_| bad())?
        .connect_timeout(CONNECT_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let found = Arc::new(OnceLock::new());
    let dial = {
        let (security, address) = (security.clone(), address.to_owned());
        let (expected, found) = (expected.cloned(), found.clone());
        move || {
            let (security, address) = (security.clone(), address.clone());
            let (expected, found) = (expected.clone(), found.clone());
            async move {
                // Whoever was there once has to be there again when the connection is made anew.
                let expected = expected.as_ref().or(found.get()).filter(|_| security.is_mutual());
                let stream = security.reach(&address, expected).await?;
                found.set(stream.peer().clone()).ok();
                Ok::<_, io::Error>(TokioIo::new(stream))
            }
        }
    };
    let connector = tower::service_fn(move |_: tonic::transport::Uri| dial());
    let channel = endpoint.connect_with_connector(connector).await.map_err(|error| {
        ConnectError::Unreachable { address: address.to_owned(), reason: innermost(&error) }
    })?;
    let client = WorkerClient::with_interceptor(channel, tag)
        .max_decoding_message_size(limits::MESSAGE_BYTES)
        .max_encoding_message_size(limits::MESSAGE_BYTES);
    Ok((client, found.get().cloned().unwrap_or(Peer::Unknown)))
}

/// The last cause in a chain: what the system said, without the layers around it.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_another_protocol_and_names_both() {
        let mut metadata = MetadataMap::new();
        metadata.insert(PROTOCOL_KEY, MetadataValue::from(PROTOCOL + 1));
        let status = check_protocol(&metadata).expect_err("another protocol");
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert!(status.message().contains(&format!("the caller speaks {}", PROTOCOL + 1)));
        assert!(check_protocol(&MetadataMap::new()).is_err(), "a caller without a number");
        metadata.insert(PROTOCOL_KEY, MetadataValue::from(PROTOCOL));
        assert!(check_protocol(&metadata).is_ok());
    }
}
