//! What breaks the rules of a stream of steps.

use crate::TraceContext;

/// A peer's frames break the protocol; its stream ends.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProtocolError {
    /// A first frame without a head.
    #[error("step {step} begins without a head")]
    NoHead {
        /// The step.
        step: u64,
    },
    /// Frames of two steps were mixed.
    #[error("a frame of step {found} came before step {expected} was complete")]
    Interleaved {
        /// The unfinished step.
        expected: u64,
        /// The other one.
        found: u64,
    },
    /// It says that a step will come, and something else.
    #[error("a frame that announces a step has more in it, expected nothing else")]
    Announcement,
    /// A head announces more than the bounds allow, or numbers that do not agree.
    #[error("step {step} announces {what}: {found}, at most {limit}")]
    TooMany {
        /// The step.
        step: u64,
        /// What there is too much of.
        what: &'static str,
        /// How many.
        found: usize,
        /// The bound.
        limit: usize,
    },
    /// Rows of the items do not add up.
    #[error("step {step} has {rows} rows but its items have {item_rows}")]
    Rows {
        /// The step.
        step: u64,
        /// Rows announced.
        rows: usize,
        /// Sum over the items.
        item_rows: usize,
    },
    /// The hidden bytes do not match the rows.
    #[error("step {step} carries {found} bytes of hidden states, expected {expected}")]
    HiddenBytes {
        /// The step.
        step: u64,
        /// Rows times the bytes of a row in the step's format.
        expected: usize,
        /// Received so far.
        found: usize,
    },
    /// A wanted row does not exist.
    #[error("step {step} wants row {row} of {rows}")]
    Wanted {
        /// The step.
        step: u64,
        /// The row.
        row: u32,
        /// Rows there are.
        rows: usize,
    },
    /// Hidden states in a format that this build does not know.
    #[error("step {step} carries hidden states in the unknown format {found}")]
    Format {
        /// The step.
        step: u64,
        /// Number of the format.
        found: i32,
    },
    /// A trace context of another length.
    #[error(
        "step {step} carries a trace context of {found} bytes, expected none or {}",
        size_of::<TraceContext>()
    )]
    Trace {
        /// The step.
        step: u64,
        /// Its bytes.
        found: usize,
    },
}

impl From<ProtocolError> for tonic::Status {
    fn from(error: ProtocolError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}
