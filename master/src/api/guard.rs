//! Who may ask: those who bring a key, if one is asked for, and no pages from elsewhere.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::Response;

use super::Server;
use super::door::Place;
use super::error::ApiError;
use super::not_done::NotDone;
use super::owner::Owner;

/// Longest name there is; more of what is none is not repeated.
const LONGEST_NAME: usize = 253;

/// What a proxy says of whom it asks for.
const PASSED_ON: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];
/// Where clients of Anthropic's bring their key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Lets those through who may ask.
pub(super) async fn authorized(
    State(server): State<Arc<Server>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let owner = check(&server, request.headers())?;
    request.extensions_mut().insert(owner);
    request.extensions_mut().insert(owner.scope(server.share_prefixes));
    Ok(next.run(request).await)
}

/// Lets those through who call the server by a name of its own: for what is nobody's secret.
pub(super) async fn named(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    check_host(&server, request.headers())?;
    Ok(next.run(request).await)
}

/// Lets the owner of the devices through, of those who may ask.
pub(super) async fn owned(
    State(server): State<Arc<Server>>,
    Extension(place): Extension<Arc<Place>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    match is_owner(!server.keys.is_empty(), place.is_of_this_machine(), request.headers()) {
        true => Ok(next.run(request).await),
        false => Err(NotDone::NotOwner.into()),
    }
}

/// Whether the owner of the devices asks, of those who may: whoever brings a key, or where none is asked for, whoever
/// asks from this machine, without another one in between. Pages of other origins are nobody's own, also where they may
/// ask for answers.
pub(super) fn is_owner(has_key: bool, is_of_this_machine: bool, headers: &HeaderMap) -> bool {
    let is_passed_on = PASSED_ON.iter().any(|name| headers.contains_key(*name));
    // A name that `--cors-origin` lets in may be somebody else's, who has it lead here.
    let mut hosts = headers.get_all(header::HOST).iter();
    let is_named = hosts.all(|host| is_own(&String::from_utf8_lossy(host.as_bytes())));
    let is_here = is_of_this_machine && !is_passed_on && is_named;
    let is_elsewhere = headers.contains_key(header::ORIGIN) && !is_own_origin(headers);
    !is_elsewhere && (is_here || has_key)
}

/// Refuses those who may not ask, and tells who the others are.
pub(super) fn check(server: &Server, headers: &HeaderMap) -> Result<Owner, ApiError> {
    check_host(server, headers)?;
    check_origin(server, headers)?;
    check_key(server, headers)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Refuses, where no key is asked for, requests under a name that may be somebody else's: a page of theirs can have its
/// own name lead here, and would then be of the server's own origin, wherever that listens. Such a page has no key: where
/// one is asked for, any name will do, as behind a proxy. Programs that send no name are no browsers.
fn check_host(server: &Server, headers: &HeaderMap) -> Result<(), ApiError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let Some(first) = hosts.next().filter(|_| server.keys.is_empty()) else { return Ok(()) };
    let host = String::from_utf8_lossy(first.as_bytes());
    let allowed = |origin: &String| {
        let named = origin.split_once("://").map_or(origin.as_str(), |(_, host)| host);
        origin == "*" || named.eq_ignore_ascii_case(&host)
    };
    let is_own = is_own(&host) || server.origins.iter().any(allowed);
    match is_own && hosts.next().is_none() {
        true => Ok(()),
        false => Err(ApiError::Host { host: host.chars().take(LONGEST_NAME).collect() }),
    }
}

/// Whether nobody can have `host`, with or without a port, lead elsewhere: an address, or this machine's name for
/// itself. Other names without a dot, and those of a network of one's own, are whatever the network's router says.
fn is_own(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_address = [address, host].iter().any(|text| text.parse::<IpAddr>().is_ok());
    name == "localhost" || name.ends_with(".localhost") || is_address
}

/// Refuses pages of origins that may not ask: browsers send some of their requests without asking first.
fn check_origin(server: &Server, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = text(headers, header::ORIGIN) else { return Ok(()) };
    match is_own_origin(headers)
        || server.origins.iter().any(|allowed| allowed == "*" || allowed == origin)
    {
        true => Ok(()),
        false => Err(ApiError::Origin { origin: origin.to_owned() }),
    }
}

/// Whether a page of the server's own asks.
fn is_own_origin(headers: &HeaderMap) -> bool {
    let host = text(headers, header::ORIGIN).and_then(|origin| origin.split_once("://"));
    host.is_some_and(|(_, host)| Some(host) == text(headers, header::HOST))
}

/// Refuses those who do not bring a key, if one is asked for. Says whose the others' is.
fn check_key(server: &Server, headers: &HeaderMap) -> Result<Owner, ApiError> {
    let given = text(headers, header::AUTHORIZATION).and_then(|value| value.split_once(' '));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    // Clients of Anthropic's have a header of their own for it.
    let given = given.map(|(_, key)| key).or_else(|| text(headers, API_KEY)).unwrap_or_default();
    // All keys are compared, and digests of them: how long that takes tells nothing.
    let given = blake3::hash(given.trim().as_bytes());
    let keys = server.keys.iter().enumerate();
    let matching = keys.filter(|(_, key)| blake3::hash(key.as_bytes()) == given);
    match matching.fold(None, |_, (index, _)| Some(index)) {
        None if !server.keys.is_empty() => Err(ApiError::Unauthorized),
        Some(index) => Ok(Owner::of_key(index)),
        None => Ok(Owner::ALL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_here_or_has_a_key_and_no_page_of_another_origin_is_its() {
        let headers = |pairs: &[(&str, &str)]| -> HeaderMap {
            let pair = |(name, value): &(&str, &str)| {
                (name.parse::<HeaderName>().expect("a name"), value.parse().expect("a value"))
            };
            pairs.iter().map(pair).collect()
        };
        let own = ("host", "127.0.0.1:8080");
        assert!(is_owner(false, true, &headers(&[own])));
        assert!(is_owner(false, true, &headers(&[own, ("origin", "http://127.0.0.1:8080")])));
        assert!(!is_owner(false, false, &headers(&[own])), "from another machine");
        assert!(is_owner(true, false, &headers(&[("host", "workstation:8080")])));
        assert!(!is_owner(false, true, &headers(&[own, ("x-forwarded-for", "10.0.0.1")])));
        assert!(!is_owner(true, true, &headers(&[own, ("origin", "http://a.example")])));
        let rebound = [("host", "evil.example"), ("origin", "http://evil.example")];
        assert!(!is_owner(false, true, &headers(&rebound)), "its name leads here");
    }

    #[test]
    fn names_that_others_may_own_are_not_the_servers() {
        for host in ["localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:8080", "[::1]:1", "[::1]"]
        {
            assert!(is_own(host), "{host}");
        }
        for host in ["localhost.", "cake.localhost:1", "192.168.1.2:8080", "[fe80::1]", "::1"] {
            assert!(is_own(host), "{host}");
        }
        for host in ["workstation", "workstation:8080", "host.docker.internal:8080", "a.internal"] {
            assert!(!is_own(host), "{host}");
        }
        for host in ["evil.example", "evil.example:8080", "localhost.evil.example", "1.2.3.4.x"] {
            assert!(!is_own(host), "{host}");
        }
        for host in ["", ":80", ".", "localhost:80:80", "xlocalhost", "127.0.0.1@evil.example"] {
            assert!(!is_own(host), "{host}");
        }
    }
}
