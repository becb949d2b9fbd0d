//! What strangers can make this crate read, for those who try it with odd bytes. Not for anything else.

use crate::authority::self_signed_for;
use crate::{JoinToken, join, peer};

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
