//! Families whose files have a text model beside models of pictures or sounds: the text model runs.

use serde_json::{Map, Value};

use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::spec::Name;
use crate::model::whole::{Beginning, ModelSpec};

/// Names of the text model as files of the Hub have them, and under the names that modules have in version 5 of the reference,
/// which some programs write.
pub(super) const AS_MODULES: &[(&str, &str)] =
    &[("language_model.model.", "model.language_model."), ("language_model.lm_head.", "lm_head.")];

/// Names of the text model as the Hub's files of some have them, and as MLX has them.
pub(super) const AS_MLX_HAS_THEM: &[(&str, &str)] =
    &[("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head.")];

/// What begins the names of the tensors of a tower that sees, and of what hands on what it saw, under both kinds of names.
pub(super) const EYES: &[&str] = &[
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
];

/// What reads the text model's part of a configuration.
type Read = fn(&Fields<'_>) -> Result<ModelSpec, ConfigError>;

/// A family of such files.
pub(super) struct Wrapper {
    /// As in `architectures`.
    pub(super) architecture: &'static str,
    /// How names of the text model begin that have another beginning here,
    pub(super) replaced: &'static str,
    /// and which.
    pub(super) prefix: &'static str,
    /// How names begin here, and how in files of another version of the reference, or of MLX.
    pub(super) other_names: &'static [(&'static str, &'static str)],
    /// The kinds of text models (`model_type` of `text_config`) that it may have.
    pub(super) texts: &'static [(&'static str, Read)],
    /// What the text model's class has where `text_config` does not say it: published files leave out what is as it is there.
    pub(super) defaults: fn() -> Map<String, Value>,
    /// How names of other tensors begin.
    pub(super) others: &'static [&'static str],
    /// Whether the output head is the embedding where that is not said.
    pub(super) tied: bool,
    /// Fields that say nothing of text.
    pub(super) fields: &'static [&'static str],
}

impl Wrapper {
    /// Reads `text_config`.
    ///
    /// # Errors
    /// As the text model's family; [`ConfigError::Missing`] or [`ConfigError::Unsupported`] for one that is not there or not
    /// known.
    pub(super) fn read(&self, fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
        const TEXT: &str = "text_config";
        fields.understand(self.fields);
        let missing = |field: &str| ConfigError::Missing { field: field.to_owned() };
        let mut all = (self.defaults)();
        let given = fields.object(TEXT)?.ok_or_else(|| missing(TEXT))?;
        // What is null is said: the class has nothing then.
        all.extend(given.entries().map(|(field, value)| (field.clone(), value.clone())));
        let text = Fields::of(&all);
        let kind = text.text("model_type")?.ok_or_else(|| missing("text_config.model_type"))?;
        let Some((_, read)) = self.texts.iter().find(|(known, _)| *known == kind) else {
            let (field, found) = ("text_config.model_type".to_owned(), format!("{kind:?}"));
            return Err(ConfigError::Unsupported { field, found, architecture: self.architecture });
        };
        text.understand(&["architectures"]);
        let mut model = read(&text).map_err(|error| error.inside(TEXT))?;
        // Where the outside does not say them.
        model.bos_token_id = text.token_ids("bos_token_id")?.first().copied();
        model.eos_token_ids = text.token_ids("eos_token_id")?;
        text.refuse_others(self.architecture).map_err(|error| error.inside(TEXT))?;
        // The reference does not ask the text.
        let tie_word_embeddings = fields.flag("tie_word_embeddings")?.unwrap_or(self.tied);
        Ok(self.around(ModelSpec { tie_word_embeddings, ..model }))
    }

    /// The text model with the names that it has here.
    fn around(&self, model: ModelSpec) -> ModelSpec {
        let named = |name: &Name| match name.strip_prefix(self.replaced) {
            Some(rest) => Name::Owned(format!("{}{rest}", self.prefix)),
            None => name.clone(),
        };
        let beginning = |&(usual, other): &(&'static str, &'static str)| {
            let (usual, other) = (Name::Borrowed(usual), Name::Borrowed(other));
            Beginning { usual, other }
        };
        ModelSpec {
            architecture: Name::Borrowed(self.architecture),
            other_prefixes: self.others.iter().map(|prefix| Name::Borrowed(*prefix)).collect(),
            other_names: self.other_names.iter().map(beginning).collect(),
            ..model.renamed(named)
        }
    }
}
