//! From a plan whose blobs are in place to a running pipeline, and how workers put it away again.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cake_checkpoint::{Digest, LayerRange, MappedTensor};
use cake_engine::{EngineOptions, Stage};
use futures_util::future::join_all;
use tokio::task::{block_in_place, spawn_blocking};

use super::Error;
use super::candidates::Seat;
use super::event::Event;
use super::facts::PushReport;
use super::prepared::Prepared;
use crate::cluster::{self, Member};
use crate::generate::Ends;
use crate::model::Model;
use crate::pipeline::{self, Opening, Pipeline, StageSpec};
use crate::place::OwnWeights;
use crate::planner::PlannedStage;
use crate::state::State;

/// How long workers that are not needed have to put away what they hold: they have nothing to end.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// The master's own layers, loaded.
type Local = Option<(Stage, LayerRange)>;

/// What the master loads of a model beside its layers: embedding, norm and head.
struct EndsLoader {
    model: Model,
    own_weights: Arc<OwnWeights>,
    options: EngineOptions,
    state: State,
    /// Bytes that the master's own stage allocates once it computes.
    later: u64,
}

impl Prepared {
    /// Loads everything: the master's own layers first, since memory may be short for them, then its ends and the stages of the
    /// workers; these two beside each other if this machine has room for both, as workers may be processes of it, and if
    /// nothing of it is still to be measured. Blobs found damaged on workers are pushed once more, which `pushed` then
    /// includes.
    ///
    /// # Errors
    /// [`Error`]; whatever was loaded is put away then.
    pub(crate) async fn load(&self, pushed: &mut PushReport) -> Result<(Pipeline, Ends), Error> {
        let local = block_in_place(|| self.local_stage())?;
        let loader = EndsLoader {
            model: self.model.clone(),
            own_weights: self.own_weights.clone(),
            options: self.engine_options(),
            state: self.state.clone(),
            // What the master's own stage keeps of sequences may still be without pages.
            later: self.local_plan().map_or(0, |stage| stage.memory.beside_weights()),
        };
        let stages = self.remotes().into_iter().map(|(stage, _)| stage.memory.total());
        let free = cake_platform::default_budget(0).bytes;
        let is_known = self.own_weights.has_seen(self.model.head_encoding());
        let together = is_known && has_room(loader.bytes(), stages, free);
        let (pipeline, ends) = if together {
            let ends = spawn_blocking(move || loader.load());
            // Both are waited for: nothing is loading any more once this has failed.
            let (pipeline, ends) = tokio::join!(self.open_with(local, pushed), ends);
            (pipeline?, ends.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())))
        } else {
            (self.open_with(local, pushed).await?, block_in_place(|| loader.load()))
        };
        match ends {
            Ok(ends) => Ok((pipeline, ends)),
            Err(error) => {
                spawn_blocking(move || pipeline.close()).await.ok();
                Err(error)
            }
        }
    }

    /// Loads the stages and connects them, as [`Prepared::load`] does, for a master that keeps its ends.
    pub(crate) async fn open(&self, pushed: &mut PushReport) -> Result<Pipeline, Error> {
        let local = block_in_place(|| self.local_stage())?;
        self.open_with(local, pushed).await
    }

    async fn open_with(&self, local: Local, pushed: &mut PushReport) -> Result<Pipeline, Error> {
        match self.open_once(local).await {
            Err(Error::Open(pipeline::OpenError::Corrupt { worker, count })) => {
                self.tell(&Event::Damaged { worker: &worker, blobs: count });
                pushed.repair(&self.push().await?);
                self.open_once(block_in_place(|| self.local_stage())?).await
            }
            result => result,
        }
    }

    async fn open_once(&self, local: Local) -> Result<Pipeline, Error> {
        if let Some(monitor) = &self.monitor {
            monitor.metrics.pipeline();
        }
        let mut remotes = Vec::new();
        let chain = self.remotes();
        for (index, &(stage, member)) in chain.iter().enumerate() {
            let way = |(_, next): &(_, &Member)| {
                (member.offer.instance.clone(), next.offer.instance.clone())
            };
            let relay = chain.get(index + 1).is_some_and(|next| self.cut.contains(&way(next)));
            let mut blobs: Vec<Digest> = Vec::new();
            for layer in stage.layers.iter() {
                blobs.push(self.manifests.get(layer).await?.name());
            }
            let device = self.device_name(stage);
            let (layers, planned_bytes) = (stage.layers, stage.memory.total());
            let hop_seconds = stage.hop_seconds;
            remotes.push(StageSpec {
                member,
                device,
                layers,
                blobs,
                planned_bytes,
                hop_seconds,
                relay,
            });
        }
        Ok(pipeline::open(Opening {
            generation: self.state.next_generation()?,
            model: &self.model.checkpoint.config,
            promise: self.chosen.promise,
            step_seconds: self.plan().step_seconds,
            local,
            remotes,
        })
        .await?)
    }

    /// What of the plan the master runs itself.
    pub(crate) fn local_plan(&self) -> Option<&PlannedStage> {
        let own = |stage: &&PlannedStage| {
            self.chosen.seats.get(stage.device_index) == Some(&Seat::Master)
        };
        self.chosen.plan.stages.iter().find(own)
    }

    /// The master's own layers: mapped from the checkpoint, copied, or encoded into memory, which takes its time.
    fn local_stage(&self) -> Result<Local, Error> {
        let Some(PlannedStage { layers, memory, .. }) = self.local_plan() else {
            return Ok(None);
        };
        let mut weights: HashMap<String, MappedTensor> = HashMap::new();
        for layer in layers.iter() {
            weights.extend(self.model.mapped_layer(layer)?);
        }
        let tensors = weights.iter_mut().map(|(name, tensor)| (name.clone(), tensor)).collect();
        let later = memory.beside_weights();
        let offered = memory.free().saturating_add(later);
        self.own_weights.settle(tensors, offered, later, self.threads)?;
        keep_tuning(&self.state);
        let find = |name: &str| weights.get(name).cloned();
        let config = &self.model.checkpoint.config;
        let stage = Stage::load(config, *layers, &find, &self.engine_options())?;
        Ok(Some((stage, *layers)))
    }

    /// Lets workers that are held but have no part in the plan put away what rests of the last one, all at a time.
    /// Call once the plan runs: nobody says anything to them any more. May be dropped before it is over.
    pub(crate) async fn release_unused(&self) {
        let used: Vec<&str> = self.remotes().iter().map(|(_, member)| member.name()).collect();
        let unused = self.members.iter().filter(|member| !used.contains(&member.name()));
        let release = async |member: &Member| {
            let mut client = member.client.clone();
            let call = client.release(cake_proto::wire::ReleaseRequest { forget: true });
            // It is not needed: what it keeps in memory, it lets go with this master.
            let released =
                cluster::within_time(RELEASE_LIMIT, member.name(), "put away its blobs", call);
            if let Err(error) = released.await {
                tracing::warn!(%error, "a worker without layers keeps what it held");
            }
        };
        join_all(unused.filter(|member| member.is_held()).map(release)).await;
    }

    /// Lets every worker of the plan unload; returns their stages with the peak memory they tell.
    pub(crate) async fn release(&self) -> Vec<(&PlannedStage, u64)> {
        let mut peaks = Vec::new();
        for (stage, member) in self.remotes() {
            let mut client = member.client.clone();
            let call = client.release(cake_proto::wire::ReleaseRequest::default());
            if let Ok(reply) = cluster::within(member.name(), "unload", call).await {
                peaks.push((stage, reply.peak_bytes));
            }
        }
        peaks
    }

    pub(crate) fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            kv: self.chosen.promise.kv,
            kv_blocks: self.chosen.promise.kv_blocks(),
            block_positions: cake_engine::BLOCK_POSITIONS,
            state_slots: self.chosen.promise.state_slots,
            max_positions: self.chosen.promise.context,
            threads: self.threads,
            device: self.device,
            numerics: self.chosen.promise.numerics,
            tally: None,
        }
    }
}

impl EndsLoader {
    /// Bytes that it takes at most, and that the master's own stage takes after it.
    fn bytes(&self) -> u64 {
        self.model.ends_bytes().saturating_add(self.later)
    }

    /// Maps, copies or encodes them, which takes its time.
    fn load(&self) -> Result<Ends, Error> {
        let mut weights = self.model.ends()?;
        let whole = weights.read_whole();
        self.own_weights.settle(whole, u64::MAX, self.later, self.options.threads)?;
        self.own_weights.note_seen(self.model.head_encoding());
        keep_tuning(&self.state);
        self.own_weights.keep(weights.embedding.parts.iter())?;
        Ok(Ends::new(&self.model.checkpoint.config, weights, &self.options)?)
    }
}

/// Whether the ends of so many bytes fit into `free` ones beside those of all `stages`, wherever these are.
fn has_room(ends: u64, stages: impl Iterator<Item = u64>, free: u64) -> bool {
    stages.fold(ends, u64::saturating_add) <= free
}

/// Remembers what loading measured of the processor.
fn keep_tuning(state: &State) {
    if let Err(error) = cake_stage::keep_tuning(state.directory(), &cake_platform::processor()) {
        tracing::warn!(%error, "what was measured of the processor will be measured again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_have_room_beside_all_stages_or_wait_for_them() {
        let beside = |stages: &[u64], free| has_room(10, stages.iter().copied(), free);
        assert!(beside(&[5, 7], 22) && !beside(&[5, 7], 21), "all of them count");
        assert!(beside(&[], 10) && !beside(&[u64::MAX], u64::MAX - 1), "and no sum is too large");
    }
}
