//! Devices that misbehave: they lie, fall silent, compute nonsense, lose their disk or half of their network.

mod pipeline;
mod stalls;
mod worker;
