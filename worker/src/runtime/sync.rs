//! What a queue of steps is made of. Its model checks have the same names of loom's making.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use tokio::sync::mpsc::{Receiver, Sender, channel};
