//! One step after the other through a loaded stage, and what is wrong with one that is not sent on.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use cake_checkpoint::{DamagedFile, LayerRange};
use cake_engine::{self as engine, Batch, BatchItem, Stage};
use cake_proto::failure::first_non_finite;
use cake_proto::{Failure, FailureKind, StateSlots, Step, StepItem};
use tracing::{Span, debug_span, warn};

/// A step that waits for a stage, and the time that it spends there as a part of what each of its
/// sequences takes.
#[derive(Debug)]
pub struct Job {
    step: Step,
    spans: Vec<Span>,
}

impl Job {
    /// It has just come to the device of this name.
    pub fn new(device: &str, step: Step) -> Self {
        let span = |item: &StepItem| {
            let span = debug_span!(
                "stage",
                device,
                sequence = item.sequence,
                step = step.step,
                position = item.position,
                rows = item.rows,
                step_rows = step.rows,
            );
            if let Some(trace) = &item.trace {
                cake_telemetry::continue_trace(&span, trace);
            }
            span
        };
        let spans = step.items.iter().map(span).collect();
        Self { step, spans }
    }

    /// The step's number.
    pub fn number(&self) -> u64 {
        self.step.step
    }
}

/// Why a stage could not do a step.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum StepError {
    /// Its memory, its processor or its weights are not what they were.
    #[error("layers {layers} made {value} of finite numbers in row {row} of step {step}")]
    NonFinite { layers: LayerRange, step: u64, row: usize, value: f32 },
    /// Who sent the step is at fault; nothing was computed.
    #[error(
        "step {step} came to layers {layers} with {value} in row {row}, expected finite numbers"
    )]
    NonFiniteInput { layers: LayerRange, step: u64, row: usize, value: f32 },
    /// What was computed with the file's weights is not right.
    #[error("step {step} cannot be computed by layers {layers}: {file}")]
    Damaged { layers: LayerRange, step: u64, file: DamagedFile },
    /// Its numbers were no numbers before, or its weights damaged.
    #[error(
        "layers {layers} compute nothing more until their weights are verified: step {step} failed before"
    )]
    Lost { layers: LayerRange, kind: FailureKind, step: u64 },
    #[error("the arithmetic panicked; its log says where")]
    Panicked,
    /// The step breaks the contract between master and stage.
    #[error(transparent)]
    Engine(#[from] cake_engine::Error),
}

impl StepError {
    /// As the master is told.
    pub fn failure(self, layers: LayerRange) -> Failure {
        // No model has as many layers as could not be said.
        let end = |layer: usize| u32::try_from(layer).unwrap_or(u32::MAX);
        let layers = end(layers.start)..end(layers.end);
        Failure { kind: self.kind(), layers, message: self.to_string() }
    }

    /// Whose fault it is.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::NonFinite { .. } => FailureKind::NonFinite,
            Self::NonFiniteInput { .. } => FailureKind::NonFiniteInput,
            Self::Damaged { .. } => FailureKind::Damaged,
            Self::Lost { kind, .. } => *kind,
            Self::Panicked | Self::Engine(_) => FailureKind::Other,
        }
    }
}

/// A stage that takes one step after the other, and notes how long it computes and how long it has
/// nothing to compute.
pub struct StepEngine {
    stage: Stage,
    /// When it had computed the last one.
    free_since: Instant,
    /// Why it computes nothing more, if it does not, and the step at which that was seen.
    lost: Option<(FailureKind, u64)>,
}

impl StepEngine {
    /// It has had nothing to compute from now on.
    pub fn new(stage: Stage) -> Self {
        Self { stage, free_since: Instant::now(), lost: None }
    }

    /// Whether what it computes with may not be what was verified: it computes nothing more.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Runs one step: `hidden` becomes the stage's output, the times are noted.
    ///
    /// # Errors
    /// [`StepError`]; nothing of the step may be sent on then. A panic of the arithmetic is a bug; it fails the step,
    /// not the device.
    pub fn run(&mut self, Job { mut step, spans }: Job) -> Result<Step, StepError> {
        let (number, layers) = (step.step, self.stage.layers());
        if let Some((kind, step)) = self.lost {
            return Err(StepError::Lost { layers, kind, step });
        }
        let started = Instant::now();
        let compute = |span: &Span| debug_span!(parent: span, "compute");
        let _computing: Vec<Span> = spans.iter().map(compute).collect();
        if let Some((row, value)) = bad_row(&step.hidden, step.rows) {
            return Err(StepError::NonFiniteInput { layers, step: number, row, value });
        }
        let batch = Batch { items: step.items.iter().map(item).collect() };
        let hidden = std::mem::take(&mut step.hidden);
        let result = catch_unwind(AssertUnwindSafe(|| self.stage.forward(&batch, hidden)));
        step.idle_us.push(micros(started - self.free_since));
        self.free_since = Instant::now();
        step.stage_us.push(micros(self.free_since - started));
        step.hidden = match result.map_err(|_| StepError::Panicked)? {
            Ok(hidden) => hidden,
            Err(engine::Error::Damaged(file)) => {
                return self.lose(number, StepError::Damaged { layers, step: number, file });
            }
            Err(error) => return Err(error.into()),
        };
        match bad_row(&step.hidden, step.rows) {
            None => Ok(step),
            Some((row, value)) => {
                self.lose(number, StepError::NonFinite { layers, step: number, row, value })
            }
        }
    }

    /// Computes nothing more.
    fn lose(&mut self, step: u64, error: StepError) -> Result<Step, StepError> {
        warn!(%error, "the stage computes nothing more until its weights are verified");
        self.lost = Some((error.kind(), step));
        Err(error)
    }
}

/// The first row of `[rows, hidden_size]` with a number that is not finite, and the number. Costs what reading the
/// rows once does, which no layer would notice.
fn bad_row(hidden: &[f32], rows: usize) -> Option<(usize, f32)> {
    let (index, value) = first_non_finite(hidden)?;
    let row = index.checked_div(hidden.len().checked_div(rows)?)?;
    Some((row, value))
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn item(item: &StepItem) -> BatchItem {
    BatchItem {
        sequence: item.sequence,
        position: item.position,
        rows: item.rows,
        prompt: item.prompt,
        blocks: item.blocks.clone(),
        known: item.known,
        state: item.state.map(|StateSlots { from, to }| engine::StateSlots { from, to }),
    }
}
