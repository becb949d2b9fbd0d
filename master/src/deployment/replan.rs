//! Planning again: after a loss, before a worker leaves, and for losses that may come.
use std::sync::Arc;

use super::candidates::{Room, Seat};
use super::choice::{Chosen, With};
use super::facts::Copies;
use super::prepared::Prepared;
use super::rates::Probing;
use super::trust::LeftOut;
use super::{Error, PlanRequest, parts};
use crate::cluster::{self, Member};
use crate::distributor::{self, Manifests, Progress, WorkerProgress};
use crate::model::Model;
use crate::planner::{Pin, Plan, PlannedStage, Refusal};
use crate::sizing::LOCAL;
use crate::wonder::{self, Foreseen, Speed};

/// How much slower than the fastest the plan after a loss may be, if less must be pushed for it: answers
/// wait for the push.
const HURRY: f64 = 0.5;
/// Another plan is worth the change if it is predicted to take at most this part of the present one's time.
pub(super) const WORTH: f64 = 0.85;

impl Prepared {
    /// Finds out who is there still, and what they offer; returns the names of those that are slow to say.
    pub(crate) async fn refresh(&mut self) -> Vec<String> {
        cluster::refresh(&mut self.members).await
    }

    /// Plans again, for the workers that are still there but those that are left out. What was promised stays, and
    /// so does what weights are turned into: answers go on as they began.
    pub(crate) async fn replan(
        &mut self,
        request: &PlanRequest,
        left_out: &LeftOut,
    ) -> Result<(), Error> {
        let leaving = self.leaving();
        let LeftOut { set_aside, avoided } = left_out;
        // Better with those that would like to leave, or were lost lately, than not at all.
        let mut tries = vec![[set_aside.as_slice(), avoided, &leaving].concat()];
        for fewer in [[set_aside.as_slice(), &leaving].concat(), set_aside.clone()] {
            if tries.last().is_some_and(|last| last.len() > fewer.len()) {
                tries.push(fewer);
            }
        }
        let mut refused = None;
        for without in &tries {
            match self.plan_without(request, without, HURRY).await {
                Err(Error::Plan(refusal)) => refused = Some(refusal),
                chosen => return self.take(chosen?),
            }
        }
        let refusal = refused.expect("something was tried");
        let may_share = matches!(refusal, Refusal::DoesNotFit { .. });
        match may_share && self.replan_in_parts(request, set_aside).await? {
            true => Ok(()),
            false => Err(Error::Plan(refusal)),
        }
    }

    /// Plans for a model of which nothing is loaded yet, without those that are left out. Other models make room before one of
    /// these is used: a device that its owner wants free, or that was lost lately.
    ///
    /// # Errors
    /// [`Error::Crowded`] if there would be a plan without other models; no plan at all.
    pub(crate) async fn plan_around(
        &mut self,
        request: &PlanRequest,
        left_out: &LeftOut,
    ) -> Result<(), Error> {
        let mut tries = vec![[left_out.all(), self.leaving()].concat(), left_out.set_aside.clone()];
        tries.dedup();
        for without in tries {
            let refusal = match self.plan_without(request, &without, HURRY).await {
                Err(Error::Plan(refusal)) => refusal,
                chosen => return self.take(chosen?),
            };
            if self.account.has_others() {
                let mut request = self.without(request, &without);
                request.pins.clear(); // A plan does without, where it has to.
                let with = self.with((&self.model, &self.manifests), HURRY);
                if with.fits_alone(&self.members, &request, self.chosen.promise).await? {
                    return Err(Error::Crowded(refusal));
                }
            }
        }
        self.replan(request, left_out).await
    }

    /// Plans with layers in finer parts, for those that are there but these: who is left may have no room for a layer as
    /// they are. Answers go on as they began, since parts of a layer make the same numbers. False if that does not fit,
    /// either.
    async fn replan_in_parts(
        &mut self,
        request: &PlanRequest,
        without: &[String],
    ) -> Result<bool, Error> {
        let checkpoint = self.model.checkpoint.clone();
        for other in parts::finer(&checkpoint, request) {
            let model = self.model.with_checkpoint(other);
            let manifests = Manifests::open(model.clone(), self.state.digests()?)?;
            let other = (&model, &Arc::new(manifests));
            match self.plan_of(other, request, without, HURRY).await {
                Err(Error::Plan(_)) => {}
                chosen => {
                    self.take(chosen?)?;
                    self.manifests = other.1.clone();
                    self.model = model;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Members that wait to be let go, and those with layers of which their owner wants that they have none.
    pub(crate) fn leaving(&self) -> Vec<String> {
        let is_drained = |member: &Member| member.is_draining() && self.has_layers(member.name());
        let leaving = self.members.iter().filter(|it| it.is_leaving() || is_drained(it));
        leaving.map(|member| member.name().to_owned()).collect()
    }

    /// Members of which their owner wants that they have no layers.
    pub(crate) fn draining(&self) -> Vec<String> {
        let draining = self.members.iter().filter(|member| member.is_draining());
        draining.map(|member| member.name().to_owned()).collect()
    }

    /// Lets go of those that wait for it and have no layers any more.
    pub(crate) fn let_leave(&self) {
        let needed: Vec<&str> = self.remotes().iter().map(|(_, member)| member.name()).collect();
        let leaving = self.members.iter().filter(|member| member.is_leaving());
        leaving.filter(|member| !needed.contains(&member.name())).for_each(Member::let_go);
    }

    /// Another plan in which those that leave have no layers, its blobs brought to where they are missing while
    /// the present one works.
    pub(crate) async fn plan_leave(
        &self,
        request: &PlanRequest,
        left_out: &LeftOut,
    ) -> Result<Chosen, Error> {
        let without = [self.leaving(), self.draining(), left_out.set_aside.clone()].concat();
        let chosen = self.plan_without(request, &without, HURRY).await?;
        self.bring(&chosen).await?;
        Ok(chosen)
    }

    /// The same for a plan that is so much faster with those that are there now that it is worth the change, if
    /// there is one.
    pub(crate) async fn plan_faster(
        &self,
        request: &PlanRequest,
        left_out: &LeftOut,
    ) -> Result<Option<Chosen>, Error> {
        let chosen = self.plan_without(request, &left_out.all(), 0.0).await?;
        if chosen.plan.kept || same_stages(&chosen.plan, self.plan()) {
            return Ok(None);
        }
        if chosen.plan.cost_seconds > WORTH * self.present_cost(request).await {
            return Ok(None);
        }
        self.bring(&chosen).await?;
        Ok(Some(chosen))
    }

    /// What the present plan costs by what is known now: devices are known better once they have worked, and two
    /// plans are compared by the same figures.
    async fn present_cost(&self, request: &PlanRequest) -> f64 {
        let known = self.known_now(request).await;
        known.map_or(self.plan().cost_seconds, |plan| plan.cost_seconds)
    }

    /// The present plan with what is predicted of it now, if it could still be made.
    async fn known_now(&self, request: &PlanRequest) -> Option<Plan> {
        let stages = self.plan().stages.iter();
        let pin = |stage: &PlannedStage| Pin { device: stage.device.clone(), layers: stage.layers };
        let pinned = PlanRequest { pins: stages.map(pin).collect(), ..request.clone() };
        let now = self.plan_without(&pinned, &[], 0.0).await.ok()?.plan;
        same_stages(&now, self.plan()).then_some(now)
    }

    /// What one more worker would change, of this name and with so many bytes. Moves nothing.
    ///
    /// # Errors
    /// [`wonder::Error::Refused`].
    pub(crate) async fn foresee(
        &self,
        request: &PlanRequest,
        left_out: &LeftOut,
        imagined: (String, u64),
    ) -> Result<Foreseen, wonder::Error> {
        let known = self.known_now(request).await;
        let before = Speed::of(known.as_ref().unwrap_or(self.plan()));
        let wished = PlanRequest { what_if: vec![imagined], ..request.clone() };
        let planned = self.plan_without(&wished, &left_out.all(), 0.0).await;
        let chosen = planned.map_err(|error| wonder::Error::Refused(error.to_string()))?;
        let is_imagined =
            |stage: &PlannedStage| chosen.seats.get(stage.device_index) == Some(&Seat::Imagined);
        let stages = chosen.plan.stages.iter();
        Ok(Foreseen {
            used: stages.clone().any(is_imagined),
            before,
            after: Speed::of(&chosen.plan),
            stages: stages
                .map(|it| wonder::Stage { device: it.device.clone(), layers: it.layers })
                .collect(),
        })
    }

    /// Takes what this plan needs of the devices before anything moves, and gives nothing back of what the present one has until
    /// [`Prepared::adopt`].
    ///
    /// # Errors
    /// [`Error::Shared`] if other models have taken it since the plan was made.
    pub(crate) fn reserve(&self, chosen: &Chosen) -> Result<(), Error> {
        Ok(self.account.take_either(&chosen.shares())?)
    }

    /// Leaves to other models what the present plan takes of the devices, until it is planned again: of those that lost
    /// one device, the one that fits what is left shall have it.
    pub(crate) fn give_back(&self) {
        self.account.give_back();
    }

    /// Makes this the plan, where no stage of another one is loaded.
    fn take(&mut self, chosen: Chosen) -> Result<(), Error> {
        self.account.take(&chosen.shares())?;
        self.chosen = chosen;
        Ok(())
    }

    /// Makes this the plan for which room is reserved, now that its blobs are there and nothing is computed any more.
    pub(crate) async fn adopt(&mut self, chosen: Chosen) {
        self.release().await;
        self.account.keep(&chosen.shares());
        self.chosen = chosen;
    }

    /// Brings, for each worker with layers, what the plan without it would have to push.
    pub(crate) async fn bring_copies(
        &self,
        request: &PlanRequest,
        left_out: &LeftOut,
    ) -> Result<Copies, Error> {
        let used: Vec<String> =
            self.remotes().iter().map(|(_, member)| member.name().to_owned()).collect();
        let mut copies = Copies { of: used.len(), ..Copies::default() };
        for name in used {
            let without = [left_out.all(), vec![name]].concat();
            match self.plan_without(request, &without, HURRY).await {
                Ok(chosen) => {
                    copies.pushed_bytes += self.bring(&chosen).await?;
                    copies.covered += 1;
                }
                // There is no room for a loss of it.
                Err(Error::Plan(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(copies)
    }

    /// Brings blobs of another plan to where they are missing, beside the work; returns how many bytes.
    async fn bring(&self, chosen: &Chosen) -> Result<u64, Error> {
        let assignments = self.assignments_of(chosen);
        distributor::check_disk(&assignments, &self.manifests)?;
        let workers = assignments.iter().map(|one| {
            let bytes = one.layers.iter().map(|layer| self.manifests.blob_bytes(layer)).sum();
            WorkerProgress::new(one.member.name(), bytes)
        });
        let progress = Arc::new(Progress { workers: workers.collect() });
        let pushed = distributor::push_all(&assignments, &self.manifests, &progress).await?;
        Ok(pushed.iter().map(|one| one.pushed_bytes).sum())
    }

    /// The plan for those that are there but these, with this slack. Members keep their places.
    async fn plan_without(
        &self,
        request: &PlanRequest,
        without: &[String],
        slack: f64,
    ) -> Result<Chosen, Error> {
        self.plan_of((&self.model, &self.manifests), request, without, slack).await
    }

    /// The same of this model, which may have its layers in other parts.
    async fn plan_of(
        &self,
        model: (&Model, &Arc<Manifests>),
        request: &PlanRequest,
        without: &[String],
        slack: f64,
    ) -> Result<Chosen, Error> {
        let mut request = self.without(request, without);
        let with = self.with(model, slack);
        let promise = self.chosen.promise;
        match with.plan(&self.members, &request, promise).await {
            // What layers were pinned to is gone, perhaps.
            Err(Error::Plan(_)) if !request.pins.is_empty() => {
                request.pins.clear();
                with.plan(&self.members, &request, promise).await
            }
            chosen => chosen,
        }
    }

    /// What is asked of a plan for those that are there but these.
    fn without(&self, request: &PlanRequest, without: &[String]) -> PlanRequest {
        let names: Vec<&str> = self.members.iter().map(Member::name).collect();
        let there = |name: &str| name == LOCAL || names.contains(&name);
        let mut request = request.clone();
        request.exclude.retain(|name| there(name));
        request.pins.retain(|pin| there(&pin.device) && !without.contains(&pin.device));
        let gone = self.members.iter().filter(|member| !member.is_held());
        let gone = gone.map(|member| member.name().to_owned()).chain(without.iter().cloned());
        request.exclude.extend(gone);
        if !self.alone {
            // Without workers the master would take everything, which it did not do before.
            request.local_memory = Some(request.local_memory.unwrap_or(0));
        }
        request
    }

    /// What a plan for this model is made with.
    fn with<'a>(
        &'a self,
        (model, manifests): (&'a Model, &'a Arc<Manifests>),
        slack: f64,
    ) -> With<'a> {
        With {
            model,
            manifests,
            state: &self.state,
            device: self.device,
            threads: self.threads,
            slack,
            // Answers wait, and who computes is not timed beside that.
            probing: Probing::Strangers,
            room: Room { account: &self.account, whole: false },
            observer: &*self.observer,
        }
    }
}

/// Whether the same devices have the same layers in both.
fn same_stages(one: &Plan, other: &Plan) -> bool {
    let stages = |plan: &Plan| {
        plan.stages.iter().map(|stage| (stage.device.clone(), stage.layers)).collect::<Vec<_>>()
    };
    stages(one) == stages(other)
}
