//! What a stage takes of a device's memory: the planner counts it before, a worker once more before it loads.
use std::collections::HashMap;

use cake_checkpoint::{Encoding, ModelSpec};
use cake_engine::DeviceKind;
use cake_proto::limits;

/// Memory a worker's process takes besides its stage: the program, its threads' stacks, the
/// connections' windows and the allocator's slack. Measured with an idle worker after a push of
/// 1 GiB, rounded up.
pub const OVERHEAD_BYTES: u64 = 40 << 20;

/// An upper bound of what a stage on this device allocates while it runs: the engine's buffers for one step, the
/// steps that are being received or wait before it, and what leaves it (bytes).
pub fn stage_scratch_bytes(
    device: DeviceKind,
    config: &ModelSpec,
    rows: usize,
    context: usize,
    threads: usize,
) -> u64 {
    let step = (rows as u64).saturating_mul(config.widest_row() as u64).saturating_mul(4);
    // Being received, queued before the stage, and its result while it is cut into frames.
    let steps = step.saturating_mul(1 + limits::STEPS_QUEUED as u64 + 2);
    let frames = limits::frames_queued(usize::try_from(step).unwrap_or(usize::MAX)) as u64;
    // Those that wait for the link, and the one that is being sent.
    let leaving = step.min(limits::FRAME_BYTES as u64).saturating_mul(frames + 1);
    let waiting = steps.saturating_add(leaving);
    cake_engine::scratch_bytes(device, config, rows, context, threads).saturating_add(waiting)
}

/// What a device's memory holds of each encoding: resident bytes for each thousand stored bytes of its matrices.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResidentCosts(HashMap<Encoding, u32>);

impl ResidentCosts {
    /// Those of a device of this build, each of which runs every encoding.
    pub fn of(device: DeviceKind) -> Self {
        let all = Encoding::all().into_iter();
        Self(all.map(|encoding| (encoding, device.resident_permille(encoding))).collect())
    }

    /// Those of a peer, by the names of encodings; names that are not known here are passed over.
    pub fn from_names<'a>(said: impl IntoIterator<Item = (&'a String, &'a u32)>) -> Self {
        let known = |(name, permille): (&String, &u32)| Some((name.parse().ok()?, *permille));
        Self(said.into_iter().filter_map(known).collect())
    }

    /// The same by names, to be told a peer.
    pub fn names(&self) -> HashMap<String, u32> {
        self.0.iter().map(|(encoding, permille)| (encoding.to_string(), *permille)).collect()
    }

    /// Whether matrices in this encoding are computed with there.
    pub fn runs(&self, encoding: Encoding) -> bool {
        self.0.contains_key(&encoding)
    }

    /// Those of `encodings` that are not computed with there.
    pub fn lacks(&self, encodings: &[Encoding]) -> Vec<Encoding> {
        encodings.iter().copied().filter(|encoding| !self.runs(*encoding)).collect()
    }

    /// Bytes that tensors take there: of matrices, by the tag of their weight, as many as their encoding costs; of all
    /// else (and of what the device says nothing of), as many as are stored.
    pub fn resident(&self, tensors: impl IntoIterator<Item = (Option<Encoding>, u64)>) -> u64 {
        let resident = |(encoding, bytes): (Option<Encoding>, u64)| {
            let permille = encoding.and_then(|encoding| self.0.get(&encoding)).unwrap_or(&1000);
            let resident = (u128::from(bytes) * u128::from(*permille)).div_ceil(1000);
            u64::try_from(resident).unwrap_or(u64::MAX)
        };
        tensors.into_iter().map(resident).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::Affine;

    use super::*;

    #[test]
    fn what_tensors_take_follows_from_their_tags() {
        let (four, eight) = (Encoding::Affine(Affine::Q4), Encoding::Affine(Affine::Q8));
        let said = [("affine-4-64".to_owned(), 9000), ("of-tomorrow".to_owned(), 1)];
        let costs = ResidentCosts::from_names(said.iter().map(|(name, cost)| (name, cost)));
        assert!(costs.runs(four) && !costs.runs(eight));
        assert_eq!(costs.resident([(Some(four), 10), (Some(eight), 10), (None, 1)]), 101);
        assert_eq!(costs.resident([(Some(four), u64::MAX), (None, 1)]), u64::MAX);
        assert_eq!(costs.names().len(), 1);
    }

    #[test]
    fn every_device_of_this_build_runs_every_encoding() {
        for (name, device) in DeviceKind::ALL {
            let own = ResidentCosts::of(*device);
            assert!(Encoding::all().into_iter().all(|encoding| own.runs(encoding)), "{name}");
            assert_eq!(ResidentCosts::from_names(&own.names()), own, "{name}");
        }
    }
}
