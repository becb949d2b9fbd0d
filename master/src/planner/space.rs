//! Which chains of devices the search looks at, as a graph whose paths are those chains.

use super::Input;
use super::terms::FoundPin;

/// Most remote, unpinned devices for which every order of every subset is searched: 256 nodes,
/// which for 80 layers is a fraction of a second. Each further device would double it.
const EVERY_ORDER: usize = 8;
/// Nodes × layers² up to which that is done: 256 nodes of 160 layers. Parts of layers are many more.
const MOST_WORK: usize = 256 * 160 * 160;

/// A graph from [`Space::START`]; a path takes devices one after another, none twice. Edges lead to
/// nodes of a higher number, except those of pinned devices, which lead back to their node: a
/// pinned device is taken at its own layers and there is no way to be at these twice.
pub(super) struct Space {
    pub(super) nodes: Vec<Node>,
    /// Stages that every chain has beside those that its last node counts.
    pinned: usize,
}

/// A place in the graph: which devices may come next.
pub(super) struct Node {
    pub(super) edges: Vec<Edge>,
    /// Unpinned devices taken so far.
    taken: usize,
}

/// A step in the graph.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    /// The device taken; `None` passes over a device.
    pub(super) device: Option<usize>,
    pub(super) next: usize,
}

impl Space {
    /// The node where every chain begins.
    pub(super) const START: usize = 0;

    /// The chains worth looking at for an input that has been checked.
    pub(super) fn new(input: &Input, pins: &[FoundPin]) -> Space {
        let is_free = |device: &usize| pins.iter().all(|(pinned, _)| pinned != device);
        let free: Vec<usize> = (0..input.devices.len()).filter(is_free).collect();
        let remote = free.iter().filter(|device| !input.devices[**device].local).count();
        let layers = input.layers.len();
        let work = layers.saturating_mul(layers).saturating_mul(1 << remote.min(EVERY_ORDER));
        let nodes = if remote <= EVERY_ORDER && work <= MOST_WORK {
            every_order(input, &free)
        } else {
            some_orders(&orders(input, &free))
        };
        let mut space = Space { nodes, pinned: pins.len() };
        space.add_pins(pins);
        space
    }

    fn add_pins(&mut self, pins: &[FoundPin]) {
        for (number, node) in self.nodes.iter_mut().enumerate() {
            let edge = |(device, _): &FoundPin| Edge { device: Some(*device), next: number };
            node.edges.extend(pins.iter().map(edge));
        }
    }

    /// The one chain that takes exactly these devices in this order.
    pub(super) fn chain(devices: &[usize]) -> Space {
        let node = |taken| {
            let device: Option<usize> = devices.get(taken).copied();
            let edge = device.map(|device| Edge { device: Some(device), next: taken + 1 });
            Node { edges: edge.into_iter().collect(), taken }
        };
        Space { nodes: (0..=devices.len()).map(node).collect(), pinned: 0 }
    }

    /// Stages of a chain that has placed every layer and ends at this node.
    pub(super) fn stages(&self, node: usize) -> usize {
        self.nodes[node].taken + self.pinned
    }

    /// Devices that can be taken next from a node, with the node each leads to, passing over
    /// others.
    pub(super) fn next_devices(&self, node: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut to_visit = vec![node];
        while let Some(node) = to_visit.pop() {
            for edge in &self.nodes[node].edges {
                match edge.device {
                    Some(device) => found.push((device, edge.next)),
                    None => to_visit.push(edge.next),
                }
            }
        }
        found
    }
}

/// One node per set of devices taken, numbered by the set's bits: the paths are all orders of all
/// subsets. The master's own device is only taken first.
fn every_order(input: &Input, free: &[usize]) -> Vec<Node> {
    (0..1_usize << free.len())
        .map(|set| {
            let open = |bit: &usize| {
                set & (1 << bit) == 0 && (set == 0 || !input.devices[free[*bit]].local)
            };
            let edge = |bit: usize| Edge { device: Some(free[bit]), next: set | (1 << bit) };
            Node {
                edges: (0..free.len()).filter(open).map(edge).collect(),
                taken: set.count_ones() as usize,
            }
        })
        .collect()
}

/// For each order one node per (devices decided on, devices taken); each device in turn is taken or
/// passed over.
fn some_orders(orders: &[Vec<usize>]) -> Vec<Node> {
    let mut nodes = vec![Node { edges: Vec::new(), taken: 0 }];
    for order in orders {
        let base = nodes.len();
        let number = |decided: usize, taken: usize| base + decided * (decided + 1) / 2 + taken;
        nodes[Space::START].edges.push(Edge { device: None, next: base });
        for decided in 0..=order.len() {
            for taken in 0..=decided {
                let edges = match order.get(decided) {
                    Some(device) => vec![
                        Edge { device: Some(*device), next: number(decided + 1, taken + 1) },
                        Edge { device: None, next: number(decided + 1, taken) },
                    ],
                    None => Vec::new(),
                };
                nodes.push(Node { edges, taken });
            }
        }
    }
    nodes
}

/// The orders searched when there are too many devices to search all.
///
/// The first, farthest device first, is enough for the best cost when layers are alike, may be parted
/// anywhere, and nothing is pinned. Proof: memory and time of a stage then depend only on its device and its number of
/// layers, so for a set of devices and their numbers of layers, every arrangement fits or none
/// does, the slowest stage is the same, and the sum differs only by the hop back from the last
/// stage. It is least with the nearest device last, which is where this order has it, whichever
/// subset is taken. The master's own device is first by rule in any arrangement.
///
/// The others are guesses for layers that differ, and for blobs already held.
fn orders(input: &Input, free: &[usize]) -> Vec<Vec<usize>> {
    let device = |index: &usize| &input.devices[*index];
    let mean_time = |index: &usize| device(index).layer_time.iter().sum::<f64>();
    let mut orders: Vec<Vec<usize>> = Vec::new();
    let mut add = |sort: &dyn Fn(&mut Vec<usize>)| {
        let mut order = free.to_vec();
        sort(&mut order);
        order.sort_by_key(|index| !device(index).local); // Stable: only the master moves.
        if !orders.contains(&order) {
            orders.push(order);
        }
    };
    add(&|order| order.sort_by(|a, b| device(b).hop.total_cmp(&device(a).hop)));
    add(&|order| order.sort_by_key(|index| longest_run(&device(index).held).0));
    add(&|order| order.sort_by_key(|index| device(index).held.iter().position(|held| *held)));
    add(&|order| order.sort_by_key(|index| device(index).held.iter().rposition(|held| *held)));
    add(&|order| order.sort_by(|a, b| device(a).name.cmp(&device(b).name)));
    add(&|_| ());
    add(&|order| order.sort_by_key(|index| std::cmp::Reverse(device(index).budget_bytes)));
    add(&|order| order.sort_by_key(|index| device(index).budget_bytes));
    add(&|order| order.sort_by(|a, b| mean_time(a).total_cmp(&mean_time(b))));
    orders
}

/// Start and length of the longest run of held layers, the first of several; `(layers, 0)` for
/// none.
fn longest_run(held: &[bool]) -> (usize, usize) {
    let mut best = (held.len(), 0);
    let mut start = 0;
    for (layer, is_held) in held.iter().enumerate() {
        if !is_held {
            start = layer + 1;
        } else if layer + 1 - start > best.1 {
            best = (start, layer + 1 - start);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::oracle::Random;
    use crate::planner::search::best_cost;
    use crate::planner::terms::{Blobs, Terms};

    #[test]
    fn one_order_is_enough_for_the_cost_when_layers_are_alike() {
        let mut compared = 0;
        for seed in 0..2_000 {
            let mut input = Random(seed).input();
            input.pins.clear();
            let first = input.layers[0];
            input.layers.fill(first);
            for device in &mut input.devices {
                let (bytes, seconds) = (device.layer_resident_bytes[0], device.layer_time[0]);
                device.layer_resident_bytes.fill(bytes);
                device.layer_time.fill(seconds);
            }
            let free: Vec<usize> = (0..input.devices.len()).collect();
            let every = Space { nodes: every_order(&input, &free), pinned: 0 };
            let one = Space { nodes: some_orders(&orders(&input, &free)[..1]), pinned: 0 };
            let terms = Terms::new(&input, &[], Blobs::Any);
            let (every, one) = (best_cost(&every, &terms), best_cost(&one, &terms));
            match (every, one) {
                (Some(every), Some(one)) => {
                    assert!((every - one).abs() <= 1e-12 * every, "seed {seed}: {every} {one}");
                    compared += 1;
                }
                (every, one) => assert_eq!(every, one, "seed {seed}: {input:?}"),
            }
        }
        assert!(compared > 500, "{compared}");
    }

    #[test]
    fn a_few_orders_give_sound_chains_around_pins() {
        let mut compared = 0;
        for seed in 0..2_000 {
            let input = Random(seed).input();
            let Ok(pins) = crate::planner::check::check(&input) else {
                continue;
            };
            let free: Vec<usize> = (0..input.devices.len())
                .filter(|device| pins.iter().all(|(pinned, _)| pinned != device))
                .collect();
            let mut few = Space { nodes: some_orders(&orders(&input, &free)), pinned: pins.len() };
            few.add_pins(&pins);
            let terms = Terms::new(&input, &pins, Blobs::Any);
            let Some(cost) = best_cost(&few, &terms) else {
                continue;
            };
            let best = best_cost(&Space::new(&input, &pins), &terms).expect("few are among all");
            assert!(best <= cost * (1.0 + 1e-12), "seed {seed}: {input:?}");
            let chain = crate::planner::ties::choose(&few, &terms, cost);
            let ends: Vec<usize> = chain.iter().map(|(_, layers)| layers.end).collect();
            let starts: Vec<usize> = chain.iter().map(|(_, layers)| layers.start).collect();
            assert_eq!((starts[0], &starts[1..]), (0, &ends[..ends.len() - 1]), "seed {seed}");
            assert!(pins.iter().all(|pin| chain.contains(pin)), "seed {seed}: {input:?}");
            compared += 1;
        }
        assert!(compared > 500, "{compared}");
    }
}
