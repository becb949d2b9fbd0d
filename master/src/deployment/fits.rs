//! Whether models at hand would fit the devices that are there, from headers alone: nobody is asked, nothing is timed.
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use cake_checkpoint::{Checkpoint, Scheme};
use cake_engine::DeviceKind;
use cake_stage::{OVERHEAD_BYTES, ResidentCosts};

use super::candidates::{in_use, own_memory};
use super::parts::{parted, ways};
use super::{Error, PlanRequest};
use crate::chunk;
use crate::cluster::Awaited;
use crate::model::Model;
use crate::planner::{self, Input};
use crate::present::{Duty, Present};
use crate::shelf::AtHand;
use crate::sizing::{self, Candidate, Promise};

/// Most models of which it is remembered; beyond that all are found out anew.
const MOST: usize = 1024;

/// What a service promises of its models, and what is known of each.
pub(crate) struct Fits {
    request: PlanRequest,
    /// Whether the master holds all layers itself where nobody is there.
    alone: AtomicBool,
    known: Mutex<HashMap<String, Known>>,
}

/// Of which files, and of which devices.
struct Known {
    since: SystemTime,
    offers: Vec<Offer>,
    /// Bytes that the master offers.
    own: u64,
    fit: Fit,
}

/// Steps in which the master's free memory is told: it is never twice the same.
const FREE_STEP: u64 = 64 << 20;

/// Whether a model fits all that is offered, if nothing else was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It does.
    Whole,
    /// It does not.
    Lacks {
        /// Bytes of its layers, and of what they keep of sequences.
        needed_bytes: u64,
        /// Bytes that devices offer for these.
        offered_bytes: u64,
    },
    /// Nobody is there, it would have to be read, or somebody is to have certain layers of it.
    Unknown,
}

/// What a device offers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    worker_id: String,
    device: DeviceKind,
    threads: usize,
    budget_bytes: u64,
}

impl Offer {
    /// Of a worker that may get layers.
    fn of(member: &Present) -> Option<Self> {
        matches!(member.duty, Duty::Layers | Duty::Spare).then(|| Self {
            worker_id: member.worker_id.clone(),
            device: DeviceKind::alike(member.devices.first().map_or("", String::as_str)),
            threads: member.threads,
            budget_bytes: member.budget_bytes,
        })
    }

    /// Of one that nobody holds yet.
    fn awaited(one: &Awaited) -> Option<Self> {
        let is_free = one.online && one.held_by.is_none() && one.why.is_none();
        Some(Self {
            worker_id: one.worker_id.clone().filter(|_| is_free)?,
            device: DeviceKind::alike(one.devices.first().map_or("", String::as_str)),
            threads: one.threads?,
            budget_bytes: one.memory_bytes?,
        })
    }
}

impl Fits {
    /// Of models of which so much is asked.
    pub(crate) fn new(request: PlanRequest) -> Self {
        Self { request, alone: AtomicBool::default(), known: Mutex::default() }
    }

    /// The master holds all layers itself where nobody is there: nobody joined, or nobody is to be asked.
    pub(crate) fn master_takes_all(&self) {
        self.alone.store(true, Ordering::Relaxed);
    }

    /// Whether `model` fits the devices of these members, and of those that are awaited. Opens its headers where that is not
    /// known: blocks.
    pub(crate) fn of(&self, model: &AtHand, members: &[Present], awaited: &[Awaited]) -> Fit {
        let request = &self.request;
        let kept = |name: &String| !request.exclude.contains(name);
        let members = members.iter().filter(|one| kept(&one.name)).filter_map(Offer::of);
        let awaited = awaited.iter().filter(|one| kept(&one.name)).filter_map(Offer::awaited);
        let mut offers: Vec<Offer> = members.chain(awaited).collect();
        offers.sort_by(|one, other| one.worker_id.cmp(&other.worker_id));
        let own = self.own(offers.is_empty());
        if offers.is_empty() && own == 0 || !request.pins.is_empty() {
            return Fit::Unknown;
        }
        let is_same = |known: &&Known| {
            known.since == model.since && known.offers == offers && known.own == own
        };
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&model.name).filter(is_same) {
            return known.fit;
        }
        let fit = self.find_out(&model.model, &offers, own).unwrap_or(Fit::Unknown);
        let mut known = lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(model.name.clone(), Known { since: model.since, offers, own, fit });
        fit
    }

    /// Bytes that the master has for layers: what it was told, or what is free where it holds all of them.
    fn own(&self, is_alone: bool) -> u64 {
        let free = || {
            let device = DeviceKind::from_env().ok()?;
            let free = own_memory(device.name(), device.memory()).ok()?.bytes;
            Some(free.saturating_add(in_use()) / FREE_STEP * FREE_STEP)
        };
        match self.request.local_memory {
            Some(bytes) => bytes,
            None if is_alone && self.alone.load(Ordering::Relaxed) => free().unwrap_or(0),
            None => 0,
        }
    }

    fn find_out(&self, model: &str, offers: &[Offer], own: u64) -> Result<Fit, Error> {
        let checkpoint = Arc::new(Checkpoint::open(model)?);
        let promise = self.request.promise(&checkpoint)?;
        let candidates: Vec<Candidate> = offers.iter().map(candidate).collect();
        let device = (own > 0).then(DeviceKind::from_env).transpose()?;
        let device = device.map(|device| (device, cake_engine::default_threads()));
        let least = chunk::bounds(promise.context, false).last();
        let chunk = match (self.request.chunk, least) {
            (None, Some((rows, _))) => rows,
            _ => promise.chunk,
        };
        let promise = Promise { chunk, ..promise };
        let (mut lacks, mut may_be_less) = (Fit::Unknown, false);
        for (scheme, slices) in ways(&self.request) {
            if scheme != Scheme::AsStored {
                may_be_less = true; // How much, a sample of the weights would say.
                continue;
            }
            let Some(checkpoint) = parted(&checkpoint, slices) else { continue };
            let model = Model::new(checkpoint, scheme);
            let mut candidates = candidates.clone();
            candidates.extend(device.map(|device| {
                // What free memory holds beside layers is counted, what a person named is for these alone.
                let named = self.request.local_memory.is_some();
                let ends = if named { 0 } else { sizing::ends_bytes(&model, &promise) };
                Candidate::local(own, device, None, self.request.own_weights.copy_bytes(), ends)
            }));
            let manifests = vec![None; model.checkpoint.config.layers.len()];
            let input = sizing::input(&model, &promise, &candidates, &manifests, Vec::new());
            match planner::plan(&input) {
                Ok(_) => return Ok(Fit::Whole),
                Err(_) => lacks = compare(&input),
            }
        }
        Ok(if may_be_less { Fit::Unknown } else { lacks })
    }
}

fn candidate(offer: &Offer) -> Candidate {
    Candidate {
        name: offer.worker_id.clone(), // Two may have one name, as people see them.
        overhead_bytes: OVERHEAD_BYTES,
        device: offer.device,
        threads: offer.threads,
        resident: ResidentCosts::of(offer.device),
        blobs: HashSet::new(),
        ..Candidate::what_if("", offer.budget_bytes)
    }
}

/// What layers need, and what devices have for them.
fn compare(input: &Input) -> Fit {
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    let weights =
        input.devices.first().map_or(&[][..], |device| device.layer_resident_bytes.as_slice());
    let kept = input.layers.iter().map(planner::LayerCost::kept_bytes);
    let needed_bytes = sum(&mut weights.iter().copied().chain(kept));
    let left = input.devices.iter().map(|device| {
        let own = device.overhead_bytes.saturating_add(device.scratch_bytes);
        device.budget_bytes.saturating_sub(own)
    });
    Fit::Lacks { needed_bytes, offered_bytes: sum(&mut left.into_iter()) }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use cake_checkpoint::LayerRange;

    use super::*;
    use crate::planner::Pin;
    use crate::present::tests::spare;
    use crate::shelf::{Shelf, Source};

    #[test]
    fn a_model_fits_what_is_offered_or_it_is_said_what_it_lacks() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/demo-model").to_owned();
        let shelf = Shelf::open(vec![Source::Named(path)], None).expect("it opens");
        let model = shelf.only().expect("one");
        let parallel = NonZeroUsize::new(8);
        let fits = Fits::new(PlanRequest { parallel, ..PlanRequest::default() });
        assert_eq!(fits.of(&model, &[], &[]), Fit::Unknown);
        let offers = |bytes| {
            let of =
                |name| Present { budget_bytes: bytes, devices: vec!["cpu".into()], ..spare(name) };
            [of("a"), of("b")]
        };
        assert_eq!(fits.of(&model, &offers(4 << 30), &[]), Fit::Whole);
        let Fit::Lacks { needed_bytes, offered_bytes } =
            fits.of(&model, &offers(OVERHEAD_BYTES + (1 << 20)), &[])
        else {
            panic!("two times 1 MiB are too few");
        };
        assert!(offered_bytes <= 2 << 20 && offered_bytes < needed_bytes, "{needed_bytes}");
        // The master's own memory counts, and who is left out does not.
        let small = offers(OVERHEAD_BYTES + (1 << 20));
        let of = |request| Fits::new(PlanRequest { parallel, ..request }).of(&model, &small, &[]);
        let local_memory = Some(4 << 30);
        assert_eq!(of(PlanRequest { local_memory, ..PlanRequest::default() }), Fit::Whole);
        let exclude = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(of(PlanRequest { exclude, ..PlanRequest::default() }), Fit::Unknown);
        let pins = vec![Pin { device: "a".to_owned(), layers: LayerRange::new(0, 1) }];
        assert_eq!(of(PlanRequest { pins, ..PlanRequest::default() }), Fit::Unknown);
        // Nor does who gets no layers.
        let aside = [Duty::Draining, Duty::Leaving, Duty::Paused, Duty::Quarantined]
            .map(|duty| Present { duty, budget_bytes: 4 << 30, ..spare("c") });
        assert_eq!(fits.of(&model, &aside, &[]), Fit::Unknown);
        // Who is there and held by nobody does.
        let there = Awaited {
            name: "c".to_owned(),
            worker_id: Some("id of c".to_owned()),
            online: true,
            held_by: None,
            memory_bytes: Some(4 << 30),
            devices: vec!["cpu".to_owned()],
            threads: Some(2),
            why: None,
        };
        assert_eq!(fits.of(&model, &[], std::slice::from_ref(&there)), Fit::Whole);
        for held in [
            Awaited { held_by: Some("another".to_owned()), ..there.clone() },
            Awaited { online: false, why: Some("no answer in time".to_owned()), ..there },
        ] {
            assert_eq!(fits.of(&model, &[], &[held]), Fit::Unknown);
        }
        // Where nobody can be, the master's free memory has it.
        let by_itself = Fits::new(PlanRequest { parallel, ..PlanRequest::default() });
        by_itself.master_takes_all();
        assert_eq!(by_itself.of(&model, &[], &[]), Fit::Whole);
        assert!(matches!(by_itself.of(&model, &small, &[]), Fit::Lacks { .. }), "they are asked");
        // What is known of it is not found out again.
        fits.of(&model, &offers(4 << 30), &[]);
        let known = fits.known.lock().expect("no holder panics");
        assert_eq!(known.get(&model.name).map(|known| known.offers.len()), Some(2));
    }
}
