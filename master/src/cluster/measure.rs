//! What a worker and its link can do, measured.
use std::time::{Duration, Instant};

use bytes::Bytes;
use cake_checkpoint::{Encoding, ModelSpec};
use cake_proto::{limits, wire};
use serde::{Deserialize, Serialize};

use super::{Error, Member, OfferedDevice, within, within_time};

/// Round trips timed; the median counts.
const ROUND_TRIPS: usize = 5;
/// Payloads of 1 MiB sent to time the link; the fastest counts, since others share it.
const PAYLOADS: usize = 3;
/// Filling a layer's memory and running it a few times takes this long at most, even on a small
/// board with a quarter of a CPU.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);

/// Rates of one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Seconds for one decode row through one layer.
    pub decode_seconds: f64,
    /// Bytes of that layer's weights that the row reads.
    pub probe_bytes: u64,
    /// Seconds for a message there and back.
    pub rtt_seconds: f64,
    /// Bytes per second from the master to it.
    pub bytes_per_second: f64,
    /// Whether nothing else ran on it while it was timed: otherwise it may be faster.
    #[serde(default)]
    pub quiet: bool,
}

/// The model as workers are told what it is.
///
/// # Errors
/// [`Error::ModelTooLong`] if no worker would read so much.
pub fn sendable(model: &ModelSpec) -> Result<Bytes, Error> {
    let bytes = model.to_wire();
    match bytes.len() <= limits::MODEL_BYTES {
        true => Ok(bytes.into()),
        false => Err(Error::ModelTooLong { layers: model.layers.len(), bytes: bytes.len() }),
    }
}

/// Times up to so many layers of this model (as [`sendable`] made it) on a device of the worker, and the link to it
/// unless that is `known`: what else runs on a worker says nothing of its link, and a second look at it would cost
/// megabytes.
///
/// # Errors
/// [`Error::Call`].
pub async fn measure(
    member: &Member,
    device: &OfferedDevice,
    model: Bytes,
    encoding: Encoding,
    layers: usize,
    known: Option<&Measured>,
) -> Result<Measured, Error> {
    let mut client = member.client.clone();
    let name = member.name();
    let (rtt_seconds, bytes_per_second) = match known {
        Some(known) => (known.rtt_seconds, known.bytes_per_second),
        None => link(member).await?,
    };
    let request = wire::ProbeComputeRequest {
        model,
        encoding: encoding.to_string(),
        layers: u32::try_from(layers).unwrap_or(u32::MAX),
        device: device.name.clone(),
    };
    let probe =
        within_time(PROBE_TIMEOUT, name, "time a layer", client.probe_compute(request)).await?;
    Ok(Measured {
        decode_seconds: probe.decode_ns as f64 * 1e-9,
        probe_bytes: probe.bytes.max(1),
        rtt_seconds,
        bytes_per_second,
        quiet: probe.quiet,
    })
}

/// Seconds for a message there and back, and bytes per second to the worker.
///
/// # Errors
/// [`Error::Call`].
pub async fn link(member: &Member) -> Result<(f64, f64), Error> {
    let mut client = member.client.clone();
    let name = member.name();
    let mut trips = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let started = Instant::now();
        let request = wire::ProbeLinkRequest::default();
        within(name, "answer a link probe", client.probe_link(request)).await?;
        trips.push(started.elapsed().as_secs_f64());
    }
    trips.sort_by(f64::total_cmp);
    let rtt_seconds = trips[ROUND_TRIPS / 2];
    let payload = Bytes::from(vec![0; limits::FRAME_BYTES]);
    let mut fastest = f64::INFINITY;
    for _ in 0..PAYLOADS {
        let started = Instant::now();
        let request = wire::ProbeLinkRequest { payload: payload.clone(), reply_bytes: 0 };
        within(name, "answer a link probe", client.probe_link(request)).await?;
        fastest = fastest.min(started.elapsed().as_secs_f64());
    }
    // The answer's way back is not the payload's; never below 1 µs, so the rate stays finite.
    let sending = (fastest - rtt_seconds / 2.0).max(1e-6);
    Ok((rtt_seconds, limits::FRAME_BYTES as f64 / sending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_takes_too_long_to_describe_is_sent_to_nobody() {
        let config = |layers: usize| {
            let json = format!(
                r#"{{"architectures":["LlamaForCausalLM"],"hidden_size":8,"num_hidden_layers":{layers},
                "num_attention_heads":2,"intermediate_size":16,"vocab_size":32,"rms_norm_eps":1e-6,
                "max_position_embeddings":64}}"#
            );
            ModelSpec::parse(json.as_bytes()).expect("a model")
        };
        let sent = sendable(&config(256)).expect("twice as many as any model has");
        assert_eq!(ModelSpec::from_wire(&sent).expect("read"), config(256));
        let error = sendable(&config(4096)).expect_err("too long").to_string();
        assert!(error.contains("4096 layers") && error.ends_with("of at most 1 MiB"), "{error}");
    }
}
