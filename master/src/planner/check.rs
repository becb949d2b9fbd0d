//! Checks before any planning: does the input agree with itself, can the pins be honoured.

use super::refusal::{Refusal, clamp};
use super::terms::{FoundPin, fixed_bytes, layer_bytes, may_cut};
use super::{Device, Input, Pin};
use cake_checkpoint::LayerRange;

/// Longest time believed, in seconds; sums of such times stay finite.
const LONGEST_SECONDS: f64 = 1e9;

/// Finds the devices of the pins, and refuses an input that no search could serve.
pub(super) fn check(input: &Input) -> Result<Vec<FoundPin>, Refusal> {
    if input.devices.is_empty() {
        return Err(Refusal::NoDevices);
    }
    if input.layers.is_empty() {
        return Err(Refusal::NoLayers);
    }
    let bytes = input.layers.iter().try_fold(0_u64, |sum, layer| sum.checked_add(layer.bytes));
    if bytes.is_none_or(|bytes| bytes == u64::MAX) {
        return Err(Refusal::TooManyBytes); // The search uses the highest number for "unreached".
    }
    for (index, device) in input.devices.iter().enumerate() {
        check_device(device, input.layers.len())?;
        let earlier = &input.devices[..index];
        if earlier.iter().any(|other| other.name == device.name) {
            return Err(Refusal::SameName { name: device.name.clone() });
        }
        if let Some(first) = earlier.iter().find(|other| other.local && device.local) {
            let (first, second) = (first.name.clone(), device.name.clone());
            return Err(Refusal::TwoLocal { first, second });
        }
    }
    let mut pins = Vec::new();
    for pin in &input.pins {
        let found = check_pin(input, pin)?;
        if pins.iter().any(|(device, _): &FoundPin| *device == found.0) {
            return Err(Refusal::PinTwice { device: pin.device.clone() });
        }
        pins.push(found);
    }
    check_together(input, &mut pins)?;
    Ok(pins)
}

fn check_device(device: &Device, layers: usize) -> Result<(), Refusal> {
    let lengths = [
        ("resident bytes", device.layer_resident_bytes.len()),
        ("layer times", device.layer_time.len()),
        ("held blobs", device.held.len()),
    ];
    if let Some(&(what, found)) = lengths.iter().find(|(_, found)| *found != layers) {
        return Err(Refusal::WrongLength { device: device.name.clone(), what, layers, found });
    }
    let layer_times = device.layer_time.iter().map(|seconds| ("a layer", *seconds));
    for (what, seconds) in layer_times.chain([("a hop", device.hop)]) {
        if !(0.0..=LONGEST_SECONDS).contains(&seconds) {
            return Err(Refusal::BadTime { device: device.name.clone(), what, seconds });
        }
    }
    Ok(())
}

/// What is wrong with a pin on its own.
fn check_pin(input: &Input, pin: &Pin) -> Result<FoundPin, Refusal> {
    let (name, layers) = (pin.device.clone(), pin.layers);
    let Some(index) = input.devices.iter().position(|device| device.name == pin.device) else {
        let known = input.devices.iter().map(|device| device.name.clone()).collect();
        return Err(Refusal::PinUnknownDevice { device: name, layers, known });
    };
    if layers.start >= layers.end {
        return Err(Refusal::PinEmpty { device: name, layers });
    }
    let model_layers = input.layers.len();
    if layers.end > model_layers {
        return Err(Refusal::PinOutOfRange { device: name, layers, model_layers });
    }
    if let Some(&cut) = [layers.start, layers.end].iter().find(|layer| !may_cut(input, **layer)) {
        let together = piece_with(input, cut);
        return Err(Refusal::PinCuts { device: name, layers, together });
    }
    let device = &input.devices[index];
    if device.local && layers.start > 0 {
        return Err(Refusal::PinLocalNotFirst { device: name, layers });
    }
    let (needed, fixed) = (layer_bytes(input, index, layers), fixed_bytes(input, index));
    if needed + fixed > u128::from(device.budget_bytes) {
        return Err(Refusal::DeviceTooSmall {
            device: name,
            layers,
            layer_bytes: clamp(needed),
            fixed_bytes: clamp(fixed),
            budget_bytes: device.budget_bytes,
        });
    }
    Ok((index, layers))
}

/// The layers that must be in one stage, of which this is one.
fn piece_with(input: &Input, layer: usize) -> LayerRange {
    let start = (0..=layer).rev().find(|layer| may_cut(input, *layer)).unwrap_or(0);
    let end = (layer + 1..).find(|layer| may_cut(input, *layer));
    LayerRange::new(start, end.unwrap_or(layer + 1))
}

/// What is wrong with the pins together; sorts them by layer.
fn check_together(input: &Input, pins: &mut [FoundPin]) -> Result<(), Refusal> {
    pins.sort_by_key(|(_, layers)| layers.start);
    let mut gaps = Vec::new();
    let mut covered = 0;
    for (index, &(device, layers)) in pins.iter().enumerate() {
        if layers.start < covered {
            let (first, first_layers) = pins[index - 1]; // `covered` is 0 before the first pin.
            return Err(Refusal::PinOverlap {
                first: input.devices[first].name.clone(),
                first_layers,
                second: input.devices[device].name.clone(),
                second_layers: layers,
            });
        }
        if layers.start > covered {
            gaps.push(LayerRange::new(covered, layers.start));
        }
        covered = layers.end;
    }
    if covered < input.layers.len() {
        gaps.push(LayerRange::new(covered, input.layers.len()));
    }
    let free_devices = input.devices.len() - pins.len();
    if gaps.len() > free_devices {
        return Err(Refusal::PinGap { gaps, free_devices });
    }
    Ok(())
}
