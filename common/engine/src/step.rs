//! What all layers share in one step.

use crate::batch::{AttendRow, BatchItem, RowKinds};
use crate::error::Error;
use crate::rope::Rotation;
use crate::row::Given;

/// One step, checked, as its layers see it.
pub(crate) struct Step<'a> {
    /// The parts of the step.
    pub(crate) items: &'a [BatchItem],
    /// Every row of them, in order.
    pub(crate) rows: Vec<AttendRow<'a>>,
    /// What kind of arithmetic each row gets.
    pub(crate) kinds: RowKinds,
    /// The rows' rotations, as layers name them.
    pub(crate) rotations: Vec<Rotation>,
    /// The first layer of the stage.
    pub(crate) first_layer: usize,
    /// What rows bring for each layer beside hidden states.
    pub(crate) given: Given,
}

impl Step<'_> {
    /// The angles of one of the model's rotations.
    ///
    /// # Errors
    /// [`Error::NoSuchRotation`]
    pub(crate) fn rotation(&self, rotation: usize) -> Result<&Rotation, Error> {
        let rotations = self.rotations.len();
        self.rotations.get(rotation).ok_or(Error::NoSuchRotation { rotation, rotations })
    }
}
