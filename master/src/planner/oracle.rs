//! For tests: random small cases, and the planner's rules applied to every plan there is.

use super::{Device, Input, LayerCost, Pin};
use cake_checkpoint::LayerRange;

/// A chain of stages: `(index of the device, its layers)`.
pub(super) type Chain = Vec<(usize, LayerRange)>;

/// What the rules say of an input.
pub(super) struct Verdict {
    pub(super) chain: Chain,
    pub(super) kept: bool,
    /// Chains that cost the same as the one chosen, itself among them.
    pub(super) tied: usize,
}

/// Applies the rules to every sound chain; `None` where there is none.
pub(super) fn verdict(input: &Input) -> Option<Verdict> {
    let chains = every_chain(input).chains;
    let least = |chains: &[Chain]| {
        chains.iter().map(|chain| cost(input, chain)).fold(f64::INFINITY, f64::min)
    };
    let pushless: Vec<Chain> =
        chains.iter().filter(|chain| push(input, chain) == 0).cloned().collect();
    let (best, held) = (least(&chains), least(&pushless));
    let keep = best > held / 1.15;
    let (mut group, target) = if keep { (pushless, held) } else { (chains, best) };
    group.retain(|chain| cost(input, chain) <= target * (1.0 + 1e-9));
    let tied = group.len();
    let key = |chain: &Chain| (push(input, chain), chain.len(), names(input, chain));
    let first = group.iter().map(key).min()?;
    group.retain(|chain| key(chain) == first);
    // The times are multiples of a power of two: these sums are exact and may be compared as they
    // are.
    let times = |chain: &Chain| (slowest(input, chain), sum(input, chain));
    let least = group.iter().map(times).min_by(|a, b| a.partial_cmp(b).unwrap())?;
    group.retain(|chain| times(chain) == least);
    let longest_first =
        |chain: &Chain| chain.iter().map(|(_, layers)| layers.end).collect::<Vec<_>>();
    let chain = group.into_iter().max_by_key(longest_first)?;
    Some(Verdict { chain, kept: keep && held > best * (1.0 + 1e-9), tied })
}

/// Every sound chain, and the most layers from layer 0 that any sound beginning of one places.
pub(super) struct Everything {
    pub(super) chains: Vec<Chain>,
    pub(super) placed: usize,
}

pub(super) fn every_chain(input: &Input) -> Everything {
    let mut everything = Everything { chains: Vec::new(), placed: 0 };
    extend(input, &mut Vec::new(), &mut everything);
    everything
}

fn extend(input: &Input, chain: &mut Chain, everything: &mut Everything) {
    let start = chain.last().map_or(0, |(_, layers)| layers.end);
    everything.placed = everything.placed.max(start);
    if start == input.layers.len() {
        let pinned = |pin: &Pin| {
            chain.iter().any(|&(index, layers)| {
                input.devices[index].name == pin.device && layers == pin.layers
            })
        };
        if input.pins.iter().all(pinned) {
            everything.chains.push(chain.clone());
        }
        return;
    }
    for (index, device) in input.devices.iter().enumerate() {
        let taken = chain.iter().any(|(other, _)| *other == index);
        if taken || (device.local && !chain.is_empty()) {
            continue;
        }
        let may_cut = |end: &usize| !input.layers.get(*end).is_some_and(|layer| layer.joined);
        for end in (start + 1..=input.layers.len()).filter(may_cut) {
            let layers = LayerRange::new(start, end);
            let clashes = |pin: &Pin| {
                let apart = pin.layers.end <= start || end <= pin.layers.start;
                if pin.device == device.name { pin.layers != layers } else { !apart }
            };
            if need(input, index, layers) <= device.budget_bytes && !input.pins.iter().any(clashes)
            {
                chain.push((index, layers));
                extend(input, chain, everything);
                chain.pop();
            }
        }
    }
}

pub(super) fn need(input: &Input, index: usize, layers: LayerRange) -> u64 {
    let device = &input.devices[index];
    let of_layer =
        |layer: usize| device.layer_resident_bytes[layer] + input.layers[layer].kept_bytes();
    device.overhead_bytes + device.scratch_bytes + layers.iter().map(of_layer).sum::<u64>()
}

fn stage_seconds(input: &Input, &(index, layers): &(usize, LayerRange)) -> f64 {
    input.devices[index].layer_time[layers.start..layers.end].iter().sum()
}

fn slowest(input: &Input, chain: &Chain) -> f64 {
    chain.iter().map(|stage| stage_seconds(input, stage)).fold(0.0, f64::max)
}

fn sum(input: &Input, chain: &Chain) -> f64 {
    let hop = |index: usize| match &input.devices[index] {
        device if device.local => 0.0,
        device => device.hop,
    };
    let there: f64 = chain.iter().map(|stage| hop(stage.0) + stage_seconds(input, stage)).sum();
    there + hop(chain[chain.len() - 1].0)
}

pub(super) fn cost(input: &Input, chain: &Chain) -> f64 {
    let steps = input.parallel.min(chain.len());
    slowest(input, chain).max(sum(input, chain) / steps as f64)
}

pub(super) fn push(input: &Input, chain: &Chain) -> u64 {
    let of_stage = |&(index, layers): &(usize, LayerRange)| {
        let device = &input.devices[index];
        let missing = |layer: &usize| !device.local && !device.held[*layer];
        layers.iter().filter(missing).map(|layer| input.layers[layer].bytes).sum::<u64>()
    };
    chain.iter().map(of_stage).sum()
}

pub(super) fn names(input: &Input, chain: &Chain) -> Vec<String> {
    chain.iter().map(|(index, _)| input.devices[*index].name.clone()).collect()
}

/// Numbers from a seed (splitmix64), the same on every machine.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// A number in `from..=to`.
    pub(super) fn number(&mut self, from: u64, to: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        from + (bits ^ (bits >> 31)) % (to - from + 1)
    }

    /// True once in `of` times.
    pub(super) fn once_in(&mut self, of: u64) -> bool {
        self.number(1, of) == 1
    }

    /// Seconds that are a multiple of 1/64, so that sums are exact and ties are common.
    fn seconds(&mut self, from: u64, to: u64) -> f64 {
        self.number(from, to) as f64 / 64.0
    }

    /// `count` draws that are all alike in `alike` cases, and each on its own otherwise.
    fn list<T: Clone>(
        &mut self,
        count: usize,
        alike: bool,
        draw: impl Fn(&mut Self) -> T,
    ) -> Vec<T> {
        let first = draw(self);
        (0..count).map(|_| if alike { first.clone() } else { draw(self) }).collect()
    }

    /// At most 4 devices and 6 layers, with everything the planner knows of.
    pub(super) fn input(&mut self) -> Input {
        let count = self.number(1, 6) as usize;
        let alike = self.once_in(2);
        let context_tokens = 256;
        let mut layers: Vec<LayerCost> = self.list(count, alike, |random| LayerCost {
            bytes: random.number(1, 40),
            kv_bytes: random.number(0, 4) * context_tokens / 64,
            state_bytes: random.number(0, 2),
            joined: false,
        });
        if self.once_in(4) {
            layers.iter_mut().for_each(|layer| layer.joined = self.once_in(3));
        }
        let mut devices: Vec<Device> = (0..self.number(1, 4))
            .map(|_| Device {
                name: String::new(),
                budget_bytes: self.number(5, 250),
                overhead_bytes: self.number(0, 10),
                scratch_bytes: self.number(0, 10),
                layer_resident_bytes: Vec::new(),
                layer_time: self.list(count, alike, |random| random.seconds(1, 8)),
                hop: self.seconds(0, 3),
                push_bytes_per_second: None,
                held: Vec::new(),
                local: false,
            })
            .collect();
        let mut names = vec!["board", "laptop", "phone", "tablet"];
        let holding = self.number(0, 3);
        for device in &mut devices {
            device.name = names.remove(self.number(0, names.len() as u64 - 1) as usize).into();
            let wider = self.number(0, 1);
            device.layer_resident_bytes = layers.iter().map(|layer| layer.bytes << wider).collect();
            device.held = self.list(count, false, |random| random.number(1, 3) <= holding);
        }
        if self.once_in(4) {
            let master = self.number(0, devices.len() as u64 - 1) as usize;
            devices[master].local = true;
        }
        let parallel = self.number(0, 5) as usize;
        let mut input = Input {
            layers,
            devices,
            parallel,
            pins: Vec::new(),
            activation_bytes: 16,
            slack: 0.0,
            context_tokens,
            ends_seconds: 0.0,
        };
        input.parallel = input.parallel.max(1);
        if self.once_in(2) {
            self.hold_some_chain(&mut input);
        }
        if self.once_in(3) {
            self.pin_some(&mut input);
        }
        input
    }

    /// As after an earlier plan: the devices hold the blobs of one sound chain.
    fn hold_some_chain(&mut self, input: &mut Input) {
        let chains = every_chain(input).chains;
        if chains.is_empty() {
            return;
        }
        let chain = &chains[self.number(0, chains.len() as u64 - 1) as usize];
        for &(index, layers) in chain {
            input.devices[index].held[layers.start..layers.end].fill(true);
        }
    }

    fn pin_some(&mut self, input: &mut Input) {
        for device in &input.devices {
            if self.once_in(2) {
                let start = self.number(0, input.layers.len() as u64 - 1);
                let end = self.number(start + 1, input.layers.len() as u64);
                let layers = LayerRange::new(start as usize, end as usize);
                input.pins.push(Pin { device: device.name.clone(), layers });
            }
        }
    }
}
