//! Addresses: of an endpoint, of what is behind it, and of where it leads.

use ureq::http::Uri;
use ureq::http::uri::PathAndQuery;

/// Whether two addresses are of the same host by the same way: what may have the token of one.
pub(crate) fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| {
        uri.port_u16()
            .or_else(|| uri.scheme_str().map(|scheme| if scheme == "https" { 443 } else { 80 }))
    };
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    a.scheme_str() == b.scheme_str()
        && host(a).is_some()
        && host(a) == host(b)
        && port(a) == port(b)
}

/// Where an answer at `from` leads. `Err` says why nobody follows.
pub(crate) fn follow(from: &Uri, location: &str) -> Result<Uri, &'static str> {
    const ODD: &str = "that is no address";
    let to: Uri = match location.strip_prefix("//") {
        Some(rest) => format!("{}://{rest}", from.scheme_str().unwrap_or("https")).parse(),
        None => location.parse(),
    }
    .map_err(|_| ODD)?;
    let to = match to.scheme() {
        Some(_) => to,
        None if location.starts_with('/') => {
            let mut parts = from.clone().into_parts();
            parts.path_and_query = Some(location.parse::<PathAndQuery>().map_err(|_| ODD)?);
            Uri::from_parts(parts).map_err(|_| ODD)?
        }
        None => return Err(ODD),
    };
    match (from.scheme_str(), to.scheme_str()) {
        (Some("https"), Some("http")) => Err("that is not encrypted, as the way there was"),
        (_, Some("http" | "https")) if to.host().is_some() => Ok(to),
        _ => Err(ODD),
    }
}

/// A text as a part of a path; of slashes as they are if `slashes`.
pub(crate) fn encoded(text: &str, slashes: bool) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b) || (slashes && b == b'/');
    text.bytes()
        .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

/// An address for people: without what comes after the path, which may be a signature.
pub(crate) fn shown(uri: &Uri) -> String {
    let (scheme, authority) = (uri.scheme_str().unwrap_or("?"), uri.host().unwrap_or("?"));
    let port = uri.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{scheme}://{authority}{port}{}", uri.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn the_way_and_the_port_are_part_of_a_host() {
        let hub = uri("https://hub.example/a");
        assert!(same_origin(&hub, &uri("https://HUB.example:443/b")));
        for other in [
            "http://hub.example",
            "https://hub.example:444",
            "https://cdn.hub.example",
            "https://hub.example.org",
        ] {
            assert!(!same_origin(&hub, &uri(other)), "{other}");
        }
    }

    #[test]
    fn an_answer_leads_to_a_path_a_host_or_nowhere() {
        let hub = uri("https://hub.example/a?b");
        for (location, expected) in [
            ("/c/d?e=f", "https://hub.example/c/d?e=f"),
            ("//cdn.example/c", "https://cdn.example/c"),
            ("https://cdn.example:9/c?d", "https://cdn.example:9/c?d"),
        ] {
            assert_eq!(follow(&hub, location).unwrap(), uri(expected));
        }
        for location in
            ["http://hub.example/a", "ftp://x/y", "c", "", "https:///x", "file:///etc/passwd"]
        {
            assert!(follow(&hub, location).is_err(), "{location}");
        }
        assert!(follow(&uri("http://127.0.0.1:1/a"), "http://127.0.0.1:2/b").is_ok());
    }

    #[test]
    fn names_are_encoded_and_signatures_not_shown() {
        assert_eq!(encoded("a b/ü#?.json", true), "a%20b/%C3%BC%23%3F.json");
        assert_eq!(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(shown(&uri("https://cdn.example:9/c?secret=1")), "https://cdn.example:9/c");
    }
}
