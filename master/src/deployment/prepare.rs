//! From a model and workers to a plan: what every command shares. What runs then is begun in `open`.
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use cake_checkpoint::{Checkpoint, LayerRange, Scheme};
use cake_engine::DeviceKind;
use cake_stage::Account;
use tokio::task::block_in_place;

use super::candidates::{Room, Seat};
use super::choice::{Chosen, With};
use super::event::{Event, Observer, Quiet};
use super::facts::Note;
use super::hollow::hollow_files;
use super::parts::{WHOLE, parted, ways};
use super::prepared::{Prepared, master_name};
use super::rates::Probing;
use super::replan::WORTH;
use super::request::Encode;
use super::weighing::{reading, weigh};
use super::widths::{Losses, spare};
use super::{Error, PlanRequest, WrongArgument};
use crate::cluster::{self, Held, Member, Missing, Whereabouts};
use crate::distributor::Manifests;
use crate::model::Model;
use crate::planner::{PlannedStage, Refusal};
use crate::sizing::Promise;
use crate::state::State;

/// Opens the model, takes the workers, measures them and plans. `state` is where the master
/// remembers digests and measurements.
pub(crate) async fn prepare(
    state: State,
    model: &str,
    cluster: &Whereabouts,
    request: &PlanRequest,
    observer: Arc<dyn Observer>,
) -> Result<Prepared, Error> {
    cake_stage::recall_tuning(state.directory(), &cake_platform::processor());
    let checkpoint = Arc::new(block_in_place(|| Checkpoint::open(model))?);
    let warn = |warning: &String| observer.tell(&Event::Warning(warning));
    checkpoint.warnings.iter().for_each(warn);
    let promise = request.promise(&checkpoint)?;
    let hollow = hollow_files(&checkpoint);
    let hollow = hollow.first().map(|file| (file.to_path_buf(), hollow.len()));
    if let Some((file, count)) = hollow.clone().filter(|_| !request.headers_suffice) {
        return Err(Error::Hollow { file, count });
    }
    let reading = match &request.calibrate {
        Some(_) if request.of_several && !checkpoint.has_plain_matrices() => None, // It may be for another of them.
        Some(sample) => Some(block_in_place(|| reading(&checkpoint, sample, hollow.is_some()))?),
        None => None,
    };
    let Held { members, missing } = cluster.hold(&master_name()).await?;
    let (request, missing) = with_whom(request, &members, missing)?;
    let mut notes = notes(cluster, &members, &missing, &request);
    let headers_only = hollow.is_some();
    notes.extend(hollow.map(|(file, count)| Note::Hollow { file, count }));
    let is_full = missing.iter().any(Missing::is_full);
    let missing: Vec<String> = missing.iter().map(Missing::to_string).collect();
    let device = DeviceKind::from_env()?;
    let threads = cake_engine::default_threads();
    let account = Account::new(cluster.ledger());
    let mut refused = None;
    let mut probing = Probing::asked(&request);
    // Sizes depend on a sample of weights, which is remembered.
    if request.encode.is_codes() {
        block_in_place(|| checkpoint.look_for_codes());
    }
    let slack = if request.hurry { WORTH.recip() - 1.0 } else { 0.0 };
    let mut is_weighed = false;
    let mut ways = VecDeque::from(ways(&request));
    while let Some((scheme, slices)) = ways.pop_front() {
        let Some(parted) = parted(&checkpoint, slices) else {
            if request.slices.is_some() {
                let model = &checkpoint.location.name;
                let expected = format!(
                    "1, or fewer: {model} has no layer whose experts could be parted, or it would have too many parts"
                );
                return Err(WrongArgument::new("--expert-slices", slices, expected).into());
            }
            continue;
        };
        let model = Model::new(parted, scheme);
        let manifests = Arc::new(Manifests::open(model.clone(), state.digests()?)?);
        let is_due = reading.is_some() && scheme.weighs_errors() && !is_weighed;
        // What there is to warn of is told of the plan that is carried out.
        let tell: &dyn Observer = if is_due { &Quiet } else { &*observer };
        let with = With {
            model: &model,
            manifests: &manifests,
            state: &state,
            device,
            threads,
            slack,
            probing,
            room: Room { account: &account, whole: false },
            observer: tell,
        };
        let (request, planned) = plan_sparing(&with, &members, &request, promise).await;
        let planned = match planned {
            Err(Error::Plan(refusal)) if is_full => Err(Error::Crowded(refusal)),
            Err(Error::Plan(refusal)) if account.has_others() => {
                // Narrower weights are for devices that are small, not for those where somebody else will leave.
                if with.fits_alone(&members, &request, promise).await? {
                    return Err(Error::Crowded(refusal));
                }
                Err(Error::Plan(refusal))
            }
            planned => planned,
        };
        let chosen = match planned {
            Err(Error::Plan(refusal)) if matches!(refusal, Refusal::DoesNotFit { .. }) => {
                probing = Probing::Strangers; // Nobody is timed twice for one plan.
                if slices == WHOLE || request.slices.is_some() {
                    refused = Some(refusal); // Else it is said of the layers that people know.
                }
                continue;
            }
            Err(Error::Plan(refusal)) if !missing.is_empty() => {
                return Err(Error::PlanWithout { refusal, missing });
            }
            chosen => chosen?,
        };
        // A text takes long, and changes what weights become, not how much room they take: it is run for what fits, which is
        // then planned once more, as the workers may have other bytes of it.
        if let Some(reading) = reading.as_ref().filter(|_| is_due) {
            let told = observer.clone();
            let tell = move |done, layers| told.tell(&Event::Calibrating { done, layers });
            weigh(&checkpoint, reading, &state, tell).await?;
            is_weighed = true;
            if probing == Probing::All {
                probing = Probing::Uncertain; // Nobody is timed anew twice for one plan.
            }
            ways.push_front((scheme, slices));
            continue;
        }
        let spends = request.encode.is_open() && slices == WHOLE && scheme != Scheme::AsStored;
        let losses = match (spends || request.why) && !headers_only {
            true => Some(block_in_place(|| losses_of(&model, &request))?),
            false => None,
        };
        let wider = match losses.as_ref().filter(|_| spends) {
            Some(losses) => wider(&with, &chosen, losses, &members, &request, promise).await?,
            None => None,
        };
        let (model, manifests, chosen) =
            wider.unwrap_or_else(|| (model.clone(), manifests.clone(), chosen));
        let losses = losses.map(|losses| losses.table(&model));
        let is_worker = |seat: &Seat| matches!(seat, Seat::Worker { .. });
        account.take(&chosen.shares())?;
        let prepared = Prepared {
            model,
            account,
            alone: !chosen.seats.iter().any(is_worker),
            chosen,
            members,
            manifests,
            state,
            device,
            threads,
            own_weights: request.own_weights.clone(),
            losses,
            missing,
            notes: Mutex::new(notes),
            headers_only,
            cut: HashSet::new(),
            monitor: None,
            observer: observer.clone(),
        };
        prepared.own_shortfall().iter().for_each(warn);
        return Ok(prepared);
    }
    let refusal = refused.expect("whole layers, or what was asked for, were tried");
    Err(match missing.is_empty() {
        true => Error::Plan(refusal),
        false => Error::PlanWithout { refusal, missing },
    })
}

/// What layers lose by what they may be turned into, or by all that there is.
///
/// # Errors
/// Weights that cannot be read or encoded.
fn losses_of(model: &Model, request: &PlanRequest) -> Result<Losses, Error> {
    let all = Encode::auto();
    let tried = if request.encode.is_open() { &request.encode } else { &all };
    Ok(Losses::measure(&model.checkpoint, tried.tried())?)
}

/// The model in which layers that lose most are wider, as far as the devices of a plan have room for that, and the plan for
/// it; `None` where all are alike, or there is no such plan, as a device's memory holds more than blobs have.
///
/// # Errors
/// As [`With::plan`], but for refusals.
async fn wider(
    with: &With<'_>,
    chosen: &Chosen,
    losses: &Losses,
    members: &[Member],
    request: &PlanRequest,
    promise: Promise,
) -> Result<Option<(Model, Arc<Manifests>, Chosen)>, Error> {
    let checkpoint = &with.model.checkpoint;
    let (fits, room) = (with.model.scheme, room(chosen));
    let Some(layers) = block_in_place(|| losses.spend(checkpoint, fits, &room)) else {
        return Ok(None);
    };
    let model = with.model.with_layers(layers);
    let manifests = Arc::new(Manifests::open(model.clone(), with.state.digests()?)?);
    let again = With {
        model: &model,
        manifests: &manifests,
        probing: Probing::Strangers,
        observer: &Quiet, // What there is to warn of was told of the first plan.
        ..*with
    };
    let planned = again.plan(members, request, promise).await;
    match planned {
        Ok(chosen) => Ok(Some((model, manifests, chosen))),
        Err(Error::Plan(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The stages of a plan, each with the bytes that its layers may take beside what they take in it.
fn room(chosen: &Chosen) -> Vec<(LayerRange, u64)> {
    let stages = &chosen.plan.stages;
    let memory = |stage: &PlannedStage| (stage.memory.budget, stage.memory.total());
    let spare = spare(&stages.iter().map(memory).collect::<Vec<_>>());
    stages.iter().map(|stage| stage.layers).zip(spare).collect()
}

/// The plan that spares those that their owner wants free, else the one with them; and the request that it was made for.
async fn plan_sparing(
    with: &With<'_>,
    members: &[Member],
    request: &PlanRequest,
    promise: Promise,
) -> (PlanRequest, Result<Chosen, Error>) {
    let Some(sparing) = sparing(request, members) else {
        return (request.clone(), with.plan(members, request, promise).await);
    };
    match with.plan(members, &sparing, promise).await {
        Err(Error::Plan(_)) => {
            // Nobody is timed twice for one plan.
            let again = With { probing: Probing::Strangers, ..*with };
            (request.clone(), again.plan(members, request, promise).await)
        }
        planned => (sparing, planned),
    }
}

/// The same request without those that their owner wants free, if there are some beside others.
fn sparing(request: &PlanRequest, members: &[Member]) -> Option<PlanRequest> {
    let is_placed = |name: &str| request.pins.iter().any(|pin| pin.device == name);
    let free = members.iter().filter(|it| it.is_draining() && !is_placed(it.name()));
    let free: Vec<String> = free.map(|member| member.name().to_owned()).collect();
    let mut request = request.clone();
    request.exclude.extend(free);
    let is_left = |member: &Member| request.exclude.iter().all(|name| name != member.name());
    let is_other = members.iter().any(Member::is_draining) && members.iter().any(is_left);
    is_other.then_some(request)
}

/// What is asked of the plan and who is missing from it, those that are to be left out anyway aside.
///
/// # Errors
/// Nobody is there, though some joined, and nobody asked the master to take their part.
fn with_whom(
    request: &PlanRequest,
    members: &[Member],
    mut missing: Vec<Missing>,
) -> Result<(PlanRequest, Vec<Missing>), Error> {
    let nobody = members.is_empty() && !missing.is_empty();
    if nobody && request.what_if.is_empty() && request.local_memory.unwrap_or(0) == 0 {
        return Err(cluster::Error::NobodyThere(missing).into());
    }
    let mut request = request.clone();
    let is_there = |name: &str| members.iter().any(|member| member.name() == name);
    let (excluded, kept): (Vec<_>, Vec<_>) = request
        .exclude
        .into_iter()
        .partition(|name| !is_there(name) && missing.iter().any(|one| one.name == *name));
    request.exclude = kept;
    missing.retain(|one| !excluded.contains(&one.name));
    Ok((request, missing))
}

/// What people should know of whom the plan is made for.
fn notes(
    cluster: &Whereabouts,
    members: &[Member],
    missing: &[Missing],
    request: &PlanRequest,
) -> Vec<Note> {
    let mut notes: Vec<Note> =
        missing.iter().map(|missing| Note::Without(missing.to_string())).collect();
    let asked = cluster.is_alone() || request.local_memory.is_some() || !request.what_if.is_empty();
    if members.is_empty() && missing.is_empty() && !asked {
        notes.push(Note::Alone { has_authority: cluster.membership.authority().is_some() });
    }
    notes
}
