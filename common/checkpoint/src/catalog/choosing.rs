//! The numbers that choose experts beside their products: one that is none would choose the same experts for every row, or
//! none, and nothing later would say why.

use super::checkpoint::Checkpoint;
use super::error::CatalogError;
use crate::encoding::FloatType;
use crate::error::Error;

/// Reads what is added to routers' products and scores, what experts' weights are multiplied with, and the weights of norms
/// before routers.
///
/// # Errors
/// [`CatalogError::NotFinite`] for a number that is infinite or none; [`Error::Io`].
pub(super) fn check(checkpoint: &Checkpoint) -> Result<(), Error> {
    for name in checkpoint.config.choosing_tensors() {
        let Some(tensor) = checkpoint.tensor(&name) else { continue };
        let Some(float) = FloatType::of(tensor.dtype) else { continue };
        let mut bytes = vec![0; tensor.bytes as usize]; // As many as experts or hidden states, which are bounded.
        checkpoint.read_at(tensor, 0, &mut bytes)?;
        let mut numbers = vec![0.0; bytes.len() / float.bytes()];
        float.widen(&bytes, &mut numbers);
        if let Some(index) = numbers.iter().position(|number| !number.is_finite()) {
            let file = checkpoint.files[tensor.file].path.clone();
            let found = numbers[index];
            return Err(CatalogError::NotFinite { tensor: name, file, index, found }.into());
        }
    }
    Ok(())
}
