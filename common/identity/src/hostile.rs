//! What strangers can make this crate read, for those who try it with odd bytes. Not for anything else.

use std::sync::OnceLock;

use rcgen::{CertificateParams, KeyPair};

use crate::authority::self_signed_for;
use crate::{Authority, DEFAULT_LIFETIME, JoinToken, Peer, join, peer, random_token};

/// Takes bytes as a peer's certificate.
pub fn certificate(bytes: &[u8]) {
    peer::Peer::named_by(bytes);
    peer::validity(bytes);
    webpki::EndEntityCert::try_from(&rustls::pki_types::CertificateDer::from(bytes)).ok();
}

/// Takes bytes as what is said at the door.
pub fn request(bytes: &[u8]) {
    join::parse_request(bytes).ok();
}

/// Takes bytes as a certificate signing request. Whatever it asks for, it gets the name that it is given.
///
/// # Panics
/// If it gets another one, or no authority can be made.
pub fn signing_request(bytes: &[u8]) {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    let authority = AUTHORITY.get_or_init(|| {
        let directory = std::env::temp_dir().join(random_token());
        let authority = Authority::create(&directory, DEFAULT_LIFETIME).expect("made");
        std::fs::remove_dir_all(&directory).ok(); // Signing needs no file.
        authority
    });
    let worker_id = "0123456789abcdef".repeat(2);
    if let Ok(certificate) = authority.sign_request(bytes, &worker_id) {
        assert_eq!(Peer::named_by(&certificate), Some(Peer::Worker(worker_id)));
    }
}

/// Certificate signing requests: one as a worker sends it, one that asks for the master's name.
pub fn signing_request_seeds() -> Vec<Vec<u8>> {
    let request = |names: &[String]| {
        let made = KeyPair::generate().and_then(|key| {
            let request = CertificateParams::new(names)?.serialize_request(&key)?;
            Ok(request.der().to_vec())
        });
        made.unwrap_or_default()
    };
    vec![request(&[]), request(&Peer::Master.name().into_iter().collect::<Vec<_>>())]
}

/// Certificates.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![self_signed_for("master.cake.internal"), self_signed_for("x.worker.cake.internal")]
}

/// Requests.
pub fn request_seeds() -> Vec<Vec<u8>> {
    let join = r#"{"Join":{"token":"0011223344556677","proof":"AAAA","request":"AAAA","name":"phone",
        "worker_id":"00112233445566778899aabbccddeeff","listen":"0.0.0.0:7117"}}"#;
    let hello = r#"{"Hello":{"listen":"[::1]:7117","answers":true}}"#;
    let line = r#"{"Hello":{"listen":null,"answers":true}}"#;
    vec![join.into(), hello.into(), line.into()]
}

/// Tokens.
pub fn token_seeds() -> Vec<Vec<u8>> {
    [[0; 32], [0xff; 32]].map(|print| JoinToken::new(print).to_string().into_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_the_masters_name_or_a_damaged_one_makes_nobody_master() {
        let seeds = signing_request_seeds();
        assert!(seeds.iter().all(|seed| Authority::requested_key(seed).is_ok()));
        for seed in seeds {
            signing_request(&seed);
            for at in 0..seed.len() {
                let mut damaged = seed.clone();
                damaged[at] ^= 0x41;
                signing_request(&damaged);
                signing_request(&seed[..at]);
            }
        }
    }
}
