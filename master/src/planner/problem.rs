//! What the planner is asked, and what it answers.

use cake_checkpoint::LayerRange;
use serde::Serialize;

/// Everything the planner knows.
#[derive(Clone, Debug)]
pub struct Input {
    /// The model's layers, from layer 0.
    pub layers: Vec<LayerCost>,
    /// The devices on offer. Names are distinct, and at most one device is local.
    pub devices: Vec<Device>,
    /// Sequences served at once; 0 counts as 1.
    pub parallel: usize,
    /// Stages that a person has fixed.
    pub pins: Vec<Pin>,
    /// Bytes of one row on the wire, where it is widest.
    pub activation_bytes: u64,
    /// How much slower than the fastest a plan may be, relative to it, that has fewer bytes to push: 0 unless
    /// somebody waits for the push.
    pub slack: f64,
    /// Tokens of context per sequence that [`LayerCost::kv_bytes`] pays for; used to suggest fewer.
    pub context_tokens: u64,
    /// Seconds of the master's own part of a token: embedding, head and the choice. The same whatever the plan, so
    /// that it only enters what is predicted.
    pub ends_seconds: f64,
}

/// What one layer costs, whichever device runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCost {
    /// Exact bytes of the layer's tensors in its blob: what a push carries.
    pub bytes: u64,
    /// KV cache of this layer for the promised context of all sequences together.
    pub kv_bytes: u64,
    /// Recurrent state of this layer, whatever the context is.
    pub state_bytes: u64,
    /// Whether no stage may begin with it, as it or a layer after it needs what one before it keeps.
    pub joined: bool,
}

impl LayerCost {
    /// What the layer keeps of all sequences.
    pub fn kept_bytes(&self) -> u64 {
        self.kv_bytes.saturating_add(self.state_bytes)
    }
}

/// What one device offers and how fast it is.
#[derive(Clone, Debug)]
pub struct Device {
    /// What people call the device.
    pub name: String,
    /// Memory offered for weights, KV cache, scratch and process together.
    pub budget_bytes: u64,
    /// What the process takes before it holds anything.
    pub overhead_bytes: u64,
    /// Scratch memory of a step, needed once whatever the number of layers.
    pub scratch_bytes: u64,
    /// Resident weight bytes of each layer on this device, one entry per layer of the model.
    pub layer_resident_bytes: Vec<u64>,
    /// Seconds each layer takes in one decode step on this device, one entry per layer of the
    /// model.
    pub layer_time: Vec<f64>,
    /// Seconds to deliver one row to this device: latency plus the row's bytes over the throughput.
    /// Taken as 0 for the local device.
    pub hop: f64,
    /// Measured rate at which blobs reach this device, if known.
    pub push_bytes_per_second: Option<f64>,
    /// Whether this device already holds each layer's blob, one entry per layer of the model.
    pub held: Vec<bool>,
    /// True for the master itself: first in the chain if used, no push and no hop.
    pub local: bool,
}

/// A stage fixed by a person: this device runs exactly these layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Name of the device.
    pub device: String,
    /// Its layers.
    pub layers: LayerRange,
}

/// The stages in chain order, and what is predicted of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// At least one stage; together they hold every layer once, in order.
    pub stages: Vec<PlannedStage>,
    /// Seconds one token takes: through all stages, all hops and the way back, and the master's own part.
    pub step_seconds: f64,
    /// Of these, the master's own part: embedding, head and the choice.
    pub ends_seconds: f64,
    /// Seconds of the slowest stage for one row.
    pub bottleneck_seconds: f64,
    /// Steps that can usefully be under way at once: the smaller of sequences and stages.
    pub steps_in_flight: usize,
    /// What was minimised: seconds between two rows leaving the chain when it is kept busy.
    pub cost_seconds: f64,
    /// Tensor bytes to push to all devices together.
    pub push_bytes: u64,
    /// Bytes of hidden state that one row puts on the network on its way round.
    pub wire_bytes_per_row: u64,
    /// True when a plan with nothing to push was kept although another was predicted faster, by
    /// less than 15 %.
    pub kept: bool,
}

/// One stage of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedStage {
    /// Name of the device.
    pub device: String,
    /// Its place in [`Input::devices`].
    pub device_index: usize,
    /// The layers it runs; never empty.
    pub layers: LayerRange,
    /// What it needs of the device's budget.
    pub memory: StageMemory,
    /// Seconds of arithmetic for one row.
    pub stage_seconds: f64,
    /// Seconds to deliver one row to this stage.
    pub hop_seconds: f64,
    /// Tensor bytes of the layers that the device does not hold yet.
    pub push_bytes: u64,
    /// Seconds the push should take, where the device's rate is known.
    pub push_seconds: Option<f64>,
}

/// Memory of one stage, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StageMemory {
    /// Resident weights.
    pub weights: u64,
    /// KV cache for the promised context.
    pub kv: u64,
    /// What recurrent layers keep of sequences, whatever their length.
    pub state: u64,
    /// Scratch of a step.
    pub scratch: u64,
    /// The process itself.
    pub overhead: u64,
    /// What the device offered.
    pub budget: u64,
}

impl StageMemory {
    /// What comes once weights are there: what is kept of sequences, and scratch.
    pub fn beside_weights(&self) -> u64 {
        [self.kv, self.state, self.scratch].into_iter().fold(0, u64::saturating_add)
    }

    /// Everything the stage needs together.
    pub fn total(&self) -> u64 {
        [self.weights, self.kv, self.state, self.scratch, self.overhead]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// What the stage leaves of the budget.
    pub fn free(&self) -> u64 {
        self.budget.saturating_sub(self.total())
    }
}
