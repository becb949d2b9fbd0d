//! Requests to the Hub, and what their answers mean.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, LOCATION, RANGE, RETRY_AFTER};
use ureq::http::{HeaderMap, Response, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::error::{Cause, Error};
use crate::names::Wanted;
use crate::redirect::{Hops, leads_elsewhere};
use crate::retry::{Trouble, retry_after};
use crate::token::{self, Token};
use crate::url::{encoded, same_origin, shown};

/// Where models are when nobody says.
const ENDPOINT: &str = "https://huggingface.co";
/// A connection over which nothing comes for so long is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// Longest head of an answer.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// What is read of a socket at once.
const READ_BYTES: usize = 256 << 10;

/// How the Hub is reached.
#[derive(Clone, Debug)]
pub struct Options {
    /// `https://HOST`.
    pub endpoint: String,
    /// What to show it, or else where a token was looked for.
    pub token: Result<Token, Vec<String>>,
    /// A file of certificates (PEM) to be trusted instead of the usual authorities.
    pub certificates: Option<PathBuf>,
    /// A connection over which nothing comes for so long is given up.
    pub silence: Duration,
}

/// A hub. When a download of it was stopped, it is of no more use.
#[derive(Debug)]
pub struct Hub {
    /// Without a slash at its end.
    endpoint: String,
    origin: Uri,
    token: Result<Token, Vec<String>>,
    agent: Agent,
}

/// What was asked for, as refusals call it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) wanted: &'a Wanted,
    /// The file; none where the repository itself was asked for.
    pub(crate) file: Option<&'a str>,
}

/// An answer with a body that was asked for, and where it came from in the end.
pub(crate) struct Answer {
    pub(crate) uri: Uri,
    pub(crate) response: Response<Body>,
}

impl Options {
    /// As the Hub's own tools have it: `HF_ENDPOINT`, `HF_TOKEN` and the files that a token is kept in, and
    /// `SSL_CERT_FILE` as other programs have it.
    pub fn from_environment() -> Options {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Options {
            endpoint: variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned()),
            token: token::find(variable, std::env::home_dir()),
            certificates: variable("SSL_CERT_FILE").map(PathBuf::from),
            silence: SILENCE,
        }
    }
}

impl Hub {
    /// A hub; nothing is asked yet.
    ///
    /// # Errors
    /// [`Error::Endpoint`], [`Error::Certificates`].
    pub fn new(options: Options) -> Result<Hub, Error> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        let origin: Uri = match endpoint.parse::<Uri>() {
            Ok(uri)
                if matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some() =>
            {
                uri
            }
            _ => return Err(Error::Endpoint { endpoint: options.endpoint }),
        };
        let mut tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
        if let Some(path) = options.certificates {
            tls = tls.root_certs(roots(path)?);
        }
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .user_agent(concat!("cake/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // Redirects are followed here, where it is known who may have the token.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(options.silence))
            .timeout_connect(Some(options.silence))
            .timeout_recv_response(Some(options.silence)) // All of its head, however many pieces it comes in.
            .timeout_per_read(Some(options.silence))
            .timeout_per_write(Some(options.silence))
            .max_response_header_size(MAX_HEAD_BYTES)
            .input_buffer_size(READ_BYTES)
            .max_idle_connections(64)
            .max_idle_connections_per_host(64)
            .build();
        Ok(Hub { endpoint, origin, token: options.token, agent: config.into() })
    }

    /// Where the hub says what a repository has.
    pub(crate) fn listing_url(&self, wanted: &Wanted) -> String {
        let (repo, revision) = (&wanted.repo, encoded(wanted.revision(), false));
        format!("{}/api/models/{repo}/revision/{revision}?blobs=true", self.endpoint)
    }

    /// Where a file of a commit is.
    pub(crate) fn file_url(&self, wanted: &Wanted, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, wanted.repo, encoded(file, true))
    }

    /// Breaks off all requests, now and from now on.
    pub(crate) fn shut_down(&self) {
        self.agent.clone().shutdown();
    }

    /// Asks for bytes `range` (the end not included) of an address, or for all of them.
    pub(crate) fn get(
        &self,
        uri: &Uri,
        range: Option<(u64, u64)>,
        subject: Subject<'_>,
    ) -> Result<Answer, Trouble> {
        let mut hops = Hops::from(uri.clone());
        loop {
            let mut request =
                self.agent.get(hops.uri().clone()).header(ACCEPT_ENCODING, "identity");
            if let Some((start, end)) = range {
                request = request.header(RANGE, format!("bytes={start}-{}", end.saturating_sub(1)));
            }
            if let Some(authorization) = self.authorization(hops.uri()) {
                request = request.header(AUTHORIZATION, authorization);
            }
            let response = request.call().map_err(|error| failed(hops.uri(), error))?;
            if response.status().is_redirection() {
                hops.follow(header(response.headers(), LOCATION.as_str()))?;
                continue;
            }
            let uri = hops.into_uri();
            return match response.status().as_u16() {
                200 | 206 => Ok(Answer { uri, response }),
                status => Err(self.refused(status, response.headers(), &uri, subject)),
            };
        }
    }

    /// What the hub itself says of a file before it leads elsewhere.
    pub(crate) fn head(&self, uri: &Uri, subject: Subject<'_>) -> Result<HeaderMap, Trouble> {
        let mut hops = Hops::from(uri.clone());
        loop {
            let mut request =
                self.agent.head(hops.uri().clone()).header(ACCEPT_ENCODING, "identity");
            if let Some(authorization) = self.authorization(hops.uri()) {
                request = request.header(AUTHORIZATION, authorization);
            }
            let response = request.call().map_err(|error| failed(hops.uri(), error))?;
            let location = header(response.headers(), LOCATION.as_str());
            if response.status().is_redirection() && !leads_elsewhere(hops.uri(), location) {
                hops.follow(location)?;
                continue;
            }
            let status = response.status();
            if status.is_success() || status.is_redirection() {
                return Ok(response.headers().clone());
            }
            return Err(self.refused(status.as_u16(), response.headers(), hops.uri(), subject));
        }
    }

    /// Whether an address is the hub's own.
    pub(crate) fn is_own(&self, uri: &Uri) -> bool {
        same_origin(&self.origin, uri)
    }

    fn authorization(&self, uri: &Uri) -> Option<String> {
        let token = self.token.as_ref().ok().filter(|_| self.is_own(uri))?;
        Some(format!("Bearer {}", token.value))
    }

    /// What an answer without a body that is of use means.
    fn refused(
        &self,
        status: u16,
        headers: &HeaderMap,
        uri: &Uri,
        subject: Subject<'_>,
    ) -> Trouble {
        let Subject { wanted, file } = subject;
        // Elsewhere they say that what led there was good for some time only.
        let expired = !self.is_own(uri) && matches!(status, 400..=404 | 410);
        if expired || matches!(status, 408 | 425 | 429 | 500..=599) {
            let after = retry_after(header(headers, RETRY_AFTER.as_str()), SystemTime::now());
            return Trouble::Passing { cause: Cause::Status(status), after };
        }
        Trouble::Lasting(match status {
            401 | 403 => Error::Closed {
                repo: wanted.repo.clone(),
                page: format!("{}/{}", self.endpoint, wanted.repo),
                status,
                token: token::used(&self.token),
            },
            404 => not_found(header(headers, "x-error-code"), wanted, file),
            _ => Error::Status { url: shown(uri), status },
        })
    }
}

fn not_found(code: Option<&str>, wanted: &Wanted, file: Option<&str>) -> Error {
    let (repo, revision) = (&wanted.repo, wanted.revision());
    let of_repo = format!(" of {repo}");
    let (what, name, place) = match (code, file) {
        (Some("RepoNotFound"), _) => ("model", repo.as_str(), String::new()),
        (Some("RevisionNotFound"), _) => ("revision", revision, of_repo),
        (_, Some(file)) => ("file", file, format!(" in {wanted}")),
        (_, None) if wanted.revision.is_some() => ("model or revision", revision, of_repo),
        (_, None) => ("model", repo.as_str(), String::new()),
    };
    Error::NotFound { what, name: name.to_owned(), place }
}

/// A header's text, if it is one.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A request that brought no answer.
fn failed(uri: &Uri, error: ureq::Error) -> Trouble {
    let is_tls = match &error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => true,
        ureq::Error::Io(error) => error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
        _ => false,
    };
    let lasts = is_tls || matches!(error, ureq::Error::BadUri(_) | ureq::Error::Http(_));
    let cause = Cause::Request(Box::new(error));
    match lasts {
        true => Trouble::Lasting(Error::Unreachable { url: shown(uri), tries: 1, cause }),
        false => Trouble::Passing { cause, after: None },
    }
}

/// The certificates of a file.
fn roots(path: PathBuf) -> Result<RootCerts, Error> {
    let pem = std::fs::read(&path).map_err(|cause| Error::io("read", &path, cause))?;
    let items: Result<Vec<_>, _> = parse_pem(&pem).collect();
    let items = items.map_err(|cause| Error::Certificates { path, cause: Box::new(cause) })?;
    let certificates = items.into_iter().filter_map(|item| match item {
        PemItem::Certificate(certificate) => Some(certificate.to_owned()),
        _ => None,
    });
    Ok(RootCerts::new_with_certs(&certificates.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(endpoint: &str) -> Result<Hub, Error> {
        let token = Ok(Token { value: "hf_x".into(), place: "HF_TOKEN".into() });
        let silence = Duration::from_secs(1);
        Hub::new(Options { endpoint: endpoint.into(), token, certificates: None, silence })
    }

    #[test]
    fn an_endpoint_is_an_address() {
        for endpoint in ["", "huggingface.co", "ftp://x", "https://", "/x"] {
            assert!(matches!(hub(endpoint), Err(Error::Endpoint { .. })), "{endpoint}");
        }
        let hub = hub("https://hub.example/mirror/").unwrap();
        let wanted = "org/name@refs/pr/1".parse().unwrap();
        assert_eq!(
            hub.listing_url(&wanted),
            "https://hub.example/mirror/api/models/org/name/revision/refs%2Fpr%2F1?blobs=true"
        );
        let url = hub.file_url(&wanted, "abc", "sub/a b.json");
        assert_eq!(url, "https://hub.example/mirror/org/name/resolve/abc/sub/a%20b.json");
    }

    #[test]
    fn the_token_is_for_the_endpoint_alone() {
        let hub = hub("https://hub.example").unwrap();
        let sent = |url: &str| hub.authorization(&url.parse().unwrap());
        assert_eq!(sent("https://hub.example/x").as_deref(), Some("Bearer hf_x"));
        for url in ["http://hub.example/x", "https://hub.example:8443/x", "https://cdn.example/x"] {
            assert_eq!(sent(url), None, "{url}");
        }
    }

    #[test]
    fn refusals_say_what_is_not_there() {
        let text =
            |code, wanted: &str, file| not_found(code, &wanted.parse().unwrap(), file).to_string();
        assert_eq!(text(None, "o/n", None), "the hub has no model \"o/n\": it answered 404");
        let revision = "the hub has no revision \"v9\" of o/n: it answered 404";
        assert_eq!(text(Some("RevisionNotFound"), "o/n@v9", None), revision);
        let file = "the hub has no file \"a.json\" in o/n: it answered 404";
        assert_eq!(text(Some("EntryNotFound"), "o/n", Some("a.json")), file);
    }

    #[test]
    fn an_answer_elsewhere_that_refuses_is_asked_for_again() {
        let hub = hub("https://hub.example").unwrap();
        let wanted = "o/n".parse().unwrap();
        let subject = Subject { wanted: &wanted, file: None };
        let refused = |status, url: &str| {
            hub.refused(status, &HeaderMap::new(), &url.parse().unwrap(), subject)
        };
        assert!(matches!(refused(403, "https://cdn.example/x"), Trouble::Passing { .. }));
        assert!(matches!(refused(503, "https://hub.example/x"), Trouble::Passing { .. }));
        let Trouble::Lasting(error) = refused(403, "https://hub.example/x") else {
            panic!("it lasts")
        };
        let text = error.to_string();
        assert!(
            text.contains("gated") && text.contains("HF_TOKEN") && text.contains("/o/n"),
            "{text}"
        );
        assert!(!text.contains("hf_x"), "{text}");
    }
}
