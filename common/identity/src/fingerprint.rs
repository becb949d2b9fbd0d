//! What certificates are known by.
use rustls::pki_types::CertificateDer;

use crate::hex;

/// BLAKE3 of a certificate.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    *blake3::hash(certificate).as_bytes()
}

/// A short name of the cluster whose authority has this fingerprint.
pub(crate) fn cluster(fingerprint: &[u8; 32]) -> String {
    hex(&fingerprint[..8])
}
