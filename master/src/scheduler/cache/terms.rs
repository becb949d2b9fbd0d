//! What blocks and slots have in common: how they are used, that there is none, and which block something belongs to.

use serde::Serialize;

/// Names a known block for as long as the process runs; a block that is taken and becomes known again
/// has another one.
pub(super) type NodeId = u64;

/// There is no room now; there will be once others have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scheduler) struct Full;

/// How blocks are used, or slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// All there are.
    pub total: usize,
    /// Held by sequences.
    pub held: usize,
    /// Kept for a prefix that may come again, held by nobody.
    pub idle: usize,
    /// Empty.
    pub free: usize,
}

impl Usage {
    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self {
            total: self.total + other.total,
            held: self.held + other.held,
            idle: self.idle + other.idle,
            free: self.free + other.free,
        }
    }
}
