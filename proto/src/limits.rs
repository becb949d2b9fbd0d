//! Bounds on what a peer may announce. Each is generous for real models and far below what would hurt a small device.

/// Most payload bytes in one message; bulk data is cut into pieces of this size.
pub const FRAME_BYTES: usize = 1 << 20;
/// Largest message accepted: a frame with its head.
pub const MESSAGE_BYTES: usize = 2 << 20;
/// Most rows in one step.
pub const ROWS: usize = 8192;
/// Most sequences in one step.
pub const ITEMS: usize = 1024;
/// Most KV blocks named by one step item.
pub const BLOCKS: usize = 1 << 17;
/// Most slots for the state of recurrent layers.
pub const STATE_SLOTS: usize = 1 << 12;
/// Most numbers of a row accepted.
pub const HIDDEN_SIZE: usize = 1 << 16;
/// Most stages in a pipeline.
pub const STAGES: usize = 256;
/// Most devices that a worker describes: more than any machine has kinds of.
pub const DEVICES: usize = 8;
/// Most leases of a worker that a master has at once, one for each model that it computes with there.
pub const HOLDS: usize = 16;
/// Most blobs in one query or load.
pub const BLOBS: usize = 4096;
/// Most workers in a list of those that are shut out: a megabyte of it.
pub const SHUT_OUT: usize = cake_identity::MOST_REVOKED;
/// Largest model specification accepted over the wire: what is read of one.
pub const MODEL_BYTES: usize = 1 << 20;
/// Steps that wait before a stage. A full queue holds up its sender, so a slow stage never has to keep more.
pub const STEPS_QUEUED: usize = 2;
/// Frames behind a stage that wait for its link, at least; as many as [`frames_queued`] says.
const FRAMES_QUEUED: usize = 4;

/// How many frames wait behind a stage for its link, where a step has at most so many bytes of hidden states: a whole
/// step's, so that the stage goes on with the next one while it leaves.
pub const fn frames_queued(step_bytes: usize) -> usize {
    let frames = step_bytes.div_ceil(FRAME_BYTES);
    if frames > FRAMES_QUEUED { frames } else { FRAMES_QUEUED }
}
