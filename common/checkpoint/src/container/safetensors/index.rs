//! The index over several files: which tensor is in which file.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// Longest index accepted: the limit of the reference hub library.
pub const MAX_INDEX_BYTES: u64 = 10 << 20;
/// What an index is called in a model's directory.
pub const INDEX: &str = "model.safetensors.index.json";
/// What a checkpoint file's name must end with.
pub const EXTENSION: &str = ".safetensors";

/// A parsed index. The names of its files are safe to join to its directory.
#[derive(Clone, PartialEq, Debug)]
pub struct Index {
    /// Tensor name → file name, relative to the index.
    pub weight_map: BTreeMap<String, String>,
    /// Sum of the tensors' bytes as the writer saw it. Only advice: many writers get it wrong.
    pub total_size: Option<f64>,
}

/// What is wrong with an index.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum IndexError {
    #[error("index of {bytes} bytes is longer than {MAX_INDEX_BYTES}")]
    TooLarge { bytes: u64 },
    #[error("index is not an object whose weight_map maps tensor names to file names: {0}")]
    Json(serde_json::Error),
    #[error("weight_map is empty")]
    Empty,
    #[error("unsafe file name {file:?} in weight_map: {reason}")]
    UnsafeFileName { file: String, reason: &'static str },
}

impl Index {
    /// Reads and checks an index.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn parse(json: &[u8]) -> Result<Index, IndexError> {
        let bytes = json.len() as u64;
        if bytes > MAX_INDEX_BYTES {
            return Err(IndexError::TooLarge { bytes });
        }
        let raw: RawIndex = serde_json::from_slice(json).map_err(IndexError::Json)?;
        let weight_map = raw.weight_map.0;
        if weight_map.is_empty() {
            return Err(IndexError::Empty);
        }
        for file in weight_map.values() {
            if let Some(reason) = unsafe_reason(file) {
                return Err(IndexError::UnsafeFileName { file: file.clone(), reason });
            }
        }
        let total_size = raw.metadata.as_ref().and_then(|m| m.get("total_size")?.as_f64());
        Ok(Index { weight_map, total_size })
    }

    /// The file names, each once, sorted.
    pub fn files(&self) -> Vec<&str> {
        let mut files: Vec<&str> = self.weight_map.values().map(String::as_str).collect();
        files.sort_unstable();
        files.dedup();
        files
    }
}

/// Why a name from an index must not be joined to a directory; `None` when it is safe.
pub fn unsafe_reason(file: &str) -> Option<&'static str> {
    unsafe_path_reason(file).or_else(|| {
        let last = file.rsplit(['/', '\\']).next()?;
        match last.strip_suffix(EXTENSION) {
            None | Some("") => Some("it does not end in .safetensors"),
            Some(_) => None,
        }
    })
}

/// Why the name of a file of a model, whatever it is, must not be joined to a directory; `None` when it is safe.
///
/// The name is judged as Windows would read it, where both slashes separate, so that one name
/// means the same everywhere. Subdirectories are allowed.
pub fn unsafe_path_reason(file: &str) -> Option<&'static str> {
    if file.is_empty() {
        return Some("it is empty");
    }
    if file.contains('\0') {
        return Some("it has a NUL character");
    }
    if file.starts_with(['/', '\\']) {
        return Some("it is absolute");
    }
    if file.contains(':') {
        return Some("it names a drive or a stream");
    }
    let leaves = file.split(['/', '\\']).any(|part| part == "..");
    leaves.then_some("it leaves the directory")
}

#[derive(Deserialize)]
struct RawIndex {
    metadata: Option<Value>,
    weight_map: WeightMap,
}

/// A map of strings in which no key appears twice.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensor names and file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((tensor, file)) = map.next_entry::<String, String>()? {
                    let again = format!("tensor {tensor:?} appears twice");
                    if entries.insert(tensor, file).is_some() {
                        return Err(de::Error::custom(again));
                    }
                }
                Ok(WeightMap(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped_to(file: &str) -> Result<Index, IndexError> {
        let file = Value::from(file);
        Index::parse(format!(r#"{{"weight_map":{{"a":{file}}}}}"#).as_bytes())
    }

    #[test]
    fn reads_an_index_with_and_without_metadata() {
        let index = Index::parse(
            br#"{"metadata":{"total_size":10.0,"total_parameters":5},
                "weight_map":{"b":"y.safetensors","a":"x.safetensors","c":"x.safetensors"}}"#,
        )
        .unwrap();
        assert_eq!(index.total_size, Some(10.0));
        assert_eq!(index.files(), ["x.safetensors", "y.safetensors"]);
        assert_eq!(mapped_to("sub/model-00001-of-00002.safetensors").unwrap().total_size, None);
    }

    #[test]
    fn rejects_unsafe_file_names() {
        for file in [
            "../x.safetensors",
            "/abs.safetensors",
            "C:\\x.safetensors",
            "c:x.safetensors",
            "\\\\srv\\share\\x.safetensors",
            "a/../../b.safetensors",
            "a\\..\\b.safetensors",
            "a\0.safetensors",
            "",
            "..",
        ] {
            let error = mapped_to(file).unwrap_err();
            assert!(matches!(error, IndexError::UnsafeFileName { .. }), "{file:?}: {error}");
        }
    }

    #[test]
    fn rejects_other_extensions() {
        for file in ["pytorch_model.bin", "x.safetensors.bin", "x.SAFETENSORS", ".safetensors", "x"]
        {
            assert!(matches!(mapped_to(file), Err(IndexError::UnsafeFileName { .. })), "{file}");
        }
    }

    #[test]
    fn rejects_an_index_that_is_not_one() {
        for text in [
            "[]",
            "{}",
            "",
            "<html>",
            r#"{"weight_map":[]}"#,
            r#"{"weight_map":{"a":1}}"#,
            r#"{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}"#,
        ] {
            assert!(matches!(Index::parse(text.as_bytes()), Err(IndexError::Json(_))), "{text}");
        }
        assert!(matches!(Index::parse(br#"{"weight_map":{}}"#), Err(IndexError::Empty)));
    }

    #[test]
    fn rejects_an_oversized_index() {
        let long = vec![b' '; MAX_INDEX_BYTES as usize + 1];
        assert!(matches!(Index::parse(&long), Err(IndexError::TooLarge { .. })));
    }
}
