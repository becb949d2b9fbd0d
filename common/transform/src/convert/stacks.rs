//! Experts of a layer that become one tensor each part, as MLX has them.

use std::collections::HashMap;

use crate::error::{Error, PLAIN_FIRST, Unsupported};
use crate::hub::{Filled, Group};
use crate::safetensors::TensorToWrite;

const FORMAT: &str = "MLX";

/// Tensors that are filled expert by expert.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    /// By the name of the first tensor.
    by_name: HashMap<String, Stack>,
}

#[derive(Debug)]
struct Stack {
    /// Which group it is: where the first of its experts came.
    group: usize,
    /// What each expert's slice is filled with.
    filled: Vec<Option<Filled>>,
}

impl Stacks {
    /// Adds a matrix or vector of the expert of that number, of so many: its tensors, under the names of those that have all
    /// experts', and what fills its slice of them. The first of a kind adds a group to `groups`, in its place.
    ///
    /// # Errors
    /// [`Unsupported::Encoding`] for one that is not stored as those of the layer's other experts.
    pub(super) fn add(
        &mut self,
        Group { tensors, filled }: Group,
        (index, count): (usize, usize),
        groups: &mut Vec<Group>,
    ) -> Result<(), Error> {
        let Some(first) = tensors.first() else { return Ok(()) };
        let stacked = |tensor: &TensorToWrite| TensorToWrite {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: [&[count as u64], &tensor.shape[..]].concat(),
            bytes: tensor.bytes.saturating_mul(count as u64),
        };
        let of_all: Vec<TensorToWrite> = tensors.iter().map(stacked).collect();
        let stack = self.by_name.entry(first.name.clone()).or_insert_with(|| {
            groups.push(Group { tensors: of_all.clone(), filled: Vec::new() });
            Stack { group: groups.len() - 1, filled: vec![None; count] }
        });
        if groups[stack.group].tensors != of_all {
            let TensorToWrite { name: tensor, dtype, .. } = first.clone();
            let found = format!("{dtype} in expert {index} and in another way in others");
            let (format, hint) = (FORMAT, PLAIN_FIRST);
            return Err(Unsupported::Encoding { tensor, found, format, hint }.into());
        }
        if let (Some(place), Some(filled)) =
            (stack.filled.get_mut(index), filled.into_iter().next())
        {
            *place = Some(filled);
        }
        Ok(())
    }

    /// Fills the groups that were added.
    ///
    /// # Errors
    /// [`Unsupported::Cannot`] if a layer has not all of its experts.
    pub(super) fn fill(self, groups: &mut [Group]) -> Result<(), Error> {
        for (name, Stack { group, filled }) in self.by_name {
            let all: Option<Vec<Filled>> = filled.into_iter().collect();
            groups[group].filled = all.ok_or_else(|| {
                let what = format!("only some of the experts that {name} has");
                Unsupported::Cannot { format: FORMAT, what }
            })?;
        }
        Ok(())
    }
}
