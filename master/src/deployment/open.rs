//! From a plan whose blobs are in place to a running pipeline, and how workers put it away again.
use std::collections::HashMap;
use std::time::Duration;

use cake_checkpoint::{Digest, LayerRange, MappedTensor};
use cake_engine::{EngineOptions, Stage};
use futures_util::future::join_all;
use tokio::task::block_in_place;

use super::Error;
use super::candidates::Seat;
use super::event::Event;
use super::facts::PushReport;
use super::prepared::Prepared;
use crate::cluster::{self, Member};
use crate::generate::Ends;
use crate::pipeline::{self, Opening, Pipeline, StageSpec};
use crate::planner::PlannedStage;

/// How long workers that are not needed have to put away what they hold: they have nothing to end.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

impl Prepared {
    /// Loads the stages and connects them. Blobs found damaged on workers are pushed once more,
    /// which `pushed` then includes.
    pub(crate) async fn open(&self, pushed: &mut PushReport) -> Result<Pipeline, Error> {
        match self.open_once().await {
            Err(Error::Open(pipeline::OpenError::Corrupt { worker, count })) => {
                self.tell(&Event::Damaged { worker: &worker, blobs: count });
                pushed.repair(&self.push().await?);
                self.open_once().await
            }
            result => result,
        }
    }

    async fn open_once(&self) -> Result<Pipeline, Error> {
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
            local: block_in_place(|| self.local_stage())?,
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
    fn local_stage(&self) -> Result<Option<(Stage, LayerRange)>, Error> {
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
        self.settle(tensors, offered, later)?;
        let find = |name: &str| weights.get(name).cloned();
        let config = &self.model.checkpoint.config;
        let stage = Stage::load(config, *layers, &find, &self.engine_options())?;
        Ok(Some((stage, *layers)))
    }

    /// The master's own part: embedding, norm and head. To be called after [`Prepared::open`]: the
    /// layers come first where memory is short.
    pub(crate) fn ends(&self) -> Result<Ends, Error> {
        block_in_place(|| self.load_ends())
    }

    fn load_ends(&self) -> Result<Ends, Error> {
        let mut weights = self.model.ends()?;
        // What the master's own stage keeps of sequences may still be without pages.
        let later = self.local_plan().map_or(0, |stage| stage.memory.beside_weights());
        self.settle(weights.read_whole(), u64::MAX, later)?;
        self.own_weights.keep(weights.embedding.parts.iter())?;
        Ok(Ends::new(&self.model.checkpoint.config, weights, &self.engine_options())?)
    }

    /// Puts tensors where they shall lie.
    fn settle(
        &self,
        tensors: Vec<(String, &mut MappedTensor)>,
        offered: u64,
        later: u64,
    ) -> Result<(), Error> {
        self.own_weights.settle(tensors, offered, later, self.threads)?;
        let directory = self.state.directory();
        if let Err(error) = cake_stage::keep_tuning(directory, &cake_platform::processor()) {
            tracing::warn!(%error, "what was measured of the processor will be measured again");
        }
        Ok(())
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
