//! Parts of names that become steps of a path.

use std::fs::read_dir;
use std::path::Path;

/// Most entries that are looked at in one folder.
pub(super) const MAX_ENTRIES: usize = 10_000;
/// Longest part of a name: file systems take no more.
const MAX_PART_BYTES: usize = 255;

/// Whether a part of a name can be the name of one file or folder, and nothing else: no way up, no separator, nothing hidden.
pub(super) fn is_plain(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+' | b' ');
    let begins = part.bytes().next().is_some_and(|first| !matches!(first, b'.' | b' '));
    begins && part.len() <= MAX_PART_BYTES && part.bytes().all(plain)
}

/// The names in a folder that are plain, ascending; none where there is no folder.
pub(super) fn names_in(folder: &Path) -> Vec<String> {
    let entries = read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_plain(name)).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_is_one_step_down() {
        for part in ["llama3.2", "Qwen3-8B-GGUF", "a b.gguf", "x_y+z"] {
            assert!(is_plain(part), "{part}");
        }
        let long = "x".repeat(MAX_PART_BYTES + 1);
        for part in ["", ".", "..", ".hidden", " x", "a/b", "a\\b", "a\0b", "C:x", "ä", &long] {
            assert!(!is_plain(part), "{part:?}");
        }
    }
}
