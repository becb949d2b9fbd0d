//! Names of tensors outside of layers, and of layers, where files of one family have them in more than one way.

use std::borrow::Cow;
use std::collections::HashSet;

use super::given::GivenSpec;
use super::parts::{Name, NormSpec};
use super::streams::StreamsSpec;
use super::whole::{Beginning, ModelSpec};

impl ModelSpec {
    /// The specification under the names that files have which hold tensors called `names`: the other ones if layers are called
    /// so there, and none as the specification calls them.
    pub(crate) fn named_as<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Cow<'_, ModelSpec> {
        let other = |name: &Name| {
            let begins = |it: &Beginning| {
                let rest = name.strip_prefix(&*it.usual)?;
                Some(Name::Owned(format!("{}{rest}", it.other)))
            };
            self.other_names.iter().find_map(begins).unwrap_or_else(|| name.clone())
        };
        let has = |prefix: &str| names.clone().any(|name| name.starts_with(prefix));
        match !has(&self.layer_prefix) && has(&other(&self.layer_prefix)) {
            true => Cow::Owned(self.clone().renamed(other)),
            false => Cow::Borrowed(self),
        }
    }

    /// What the model cannot do without and is not among these names, neither by itself nor with that of all experts.
    pub(crate) fn missing_in(&self, names: &HashSet<&str>) -> Vec<String> {
        let is_there = |name: &String| {
            let mut slices = self.expert_slices(name);
            names.contains(name.as_str()) || slices.any(|it| names.contains(it.name.as_str()))
        };
        let required = self.required_tensors().into_iter().map(|required| required.name);
        required.filter(|name| !is_there(name)).collect()
    }

    /// The same with other names: of what is outside of layers, and of how those of layers begin.
    pub(super) fn renamed(self, named: impl Fn(&Name) -> Name) -> ModelSpec {
        let norm = |norm: NormSpec| NormSpec { path: named(&norm.path), ..norm };
        let given = self.given.map(|given| GivenSpec {
            table: named(&given.table),
            projection: named(&given.projection),
            norm: norm(given.norm),
            ..given
        });
        let modules = |modules: Vec<Name>| modules.iter().map(&named).collect();
        let streams = self.streams.map(|StreamsSpec { begin, end }| StreamsSpec {
            begin: modules(begin),
            end: modules(end),
        });
        ModelSpec {
            embedding: named(&self.embedding),
            layer_prefix: named(&self.layer_prefix),
            head: named(&self.head),
            final_norm: norm(self.final_norm),
            given,
            streams,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::golden;

    #[test]
    fn names_of_another_version_are_taken_where_no_layer_has_the_usual_ones() {
        let spec = &golden("mistral3").config;
        let (usual, other) = ("language_model.model.layers.0.x", "model.language_model.layers.0.x");
        for names in [&[usual][..], &[usual, other], &["lm_head.weight"], &[]] {
            assert_eq!(&*spec.named_as(names.iter().copied()), spec, "{names:?}");
        }
        let named = spec.named_as([other].into_iter());
        assert_eq!(named.layer_prefix, "model.language_model.layers.");
        assert_eq!(named.embedding, "model.language_model.embed_tokens.weight");
        assert_eq!(named.final_norm.path, "model.language_model.norm");
        assert_eq!(named.head, "lm_head.weight");
        let plain = &golden("llama").config;
        assert_eq!(&*plain.named_as([other].into_iter()), plain);
    }
}
