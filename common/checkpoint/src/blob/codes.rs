//! The codes that a checkpoint's weights were before somebody widened them, which they become again.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use super::{Digest, Hasher};
use crate::catalog::{Checkpoint, Former, Tensor};
use crate::container::Lies;
use crate::encoding::{Affine, Encoding, FloatType, Part, Scheme, former_codes};
use crate::error::Error;
use crate::model::{Joined, LayerSpec, Op, Role};

/// Weights that are looked at in a matrix where it begins, in its middle and where it ends: 32 groups of 32 each.
const WEIGHTS: u64 = 1024;
/// Weights of the largest block; rows are whole ones, or have none of these.
const LARGEST_BLOCK: u64 = 256;

impl Checkpoint {
    /// What the matrix of a layer whose weight has that name becomes, if it is one of plain numbers and can be packed so;
    /// `None` if the scheme packs none.
    ///
    /// What was codes of 4 to 8 bits before somebody widened it becomes those again, without a loss but for the rounding of
    /// scales, or where the scheme has far fewer bits, others ([`Scheme::keeps`]). Keys and values of which each head serves
    /// several heads of queries get more bits than others ([`Scheme::of_shared`]). Some weights of each matrix show whether it
    /// was, those of one expert for all of a layer; a file of headers alone shows nothing.
    ///
    /// Looked for once. Where weights cannot be read, none were codes: whoever reads them whole gets the error.
    pub fn becomes(&self, weight: &str, scheme: Scheme) -> Option<Encoding> {
        // Where nothing depends on them, no weights are read.
        if !scheme.is_codes() {
            return scheme.of_layers();
        }
        let scheme = self.scheme_of(weight, scheme);
        self.were(weight).and_then(|were| scheme.keeps(were)).or(scheme.of_layers())
    }

    /// As [`Checkpoint::becomes`], for files that have no blocks, only groups with a scale and a bias: those that are as exact,
    /// with half a bit more for each weight, and where there are none, what becomes of all others. Blocks that are not what the
    /// weights were have groups of as many bits.
    pub fn becomes_affine(&self, weight: &str, scheme: Scheme) -> Option<Affine> {
        let usual = || self.scheme_of(weight, scheme).of_layers()?.as_affine();
        self.becomes(weight, scheme)?.in_groups(self.were(weight)).or_else(usual)
    }

    /// The scheme for a matrix.
    fn scheme_of(&self, weight: &str, scheme: Scheme) -> Scheme {
        if self.shared().contains(weight) { scheme.of_shared() } else { scheme }
    }

    /// What embedding or head become whose weight has that name, in the same way; `None` if they stay.
    pub fn end_becomes(&self, weight: &str, scheme: Scheme) -> Option<Encoding> {
        let were = if scheme.is_codes() { self.were(weight) } else { None };
        were.or(scheme.of_ends())
    }

    /// As [`Checkpoint::end_becomes`], for files that have no blocks.
    pub fn end_becomes_affine(&self, weight: &str, scheme: Scheme) -> Option<Affine> {
        let usual = || scheme.of_ends()?.as_affine();
        self.end_becomes(weight, scheme)?.as_affine().or_else(usual)
    }

    /// Whether what becomes of weights depends on where errors count: also in 8 bits where some become fewer again.
    pub(crate) fn weighs_errors(&self, scheme: Scheme) -> bool {
        scheme.weighs_errors() || scheme.is_codes() && !self.codes().is_empty()
    }

    /// What codes a matrix was.
    fn were(&self, weight: &str) -> Option<Encoding> {
        self.codes().of(weight)
    }

    /// What the scheme makes of each matrix, as a digest of that.
    pub(crate) fn all_become(&self, scheme: Scheme) -> Digest {
        let mut hasher = Hasher::default();
        for Tensor { stored, .. } in self.tensors.iter().filter(|it| is_plain_matrix(it)) {
            if let Some(to) = self.becomes(&stored.name, scheme) {
                hasher.update(format!("{} {to}\n", stored.name).as_bytes());
            }
        }
        hasher.finish()
    }

    /// The weights of keys and values of which each head serves several heads of queries.
    fn shared(&self) -> &BTreeSet<String> {
        self.shared.get_or_init(|| {
            let modules = |layer: &LayerSpec| {
                let attention = layer.ops().filter_map(|op| match op {
                    Op::Attention(spec) if spec.heads > spec.kv_heads => Some(spec),
                    _ => None,
                });
                let modules = attention.filter_map(|spec| match &spec.qkv {
                    Joined::Separate([_, keys, values]) => Some([keys.clone(), values.clone()]),
                    Joined::Fused(_) => None,
                });
                modules.flatten().collect::<Vec<_>>()
            };
            let modules: Vec<_> = self.whole().layers.iter().map(modules).collect();
            let in_layer = |layer: usize| modules.get(layer).into_iter().flatten();
            let is_shared = |tensor: &&Tensor| {
                let Role::Layer { layer, leaf } = &tensor.role else { return false };
                let module = leaf.strip_suffix(Part::Weight.ending());
                module.is_some_and(|module| in_layer(*layer).any(|it| it == module))
            };
            self.tensors.iter().filter(is_shared).map(|tensor| tensor.name.clone()).collect()
        })
    }

    /// Looks for what weights were, before somebody asks who must not wait for files.
    pub fn look_for_codes(&self) {
        self.codes();
    }

    fn codes(&self) -> &Former {
        if let Some(codes) = self.codes.get() {
            return codes;
        }
        // Not within the lock: who waits for other threads' parts of the work may be given work that asks, too.
        let found = self.codes_of_all().unwrap_or_default();
        self.codes.get_or_init(|| found)
    }

    fn codes_of_all(&self) -> Result<Former, Error> {
        let is_end = |it: &Tensor| matches!(it.role, Role::Embedding(_) | Role::Head(_));
        let is_matrix = |it: &&Tensor| is_plain_matrix(it) || is_end(it) && is_plain(it);
        let mut firsts = BTreeMap::new();
        for matrix in self.tensors.iter().filter(is_matrix) {
            firsts.entry(Former::of_all(&matrix.name)).or_insert(matrix);
        }
        let look = |(name, matrix)| Ok(were(self, matrix)?.map(|were| (name, were)));
        let found = firsts.into_par_iter().filter_map(|first| look(first).transpose());
        Ok(found.collect::<Result<Vec<_>, Error>>()?.into_iter().collect())
    }
}

/// Whether a tensor is a matrix of a layer in plain numbers that can be packed.
pub(super) fn is_plain_matrix(tensor: &Tensor) -> bool {
    matches!(tensor.role, Role::Layer { .. }) && is_plain(tensor)
}

fn is_plain(tensor: &Tensor) -> bool {
    matches!(tensor.encoding, Some(Encoding::Float(_)))
        && matches!(tensor.shape[..], [_, columns] if columns % Affine::Q4.group() as u64 == 0)
}

/// Which codes the weights of a matrix were, by some of them; `None` if none of those that are looked for, or if its numbers
/// lie apart.
///
/// # Errors
/// [`Error::Io`] if they cannot be read.
fn were(checkpoint: &Checkpoint, matrix: &Tensor) -> Result<Option<Encoding>, Error> {
    let Some(float) = FloatType::of(matrix.dtype) else { return Ok(None) };
    let &[rows, columns] = &matrix.shape[..] else { return Ok(None) };
    // Each number would be read by itself.
    if let Lies::Apart(_) = matrix.lies {
        return Ok(None);
    }
    let all = rows.saturating_mul(columns);
    let last = all.saturating_sub(WEIGHTS) / LARGEST_BLOCK * LARGEST_BLOCK;
    let starts = BTreeSet::from([0, last / 2 / LARGEST_BLOCK * LARGEST_BLOCK, last]);
    let stretch = |start: u64| -> Result<Vec<f32>, Error> {
        let mut bytes = vec![0; WEIGHTS.min(all - start) as usize * float.bytes()];
        checkpoint.read_at(matrix, start * float.bytes() as u64, &mut bytes)?;
        let mut weights = vec![0.0; bytes.len() / float.bytes()];
        float.widen(&bytes, &mut weights);
        Ok(weights)
    };
    let stretches = starts.into_iter().map(stretch).collect::<Result<Vec<_>, Error>>()?;
    Ok(former_codes(&stretches, [rows, columns]))
}
