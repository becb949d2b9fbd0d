//! Which devices a plan leaves without layers, and why.
use std::fmt;

use serde::Serialize;

use super::refusal::shortfall;
use super::{Input, Plan, Shortfall};

/// A device without layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Idle {
    /// The device.
    pub device: String,
    /// Why it has none.
    pub why: Why,
}

/// Why a device has no layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Not even one layer fits it.
    TooSmall(Shortfall),
    /// People gave every layer to others.
    Placed,
    /// It would not make answers faster, or its blobs are not worth their push.
    NotFaster,
    /// People left it out.
    Excluded,
    /// Its owner wants it free.
    Draining,
    /// It asked to go.
    Leaving,
    /// It does not compute with matrices, or with keys and values, that are stored so.
    DoesNotRun {
        /// How they are stored, by name.
        encodings: Vec<String>,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall(shortfall) => shortfall.fmt(f),
            Self::Placed => f.write_str("--place gives every layer to others"),
            Self::NotFaster => f.write_str("with it answers are not predicted to be faster"),
            Self::Excluded => f.write_str("left out by --exclude"),
            Self::Draining => f.write_str("freed by its owner"),
            Self::Leaving => f.write_str("about to leave"),
            Self::DoesNotRun { encodings } => write!(f, "it does not run {}", encodings.join(", ")),
        }
    }
}

/// The devices of `input` that have no stage in `plan`, in the order of the input.
pub fn idle(input: &Input, plan: &Plan) -> Vec<Idle> {
    let placed: usize = input.pins.iter().map(|pin| pin.layers.len()).sum();
    let has_stage = |index: usize| plan.stages.iter().any(|stage| stage.device_index == index);
    let without = (0..input.devices.len()).filter(|index| !has_stage(*index));
    let why = |index: usize| {
        let room = shortfall(input, index);
        match room.layers_that_fit {
            0 => Why::TooSmall(room),
            _ if placed >= input.layers.len() => Why::Placed,
            _ => Why::NotFaster,
        }
    };
    without
        .map(|index| Idle { device: input.devices[index].name.clone(), why: why(index) })
        .collect()
}
