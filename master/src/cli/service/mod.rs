//! Commands about a service that runs: they ask it over its own HTTP API.
pub(super) mod logs;
pub(super) mod ps;
pub(super) mod status;
mod table;

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::task::block_in_place;

use crate::sign::{self, ServiceSign};
use crate::state::State;

/// Where a service listens unless told otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most of an answer that is read (bytes).
const MOST_BYTES: u64 = 16 << 20;
/// Most characters of what a service refuses with that are repeated.
const REPEATED: usize = 500;

/// Which service, and what it lets in.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Service")]
pub(super) struct ServiceArgs {
    /// Where it answers (http://HOST:PORT). Default: the one `serve` of this master that runs here, else
    /// http://127.0.0.1:8080.
    #[arg(long, value_name = "URL")]
    at: Option<String>,
    /// Its key, where it asks for one. Default: none.
    #[arg(long, value_name = "KEY", env = "CAKE_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

/// Why a service says nothing of use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens there.
    #[error(
        "no service answers at {url} ({reason}): `cake-master serve MODEL` starts one, --at says where another is"
    )]
    Nobody {
        /// Where it was asked.
        url: String,
        /// What the system said.
        reason: String,
    },
    /// Several run here.
    #[error("{} services run here: --at says which, of {}", .urls.len(), .urls.join(" and "))]
    Several {
        /// Where they listen.
        urls: Vec<String>,
    },
    /// It asks for a key.
    #[error("the service at {url} asks for a key: --api-key or CAKE_API_KEY gives it")]
    Key {
        /// Where it was asked.
        url: String,
    },
    /// It asks for another one.
    #[error("the service at {url} does not know this key")]
    OtherKey {
        /// Where it was asked.
        url: String,
    },
    /// What was given is no key.
    #[error("--api-key, or CAKE_API_KEY, is no key: expected one, without spaces or line breaks")]
    NoKey,
    /// It refuses.
    #[error("the service at {url} says: {words}")]
    Refused {
        /// Where it was asked.
        url: String,
        /// Its own words.
        words: String,
    },
    /// Something else is there, or one of another version.
    #[error("what answers at {url} is no service of this version of Cake: {reason}")]
    Foreign {
        /// Where it was asked.
        url: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// Not an address of a service.
    #[error("--at is {found:?}, expected http://HOST:PORT")]
    Address {
        /// As given.
        found: String,
    },
}

/// A service that can be asked.
struct Service {
    url: String,
    key: Option<String>,
    agent: ureq::Agent,
}

impl ServiceArgs {
    fn service(&self) -> Result<Service, Error> {
        let url = match &self.at {
            Some(url) => checked(url)?,
            None => block_in_place(here)?,
        };
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .proxy(None) // It is in this house.
            .max_redirects(0) // The key is for this one.
            .max_redirects_will_error(false)
            .build();
        let key = self.api_key.as_deref().map(str::trim).filter(|key| !key.is_empty());
        let key = key.map(str::to_owned);
        let is_no_key = |key: &String| !key.chars().all(|c| c.is_ascii_graphic());
        if key.as_ref().is_some_and(is_no_key) {
            return Err(Error::NoKey);
        }
        Ok(Service { url, key, agent: agent.into() })
    }
}

/// What was typed, with what people leave out.
fn checked(typed: &str) -> Result<String, Error> {
    let refused = || Error::Address { found: typed.to_owned() };
    let rest = match typed.split_once("://") {
        Some(("http", rest)) => rest,
        Some(_) => return Err(refused()),
        None => typed,
    };
    let host = rest.trim_end_matches('/');
    let is_host = !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ']);
    is_host.then(|| format!("http://{host}")).ok_or_else(refused)
}

/// The service of this master that runs here, or where one would be.
fn here() -> Result<String, Error> {
    let state = State::open().ok();
    let signs: Vec<ServiceSign> = state.map_or_else(Vec::new, |state| sign::all(state.directory()));
    one_of(signs.into_iter().map(|sign| sign.url).collect())
}

fn one_of(mut urls: Vec<String>) -> Result<String, Error> {
    urls.sort();
    match urls.as_slice() {
        [] => Ok(DEFAULT_URL.to_owned()),
        [one] => Ok(one.clone()),
        _ => Err(Error::Several { urls }),
    }
}

impl Service {
    /// What it answers at `path`.
    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        block_in_place(|| self.ask(path))
    }

    fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let url = || self.url.clone();
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let failed = |error: ureq::Error| Error::Nobody { url: url(), reason: error.to_string() };
        let mut answer = request.call().map_err(failed)?;
        let status = answer.status().as_u16();
        let foreign = |reason: String| Error::Foreign { url: url(), reason: plain(&reason) };
        let text = answer.body_mut().with_config().limit(MOST_BYTES).read_to_string();
        let text = text.map_err(|error| foreign(error.to_string()))?;
        match status {
            200 => serde_json::from_str(&text).map_err(|error| foreign(error.to_string())),
            300..=399 => Err(foreign("it sends us elsewhere".to_owned())),
            401 if self.key.is_some() => Err(Error::OtherKey { url: url() }),
            401 => Err(Error::Key { url: url() }),
            404 => Err(foreign(format!("it has no {path}"))),
            status => Err(Error::Refused { url: url(), words: words(status, &text) }),
        }
    }
}

/// What others said, without what a terminal would obey, and not all of it where that is much.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(REPEATED).collect()
}

/// The sentence in a refusal, or what it has instead.
fn words(status: u16, text: &str) -> String {
    let said: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let message =
        said.as_ref().and_then(|said| said["error"]["message"].as_str().or(said["error"].as_str()));
    let words = message.map_or_else(|| format!("{status} {text}"), str::to_owned);
    plain(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_what_people_leave_out_is_added() {
        let good = |typed| checked(typed).expect("an address");
        assert_eq!(good("http://127.0.0.1:8080/"), "http://127.0.0.1:8080");
        assert_eq!(good("workstation:80"), "http://workstation:80");
        for typed in ["", "http://", "https://a", "ftp://a", "a/b", "a b", "u@a"] {
            let said = checked(typed).expect_err("refused").to_string();
            assert!(said.contains("http://HOST:PORT"), "{said}");
        }
    }

    #[test]
    fn of_several_services_one_has_to_be_named() {
        let urls = |urls: &[&str]| one_of(urls.iter().map(ToString::to_string).collect());
        assert_eq!(urls(&[]).expect("the usual place"), DEFAULT_URL);
        assert_eq!(urls(&["http://a:1"]).expect("the only one"), "http://a:1");
        let said = urls(&["http://b:2", "http://a:1"]).expect_err("several").to_string();
        assert_eq!(said, "2 services run here: --at says which, of http://a:1 and http://b:2");
    }

    #[test]
    fn a_refusal_is_told_in_its_own_words() {
        assert_eq!(words(503, r#"{"error":{"message":"not yet"}}"#), "not yet");
        assert_eq!(words(503, r#"{"error":"not yet"}"#), "not yet");
        assert_eq!(words(502, "bad\u{1b}[31m gateway"), "502 bad[31m gateway");
    }
}
