//! Names in a sentence.

/// How many names a sentence lists before it only counts.
const NAMES_SHOWN: usize = 8;

/// A few names, then how many more there are.
pub(crate) fn listed(names: &[String]) -> String {
    let mut text = names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_SHOWN {
        text += &format!(" and {} more", names.len() - NAMES_SHOWN);
    }
    text
}
