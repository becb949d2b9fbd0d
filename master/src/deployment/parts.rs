//! Ways to part the layers of a model, for devices of which none has room for a whole one.
use std::sync::Arc;

use cake_checkpoint::{Checkpoint, ModelSpec, Scheme};
use cake_proto::limits;
use tokio::task::block_in_place;

use super::PlanRequest;
use crate::cluster;

/// Layers as they are.
pub(super) const WHOLE: usize = 1;
/// Slices of each layer's experts that are tried where no plan fits.
const SLICES: [usize; 5] = [WHOLE, 2, 4, 8, 16];

/// What is tried, one after the other, until a plan fits: each way to store weights, widest first, with whole layers and
/// then with finer and finer slices of their experts. Who says which layers a device has means whole ones.
pub(super) fn ways(request: &PlanRequest) -> Vec<(Scheme, usize)> {
    let slices = match request.slices {
        Some(slices) => vec![slices.get()],
        None if request.pins.is_empty() => SLICES.to_vec(),
        None => vec![WHOLE],
    };
    let schemes = request.encode.tried().iter();
    schemes.flat_map(|scheme| slices.iter().map(|slices| (*scheme, *slices))).collect()
}

/// The checkpoint with its experts in so many slices; `None` where it has none, or more parts than a worker could be told
/// of.
pub(super) fn parted(checkpoint: &Arc<Checkpoint>, slices: usize) -> Option<Arc<Checkpoint>> {
    if slices == WHOLE {
        return Some(checkpoint.clone());
    }
    let can_be = |parted: ModelSpec| {
        parted.layers.len() <= limits::BLOBS && cluster::sendable(&parted).is_ok()
    };
    let can_be = checkpoint.whole().sliced(slices).is_some_and(can_be);
    // Every tensor of every layer is looked at for each of its parts.
    let sliced = || block_in_place(|| checkpoint.sliced(slices));
    can_be.then(sliced).flatten().map(Arc::new)
}

/// The same checkpoint with layers in finer parts than it has, coarse ones first, as far as a request leaves them open.
pub(super) fn finer(
    checkpoint: &Arc<Checkpoint>,
    request: &PlanRequest,
) -> impl Iterator<Item = Arc<Checkpoint>> {
    let is_open = request.slices.is_none() && request.pins.is_empty();
    let parts = checkpoint.config.layers.len();
    let others = SLICES.into_iter().filter(move |slices| is_open && *slices != WHOLE);
    let others = others.filter_map(move |slices| parted(checkpoint, slices));
    others.filter(move |other| other.config.layers.len() > parts)
}
