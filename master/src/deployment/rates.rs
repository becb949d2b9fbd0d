//! How fast every candidate is: as remembered, else as timed now; and what is remembered of how fast it really was.
use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use cake_engine::{DeviceKind, DeviceMemory, PROBED_BYTES, SamplingOptions};
use cake_identity::lines;
use cake_proto::wire;
use futures_util::future::try_join_all;
use tokio::task::block_in_place;

use super::{Error, PlanRequest};
use crate::cluster::{self, Measured, Member, OfferedDevice};
use crate::model::Model;
use crate::sizing::LOCAL;
use crate::state::State;

/// Part of the memory that the master has free which timing itself may take for a moment.
const SCRATCH_PART: u64 = 4;
/// Choices of a token that are timed; the median counts.
const CHOICES: usize = 5;

/// Rates of one candidate, or why there are none.
pub(crate) type Rates = Result<Measured, String>;

/// Who is timed for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probing {
    /// Everybody, whatever is remembered.
    All,
    /// Who was never timed, or only while other work went on.
    Uncertain,
    /// Who was never timed.
    Strangers,
}

impl Probing {
    /// As is asked for.
    pub(crate) fn asked(request: &PlanRequest) -> Self {
        match (request.reprobe, request.hurry) {
            (true, _) => Self::All,
            (false, true) => Self::Strangers,
            (false, false) => Self::Uncertain,
        }
    }
}

/// What candidates are asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub model: &'a Model,
    pub state: &'a State,
    /// What the master computes with, and on how many threads.
    pub device: DeviceKind,
    pub threads: usize,
    pub probing: Probing,
    /// Whether other models are loaded: what is timed beside them is not certain.
    pub beside: bool,
}

impl Asking<'_> {
    /// The workers' rates on these devices of theirs, in their order. Those on one machine are timed one after the other,
    /// as they will compute: at the same time they would take each other's memory and processors.
    ///
    /// # Errors
    /// A worker that is gone.
    pub(crate) async fn workers(
        &self,
        workers: &[(&Member, &OfferedDevice)],
    ) -> Result<Vec<Rates>, Error> {
        let mut hosts: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, (worker, _)) in workers.iter().enumerate() {
            hosts.entry(host(&worker.address)).or_default().push(index);
        }
        if workers.is_empty() {
            return Ok(Vec::new());
        }
        // Before anything is pushed, whether or not somebody must be timed.
        let sent = &cluster::sendable(self.model.checkpoint.whole())?;
        // What is timed takes memory: no more than an equal share.
        let layers = self.model.checkpoint.whole().layers.len() / workers.len().max(1);
        let each = hosts.into_values().map(|indices| async move {
            let mut rates = Vec::with_capacity(indices.len());
            for index in indices {
                rates.push((index, self.worker(workers[index], sent, layers.max(1)).await?));
            }
            Ok::<_, Error>(rates)
        });
        let mut rates: Vec<_> = try_join_all(each).await?.into_iter().flatten().collect();
        rates.sort_by_key(|(index, _)| *index);
        Ok(rates.into_iter().map(|(_, rates)| rates).collect())
    }

    /// The worker's rates: as measured before of the same process and shape, else measured now. A worker
    /// that cannot be measured but is there, such as one too small for the probe, is still a candidate.
    async fn worker(
        &self,
        (member, device): (&Member, &OfferedDevice),
        sent: &Bytes,
        layers: usize,
    ) -> Result<Rates, Error> {
        let Self { model, state, .. } = *self;
        let key = worker_key(model, member, device);
        let known = match self.remembered(&key) {
            Ok(known) => return Ok(Ok(known)),
            Err(uncertain) => uncertain,
        };
        let (sent, encoding) = (sent.clone(), model.weight_encoding());
        let timed = cluster::measure(member, device, sent, encoding, layers, known.as_ref()).await;
        let error = match timed {
            Ok(measured) => return Ok(Ok(state.remember(&key, measured))),
            Err(error) => error,
        };
        let mut client = member.client.clone();
        let alive = client.describe(wire::DescribeRequest {});
        match cluster::within(member.name(), "describe itself", alive).await {
            // What is not certain is better than nothing.
            Ok(_) => Ok(known.ok_or_else(|| error.to_string())),
            Err(_) => Err(error.into()),
        }
    }

    /// The master's own rates, timed within the memory that it may use if they are `needed` and not known.
    pub(crate) fn own(&self, max_bytes: u64, needed: bool) -> Option<Rates> {
        let Self { model, state, device, threads, beside, .. } = *self;
        let key = own_key(model, device, threads);
        let known = match self.remembered(&key) {
            Ok(known) => return Some(Ok(known)),
            Err(uncertain) => uncertain,
        };
        if !needed {
            return known.map(Ok);
        }
        let (encoding, config) = (model.weight_encoding(), model.checkpoint.whole());
        let max_bytes = match device.memory() {
            DeviceMemory::System => max_bytes.min(cake_platform::free_memory()),
            DeviceMemory::Own => max_bytes,
        };
        let layers = config.layers.len();
        let probe =
            || cake_engine::probe_layer(device, config, encoding, threads, max_bytes, layers);
        Some(match block_in_place(probe) {
            Ok(probe) => {
                let measured =
                    own(probe.decode.as_secs_f64(), probe.bytes.max(1), probe.quiet && !beside);
                Ok(state.remember(&key, measured))
            }
            Err(error) => {
                known.ok_or_else(|| format!("the master could not time a layer: {error}"))
            }
        })
    }

    /// Seconds of the master's own part of a token, timed with scratch memory of so many bytes if they are not known; 0
    /// where they cannot be had, or nobody needs them (`None`). Embedding a token is to read a row: nothing beside the
    /// head.
    pub(crate) fn ends(&self, scratch: Option<u64>) -> f64 {
        let Self { model, state, device, threads, probing, beside } = *self;
        let key = ends_key(model, device, threads);
        let known = match self.remembered(&key) {
            Ok(known) => return known.decode_seconds,
            Err(uncertain) => uncertain,
        };
        let known = || known.map_or(0.0, |known| known.decode_seconds);
        let Some(scratch) = scratch.filter(|_| probing != Probing::Strangers) else {
            return known();
        };
        let (encoding, config) = (model.head_encoding(), &model.checkpoint.config);
        // Of a memory of the device's own nobody tells how much is free: no more than of the system's.
        let max_bytes = scratch.min(cake_platform::free_memory() / SCRATCH_PART);
        let probe = || {
            let head = cake_engine::probe_head(device, config, encoding, threads, max_bytes)?;
            Ok::<_, cake_engine::Error>((head, choice_seconds(config.vocab_size)))
        };
        match block_in_place(probe) {
            Ok((head, choice)) => {
                let measured = own(head.decode.as_secs_f64() + choice, 1, head.quiet && !beside);
                // With less, caches make it another figure.
                if scratch < PROBED_BYTES {
                    return measured.decode_seconds;
                }
                state.remember(&key, measured).decode_seconds
            }
            Err(error) => {
                tracing::debug!(%error, "the head is not timed");
                known()
            }
        }
    }

    /// What is remembered, if it is to be used; else what there is if nothing better can be had.
    fn remembered(&self, key: &str) -> Result<Measured, Option<Measured>> {
        if self.probing == Probing::All {
            self.state.forget(key);
        }
        match self.state.measured(key) {
            Some(known) if known.quiet || self.probing == Probing::Strangers => Ok(known),
            known => Err(known),
        }
    }
}

/// Rates of the master itself, to which there is no way.
pub(super) fn own(decode_seconds: f64, probe_bytes: u64, quiet: bool) -> Measured {
    Measured { decode_seconds, probe_bytes, rtt_seconds: 0.0, bytes_per_second: f64::MAX, quiet }
}

/// The machine that an address is of, as far as that can be seen; of a line, the line.
fn host(address: &str) -> &str {
    match lines::worker_at(address) {
        Some(_) => address,
        None => address.rsplit_once(':').map_or(address, |(host, _)| host),
    }
}

fn shape(model: &Model) -> impl std::fmt::Display {
    blake3::hash(&model.checkpoint.whole().to_wire()).to_hex()
}

/// What is measured of a device of a worker's process is remembered under this.
pub(super) fn worker_key(model: &Model, member: &Member, device: &OfferedDevice) -> String {
    let (id, instance) = (&member.offer.worker_id, &member.offer.instance);
    let (device, encoding) = (&device.name, model.weight_encoding());
    format!("{id}/{instance}/{device}/{encoding}/{}", shape(model))
}

/// The same of the master's own layers, whichever process that is; what was timed with fewer bytes was another figure.
pub(super) fn own_key(model: &Model, device: DeviceKind, threads: usize) -> String {
    let (host, device) = (cake_platform::host_name(), device.name());
    let encoding = model.weight_encoding();
    format!("{LOCAL}/{host}/{device}/{threads}/{encoding}/{PROBED_BYTES}/{}", shape(model))
}

/// The same of its own part of a token.
pub(super) fn ends_key(model: &Model, device: DeviceKind, threads: usize) -> String {
    let (host, device) = (cake_platform::host_name(), device.name());
    let encoding = model.head_encoding();
    format!("ends/{host}/{device}/{threads}/{encoding}/{PROBED_BYTES}/{}", shape(model))
}

/// How long it takes to choose the likeliest of so many tokens.
fn choice_seconds(vocab_size: usize) -> f64 {
    let logits: Vec<f32> = (0..vocab_size).map(|token| (token % 1009) as f32 * 0.01).collect();
    let mut seconds: Vec<f64> = (0..CHOICES as u64)
        .map(|position| {
            let began = Instant::now();
            let sampled = cake_engine::sample(&logits, &[], position, &SamplingOptions::default());
            std::hint::black_box(sampled);
            began.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[CHOICES / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_of_one_machine_are_told_by_its_address() {
        assert_eq!(host("127.0.0.1:7001"), host("127.0.0.1:7002"));
        assert_ne!(host("10.0.0.1:7001"), host("10.0.0.2:7001"));
        assert_eq!(host("[::1]:7001"), "[::1]");
        let [one, other] = ["ab", "cd"].map(lines::address);
        assert_ne!(host(&one), host(&other), "who calls in may be anywhere");
    }
}
