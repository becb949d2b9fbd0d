//! From a checkpoint and what the devices offer to the numbers that the planner works with.
use std::collections::HashSet;
use std::sync::Arc;

use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{Digest, KvDtype, LayerSpec, Manifest};
use cake_engine::{DeviceKind, Numerics};
use cake_proto::{WireFormat, limits};
use cake_stage::{ResidentCosts, stage_scratch_bytes};

use crate::cluster::{Measured, Member, OfferedDevice};
use crate::model::Model;
use crate::planner::{Device, Input, LayerCost, Pin};

pub use crate::cluster::LOCAL;

/// Longest context planned for unless told otherwise (tokens).
pub const DEFAULT_CONTEXT: usize = 4096;
/// Memory speed assumed of a device that was not measured (bytes per second).
const NOMINAL_BYTES_PER_SECOND: f64 = 8e9;
/// Round trip assumed of a link that was not measured (seconds).
const NOMINAL_RTT: f64 = 1e-3;
/// Throughput assumed of a link that was not measured: gigabit Ethernet (bytes per second).
const NOMINAL_LINK: f64 = 110e6;

/// Sequences that may run for each of the longest that there is room for.
const SHORT_FOR_LONG: usize = 8;
/// More than so many run only if there is room for as many of the longest: beyond that each gets its tokens slower
/// than all together get more.
const MOST_SHORT: usize = 64;
/// Part of the free memory that the master leaves to the rest of its machine: one tenth.
const RESERVE_DIVISOR: u64 = 10;
/// The least of it (bytes), but never more than a part of what is free, or a small board could run nothing.
const LEAST_RESERVE: u64 = 256 << 20;
/// See [`LEAST_RESERVE`].
const MOST_RESERVE_DIVISOR: u64 = 4;

/// Memory of the master's own machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnMemory {
    /// What the master may take of it (bytes).
    pub bytes: u64,
    /// Where that number comes from.
    pub why: String,
}

impl OwnMemory {
    /// Of a machine, or its control group, that has so many bytes free now: a reserve is left to others.
    pub fn of(free_bytes: u64) -> Self {
        let most = free_bytes / MOST_RESERVE_DIVISOR;
        let reserve = (free_bytes / RESERVE_DIVISOR).max(LEAST_RESERVE).min(most);
        let (free, left) = (format_bytes(free_bytes), format_bytes(reserve));
        let why = format!("{free} free here, less a reserve of {left}");
        Self { bytes: free_bytes - reserve, why }
    }
}

/// What the master needs for its own part whoever holds the layers (bytes): embedding, norm and head, what rows are given beside, and the scores
/// of each sequence's next token as they are computed and while one of them is chosen.
pub fn ends_bytes(model: &Model, promise: &Promise) -> u64 {
    let config = &model.checkpoint.config;
    let scores = (config.vocab_size as u64).saturating_mul(2 * 4);
    let scores = scores.saturating_mul(promise.most_sequences() as u64);
    // Of rows that carry more than hidden states: as products, as norms of these, and as they leave.
    let beside = (config.widest_row() - config.hidden_size) as u64;
    let beside = beside.saturating_mul(3 * 4).saturating_mul(promise.max_rows() as u64);
    [model.ends_bytes(), scores, beside].into_iter().fold(0, u64::saturating_add)
}

/// What is promised to the person: it fixes memory beyond the weights.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// Longest sequence in tokens.
    pub context: usize,
    /// Of the longest sequences, so many at once: there are KV blocks for them. Shorter ones leave room for more.
    pub parallel: usize,
    /// Element type of the KV cache.
    pub kv: KvDtype,
    /// Slots for the state of recurrent layers; none where the model has no such layer.
    pub state_slots: usize,
    /// How exactly products are computed.
    pub numerics: Numerics,
    /// Most prompt rows in one step.
    pub chunk: usize,
    /// How hidden states travel between machines.
    pub wire: WireFormat,
}

impl Promise {
    /// Slots for the state of recurrent layers of so many sequences at once: where each one is, and two that it can be
    /// gone on from.
    pub fn state_slots_for(parallel: usize) -> usize {
        parallel.saturating_mul(3).min(limits::STATE_SLOTS)
    }

    /// KV blocks that every stage's pool has.
    pub fn kv_blocks(&self) -> usize {
        cake_engine::blocks_for(self.context) * self.parallel
    }

    /// Most rows in one step, of prompts and generated ones together.
    pub fn max_rows(&self) -> usize {
        self.chunk + self.parallel
    }

    /// Most sequences at once, however short they are. The master computes the logits of so many rows in one step at
    /// most, as many as its vocabulary is large for each.
    pub fn most_sequences(&self) -> usize {
        let most = match self.state_slots {
            0 => MOST_SHORT,
            slots => MOST_SHORT.min(slots), // Each has one.
        };
        self.parallel.saturating_mul(SHORT_FOR_LONG).min(most).max(self.parallel)
    }
}

/// A device that could hold layers.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Name for people, unique.
    pub name: String,
    /// Bytes offered.
    pub budget_bytes: u64,
    /// Bytes of its process.
    pub overhead_bytes: u64,
    /// What it computes on.
    pub device: DeviceKind,
    /// Threads it computes with.
    pub threads: usize,
    /// What its memory holds of each encoding.
    pub resident: ResidentCosts,
    /// Its rates, if measured.
    pub measured: Option<Measured>,
    /// Blobs it holds.
    pub blobs: HashSet<Digest>,
    /// The master itself.
    pub local: bool,
    /// Bytes that placing weights takes before the KV cache and scratch memory are there.
    pub copy_bytes: u64,
}

impl Candidate {
    /// A connected worker, which computes on this device of its own.
    pub fn worker(member: &Member, device: &OfferedDevice, measured: Option<Measured>) -> Self {
        Self {
            name: member.offer.name.clone(),
            budget_bytes: device.budget_bytes,
            overhead_bytes: member.offer.overhead_bytes,
            device: DeviceKind::alike(&device.name),
            threads: member.offer.threads,
            resident: device.resident.clone(),
            measured,
            blobs: member.offer.blobs.clone(),
            local: false,
            copy_bytes: 0, // The worker counts it.
        }
    }

    /// A worker that does not exist yet: what if there were one of this size?
    pub fn what_if(name: &str, budget_bytes: u64) -> Self {
        Self {
            name: name.to_owned(),
            budget_bytes,
            overhead_bytes: cake_stage::OVERHEAD_BYTES,
            device: DeviceKind::default(),
            threads: 4,
            resident: ResidentCosts::of(DeviceKind::default()),
            measured: None,
            blobs: HashSet::new(),
            local: false,
            copy_bytes: 0,
        }
    }

    /// The master, which computes on `device`, with this much memory for layers, of which copying weights takes
    /// `copy_bytes` until they are copied, and its own part `ends_bytes` if that is to be counted. Its own process is not: what is
    /// free is free beside it.
    pub fn local(
        budget_bytes: u64,
        (device, threads): (DeviceKind, usize),
        measured: Option<Measured>,
        copy_bytes: u64,
        ends_bytes: u64,
    ) -> Self {
        Self {
            overhead_bytes: ends_bytes,
            device,
            threads,
            resident: ResidentCosts::of(device),
            measured,
            local: true,
            copy_bytes,
            ..Self::what_if(LOCAL, budget_bytes)
        }
    }

    /// Seconds for a token through a layer of which it reads so many bytes.
    fn layer_seconds(&self, bytes: u64) -> f64 {
        match &self.measured {
            Some(rate) => rate.decode_seconds * bytes as f64 / rate.probe_bytes as f64,
            None => bytes as f64 / NOMINAL_BYTES_PER_SECOND,
        }
    }

    fn hop_seconds(&self, activation_bytes: u64) -> f64 {
        let (rtt, rate) = self
            .measured
            .as_ref()
            .map_or((NOMINAL_RTT, NOMINAL_LINK), |m| (m.rtt_seconds, m.bytes_per_second));
        if self.local { 0.0 } else { rtt / 2.0 + activation_bytes as f64 / rate }
    }
}

/// The planner's input. `manifests[layer]` is known for layers that were hashed before.
pub fn input(
    model: &Model,
    promise: &Promise,
    candidates: &[Candidate],
    manifests: &[Option<Arc<Manifest>>],
    pins: Vec<Pin>,
) -> Input {
    let config = &model.checkpoint.config;
    let kept = |layer: &LayerSpec| {
        let layer = std::slice::from_ref(layer);
        cake_engine::kv_bytes(layer, promise.context, promise.parallel, promise.kv)
    };
    let layers = config.layers.iter().enumerate();
    let layers: Vec<LayerCost> = layers
        .map(|(index, layer)| LayerCost {
            bytes: model.blob_bytes(index),
            kv_bytes: kept(layer),
            state_bytes: cake_engine::state_bytes(std::slice::from_ref(layer), promise.state_slots),
            joined: !config.may_begin(index),
        })
        .collect();
    let active: Vec<u64> = (0..layers.len()).map(|layer| model.active_bytes(layer)).collect();
    let stored: Vec<_> = (0..layers.len()).map(|layer| model.stored(layer)).collect();
    let activation_bytes = promise.wire.row_bytes(config.widest_row()) as u64;
    let devices = candidates.iter().map(|device| Device {
        name: device.name.clone(),
        budget_bytes: device.budget_bytes,
        overhead_bytes: device.overhead_bytes,
        scratch_bytes: stage_scratch_bytes(
            device.device,
            config,
            promise.max_rows(),
            promise.context,
            device.threads,
        )
        .max(device.copy_bytes),
        layer_resident_bytes: stored
            .iter()
            .zip(&config.layers)
            .map(|(tensors, layer)| {
                let copied = cake_engine::copied_bytes(std::slice::from_ref(layer));
                device.resident.resident(tensors.iter().copied()).saturating_add(copied)
            })
            .collect(),
        layer_time: active.iter().map(|bytes| device.layer_seconds(*bytes)).collect(),
        hop: device.hop_seconds(activation_bytes),
        push_bytes_per_second: device.measured.as_ref().map(|rate| rate.bytes_per_second),
        held: manifests
            .iter()
            .map(|known| known.as_ref().is_some_and(|m| device.blobs.contains(&m.name())))
            .collect(),
        local: device.local,
    });
    Input {
        devices: devices.collect(),
        parallel: promise.parallel,
        pins,
        activation_bytes,
        slack: 0.0,
        context_tokens: promise.context as u64,
        ends_seconds: 0.0,
        layers,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cake_checkpoint::{Checkpoint, Scheme};

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_master_leaves_a_tenth_and_on_a_small_board_a_quarter_at_most() {
        let left = |free: u64| free - OwnMemory::of(free).bytes;
        assert_eq!(left(20_480 * MIB), 2048 * MIB);
        assert_eq!(left(2048 * MIB), 256 * MIB, "the least that is left");
        assert_eq!(left(400 * MIB), 100 * MIB, "most is still the master's");
        assert_eq!(OwnMemory::of(0).bytes, 0);
        assert!(OwnMemory::of(u64::MAX).bytes < u64::MAX);
        assert!(OwnMemory::of(2048 * MIB).why.contains("2 GiB free here"), "told");
    }

    fn promise() -> Promise {
        Promise {
            context: 64,
            parallel: 1,
            kv: KvDtype::F16,
            state_slots: 0,
            numerics: Numerics::Fast,
            chunk: 16,
            wire: WireFormat::F32,
        }
    }

    #[test]
    fn a_layer_takes_the_time_of_what_a_token_reads_and_the_memory_of_everything() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/qwen3-moe");
        let checkpoint = Arc::new(Checkpoint::open(path).expect("a golden model"));
        let model = Model::new(checkpoint, Scheme::AsStored);
        let device = Candidate::what_if("phone", 1 << 30);
        let input = input(&model, &promise(), &[device], &vec![None; 5], Vec::new());
        // Of eight experts of 3 × 48 × 64 numbers in bf16 a token reads two.
        let idle = 6 * 3 * 48 * 64 * 2;
        let (bytes, seconds) = (input.layers[0].bytes, input.devices[0].layer_time[0]);
        assert_eq!(input.devices[0].layer_resident_bytes[0], bytes);
        let read = (seconds * NOMINAL_BYTES_PER_SECOND).round() as u64;
        assert_eq!(read, bytes - idle);
    }

    #[test]
    fn latents_are_kept_as_they_are_and_what_is_turned_for_them_is_planned() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/deepseek-v3");
        let checkpoint = Arc::new(Checkpoint::open(path).expect("a golden model"));
        let model = Model::new(checkpoint, Scheme::AsStored);
        let device = Candidate::what_if("phone", 1 << 30);
        let input = input(&model, &promise(), &[device], &vec![None; 5], Vec::new());
        // A latent of 24 numbers and a key of 8 in f16, of each of 64 positions.
        assert!(input.layers.iter().all(|layer| layer.kv_bytes == 64 * (24 + 8) * 2));
        // What makes 16 numbers of the keys of 4 heads of 24 of a latent.
        let copied = 4 * 16 * 24 * 4;
        assert_eq!(input.devices[0].layer_resident_bytes[0], input.layers[0].bytes + copied);
    }
}
