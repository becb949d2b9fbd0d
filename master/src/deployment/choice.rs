//! Which plan is taken: for the workers that are there, with steps as large as fit and pay.
use std::num::NonZeroUsize;

use cake_checkpoint::KvDtype;
use cake_engine::{DeviceKind, Numerics};
use cake_stage::Share;
use tokio::task::block_in_place;

use super::candidates::{self, Candidates, Room, Seat};
use super::event::{Event, Observer, Quiet};
use super::rates::{Asking, Probing};
use super::{Error, PlanRequest};
use crate::chunk::{self, Chunk};
use crate::cluster::{Member, Memory, OfferedDevice};
use crate::distributor::Manifests;
use crate::model::Model;
use crate::planner::{self, Idle, Plan, PlannedStage, Refusal, Why};
use crate::sizing::{self, LOCAL, Promise};
use crate::state::State;

/// What takes the fewest bytes of keys and values.
const NARROWEST: KvDtype = KvDtype::Q8;

/// What planning needs beside the workers.
pub(crate) struct With<'a> {
    pub model: &'a Model,
    pub manifests: &'a Manifests,
    pub state: &'a State,
    /// What the master computes with, and on how many threads.
    pub device: DeviceKind,
    pub threads: usize,
    /// How much slower a plan may be that has less to push.
    pub slack: f64,
    /// Who is timed for it.
    pub probing: Probing,
    /// What other models leave of the devices.
    pub room: Room<'a>,
    /// Who is told of what is not as it should be.
    pub observer: &'a dyn Observer,
}

/// A plan, and what was decided with it.
pub(crate) struct Chosen {
    /// What is promised by it.
    pub promise: Promise,
    /// How prompts are cut into steps.
    pub chunk: Chunk,
    /// The plan.
    pub plan: Plan,
    /// Who each of the plan's devices is.
    pub seats: Vec<Seat>,
    /// The memory of each, and the bytes that it offers to all models together.
    pub memories: Vec<(Memory, u64)>,
    /// Who is there and has no layers, and why.
    pub idle: Vec<Idle>,
}

impl Chosen {
    /// What the plan takes of each memory.
    pub(crate) fn shares(&self) -> Vec<Share<Memory>> {
        let share = |stage: &PlannedStage| {
            let (device, offered) = self.memories.get(stage.device_index)?.clone();
            // A worker's process is there once, however many models have layers there.
            let once = match self.seats.get(stage.device_index)? {
                Seat::Worker { .. } => stage.memory.overhead,
                Seat::Master => 0,
                Seat::Imagined => return None,
            };
            let bytes = stage.memory.total().saturating_sub(once);
            Some(Share { device, bytes, offered: offered.saturating_sub(once) })
        };
        self.plan.stages.iter().filter_map(share).collect()
    }
}

impl With<'_> {
    /// Measures who was not measured yet, and plans.
    pub(crate) async fn plan(
        &self,
        members: &[Member],
        request: &PlanRequest,
        promise: Promise,
    ) -> Result<Chosen, Error> {
        let Self { model, manifests, state, device, threads, slack, probing, room, observer } =
            *self;
        let beside = room.account.has_others();
        let asking = Asking { model, state, device, threads, probing, beside };
        let Candidates { all, seats, memories, warnings, ends_seconds, unable, own_offer } =
            candidates::gather(&asking, room, members, request, &promise).await?;
        let known = manifests.all_known();
        let input = |promise: &Promise| {
            let input = sizing::input(model, promise, &all, &known, request.pins.clone());
            planner::Input { slack, ends_seconds, ..input }
        };
        // It may take a while for many workers, and somebody else's bytes move meanwhile.
        let plan = |promise: &Promise| planner::plan(&input(promise));
        let fits = |promise| block_in_place(|| fitting(plan, promise, request.chunk, &seats));
        let (plan, promise, chunk) = fits(promise).map_err(|mut refusal| {
            own_offer.iter().for_each(|why| refusal.explain(LOCAL, why));
            let keeps = |device: &OfferedDevice| device.kv.contains(&NARROWEST);
            let mut devices = seats.iter().filter_map(|seat| seat.device(members));
            let is_room = matches!(*refusal, Refusal::DoesNotFit { .. });
            let narrower =
                is_room && promise.kv != NARROWEST && devices.all(|(_, device)| keeps(device));
            if narrower && fits(Promise { kv: NARROWEST, ..promise }).is_ok() {
                refusal.suggest_kv(&NARROWEST.to_string());
            }
            Error::Plan(*refusal)
        })?;
        warnings.iter().for_each(|warning| observer.tell(&Event::Warning(warning)));
        let rounding = (model, promise.numerics);
        let mixed = mixed_arithmetic(&plan, &seats, members, rounding, device)?;
        mixed.iter().for_each(|warning| observer.tell(&Event::Warning(warning)));
        let mut idle = planner::idle(&input(&promise), &plan);
        idle.extend(unable);
        idle.extend(left_out(members, request));
        Ok(Chosen { promise, chunk, plan, seats, memories, idle })
    }
}

impl With<'_> {
    /// Whether there would be a plan if no other model was loaded.
    ///
    /// # Errors
    /// As [`With::plan`], but for refusals.
    pub(crate) async fn fits_alone(
        &self,
        members: &[Member],
        request: &PlanRequest,
        promise: Promise,
    ) -> Result<bool, Error> {
        let room = Room { whole: true, ..self.room };
        let alone = With { room, probing: Probing::Strangers, observer: &Quiet, ..*self };
        match alone.plan(members, request, promise).await {
            Ok(_) => Ok(true),
            Err(Error::Plan(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Members that are there and were no candidates.
fn left_out(members: &[Member], request: &PlanRequest) -> Vec<Idle> {
    let there = members.iter().filter(|member| member.is_held());
    let excluded = there.filter(|member| request.exclude.iter().any(|name| name == member.name()));
    let idle = |member: &Member| Idle {
        device: member.name().to_owned(),
        why: match () {
            () if member.is_leaving() => Why::Leaving,
            () if member.is_draining() => Why::Draining,
            () => Why::Excluded,
        },
    };
    excluded.map(idle).collect()
}

/// The first plan that fits, with prompt steps as large as was `asked`, or else as pays most; what is
/// promised by it, and how prompts are cut.
fn fitting(
    plan: impl Fn(&Promise) -> Result<Plan, Refusal>,
    promise: Promise,
    asked: Option<NonZeroUsize>,
    seats: &[Seat],
) -> Result<(Plan, Promise, Chunk), Box<Refusal>> {
    if let Some(rows) = asked {
        return Ok((plan(&promise)?, promise, Chunk::exactly(rows.get())));
    }
    let own = |stage: &PlannedStage| seats.get(stage.device_index) == Some(&Seat::Master);
    let mut refusal = None;
    for (most, only_alone) in chunk::bounds(promise.context, seats.contains(&Seat::Master)) {
        let promise = Promise { chunk: most, ..promise };
        match plan(&promise) {
            Ok(plan) if plan.stages.iter().all(own) => {
                return Ok((plan, promise, Chunk::exactly(most)));
            }
            Ok(_) if only_alone => {}
            Ok(plan) => {
                let chunk = Chunk::over_stages(plan.stages.len(), most);
                return Ok((plan, promise, chunk));
            }
            Err(refused) => refusal = Some(refused),
        }
    }
    Err(Box::new(refusal.expect("the last bound gives a plan or a refusal")))
}

/// Says so if stages of the plan round in different ways, which the same prompt's answer may show. The master computes
/// on `device`.
fn mixed_arithmetic(
    plan: &Plan,
    seats: &[Seat],
    members: &[Member],
    (model, numerics): (&Model, Numerics),
    device: DeviceKind,
) -> Result<Option<String>, Error> {
    if plan.stages.len() < 2 {
        return Ok(None);
    }
    let own = cake_engine::arithmetic_of(device)?;
    let stages = plan.stages.iter().filter_map(|stage| {
        let arithmetic = match seats.get(stage.device_index)? {
            Seat::Master => own,
            seat @ Seat::Worker { .. } => seat.device(members)?.1.arithmetic.as_deref()?,
            Seat::Imagined => return None,
        };
        Some((stage.device.as_str(), arithmetic))
    });
    let stages: Vec<_> = stages.collect();
    let kinds = model.matrix_kinds();
    let agree = |numerics| {
        let mut pairs = stages.windows(2);
        pairs.all(|pair| cake_engine::same_bits(pair[0].1, pair[1].1, numerics, kinds))
    };
    if agree(numerics) {
        return Ok(None);
    }
    let names = stages.iter().map(|(device, arithmetic)| format!("{device}: {arithmetic}"));
    let remedy = match agree(Numerics::Exact) {
        true => "; with --numerics exact they would round alike",
        false => "",
    };
    Ok(Some(format!(
        "processors of different kinds round in different ways ({}): the same prompt may be answered in \
         other words when layers move between them{remedy}",
        names.collect::<Vec<_>>().join(", ")
    )))
}
