//! Whether models at hand would fit the devices that are there, from headers alone: nobody is asked, nothing is timed.
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use cake_checkpoint::{Checkpoint, Scheme};
use cake_engine::DeviceKind;
use cake_stage::{OVERHEAD_BYTES, ResidentCosts};

use super::parts::{parted, ways};
use super::{Error, PlanRequest};
use crate::chunk;
use crate::model::Model;
use crate::planner::{self, Input};
use crate::present::Present;
use crate::shelf::AtHand;
use crate::sizing::{self, Candidate, Promise};

/// Most models of which it is remembered; beyond that all are found out anew.
const MOST: usize = 1024;

/// What a service promises of its models, and what is known of each.
pub(crate) struct Fits {
    request: PlanRequest,
    known: Mutex<HashMap<String, Known>>,
}

/// Of which files, and of which devices.
struct Known {
    since: SystemTime,
    offers: Vec<Offer>,
    fit: Fit,
}

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

impl Fits {
    /// Of models of which so much is asked.
    pub(crate) fn new(request: PlanRequest) -> Self {
        Self { request, known: Mutex::default() }
    }

    /// Whether `model` fits the devices of these members. Opens its headers where that is not known: blocks.
    pub(crate) fn of(&self, model: &AtHand, members: &[Present]) -> Fit {
        let offer = |member: &Present| Offer {
            worker_id: member.worker_id.clone(),
            device: DeviceKind::alike(member.devices.first().map_or("", String::as_str)),
            threads: member.threads,
            budget_bytes: member.budget_bytes,
        };
        let request = &self.request;
        let kept = |member: &&Present| !request.exclude.contains(&member.name);
        let mut offers: Vec<Offer> = members.iter().filter(kept).map(offer).collect();
        offers.sort_by(|one, other| one.worker_id.cmp(&other.worker_id));
        let nobody = offers.is_empty() && request.local_memory.unwrap_or(0) == 0;
        if nobody || !request.pins.is_empty() {
            return Fit::Unknown;
        }
        let is_same = |known: &&Known| known.since == model.since && known.offers == offers;
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&model.name).filter(is_same) {
            return known.fit;
        }
        let fit = self.find_out(&model.model, &offers).unwrap_or(Fit::Unknown);
        let mut known = lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(model.name.clone(), Known { since: model.since, offers, fit });
        fit
    }

    fn find_out(&self, model: &str, offers: &[Offer]) -> Result<Fit, Error> {
        let checkpoint = Arc::new(Checkpoint::open(model)?);
        let promise = self.request.promise(&checkpoint)?;
        let mut candidates: Vec<Candidate> = offers.iter().map(candidate).collect();
        if let Some(bytes) = self.request.local_memory.filter(|bytes| *bytes > 0) {
            let device = (DeviceKind::from_env()?, cake_engine::default_threads());
            let copy_bytes = self.request.own_weights.copy_bytes();
            candidates.push(Candidate::local(bytes, device, None, copy_bytes, 0));
        }
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
        assert_eq!(fits.of(&model, &[]), Fit::Unknown);
        let offers = |bytes| {
            let of =
                |name| Present { budget_bytes: bytes, devices: vec!["cpu".into()], ..spare(name) };
            [of("a"), of("b")]
        };
        assert_eq!(fits.of(&model, &offers(4 << 30)), Fit::Whole);
        let Fit::Lacks { needed_bytes, offered_bytes } =
            fits.of(&model, &offers(OVERHEAD_BYTES + (1 << 20)))
        else {
            panic!("two times 1 MiB are too few");
        };
        assert!(offered_bytes <= 2 << 20 && offered_bytes < needed_bytes, "{needed_bytes}");
        // The master's own memory counts, and who is left out does not.
        let small = offers(OVERHEAD_BYTES + (1 << 20));
        let of = |request| Fits::new(PlanRequest { parallel, ..request }).of(&model, &small);
        let local_memory = Some(4 << 30);
        assert_eq!(of(PlanRequest { local_memory, ..PlanRequest::default() }), Fit::Whole);
        let exclude = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(of(PlanRequest { exclude, ..PlanRequest::default() }), Fit::Unknown);
        let pins = vec![Pin { device: "a".to_owned(), layers: LayerRange::new(0, 1) }];
        assert_eq!(of(PlanRequest { pins, ..PlanRequest::default() }), Fit::Unknown);
        // What is known of it is not found out again.
        let known = fits.known.lock().expect("no holder panics");
        assert_eq!(known.get(&model.name).map(|known| known.offers.len()), Some(2));
    }
}
