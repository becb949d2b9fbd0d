//! Whether a model that says its output head is the embedding has another head all the same.

use std::fs::File;

use crate::container::{CheckpointFile, Lies, StoredTensor};
use crate::encoding::Part;
use crate::error::Error;
use crate::file::read_exact_at;
use crate::model::ModelSpec;

/// How much of both is read at once.
const STRETCH_BYTES: u64 = 1 << 20;

/// Whether a head is stored that is not the embedding: then it counts, as in the reference, whatever the configuration
/// says. Of a head that is the same all bytes are read; others differ soon.
///
/// Of each tensor, all bytes must be in its file.
///
/// # Errors
/// [`Error::Io`]
pub(super) fn has_own_head(
    files: &[(CheckpointFile, File)],
    tensors: &[StoredTensor],
    model: &ModelSpec,
) -> Result<bool, Error> {
    let find = |weight: &str, part: Part| {
        let module = weight.strip_suffix(Part::Weight.ending())?;
        let name = format!("{module}{}", part.ending());
        tensors.iter().find(|tensor| tensor.name == name)
    };
    if find(&model.head, Part::Weight).is_none() {
        return Ok(false);
    }
    for part in Part::ALL {
        let is_same = match (find(&model.embedding, part), find(&model.head, part)) {
            (None, None) => true,
            (Some(one), Some(other)) => {
                let alike = (one.dtype, &one.shape) == (other.dtype, &other.shape);
                // Of what is made of other bytes nothing is compared: a head that is there is right.
                let as_it_is = [one, other].iter().all(|it| it.lies == Lies::Together);
                alike && as_it_is && same_bytes(files, one, other)?
            }
            _ => false,
        };
        if !is_same {
            return Ok(true);
        }
    }
    Ok(false)
}

fn same_bytes(
    files: &[(CheckpointFile, File)],
    one: &StoredTensor,
    other: &StoredTensor,
) -> Result<bool, Error> {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let mut done = 0;
    while done < one.bytes {
        let length = (one.bytes - done).min(STRETCH_BYTES) as usize;
        for (tensor, buffer) in [(one, &mut first), (other, &mut second)] {
            let (file, handle) = &files[tensor.file];
            buffer.resize(length, 0);
            read_exact_at(handle, buffer, tensor.offset + done)
                .map_err(|cause| Error::io("read", &file.path, cause))?;
        }
        if first != second {
            return Ok(false);
        }
        done += length as u64;
    }
    Ok(one.bytes == other.bytes)
}
