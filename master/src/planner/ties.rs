//! The plan among those whose cost is good enough: fewest bytes to push, fewest devices, names, then cuts.

use super::search::least;
use super::space::Space;
use super::terms::Terms;
use cake_checkpoint::LayerRange;

/// Costs this close, relative to the smaller, are equal: far above the rounding of sums of times,
/// far below anything a measurement can tell apart.
pub(super) const TIE: f64 = 1e-9;

/// Allowance for adding the same times in another order.
const ROUNDING: f64 = 1e-12;

/// The chain to run among those whose cost is at most `cost`, which some chain of the space keeps to.
pub(super) fn choose(space: &Space, terms: &Terms, cost: f64) -> Vec<(usize, LayerRange)> {
    let cap = cost * (1.0 + TIE);
    let floors = Floors::new(space, terms, cap);
    let most_stages = (0..space.nodes.len()).map(|node| space.stages(node)).max().unwrap_or(0);
    let mut best: Option<(Bounds, Suffixes)> = None;
    for stages in 1..=most_stages {
        // More stages are taken only for fewer bytes.
        let push = match &best {
            Some((so_far, _)) if so_far.push == 0 => break,
            Some((so_far, _)) => so_far.push - 1,
            None => u64::MAX,
        };
        let seconds = cap * terms.steps_in_flight(stages) as f64;
        let bounds = Bounds { cap, stages, seconds, push };
        let suffixes = Suffixes::new(space, terms, &floors, bounds);
        if let Some(label) = suffixes.at(Space::START, 0).first() {
            best = Some((Bounds { push: label.push, ..bounds }, suffixes));
        }
    }
    let (bounds, suffixes) = best.expect("the caller has found the cost by finding a chain");
    // Each stage of the choice adds up what the one before it has added up in another order.
    let devices = first_by_name(space, terms, &suffixes, bounds.widened());
    cut(terms, &devices, bounds.widened().widened())
}

/// What a chain must keep to.
#[derive(Clone, Copy)]
struct Bounds {
    /// Seconds of its slowest stage.
    cap: f64,
    /// Its exact number of stages.
    stages: usize,
    /// Seconds of all stages and hops together.
    seconds: f64,
    /// Bytes to push.
    push: u64,
}

impl Bounds {
    fn widened(self) -> Bounds {
        Bounds { seconds: self.seconds * (1.0 + ROUNDING), ..self }
    }
}

/// The rest of a chain: what it pushes and how long it takes.
#[derive(Clone, Copy)]
struct Label {
    push: u64,
    seconds: f64,
}

impl Label {
    const NOTHING: Label = Label { push: 0, seconds: 0.0 };

    fn with_stage(self, terms: &Terms, device: usize, start: usize, end: usize) -> Label {
        Label {
            push: self.push.saturating_add(terms.push_bytes(device, start, end)),
            seconds: self.seconds + terms.step_seconds(device, start, end),
        }
    }

    /// Whether the two parts of a chain together keep to the bounds.
    fn joins(self, rest: Label, bounds: Bounds) -> bool {
        self.push.saturating_add(rest.push) <= bounds.push
            && self.seconds + rest.seconds <= bounds.seconds
    }
}

/// The least that any beginning of a chain pushes and takes, each on its own; laid out as by
/// [`least`].
struct Floors {
    push: Vec<u64>,
    seconds: Vec<f64>,
}

impl Floors {
    fn new(space: &Space, terms: &Terms, cap: f64) -> Floors {
        let push = |device, start, end| terms.push_bytes(device, start, end);
        let seconds = |device, start, end| terms.step_seconds(device, start, end);
        Floors {
            push: least(space, terms, cap, u64::MAX, push),
            seconds: least(space, terms, cap, f64::INFINITY, seconds),
        }
    }
}

/// For each node and number of layers placed, the ways to finish the chain that keep to the bounds
/// and of which none is beaten in both push and seconds; by ascending push, descending seconds.
struct Suffixes {
    labels: Vec<Vec<Label>>,
    width: usize,
}

impl Suffixes {
    fn new(space: &Space, terms: &Terms, floors: &Floors, bounds: Bounds) -> Suffixes {
        let width = terms.layers + 1;
        let mut suffixes = Suffixes { labels: vec![Vec::new(); space.nodes.len() * width], width };
        let mut found = Vec::new();
        for number in (0..space.nodes.len()).rev() {
            if space.stages(number) > bounds.stages {
                continue;
            }
            for start in (0..width).rev() {
                let place = number * width + start;
                let begun = Label { push: floors.push[place], seconds: floors.seconds[place] };
                if begun.seconds.is_infinite() {
                    continue; // No chain comes here.
                }
                if start < terms.layers {
                    suffixes.collect(space, terms, bounds, (number, start), &mut found);
                } else if space.stages(number) == bounds.stages {
                    found.push(Label::NOTHING);
                }
                found.retain(|rest: &Label| begun.joins(*rest, bounds));
                keep_unbeaten(&mut found);
                suffixes.labels[place].append(&mut found);
            }
        }
        suffixes
    }

    fn at(&self, node: usize, start: usize) -> &[Label] {
        &self.labels[node * self.width + start]
    }

    /// Every way on from a node, one stage longer than those already known.
    fn collect(
        &self,
        space: &Space,
        terms: &Terms,
        bounds: Bounds,
        (node, start): (usize, usize),
        found: &mut Vec<Label>,
    ) {
        for edge in &space.nodes[node].edges {
            let Some(device) = edge.device else {
                found.extend_from_slice(self.at(edge.next, start));
                continue;
            };
            for end in terms.ends(device, start) {
                if terms.stage_seconds(device, start, end) > bounds.cap {
                    break;
                }
                let rest = self.at(edge.next, end).iter();
                found.extend(rest.map(|rest| rest.with_stage(terms, device, start, end)));
            }
        }
    }
}

/// Sorts by push and drops what another beats in both, or equals.
fn keep_unbeaten(labels: &mut Vec<Label>) {
    labels.sort_unstable_by(|a, b| a.push.cmp(&b.push).then(a.seconds.total_cmp(&b.seconds)));
    let mut least = f64::INFINITY;
    labels.retain(|label| {
        let keep = label.seconds < least;
        least = least.min(label.seconds);
        keep
    });
}

/// The devices, in chain order, of the chain within the bounds whose names come first.
///
/// Taken one name at a time: the first that still lets a chain finish within the bounds.
fn first_by_name(space: &Space, terms: &Terms, suffixes: &Suffixes, bounds: Bounds) -> Vec<usize> {
    let mut chain = Vec::new();
    // Every way the names so far can be reached: node, layers placed, and what it has cost.
    let mut begun = vec![(Space::START, 0, Label::NOTHING)];
    while chain.len() < bounds.stages {
        let mut longer: Vec<(usize, usize, usize, Label)> = Vec::new(); // Device first.
        for &(node, start, so_far) in &begun {
            for (device, next) in space.next_devices(node) {
                for end in terms.ends(device, start) {
                    if terms.stage_seconds(device, start, end) > bounds.cap {
                        break;
                    }
                    let so_far = so_far.with_stage(terms, device, start, end);
                    let finishes = |rest: &Label| so_far.joins(*rest, bounds);
                    if suffixes.at(next, end).iter().any(finishes) {
                        longer.push((device, next, end, so_far));
                    }
                }
            }
        }
        let first = longer.iter().map(|(device, ..)| *device).min_by_key(|d| terms.name_rank(*d));
        let first = first.expect("a suffix from each beginning was just found to exist");
        chain.push(first);
        longer.retain(|(device, ..)| *device == first);
        begun = unbeaten_beginnings(longer);
    }
    chain
}

/// Of the beginnings at one place (node and layers placed), those that none beats.
fn unbeaten_beginnings(
    mut longer: Vec<(usize, usize, usize, Label)>,
) -> Vec<(usize, usize, Label)> {
    longer.sort_by_key(|&(_, node, end, _)| (node, end));
    let mut kept = Vec::new();
    for at_place in longer.chunk_by(|a, b| (a.1, a.2) == (b.1, b.2)) {
        let (_, node, end, _) = at_place[0];
        let mut labels: Vec<Label> = at_place.iter().map(|(.., label)| *label).collect();
        keep_unbeaten(&mut labels);
        kept.extend(labels.into_iter().map(|label| (node, end, label)));
    }
    kept
}

/// Where to cut between these devices: the smallest slowest stage, then the smallest sum, then the
/// longest earlier stages, all within the bounds, which some cut keeps to.
fn cut(terms: &Terms, devices: &[usize], bounds: Bounds) -> Vec<(usize, LayerRange)> {
    let space = Space::chain(devices);
    let capped = |cap: f64, seconds: f64| {
        let bounds = Bounds { cap, seconds, ..bounds };
        (bounds, Suffixes::new(&space, terms, &Floors::new(&space, terms, cap), bounds))
    };
    let caps = terms.stage_times(devices.iter().copied(), bounds.cap);
    let fails = |cap: &f64| capped(*cap, bounds.seconds).1.at(Space::START, 0).is_empty();
    let slowest = caps.get(caps.partition_point(fails)).copied().unwrap_or(bounds.cap);
    let (_, within_slowest) = capped(slowest, bounds.seconds);
    let sum =
        within_slowest.at(Space::START, 0).last().map_or(bounds.seconds, |label| label.seconds);
    let (bounds, suffixes) = capped(slowest, sum * (1.0 + ROUNDING));
    let bounds = bounds.widened();

    let mut so_far = Label::NOTHING;
    let mut start = 0;
    let mut stages = Vec::new();
    for (stage, &device) in devices.iter().enumerate() {
        let within = |end: &usize| terms.stage_seconds(device, start, *end) <= bounds.cap;
        let finishes = |end: &usize| {
            let so_far = so_far.with_stage(terms, device, start, *end);
            suffixes.at(stage + 1, *end).iter().any(|rest| so_far.joins(*rest, bounds))
        };
        let ends = terms.ends(device, start).take_while(within);
        let end = ends.filter(finishes).last();
        let end = end.expect("the suffixes hold a way to finish from every cut that was taken");
        so_far = so_far.with_stage(terms, device, start, end);
        stages.push((device, LayerRange::new(start, end)));
        start = end;
    }
    stages
}
