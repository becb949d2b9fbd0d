//! The codes that the matrices of a checkpoint were before somebody widened them, by their weights' names.

use std::collections::BTreeMap;

use crate::encoding::Encoding;

/// What matrices were that were codes, by their weights' names without experts' numbers.
#[derive(Clone, Default, Debug)]
pub(crate) struct Former(BTreeMap<String, Encoding>);

impl Former {
    /// What the matrix was whose weight has that name.
    pub(crate) fn of(&self, weight: &str) -> Option<Encoding> {
        // Names need not be made for what is mostly so: that none were.
        if self.0.is_empty() { None } else { self.0.get(&Former::of_all(weight)).copied() }
    }

    /// Whether none was.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name that experts' weights share: without numbers but the first, which is the layer's.
    pub(crate) fn of_all(name: &str) -> String {
        let is_number =
            |part: &&str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
        let mut layers = 0;
        let kept = name.split('.').filter(|part| {
            layers += usize::from(is_number(part));
            !is_number(part) || layers == 1
        });
        kept.collect::<Vec<_>>().join(".")
    }
}

impl FromIterator<(String, Encoding)> for Former {
    fn from_iter<T: IntoIterator<Item = (String, Encoding)>>(found: T) -> Self {
        Former(found.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_experts_are_one() {
        let name = |name: &str| Former::of_all(name);
        assert_eq!(
            name("model.layers.3.mlp.experts.17.up_proj.weight"),
            "model.layers.3.mlp.experts.up_proj.weight"
        );
        assert_eq!(name("a..b.12.w1.weight"), "a..b.12.w1.weight");
    }
}
