//! The task that owns all sequences: it chooses what happens next, has `core` decide, and carries out what that decided
//! with channels, the pipeline, metrics and spans.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{Span, debug_span, warn};

use super::core::{ComposedStep, Core, Effect, PipelineShape};
use super::step::{Part, Seen, choose};
use super::want::{Chosen, Failed, Want};
use super::{Command, Error, Event, Limits, OnLoss, Resumed, Shared};
use crate::chunk::Chunk;
use crate::generate::Ends;
use crate::pipeline::{Pipeline, Ticket};

/// Runs until nobody can submit any more and everything has ended, or the master's own weights are damaged, which it says
/// then: nothing that it could compute again would be right.
pub(super) async fn run(
    pipeline: Pipeline,
    ends: Ends,
    on_loss: OnLoss,
    shared: Arc<Shared>,
    mut commands: mpsc::UnboundedReceiver<Command>,
) -> Option<String> {
    let Limits { chunk, prompt_rows, .. } = shared.limits;
    let mut actor = Actor {
        core: Core::new(shared.limits, on_loss, shape_of(&pipeline, chunk, prompt_rows)),
        started: Instant::now(),
        clients: HashMap::new(),
        stages: Some(Stages::new(pipeline)),
        closing: None,
        ends: Arc::new(ends),
        shared,
        in_flight: FuturesUnordered::new(),
        damaged: None,
    };
    let mut open = true;
    while open || !actor.core.is_idle() {
        actor.fill().await;
        actor.tell();
        if actor.damaged.is_some() {
            break;
        }
        tokio::select! {
            command = commands.recv(), if open => match command {
                Some(command) => actor.obey(command),
                None => open = false,
            },
            Some(done) = actor.in_flight.next(), if !actor.in_flight.is_empty() => actor.done(done),
            else => break,
        }
    }
    actor.damaged
}

struct Actor {
    core: Core,
    /// From when on the core counts its time.
    started: Instant,
    /// Whoever waits for a sequence that is not over.
    clients: HashMap<u64, Client>,
    /// None from the loss of a stage until there is another pipeline in its place.
    stages: Option<Stages>,
    /// The pipeline before, as long as it is being closed.
    closing: Option<JoinHandle<()>>,
    ends: Arc<Ends>,
    shared: Arc<Shared>,
    in_flight: FuturesUnordered<Pin<Box<dyn Future<Output = Done> + Send>>>,
    /// What is wrong with the embedding or the head, once that is known.
    damaged: Option<String>,
}

/// The stages, as long as they are whole.
struct Stages {
    pipeline: Pipeline,
    names: Arc<[String]>,
}

/// Whoever asked for a sequence.
struct Client {
    events: mpsc::UnboundedSender<Event>,
    /// From its question to its end.
    span: Span,
    /// The time that it waits.
    queue: Option<Span>,
}

/// A step that came back, and the tokens that it chose.
struct Done {
    number: u64,
    chosen: Result<Vec<Chosen>, Failed>,
}

impl Stages {
    fn new(pipeline: Pipeline) -> Self {
        let names = pipeline.stages().iter().map(|stage| stage.worker.clone()).collect();
        Self { pipeline, names }
    }

    async fn submit(&self, ends: &Ends, step: ComposedStep) -> Result<Ticket, Error> {
        let hidden = ends.embed(&step.ids).map_err(|error| Error::Engine(Arc::new(error)))?;
        Ok(self.pipeline.submit(step.items, hidden, step.wanted).await?)
    }
}

/// What the core has to know of a pipeline.
fn shape_of(pipeline: &Pipeline, chunk: Chunk, prompt_rows: usize) -> PipelineShape {
    PipelineShape::new(pipeline.stages().len(), pipeline.hops() == 0, chunk, prompt_rows)
}

impl Actor {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Leaves word of how busy it is.
    fn tell(&self) {
        let load = self.core.load();
        *self.shared.load() = load;
        self.shared.metrics.occupied(&load);
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Begin { sequence, request, events, since, span } => {
                let queue = Some(debug_span!(parent: &span, "queue"));
                self.clients.insert(sequence, Client { events, span, queue });
                let since = since.saturating_duration_since(self.started);
                self.core.submit(sequence, request, since);
            }
            Command::Cancel { sequence } => {
                let effects = self.core.cancel(sequence);
                self.carry_out(effects);
            }
            Command::Suspend(told) => {
                self.core.lose_pipeline();
                self.close();
                let closing = self.closing.take();
                // Who asks again meanwhile waits as long.
                self.closing = Some(tokio::spawn(async move {
                    if let Some(closing) = closing {
                        closing.await.ok(); // If it panicked, it is over, too.
                    }
                    told.send(()).ok(); // Perhaps nobody waits for it any more.
                }));
            }
            Command::Resume(resumed) => {
                let Resumed { pipeline, chunk, prompt_rows } = *resumed;
                let shape = shape_of(&pipeline, chunk, prompt_rows);
                self.stages = Some(Stages::new(pipeline));
                let effects = self.core.resume(shape, self.now());
                self.carry_out(effects);
            }
            Command::GiveUp(why) => {
                let effects = self.core.give_up(&Error::Unrecovered(why));
                self.carry_out(effects);
            }
            #[cfg(test)]
            Command::Panic => panic!("as it was told to"),
        }
    }

    /// Takes in what came of a step.
    fn done(&mut self, Done { number, chosen }: Done) {
        let effects = self.core.apply(number, chosen, self.now());
        self.carry_out(effects);
    }

    /// Admits and submits until enough steps are in flight or nothing is left to do. A step that cannot be
    /// submitted ends its sequences, so that this comes to an end.
    async fn fill(&mut self) {
        while self.core.has_room() {
            let effects = self.core.admit(self.now());
            self.carry_out(effects);
            let Some(stages) = &self.stages else { return };
            let submitted_at = Instant::now();
            let now = submitted_at.saturating_duration_since(self.started);
            let Some(mut step) = self.core.compose(now) else { return };
            let prompt_rows = step.prompt_rows();
            self.shared.metrics.read(prompt_rows);
            let number = step.number;
            let spans = self.spans(&mut step);
            let sequences = step.items.len();
            let wants = std::mem::take(&mut step.wants);
            match stages.submit(&self.ends, step).await {
                Ok(ticket) => {
                    let seen = Seen {
                        shared: self.shared.clone(),
                        stages: stages.names.clone(),
                        sequences,
                        prompt_rows,
                        hops: stages.pipeline.hops(),
                        submitted_at,
                        spans,
                    };
                    let choose = choose(self.ends.clone(), ticket, wants, seen);
                    let done = async move { Done { number, chosen: choose.await } };
                    self.in_flight.push(Box::pin(done));
                }
                Err(error) => self.done(Done { number, chosen: Err(Failed { error, wants }) }),
            }
        }
    }

    /// A span for each of a step's items, which carries it to the stages.
    fn spans(&self, step: &mut ComposedStep) -> Vec<Part> {
        let mut wants = step.wants.iter().map(Want::sequence).peekable();
        let parts = step.items.iter_mut().map(|item| {
            let span = match self.clients.get(&item.sequence) {
                Some(Client { span, .. }) => {
                    let (position, rows, prompt) = (item.position, item.rows, item.prompt);
                    debug_span!(parent: span, "step", position, rows, prompt)
                }
                None => Span::none(),
            };
            item.trace = cake_telemetry::context_of(&span);
            // Wants are in the order of the items, one of an item at most.
            Part { span, wanted: wants.next_if_eq(&item.sequence).is_some() }
        });
        parts.collect()
    }

    /// Does what the core decided.
    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Begun { sequence, waited, prompt_tokens, reused_tokens } => {
                    self.shared.metrics.begun(waited, prompt_tokens, reused_tokens);
                    if let Some(client) = self.clients.get_mut(&sequence) {
                        client.queue = None;
                        client.span.record("cached_tokens", reused_tokens);
                        client.tell(Event::Begun { reused_tokens });
                    }
                }
                Effect::Scored { sequence, tokens } => {
                    if let Some(client) = self.clients.get(&sequence) {
                        client.tell(Event::Scored(tokens));
                    }
                }
                Effect::Token { sequence, token, took, is_first } => {
                    match is_first {
                        true => self.shared.metrics.first_token(took),
                        false => self.shared.metrics.next_token(took),
                    }
                    if let Some(client) = self.clients.get(&sequence) {
                        client.tell(Event::Token(token));
                    }
                }
                Effect::Over { sequence, event, generated } => {
                    self.over(sequence, event, generated);
                }
                Effect::StepFailed { error, sequences } => {
                    warn!(%error, sequences, "a step failed");
                    if let Error::Engine(error) = &error
                        && matches!(**error, cake_engine::Error::Damaged(_))
                    {
                        self.damaged = Some(error.to_string());
                    }
                }
                Effect::PipelineLost { error, sequences } => {
                    warn!(%error, sequences, "the pipeline is lost: sequences wait");
                    self.close();
                }
            }
        }
    }

    fn over(&mut self, sequence: u64, event: Option<Event>, generated: usize) {
        self.shared.give_back(1);
        let how = match &event {
            Some(Event::Ended(finish)) => finish.name(),
            Some(Event::Embedding(_)) => "embedding",
            Some(Event::Failed(_)) => "failed",
            _ => "cancelled",
        };
        self.shared.metrics.ended(how);
        let Some(client) = self.clients.remove(&sequence) else { return };
        client.span.record("generated_tokens", generated).record("end", how);
        if let Some(event) = event {
            client.tell(event);
        }
    }

    /// Gives up the pipeline, if there is one. A step of the master's own may have to end first.
    fn close(&mut self) {
        if let Some(Stages { pipeline, .. }) = self.stages.take() {
            self.closing = Some(tokio::task::spawn_blocking(move || pipeline.close()));
        }
    }
}

impl Client {
    fn tell(&self, event: Event) {
        self.events.send(event).ok(); // Whoever listens no more says so with a command.
    }
}
