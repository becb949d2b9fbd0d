//! Writing a date the way chat templates ask for it, in UTC and English.

use std::time::{Duration, SystemTime};

const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats `time` as C's `strftime` does in the C locale, in UTC.
///
/// Knows `%a %A %b %B %c %d %D %e %F %h %H %I %j %m %M %n %p %R %S %t %T %u %w %x %X %y %Y %Z %z
/// %%`, and `%-d` and the like for numbers without padding. Anything else is copied as it stands.
/// Times before 1970 are taken for 1970.
pub(super) fn strftime(format: &str, time: SystemTime) -> String {
    let date = Date::from(time);
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, directive)) = rest.split_once('%') {
        out.push_str(before);
        let (unpadded, tail) = match directive.strip_prefix('-') {
            Some(tail) => (true, tail),
            None => (false, directive),
        };
        let mut characters = tail.chars();
        match characters.next().and_then(|letter| date.write(letter, unpadded)) {
            Some(written) => {
                out.push_str(&written);
                rest = characters.as_str();
            }
            None => {
                out.push('%');
                rest = directive;
            }
        }
    }
    out + rest
}

/// A moment in the Gregorian calendar, UTC.
struct Date {
    year: u64,
    /// 0 is January.
    month: usize,
    /// 1 to 31.
    day: u64,
    /// 1 to 366.
    day_of_year: u64,
    /// 0 is Sunday.
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

impl From<SystemTime> for Date {
    fn from(time: SystemTime) -> Date {
        let seconds =
            time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let days = seconds / 86_400;
        // Years are counted from March, so that a leap day is the last day of its year, and from
        // 0000-03-01, which is 719,468 days before 1970-01-01 (Hinnant's `civil_from_days`).
        let shifted = days.saturating_add(719_468);
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * from_march + 2) / 153;
        let day = from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = (month_from_march + 2) % 12;
        let year = era * 400 + year_of_era + u64::from(month < 2);
        let leap = u64::from(
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)),
        );
        // 1 March is day 60 of its calendar year, 61 in a leap year; 1 January is day 306 from March.
        let day_of_year = if month < 2 { from_march - 305 } else { from_march + 60 + leap };
        Date {
            year,
            month: month as usize,
            day,
            day_of_year,
            weekday: ((days + 4) % 7) as usize, // 1970-01-01 was a Thursday.
            hour: seconds / 3_600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }
}

impl Date {
    /// What `%letter` (or `%-letter`) stands for, if anything.
    fn write(&self, letter: char, unpadded: bool) -> Option<String> {
        let number = |value: u64, width: usize| match unpadded {
            true => value.to_string(),
            false => format!("{value:0width$}"),
        };
        let month = MONTHS[self.month];
        let weekday = WEEKDAYS[self.weekday];
        let hour12 = (self.hour + 11) % 12 + 1;
        Some(match letter {
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'Y' => self.year.to_string(),
            'y' => number(self.year % 100, 2),
            'm' => number(self.month as u64 + 1, 2),
            'd' => number(self.day, 2),
            'e' if unpadded => self.day.to_string(),
            'e' => format!("{:2}", self.day),
            'j' => number(self.day_of_year, 3),
            'H' => number(self.hour, 2),
            'I' => number(hour12, 2),
            'M' => number(self.minute, 2),
            'S' => number(self.second, 2),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'u' => ((self.weekday + 6) % 7 + 1).to_string(),
            'w' => self.weekday.to_string(),
            'c' => self.all("abeTY", " "),
            'D' | 'x' => self.all("mdy", "/"),
            'F' => self.all("Ymd", "-"),
            'R' => self.all("HM", ":"),
            'T' | 'X' => self.all("HMS", ":"),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }

    /// Several directives with one separator between them.
    fn all(&self, letters: &str, separator: &str) -> String {
        let parts: Vec<String> =
            letters.chars().filter_map(|letter| self.write(letter, false)).collect();
        parts.join(separator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, format: &str) -> String {
        strftime(format, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// Expected values are those of Python's `datetime.strftime`.
    #[test]
    fn writes_dates_as_python_does() {
        assert_eq!(at(0, "%Y-%m-%d %H:%M:%S %A"), "1970-01-01 00:00:00 Thursday");
        assert_eq!(at(1_709_210_096, "%d %b %Y"), "29 Feb 2024");
        assert_eq!(
            at(1_709_210_096, "%A, %B %-d, %Y, %I:%M %p"),
            "Thursday, February 29, 2024, 12:34 PM"
        );
        assert_eq!(at(1_709_210_096, "%j %u %w %y %e %a"), "060 4 4 24 29 Thu");
        assert_eq!(
            at(1_735_689_599, "%c|%x|%X|%j"),
            "Tue Dec 31 23:59:59 2024|12/31/24|23:59:59|366"
        );
        assert_eq!(at(951_868_800, "%F %T %j %p %-I"), "2000-03-01 00:00:00 061 AM 12");
        assert_eq!(
            at(4_107_542_400, "%F %j %a %D %R %z"),
            "2100-03-01 060 Mon 03/01/00 00:00 +0000"
        );
        assert_eq!(at(1_767_225_600, "%e|%-e|%-m|%h"), " 1|1|1|Jan");
    }

    #[test]
    fn copies_what_it_does_not_know() {
        assert_eq!(at(0, "100%% %Q %-Q é %"), "100% %Q %-Q é %");
        assert_eq!(at(0, ""), "");
    }
}
