//! What strangers can make this crate read, for those who try it with odd bytes. Not for anything else.

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    SigningKey,
};
use rustls::pki_types::PrivatePkcs8KeyDer;

use crate::authority::self_signed_for;
use crate::{Authority, JoinToken, Peer, join, peer};

/// Whom certificates are asked for.
const WORKER_ID: &str = "00112233445566778899aabbccddeeff";
/// A key of Ed25519 that is no secret, without its number: its signatures are the same in every run.
const KEY: [u8; 16] = [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32];
/// `AlgorithmIdentifier` of Ed25519 (RFC 8410).
const ED25519: [u8; 7] = [0x30, 5, 6, 3, 43, 101, 112];

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

/// Takes bytes as a certificate signing request, and as the content of one whose signature is right.
///
/// # Panics
/// If whoever asks gets a certificate that names somebody else.
pub fn signing_request(authority: &Authority, bytes: &[u8]) {
    for request in [bytes, &signed(bytes)] {
        if let Ok(certificate) = authority.sign_request(request, WORKER_ID) {
            let named = Peer::named_by(&certificate);
            assert_eq!(named, Some(Peer::Worker(WORKER_ID.to_owned())));
        }
    }
}

/// A certificate signing request of this content.
fn signed(content: &[u8]) -> Vec<u8> {
    let signature = key().sign(content).expect("a key of ours signs everything");
    let signature = der(0x03, &[&[0][..], &signature].concat()); // No bits of its last byte are unused.
    der(0x30, &[content, &ED25519, &signature].concat())
}

/// A value with its tag and length.
fn der(tag: u8, value: &[u8]) -> Vec<u8> {
    let length = value.len().to_be_bytes();
    let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let long = [&[0x80 | length.len() as u8][..], length].concat();
    let short = [value.len() as u8];
    [&[tag][..], if value.len() < 0x80 { &short } else { &long }, value].concat()
}

fn key() -> KeyPair {
    let der = [&KEY[..], &[7; 32]].concat();
    KeyPair::try_from(&PrivatePkcs8KeyDer::from(der)).expect("a key, by RFC 8410")
}

/// Certificate signing requests, and the contents of them.
///
/// # Panics
/// Never: the requests are good ones.
pub fn signing_seeds() -> Vec<Vec<u8>> {
    let modest = CertificateParams::default();
    let mut bold = CertificateParams::new(["master.cake.internal".to_owned()]).expect("a name");
    bold.is_ca = IsCa::Ca(BasicConstraints::Constrained(3));
    bold.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    bold.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let request = |params: CertificateParams| {
        params.serialize_request(&key()).expect("a request").der().to_vec()
    };
    let requests = [request(modest), request(bold)];
    let contents = requests.each_ref().map(|request| content(request).to_vec());
    assert!(contents.iter().zip(&requests).all(|(content, request)| signed(content) == *request));
    requests.into_iter().chain(contents).collect()
}

/// The first value within the outermost one.
fn content(request: &[u8]) -> &[u8] {
    let value = |bytes: &[u8]| match usize::from(bytes[1]) {
        short @ ..0x80 => (2, short),
        long => {
            let end = 2 + (long & 0x7f);
            (end, bytes[2..end].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
        }
    };
    let inner = &request[value(request).0..];
    let (start, len) = value(inner);
    &inner[..start + len]
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
    fn requests_of_either_kind_are_signed_before_they_are_changed() {
        let directory = tempfile::tempdir().expect("a directory");
        let lifetime = crate::DEFAULT_LIFETIME;
        let authority = Authority::create(directory.path(), lifetime).expect("made");
        let good = |bytes: &[u8]| authority.sign_request(bytes, WORKER_ID).is_ok();
        let seeds = signing_seeds();
        let [modest, bold, content, other] = &seeds[..] else { panic!("{} seeds", seeds.len()) };
        assert!(good(modest) && good(bold) && good(&signed(content)) && good(&signed(other)));
        signing_request(&authority, bold);
    }
}
