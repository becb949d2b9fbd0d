//! What a model writes, told apart: what it thinks before it answers, what it says, and which tools it calls.
//!
//! Models mark these by texts of their own (`markers`), which come in a stream of pieces. [`Reply`] shows each piece as
//! soon as it is certain what it is; what may be a call is held back, and read once all of it is there (`calls`). Models
//! that write in channels have a grammar of their own (`channels`).

mod calls;
mod channels;
mod held;
mod literals;
mod markers;
mod scan;
mod shown;
#[cfg(test)]
mod tests;

pub(crate) use calls::{Call, Callable};
pub(crate) use markers::{BLOCK, Marked, marks, opened, unclosed};
pub(crate) use scan::{Opening, Reply};
pub(crate) use shown::Shown;
