//! Byte counts and rates as people write and read them.

/// Why a text is not a byte count.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnitError {
    /// Not a number followed by a known unit.
    #[error(
        "{text:?} is not a size; write a number and a unit, such as 3GiB, 512MiB, 1.5GB, 64M or 123456"
    )]
    NotASize {
        /// What was given.
        text: String,
    },
    /// More than 64 bits can count.
    #[error("{text:?} is larger than any size (at most 16 EiB)")]
    TooLarge {
        /// What was given.
        text: String,
    },
}

/// Accepted units. A bare letter and the `iB` forms count in 1024s, the `B` forms in 1000s.
const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// Reads a byte count such as `3GiB`, `512MiB`, `1.5GB`, `64M` or `123456`.
///
/// `KiB`, `MiB`, `GiB`, `TiB` and the bare letters count in 1024s; `KB`, `MB`, `GB`, `TB` in 1000s.
/// Upper and lower case mean the same, and a space before the unit is allowed. A fraction is rounded
/// to the nearest byte.
///
/// # Errors
/// [`UnitError`], which says what is accepted.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let not_a_size = || UnitError::NotASize { text: text.to_owned() };
    let too_large = || UnitError::TooLarge { text: text.to_owned() };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(not_a_size)?;
    if !number.contains('.') && number.bytes().all(|b| b.is_ascii_digit()) && !number.is_empty() {
        let whole: u64 = number.parse().map_err(|_| too_large())?;
        return whole.checked_mul(*scale).ok_or_else(too_large);
    }
    let fraction: f64 = number.parse().map_err(|_| not_a_size())?;
    let bytes = (fraction * *scale as f64).round();
    if bytes >= u64::MAX as f64 {
        return Err(too_large());
    }
    Ok(bytes as u64)
}

/// A byte count for people: `17 B`, `812 KiB`, `2.4 GiB`.
///
/// One decimal below 100, unless it would be zero.
pub fn format_bytes(bytes: u64) -> String {
    format_scaled(bytes as f64)
}

/// A rate for people, such as `512 MiB/s`. Not finite or negative counts as zero.
pub fn format_rate(bytes_per_second: f64) -> String {
    let sane = if bytes_per_second.is_finite() { bytes_per_second.max(0.0) } else { 0.0 };
    format!("{}/s", format_scaled(sane))
}

fn format_scaled(bytes: f64) -> String {
    const NAMES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes;
    let mut unit = 0;
    // Compared after rounding, so that 1023.97 KiB reads "1 MiB" and never "1024 KiB".
    while value.round() >= 1024.0 && unit + 1 < NAMES.len() {
        value /= 1024.0;
        unit += 1;
    }
    let tenths = (value * 10.0).round() / 10.0;
    if unit == 0 || tenths >= 100.0 || tenths.fract() == 0.0 {
        format!("{:.0} {}", value.round(), NAMES[unit])
    } else {
        format!("{tenths:.1} {}", NAMES[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("3GiB", 3 << 30),
            ("512MiB", 512 << 20),
            ("1.5GB", 1_500_000_000),
            ("64M", 64 << 20),
            ("123456", 123_456),
            (" 2.5 gib ", 5 << 29),
            ("17 B", 17),
            ("0", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_size_and_says_what_is() {
        for text in ["", "GiB", "-1", "1e9", "3 GiBB", "1.2.3M", ".", "３GiB", "NaN", "1 000"] {
            let error = parse_bytes(text).unwrap_err();
            assert!(matches!(error, UnitError::NotASize { .. }), "{text}: {error}");
            assert!(error.to_string().contains("512MiB"));
        }
        for text in ["18446744073709551616", "17000000TiB", "99999999999.5TiB"] {
            assert!(matches!(parse_bytes(text), Err(UnitError::TooLarge { .. })), "{text}");
        }
    }

    #[test]
    fn prints_short_and_never_1024_of_anything() {
        for (bytes, text) in [
            (0, "0 B"),
            (17, "17 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (812 << 10, "812 KiB"),
            (1_048_550, "1 MiB"),
            (5 << 29, "2.5 GiB"),
            (25_400_000_000, "23.7 GiB"),
            (3 << 30, "3 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
        assert_eq!(format_rate(512.0 * 1024.0 * 1024.0), "512 MiB/s");
        assert_eq!(format_rate(f64::NAN), "0 B/s");
    }
}
