//! The RPCs: convert, delegate, convert back. What they delegate to is tested without a network.
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cake_checkpoint::{Encoding, EncodingParseError, ModelSpec};
use cake_engine::LayerProbe;
use cake_proto::client::{PIPELINE_KEY, check_master, check_protocol};
use cake_proto::wire::worker_server::Worker as WorkerRpc;
use cake_proto::{Tag, connect, limits, shut_out, wire};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use tracing::info;

use crate::condition::Told;
use crate::config::{self, Config, DeviceOffer};
use crate::feed;
use crate::lease;
use crate::load::{Load, LoadContext, Outcome};
use crate::membership::Membership;
use crate::push;
use crate::push::blocking;
use crate::reserve::Reserve;
use crate::runtime::Runtime;
use crate::shared::{Held, Shared};
use crate::store::{self, Store};
use crate::tenant::Tenant;
use cake_stage::{OVERHEAD_BYTES, Share, memory_of, stage_scratch_bytes};

/// Events that may wait for a slow reader of a progress stream.
const EVENTS_QUEUED: usize = 16;
/// How long another worker may take to answer when the master asks whether it can be reached.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a worker that leaves looks whether it is let go.
const LET_GO: Duration = Duration::from_millis(20);
/// Most bytes a link probe may ask back.
const PROBE_REPLY_BYTES: u32 = limits::FRAME_BYTES as u32;

type EventStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The service of one worker. Clones share everything.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
}

impl Service {
    /// A service over an open store.
    pub fn new(config: Config, worker_id: String, store: Store, membership: Membership) -> Self {
        Self { shared: Arc::new(Shared::new(config, worker_id, store, membership)) }
    }

    /// Tells the master that this worker would like to leave, and waits until it is let go. Returns at once if
    /// nobody needs it.
    pub async fn leave(&self) {
        if self.shared.runtimes().iter().all(|runtime| runtime.ticket().is_err()) {
            return;
        }
        self.shared.leaving.send_replace(Some("it was asked to stop".to_owned()));
        while self.shared.leases.holder().is_some() {
            tokio::time::sleep(LET_GO).await;
        }
    }

    /// Asks to be let go whenever the device has less than this. Never completes.
    pub async fn keep(&self, reserve: Reserve) {
        reserve.watch(self.shared.leaving.clone()).await;
    }

    /// Drops all stages, and whatever rests, for an orderly end. Call from a thread that may block.
    pub fn clear(&self) {
        self.shared.runtimes().iter().for_each(Runtime::clear);
    }

    /// What is kept for the caller's lease. Refuses a caller of another protocol, one that is not the master, or one that
    /// does not hold the worker.
    fn admit<T>(&self, request: &Request<T>) -> Result<Arc<Tenant>, Status> {
        check_protocol(request.metadata())?;
        check_master(request.extensions())?;
        let lease = self.shared.leases.check(request.metadata())?;
        Ok(self.shared.tenant(&lease).ok_or(lease::Error::NoLease)?)
    }
}

#[tonic::async_trait]
impl WorkerRpc for Service {
    type HoldStream = EventStream<wire::HoldEvent>;
    type PushStream = EventStream<wire::PushEvent>;
    type LoadStream = EventStream<wire::LoadEvent>;
    type StepsStream = EventStream<wire::StepFrame>;

    async fn describe(
        &self,
        request: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::Description>, Status> {
        // No protocol check: a master must be able to learn which version it found.
        if check_master(request.extensions()).is_err() {
            return Ok(Response::new(self.shared.describe_to_peer()));
        }
        let shared = self.shared.clone();
        Ok(Response::new(blocking(move || Ok(shared.describe())).await?))
    }

    async fn hold(
        &self,
        request: Request<wire::HoldRequest>,
    ) -> Result<Response<Self::HoldStream>, Status> {
        check_protocol(request.metadata())?;
        check_master(request.extensions())?;
        let wire::HoldRequest { master_name: mut master, shut_out, beside } = request.into_inner();
        master.truncate(master.floor_char_boundary(64));
        let leaving = self.shared.leaving.subscribe();
        if let Some(why) = &*leaving.borrow() {
            // Not worth another try soon, as a lease that is just ending would be.
            return Err(Status::resource_exhausted(format!("leaving: {why}")));
        }
        let guard = self.shared.leases.acquire(&master, &beside)?;
        self.shared.shut_out(&shut_out).map_err(unreadable)?;
        let misled = self.shared.misled.subscribe();
        let lease = guard.token().to_owned();
        let held = Held::new(self.shared.clone(), guard, master);
        let granted = wire::HoldEvent { lease, ..wire::HoldEvent::default() };
        let granted = tokio_stream::once(Ok(granted));
        // The stream owns the lease: when the connection goes, tonic drops it and the worker is free.
        let state = Some((held, leaving, misled, Told::default()));
        let rest = futures_util::stream::unfold(state, |state| async move {
            let (held, mut leaving, mut misled, mut told) = state?;
            tokio::select! {
                changed = leaving.changed() => changed.ok()?, // What it belongs to is in `held`.
                () = told.changed() => {}
                _ = misled.changed() => {
                    let why = "this worker does not know who is shut out, and lets go of its master";
                    return Some((Err(Status::failed_precondition(why)), None));
                }
            }
            let leaves = leaving.borrow_and_update().is_some();
            Some((Ok(told.event(leaves)), Some((held, leaving, misled, told))))
        });
        Ok(Response::new(Box::pin(granted.chain(rest))))
    }

    async fn probe_compute(
        &self,
        request: Request<wire::ProbeComputeRequest>,
    ) -> Result<Response<wire::ProbeComputeReply>, Status> {
        let tenant = self.admit(&request)?;
        let request = request.into_inner();
        let model = ModelSpec::from_wire(&request.model)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let work = tenant.work.clone().write_owned().await;
        if tenant.runtime.ticket().is_ok() {
            return Err(Status::failed_precondition(
                "a stage is at work here, which nobody times beside",
            ));
        }
        let encoding: Encoding = request
            .encoding
            .parse()
            .map_err(|error: EncodingParseError| Status::invalid_argument(error.to_string()))?;
        let Config { threads, ref devices, .. } = self.shared.config;
        let DeviceOffer { device, budget_bytes } = config::offered(&request.device, devices)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let own = stage_scratch_bytes(device, &model, 1, 1, threads);
        let layers = request.layers.max(1) as usize;
        let shared = self.shared.clone();
        let probe = blocking(move || {
            let _work = work;
            let runtime = &tenant.runtime;
            runtime.clear(); // The probe's scratch memory needs the room.
            let (account, memory) = (runtime.account(), memory_of(device).to_owned());
            let offered = budget_bytes.saturating_sub(OVERHEAD_BYTES);
            let left = offered.saturating_sub(account.others(&memory));
            let mut scratch = left.saturating_sub(own);
            if account.has_others() {
                scratch = scratch.min(cake_engine::PROBED_BYTES); // They may want more of it.
            }
            let bytes = scratch.saturating_add(own).min(left);
            account
                .take(&[Share { device: memory, bytes, offered }])
                .map_err(|lacks| Status::resource_exhausted(lacks.to_string()))?;
            let before = shared.has_stages();
            let probe =
                cake_engine::probe_layer(device, &model, encoding, threads, scratch, layers);
            account.give_back();
            shared.keep_tuning();
            let probe = probe.map_err(|error| Status::failed_precondition(error.to_string()))?;
            // Stages of other leases may compute meanwhile, between what it looks at.
            let quiet = probe.quiet && !before && !shared.has_stages();
            Ok(LayerProbe { quiet, ..probe })
        })
        .await?;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Ok(Response::new(wire::ProbeComputeReply {
            decode_ns: nanos(probe.decode),
            bytes: probe.bytes,
            quiet: probe.quiet,
        }))
    }

    async fn probe_link(
        &self,
        request: Request<wire::ProbeLinkRequest>,
    ) -> Result<Response<wire::ProbeLinkReply>, Status> {
        check_protocol(request.metadata())?;
        check_master(request.extensions())?;
        let reply = request.into_inner().reply_bytes.min(PROBE_REPLY_BYTES);
        Ok(Response::new(wire::ProbeLinkReply { payload: vec![0; reply as usize].into() }))
    }

    async fn probe_peer(
        &self,
        request: Request<wire::ProbePeerRequest>,
    ) -> Result<Response<wire::ProbePeerReply>, Status> {
        self.admit(&request)?;
        let address = request.into_inner().address;
        let security = self.shared.membership.security().clone();
        let ask = async {
            let (mut client, _) = connect(&security, &address, None, Tag::default())
                .await
                .map_err(|error| error.to_string())?;
            let answer = client.describe(wire::DescribeRequest {}).await;
            Ok(answer.map_err(|status| status.message().to_owned())?.into_inner().worker_id)
        };
        let answer = tokio::time::timeout(PEER_TIMEOUT, ask)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {PEER_TIMEOUT:?}")));
        Ok(Response::new(match answer {
            Ok(worker_id) => {
                wire::ProbePeerReply { reachable: true, detail: String::new(), worker_id }
            }
            Err(detail) => {
                wire::ProbePeerReply { reachable: false, detail, worker_id: String::new() }
            }
        }))
    }

    async fn query(
        &self,
        request: Request<wire::QueryRequest>,
    ) -> Result<Response<wire::QueryReply>, Status> {
        let tenant = self.admit(&request)?;
        let shared = self.shared.clone();
        let mut asked = request.into_inner().blobs;
        asked.truncate(limits::BLOBS);
        // The store's lock is held while a blob is made durable: not a thing to wait for here.
        let held = blocking(move || Ok(tenant.pin_and_list(&shared.store, &asked))).await?;
        Ok(Response::new(wire::QueryReply { held }))
    }

    async fn push(
        &self,
        request: Request<Streaming<wire::PushFrame>>,
    ) -> Result<Response<Self::PushStream>, Status> {
        let tenant = self.admit(&request)?;
        let (store, runtimes) = (self.shared.store.clone(), self.shared.runtimes());
        let work = tenant.work.clone();
        let (events, stream) = mpsc::channel(EVENTS_QUEUED);
        // Ends with the request's stream, which ends with the connection at the latest.
        tokio::spawn(async move {
            let _work = push::while_working(&events, work.read_owned()).await;
            if let Err(status) = push::receive(store, runtimes, request.into_inner(), &events).await
            {
                info!(error = status.message(), "push ended");
                events.send(Err(status)).await.ok();
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn load(
        &self,
        request: Request<wire::LoadRequest>,
    ) -> Result<Response<Self::LoadStream>, Status> {
        let tenant = self.admit(&request)?;
        let metadata = request.metadata().clone();
        let load = Load::try_from(request.into_inner())?;
        let (events, stream) = mpsc::channel(EVENTS_QUEUED);
        let service = self.clone();
        let handle = tokio::runtime::Handle::current();
        // Ends with the load, which ends early once the lease is gone.
        tokio::spawn(async move {
            let work = tenant.work.clone().write_owned().await;
            let loading = move || {
                let _work = work;
                let _runtime = handle.enter(); // The stage's routes spawn tasks.
                let leases = &service.shared.leases;
                let still_wanted = || leases.check(&metadata).map(drop);
                let result = service.load_now(load, &tenant.runtime, &still_wanted, &events);
                events.blocking_send(result.map_err(Status::from)).ok();
            };
            tokio::task::spawn_blocking(loading).await.ok();
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn route(
        &self,
        request: Request<wire::RouteRequest>,
    ) -> Result<Response<wire::RouteReply>, Status> {
        let tenant = self.admit(&request)?;
        let request = request.into_inner();
        let routes = tenant.runtime.routes(request.generation, Some(&request.pipeline))?;
        let mut reply = wire::RouteReply { direct: true, detail: String::new() };
        if request.last {
            routes.answer_master();
        } else if request.next_address.is_empty() {
            routes.relay();
            let detail = "nobody can connect to the next stage".to_owned();
            reply = wire::RouteReply { direct: false, detail };
        } else if let Err(error) = {
            let security = self.shared.membership.security();
            let wire::RouteRequest { next_address, next_worker_id, pipeline, .. } = &request;
            routes.direct(security, next_address, next_worker_id, pipeline).await
        } {
            routes.relay();
            reply = wire::RouteReply { direct: false, detail: error.to_string() };
        }
        Ok(Response::new(reply))
    }

    async fn steps(
        &self,
        request: Request<Streaming<wire::StepFrame>>,
    ) -> Result<Response<Self::StepsStream>, Status> {
        let runtime = self.admit(&request)?.runtime.clone();
        let ticket = runtime.ticket()?;
        let (answers, stream) = mpsc::channel(ticket.about.frames_queued());
        runtime.routes(ticket.about.generation, None)?.set_master(answers.clone());
        let frames = request.into_inner();
        // Ends when the master closes its side.
        tokio::spawn(async move {
            if let Err(status) = feed::take_steps(&runtime, frames, ticket).await {
                answers.send(Err(status)).await.ok();
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn forward(
        &self,
        request: Request<Streaming<wire::StepFrame>>,
    ) -> Result<Response<wire::ForwardReply>, Status> {
        check_protocol(request.metadata())?;
        let token = request.metadata().get(PIPELINE_KEY).and_then(|value| value.to_str().ok());
        let (runtime, ticket) = self.shared.fed_by(token)?;
        feed::take_steps(&runtime, request.into_inner(), ticket).await?;
        Ok(Response::new(wire::ForwardReply {}))
    }

    async fn progress(
        &self,
        request: Request<wire::ProgressRequest>,
    ) -> Result<Response<wire::ProgressReply>, Status> {
        let (generation, report) = self.admit(&request)?.runtime.progress()?;
        Ok(Response::new(wire::ProgressReply {
            generation,
            frames: report.frames,
            received: report.received,
            received_count: report.received_count,
            at_work: report.at_work,
            at_work_us: u64::try_from(report.at_work_for.as_micros()).unwrap_or(u64::MAX),
            leaving: report.leaving,
            sent: report.sent,
            sent_count: report.sent_count,
        }))
    }

    async fn shut_out(
        &self,
        request: Request<wire::ShutOutRequest>,
    ) -> Result<Response<wire::ShutOutReply>, Status> {
        self.admit(&request)?;
        self.shared.shut_out(&request.into_inner().worker_ids).map_err(|error| {
            self.shared.misled.send_replace(());
            unreadable(error)
        })?;
        Ok(Response::new(wire::ShutOutReply {}))
    }

    async fn request_certificate(
        &self,
        request: Request<wire::CertificateRequest>,
    ) -> Result<Response<wire::CertificateSigningRequest>, Status> {
        self.admit(&request)?;
        let der = self.shared.membership.request();
        let der = der.map_err(|error| Status::internal(error.to_string()))?;
        let der = der.ok_or_else(|| Status::failed_precondition("this worker is no member"))?;
        Ok(Response::new(wire::CertificateSigningRequest { der: der.into() }))
    }

    async fn renew_certificate(
        &self,
        request: Request<wire::RenewRequest>,
    ) -> Result<Response<wire::RenewReply>, Status> {
        self.admit(&request)?;
        let (membership, request) = (self.shared.membership.clone(), request.into_inner());
        blocking(move || {
            let renewed = membership.renew(request.certificate.into());
            renewed.map_err(|error| Status::invalid_argument(error.to_string()))
        })
        .await?;
        Ok(Response::new(wire::RenewReply {}))
    }

    async fn release(
        &self,
        request: Request<wire::ReleaseRequest>,
    ) -> Result<Response<wire::ReleaseReply>, Status> {
        let tenant = self.admit(&request)?;
        let forget = request.into_inner().forget;
        let work = tenant.work.clone().write_owned().await;
        blocking(move || {
            let _work = work;
            if forget {
                tenant.put_away()
            } else {
                tenant.unload()
            }
            Ok(())
        })
        .await?;
        let memory = cake_platform::process_memory();
        Ok(Response::new(wire::ReleaseReply {
            peak_bytes: memory.peak_bytes,
            resident_bytes: memory.resident_bytes,
        }))
    }
}

impl Service {
    /// Loads and reports; returns the last event.
    fn load_now(
        &self,
        load: Load,
        runtime: &Runtime,
        still_wanted: &dyn Fn() -> Result<(), lease::Error>,
        events: &mpsc::Sender<Result<wire::LoadEvent, Status>>,
    ) -> Result<wire::LoadEvent, crate::load::Error> {
        let Shared { config, store, placement, .. } = &*self.shared;
        let mut report = |verified_bytes, total_bytes| {
            let event = wire::LoadEvent { verified_bytes, total_bytes, ..Default::default() };
            events.try_send(Ok(event)).ok(); // Progress may be skipped, never waited for.
        };
        let context = LoadContext {
            store,
            runtime,
            devices: &config.devices,
            threads: config.threads,
            placement,
            settling: &self.shared.settling,
            make_room: &|| {
                let all = self.shared.runtimes();
                all.iter().filter(|runtime| runtime.let_rest_go()).count() > 0
            },
            still_wanted,
        };
        let outcome = load.run(&context, &mut report)?;
        self.shared.keep_tuning();
        let corrupt = match outcome {
            Outcome::Loaded => Vec::new(),
            Outcome::Corrupt(names) => names.iter().map(ToString::to_string).collect(),
        };
        Ok(wire::LoadEvent { done: true, corrupt, ..Default::default() })
    }
}

/// A list of those that are shut out that cannot be read.
fn unreadable(error: shut_out::Error) -> Status {
    Status::invalid_argument(error.to_string())
}

/// Which status each store failure becomes.
impl From<store::Error> for Status {
    fn from(error: store::Error) -> Self {
        use store::Error as E;
        let message = error.to_string();
        match error {
            E::DiskFull { .. } | E::StoreFull { .. } => Self::resource_exhausted(message),
            E::WrongDigest { .. } => Self::data_loss(message),
            E::NotHeld { .. } => Self::not_found(message),
            // Worth another try: the last push of it is just ending, or it is asked for whole.
            E::Busy { .. } | E::Spoilt { .. } | E::Torn { .. } => Self::aborted(message),
            _ => Self::internal(message),
        }
    }
}
