//! What a request is called, by its client or by us: in its answer's headers, in the log and in its trace.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};

/// The header that brings it and takes it back.
pub const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that a client may choose.
const LONGEST: usize = 64;

tokio::task_local! {
    static CURRENT: RequestId;
}

/// An id: some characters that mean nothing in any log, header or shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// A new one.
    pub fn made() -> Self {
        Self(cake_identity::random_token().into())
    }

    /// The one that a client chose, if it is short and clean.
    pub fn given(header: &HeaderValue) -> Option<Self> {
        let text = header.to_str().ok()?;
        let is_clean =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let taken = (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_clean);
        taken.then(|| Self(text.into()))
    }

    /// The header's value.
    pub fn header(&self) -> HeaderValue {
        // Letters, digits and three marks.
        HeaderValue::from_str(&self.0).expect("such characters may be in a header")
    }

    /// Does `work` in its name.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, work)
    }

    /// That of the request for which this task works now, if it does.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_client_is_taken_if_nothing_in_it_has_a_meaning_elsewhere() {
        let given = |text: &str| RequestId::given(&HeaderValue::from_str(text).expect("a value"));
        let longest = "a".repeat(LONGEST);
        for id in ["7", "req_01-AZ.x", &longest] {
            assert_eq!(given(id).expect("taken").header(), id);
        }
        for id in ["", "a b", "a\tb", "a\"b", "a;b", "a=b", "{}", &format!("{longest}a")] {
            assert_eq!(given(id), None, "{id:?}");
        }
        assert_eq!(RequestId::given(&HeaderValue::from_bytes(b"\xc3\xa4").expect("a value")), None);
        assert_ne!(RequestId::made(), RequestId::made());
    }
}
