//! What a stage takes of a device's memory: the planner counts it before, a worker once more before it loads.
use cake_checkpoint::{Dtype, ModelSpec};
use cake_engine::DeviceKind;
use cake_proto::limits;

/// Memory a worker's process takes besides its stage: the program, its threads' stacks, the
/// connections' windows and the allocator's slack. Measured with an idle worker after a push of
/// 1 GiB, rounded up.
pub const OVERHEAD_BYTES: u64 = 40 << 20;

/// An upper bound of what a stage allocates while it runs: the engine's buffers for one step, the
/// steps that are being received or wait before it, and what leaves it (bytes).
pub fn stage_scratch_bytes(config: &ModelSpec, rows: usize, context: usize, threads: usize) -> u64 {
    let step = (rows as u64).saturating_mul(config.hidden_size as u64).saturating_mul(4);
    // Being received, queued before the stage, and its result while it is cut into frames.
    let steps = step.saturating_mul(1 + limits::STEPS_QUEUED as u64 + 2);
    let frames = limits::frames_queued(usize::try_from(step).unwrap_or(usize::MAX)) as u64;
    // Those that wait for the link, and the one that is being sent.
    let leaving = step.min(limits::FRAME_BYTES as u64).saturating_mul(frames + 1);
    let waiting = steps.saturating_add(leaving);
    cake_engine::scratch_bytes(config, rows, context, threads).saturating_add(waiting)
}

/// Resident bytes for each thousand stored bytes of a weight on this process's device.
pub fn resident_permille(dtype: Dtype) -> u32 {
    DeviceKind::from_env().unwrap_or_default().resident_permille(dtype)
}
