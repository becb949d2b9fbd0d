//! How many neighbours share a scale in what a checkpoint's weights become.

use super::loss::there_and_back;
use crate::catalog::{Checkpoint, Tensor};
use crate::encoding::{Affine, Encoding, FloatType, Group, Scheme};
use crate::error::Error;
use crate::model::Role;

/// Matrices that are looked at, as far apart in the files as they can be.
const MATRICES: usize = 8;
/// Weights that are looked at in each: 64 groups of 32.
const WEIGHTS: u64 = 2048;
/// The squared error for each squared weight below which weights were codes before: rounding them to BF16 made 3e-6 of it at
/// most, where 5 bits for weights that never were codes make some 2e-3.
const WERE_CODES: f64 = 1e-4;

impl Checkpoint {
    /// What the matrices of layers become; `None` if they stay.
    pub fn layers_become(&self, scheme: Scheme) -> Option<Encoding> {
        let usual = scheme.of_layers(Group::Of64);
        // Where nothing depends on them, no weights are read.
        if usual == scheme.of_layers(Group::Of32) {
            return usual;
        }
        scheme.of_layers(self.group())
    }

    /// How many neighbours share a scale in what weights become: as many as did when they were codes of 4 or 5 bits, which
    /// they were before somebody widened them if most of a sample of matrices is said by such codes nearly without a loss in
    /// groups of 32, and with one in groups of 64. A file of headers alone shows nothing: its groups are of 64.
    ///
    /// Codes of 5 bits in groups of 64 that use few of these count as of 32: they cost half a bit more so, and stay what they
    /// are.
    ///
    /// Looked for once, but for weights that cannot be read: these give no answer here, but an error to whoever reads them
    /// whole.
    pub fn group(&self) -> Group {
        if let Some(group) = self.group.get() {
            return *group;
        }
        match self.look_for_group() {
            Ok(group) => *self.group.get_or_init(|| group),
            Err(_) => Group::Of64,
        }
    }

    fn look_for_group(&self) -> Result<Group, Error> {
        let plain: Vec<_> = self.tensors.iter().filter(|it| is_plain_matrix(it)).collect();
        let apart = plain.len().div_ceil(MATRICES).max(1);
        let (mut of_32, mut all) = (0, 0);
        for tensor in plain.into_iter().step_by(apart) {
            if let Some(found) = were_codes_in_32(self, tensor)? {
                (of_32, all) = (of_32 + usize::from(found), all + 1);
            }
        }
        Ok(if of_32 * 2 > all { Group::Of32 } else { Group::Of64 })
    }
}

pub(super) fn is_plain_matrix(tensor: &Tensor) -> bool {
    matches!(tensor.role, Role::Layer { .. })
        && matches!(tensor.encoding, Some(Encoding::Float(_)))
        && matches!(tensor.shape[..], [_, columns] if columns % Affine::Q4.group() as u64 == 0)
}

/// Whether the weights that a matrix begins with were codes of 4 or 5 bits in groups of 32 that differ; `None` if there is
/// nothing to see.
///
/// # Errors
/// [`Error::Io`] if they cannot be read.
fn were_codes_in_32(checkpoint: &Checkpoint, tensor: &Tensor) -> Result<Option<bool>, Error> {
    let Some(float) = FloatType::of(tensor.dtype) else { return Ok(None) };
    let count = WEIGHTS.min(tensor.shape.iter().product()) as usize;
    let mut bytes = vec![0; count * float.bytes()];
    checkpoint.read_at(tensor, 0, &mut bytes)?;
    let mut weights = vec![0.0; count];
    float.widen(&bytes, &mut weights);
    let squares = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|it| it * it).sum::<f64>();
    let all = squares(&mut weights.iter().map(|&weight| f64::from(weight)));
    let is_exact = |format| {
        let to = Encoding::Affine(format);
        // Scales of 32 bits: what 16 would round is no error of the codes.
        let found = there_and_back(to, FloatType::F32, &weights, None).ok()?;
        let pairs = weights.iter().zip(&found);
        let missed = squares(&mut pairs.map(|(&weight, &it)| f64::from(weight) - f64::from(it)));
        Some(missed < all * WERE_CODES)
    };
    let mut were_codes = None;
    for [of_32, of_64] in [[Affine::Q4_32, Affine::Q4], [Affine::Q5_32, Affine::Q5]] {
        if let (Some(of_32), Some(of_64), true) = (is_exact(of_32), is_exact(of_64), all > 0.0) {
            were_codes = Some(of_32 && !of_64);
            if of_32 {
                break;
            }
        }
    }
    Ok(were_codes)
}
