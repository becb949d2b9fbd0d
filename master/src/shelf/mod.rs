//! The models at hand: those that a person named, those of folders, or those of the Hub's cache and of other programs.
//!
//! Start with `stock` (`Shelf`: which there are, by name), then `about` (what is told of each), `pull` (how one of the Hub's
//! comes to be at hand). `keep` is how long one stays loaded.
//!
//! Invariants:
//! - Headers and texts are read here, never weights; nothing is planned, and no worker is known.
//! - Looking blocks: who answers others meanwhile says so.

mod about;
mod keep;
mod pull;
mod stock;

pub use about::About;
pub use keep::Keep;
pub use pull::{CONNECTIONS, pull};
pub use stock::{AtHand, Error, Shelf, Source, WhyNot};
