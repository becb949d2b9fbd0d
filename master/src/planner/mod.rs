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
//! Where to read: this file has the decision, `problem` what is asked and answered, `check` what is asked of the input,
//! `refusal` what is said when there is no plan, `idle` why a device has no layers in one, `terms` turns the input into sums and limits,
//! `space` says which chains are looked at, `search` finds the best cost, `ties` the plan among
//! those of that cost, `table` prints it.

mod check;
mod idle;
mod problem;
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

pub use idle::{Idle, Why, idle};
pub use problem::{Device, Input, LayerCost, Pin, Plan, PlannedStage, StageMemory};
pub use refusal::{Refusal, Shortfall};

use search::best_cost;
use space::Space;
use terms::{Blobs, Terms};
use ties::{TIE, choose};

/// How much faster a plan that pushes must be predicted to be than one whose blobs are all held.
const WORTH_A_PUSH: f64 = 1.15;

/// Plans the stages of a model.
///
/// With up to eight remote devices that have no pin, every order of every subset is searched: the
/// plan is the best there is. With more, a fixed list of orders is searched: the cost is still the
/// best there is when layers are alike, may be parted anywhere, and nothing is pinned, and otherwise may not be; a model
/// that fits only in an order not listed is then refused.
///
/// # Errors
/// A [`Refusal`] when the input contradicts itself, when a pin cannot be honoured, or when the
/// layers do not fit; it says which device, how much was needed and how much there was.
///
/// ```
/// use cake_master::planner::{Device, Input, LayerCost, plan};
///
/// // Four layers of 3 bytes, and two devices with room for two of them each.
/// let device = |name: &str, seconds: f64| Device {
///     name: name.to_owned(),
///     budget_bytes: 7,
///     overhead_bytes: 0,
///     scratch_bytes: 1,
///     layer_resident_bytes: vec![3; 4],
///     layer_time: vec![seconds; 4],
///     hop: 0.001,
///     push_bytes_per_second: None,
///     held: vec![false; 4],
///     local: false,
/// };
/// let mut input = Input {
///     layers: vec![LayerCost { bytes: 3, kv_bytes: 0, state_bytes: 0, joined: false }; 4],
///     devices: vec![device("phone", 0.02), device("laptop", 0.01)],
///     parallel: 1,
///     pins: Vec::new(),
///     activation_bytes: 1,
///     slack: 0.0,
///     context_tokens: 1,
///     ends_seconds: 0.0,
/// };
/// let chain = plan(&input).expect("all layers fit");
/// assert_eq!(chain.stages.len(), 2);
/// assert_eq!(chain.stages[0].layers.to_string(), "0..2");
///
/// input.devices.pop();
/// let refusal = plan(&input).expect_err("two layers are left over");
/// assert!(refusal.to_string().contains("at most 2 of 4 layers"));
/// ```
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
                    kv: input.layers[of_range.clone()].iter().map(|layer| layer.kv_bytes).sum(),
                    state: input.layers[of_range].iter().map(|layer| layer.state_bytes).sum(),
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
