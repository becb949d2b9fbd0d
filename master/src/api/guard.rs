//! Who may ask: those who bring a key, if one is asked for, and no pages from elsewhere.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::Response;

use super::Server;
use super::error::ApiError;
use crate::scheduler::Scope;

/// Lets those through who may ask.
pub(super) async fn authorized(
    State(server): State<Arc<Server>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    check_host(&server, request.headers())?;
    check_origin(&server, request.headers())?;
    let scope = check_key(&server, request.headers())?;
    request.extensions_mut().insert(scope);
    Ok(next.run(request).await)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Refuses, where it listens for this machine alone, requests that were meant for another one: somebody's
/// page can have its own name lead here, and would then be of the server's own origin.
fn check_host(server: &Server, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(host) = text(headers, header::HOST).filter(|_| server.loopback) else { return Ok(()) };
    let allowed = |origin: &String| {
        let named = origin.split_once("://").map_or(origin.as_str(), |(_, host)| host);
        origin == "*" || named.eq_ignore_ascii_case(host)
    };
    match is_local(host) || server.origins.iter().any(allowed) {
        true => Ok(()),
        false => Err(ApiError::Host { host: host.to_owned() }),
    }
}

/// Whether nobody can have `host`, with or without a port, lead elsewhere.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    // Names without a dot and those of these two are nobody's in the world's directory (RFC 6761, ICANN).
    let is_nobodys =
        !name.contains(['.', ':']) || name.ends_with(".localhost") || name.ends_with(".internal");
    (is_nobodys && !name.is_empty()) || address.parse::<IpAddr>().is_ok()
}

/// Refuses pages of origins that may not ask: browsers send some of their requests without asking first.
fn check_origin(server: &Server, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = text(headers, header::ORIGIN) else { return Ok(()) };
    let own =
        origin.split_once("://").is_some_and(|(_, host)| Some(host) == text(headers, header::HOST));
    match own || server.origins.iter().any(|allowed| allowed == "*" || allowed == origin) {
        true => Ok(()),
        false => Err(ApiError::Origin { origin: origin.to_owned() }),
    }
}

/// Refuses those who do not bring a key, if one is asked for. Says whose prefixes the others share.
fn check_key(server: &Server, headers: &HeaderMap) -> Result<Scope, ApiError> {
    let given = text(headers, header::AUTHORIZATION).and_then(|value| value.split_once(' '));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    // All keys are compared, and digests of them: how long that takes tells nothing.
    let given = blake3::hash(given.map_or("", |(_, key)| key.trim()).as_bytes());
    let keys = server.keys.iter().enumerate();
    let matching = keys.filter(|(_, key)| blake3::hash(key.as_bytes()) == given);
    match matching.map(|(index, _)| index).last() {
        None if !server.keys.is_empty() => Err(ApiError::Unauthorized),
        Some(index) if !server.share_prefixes => Ok(Scope::of_key(index)),
        _ => Ok(Scope::ALL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_others_may_own_are_not_local() {
        for host in ["localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:8080", "[::1]:1", "[::1]"]
        {
            assert!(is_local(host), "{host}");
        }
        for host in ["localhost.", "cake.localhost:1", "workstation", "host.docker.internal:8080"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["evil.example", "evil.example:8080", "localhost.evil.example", "", "1.2.3.4.x"]
        {
            assert!(!is_local(host), "{host}");
        }
    }
}
