//! Why there is no plan, in facts and in a sentence, and what would help.

use super::search::most_placed;
use super::space::Space;
use super::terms::{
    Blobs, FoundPin, Terms, fixed_bytes, layer_bytes, may_cut, one_layer_bytes, pieces,
};
use super::{Device, Input, LayerCost};
use cake_checkpoint::LayerRange;
use cake_checkpoint::units::format_bytes;
use serde::Serialize;
use std::fmt;

/// A suggested context is a multiple of this many tokens: KV caches come in blocks.
const CONTEXT_STEP: u64 = 64;

/// Why a model cannot be placed on these devices.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// Nobody offers memory.
    #[error("there is no device to place layers on")]
    NoDevices,
    /// Nobody who may have layers computes with matrices that are stored as theirs.
    #[error(
        "no device that may have layers runs {}: {} {} not",
        encodings.join(", "), devices.join(", "), plural(devices.len(), "does", "do")
    )]
    NobodyRuns {
        /// The encodings, by name.
        encodings: Vec<String>,
        /// Who is there and does not.
        devices: Vec<String>,
    },
    /// A pin names a device that does not compute with its layers.
    #[error("layers {layers} are placed on {device}, which does not run {}", encodings.join(", "))]
    PinNotRun {
        /// The device.
        device: String,
        /// The layers it was to have.
        layers: LayerRange,
        /// The encodings, by name.
        encodings: Vec<String>,
    },
    /// The model has no layers.
    #[error("the model has no layers to place")]
    NoLayers,
    /// A device's figures are not one per layer.
    #[error("device {device} gives {found} figures for {what}, the model has {layers} layers")]
    WrongLength {
        /// The device.
        device: String,
        /// Which of its figures.
        what: &'static str,
        /// Layers of the model.
        layers: usize,
        /// Figures given.
        found: usize,
    },
    /// A measured time is negative, endless or not a number.
    #[error("device {device} claims {seconds} seconds for {what}, which cannot be")]
    BadTime {
        /// The device.
        device: String,
        /// What the time is for.
        what: &'static str,
        /// The time claimed.
        #[serde(skip)]
        seconds: f64,
    },
    /// The layers' bytes do not fit the numbers they are counted in.
    #[error("the layers are larger than any checkpoint can be")]
    TooManyBytes,
    /// Two devices share a name, so that a person could not tell them apart.
    #[error("two devices are named {name}")]
    SameName {
        /// The name.
        name: String,
    },
    /// Two devices claim to be the master itself.
    #[error("both {first} and {second} claim to be the master itself")]
    TwoLocal {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// A pin names a device that is not there.
    #[error("layers {layers} are placed on {device}, which is not among {}", known.join(", "))]
    PinUnknownDevice {
        /// The name given.
        device: String,
        /// The layers it was to have.
        layers: LayerRange,
        /// The names there are.
        known: Vec<String>,
    },
    /// A device is pinned twice.
    #[error("{device} is placed twice, and a device runs one range of layers")]
    PinTwice {
        /// The device.
        device: String,
    },
    /// A pin holds no layer.
    #[error("the range {layers} placed on {device} holds no layer")]
    PinEmpty {
        /// The device.
        device: String,
        /// Its range.
        layers: LayerRange,
    },
    /// A pin reaches past the last layer.
    #[error("layers {layers} are placed on {device}, the model has only 0..{model_layers}")]
    PinOutOfRange {
        /// The device.
        device: String,
        /// Its range.
        layers: LayerRange,
        /// Layers of the model.
        model_layers: usize,
    },
    /// A pin parts layers that must be in one stage.
    #[error(
        "layers {layers} are placed on {device}, but one device must have all of {together}, which share what they keep"
    )]
    PinCuts {
        /// The device.
        device: String,
        /// Its range.
        layers: LayerRange,
        /// Layers that cannot be parted.
        together: LayerRange,
    },
    /// Two pins share a layer.
    #[error("layers {first_layers} on {first} and {second_layers} on {second} overlap")]
    PinOverlap {
        /// The device with the earlier range.
        first: String,
        /// Its range.
        first_layers: LayerRange,
        /// The other device.
        second: String,
        /// Its range.
        second_layers: LayerRange,
    },
    /// The master is pinned behind another stage.
    #[error("{device} is the master, which runs the first layers: it cannot be placed at {layers}")]
    PinLocalNotFirst {
        /// The master's name as a device.
        device: String,
        /// The range it was to have.
        layers: LayerRange,
    },
    /// A pinned range does not fit its device.
    #[error(
        "layers {layers} do not fit {device}: they need {} + {} of its own, it offers {}",
        format_bytes(*layer_bytes), format_bytes(*fixed_bytes), format_bytes(*budget_bytes)
    )]
    DeviceTooSmall {
        /// The device.
        device: String,
        /// The range it was to have.
        layers: LayerRange,
        /// Weights and KV cache of these layers.
        layer_bytes: u64,
        /// Scratch and process.
        fixed_bytes: u64,
        /// What the device offers.
        budget_bytes: u64,
    },
    /// The pins leave more gaps than there are other devices.
    #[error(
        "the pins leave layers {} to {free_devices} other {}, each of which runs one range",
        join(gaps), plural(*free_devices, "device", "devices")
    )]
    PinGap {
        /// The ranges that no pin covers.
        gaps: Vec<LayerRange>,
        /// Devices without a pin.
        free_devices: usize,
    },
    /// The devices together are too small.
    #[error(
        "the model does not fit: at most {placed} of {layers} layers can be placed and {} is left \
         over; {}{}{}",
        format_bytes(*missing_bytes), join(devices), joined(*together),
        advice(*smaller_context, *smaller_parallel, narrower_kv.as_deref(), *another_device_bytes)
    )]
    DoesNotFit {
        /// Layers of the model.
        layers: usize,
        /// The most layers, counted from layer 0, that can be placed.
        placed: usize,
        /// Weights and KV cache of the other layers.
        missing_bytes: u64,
        /// What each device could take.
        devices: Vec<Shortfall>,
        /// The most layers that must be on one device, where there are such.
        #[serde(skip_serializing_if = "Option::is_none")]
        together: Option<LayerRange>,
        /// The largest smaller context, in tokens per sequence, with which everything would fit.
        smaller_context: Option<u64>,
        /// The most sequences at once with which everything would fit, where that is fewer.
        smaller_parallel: Option<usize>,
        /// What to keep keys and values as, so that everything would fit, where that is known to help.
        #[serde(skip_serializing_if = "Option::is_none")]
        narrower_kv: Option<String>,
        /// The budget of one more device with which everything would fit.
        another_device_bytes: Option<u64>,
    },
}

/// What one device could take of a model that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shortfall {
    /// The device.
    pub device: String,
    /// What it offers.
    pub budget_bytes: u64,
    /// Its process and scratch, needed before any layer.
    pub fixed_bytes: u64,
    /// Weights and KV cache of the layer that costs it least, or of the layers that must be together.
    pub smallest_layer_bytes: u64,
    /// How many layers these are.
    pub smallest_layers: usize,
    /// Weights and KV cache of the layer that costs it most.
    pub largest_layer_bytes: u64,
    /// The longest run of layers that fits it.
    pub layers_that_fit: usize,
    /// Where the number comes from that it offers, if people did not name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Refusal {
    /// Adds where the number comes from that a device offers.
    pub fn explain(&mut self, device: &str, why: &str) {
        let Self::DoesNotFit { devices, .. } = self else { return };
        let meant = devices.iter_mut().filter(|shortfall| shortfall.device == device);
        meant.for_each(|shortfall| shortfall.why = Some(why.to_owned()));
    }

    /// Adds what to keep keys and values as, so that everything would fit.
    pub fn suggest_kv(&mut self, kv: &str) {
        let Self::DoesNotFit { narrower_kv, .. } = self else { return };
        *narrower_kv = Some(kv.to_owned());
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = self.why.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        let (device, budget) = (&self.device, format_bytes(self.budget_bytes) + &why);
        let own = format_bytes(self.fixed_bytes);
        let layer = format_bytes(self.smallest_layer_bytes);
        if self.layers_that_fit == 0 {
            let layers = match self.smallest_layers {
                0 | 1 => "one layer needs".to_owned(),
                together => format!("{together} layers that must be together need"),
            };
            return write!(f, "{device} offers {budget}; {layers} {layer} + {own} of its own");
        }
        let fit = self.layers_that_fit;
        let layers = plural(fit, "layer", "layers");
        let more =
            if self.largest_layer_bytes > self.smallest_layer_bytes { " or more" } else { "" };
        write!(
            f,
            "{device} offers {budget}, room for {fit} {layers} of {layer}{more} + {own} of its own"
        )
    }
}

/// The refusal for an input that has been checked and has no plan.
pub(super) fn does_not_fit(input: &Input, pins: &[FoundPin], space: &Space) -> Refusal {
    let layers = input.layers.len();
    let placed = most_placed(space, &Terms::new(input, pins, Blobs::Any));
    let missing: u128 = input.layers[placed..]
        .iter()
        .map(|layer| u128::from(layer.bytes) + u128::from(layer.kept_bytes()))
        .sum();
    let devices = 0..input.devices.len();
    let smaller_context = smaller_context(input, pins);
    Refusal::DoesNotFit {
        layers,
        placed,
        missing_bytes: clamp(missing),
        devices: devices.map(|device| shortfall(input, device)).collect(),
        together: pieces(input).into_iter().max_by_key(|it| it.len()).filter(|it| it.len() > 1),
        smaller_context,
        smaller_parallel: smaller_context.and_then(|tokens| smaller_parallel(input, tokens)),
        narrower_kv: None, // Not to be seen in bytes.
        another_device_bytes: another_device(input, pins, missing),
    }
}

/// What one device could take.
pub(super) fn shortfall(input: &Input, index: usize) -> Shortfall {
    let layers = input.layers.len();
    let device = &input.devices[index];
    let costs = || (0..layers).map(|layer| one_layer_bytes(input, index, layer));
    let fixed = fixed_bytes(input, index);
    let pieces = pieces(input).into_iter();
    let smallest = pieces.map(|piece| (layer_bytes(input, index, piece), piece.len())).min();
    let (smallest, smallest_layers) = smallest.unwrap_or_default();
    let run_from = |start: usize| {
        let mut need = fixed;
        let fits = |cost: &u128| {
            need += cost;
            need <= u128::from(device.budget_bytes)
        };
        let fit = start + costs().skip(start).take_while(fits).count();
        // No more than up to where a stage may end.
        (start..=fit).rev().find(|end| may_cut(input, *end)).unwrap_or(start) - start
    };
    Shortfall {
        device: device.name.clone(),
        budget_bytes: device.budget_bytes,
        fixed_bytes: clamp(fixed),
        smallest_layer_bytes: clamp(smallest),
        smallest_layers,
        largest_layer_bytes: clamp(costs().max().unwrap_or(0)),
        layers_that_fit: (0..layers)
            .filter(|start| may_cut(input, *start))
            .map(run_from)
            .max()
            .unwrap_or(0),
        why: None,
    }
}

/// The largest smaller context with which everything fits, if any: KV bytes taken in proportion.
fn smaller_context(input: &Input, pins: &[FoundPin]) -> Option<u64> {
    let fits_with = |tokens: u64| {
        let scale = |layer: &LayerCost| {
            let kv = u128::from(layer.kv_bytes) * u128::from(tokens);
            LayerCost { kv_bytes: clamp(kv.div_ceil(u128::from(input.context_tokens))), ..*layer }
        };
        fits(&Input { layers: input.layers.iter().map(scale).collect(), ..input.clone() }, pins)
    };
    let mut refused = input.context_tokens.div_ceil(CONTEXT_STEP); // In steps, as is `fitting`.
    let mut fitting = 1;
    if refused <= fitting || !fits_with(CONTEXT_STEP) {
        return None;
    }
    while refused - fitting > 1 {
        let middle = fitting + (refused - fitting) / 2;
        if fits_with(middle * CONTEXT_STEP) { fitting = middle } else { refused = middle }
    }
    Some(fitting * CONTEXT_STEP)
}

/// How many sequences of the whole context have as many tokens as all with a context of `tokens`.
fn smaller_parallel(input: &Input, tokens: u64) -> Option<usize> {
    let all = (input.parallel as u64).saturating_mul(tokens);
    let fewer = usize::try_from(all / input.context_tokens.max(1)).ok()?;
    (1..input.parallel).contains(&fewer).then_some(fewer)
}

/// The budget of one more device, as costly as the costliest here, that would take what is missing.
fn another_device(input: &Input, pins: &[FoundPin], missing: u128) -> Option<u64> {
    let fixed = (0..input.devices.len()).map(|device| fixed_bytes(input, device)).max()?;
    let budget_bytes = clamp(missing + fixed);
    let another = Device {
        name: String::new(),
        budget_bytes,
        overhead_bytes: clamp(fixed),
        scratch_bytes: 0,
        layer_resident_bytes: input.layers.iter().map(|layer| layer.bytes).collect(),
        layer_time: vec![0.0; input.layers.len()],
        hop: 0.0,
        push_bytes_per_second: None,
        held: vec![false; input.layers.len()],
        local: false,
    };
    let mut input = input.clone();
    input.devices.push(another);
    fits(&input, pins).then_some(budget_bytes) // With pins behind the gap it may not.
}

fn fits(input: &Input, pins: &[FoundPin]) -> bool {
    let terms = Terms::new(input, pins, Blobs::Any);
    most_placed(&Space::new(input, pins), &terms) == input.layers.len()
}

/// Bytes for a message; more than a u64 holds reads as the most it holds.
pub(super) fn clamp(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn plural(count: usize, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

fn join(parts: &[impl fmt::Display]) -> String {
    let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
    parts.join("; ")
}

/// Which layers must be together.
fn joined(together: Option<LayerRange>) -> String {
    together
        .map_or(String::new(), |layers| format!("; one device must have all of layers {layers}"))
}

/// The end of the sentence: what would make it fit.
fn advice(
    smaller_context: Option<u64>,
    smaller_parallel: Option<usize>,
    narrower_kv: Option<&str>,
    another_device_bytes: Option<u64>,
) -> String {
    let context = smaller_context.map(|tokens| format!("a context of {tokens} tokens"));
    let parallel = smaller_parallel.map(|sequences| format!("--parallel {sequences}"));
    let kv = narrower_kv.map(|kv| format!("--kv {kv}"));
    let device = another_device_bytes
        .map(|bytes| format!("one more device that offers {}", format_bytes(bytes)));
    let ways: Vec<String> = context.into_iter().chain(parallel).chain(kv).chain(device).collect();
    if ways.is_empty() {
        String::new()
    } else {
        format!("; it would fit with {}", ways.join(", or "))
    }
}
