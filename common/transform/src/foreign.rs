//! What files have otherwise than the Hub's: norms with what the Hub's readers add to them.

use std::collections::HashMap;

use cake_checkpoint::container::safetensors::CONFIG;
use cake_checkpoint::{Checkpoint, LayerSpec, ModelSpec, NormSpec, Op, Part, Role};

use crate::convert::config;
use crate::error::{Error, Unsupported};
use crate::numbers::Numbers;
use crate::piece::Order;
use crate::source::Source;

/// What becomes of them.
const HUB: &str = "the Hub's form";

/// How the tensors of a source become the Hub's.
#[derive(Debug, Default)]
pub(crate) struct Foreign {
    /// Whether the source is in another form.
    is_foreign: bool,
    /// What is added to the numbers of a tensor, by name.
    added: HashMap<String, f32>,
}

impl Foreign {
    /// Reads off what the checkpoint is, which is `source`'s.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Unsupported::Cannot`] for a configuration that cannot be read; [`Unsupported::Form`] for delta rules,
    /// which have rates, and perhaps rows and columns, otherwise than the Hub's.
    pub(crate) fn of(source: &Source, checkpoint: &Checkpoint) -> Result<Foreign, Error> {
        if source.location.container.is_in_hub_form() {
            return Ok(Foreign::default());
        }
        let is_own = |op: &Op| matches!(op, Op::Delta(it) if it.negative_rate);
        if checkpoint.config.layers.iter().flat_map(LayerSpec::ops).any(is_own) {
            let (path, format) = (source.location.path.clone(), HUB);
            return Err(Unsupported::Form { path, format }.into());
        }
        let text = config::to_text(&config::read(&source.texts)?);
        let cannot = |_| Unsupported::Cannot {
            format: HUB,
            what: format!("what {CONFIG} of {} would", source.location.name),
        };
        let hub = ModelSpec::parse(&text).map_err(cannot)?;
        let more = |role: &Role| match role {
            Role::FinalNorm => hub.final_norm.offset - checkpoint.config.final_norm.offset,
            Role::Layer { layer, leaf } => {
                let own = leaf.strip_suffix(Part::Weight.ending()).unwrap_or(leaf);
                let of = |model: &ModelSpec| offset(model, *layer, own);
                of(&hub) - of(&checkpoint.config)
            }
            _ => 0.0,
        };
        let tensors = checkpoint.tensors.iter();
        let added = tensors.map(|tensor| (tensor.name.clone(), -more(&tensor.role)));
        let added = added.filter(|(_, added)| *added != 0.0).collect();
        Ok(Foreign { is_foreign: true, added })
    }

    /// What is added to the numbers of a tensor.
    pub(crate) fn added(&self, numbers: &Numbers) -> f32 {
        self.added.get(&numbers.name).copied().unwrap_or(0.0)
    }

    /// Whether its bytes cannot be copied, as its numbers are others, or lie otherwise.
    pub(crate) fn changes(&self, numbers: &Numbers) -> bool {
        numbers.order != Order::Same || self.added(numbers) != 0.0
    }

    /// Leaves out what the Hub has no names for: what nobody computes with, in another form.
    pub(crate) fn retain_named(&self, all: &mut Vec<Numbers>) {
        all.retain(|numbers| !(self.is_foreign && numbers.is_ignored));
    }
}

/// What is added to the weights of a norm of a layer; nothing for what is no norm.
fn offset(model: &ModelSpec, layer: usize, path: &str) -> f32 {
    let branches = model.layers.get(layer).into_iter().flat_map(|layer| &layer.branches);
    let mut norms =
        branches.flat_map(|branch| branch.pre.iter().chain(branch.op.norms()).chain(&branch.post));
    norms.find(|norm: &&NormSpec| norm.path == path).map_or(0.0, |norm| norm.offset)
}
