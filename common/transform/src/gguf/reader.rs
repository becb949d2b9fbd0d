//! What the tensors of a checkpoint are in GGUF.

use std::collections::HashMap;

use cake_checkpoint::{Checkpoint, NormSpec, Op, Part, Role};

use super::FORMAT;
use super::arch::Arch;
use super::matrix::Matrix;
use super::names::{self, Module};
use crate::error::Unsupported;
use crate::numbers::Numbers;
use crate::piece::Order;
use crate::source::Source;

/// What the name of a bias ends in.
const BIAS: &str = ".bias";

/// Reads off a checkpoint what its tensors are.
pub(super) struct Reader<'a> {
    source: &'a Source,
    checkpoint: &'a Checkpoint,
    arch: &'a Arch,
    roles: HashMap<&'a str, &'a Role>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(source: &'a Source, checkpoint: &'a Checkpoint, arch: &'a Arch) -> Self {
        let roles = checkpoint.tensors.iter().map(|it| (it.name.as_str(), &it.role)).collect();
        Reader { source, checkpoint, arch, roles }
    }

    /// All that is written, in the order in which it lies in the source.
    ///
    /// # Errors
    /// [`Unsupported`] for a tensor without a name in GGUF, or of no numbers that are known.
    pub(super) fn all(&self) -> Result<Vec<Matrix>, Unsupported> {
        let all = Numbers::of(self.source, Some(self.checkpoint)).into_iter();
        all.filter_map(|numbers| self.read(numbers).transpose()).collect()
    }

    /// What a tensor is; `None` for what inference does not need.
    fn read(&self, numbers: Numbers) -> Result<Option<Matrix>, Unsupported> {
        let spec = &self.checkpoint.config;
        let outer = |name: &str| Some(Module { name: name.to_owned(), expert: None });
        let name = numbers.name.as_str();
        let (path, ending) = match name.strip_suffix(BIAS) {
            Some(path) => (path, BIAS),
            None => {
                (name.strip_suffix(Part::Weight.ending()).unwrap_or(name), Part::Weight.ending())
            }
        };
        let (module, order, norm) = match self.roles.get(name) {
            None | Some(Role::Ignored) => return Ok(None),
            Some(Role::Outer) => (None, Order::Same, None),
            Some(Role::Embedding(_)) => (outer(names::EMBEDDING), Order::Same, None),
            Some(Role::Head(_)) => (outer(names::HEAD), Order::Same, None),
            Some(Role::FinalNorm) => {
                (outer(names::FINAL_NORM), Order::Same, Some(&spec.final_norm))
            }
            Some(Role::Layer { layer, leaf }) => {
                let layer_spec = &spec.layers[*layer];
                let own = leaf.strip_suffix(ending).unwrap_or(leaf);
                let module = names::of_layer(self.arch, *layer, layer_spec, own);
                let mut norms = layer_spec.branches.iter().flat_map(|branch| {
                    branch.pre.iter().chain(branch.op.norms()).chain(&branch.post)
                });
                let norm = norms.find(|it: &&NormSpec| it.path == own);
                (module, self.order(*layer, own), norm)
            }
        };
        let module = module.ok_or_else(|| {
            let what = format!("tensor {path:?} of {}", self.arch.name);
            Unsupported::Cannot { format: FORMAT, what }
        })?;
        let encoding = numbers.encoding.ok_or_else(|| Unsupported::Encoding {
            tensor: name.to_owned(),
            found: "numbers of another kind".to_owned(),
            format: FORMAT,
            hint: "",
        })?;
        let is_vector = !numbers.is_matrix;
        let shape = match (is_vector, order) {
            (false, _) => numbers.matrix_shape(),
            (true, Order::Same) => [1, numbers.count()],
            // A vector whose numbers change places is a matrix of one column.
            (true, _) => [numbers.count(), 1],
        };
        let parts = numbers.stretches(self.source);
        let add = norm.map_or(0.0, |norm| norm.offset);
        let name = numbers.name;
        Ok(Some(Matrix { module, ending, encoding, parts, shape, is_vector, order, add, name }))
    }

    /// The order of a module's rows: those of queries and keys lie in pairs where the rotation turns neighbours.
    fn order(&self, layer: usize, module: &str) -> Order {
        let ops = self.checkpoint.config.layers[layer].ops();
        let turned = ops.filter(|_| self.arch.pairs).find_map(|op| match op {
            Op::Attention(it) => {
                let projections = it.qkv().into_iter().take(2); // Of queries and keys.
                let mut paths = projections.map(|linear| linear.path);
                paths.any(|path| path == module).then_some(it.head_dim as u64)
            }
            _ => None,
        });
        turned.map_or(Order::Same, |head_rows| Order::HalvesToPairs { head_rows })
    }
}
