//! Models from the Hub: fetched into the cache that its own tools have, listed and removed there.
//!
//! Start reading at [`plan()`], which asks the Hub what there is and chooses what a model needs of it, and at [`pull()`],
//! which fetches what is missing and lays it out. [`list()`] and [`removal()`] are about what is there.
//!
//! Invariants:
//! * Blocking, on threads of its own: no runtime. No tensors; what files are called is asked of the checkpoint's crate.
//! * Nothing has its final name before its digest was checked, and no file of a model is linked before all are there.
//! * What has arrived is not asked for again, however a download ended, but for the last moments of a killed process.
//! * The token goes to the endpoint's own host and nowhere else.
//! * Memory does not grow with a model: bytes go to their place in a file as they come.
//! * Nothing is deleted of a model while a process of ours fetches of it, and the other way round.
//! * What a hub says reaches people as one line without control characters, and names of its files have none.
//! * Names and sizes from the Hub are checked before anything is made of them; nothing outside the cache is written or
//!   deleted.

mod cache;
mod client;
mod download;
mod error;
mod fetch;
mod files;
mod hash;
mod item;
mod layers;
mod list;
mod listing;
mod lock;
mod names;
mod observer;
mod pace;
mod partial;
mod plan;
mod pull;
mod redirect;
mod remove;
mod retry;
mod select;
mod token;
mod url;

pub use client::{Hub, Options};
pub use error::{Cause, Error};
pub use list::{CachedModel, CachedRevision, list};
pub use names::Wanted;
pub use observer::Observer;
pub use plan::{Choice, Plan, plan};
pub use pull::{MAX_CONNECTIONS, Pulled, pull};
pub use remove::{Removal, removal};
pub use token::Token;
