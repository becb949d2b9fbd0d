//! The planner's input as sums and limits: what a stage of given layers costs, and which are
//! allowed.

use super::Input;
use cake_checkpoint::LayerRange;

/// A pin whose device has been found: `(index of the device, its layers)`.
pub(super) type FoundPin = (usize, LayerRange);

/// Which blobs a stage may be made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Blobs {
    /// Any; what is not held is pushed.
    Any,
    /// Only those with nothing to push: held by the device, or the device is the master itself.
    Held,
}

/// Sums over layer ranges and the ranges that fit, for every device.
pub(super) struct Terms {
    pub(super) layers: usize,
    parallel: usize,
    /// `seconds[device][layer]`: of all layers before this one, so that a stage is a difference.
    seconds: Vec<Vec<f64>>,
    /// `push[device][layer]`: bytes not held of all layers before this one.
    push: Vec<Vec<u64>>,
    hops: Vec<f64>,
    /// Place of each device when all are sorted by name.
    name_ranks: Vec<usize>,
    /// `ends[device][start]`: the ends a stage from `start` may have, ascending.
    ends: Vec<Vec<Vec<usize>>>,
}

impl Terms {
    /// The terms of an input that `check::check` has accepted.
    pub(super) fn new(input: &Input, pins: &[FoundPin], blobs: Blobs) -> Terms {
        let devices = 0..input.devices.len();
        Terms {
            layers: input.layers.len(),
            parallel: input.parallel.max(1),
            seconds: input
                .devices
                .iter()
                .map(|device| sums(device.layer_time.iter().copied()))
                .collect(),
            push: input
                .devices
                .iter()
                .map(|device| {
                    let missing = device.held.iter().map(|held| !held && !device.local);
                    let layers = input.layers.iter().zip(missing);
                    sums(layers.map(|(layer, missing)| if missing { layer.bytes } else { 0 }))
                })
                .collect(),
            hops: input
                .devices
                .iter()
                .map(|device| if device.local { 0.0 } else { device.hop })
                .collect(),
            name_ranks: devices
                .clone()
                .map(|device| {
                    let name = &input.devices[device].name;
                    input.devices.iter().filter(|other| other.name < *name).count()
                })
                .collect(),
            ends: devices
                .map(|device| {
                    (0..input.layers.len())
                        .map(|start| allowed_ends(input, pins, blobs, device, start))
                        .collect()
                })
                .collect(),
        }
    }

    /// Ends that a stage of `device` from layer `start` may have: it fits and it honours the pins.
    pub(super) fn ends(
        &self,
        device: usize,
        start: usize,
    ) -> impl Iterator<Item = usize> + use<'_> {
        self.ends[device][start].iter().copied()
    }

    /// Seconds of arithmetic of a stage for one row.
    pub(super) fn stage_seconds(&self, device: usize, start: usize, end: usize) -> f64 {
        self.seconds[device][end] - self.seconds[device][start]
    }

    /// Seconds that a stage adds to a step: the hop to it, its arithmetic and, for the last stage,
    /// the hop back to the master.
    pub(super) fn step_seconds(&self, device: usize, start: usize, end: usize) -> f64 {
        let hops = if end == self.layers { 2.0 } else { 1.0 };
        self.stage_seconds(device, start, end) + hops * self.hops[device]
    }

    /// Bytes to push for a stage.
    pub(super) fn push_bytes(&self, device: usize, start: usize, end: usize) -> u64 {
        self.push[device][end] - self.push[device][start]
    }

    /// Seconds to deliver one row to a device.
    pub(super) fn hop(&self, device: usize) -> f64 {
        self.hops[device]
    }

    /// Place of a device when all are sorted by name.
    pub(super) fn name_rank(&self, device: usize) -> usize {
        self.name_ranks[device]
    }

    /// Steps that can be under way at once over this many stages.
    pub(super) fn steps_in_flight(&self, stages: usize) -> usize {
        self.parallel.min(stages)
    }

    /// Seconds of every allowed stage of these devices that is not slower than `cap`, ascending and
    /// distinct.
    pub(super) fn stage_times(&self, devices: impl Iterator<Item = usize>, cap: f64) -> Vec<f64> {
        let mut times: Vec<f64> = devices
            .flat_map(|device| (0..self.layers).map(move |start| (device, start)))
            .flat_map(|(device, start)| {
                self.ends(device, start).map(move |end| self.stage_seconds(device, start, end))
            })
            .filter(|seconds| *seconds <= cap)
            .collect();
        times.sort_by(f64::total_cmp);
        times.dedup();
        times
    }
}

/// Memory that a stage needs on a device beside the device's own [`fixed_bytes`].
pub(super) fn layer_bytes(input: &Input, device: usize, layers: LayerRange) -> u128 {
    layers.iter().map(|layer| one_layer_bytes(input, device, layer)).sum()
}

/// Memory that a device needs whatever it runs: the process itself and scratch.
pub(super) fn fixed_bytes(input: &Input, device: usize) -> u128 {
    let device = &input.devices[device];
    u128::from(device.overhead_bytes) + u128::from(device.scratch_bytes)
}

/// Weights and KV cache of one layer on a device.
pub(super) fn one_layer_bytes(input: &Input, device: usize, layer: usize) -> u128 {
    let kept = input.layers[layer].kept_bytes();
    u128::from(input.devices[device].layer_resident_bytes[layer]) + u128::from(kept)
}

/// `sums[i]` is the sum of the first `i` values.
fn sums<V: Copy + Default + std::ops::Add<Output = V>>(values: impl Iterator<Item = V>) -> Vec<V> {
    let mut total = V::default();
    let mut sums = vec![total];
    sums.extend(values.map(|value| {
        total = total + value;
        total
    }));
    sums
}

/// Ends of the stages that `device` may run from layer `start`.
///
/// Other devices keep out of a pinned range, so that only the pinned device can cover it: a chain
/// that covers every layer has then used every pin.
fn allowed_ends(
    input: &Input,
    pins: &[FoundPin],
    blobs: Blobs,
    device: usize,
    start: usize,
) -> Vec<usize> {
    let offer = &input.devices[device];
    if (offer.local && start > 0) || !may_cut(input, start) {
        return Vec::new();
    }
    let (first, limit) = match pins.iter().find(|(pinned, _)| *pinned == device) {
        Some((_, layers)) if layers.start == start => (layers.end, layers.end),
        Some(_) => return Vec::new(),
        None => {
            let later = pins.iter().filter(|(_, layers)| layers.end > start);
            let limit = later.map(|(_, layers)| layers.start).min();
            (start + 1, limit.unwrap_or(input.layers.len()))
        }
    };
    let mut need = fixed_bytes(input, device);
    let mut last = start;
    while last < limit {
        need += one_layer_bytes(input, device, last);
        let pushes = !offer.held[last] && !offer.local;
        if need > u128::from(offer.budget_bytes) || (blobs == Blobs::Held && pushes) {
            break;
        }
        last += 1;
    }
    (first..=last).filter(|end| may_cut(input, *end)).collect()
}

/// Whether a stage may begin with this layer, so that one may end before it.
pub(super) fn may_cut(input: &Input, layer: usize) -> bool {
    layer == 0 || input.layers.get(layer).is_none_or(|layer| !layer.joined)
}

/// The shortest stages that there could be: most often one layer each.
pub(super) fn pieces(input: &Input) -> Vec<LayerRange> {
    let layers = input.layers.len();
    let begins: Vec<usize> = (0..=layers).filter(|layer| may_cut(input, *layer)).collect();
    begins.windows(2).map(|pair| LayerRange::new(pair[0], pair[1])).collect()
}
