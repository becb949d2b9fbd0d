//! What computes the blocks of a stage.

pub(crate) mod cpu;
