//! The items of a stored request, page by page.

use serde_json::{Value, json};

use super::wire::Item;
use crate::api::error::ApiError;
use crate::api::extent::{Span, Words};

/// Items of a page, and as many as it has where nobody says.
const LIMIT: Span<u64> = Span { low: 1, high: 100 };
const UNASKED: u64 = 20;
/// Whether the first ones come first.
const ORDERS: Words = Words(&["asc", "desc"]);
/// Nothing that is stored comes as a stream.
const STREAMS: Words = Words(&["false"]);

/// What `limit` may be.
pub(in crate::api) fn limits() -> Value {
    json!({ "type": "integer", "minimum": LIMIT.low, "maximum": LIMIT.high })
}

/// What `order` may be.
pub(in crate::api) fn orders() -> Value {
    json!({ "type": "string", "enum": ORDERS.0 })
}

/// What `stream` may be.
pub(in crate::api) fn streams() -> Value {
    json!({ "type": "string", "enum": STREAMS.0 })
}

/// Looks whether a stored response is asked for as a whole.
///
/// # Errors
/// [`ApiError::Unsupported`].
pub(super) fn check_whole(query: Option<&str>) -> Result<(), ApiError> {
    match asks_for(query, "stream") {
        Some(word) if !STREAMS.has(word) => Err(ApiError::Unsupported { param: "stream" }),
        _ => Ok(()),
    }
}

/// The page of `items` that a query asks for: the last ones first, unless it says `order=asc`.
///
/// # Errors
/// [`ApiError::Parameter`] for a page that cannot be.
pub(super) fn page(mut items: Vec<Item>, query: Option<&str>) -> Result<Value, ApiError> {
    match asks_for(query, "order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(order) => {
            return Err(ApiError::parameter("order", json!(order), ORDERS.to_string()));
        }
    }
    let limit = match asks_for(query, "limit") {
        None => UNASKED,
        Some(limit) => {
            let refused = |_| ApiError::parameter("limit", json!(limit), LIMIT.to_string());
            let limit = limit.parse::<u64>().map_err(refused)?;
            LIMIT.check("limit", Some(limit))?.unwrap_or(UNASKED)
        }
    };
    let is = |item: &Item, id: &str| item.id.as_deref() == Some(id);
    let from = match asks_for(query, "after") {
        None => 0,
        Some(after) => {
            let place = items.iter().position(|item| is(item, after));
            let refused =
                || ApiError::parameter("after", json!(after), "the id of one of the items");
            place.ok_or_else(refused)? + 1
        }
    };
    let page = items.iter().skip(from).take(usize::try_from(limit).unwrap_or(usize::MAX));
    let page: Vec<&Item> = page.collect();
    Ok(json!({
        "object": "list",
        "data": page,
        "first_id": page.first().and_then(|item| item.id.as_ref()),
        "last_id": page.last().and_then(|item| item.id.as_ref()),
        "has_more": from + page.len() < items.len(),
    }))
}

/// What a query says of a name. Ids, words and numbers are what they are: nothing in them is escaped.
fn asks_for<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_comes_as_a_whole() {
        for query in [None, Some("stream=false"), Some("include=a")] {
            assert!(check_whole(query).is_ok(), "{query:?}");
        }
        for query in ["stream=true", "stream=1", "include=a&stream=yes"] {
            let refused = check_whole(Some(query)).unwrap_err().to_string();
            assert!(refused.starts_with("stream is not"), "{refused}");
        }
    }

    #[test]
    fn items_come_in_pages_and_the_last_ones_first() {
        let items: Vec<Value> =
            (0..25).map(|n| json!({ "id": format!("m{n}"), "role": "user" })).collect();
        let items: Vec<Item> = serde_json::from_value(json!(items)).unwrap();
        let page = |query| {
            let page = super::page(items.clone(), query)?;
            let ids: Vec<&str> = page["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it["id"].as_str().unwrap())
                .collect();
            assert_eq!(
                (page["first_id"].as_str(), page["last_id"].as_str()),
                (ids.first().copied(), ids.last().copied())
            );
            Ok::<_, ApiError>((ids.join(" "), page["has_more"] == true))
        };
        let some = |ids: &str, more| (ids.to_owned(), more);
        assert_eq!(page(Some("limit=2")).unwrap(), some("m24 m23", true));
        assert_eq!(page(Some("order=asc&limit=3&after=m21")).unwrap(), some("m22 m23 m24", false));
        assert_eq!(page(Some("after=m0&order=desc")).unwrap(), some("", false));
        assert_eq!(page(None).unwrap().0.split(' ').count() as u64, UNASKED);
        for (query, named) in [
            ("limit=0", "limit"),
            ("limit=101", "1 to 100"),
            ("limit=x", "limit"),
            ("order=up", "order"),
            ("after=m25", "after"),
        ] {
            let refused = page(Some(query)).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
    }
}
