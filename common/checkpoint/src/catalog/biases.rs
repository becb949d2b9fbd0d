//! Biases of layers that a configuration does not ask for: some who quantize write one for every matrix, all zeros.

use std::collections::HashSet;

use super::tensor::Tensor;
use crate::container::Lies;
use crate::error::Error;
use crate::layout::ReadBytes;
use crate::model::{BIAS, ModelSpec, Role};

/// Bytes that a bias has at most: those of a million numbers.
const MOST: u64 = 4 << 20;
/// Bytes that are read at once.
const AT_ONCE: u64 = 64 << 10;

/// Lets those go that are all zeros, and says how many there are. Others stay, and whoever looks for what should be there
/// refuses them.
///
/// # Errors
/// What reading them says.
pub(super) fn ignore_zeros(
    tensors: &mut [Tensor],
    config: &ModelSpec,
    read: &ReadBytes<'_>,
) -> Result<Option<String>, Error> {
    let is_bias = |tensor: &&mut Tensor| {
        let is_of_layer = matches!(tensor.role, Role::Layer { .. });
        let is_small = tensor.shape.len() == 1 && tensor.bytes <= MOST;
        is_of_layer && is_small && tensor.name.ends_with(BIAS) && tensor.lies == Lies::Together
    };
    let mut biases = tensors.iter_mut().filter(is_bias).peekable();
    if biases.peek().is_none() {
        return Ok(None);
    }
    let asked: HashSet<_> = config.required_tensors().into_iter().map(|it| it.name).collect();
    let mut count = 0;
    for bias in biases.filter(|bias| !asked.contains(&bias.name)) {
        if are_zeros(bias, read)? {
            bias.role = Role::Ignored;
            count += 1;
        }
    }
    let said = format!(
        "{count} biases that the configuration does not ask for are zeros; they are not used"
    );
    Ok((count > 0).then_some(said))
}

fn are_zeros(tensor: &Tensor, read: &ReadBytes<'_>) -> Result<bool, Error> {
    let mut piece = vec![0; AT_ONCE.min(tensor.bytes) as usize];
    for start in (0..tensor.bytes).step_by(AT_ONCE as usize) {
        let piece = &mut piece[..(tensor.bytes - start).min(AT_ONCE) as usize];
        read(tensor, start, piece)?;
        if piece.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}
