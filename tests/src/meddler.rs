//! Somebody between a master and a worker who passes on all they say, but for what it is told to spoil.
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use cake_proto::client::{LEASE_KEY, PIPELINE_KEY, PROTOCOL_KEY};
use cake_proto::limits::MESSAGE_BYTES;
use cake_proto::wire::worker_client::WorkerClient;
use cake_proto::wire::worker_server::{Worker, WorkerServer};
use cake_proto::wire::{self, StepFrame};
use futures_util::stream::{StreamExt, unfold};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

/// Frames that wait for the worker.
const FRAMES: usize = 32;

/// What is wrong with an answer of the worker's last stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// One row more than was wanted.
    Rows,
    /// Half a number is missing.
    Shape,
    /// It is of another plan.
    Generation,
    /// It begins without saying what it is.
    Headless,
    /// Its first number is none.
    NotANumber,
    /// It is a message larger than any may be.
    TooLarge,
    /// It is right, and the stream ends with it.
    Last,
}

/// A call of the master's that can be kept waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The time that a layer takes.
    Probe,
    /// A blob.
    Push,
    /// Layers are to be loaded.
    Load,
}

/// A worker's services at another address. Gone when dropped.
#[derive(Debug)]
pub struct Meddler {
    /// What is told instead of the worker's address.
    pub address: String,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Whether nothing of other workers arrives any more.
    cut_off: watch::Sender<bool>,
    /// Which calls wait, and how many of them do not yet.
    kept: watch::Sender<Option<(Call, u64)>>,
}

#[derive(Debug)]
struct State {
    target: String,
    /// One connection for each address that was led to.
    channels: HashMap<String, Channel>,
    /// Steps still to swallow, and the one that is being swallowed.
    swallow: u64,
    swallowing: Option<u64>,
    swallowed: u64,
    /// Answers still to spoil.
    lies: Option<(Lie, u64)>,
    lied: u64,
    /// Encodings that the worker is said not to compute with.
    unknown: Vec<String>,
}

impl Meddler {
    /// Somebody before the worker at `target` (HOST:PORT), who spoils nothing yet.
    ///
    /// # Panics
    /// If no port is free.
    pub fn before(target: &str) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                target: target.to_owned(),
                channels: HashMap::new(),
                swallow: 0,
                swallowing: None,
                swallowed: 0,
                lies: None,
                lied: 0,
                unknown: Vec::new(),
            }),
            cut_off: watch::channel(false).0,
            kept: watch::channel(None).0,
        });
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().expect("threads");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let service = WorkerServer::new(Meddling(shared.clone()));
        let server = Server::builder().tcp_nodelay(true).add_service(service);
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, shared, runtime: Some(runtime) }
    }

    /// Leads to another address from now on: the worker was started again.
    pub fn lead_to(&self, target: &str) {
        target.clone_into(&mut self.shared.state().target);
    }

    /// The next so many steps that come do not arrive.
    pub fn swallow(&self, steps: u64) {
        self.shared.state().swallow = steps;
    }

    /// Steps that were swallowed so far.
    pub fn swallowed(&self) -> u64 {
        self.shared.state().swallowed
    }

    /// The next so many answers are spoilt.
    pub fn lie(&self, lie: Lie, answers: u64) {
        self.shared.state().lies = Some((lie, answers));
    }

    /// Answers that were spoilt so far.
    pub fn lied(&self) -> u64 {
        self.shared.state().lied
    }

    /// From now on the worker is said not to compute with matrices in this encoding, on any device: as an older one.
    pub fn deny(&self, encoding: &str) {
        self.shared.state().unknown.push(encoding.to_owned());
    }

    /// Whether what other workers send is kept back, without a word; what the master says arrives.
    pub fn cut_off(&self, cut_off: bool) {
        self.shared.cut_off.send_replace(cut_off);
    }

    /// The first so many of these calls arrive; those that follow wait, until [`Meddler::let_go`].
    pub fn keep(&self, call: Call, after: u64) {
        self.shared.kept.send_replace(Some((call, after)));
    }

    /// No call waits any more.
    pub fn let_go(&self) {
        self.shared.kept.send_replace(None);
    }

    /// Spoils nothing any more.
    pub fn behave(&self) {
        let mut state = self.shared.state();
        (state.swallow, state.lies) = (0, None);
        drop(state);
        self.cut_off(false);
        self.let_go();
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Waits for as long as such a call is kept.
    async fn arrive(&self, call: Call) {
        let mut kept = self.kept.subscribe();
        loop {
            let mut waits = false;
            self.kept.send_if_modified(|kept| {
                if let Some((_, free)) = kept.as_mut().filter(|(of, _)| *of == call) {
                    waits = *free == 0;
                    *free = free.saturating_sub(1);
                }
                false // Nobody waits for that.
            });
            if !waits || kept.changed().await.is_err() {
                return;
            }
        }
    }

    /// What of a frame for the worker arrives.
    fn towards_worker(&self, frame: StepFrame) -> Option<StepFrame> {
        let mut state = self.state();
        if frame.head.is_some() {
            state.swallowing = None;
            if state.swallow > 0 {
                state.swallow -= 1;
                state.swallowed += 1;
                state.swallowing = Some(frame.step);
            }
        }
        (frame.announcement || state.swallowing != Some(frame.step)).then_some(frame)
    }

    /// What the master hears in place of this frame, and whether it hears anything more.
    fn towards_master(&self, mut frame: StepFrame) -> (StepFrame, bool) {
        if frame.relay || frame.failure.is_some() || frame.head.is_none() || !frame.last {
            return (frame, true);
        }
        let mut state = self.state();
        let Some((lie, left @ 1..)) = state.lies else { return (frame, true) };
        let mut hidden = frame.hidden.to_vec();
        let head = frame.head.as_mut().expect("checked above");
        let row_bytes = hidden.len().checked_div(head.rows as usize).unwrap_or(0);
        if row_bytes == 0 {
            return (frame, true); // No row was wanted: there is nothing to lie about.
        }
        match lie {
            Lie::Rows => {
                head.rows += 1;
                hidden.extend_from_within(..row_bytes);
            }
            Lie::Shape => hidden.truncate(hidden.len() - 2),
            Lie::Generation => frame.generation += 1,
            Lie::Headless => frame.head = None,
            Lie::NotANumber => hidden[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
            Lie::TooLarge => hidden.resize(MESSAGE_BYTES + 1, 0),
            Lie::Last => {}
        }
        frame.hidden = Bytes::from(hidden);
        state.lies = Some((lie, left - 1));
        state.lied += 1;
        (frame, lie != Lie::Last)
    }
}

/// The services, each of which asks the worker.
struct Meddling(Arc<Shared>);

type Reply<T> = Result<Response<T>, Status>;
type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Meddling {
    fn client(&self) -> WorkerClient<Channel> {
        let mut state = self.0.state();
        let target = state.target.clone();
        let connect = |target: &String| {
            let endpoint = Endpoint::from_shared(format!("http://{target}")).expect("an address");
            endpoint.tcp_nodelay(true).connect_lazy()
        };
        let channel = state.channels.entry(target.clone()).or_insert_with(|| connect(&target));
        WorkerClient::new(channel.clone())
    }
}

/// The same request, as far as a worker looks at it.
fn passed<T>(request: Request<T>) -> Request<T> {
    let (metadata, _, message) = request.into_parts();
    let mut passed = Request::new(message);
    for key in [PROTOCOL_KEY, LEASE_KEY, PIPELINE_KEY] {
        if let Some(value) = metadata.get(key) {
            passed.metadata_mut().insert(key, value.clone());
        }
    }
    passed
}

fn boxed<T: Send + 'static>(response: Response<Streaming<T>>) -> Response<Events<T>> {
    Response::new(Box::pin(response.into_inner()))
}

/// The messages of a stream until it ends or breaks.
fn until_end<T: Send + 'static>(stream: Streaming<T>) -> impl Stream<Item = T> + Send + 'static {
    stream.take_while(|message| std::future::ready(message.is_ok())).filter_map(async |it| it.ok())
}

#[tonic::async_trait]
impl Worker for Meddling {
    type HoldStream = Events<wire::HoldEvent>;
    type PushStream = Events<wire::PushEvent>;
    type LoadStream = Events<wire::LoadEvent>;
    type StepsStream = Events<StepFrame>;

    async fn hold(&self, request: Request<wire::HoldRequest>) -> Reply<Self::HoldStream> {
        self.client().hold(passed(request)).await.map(boxed)
    }

    async fn load(&self, request: Request<wire::LoadRequest>) -> Reply<Self::LoadStream> {
        self.0.arrive(Call::Load).await;
        self.client().load(passed(request)).await.map(boxed)
    }

    async fn push(&self, request: Request<Streaming<wire::PushFrame>>) -> Reply<Self::PushStream> {
        self.0.arrive(Call::Push).await;
        self.client().push(passed(request).map(until_end)).await.map(boxed)
    }

    async fn steps(&self, request: Request<Streaming<StepFrame>>) -> Reply<Self::StepsStream> {
        let (there, back) = (self.0.clone(), self.0.clone());
        let arrives = move |frame| std::future::ready(there.towards_worker(frame));
        let request = passed(request).map(|frames| until_end(frames).filter_map(arrives));
        let answers = self.client().steps(request).await?.into_inner();
        // None once the master is to hear nothing more.
        let heard = unfold(Some((answers, back)), async |open| {
            let (mut answers, back) = open?;
            Some(match answers.next().await? {
                Ok(frame) => {
                    let (frame, more) = back.towards_master(frame);
                    (Ok(frame), more.then_some((answers, back)))
                }
                Err(status) => (Err(status), None),
            })
        });
        Ok(Response::new(Box::pin(heard)))
    }

    async fn forward(&self, request: Request<Streaming<StepFrame>>) -> Reply<wire::ForwardReply> {
        let (there, mut cut_off) = (self.0.clone(), self.0.cut_off.subscribe());
        let (arriving, arrived) = mpsc::channel(FRAMES);
        let mut frames = None;
        let request = passed(request).map(|stream| {
            frames = Some(stream);
            ReceiverStream::new(arrived)
        });
        let mut frames = frames.expect("the request has a stream");
        // Ends with either side.
        tokio::spawn(async move {
            while let Ok(Some(frame)) = frames.message().await {
                if cut_off.wait_for(|cut_off| !cut_off).await.is_err() {
                    return;
                }
                if let Some(frame) = there.towards_worker(frame)
                    && arriving.send(frame).await.is_err()
                {
                    return;
                }
            }
        });
        self.client().forward(request).await
    }

    async fn describe(&self, request: Request<wire::DescribeRequest>) -> Reply<wire::Description> {
        let mut said = self.client().describe(passed(request)).await?;
        let state = self.0.state();
        for device in &mut said.get_mut().devices {
            device.resident_permille.retain(|encoding, _| !state.unknown.contains(encoding));
            device.kv_dtypes.retain(|kv| !state.unknown.contains(kv));
        }
        Ok(said)
    }

    async fn probe_compute(
        &self,
        request: Request<wire::ProbeComputeRequest>,
    ) -> Reply<wire::ProbeComputeReply> {
        self.0.arrive(Call::Probe).await;
        self.client().probe_compute(passed(request)).await
    }

    async fn probe_link(
        &self,
        request: Request<wire::ProbeLinkRequest>,
    ) -> Reply<wire::ProbeLinkReply> {
        self.client().probe_link(passed(request)).await
    }

    async fn probe_peer(
        &self,
        request: Request<wire::ProbePeerRequest>,
    ) -> Reply<wire::ProbePeerReply> {
        self.client().probe_peer(passed(request)).await
    }

    async fn progress(
        &self,
        request: Request<wire::ProgressRequest>,
    ) -> Reply<wire::ProgressReply> {
        self.client().progress(passed(request)).await
    }

    async fn query(&self, request: Request<wire::QueryRequest>) -> Reply<wire::QueryReply> {
        self.client().query(passed(request)).await
    }

    async fn shut_out(&self, request: Request<wire::ShutOutRequest>) -> Reply<wire::ShutOutReply> {
        self.client().shut_out(passed(request)).await
    }

    async fn request_certificate(
        &self,
        request: Request<wire::CertificateRequest>,
    ) -> Reply<wire::CertificateSigningRequest> {
        self.client().request_certificate(passed(request)).await
    }

    async fn renew_certificate(
        &self,
        request: Request<wire::RenewRequest>,
    ) -> Reply<wire::RenewReply> {
        self.client().renew_certificate(passed(request)).await
    }

    async fn route(&self, request: Request<wire::RouteRequest>) -> Reply<wire::RouteReply> {
        self.client().route(passed(request)).await
    }

    async fn release(&self, request: Request<wire::ReleaseRequest>) -> Reply<wire::ReleaseReply> {
        self.client().release(passed(request)).await
    }
}
