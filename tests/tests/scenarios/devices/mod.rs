//! Devices that misbehave: they lie, fall silent, compute nonsense, lose their disk or half of their network. And those
//! that do not know how a model is stored.

mod encodings;
pub(crate) mod pipeline;
mod stalls;
mod worker;
