//! Experts of a layer that become one tensor each part, as MLX has them.

use std::collections::HashMap;

use cake_checkpoint::ExpertSlice;

use crate::error::{Error, Unsupported};
use crate::hub::{Filled, Group};
use crate::safetensors::TensorToWrite;

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
    /// Adds what is one expert's; `slice` says where its tensors belong. The first of a kind adds a group to `groups`, in
    /// its place.
    ///
    /// # Errors
    /// [`Unsupported::Encoding`] for an expert that is not stored as the others of its layer.
    ///
    /// # Panics
    /// If it is no expert's.
    pub(super) fn add(
        &mut self,
        group: Group,
        slice: impl Fn(&str) -> Option<ExpertSlice>,
        groups: &mut Vec<Group>,
    ) -> Result<(), Error> {
        let Group { tensors, filled } = group;
        let slices: Vec<ExpertSlice> =
            tensors.iter().filter_map(|tensor| slice(&tensor.name)).collect();
        let [ExpertSlice { name, index, count }, ..] = &slices[..] else {
            panic!("what is added is an expert's");
        };
        let whole = |(tensor, slice): (&TensorToWrite, &ExpertSlice)| TensorToWrite {
            name: slice.name.clone(),
            dtype: tensor.dtype,
            shape: [&[slice.count as u64], &tensor.shape[..]].concat(),
            bytes: tensor.bytes.saturating_mul(slice.count as u64),
        };
        let whole: Vec<TensorToWrite> = tensors.iter().zip(&slices).map(whole).collect();
        let stack = self.by_name.entry(name.clone()).or_insert_with(|| {
            groups.push(Group { tensors: whole.clone(), filled: Vec::new() });
            Stack { group: groups.len() - 1, filled: vec![None; *count] }
        });
        if groups[stack.group].tensors != whole {
            let (tensor, found) = (tensors[0].name.clone(), tensors[0].dtype.to_string());
            let hint = " beside experts of another type in one layer; encode them";
            return Err(Unsupported::Encoding { tensor, found, format: "MLX", hint }.into());
        }
        stack.filled[*index] = filled.into_iter().next();
        Ok(())
    }

    /// Says what the groups that were added are filled with.
    ///
    /// # Panics
    /// If an expert was not added.
    pub(super) fn fill(self, groups: &mut [Group]) {
        for Stack { group, filled } in self.by_name.into_values() {
            let all = filled.into_iter().map(|one| one.expect("a model has all of its experts"));
            groups[group].filled = all.collect();
        }
    }
}
