//! Values as models write them that are not trained on JSON: Python's literals, and Gemma 4's, whose texts stand between
//! tokens and whose keys have no quotes.

use serde_json::{Map, Value};

use super::markers::QUOTE;

/// Lists and objects, one in the other, that are read.
const MOST_LEVELS: usize = 32;

/// What `one` reads, again and again with commas between, up to `end`; and what follows that.
pub(super) fn until<'a, T>(
    mut text: &'a str,
    end: char,
    mut one: impl FnMut(&'a str) -> Option<(T, &'a str)>,
) -> Option<(Vec<T>, &'a str)> {
    let mut all = Vec::new();
    loop {
        text = text.trim_start();
        if let Some(rest) = text.strip_prefix(end) {
            return Some((all, rest));
        }
        let (found, rest) = one(text)?;
        all.push(found);
        text = rest.trim_start();
        match text.strip_prefix(',') {
            Some(rest) => text = rest,
            None if text.starts_with(end) => {}
            None => return None,
        }
    }
}

/// Keys and values with `between` between the two, up to `end`; and what follows that.
pub(super) fn members(text: &str, between: char, end: char) -> Option<(Map<String, Value>, &str)> {
    nested_members(text, between, end, MOST_LEVELS)
}

fn nested_members(
    text: &str,
    between: char,
    end: char,
    levels: usize,
) -> Option<(Map<String, Value>, &str)> {
    let (found, rest) = until(text, end, |text| {
        let (key, rest) = match quoted(text) {
            Some((key, rest)) => (key, rest.trim_start().strip_prefix(between)?),
            None => {
                let (key, rest) = text.split_once(between)?;
                (bare(key.trim())?.to_owned(), rest)
            }
        };
        let (value, rest) = value(rest, levels)?;
        Some(((key, value), rest))
    })?;
    Some((found.into_iter().collect(), rest))
}

/// A key without quotes.
fn bare(key: &str) -> Option<&str> {
    const OTHERS: &[char] = &[',', '=', ':', '(', ')', '[', ']', '{', '}', '<', '>', '"', '\''];
    let is_one = |it: char| !it.is_whitespace() && !OTHERS.contains(&it);
    (!key.is_empty() && key.chars().all(is_one)).then_some(key)
}

/// A value at the beginning of `text`, and what follows it.
fn value(text: &str, levels: usize) -> Option<(Value, &str)> {
    let text = text.trim_start();
    if let Some((found, rest)) = quoted(text) {
        return Some((Value::from(found), rest));
    }
    let levels = levels.checked_sub(1);
    if let Some(rest) = text.strip_prefix('[') {
        let (found, rest) = until(rest, ']', |text| value(text, levels?))?;
        return Some((Value::from(found), rest));
    }
    if let Some(rest) = text.strip_prefix('{') {
        let (found, rest) = nested_members(rest, ':', '}', levels?)?;
        return Some((Value::from(found), rest));
    }
    let end = text.find([',', ']', '}', ')']).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let found = match word.trim_end() {
        "True" => Value::from(true),
        "False" => Value::from(false),
        "None" => Value::Null,
        word => serde_json::from_str(word).ok()?,
    };
    Some((found, rest))
}

/// A text in quotes at the beginning of `text`, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    if let Some(rest) = text.strip_prefix(QUOTE) {
        let (found, rest) = rest.split_once(QUOTE)?;
        return Some((found.to_owned(), rest));
    }
    let quote = text.chars().next().filter(|it| ['"', '\''].contains(it))?;
    let (mut found, mut rest) = (String::new(), text.strip_prefix(quote)?);
    if rest.strip_prefix(quote).is_some_and(|rest| rest.starts_with(quote)) {
        return None; // Three of them are something else.
    }
    loop {
        let mut characters = rest.chars();
        let character = characters.next()?;
        let after = characters.as_str();
        match character {
            '\\' => {
                let (meant, length) = escaped(after).unwrap_or(('\\', 0)); // As it is written.
                found.push(meant);
                rest = &after[length..];
            }
            // Models leave quotes within texts as they are: the last one is followed by what may follow a value.
            end if end == quote && ends(after) => return Some((found, after)),
            other => {
                found.push(other);
                rest = after;
            }
        }
    }
}

/// Whether what follows a quote may follow a text.
fn ends(after: &str) -> bool {
    let next = after.trim_start().chars().next();
    next.is_none_or(|next| [',', ']', '}', ')', ':'].contains(&next))
}

/// What is meant by what stands behind a backslash, and how many bytes that is; `None` if nothing is.
fn escaped(text: &str) -> Option<(char, usize)> {
    const LENGTH: usize = "uXXXX".len();
    let meant = match text.chars().next()? {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        same @ ('\\' | '"' | '\'' | '/') => same,
        'u' => {
            let unit = unit(text)?;
            if let Some(meant) = char::from_u32(unit.into()) {
                return Some((meant, LENGTH));
            }
            let second = text.get(LENGTH..)?.strip_prefix('\\').and_then(self::unit)?;
            let meant = char::decode_utf16([unit, second]).next()?.ok()?;
            return Some((meant, 2 * LENGTH + 1));
        }
        _ => return None,
    };
    Some((meant, 1))
}

/// The UTF-16 unit of `uXXXX`.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix('u')?.get(..4)?;
    let are_digits = digits.bytes().all(|it| it.is_ascii_hexdigit());
    u16::from_str_radix(digits, 16).ok().filter(|_| are_digits)
}
