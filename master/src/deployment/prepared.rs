//! A plan with all that it was made of: the model, the workers held for it, and who has which part.
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use cake_checkpoint::units::format_bytes;
use cake_engine::{DeviceKind, DeviceMemory};
use cake_stage::Account;

use super::candidates::Seat;
use super::choice::Chosen;
use super::event::{Event, Observer};
use super::facts::{KvFacts, Note, Outlook, PushAhead};
use super::widths::LayerLoss;
use crate::chunk::Chunk;
use crate::cluster::{self, Member, Memory, Offer, Whereabouts};
use crate::distributor::{self, Assignment, Manifests};
use crate::model::Model;
use crate::monitor::{Device, DeviceState, Monitor, Planned};
use crate::place::OwnWeights;
use crate::planner::{Plan, PlannedStage};
use crate::present::{Duty, Present};
use crate::sizing::{self, OwnMemory, Promise};
use crate::state::State;

/// A checkpoint, the workers held for it, and the plan.
pub(crate) struct Prepared {
    /// The model.
    pub model: Model,
    /// What it takes of the devices.
    pub(super) account: Account<Memory>,
    pub(crate) chosen: Chosen,
    /// Whether there were no workers from the start that could have layers.
    pub(crate) alone: bool,
    pub(crate) members: Vec<Member>,
    pub(crate) manifests: Arc<Manifests>,
    pub(crate) state: State,
    /// What the master computes with.
    pub(crate) device: DeviceKind,
    pub(crate) threads: usize,
    pub(crate) own_weights: Arc<OwnWeights>,
    /// What each layer loses by each encoding, where that was asked or decided about.
    pub(crate) losses: Option<Vec<LayerLoss>>,
    /// Members that joined and are not used, each with why.
    pub(crate) missing: Vec<String>,
    /// Whether weights are missing, so that it can be planned and nothing else.
    pub(crate) headers_only: bool,
    /// What people should know before it goes on, until it has been told.
    pub(super) notes: Mutex<Vec<Note>>,
    /// Ways between two processes of workers that let nothing through, by their instances: from, to.
    pub(crate) cut: HashSet<(String, String)>,
    /// Who wants to know of pushes.
    pub monitor: Option<Arc<Monitor>>,
    /// Who is told what happens.
    pub(super) observer: Arc<dyn Observer>,
}

impl Prepared {
    /// What was promised.
    pub(crate) fn promise(&self) -> &Promise {
        &self.chosen.promise
    }

    /// How prompts are cut into steps.
    pub(crate) fn chunk(&self) -> Chunk {
        self.chosen.chunk
    }

    /// The plan.
    pub(crate) fn plan(&self) -> &Plan {
        &self.chosen.plan
    }

    /// Takes workers that came back. May be dropped at any time.
    pub(crate) async fn rejoin(&mut self, cluster: &Whereabouts) {
        let (membership, expected) = (&cluster.membership, cluster.expected());
        cluster::rejoin(&mut self.members, membership, &expected, &master_name()).await;
    }

    /// The stages that workers run, in chain order. A stage is a worker's by its place among the
    /// candidates, whatever its name.
    pub(crate) fn remotes(&self) -> Vec<(&PlannedStage, &Member)> {
        self.remotes_of(&self.chosen)
    }

    /// The same of another plan.
    fn remotes_of<'a>(&'a self, chosen: &'a Chosen) -> Vec<(&'a PlannedStage, &'a Member)> {
        let stages = chosen.plan.stages.iter();
        let remote = |stage: &'a PlannedStage| match chosen.seats.get(stage.device_index)? {
            Seat::Worker { member, .. } => self.members.get(*member),
            Seat::Master | Seat::Imagined => None,
        };
        stages.filter_map(|stage| Some((stage, remote(stage)?))).collect()
    }

    /// Name of the device on which a worker runs this stage; empty if the worker does not offer it any more, which then
    /// refuses to load a stage there.
    pub(crate) fn device_name(&self, stage: &PlannedStage) -> &str {
        let seat = self.chosen.seats.get(stage.device_index);
        let device = seat.and_then(|seat| seat.device(&self.members));
        device.map_or("", |(_, device)| &device.name)
    }

    /// Whether a worker that does not exist has layers in the plan.
    pub(crate) fn uses_imagined(&self) -> bool {
        let seat = |stage: &PlannedStage| self.chosen.seats.get(stage.device_index).copied();
        self.plan().stages.iter().any(|stage| seat(stage) == Some(Seat::Imagined))
    }

    /// Whether a member of this name has layers.
    pub(crate) fn has_layers(&self, name: &str) -> bool {
        self.plan().stages.iter().any(|stage| stage.device == name)
    }

    /// The workers that are held, for people who watch the service.
    pub(crate) fn present(&self) -> Vec<Present> {
        let held = self.members.iter().filter(|member| member.is_held());
        held.map(|member| self.present_one(member)).collect()
    }

    fn present_one(&self, member: &Member) -> Present {
        let Offer { worker_id, name, system, processor, version, .. } = member.offer.clone();
        let duty = match () {
            () if member.is_leaving() => Duty::Leaving,
            () if member.is_draining() => Duty::Draining,
            () if self.has_layers(&name) => Duty::Layers,
            () => Duty::Spare,
        };
        let idle = self.chosen.idle.iter().find(|idle| idle.device == name);
        let condition = member.condition();
        Present {
            why: idle.filter(|_| duty == Duty::Spare).map(|idle| idle.why.to_string()),
            duty,
            worker_id,
            name,
            budget_bytes: member.offer.budget_bytes(),
            system,
            processor,
            threads: member.offer.threads,
            version,
            devices: member.offer.devices.iter().map(|device| device.name.clone()).collect(),
            free_disk_bytes: member.offer.free_disk_bytes,
            stored_bytes: member.offer.stored_bytes,
            battery: condition.battery,
            celsius: condition.celsius,
        }
    }

    /// Which processes of workers are held but those of these names: one that was started again may offer
    /// something else.
    pub(crate) fn instances(&self, without: &[String]) -> Vec<String> {
        let is_without = |member: &&Member| without.iter().any(|name| name == member.name());
        let held = self.members.iter().filter(|member| member.is_held() && !is_without(member));
        held.map(|member| member.offer.instance.clone()).collect()
    }

    /// The plan, for people who watch the service.
    pub(crate) fn planned(&self) -> Planned {
        let device = |stage: &PlannedStage| {
            let seat = self.chosen.seats.get(stage.device_index);
            let local = seat == Some(&Seat::Master);
            let member = seat.and_then(|seat| seat.device(&self.members));
            Device {
                name: stage.device.clone(),
                worker_id: member.map(|(member, _)| member.offer.worker_id.clone()),
                local,
                state: DeviceState::Waiting,
                layers: stage.layers,
                direct: true,
                memory: stage.memory,
                hop_seconds: (!local).then_some(stage.hop_seconds),
            }
        };
        Planned {
            encoding: self.model.encoding(),
            context: self.chosen.promise.context,
            parallel: self.chosen.promise.parallel,
            layers: self.model.checkpoint.config.layers.len(),
            parts_of: self.parts_of(),
            devices: self.chosen.plan.stages.iter().map(device).collect(),
            members: self.present(),
        }
    }

    /// The workers of the plan with their layers, in chain order.
    pub(crate) fn assignments(&self) -> Vec<Assignment<'_>> {
        self.assignments_of(&self.chosen)
    }

    /// The same of another plan.
    pub(crate) fn assignments_of<'a>(&'a self, chosen: &'a Chosen) -> Vec<Assignment<'a>> {
        let remotes = self.remotes_of(chosen).into_iter();
        remotes.map(|(stage, member)| Assignment { member, layers: stage.layers }).collect()
    }

    /// Blob bytes that workers are not known to hold, per assignment.
    pub(crate) fn missing_bytes(&self) -> Vec<u64> {
        let assignments = self.assignments();
        assignments.iter().map(|one| distributor::missing_bytes(one, &self.manifests)).collect()
    }

    /// Why this machine may not have room for what the master does itself, if its part was not counted when the
    /// plan was made.
    pub(super) fn own_shortfall(&self) -> Option<String> {
        let local = self.local_plan().map(|stage| stage.memory);
        let counted = local.is_some_and(|memory| memory.overhead > 0);
        if counted || self.device.memory() == DeviceMemory::Own {
            return None; // Of memory that is not the system's nobody knows what is free.
        }
        let ends = sizing::ends_bytes(&self.model, self.promise());
        let free = cake_platform::free_memory();
        own_shortfall(local.map_or(0, |memory| memory.total()), ends, &OwnMemory::of(free))
    }

    /// What is to be expected of the plan.
    pub(crate) fn outlook(&self) -> Outlook<'_> {
        let remotes = self.remotes().into_iter().zip(self.missing_bytes());
        let lacking = remotes.filter(|(_, missing_bytes)| *missing_bytes > 0);
        let pushes = lacking.map(|((stage, member), missing_bytes)| PushAhead {
            device: &stage.device,
            missing_bytes,
            seconds: stage.push_seconds,
            free_disk_bytes: member.offer.free_disk_bytes,
        });
        Outlook {
            plan: self.plan(),
            idle: &self.chosen.idle,
            encoding: self.model.is_encoded().then(|| self.model.encoding()),
            ends_bytes: self.model.ends_bytes(),
            context: self.promise().context,
            parallel: self.promise().parallel,
            kv: self.kv(),
            parts_of: self.parts_of(),
            pushes: pushes.collect(),
        }
    }

    /// How keys and values are kept, if the model has such.
    pub(crate) fn kv(&self) -> Option<KvFacts> {
        KvFacts::of(&self.model.checkpoint.config, self.promise())
    }

    /// How many layers the model has, if what is planned is parts of them.
    pub(crate) fn parts_of(&self) -> Option<usize> {
        let checkpoint = &self.model.checkpoint;
        let whole = checkpoint.whole().layers.len();
        (whole != checkpoint.config.layers.len()).then_some(whole)
    }

    /// Tells whoever observes.
    pub(super) fn tell(&self, event: &Event<'_>) {
        self.observer.tell(event);
    }

    /// What people should know of whom the plan is made for, if they were not told yet.
    pub(crate) fn take_notes(&self) -> Vec<Note> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What does not fit, if something does not: `layers` bytes for the master's own layers and `ends` for the rest.
fn own_shortfall(layers: u64, ends: u64, own: &OwnMemory) -> Option<String> {
    let need = layers.saturating_add(ends);
    (need > own.bytes).then(|| {
        format!(
            "the master's own part takes {} (embedding and head {}), and this machine can give {} ({}): it may \
             have to swap, or be killed",
            format_bytes(need), format_bytes(ends), format_bytes(own.bytes), own.why
        )
    })
}

/// Name that workers tell other masters while this one holds them.
pub(crate) fn master_name() -> String {
    format!("{} (process {})", cake_platform::host_name(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_that_do_not_fit_beside_what_is_free_are_told() {
        let own = OwnMemory::of(4 << 30);
        assert_eq!(own_shortfall(1 << 30, 2 << 30, &own), None);
        let said = own_shortfall(1 << 30, 3 << 30, &own).expect("too much");
        assert!(said.contains("takes 4 GiB (embedding and head 3 GiB)"), "{said}");
        assert!(own_shortfall(u64::MAX, u64::MAX, &own).is_some());
    }
}
