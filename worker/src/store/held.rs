//! What the store has of a blob, for whoever asks.

use std::time::SystemTime;

use cake_checkpoint::{Digest, Manifest};

/// A whole blob in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBlob {
    /// Its name, the digest of its manifest.
    pub name: Digest,
    /// Size of its file.
    pub bytes: u64,
    /// When it was last opened, or received if it never was.
    pub last_used: SystemTime,
    /// What its tensors have in common, for people: `model.layers.7`.
    pub label: String,
    /// How many tensors it has.
    pub tensors: usize,
    /// Whether someone holds an [`InUse`](super::InUse) of it, so that it cannot be evicted.
    pub in_use: bool,
}

/// The beginning of a blob whose transfer was interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialBlob {
    /// Name of the blob it begins.
    pub name: Digest,
    /// Bytes on disk, of which [`Store::resume_at`](super::Store::resume_at) tells how many are right.
    pub bytes: u64,
    /// When it was last written.
    pub last_used: SystemTime,
}

impl HeldBlob {
    pub(super) fn new(name: Digest, manifest: &Manifest, last_used: SystemTime) -> HeldBlob {
        let names: Vec<&str> = manifest.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        HeldBlob {
            name,
            bytes: manifest.file_bytes,
            last_used,
            label: common_label(&names),
            tensors: names.len(),
            in_use: false,
        }
    }
}

/// The dotted parts that all names start with, or the first name where they share none.
fn common_label(names: &[&str]) -> String {
    let Some((first, rest)) = names.split_first() else {
        return String::new();
    };
    let mut parts: Vec<&str> = first.split('.').collect();
    for name in rest {
        let same = parts.iter().zip(name.split('.')).take_while(|(a, b)| **a == *b).count();
        parts.truncate(same);
    }
    if parts.is_empty() { (*first).to_owned() } else { parts.join(".") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_say_what_all_names_share() {
        assert_eq!(common_label(&["model.layers.1.a", "model.layers.1.b"]), "model.layers.1");
        assert_eq!(common_label(&["model.layers.1.a", "model.layers.10.b"]), "model.layers");
        assert_eq!(common_label(&["a.b", "c.d"]), "a.b");
        assert_eq!(common_label(&["only.one"]), "only.one");
        assert_eq!(common_label(&[]), "");
    }
}
