//! The planner: which device runs which layers. A pure function of numbers: no clock, no sockets,
//! no logs; the same input gives the same plan, on every machine.
//!
//! A plan is a chain of stages. Every layer is in exactly one stage, stages are contiguous, a
//! device has at most one stage and may have none, and the master's own stage, if any, comes first.
//! Memory is a constraint; speed is the objective:
//!
//! ```text
//! minimise  max( slowest stage, (sum of stages and hops) / steps in flight )
//! where     steps in flight = min(parallel sequences, stages)
//! ```
//!
//! Plans that cost the same are told apart by the fewest bytes to push, then the fewest devices,
//! then the devices' names in chain order; what is still open (where to cut) is settled by the
//! smaller slowest stage, the smaller sum, and the longer earlier stages. A plan with nothing to
//! push is kept unless another is predicted at least 15 % faster.
//!
//! Where to read: this file has the words and the decision, `check` what is asked of the input,
//! `refusal` what is said when there is no plan, `idle` why a device has no layers in one, `terms` turns the input into sums and limits,
//! `space` says which chains are looked at, `search` finds the best cost, `ties` the plan among
//! those of that cost, `table` prints it.

mod check;
mod idle;
mod refusal;
mod search;
mod space;
pub mod table;
mod terms;
mod ties;

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;

use cake_checkpoint::LayerRange;
use serde::Serialize;

pub use idle::{Idle, Why, idle};
pub use refusal::{Refusal, Shortfall};

use search::best_cost;
use space::Space;
use terms::{Blobs, Terms};
use ties::{TIE, choose};

/// How much faster a plan that pushes must be predicted to be than one whose blobs are all held.
const WORTH_A_PUSH: f64 = 1.15;

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
    /// Bytes of one row of hidden state on the wire.
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
    /// Scratch of a step.
    pub scratch: u64,
    /// The process itself.
    pub overhead: u64,
    /// What the device offered.
    pub budget: u64,
}

impl StageMemory {
    /// Everything the stage needs together.
    pub fn total(&self) -> u64 {
        [self.weights, self.kv, self.scratch, self.overhead]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// What the stage leaves of the budget.
    pub fn free(&self) -> u64 {
        self.budget.saturating_sub(self.total())
    }
}

/// Plans the stages of a model.
///
/// With up to eight remote devices that have no pin, every order of every subset is searched: the
/// plan is the best there is. With more, a fixed list of orders is searched: the cost is still the
/// best there is when layers are alike and nothing is pinned, and otherwise may not be; a model
/// that fits only in an order not listed is then refused.
///
/// # Errors
/// A [`Refusal`] when the input contradicts itself, when a pin cannot be honoured, or when the
/// layers do not fit; it says which device, how much was needed and how much there was.
pub fn plan(input: &Input) -> Result<Plan, Refusal> {
    let pins = check::check(input)?;
    let space = Space::new(input, &pins);
    let anything = Terms::new(input, &pins, Blobs::Any);
    let best =
        best_cost(&space, &anything).ok_or_else(|| refusal::does_not_fit(input, &pins, &space))?;

    let held = Terms::new(input, &pins, Blobs::Held);
    let (terms, cost, kept) = match best_cost(&space, &held) {
        Some(cost) if best * WORTH_A_PUSH > cost => (&held, cost, cost > best * (1.0 + TIE)),
        _ => (&anything, best, false),
    };
    let slack = best * (1.0 + input.slack.max(0.0));
    Ok(describe(input, terms, &with_slack(&space, terms, cost, slack), kept))
}

/// The chain with the fewest bytes to push among those whose cost is at most `most`, and about the fastest of
/// these; that of the least `cost` if none has fewer.
fn with_slack(space: &Space, terms: &Terms, cost: f64, most: f64) -> Vec<(usize, LayerRange)> {
    /// Times that what is between two costs is halved: to less than anybody can measure.
    const HALVINGS: usize = 12;
    let pushed = |chain: &[(usize, LayerRange)]| -> u64 {
        chain
            .iter()
            .map(|(device, layers)| terms.push_bytes(*device, layers.start, layers.end))
            .sum()
    };
    let fastest = choose(space, terms, cost);
    if most <= cost {
        return fastest;
    }
    let mut fewest = choose(space, terms, most);
    let least = pushed(&fewest);
    if pushed(&fastest) == least {
        return fastest;
    }
    let (mut low, mut high) = (cost, most);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        let chain = choose(space, terms, middle);
        match pushed(&chain) == least {
            true => (fewest, high) = (chain, middle),
            false => low = middle,
        }
    }
    fewest
}

/// The plan made of these stages, with every figure worked out.
fn describe(input: &Input, terms: &Terms, chain: &[(usize, LayerRange)], kept: bool) -> Plan {
    let stages: Vec<PlannedStage> = chain
        .iter()
        .map(|&(device_index, layers)| {
            let device = &input.devices[device_index];
            let of_range = layers.start..layers.end;
            let push_bytes = terms.push_bytes(device_index, layers.start, layers.end);
            let rate = device.push_bytes_per_second.filter(|rate| *rate > 0.0);
            PlannedStage {
                device: device.name.clone(),
                device_index,
                layers,
                memory: StageMemory {
                    // These sums are within the budget, which is a u64.
                    weights: device.layer_resident_bytes[of_range.clone()].iter().sum(),
                    kv: input.layers[of_range].iter().map(|layer| layer.kv_bytes).sum(),
                    scratch: device.scratch_bytes,
                    overhead: device.overhead_bytes,
                    budget: device.budget_bytes,
                },
                stage_seconds: terms.stage_seconds(device_index, layers.start, layers.end),
                hop_seconds: terms.hop(device_index),
                push_bytes,
                push_seconds: rate.map(|rate| push_bytes as f64 / rate),
            }
        })
        .collect();
    let way_back = stages.last().map_or(0.0, |last| last.hop_seconds);
    let chain_seconds =
        stages.iter().map(|stage| stage.stage_seconds + stage.hop_seconds).sum::<f64>() + way_back;
    let bottleneck_seconds = stages.iter().map(|stage| stage.stage_seconds).fold(0.0, f64::max);
    let steps_in_flight = terms.steps_in_flight(stages.len());
    let remote = stages.iter().filter(|stage| !input.devices[stage.device_index].local).count();
    let messages = if remote == 0 { 0 } else { remote as u64 + 1 }; // One per hop and one back.
    Plan {
        step_seconds: chain_seconds + input.ends_seconds,
        ends_seconds: input.ends_seconds,
        bottleneck_seconds,
        steps_in_flight,
        cost_seconds: bottleneck_seconds.max(chain_seconds / steps_in_flight as f64),
        push_bytes: stages.iter().map(|stage| stage.push_bytes).sum(),
        wire_bytes_per_row: input.activation_bytes.saturating_mul(messages),
        kept,
        stages,
    }
}
