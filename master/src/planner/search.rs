//! The best cost that any chain reaches: dynamic programming over (node of the space, layers
//! placed).

use super::space::Space;
use super::terms::Terms;
use std::ops::Add;

/// The least total of `weigh(device, start, end)` with which a chain reaches each node with each
/// number of layers placed, using only stages of at most `cap` seconds.
///
/// Returns `[node × (layers + 1) + layers placed]`; `unreached`, which is above every total, where
/// no chain leads.
pub(super) fn least<V: Copy + Default + PartialOrd + Add<Output = V>>(
    space: &Space,
    terms: &Terms,
    cap: f64,
    unreached: V,
    weigh: impl Fn(usize, usize, usize) -> V,
) -> Vec<V> {
    let width = terms.layers + 1;
    let mut totals = vec![unreached; space.nodes.len() * width];
    totals[Space::START * width] = V::default();
    for (number, node) in space.nodes.iter().enumerate() {
        for start in 0..terms.layers {
            let total = totals[number * width + start];
            if total >= unreached {
                continue;
            }
            for edge in &node.edges {
                let Some(device) = edge.device else {
                    lower(&mut totals[edge.next * width + start], total);
                    continue;
                };
                for end in terms.ends(device, start) {
                    if terms.stage_seconds(device, start, end) > cap {
                        break; // A longer stage is no faster.
                    }
                    let with_stage = total + weigh(device, start, end);
                    lower(&mut totals[edge.next * width + end], with_stage);
                }
            }
        }
    }
    totals
}

fn lower<V: PartialOrd>(least: &mut V, value: V) {
    if value < *least {
        *least = value;
    }
}

/// The least cost of any chain that places every layer, or `None` where none does.
///
/// With stages capped at `cap`, let `share(cap)` be the least (sum ÷ steps in flight). It can only
/// fall as the cap rises, and it changes only where the cap passes the time of some stage. The cost
/// is the least of `max(cap, share(cap))` over those times: where the two curves cross, or just
/// before.
pub(super) fn best_cost(space: &Space, terms: &Terms) -> Option<f64> {
    let devices = space.nodes.iter().flat_map(|node| &node.edges).filter_map(|edge| edge.device);
    let devices: std::collections::BTreeSet<usize> = devices.collect();
    let caps = terms.stage_times(devices.into_iter(), f64::INFINITY);
    if share(space, terms, *caps.last()?).is_infinite() {
        return None;
    }
    let crossed = caps.partition_point(|cap| share(space, terms, *cap) > *cap);
    let after = caps.get(crossed).copied().unwrap_or(f64::INFINITY);
    let before = match crossed.checked_sub(1) {
        Some(index) => share(space, terms, caps[index]),
        None => f64::INFINITY,
    };
    Some(after.min(before))
}

/// The least (sum of stages and hops ÷ steps in flight) with no stage slower than `cap`; infinite
/// where no chain places every layer.
fn share(space: &Space, terms: &Terms, cap: f64) -> f64 {
    let weigh = |device, start, end| terms.step_seconds(device, start, end);
    let sums = least(space, terms, cap, f64::INFINITY, weigh);
    let of_node = |node: usize| {
        let sum = sums[node * (terms.layers + 1) + terms.layers];
        // An unreached node may count no stages at all.
        sum / terms.steps_in_flight(space.stages(node)).max(1) as f64
    };
    (0..space.nodes.len()).map(of_node).fold(f64::INFINITY, f64::min)
}

/// The most layers, counted from layer 0, that any chain places.
pub(super) fn most_placed(space: &Space, terms: &Terms) -> usize {
    let reached = least(space, terms, f64::INFINITY, 1_u8, |_, _, _| 0);
    let width = terms.layers + 1;
    reached
        .chunks(width)
        .filter_map(|of_node| of_node.iter().rposition(|v| *v == 0))
        .max()
        .unwrap_or(0)
}
