//! A service of several models, of which as many are loaded as there is room for.
//!
//! Start with `changer` (`Changer`: loads what requests wait for, and puts away what nobody uses, or what has to make room); `queue` is who waits.
//!
//! Invariants:
//! - No request that has a model is cut off for one that wants another.
//! - Nothing here knows how a model is loaded: who does that is handed in (`Load`).

mod changer;
mod queue;

pub(crate) use changer::{Changer, Failed, Load, Loaded};
