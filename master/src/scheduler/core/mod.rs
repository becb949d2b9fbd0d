//! What decides: who waits and who runs, which KV blocks are whose, what goes into the next step, and what follows from
//! a step that ended. It moves nothing and reads no clock: time comes in as a plain value, and what is to be done about
//! a decision goes out as [`Effect`]s, in order. `actor` carries them out.
//!
//! ```text
//! submit ──▶ waiting ──admit──▶ running ──compose──▶ a step in flight ──apply──▶ running or over
//!               │ cancel, give_up  │ ▲                                              │
//!               └──────▶ over ◀────┘ └── resume, after lose_pipeline or a loss ◀────┘
//! ```
//!
//! The state is in `state`; each arrow is a file of methods on it: `admit`, `compose`, `apply`, `lose`, `end`.

mod admit;
mod apply;
mod batch;
mod compose;
mod ease;
mod effect;
mod end;
mod lose;
mod sequence;
mod shape;
#[cfg(test)]
mod simulation;
mod state;

pub(super) use compose::ComposedStep;
pub(super) use effect::Effect;
pub(super) use shape::PipelineShape;
pub(super) use state::Core;
