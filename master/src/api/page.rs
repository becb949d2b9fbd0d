//! The page at `/`: files that are part of the binary.

use axum::extract::OriginalUri;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::Name;
use super::error::ApiError;

/// A file of the page, with its type.
type File = (&'static str, &'static str, &'static str);

const INDEX: File = ("", "text/html; charset=utf-8", include_str!("../page/index.html"));
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const FILES: &[File] = &[
    ("style.css", CSS, include_str!("../page/style.css")),
    ("chat.css", CSS, include_str!("../page/chat.css")),
    ("devices.css", CSS, include_str!("../page/devices.css")),
    ("app.js", SCRIPT, include_str!("../page/app.js")),
    ("api.js", SCRIPT, include_str!("../page/api.js")),
    ("chat.js", SCRIPT, include_str!("../page/chat.js")),
    ("talk.js", SCRIPT, include_str!("../page/talk.js")),
    ("turn.js", SCRIPT, include_str!("../page/turn.js")),
    ("library.js", SCRIPT, include_str!("../page/library.js")),
    ("store.js", SCRIPT, include_str!("../page/store.js")),
    ("export.js", SCRIPT, include_str!("../page/export.js")),
    ("settings.js", SCRIPT, include_str!("../page/settings.js")),
    ("models.js", SCRIPT, include_str!("../page/models.js")),
    ("shelf.js", SCRIPT, include_str!("../page/shelf.js")),
    ("shown.js", SCRIPT, include_str!("../page/shown.js")),
    ("markdown.js", SCRIPT, include_str!("../page/markdown.js")),
    ("inline.js", SCRIPT, include_str!("../page/inline.js")),
    ("highlight.js", SCRIPT, include_str!("../page/highlight.js")),
    ("math.js", SCRIPT, include_str!("../page/math.js")),
    ("symbols.js", SCRIPT, include_str!("../page/symbols.js")),
    ("cluster.js", SCRIPT, include_str!("../page/cluster.js")),
    ("members.js", SCRIPT, include_str!("../page/members.js")),
    ("household.js", SCRIPT, include_str!("../page/household.js")),
    ("invite.js", SCRIPT, include_str!("../page/invite.js")),
    ("copy.js", SCRIPT, include_str!("../page/copy.js")),
    ("words.js", SCRIPT, include_str!("../page/words.js")),
];
/// Nothing from elsewhere, nothing inline: what a model writes cannot become a script.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; style-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) async fn index() -> Response {
    respond(&INDEX)
}

pub(super) async fn file(
    Name(name): Name,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, ApiError> {
    let found = FILES.iter().find(|(known, ..)| *known == name);
    let unknown = || ApiError::UnknownPath { path: uri.path().to_owned() };
    found.map(respond).ok_or_else(unknown)
}

fn respond((_, content_type, content): &File) -> Response {
    let headers = [
        (header::CONTENT_TYPE, *content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // The next version of the program brings others.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, *content).into_response()
}
