//! What of a reply can be shown already.

/// What is certain of a piece.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shown {
    /// What the model thinks.
    pub(crate) thought: String,
    /// What it says.
    pub(crate) text: String,
}

/// How many bytes at the end of `text` may be the beginning of one of these: as many as can be.
pub(super) fn begun_at_end(text: &str, markers: &[&str]) -> usize {
    let of_marker = |marker: &&str| {
        let beginnings = marker.char_indices().map(|(at, _)| &marker[..at]);
        let last = beginnings.rev().find(|beginning| text.ends_with(beginning));
        last.map_or(0, str::len)
    };
    markers.iter().map(of_marker).max().unwrap_or(0)
}
