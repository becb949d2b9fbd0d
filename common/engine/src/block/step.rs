//! What all layers share in one step.

use crate::batch::{BatchItem, RowKinds};
use crate::device::cpu::attention::AttendRow;
use crate::rope::Rotation;

/// What all layers share in one step.
pub(crate) struct Step<'a> {
    /// The parts of the step, checked.
    pub(crate) items: &'a [BatchItem],
    /// Every row of them, in order.
    pub(crate) rows: Vec<AttendRow<'a>>,
    /// What kind of arithmetic each row gets.
    pub(crate) kinds: RowKinds,
    /// The rows' rotations, as layers name them.
    pub(crate) rotations: Vec<Rotation>,
}
