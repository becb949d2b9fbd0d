//! Checkpoints of which only the headers are there: what they need can be planned, and nothing can be computed with them.
use std::fs::File;
use std::path::Path;

use cake_checkpoint::{Checkpoint, CheckpointFile};

/// Whether there are any of [`hollow_files`].
pub(crate) fn is_hollow(checkpoint: &Checkpoint) -> bool {
    !hollow_files(checkpoint).is_empty()
}

/// The files of a checkpoint in which no byte was written behind the header, such as whoever wants to know what a model
/// needs makes of the headers alone before it is downloaded.
pub(super) fn hollow_files(checkpoint: &Checkpoint) -> Vec<&Path> {
    let is_hollow = |(index, file): &(usize, &CheckpointFile)| {
        let tensors = checkpoint.tensors.iter().filter(|tensor| tensor.file == *index);
        let first = tensors.map(|tensor| tensor.offset).min();
        let opened = first.and_then(|first| Some((first, File::open(&file.path).ok()?)));
        opened.is_some_and(|(first, opened)| cake_platform::is_hollow(&opened, first))
    };
    let hollow = checkpoint.files.iter().enumerate().filter(is_hollow);
    hollow.map(|(_, file)| file.path.as_path()).collect()
}
