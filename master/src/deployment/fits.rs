//! Whether models at hand would fit the devices that are there, from headers alone: nobody is asked, nothing is timed.
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use cake_checkpoint::{Checkpoint, Scheme};
use cake_engine::DeviceKind;
use cake_stage::{Account, OVERHEAD_BYTES, ResidentCosts};

use super::candidates::{in_use, own_memory, own_place};
use super::parts::{parted, ways};
use super::{Error, PlanRequest};
use crate::chunk;
use crate::cluster::{Awaited, Whereabouts};
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
    /// Who is meant, once that is known.
    cluster: OnceLock<Whereabouts>,
    /// Bytes that were free for the master when that was last told.
    free: AtomicU64,
    known: Mutex<HashMap<String, Known>>,
}

/// Of which files, and of which devices.
struct Known {
    since: SystemTime,
    offers: Offers,
    fit: Fit,
}

/// By how much the master's free memory has to change before models are looked at anew: it is never twice the same.
const FREE_STEP: u64 = 256 << 20;

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

/// What all offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offers {
    workers: Vec<Offer>,
    /// Bytes that the master offers.
    own: u64,
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
        let is_free = one.online && one.held_by.is_none();
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
        let (cluster, free) = (OnceLock::new(), AtomicU64::default());
        Self { request, cluster, free, known: Mutex::default() }
    }

    /// Over these, from now on.
    pub(crate) fn over(&self, cluster: Whereabouts) {
        self.cluster.set(cluster).ok(); // Nobody else sets it.
    }

    /// What these members offer, those that are awaited, and the master itself. Reads the list of those that joined: blocks.
    pub(crate) fn offers(&self, members: &[Present], awaited: &[Awaited]) -> Offers {
        let kept = |name: &String| !self.request.exclude.contains(name);
        let members = members.iter().filter(|one| kept(&one.name)).filter_map(Offer::of);
        let awaited = awaited.iter().filter(|one| kept(&one.name)).filter_map(Offer::awaited);
        let mut workers: Vec<Offer> = members.chain(awaited).collect();
        workers.sort_by(|one, other| one.worker_id.cmp(&other.worker_id));
        let nobody = |cluster: &&Whereabouts| workers.is_empty() && cluster.addresses().is_empty();
        let own = match self.request.local_memory {
            Some(bytes) => bytes,
            // Where nobody can be, it holds all layers.
            None => self.cluster.get().filter(nobody).map_or(0, |cluster| self.free(cluster)),
        };
        Offers { workers, own }
    }

    /// Whether `model` fits. Opens its headers where that is not known: blocks.
    pub(crate) fn of(&self, model: &AtHand, offers: &Offers) -> Fit {
        if offers.workers.is_empty() && offers.own == 0 || !self.request.pins.is_empty() {
            return Fit::Unknown;
        }
        let is_same = |known: &&Known| known.since == model.since && known.offers == *offers;
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&model.name).filter(is_same) {
            return known.fit;
        }
        let fit = self.find_out(&model.model, offers).unwrap_or(Fit::Unknown);
        let mut known = lock();
        if known.len() >= MOST {
            known.clear();
        }
        let offers = offers.clone();
        known.insert(model.name.clone(), Known { since: model.since, offers, fit });
        fit
    }

    /// Bytes that are free for the master, if nothing was loaded; 0 where nobody knows.
    fn free(&self, cluster: &Whereabouts) -> u64 {
        let Ok(device) = DeviceKind::from_env() else { return 0 };
        let Ok(own) = own_memory(device.name(), device.memory()) else { return 0 };
        let taken = Account::new(cluster.ledger()).others(&own_place(device));
        let now = own.bytes.saturating_add(taken.min(in_use()));
        let before = self.free.load(Ordering::Relaxed);
        if before > 0 && now.abs_diff(before) < FREE_STEP {
            return before;
        }
        self.free.store(now, Ordering::Relaxed);
        now
    }

    fn find_out(&self, model: &str, offers: &Offers) -> Result<Fit, Error> {
        let checkpoint = Arc::new(Checkpoint::open(model)?);
        let promise = self.request.promise(&checkpoint)?;
        let candidates: Vec<Candidate> = offers.workers.iter().map(candidate).collect();
        let own = offers.own;
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
    use crate::membership::Membership;
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
        let of = |fits: &Fits, members: &[Present], awaited: &[Awaited]| {
            fits.of(&model, &fits.offers(members, awaited))
        };
        assert_eq!(of(&fits, &[], &[]), Fit::Unknown);
        let offers = |bytes| {
            let of =
                |name| Present { budget_bytes: bytes, devices: vec!["cpu".into()], ..spare(name) };
            [of("a"), of("b")]
        };
        assert_eq!(of(&fits, &offers(4 << 30), &[]), Fit::Whole);
        let Fit::Lacks { needed_bytes, offered_bytes } =
            of(&fits, &offers(OVERHEAD_BYTES + (1 << 20)), &[])
        else {
            panic!("two times 1 MiB are too few");
        };
        assert!(offered_bytes <= 2 << 20 && offered_bytes < needed_bytes, "{needed_bytes}");
        // The master's own memory counts, and who is left out does not.
        let small = offers(OVERHEAD_BYTES + (1 << 20));
        let asked = |request| of(&Fits::new(PlanRequest { parallel, ..request }), &small, &[]);
        let local_memory = Some(4 << 30);
        assert_eq!(asked(PlanRequest { local_memory, ..PlanRequest::default() }), Fit::Whole);
        let exclude = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(asked(PlanRequest { exclude, ..PlanRequest::default() }), Fit::Unknown);
        let pins = vec![Pin { device: "a".to_owned(), layers: LayerRange::new(0, 1) }];
        assert_eq!(asked(PlanRequest { pins, ..PlanRequest::default() }), Fit::Unknown);
        // Nor does who gets no layers.
        let aside = [Duty::Draining, Duty::Leaving, Duty::Paused, Duty::Quarantined]
            .map(|duty| Present { duty, budget_bytes: 4 << 30, ..spare("c") });
        assert_eq!(of(&fits, &aside, &[]), Fit::Unknown);
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
        assert_eq!(of(&fits, &[], std::slice::from_ref(&there)), Fit::Whole);
        for held in [
            Awaited { held_by: Some("another".to_owned()), ..there.clone() },
            Awaited { online: false, why: Some("no answer in time".to_owned()), ..there },
        ] {
            assert_eq!(of(&fits, &[], &[held]), Fit::Unknown);
        }
        // Where nobody can be, the master's free memory has it.
        let by_itself = Fits::new(PlanRequest { parallel, ..PlanRequest::default() });
        by_itself.over(Whereabouts::new(Membership::default(), Vec::new(), true));
        assert_eq!(of(&by_itself, &[], &[]), Fit::Whole);
        assert!(matches!(of(&by_itself, &small, &[]), Fit::Lacks { .. }), "they are asked");
        // What is known of it is not found out again.
        let told = fits.offers(&offers(4 << 30), &[]);
        assert_eq!(fits.of(&model, &told), Fit::Whole);
        let known = |fit| {
            let mut all = fits.known.lock().expect("no holder panics");
            all.get_mut(&model.name).expect("it is known").fit = fit;
        };
        known(Fit::Unknown);
        assert_eq!(fits.of(&model, &told), Fit::Unknown);
        assert_eq!(of(&fits, &offers(5 << 30), &[]), Fit::Whole, "of other offers it is");
    }
}
