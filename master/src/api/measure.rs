//! How much a body of JSON holds, counted before anything is made of it: parsed, a byte of JSON may take fifty.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ApiError;

/// Most values of a body: messages, alternatives and whatever else it holds, but for token ids.
const MAX_VALUES: usize = 1 << 18;
/// Most token ids of a body, each four bytes of memory: those of many texts for embeddings.
pub(super) const MAX_IDS: usize = 4 << 20;

/// A request whose body is looked at before it is parsed.
pub(super) trait Measured {
    /// Fields of the body that have bounds of their own.
    const BOUNDS: &'static [Bound];
}

/// Most values of JSON that the texts of a request have: those of calls that were made.
pub(super) const MAX_TEXT_VALUES: usize = 1 << 16;
/// Most bytes of what is said of a body that is no such request: it may repeat what was sent.
const MAX_SAID_BYTES: usize = 300;

/// How large a field of a body may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) field: &'static str,
    pub(super) bytes: usize,
    /// Numbers, strings, names, lists and objects in it. If they may be more than a whole body's, they count for
    /// themselves: then whoever parses the field must keep little of each.
    pub(super) values: usize,
}

/// The request that `body` is.
pub(super) fn parse<T: DeserializeOwned + Measured>(body: &[u8]) -> Result<T, ApiError> {
    check(body, T::BOUNDS)?;
    serde_json::from_slice(body).map_err(|error| {
        let said = error.to_string();
        let end = said.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_SAID_BYTES);
        let said = &said[..end.unwrap_or(said.len())];
        ApiError::Body(format!("the body is not such a request: {said}"))
    })
}

/// JSON within a text of a request, if it is some; it takes of `room`, in values, what it has.
pub(super) fn parse_text(text: &str, room: &mut usize) -> Result<Option<Value>, ApiError> {
    let values = text.bytes().filter(|byte| b"{[:,".contains(byte)).count();
    let Some(left) = room.checked_sub(values) else {
        let found = format!("JSON of more than {MAX_TEXT_VALUES} values, in texts");
        return Err(ApiError::parameter("messages", found, "fewer of them"));
    };
    *room = left;
    Ok(serde_json::from_str(text).ok())
}

/// Counts what is in `body`, which may be no JSON at all: then whoever parses it says so.
fn check(body: &[u8], bounds: &[Bound]) -> Result<(), ApiError> {
    let mut values = 0;
    let mut depth = 0_usize;
    // The field whose value is being read: its bound, and where and after how many values it began.
    let mut field: Option<(Bound, usize, usize)> = None;
    // The last string at the top, which is a field's name if a colon follows.
    let mut name = 0..0;
    let mut at = 0;
    while let Some(&byte) = body.get(at) {
        let begin = at;
        at += 1;
        match byte {
            b'"' => {
                at = end_of_string(body, at);
                if depth == 1 {
                    name = begin..at;
                }
            }
            b'{' | b'[' => (depth, values) = (depth + 1, values + 1),
            b':' => {
                values += 1;
                if depth == 1 && field.is_none() {
                    let bound = bound_of(body.get(name.clone()).unwrap_or_default(), bounds);
                    field = bound.map(|bound| (bound, at, values));
                }
            }
            b',' => values += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if let Some((bound, from, before)) = field {
            check_field(bound, at - from, values - before)?;
            let is_apart = bound.values > MAX_VALUES;
            if depth == 0 || (depth == 1 && byte == b',') {
                field = None;
                values = if is_apart { before } else { values };
            } else if is_apart {
                continue;
            }
        }
        if values > MAX_VALUES {
            let found = format!("more than {MAX_VALUES} values");
            return Err(ApiError::parameter("the body", found, "fewer"));
        }
    }
    Ok(())
}

fn check_field(bound: Bound, bytes: usize, values: usize) -> Result<(), ApiError> {
    let Bound { field, .. } = bound;
    if bytes > bound.bytes {
        let (found, most) = (format!("more than {} bytes", bound.bytes), "fewer of them");
        return Err(ApiError::parameter(field, found, most));
    }
    if values > bound.values {
        let found = format!("more than {} values", bound.values);
        return Err(ApiError::parameter(field, found, "fewer of them"));
    }
    Ok(())
}

/// The bound of the field of this name, which is a string of JSON with its quotes.
fn bound_of(name: &[u8], bounds: &[Bound]) -> Option<Bound> {
    // It may be written with escapes.
    let name = match name.contains(&b'\\') {
        true => serde_json::from_slice::<String>(name).ok()?,
        false => std::str::from_utf8(name).ok()?.trim_matches('"').to_owned(),
    };
    bounds.iter().find(|bound| bound.field == name).copied()
}

/// Where the string whose first quote is before `at` ends.
fn end_of_string(body: &[u8], mut at: usize) -> usize {
    while let Some(&byte) = body.get(at) {
        at += 1;
        match byte {
            b'"' => return at,
            b'\\' => at += 1,
            _ => {}
        }
    }
    body.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &[Bound] = &[Bound { field: "tools", bytes: 20, values: 4 }];

    fn said(body: &str) -> String {
        check(body.as_bytes(), BOUNDS).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn a_field_has_its_bytes_and_values_and_others_have_none() {
        assert_eq!(
            said(r#"{"tools":[1,2,3],"more":"a string that is longer than twenty bytes"}"#),
            ""
        );
        assert_eq!(said(r#"{"more":[1,2,3,4,5,6,7],"tools":"0123456789"}"#), "");
        assert!(said(r#"{"tools":[1,2,3,4,5]}"#).contains("more than 4 values"));
        assert!(said(r#"{"a":{"b":[]},"tools":"012345678901234567890"}"#).contains("20 bytes"));
        assert!(said(r#" { "tools" : {"a":"012345678901234567890"}}"#).contains("20 bytes"));
        // Under another name for the same letters, once more, and without an end.
        assert!(said(r#"{"tool\u0073":[1,2,3,4,5]}"#).contains("values"));
        assert!(said(r#"{"tools":1,"tools":[1,2,3,4,5]}"#).contains("values"));
        assert!(said(r#"{"tools":[1,2,3,4,5"#).contains("values"));
        // What only looks like it.
        assert_eq!(said(r#"{"a":{"tools":[1,2,3,4,5,6]}}"#), "");
        assert_eq!(said(r#"{"a":"\",\"tools\":[1,2,3,4,5,6,7,8,9,10]"}"#), "");
        assert_eq!(said(r#"{"a":["tools",1,2,3,4,5,6,7]}"#), "");
    }

    #[test]
    fn a_body_has_so_many_values() {
        let list = |length: usize| format!("{{\"prompt\":[{}1]}}", "1,".repeat(length));
        assert_eq!(said(&list(MAX_VALUES - 3)), "");
        assert!(said(&list(MAX_VALUES)).contains("more than 262144 values"));
        let brackets = "[".repeat(MAX_VALUES + 1);
        assert!(said(&brackets).contains("values"));
        assert_eq!(said("\\\"\\"), "");
    }

    #[test]
    fn token_ids_may_be_many_and_nothing_else_beside_them() {
        let bounds = [Bound { field: "input", bytes: usize::MAX, values: MAX_IDS }];
        let said = |body: &str| {
            let checked = check(body.as_bytes(), &bounds);
            checked.map_or_else(|error| error.to_string(), |()| String::new())
        };
        let list = |length: usize| format!("[{}1]", "1,".repeat(length));
        let (many, too_many) = (list(MAX_VALUES + 10), list(MAX_VALUES));
        assert_eq!(said(&format!("{{\"input\":{many}}}")), "");
        assert_eq!(said(&format!("{{\"input\":[{many},{many}],\"more\":[1,2]}}")), "");
        let beside = said(&format!("{{\"input\":{many},\"more\":{too_many}}}"));
        assert!(beside.contains("more than 262144 values"), "{beside}");
        let before = said(&format!("{{\"more\":{too_many},\"input\":{many}}}"));
        assert!(before.contains("more than 262144 values"), "{before}");
        let most = said(&format!("{{\"input\":{}}}", list(MAX_IDS)));
        assert!(most.contains("input is more than 4194304 values"), "{most}");
    }

    #[test]
    fn json_in_texts_is_parsed_while_there_is_room() {
        let mut room = 10;
        let mut parsed = |text: &str| parse_text(text, &mut room);
        assert_eq!(
            parsed("{\"a\": [1, 2]}").expect("room"),
            Some(serde_json::json!({ "a": [1, 2] }))
        );
        assert_eq!(parsed("no JSON").expect("room"), None);
        assert!(parsed("[1,2,3,4,5,6]").is_ok());
        assert!(parsed("[]").is_err_and(|error| error.to_string().contains("in texts")));
        assert!(parsed("7").is_ok());
    }
}
