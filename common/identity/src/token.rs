//! Join tokens: what a person carries from the master to a new worker.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::fingerprint::cluster;
use crate::{Error, random};

/// What every token begins with: its kind and version, in clear.
const PREFIX: &str = "cake1-";
const ID: usize = 8;
const FINGERPRINT: usize = 32;
const SECRET: usize = 16;
/// Enough that a mistyped token is told from a wrong one.
const CHECK: usize = 4;

/// Lets a worker join, while its master remembers it.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// BLAKE3 of the authority's certificate.
    pub(crate) fingerprint: [u8; FINGERPRINT],
    /// Which token it is; no secret.
    pub(crate) id: [u8; ID],
    secret: [u8; SECRET],
}

impl JoinToken {
    /// A new one, for an authority.
    pub(crate) fn new(fingerprint: [u8; FINGERPRINT]) -> Self {
        Self { fingerprint, id: random(), secret: random() }
    }

    /// The name of the cluster that it is for, as [`crate::Authority::cluster`].
    pub fn cluster(&self) -> String {
        cluster(&self.fingerprint)
    }

    /// What its bearer proves to know: the secret itself is not needed to check that.
    pub(crate) fn key(&self) -> [u8; 32] {
        blake3::derive_key("cake 2026-11 join token", &self.secret)
    }
}

/// The proof that whoever is at the other end of a TLS session knows a token's key. `session` is the
/// session's exported keying material, which no other session has: a proof is worth nothing elsewhere.
pub(crate) fn proof(key: &[u8; 32], session: &[u8; 32], request: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(session).update(request);
    hasher.finalize()
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [&self.fingerprint[..], &self.id, &self.secret].concat();
        let check = blake3::hash(&bytes);
        bytes.extend_from_slice(&check.as_bytes()[..CHECK]);
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// Without the secret: tokens must not end up in logs.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({})", crate::hex(&self.id))
    }
}

impl FromStr for JoinToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |reason| Error::Token { reason };
        let text = text.trim().strip_prefix(PREFIX).ok_or(wrong("it begins with cake1-"))?;
        // Longer than any token: nothing to decode.
        if text.len() > 128 {
            return Err(wrong("it is too long"));
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong("it is mistyped"))?;
        let (bytes, check) = bytes
            .split_last_chunk::<CHECK>()
            .filter(|(bytes, _)| bytes.len() == FINGERPRINT + ID + SECRET)
            .ok_or(wrong("a part of it is missing, or too much"))?;
        if blake3::hash(bytes).as_bytes()[..CHECK] != check[..] {
            return Err(wrong("it is mistyped"));
        }
        let short = wrong("a part of it is missing, or too much");
        let (Some((fingerprint, rest)), Some(secret)) =
            (bytes.split_first_chunk(), bytes.last_chunk())
        else {
            return Err(short);
        };
        let Some(id) = rest.first_chunk() else { return Err(short) };
        Ok(Self { fingerprint: *fingerprint, id: *id, secret: *secret })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_survives_being_typed_and_its_secret_stays_out_of_logs() {
        let token = JoinToken::new([7; 32]);
        let text = token.to_string();
        assert_eq!(text.parse::<JoinToken>().expect("the same"), token);
        assert_eq!(format!(" {text}\n").parse::<JoinToken>().expect("with spaces"), token);
        let secret = crate::hex(&token.secret);
        assert!(!format!("{token:?}").contains(&secret) && !text.contains(&secret));
    }

    #[test]
    fn proofs_differ_by_session_request_and_token() {
        let (one, other) = (JoinToken::new([7; 32]), JoinToken::new([7; 32]));
        let first = proof(&one.key(), &[1; 32], b"me");
        assert_eq!(first, proof(&one.key(), &[1; 32], b"me"));
        assert_ne!(first, proof(&one.key(), &[2; 32], b"me"));
        assert_ne!(first, proof(&one.key(), &[1; 32], b"you"));
        assert_ne!(first, proof(&other.key(), &[1; 32], b"me"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_token_or_refused(text in "(cake1-)?[ -~]{0,140}") {
            if let Ok(token) = text.parse::<JoinToken>() {
                prop_assert_eq!(token.to_string(), text.trim());
            }
        }

        #[test]
        fn a_changed_letter_is_noticed(at in 6usize..86, to in "[A-Za-z0-9_-]") {
            let text = JoinToken::new([9; 32]).to_string();
            let at = at.min(text.len() - 2); // Of the last letter not all bits count.
            let mut changed = text.clone();
            changed.replace_range(at..=at, &to);
            prop_assert_eq!(changed.parse::<JoinToken>().is_ok(), changed == text);
        }
    }
}
