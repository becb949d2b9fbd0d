//! From held blobs to a loaded stage: check the request, map and verify the blobs, build the layers.
use std::sync::{Mutex, PoisonError};

use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{Digest, KvDtype, LayerRange, Manifest, ModelSpec, TensorEntry};
use cake_engine::{DeviceKind, EngineOptions, Numerics, Placement, Stage, placement};
use cake_proto::wire_format::UnknownNumber;
use cake_proto::{WireFormat, limits, wire};
use cake_stage::{Lacks, OVERHEAD_BYTES, ResidentCosts, Share, memory_of, stage_scratch_bytes};
use tonic::Status;

use crate::config::{self, DeviceOffer, NotOffered};
use crate::lease;
use crate::runtime::{About, Resting, Runtime};
use crate::store::{self, OpenBlob, Store};

/// What may be sent of a specification is what is read of one.
const _: () = assert!(limits::MODEL_BYTES == cake_checkpoint::MAX_SPEC_BYTES);

/// A load request, checked.
#[derive(Debug)]
pub struct Load {
    generation: u64,
    model: ModelSpec,
    layers: LayerRange,
    blobs: Vec<Digest>,
    kv: KvDtype,
    numerics: Numerics,
    wire: WireFormat,
    /// As its name was given: which devices there are is not a question of the request.
    device: String,
    kv_blocks: usize,
    state_slots: usize,
    max_positions: usize,
    max_rows: usize,
    planned_bytes: u64,
}

/// How a load ended, when it did not fail.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The stage runs.
    Loaded,
    /// These blobs were damaged on disk and are discarded; they must be pushed again.
    Corrupt(Vec<Digest>),
}

/// Why a stage could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan is for a device that is not offered.
    #[error(transparent)]
    Device(#[from] NotOffered),
    /// The model is not one that this worker can run.
    #[error(transparent)]
    Model(#[from] cake_checkpoint::SpecError),
    /// Numbers that do not agree, or out of bounds.
    #[error("cannot load: {what} is {found}, expected {expected}")]
    Field {
        /// Which one.
        what: &'static str,
        /// As requested.
        found: String,
        /// What would be accepted.
        expected: String,
    },
    /// The plan gives more than was offered.
    #[error("the plan needs {} here, this worker offers {}",
        format_bytes(*planned), format_bytes(*budget))]
    Budget {
        /// Bytes of the plan, or what loading would take if that is more.
        planned: u64,
        /// Bytes offered.
        budget: u64,
    },
    /// Stages of other leases take so much that the plan has no room beside them.
    #[error("cannot load: {0}")]
    Shared(#[from] Lacks),
    /// A blob is missing or unreadable.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The weights cannot be where they shall lie.
    #[error(transparent)]
    Place(#[from] placement::Error),
    /// The layers cannot be built.
    #[error(transparent)]
    Engine(#[from] cake_engine::Error),
    /// The master that asked for it has gone.
    #[error("the load is no longer wanted: {0}")]
    Unwanted(#[from] lease::Error),
    /// No thread for the stage.
    #[error("cannot start the stage's thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Device(_) | Error::Model(_) | Error::Field { .. } => {
                Self::invalid_argument(message)
            }
            Error::Budget { .. } | Error::Place(_) => Self::resource_exhausted(message),
            Error::Shared(_) => Self::aborted(message), // Worth another try.
            Error::Store(error) => error.into(),
            Error::Engine(_) => Self::failed_precondition(message),
            Error::Unwanted(_) => Self::cancelled(message),
            Error::Thread(_) => Self::internal(message),
        }
    }
}

/// What a load works with.
pub struct LoadContext<'a> {
    /// The blobs.
    pub store: &'a Store,
    /// What runs the stage.
    pub runtime: &'a Runtime,
    /// What computes here, and what is offered of it.
    pub devices: &'a [DeviceOffer],
    /// Threads for arithmetic.
    pub threads: usize,
    /// Where weights lie.
    pub placement: &'a Placement,
    /// Whoever has it puts weights there: no two loads count on the same free memory.
    pub settling: &'a Mutex<()>,
    /// Lets go of what rests of other leases; whether there was any.
    pub make_room: &'a dyn Fn() -> bool,
    /// Fails once the master that asked has gone.
    pub still_wanted: &'a dyn Fn() -> Result<(), lease::Error>,
}

impl TryFrom<wire::LoadRequest> for Load {
    type Error = Error;

    fn try_from(request: wire::LoadRequest) -> Result<Self, Error> {
        at_most("blobs", request.blobs.len(), limits::BLOBS)?;
        at_most("max_rows", request.max_rows as usize, limits::ROWS)?;
        at_most("kv_blocks", request.kv_blocks as usize, limits::BLOCKS)?;
        at_most("state_slots", request.state_slots as usize, limits::STATE_SLOTS)?;
        let model = ModelSpec::from_wire(&request.model)?;
        at_most("max_positions", request.max_positions as usize, model.max_position_embeddings)?;
        at_most("layer_end", request.layer_end as usize, model.layers.len())?;
        if request.layer_start >= request.layer_end {
            return Err(field("layer_start", request.layer_start, "less than layer_end"));
        }
        let layers = LayerRange::new(request.layer_start as usize, request.layer_end as usize);
        at_most("numbers of a row", model.widest_row(), limits::HIDDEN_SIZE)?;
        if request.blobs.len() != layers.len() {
            let expected = format!("{}, one per layer of {layers}", layers.len());
            return Err(field("blobs", request.blobs.len(), &expected));
        }
        let digest =
            |text: &String| text.parse().map_err(|_| field("blob", text, "64 hexadecimal digits"));
        let kv = request.kv_dtype.parse();
        let unknown = |error: UnknownNumber| {
            field("wire", error.found, "the number of a format that this worker knows")
        };
        Ok(Self {
            generation: request.generation,
            device: request.device,
            layers,
            blobs: request.blobs.iter().map(digest).collect::<Result<_, _>>()?,
            numerics: request.numerics.parse()?,
            wire: request.wire.try_into().map_err(unknown)?,
            kv: kv.map_err(|_| field("kv_dtype", &request.kv_dtype, &KvDtype::names()))?,
            kv_blocks: request.kv_blocks as usize,
            state_slots: request.state_slots as usize,
            max_positions: request.max_positions as usize,
            max_rows: request.max_rows as usize,
            planned_bytes: request.planned_bytes,
            model,
        })
    }
}

impl Load {
    /// Maps, verifies and loads; `progress` is told (verified, total) bytes. Blocks.
    ///
    /// # Errors
    /// [`Error`]; nothing is loaded then.
    pub fn run(
        self,
        context: &LoadContext<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Outcome, Error> {
        let outcome = self.load(context, progress);
        if !matches!(outcome, Ok(Outcome::Loaded)) {
            context.runtime.account().give_back();
        }
        outcome
    }

    fn load(
        self,
        context: &LoadContext<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Outcome, Error> {
        let LoadContext { store, runtime, threads, devices, .. } = *context;
        let offer = config::offered(&self.device, devices)?;
        let before = runtime.take(); // Two stages of one lease at once could exceed the budget.
        let (mut blobs, missing) = keep(store, before, &self.blobs);
        let kept = blobs.len();
        let (opened, mut corrupt) = open_all(store, &missing)?;
        blobs.extend(opened);
        let room = self.check_budget(&blobs, &offer, context)?;
        let later = self.later_bytes(offer.device, context);
        corrupt.extend(verify(blobs.split_at(kept), context, progress)?);
        if !corrupt.is_empty() {
            drop(blobs);
            return discard(store, corrupt);
        }
        let mapped = blobs.iter().flat_map(|open| open.blob.tensors()).map(|(_, tensor)| tensor);
        let mapped = mapped.filter(|tensor| tensor.is_mapped());
        let mapped: u64 = mapped.map(|tensor| tensor.bytes().len() as u64).sum();
        let named = |(name, tensor): (&str, _)| (name.to_owned(), tensor);
        let parts = blobs.iter_mut().map(|open| open.blob.tensors_mut().map(named).collect());
        let mut parts: Vec<Vec<_>> = parts.collect();
        let mut wanted = || (context.still_wanted)().map_err(Error::from);
        {
            let _settling = context.settling.lock().unwrap_or_else(PoisonError::into_inner);
            let room = room.min(room_in_memory(mapped, later, cake_platform::free_memory()));
            context.placement.settle(&mut parts, room, threads, &mut wanted)?;
        }
        let options = EngineOptions {
            kv: self.kv,
            kv_blocks: self.kv_blocks,
            block_positions: cake_engine::BLOCK_POSITIONS,
            state_slots: self.state_slots,
            max_positions: self.max_positions,
            threads,
            device: offer.device,
            numerics: self.numerics,
            tally: None,
        };
        let find = |name: &str| blobs.iter().find_map(|open| open.blob.tensor(name));
        let stage = Stage::load(&self.model, self.layers, &find, &options);
        // What was copied or read after it was verified may have been zeros.
        let damaged = blobs.iter().filter(|open| open.blob.is_damaged());
        let damaged: Vec<Digest> = damaged.map(|open| open.manifest.name()).collect();
        if !damaged.is_empty() {
            drop((stage, blobs));
            return discard(store, damaged);
        }
        let stage = stage?;
        let about = About {
            generation: self.generation,
            layers: self.layers,
            row_width: self.model.row_width(self.layers.start),
            widest_row: [self.layers.start, self.layers.end]
                .map(|layer| self.model.row_width(layer))
                .into_iter()
                .fold(0, usize::max),
            max_rows: self.max_rows,
            wire: self.wire,
        };
        (context.still_wanted)()?;
        runtime.install(stage, about, blobs)?;
        Ok(Outcome::Loaded)
    }

    /// What the plan says must fit the budget beside what stages of other leases take of it, and what will really be taken
    /// must fit the plan. Of the budget it is this stage's from now on.
    ///
    /// Returns the bytes of the budget that nothing takes until the layers are built: the KV cache and
    /// the scratch memory come after the weights are where they shall lie.
    fn check_budget(
        &self,
        blobs: &[OpenBlob],
        offer: &DeviceOffer,
        context: &LoadContext<'_>,
    ) -> Result<u64, Error> {
        let DeviceOffer { device, budget_bytes: budget } = *offer;
        let costs = ResidentCosts::of(device);
        let weights = blobs.iter().map(|blob| resident_bytes(blob, &costs));
        let weights = weights.fold(0, u64::saturating_add);
        let later = self.later_bytes(offer.device, context);
        let needed = [weights, later, OVERHEAD_BYTES].into_iter().fold(0, u64::saturating_add);
        let planned = self.planned_bytes.max(needed);
        if planned > budget {
            return Err(Error::Budget { planned, budget });
        }
        // The process is there once, however many stages there are.
        let beside = |bytes: u64| bytes.saturating_sub(OVERHEAD_BYTES);
        let memory = memory_of(device).to_owned();
        let (bytes, offered) = (beside(planned), beside(budget));
        let account = context.runtime.account();
        let shares = [Share { device: memory, bytes, offered }];
        if let Err(lacks) = account.take(&shares)
            && !((context.make_room)() && account.take(&shares).is_ok())
        {
            return Err(lacks.into());
        }
        let others = account.others(&shares[0].device);
        Ok(offered.saturating_sub(weights).saturating_sub(others))
    }

    /// What is allocated once the weights are where they shall lie, or while they are brought there.
    fn later_bytes(&self, device: DeviceKind, context: &LoadContext<'_>) -> u64 {
        let layers = self.model.layers.get(self.layers.start..self.layers.end).unwrap_or_default();
        let block = cake_engine::block_bytes(layers, self.kv);
        let kv = block.saturating_mul(self.kv_blocks as u64);
        let (rows, positions) = (self.max_rows, self.max_positions);
        let scratch = stage_scratch_bytes(device, &self.model, rows, positions, context.threads);
        let copied = cake_engine::copied_bytes(layers);
        let state = cake_engine::state_bytes(layers, self.state_slots);
        let later = [kv, state, scratch, copied].into_iter().fold(0, u64::saturating_add);
        later.max(context.placement.copy_bytes())
    }
}

/// What is left of the `free` bytes of this device once `mapped` bytes of weights are copied, of which `later` are
/// allocated after that; nothing if not even these are left. The page cache that the weights come from counts as free:
/// the system drops it for them. A budget may promise more than there is, and mapped weights live with less; a copy
/// would be the process's end.
fn room_in_memory(mapped: u64, later: u64, free: u64) -> u64 {
    let room = free.saturating_sub(mapped);
    if room < later { 0 } else { room }
}

/// Nothing is loaded, as these blobs are damaged on disk: they are gone now.
fn discard(store: &Store, damaged: Vec<Digest>) -> Result<Outcome, Error> {
    for name in &damaged {
        store.discard(name)?;
    }
    Ok(Outcome::Corrupt(damaged))
}

/// Of the blobs that the stage before computed with those that are wanted again, and the names of the others that
/// are. They were verified before and lie where they shall, in huge pages perhaps: after another device's
/// death, most of what a stage needs. One whose file is gone, was written since then or could not be read is not kept.
fn keep(store: &Store, before: Vec<Resting>, wanted: &[Digest]) -> (Vec<OpenBlob>, Vec<Digest>) {
    let again = before.into_iter().filter_map(|(manifest, blob)| {
        let name = manifest.name();
        let in_use = wanted.contains(&name).then(|| store.pin(&name))?;
        let whole = blob.is_as_opened() && !blob.is_damaged();
        (whole && store.note_use(&name)).then_some(OpenBlob { manifest, blob, in_use })
    });
    let kept: Vec<OpenBlob> = again.collect();
    let names: Vec<Digest> = kept.iter().map(|open| open.manifest.name()).collect();
    let missing = wanted.iter().copied().filter(|name| !names.contains(name)).collect();
    (kept, missing)
}

/// Maps the blobs; names those that are gone or whose files are damaged.
fn open_all(store: &Store, names: &[Digest]) -> Result<(Vec<OpenBlob>, Vec<Digest>), Error> {
    let (mut blobs, mut bad) = (Vec::with_capacity(names.len()), Vec::new());
    for name in names {
        match store.open_blob(name) {
            Ok(blob) => blobs.push(blob),
            Err(store::Error::Corrupt { .. } | store::Error::NotHeld { .. }) => bad.push(*name),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((blobs, bad))
}

/// What a blob costs in memory.
fn resident_bytes(open: &OpenBlob, costs: &ResidentCosts) -> u64 {
    let Manifest { tensors, file_bytes, .. } = &open.manifest;
    let bytes = |tensor: &TensorEntry| tensor.dtype.tensor_bytes(&tensor.shape).unwrap_or(0);
    let sized: Vec<_> = tensors.iter().map(|it| (it.encoding, bytes(it))).collect();
    let data = sized.iter().map(|(_, bytes)| bytes).fold(0, |sum: u64, it| sum.saturating_add(*it));
    costs.resident(sized.into_iter().chain([(None, file_bytes.saturating_sub(data))]))
}

/// Re-hashes every blob but those that were verified, in one pass that also brings it into memory; names those that
/// are damaged.
fn verify(
    (verified, blobs): (&[OpenBlob], &[OpenBlob]),
    context: &LoadContext<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Digest>, Error> {
    let bytes = |blobs: &[OpenBlob]| blobs.iter().map(|open| open.manifest.file_bytes).sum::<u64>();
    let mut done = bytes(verified);
    let total = done + bytes(blobs);
    let mut corrupt = Vec::new();
    for open in blobs {
        (context.still_wanted)()?;
        let result = open.blob.verify(&mut |bytes| progress(done + bytes, total));
        if let Err(error) = result {
            tracing::warn!(blob = %open.manifest.name(), %error, "held blob is damaged");
            corrupt.push(open.manifest.name());
        }
        done += open.manifest.file_bytes;
    }
    Ok(corrupt)
}

fn at_most(what: &'static str, found: usize, limit: usize) -> Result<(), Error> {
    if found > limit {
        return Err(field(what, found, &format!("at most {limit}")));
    }
    Ok(())
}

fn field(what: &'static str, found: impl std::fmt::Display, expected: &str) -> Error {
    Error::Field { what, found: found.to_string(), expected: expected.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::tests::{TestBlob, open, receive};

    #[test]
    fn weights_are_copied_only_where_this_device_has_the_memory_whatever_was_promised() {
        assert_eq!(room_in_memory(10, 3, 15), 5);
        assert_eq!(room_in_memory(10, 3, 13), 3);
        assert_eq!(room_in_memory(10, 3, 12), 0, "what comes later has no room beside a copy");
        assert_eq!(room_in_memory(24 << 30, 0, 23 << 30), 0);
        assert_eq!(room_in_memory(0, 3, 15), 15, "nothing is mapped, something may be gathered");
    }

    #[test]
    fn what_was_computed_with_is_kept_where_it_is_wanted_and_nobody_wrote_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&directory);
        let names = [0, 1, 2, 3].map(|layer| receive(&store, &TestBlob::new(layer, 1000)));
        let (before, bad) = open_all(&store, &names[..3]).unwrap();
        assert!(bad.is_empty());
        let later = fs::metadata(directory.path()).unwrap().modified().unwrap();
        let path = directory.path().join(format!("blobs/{}.safetensors", names[1]));
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(later + std::time::Duration::from_secs(9)).unwrap();

        let last_used =
            |name| store.list().iter().find(|held| held.name == name).map(|held| held.last_used);
        let opened = names.map(last_used);
        let before = before.into_iter().map(|open| (open.manifest, open.blob)).collect();
        let (kept, missing) = keep(&store, before, &names[1..]);
        assert!(last_used(names[2]) > opened[2], "to be evicted last");
        assert_eq!(kept.iter().map(|open| open.manifest.name()).collect::<Vec<_>>(), [names[2]]);
        assert_eq!(missing, [names[1], names[3]]);
        let in_use = |name| store.list().iter().any(|held| held.name == name && held.in_use);
        assert_eq!(
            names.iter().map(|&name| in_use(name)).collect::<Vec<_>>(),
            [false, false, true, false]
        );
    }
}
