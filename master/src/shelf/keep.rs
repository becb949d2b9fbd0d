//! How long a model stays loaded when nobody uses it.

use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::Value;

/// What is expected of a text.
const EXPECTED: &str =
    "a duration such as 5m or 1h30m, a number of seconds, or forever, which any negative one is";

/// How many characters are shown of what is not that.
const SHOWN: usize = 64;

/// How long a model stays loaded after its last use. As text: a duration (`5m`), seconds, or `forever`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Keep {
    /// Until its room is needed.
    #[default]
    Forever,
    /// For so long; 0 lets it go at once.
    For(Duration),
}

impl Keep {
    /// Not a moment longer than it is used.
    pub const NOT: Self = Self::For(Duration::ZERO);

    /// What is left of it so long after the last use; `None` if that is for ever.
    pub fn left(self, since_use: Duration) -> Option<Duration> {
        match self {
            Self::Forever => None,
            Self::For(time) => Some(time.saturating_sub(since_use)),
        }
    }

    fn seconds(seconds: f64) -> Option<Self> {
        match seconds < 0.0 {
            true => Some(Self::Forever),
            false => Duration::try_from_secs_f64(seconds).ok().map(Self::For),
        }
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = |text: &str| {
            let time = || humantime::parse_duration(text).ok().map(Self::For);
            text.parse().ok().and_then(Self::seconds).or_else(time)
        };
        let found = match (text, text.strip_prefix('-')) {
            ("forever", _) => Some(Self::Forever),
            (_, Some(beneath)) if !beneath.starts_with('-') => time(beneath).map(|_| Self::Forever),
            _ => time(text),
        };
        found.ok_or_else(|| format!("expected {EXPECTED}, found {text:?}"))
    }
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let said = Value::deserialize(deserializer)?;
        let found = match &said {
            Value::Number(number) => number.as_f64().and_then(Self::seconds),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        found.ok_or_else(|| {
            let said: String = said.to_string().chars().take(SHOWN).collect();
            D::Error::custom(format!("expected {EXPECTED}, found {said}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Keep {
        Keep::For(Duration::from_secs(seconds))
    }

    #[test]
    fn durations_seconds_and_forever_are_told_apart() {
        for (text, expected) in [
            ("5m", seconds(300)),
            ("1h30m", seconds(5400)),
            ("90", seconds(90)),
            ("0", seconds(0)),
            ("forever", Keep::Forever),
            ("-1", Keep::Forever),
            ("-5m", Keep::Forever),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
            assert_eq!(serde_json::from_value::<Keep>(text.into()).unwrap(), expected, "{text}");
        }
        for (number, expected) in [("0", seconds(0)), ("300", seconds(300)), ("-1", Keep::Forever)]
        {
            assert_eq!(serde_json::from_str::<Keep>(number).unwrap(), expected, "{number}");
        }
        assert!("-".repeat(1 << 20).parse::<Keep>().is_err());
        for text in ["", "-", "--1", "soon", "5 parsecs", "nan", "inf", "1e300"] {
            assert!(text.parse::<Keep>().is_err(), "{text}");
        }
        for json in ["true", "[]", "1e300", "\"soon\""] {
            assert!(serde_json::from_str::<Keep>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn what_is_left_ends_at_zero() {
        assert_eq!(seconds(5).left(Duration::from_secs(2)), Some(Duration::from_secs(3)));
        assert_eq!(seconds(5).left(Duration::from_secs(9)), Some(Duration::ZERO));
        assert_eq!(Keep::Forever.left(Duration::MAX), None);
    }
}
