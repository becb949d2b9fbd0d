//! What holds of every specification, wherever it came from: whoever computes sizes, shapes, memory or angles from one
//! relies on it, and neither overflows, divides by zero, nor looks for what is not there.

mod beside;
mod recurrent;

use std::collections::HashMap;

use super::error::{Fault, SpecError};
use super::latent::{LatentQueries, LatentSpec};
use super::limit;
use super::rotation::{Rope, RopeScaling, RotationSpec};
use super::spec::{
    Activation, AttentionSpec, Branch, ClampedGate, ExpertsSpec, GateUp, Joined, LayerSpec,
    MlpSpec, Name, NormSpec, Op, OutputGate, PositionScale, RouterNorm,
};
use super::whole::ModelSpec;

/// Smallest number that is divided by, or that has to be told from zero: what f32 has in full precision.
const LEAST: f64 = f32::MIN_POSITIVE as f64;
/// Most axes of a tensor that is one row.
const MOST_AXES: usize = 8;

impl ModelSpec {
    /// Refuses whatever an engine, a probe or a formula for memory could not do with.
    ///
    /// # Errors
    /// [`SpecError::Model`] or [`SpecError::Layer`].
    pub(super) fn check(&self) -> Result<(), SpecError> {
        self.check_ends().map_err(SpecError::Model)?;
        let mut experts = 0;
        for (layer, spec) in self.layers.iter().enumerate() {
            let in_layer = |fault| SpecError::Layer { layer, fault };
            self.check_layer(spec).map_err(in_layer)?;
            self.check_keys(layer).map_err(in_layer)?;
            experts += experts_of(spec); // Each layer's were bounded just now.
            let all = size("number of experts up to here", experts, 0, limit::EXPERTS);
            all.map_err(in_layer)?;
            one_shape_each(spec).map_err(in_layer)?; // Bounded as well, by now.
        }
        self.check_slices()?;
        Ok(())
    }

    fn check_ends(&self) -> Result<(), Fault> {
        name("architecture", &self.architecture)?;
        size("hidden_size", self.hidden_size, 1, limit::HIDDEN)?;
        size("vocab_size", self.vocab_size, 1, limit::VOCAB)?;
        let positions = self.max_position_embeddings;
        size("max_position_embeddings", positions, 1, limit::POSITIONS)?;
        name("embedding", &self.embedding)?;
        factor("embedding_multiplier", self.embedding_multiplier.into())?;
        name("layer_prefix", &self.layer_prefix)?;
        norm("width of the final norm", &self.final_norm, self.hidden_size)?;
        name("head", &self.head)?;
        factor("multiplier of logits", self.logits.multiplier.into())?;
        number(
            "softcap of logits",
            self.logits.softcap.unwrap_or(1.0).into(),
            LEAST,
            limit::FACTOR,
        )?;
        size("number of end tokens", self.eos_token_ids.len(), 0, limit::END_TOKENS)?;
        size("number of rotations", self.rotations.len(), 0, limit::ROTATIONS)?;
        self.rotations.iter().try_for_each(rotation)?;
        size("number of layers", self.layers.len(), 1, limit::LAYERS)?;
        if let Some(streams) = &self.streams {
            size("streams of hidden states", streams.begin.len() + 1, 2, limit::STREAMS)?;
            width("ends of streams", streams.end.len(), streams.begin.len())?;
            let mut modules = streams.begin.iter().chain(&streams.end);
            modules.try_for_each(|module| name("module of a stream", module))?;
        }
        if let Some(given) = &self.given {
            self.check_given(given)?;
        }
        // All are bounded: no overflow.
        size("numbers of a row", self.row_width(0), 1, limit::HIDDEN)
    }

    fn check_layer(&self, layer: &LayerSpec) -> Result<(), Fault> {
        size("number of branches", layer.branches.len(), 1, limit::BRANCHES)?;
        match &layer.streams {
            Some(streams) => self.layer_streams(streams, layer.others.as_ref())?,
            None if layer.others.is_some() => return Err(Fault::OtherStreams),
            None => {}
        }
        let streams = layer.streams.as_ref().map_or(1, |streams| streams.count);
        width("streams of the layer", streams, self.stream_count())?;
        for Branch { pre, op, post, multiplier, residual } in layer.all_branches() {
            for outer in pre.iter().chain(post) {
                norm("width of a norm before or after an operation", outer, self.hidden_size)?;
            }
            factor("multiplier", (*multiplier).into())?;
            factor("multiplier of hidden states", residual.unwrap_or(1.0).into())?;
            let parts = op.parts();
            size("number of operations in a sum", op.parts().len(), 1, limit::BRANCHES)?;
            self.normed(op)?;
            for op in parts {
                match op {
                    Op::Attention(it) => self.attention(it)?,
                    Op::Latent(it) => self.latent(it)?,
                    Op::ShortConvolution(it) => self.short_convolution(it)?,
                    Op::Delta(it) => self.delta(it)?,
                    Op::Mamba(it) => self.mamba(it)?,
                    Op::Mlp(it) => mlp(it, self.hidden_size)?,
                    Op::Experts(it) => self.experts(it)?,
                    Op::WithGiven(it) => self.with_given(it)?,
                    Op::LowRank(it) => self.low_rank(it)?,
                    Op::Sum(_) | Op::Normed(_) => return Err(Fault::SumOfSums),
                }
            }
        }
        if let Some(scalar) = &layer.scalar {
            name("scalar of the layer", scalar)?;
        }
        let count = experts_of(layer);
        size("number of experts of the layer", count, 0, limit::EXPERTS_OF_LAYER)
    }

    /// Checks what stands around operations: norms in sums, of which none has another one in it.
    fn normed(&self, op: &Op) -> Result<(), Fault> {
        let Op::Sum(parts) = op else {
            return if matches!(op, Op::Normed(_)) { Err(Fault::SumOfSums) } else { Ok(()) };
        };
        for part in parts {
            match part {
                Op::Sum(_) => return Err(Fault::SumOfSums),
                Op::Normed(it) => {
                    factor("multiplier in a sum", it.multiplier.unwrap_or(1.0).into())?;
                    for own in it.pre.iter().chain(&it.post) {
                        norm("width of a norm in a sum", own, self.hidden_size)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn attention(&self, it: &AttentionSpec) -> Result<(), Fault> {
        width("hidden_size of attention", it.hidden_size, self.hidden_size)?;
        size("heads", it.heads, 1, limit::HEADS)?;
        size("kv_heads", it.kv_heads, 1, limit::HEADS)?;
        size("head_dim", it.head_dim, 1, limit::HEAD_DIM)?;
        size("heads × head_dim", it.q_dim(), 1, limit::INNER)?; // Both are bounded: no overflow.
        let (heads, kv_heads) = (it.heads, it.kv_heads);
        if heads % kv_heads != 0 {
            return Err(Fault::HeadsNotDivisible { heads, kv_heads });
        }
        joined("module of queries, keys or values", &it.qkv)?;
        name("module of the output", &it.output)?;
        if let Some(OutputGate::Softplus { module, .. }) = &it.output_gate {
            name("module of the gates of heads", module)?;
        }
        for (head_norm, all) in it.qk_norm.iter().flatten().zip([it.q_dim(), it.kv_dim()]) {
            let expected = if head_norm.width == all { all } else { it.head_dim };
            norm("width of a norm of queries or keys", head_norm, expected)?;
        }
        number("eps of a norm of turned heads", it.turned_norm.unwrap_or(1.0), LEAST, 1.0)?;
        number("eps of a norm of values", it.value_norm.unwrap_or(1.0), LEAST, 1.0)?;
        number("scale", it.scale, LEAST, limit::FACTOR)?;
        if let Some(PositionScale { beta, span, first }) = it.query_scale {
            size("number of the first position", first, 0, 1)?;
            factor("growth of queries", beta)?;
            number("positions before queries grow", span, 1.0, limit::FACTOR)?;
        }
        number("softcap", it.softcap.unwrap_or(1.0), LEAST, limit::FACTOR)?;
        if let Some(sinks) = &it.sinks {
            name("sinks of attention", sinks)?;
        }
        size("window", it.window.unwrap_or(1), 1, limit::POSITIONS)?;
        size("segment", it.segment.unwrap_or(1), 1, limit::POSITIONS)?;
        self.turns(it.rotation, it.head_dim)
    }

    fn latent(&self, it: &LatentSpec) -> Result<(), Fault> {
        width("hidden_size of attention", it.hidden_size, self.hidden_size)?;
        size("heads", it.heads, 1, limit::HEADS)?;
        for (what, dim) in [
            ("plain_dim", it.plain_dim),
            ("rotary_dim", it.rotary_dim),
            ("value_dim", it.value_dim),
            ("rank", it.rank),
        ] {
            size(what, dim, 1, limit::HEAD_DIM)?;
        }
        // All are bounded: no overflow.
        size("heads × (plain_dim + rotary_dim)", it.q_dim(), 1, limit::INNER)?;
        let up = it.heads * (it.plain_dim + it.value_dim);
        size("heads × (plain_dim + value_dim)", up, 1, limit::INNER)?;
        // Scores are taken of queries that are as wide as what is kept.
        size("heads × (rank + rotary_dim)", it.heads * it.kept_dim(), 1, limit::INNER)?;
        match &it.queries {
            LatentQueries::Whole(module) => name("module of queries", module)?,
            LatentQueries::Short { down, bias: _, norm: own, up } => {
                size("width of short queries", own.width, 1, limit::HIDDEN)?;
                norm("width of the norm of short queries", own, own.width)?;
                name("module of short queries", down)?;
                name("module of queries", up)?;
            }
        }
        name("module of latents", &it.down)?;
        norm("width of the norm of latents", &it.norm, it.rank)?;
        name("module of keys and values", &it.up)?;
        if let Some(keys) = &it.keys {
            name("module of keys", keys)?;
        }
        name("module of the output", &it.output)?;
        number("scale", it.scale, LEAST, limit::FACTOR)?;
        self.turns(it.rotation, it.rotary_dim)
    }

    /// Refuses a rotation that there is not, or of more than so many numbers.
    fn turns(&self, rotation: Option<usize>, most: usize) -> Result<(), Fault> {
        let Some(rotation) = rotation else { return Ok(()) };
        let rotations = self.rotations.len();
        match self.rotations.get(rotation) {
            None => Err(Fault::NoSuchRotation { rotation, rotations }),
            Some(turning) if turning.dim > most => {
                Err(Fault::RotatingPart { dim: turning.dim, most })
            }
            Some(_) => Ok(()),
        }
    }

    fn experts(&self, it: &ExpertsSpec) -> Result<(), Fault> {
        let inside = match &it.projections {
            None => self.hidden_size,
            Some(around) => {
                width("hidden_size of experts", around.hidden_size, self.hidden_size)?;
                name("projection to experts", &around.input)?;
                name("projection from experts", &around.output)?;
                size("width of experts", it.expert.hidden_size, 1, self.hidden_size)?;
                it.expert.hidden_size
            }
        };
        mlp(&it.expert, inside)?;
        if it.expert.activation_numbers.is_some() {
            return Err(Fault::ActivationNumbers);
        }
        size("count of experts", it.count, 1, limit::EXPERTS_OF_LAYER)?;
        size("chosen experts", it.chosen, 1, it.count)?;
        if let Some(slice) = it.slice {
            size("end of a slice of experts", slice.end, 1, it.count)?;
            size("start of a slice of experts", slice.start, 0, slice.end - 1)?;
        }
        name("prefix of experts", &it.prefix)?;
        let router = &it.router;
        name("module of the router", &router.path)?;
        if let Some(own) = &it.norm {
            norm("width of the norm of experts", own, self.hidden_size)?;
        }
        let changed = router.correction.is_some() || router.groups.is_some();
        if router.scores.are_of_chosen() && (changed || router.renormalise.is_some()) {
            return Err(Fault::ScoresOfChosen);
        }
        if let Some(RouterNorm { scale, factor, eps }) = &router.norm {
            name("scale of the router", scale)?;
            self::factor("factor of the router's norm", *factor)?;
            number("eps of the router's norm", *eps, LEAST, 1.0)?;
        }
        if let Some(scale) = &router.expert_scale {
            name("scale of experts", scale)?;
        }
        if let Some(correction) = &router.correction {
            name("correction of the router", &correction.name)?;
            size("axes of the correction", correction.axes, 1, MOST_AXES)?;
        }
        if let Some(groups) = router.groups {
            size("groups of experts", groups.count, 1, it.count)?;
            size("chosen groups of experts", groups.chosen, 1, groups.count)?;
            let in_each = it.count / groups.count;
            width("experts in groups of one size", in_each * groups.count, it.count)?;
            size("experts chosen of groups", it.chosen, 1, groups.chosen * in_each)?;
        }
        let least = router.renormalise.unwrap_or(0.0).into();
        number("least sum of weights", least, 0.0, limit::FACTOR)?;
        factor("multiplier of weights", router.multiplier.into())
    }
}

fn mlp(it: &MlpSpec, hidden_size: usize) -> Result<(), Fault> {
    width("hidden_size of a network", it.hidden_size, hidden_size)?;
    size("inner_size", it.inner_size, 1, limit::INNER)?;
    match &it.gate_up {
        GateUp::Gated(modules) => joined("module of gate or up", modules)?,
        GateUp::Plain(module) => name("module of up", module)?,
    }
    factor("multiplier of a gate", it.gate_multiplier.unwrap_or(1.0).into())?;
    factor("bound of gates", it.gate_cutoff.unwrap_or(0.0).into())?;
    if it.gate_cutoff.is_some() && !matches!(it.gate_up, GateUp::Gated(_)) {
        return Err(Fault::NoGate);
    }
    let has_numbers = it.activation == Activation::Xielu;
    if it.activation_numbers.is_some() != has_numbers
        || (has_numbers && matches!(it.gate_up, GateUp::Gated(_)))
    {
        return Err(Fault::ActivationNumbers);
    }
    if let Some(numbers) = &it.activation_numbers {
        name("numbers of an activation", numbers)?;
    }
    if let Some(ClampedGate { alpha, limit }) = it.clamped {
        if it.activation != Activation::Silu || matches!(it.gate_up, GateUp::Plain(_)) {
            return Err(Fault::ClampedGate);
        }
        number("alpha of a clamped gate", alpha.into(), LEAST, limit::FACTOR)?;
        number("limit of a clamped gate", limit.into(), LEAST, limit::FACTOR)?;
    }
    if let Some(gate) = &it.output_gate {
        name("module of an output's gate", gate)?;
    }
    name("module of down", &it.down)
}

/// How many experts a layer has, in all its branches.
fn experts_of(layer: &LayerSpec) -> usize {
    let counts = layer.ops().map(|op| if let Op::Experts(it) = op { it.here().len() } else { 0 });
    counts.fold(0, usize::saturating_add)
}

/// Refuses a layer with two tensors of one name and different shapes. What it names was bounded before.
fn one_shape_each(layer: &LayerSpec) -> Result<(), Fault> {
    let mut shapes: HashMap<String, Vec<u64>> = HashMap::new();
    for tensor in layer.all_tensors() {
        let name = tensor.leaf();
        let second = tensor.shape;
        match shapes.get(&name) {
            Some(first) if *first == second => {}
            Some(first) => return Err(Fault::TwoShapes { first: first.clone(), name, second }),
            None => drop(shapes.insert(name, second)),
        }
    }
    Ok(())
}

fn rotation(RotationSpec { rope, dim, pairs: _ }: &RotationSpec) -> Result<(), Fault> {
    if *dim == 0 || !dim.is_multiple_of(2) || *dim > limit::HEAD_DIM {
        return Err(Fault::RotatingPart { dim: *dim, most: limit::HEAD_DIM });
    }
    let Rope { theta, scaling } = rope;
    number("theta", *theta, LEAST, limit::THETA)?;
    let divisor = |what, value| number(what, value, LEAST, limit::FACTOR);
    match *scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => divisor("factor", factor),
        RopeScaling::LongRope {
            ref short_factor,
            ref long_factor,
            original_max_position,
            attention_factor,
        } => {
            for factors in [short_factor, long_factor] {
                width("factors of frequencies", factors.len(), dim / 2)?;
                factors.iter().try_for_each(|it| divisor("factor of a frequency", *it))?;
            }
            divisor("original_max_position", original_max_position)?;
            self::factor("attention_factor", attention_factor)
        }
        RopeScaling::Proportional { rotating, factor } => {
            size("pairs that rotate", rotating, 0, dim / 2)?;
            divisor("factor", factor)
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_max_position,
            truncate: _,
            attention_factor,
        } => {
            divisor("factor", factor)?;
            divisor("beta_fast", beta_fast)?;
            divisor("beta_slow", beta_slow)?;
            divisor("original_max_position", original_max_position)?;
            self::factor("attention_factor", attention_factor)
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position,
        } => {
            divisor("factor", factor)?;
            divisor("low_freq_factor", low)?;
            divisor("high_freq_factor", high)?;
            number("high_freq_factor − low_freq_factor", high - low, 0.0, limit::FACTOR)?;
            divisor("original_max_position", original_max_position)
        }
    }
}

fn norm(what: &'static str, norm: &NormSpec, expected: usize) -> Result<(), Fault> {
    name("module of a norm", &norm.path)?;
    width(what, norm.width, expected)?;
    number("eps", norm.eps, LEAST, 1.0)?;
    factor("offset", norm.offset.into())
}

fn joined<const N: usize>(what: &'static str, modules: &Joined<N>) -> Result<(), Fault> {
    match modules {
        Joined::Separate(names) => names.iter().try_for_each(|it| name(what, it)),
        Joined::Fused(it) => name(what, it),
    }
}

fn name(what: &'static str, name: &Name) -> Result<(), Fault> {
    if name.is_empty() || name.len() > limit::NAME || name.chars().any(char::is_control) {
        let start = name.floor_char_boundary(limit::NAME);
        return Err(Fault::Name { what, name: name[..start].to_owned() });
    }
    Ok(())
}

fn size(what: &'static str, found: usize, least: usize, most: usize) -> Result<(), Fault> {
    match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(Fault::Size { what, found, least, most }),
    }
}

fn width(what: &'static str, found: usize, expected: usize) -> Result<(), Fault> {
    match found == expected {
        true => Ok(()),
        false => Err(Fault::Width { what, found, expected }),
    }
}

/// A number that anything may be multiplied with.
fn factor(what: &'static str, found: f64) -> Result<(), Fault> {
    number(what, found, -limit::FACTOR, limit::FACTOR)
}

fn number(what: &'static str, found: f64, least: f64, most: f64) -> Result<(), Fault> {
    match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(Fault::Number { what, found, least, most }), // NaN is in no range.
    }
}
