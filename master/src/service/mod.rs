//! A service of several models, of which one is loaded at a time.
//!
//! Start with `changer` (`Changer`: loads what requests wait for, and puts away what nobody uses); `queue` is who waits.
//!
//! Invariants:
//! - No request that has a model is cut off for one that wants another.
//! - Nothing here knows how a model is loaded: who does that is handed in (`Load`).

mod changer;
mod queue;

pub(crate) use changer::{Changer, Load, Loaded};
