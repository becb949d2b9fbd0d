//! A half-open range of layers, printed `0..12`.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Layers `start` up to but not including `end`, numbered from 0 as in the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub struct LayerRange {
    /// First layer of the range.
    pub start: usize,
    /// First layer after it; never less than `start`.
    pub end: usize,
}

/// Why a text is not a layer range.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is not a layer range; write two numbers such as 0..12, the second not included and not smaller"
)]
pub struct LayerRangeError {
    /// What was given.
    pub text: String,
}

impl LayerRange {
    /// The layers `start..end`.
    ///
    /// # Panics
    /// If `end` is smaller than `start`.
    pub const fn new(start: usize, end: usize) -> Self {
        assert!(start <= end, "a layer range ends before it starts");
        LayerRange { start, end }
    }

    /// Number of layers.
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is no layer in it.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether `layer` is in it.
    pub const fn contains(self, layer: usize) -> bool {
        self.start <= layer && layer < self.end
    }

    /// The layer numbers, ascending.
    pub fn iter(self) -> Range<usize> {
        self.start..self.end
    }
}

impl IntoIterator for LayerRange {
    type Item = usize;
    type IntoIter = Range<usize>;
    fn into_iter(self) -> Range<usize> {
        self.iter()
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}..{}", self.start, self.end))
    }
}

impl FromStr for LayerRange {
    type Err = LayerRangeError;

    fn from_str(text: &str) -> Result<Self, LayerRangeError> {
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| part.parse::<usize>().ok()).flatten()
        };
        text.split_once("..")
            .and_then(|(start, end)| Some((number(start)?, number(end)?)))
            .filter(|(start, end)| start <= end)
            .map(|(start, end)| LayerRange { start, end })
            .ok_or_else(|| LayerRangeError { text: text.to_owned() })
    }
}

impl Serialize for LayerRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LayerRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_reads_half_open() {
        let range = LayerRange::new(4, 12);
        assert_eq!(range.to_string(), "4..12");
        assert_eq!("4..12".parse(), Ok(range));
        assert_eq!(serde_json::to_string(&range).unwrap(), "\"4..12\"");
        assert_eq!(serde_json::from_str::<LayerRange>("\"4..12\"").unwrap(), range);
        assert_eq!(range.len(), 8);
        assert!(range.contains(4) && range.contains(11) && !range.contains(12));
        assert_eq!(range.iter().collect::<Vec<_>>(), (4..12).collect::<Vec<_>>());
        assert!(LayerRange::new(3, 3).is_empty());
    }

    #[test]
    fn refuses_anything_else() {
        for text in ["", "4", "4..", "..4", "4...6", "6..4", "-1..2", "+1..2", "1..2..3", "a..b"] {
            assert!(text.parse::<LayerRange>().is_err(), "{text}");
        }
        assert!("0..99999999999999999999".parse::<LayerRange>().is_err());
    }
}
