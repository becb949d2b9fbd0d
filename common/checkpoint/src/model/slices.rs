//! Layers that are parted, for devices of which none has room for a whole one: what comes before a mixture of experts, and
//! the experts in slices, each a layer of the specification by itself.
//!
//! A row's result is the sum of its experts' in the order of their numbers. Each slice but the last adds its own to what
//! the one before it has, and a row carries both, hidden states and sums, so that the numbers are those of a layer that
//! was never parted, wherever it is.

use super::error::{Fault, SpecError};
use super::experts::{ExpertRange, ExpertsSpec};
use super::spec::{Branch, LayerSpec, NormedSpec, Op};
use super::whole::ModelSpec;

impl LayerSpec {
    /// The experts of its only mixture.
    fn mixture(&self) -> Option<&ExpertsSpec> {
        let mut mixtures = self.ops().filter_map(experts_of);
        mixtures.next().filter(|_| mixtures.next().is_none())
    }

    /// Whether it is a slice of experts of which later ones are elsewhere: it leaves hidden states as they are, and adds to
    /// the sums that go with them.
    pub fn is_partial(&self) -> bool {
        self.ops().filter_map(experts_of).any(ExpertsSpec::is_partial)
    }

    /// The layer in parts, if it has a mixture of experts; else itself alone.
    fn parted(&self, slices: usize) -> Vec<LayerSpec> {
        let of = |branches: &[Branch]| LayerSpec {
            branches: branches.to_vec(),
            scalar: None,
            ..self.clone()
        };
        let has_experts = |branch: &Branch| branch.op.parts().into_iter().any(is_mixture);
        let at = self.branches.iter().position(has_experts);
        let (Some(at), Some(mixture)) = (at, self.mixture()) else {
            return vec![self.clone()];
        };
        let slices = slices.clamp(1, mixture.count);
        let bound = |slice: usize| slice * mixture.count / slices;
        let slice = |slice| ExpertRange { start: bound(slice), end: bound(slice + 1) };
        let (before, rest) = self.branches.split_at(at);
        let first = (!before.is_empty()).then(|| of(before));
        let partial = (0..slices - 1).map(|index| {
            let op = only_experts(&rest[0].op, slice(index));
            of(&[Branch { op, post: None, multiplier: 1.0, ..rest[0].clone() }])
        });
        let mut last = of(rest);
        last.scalar.clone_from(&self.scalar);
        last = last.with_ops(|op| with_slice(op, slice(slices - 1)));
        first.into_iter().chain(partial).chain([last]).collect()
    }
}

fn is_mixture(op: &Op) -> bool {
    matches!(op, Op::Experts(_))
}

fn experts_of(op: &Op) -> Option<&ExpertsSpec> {
    if let Op::Experts(it) = op { Some(it) } else { None }
}

fn with_slice(op: &Op, slice: ExpertRange) -> Op {
    match op {
        Op::Experts(it) => Op::Experts(ExpertsSpec { slice: Some(slice), ..it.clone() }),
        other => other.clone(),
    }
}

/// What of an operation leads to some of its experts, and nothing of what becomes of their sum.
fn only_experts(op: &Op, slice: ExpertRange) -> Op {
    match op {
        Op::Sum(parts) => {
            let leads = |part: &&Op| part.parts().into_iter().any(is_mixture);
            let parts = parts.iter().filter(leads).map(|part| match part {
                Op::Normed(it) => {
                    let (pre, op) = (it.pre.clone(), with_slice(&it.op, slice));
                    Op::Normed(Box::new(NormedSpec { pre, op, post: None, multiplier: None }))
                }
                one => with_slice(one, slice),
            });
            Op::Sum(parts.collect())
        }
        one => with_slice(one, slice),
    }
}

impl ModelSpec {
    /// The same model with each layer that has a mixture of experts in parts, and these in so many slices. `None` where
    /// nothing is parted by that.
    pub fn sliced(&self, slices: usize) -> Option<ModelSpec> {
        // What a layer is given, and whose keys it attends to, is said by places of layers.
        if self.given.is_some()
            || self.streams.is_some()
            || self.layers.iter().any(|layer| layer.keys_of().is_some())
        {
            return None;
        }
        let (mut layers, mut numbers) = (Vec::new(), Vec::new());
        for (layer, spec) in self.layers.iter().enumerate() {
            layers.extend(spec.parted(slices));
            numbers.resize(layers.len(), self.number(layer));
        }
        let is_parted = layers.len() > self.layers.len();
        is_parted.then(|| ModelSpec { layers, numbers, ..self.clone() })
    }

    /// The number of a layer in the names of its tensors: its place, unless layers are parted.
    pub fn number(&self, layer: usize) -> usize {
        self.numbers.get(layer).copied().unwrap_or(layer)
    }

    /// Whether rows that come to this layer bring sums of experts beside hidden states.
    pub fn carries_sums(&self, layer: usize) -> bool {
        let before = layer.checked_sub(1).and_then(|before| self.layers.get(before));
        before.is_some_and(LayerSpec::is_partial)
    }

    /// Refuses slices that are not each other's.
    ///
    /// # Errors
    /// [`SpecError::Layer`]
    pub(super) fn check_slices(&self) -> Result<(), SpecError> {
        if !self.numbers.is_empty() {
            // As many as layers, each that of the one before or the next.
            let step = |pair: &[usize]| pair[1].checked_sub(pair[0]).is_some_and(|step| step <= 1);
            let steps = self.numbers.windows(2).all(step);
            if self.numbers.len() != self.layers.len() || self.numbers[0] != 0 || !steps {
                return Err(SpecError::Model(Fault::LayerNumbers));
            }
        }
        let parted = !self.numbers.is_empty() || self.layers.iter().any(LayerSpec::is_partial);
        if parted && (self.given.is_some() || self.streams.is_some()) {
            return Err(SpecError::Model(Fault::LayerNumbers));
        }
        let mut before: Option<&LayerSpec> = None;
        for (layer, spec) in self.layers.iter().enumerate() {
            let in_layer = |fault| SpecError::Layer { layer, fault };
            spec.check_slice(before).map_err(in_layer)?;
            if self.carries_sums(layer) && self.number(layer) != self.number(layer - 1) {
                return Err(in_layer(Fault::LayerNumbers));
            }
            before = Some(spec);
        }
        let layer = self.layers.len().saturating_sub(1);
        match before {
            Some(last) if last.is_partial() => {
                Err(SpecError::Layer { layer, fault: Fault::SliceWithoutNext })
            }
            _ => Ok(()),
        }
    }
}

impl LayerSpec {
    /// Checks a slice of experts beside the layer before it.
    fn check_slice(&self, before: Option<&LayerSpec>) -> Result<(), Fault> {
        let sliced = |op: &&ExpertsSpec| op.slice.is_some();
        let mut slices = self.ops().filter_map(experts_of).filter(sliced);
        let own = slices.next();
        if slices.next().is_some() {
            return Err(Fault::SliceBesideOthers);
        }
        let begins = own.map_or(0, |own| own.here().start);
        let ended = before.filter(|it| it.is_partial()).and_then(LayerSpec::mixture);
        let follows = match (own, ended) {
            (Some(own), Some(ended)) => {
                let same = ExpertsSpec { slice: None, ..own.clone() }
                    == ExpertsSpec { slice: None, ..ended.clone() };
                same && begins == ended.here().end
            }
            (None, Some(_)) => false,
            (_, None) => begins == 0,
        };
        if !follows {
            return Err(Fault::SliceDoesNotFollow { start: begins });
        }
        let is_alone = |branch: &Branch| {
            let bare = match &branch.op {
                Op::Sum(parts) => match &parts[..] {
                    [Op::Normed(it)] => it.post.is_none() && it.multiplier.is_none(),
                    parts => parts.len() == 1,
                },
                _ => true,
            };
            bare && branch.post.is_none() && branch.multiplier == 1.0
        };
        match &self.branches[..] {
            [only] if self.is_partial() && is_alone(only) && self.scalar.is_none() => Ok(()),
            _ if self.is_partial() => Err(Fault::SliceBesideOthers),
            _ => Ok(()),
        }
    }
}
