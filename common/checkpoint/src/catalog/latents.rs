//! Latent attention in files that have by themselves what makes keys of latents, turned, and what makes values.

use std::collections::HashSet;

use crate::container::StoredTensor;
use crate::model::ModelSpec;

/// Says of a model which of its layers have both by themselves, and makes matrices of tensors that have an axis for heads.
pub(super) fn part(tensors: &mut [StoredTensor], model: &mut ModelSpec) {
    let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    model.part_latents(|name| names.contains(name));
    let of_heads: HashSet<String> = model.tensors_of_heads().collect();
    for tensor in tensors.iter_mut().filter(|tensor| of_heads.contains(&tensor.name)) {
        if let [heads, rows, columns] = tensor.shape[..] {
            tensor.shape = vec![heads.saturating_mul(rows), columns];
        }
    }
}
