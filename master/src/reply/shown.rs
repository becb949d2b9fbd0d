//! What of a reply can be shown already.

/// What is certain of a piece.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shown {
    /// What the model thinks.
    pub(crate) thought: String,
    /// What it says.
    pub(crate) text: String,
}
