//! Whether a certificate is one of this cluster, and of whom.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use webpki::KeyUsage;

use crate::fingerprint::fingerprint;
use crate::peer::validity;
use crate::{Peer, Revoked};

/// Whose time certificates are judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// This process's: it is the master.
    Own,
    /// The certificate's own: a worker's clock may be wrong by decades, and the master, which has judged it, says
    /// whom to talk to.
    Certificate,
}

/// How the authority is known.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// By its certificate.
    Certificate(CertificateDer<'static>),
    /// By its certificate's fingerprint; the peer sends the certificate along.
    Fingerprint([u8; 32]),
}

/// Checks certificates for either side of a handshake.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) trust: Trust,
    pub(crate) clock: Clock,
    pub(crate) revoked: Revoked,
    pub(crate) provider: Arc<CryptoProvider>,
    /// Whether a client may come without a certificate.
    pub(crate) strangers: bool,
}

impl Verifier {
    /// Who the holder is.
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        usage: KeyUsage,
        now: UnixTime,
    ) -> Result<Peer, CertificateError> {
        let authority = match &self.trust {
            Trust::Certificate(authority) => authority,
            Trust::Fingerprint(pinned) => {
                let pinned = others.iter().find(|other| fingerprint(other) == *pinned);
                pinned.ok_or(CertificateError::UnknownIssuer)?
            }
        };
        let bad = |_| CertificateError::BadEncoding;
        let anchor = webpki::anchor_from_trusted_cert(authority).map_err(bad)?;
        let now = match self.clock {
            Clock::Own => now,
            Clock::Certificate => {
                let (begin, _) = validity(certificate).ok_or(CertificateError::BadEncoding)?;
                UnixTime::since_unix_epoch(Duration::from_secs(begin))
            }
        };
        let algorithms = self.provider.signature_verification_algorithms.all;
        webpki::EndEntityCert::try_from(certificate)
            .map_err(bad)?
            .verify_for_usage(algorithms, &[anchor], &[], now, usage, None, None)
            .map_err(|error| match error {
                webpki::Error::CertExpired { .. } => CertificateError::Expired,
                webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet,
                webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer,
                webpki::Error::InvalidSignatureForPublicKey => CertificateError::BadSignature,
                _ => CertificateError::ApplicationVerificationFailure,
            })?;
        let peer = Peer::named_by(certificate).ok_or(CertificateError::NotValidForName)?;
        match self.revoked.has(&peer) {
            true => Err(CertificateError::Revoked),
            false => Ok(peer),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(certificate, others, KeyUsage::server_auth(), now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        !self.strangers
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(certificate, others, KeyUsage::client_auth(), now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        ServerCertVerifier::verify_tls12_signature(self, message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        ServerCertVerifier::verify_tls13_signature(self, message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(self)
    }
}
