//! A name or an id in a path.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use super::error::ApiError;

/// A name or an id in a path.
pub(super) struct Name(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let found = Path::<String>::from_request_parts(parts, state).await;
        let unknown = |_| ApiError::UnknownPath { path: parts.uri.path().to_owned() };
        found.map(|Path(name)| Self(name)).map_err(unknown)
    }
}
