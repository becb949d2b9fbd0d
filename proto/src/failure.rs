//! Why a stage could not do a step: whose fault it is, and how that travels.
use std::ops::Range;

use crate::wire;

/// Whose fault a failed step is, and so what can be done about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureKind {
    /// Only the message says why.
    #[default]
    Other,
    /// The stage made a NaN or an infinity of numbers that had none: its memory, its processor or its weights are
    /// not what they were. It has its blobs verified before it computes with them again.
    NonFinite,
    /// A NaN or an infinity came in, and nothing was computed: who sent the step to the stage is at fault.
    NonFiniteInput,
    /// A weights file was cut or could not be read while the stage computed with it. It has its blobs verified before
    /// it computes with them again.
    Damaged,
}

impl From<FailureKind> for wire::FailureKind {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Other => Self::Other,
            FailureKind::NonFinite => Self::NonFinite,
            FailureKind::NonFiniteInput => Self::NonFiniteInput,
            FailureKind::Damaged => Self::Damaged,
        }
    }
}

impl From<wire::FailureKind> for FailureKind {
    fn from(kind: wire::FailureKind) -> Self {
        match kind {
            wire::FailureKind::Other => Self::Other,
            wire::FailureKind::NonFinite => Self::NonFinite,
            wire::FailureKind::NonFiniteInput => Self::NonFiniteInput,
            wire::FailureKind::Damaged => Self::Damaged,
        }
    }
}

/// Why a stage could not do a step, as it tells the master.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// Whose fault it is.
    pub kind: FailureKind,
    /// The layers `[start, end)` of the stage; empty where no stage was there to fail.
    pub layers: Range<u32>,
    /// One sentence.
    pub message: String,
}

impl Failure {
    /// One of which only the message says why.
    pub fn other(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

/// Which of the numbers of `[rows, hidden_size]` is first a NaN or an infinity, and what it is; they are looked at once.
pub fn first_non_finite(hidden: &[f32]) -> Option<(usize, f32)> {
    /// So many at once: a whole chunk is looked at without a branch inside it.
    const CHUNK: usize = 256;
    /// The bits of the exponent, all set in what is not finite.
    const EXPONENT: u32 = 0x7f80_0000;
    let chunks = hidden.chunks(CHUNK);
    // The largest magnitude of a chunk, as bits: those of a finite number are below those of an infinity or a NaN.
    let largest = |chunk: &[f32]| {
        chunk.iter().fold(0, |most: u32, value| most.max(value.to_bits() & !(1 << 31)))
    };
    let bad = chunks.enumerate().find(|(_, chunk)| largest(chunk) >= EXPONENT);
    let (chunk, values) = bad?;
    let inside = values.iter().position(|value| !value.is_finite())?;
    Some((chunk * CHUNK + inside, values[inside]))
}

/// The frame that says a step failed.
pub fn failure_frame(step: u64, worker: &str, failure: Failure) -> wire::StepFrame {
    let Failure { kind, layers, message } = failure;
    let failure = wire::StepFailure {
        worker: worker.to_owned(),
        message,
        kind: wire::FailureKind::from(kind).into(),
        layer_start: layers.start,
        layer_end: layers.end,
    };
    wire::StepFrame { step, last: true, failure: Some(failure), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_that_is_not_finite_is_found_wherever_it_is() {
        let finite = [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, -1.0];
        for length in [0, 1, 255, 256, 257, 1000] {
            let rows: Vec<f32> = finite.iter().copied().cycle().take(length).collect();
            assert_eq!(first_non_finite(&rows), None);
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in 0..length {
                    let mut rows = rows.clone();
                    rows[at] = bad;
                    rows[length - 1] = if at == length - 1 { bad } else { f32::NAN };
                    let (index, value) = first_non_finite(&rows).expect("there is one");
                    assert_eq!((index, value.to_bits()), (at, bad.to_bits()));
                }
            }
        }
    }
}
