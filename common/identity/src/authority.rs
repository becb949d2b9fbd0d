//! The master's certificate authority.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use crate::book::BookFile;
use crate::fingerprint::{cluster, fingerprint};
use crate::{Error, Identity, JoinToken, Peer, TokenEntry, files};

/// How long a worker's certificate is valid unless told otherwise.
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);
/// How long the authority's own is.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
/// Certificates begin so long before they are made, in case the master's clock is put back a little.
const SLACK: Duration = Duration::from_secs(3600);
const FILE: &str = "authority.json";
const WHAT: &str = "the certificate authority";

/// Signs certificates, and remembers tokens and workers in a directory that only its owner can read.
pub struct Authority {
    directory: PathBuf,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    lifetime: Duration,
    /// Held by whoever decides about a worker until it has been told.
    telling: Arc<RwLock<()>>,
}

/// As it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(with = "files::base64_bytes")]
    certificate: Vec<u8>,
    #[serde(with = "files::base64_bytes")]
    key: Vec<u8>,
    worker_certificate_seconds: u64,
}

impl Authority {
    /// Completes once everybody who has been admitted at a door of this process has been told so, and whoever hears of their
    /// visits has dropped these: a door that closes as the last one is in the book would else close before
    /// both know.
    pub async fn has_told(&self) {
        drop(self.telling.write().await);
    }

    /// Until the result is dropped, [`Authority::has_told`] waits.
    pub(crate) async fn telling(&self) -> OwnedRwLockReadGuard<()> {
        self.telling.clone().read_owned().await
    }

    /// Makes one in `directory`; workers' certificates will be valid for `lifetime`.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is one, [`Error::File`] if the directory cannot be written.
    pub fn create(directory: &Path, lifetime: Duration) -> Result<Self, Error> {
        let path = directory.join(FILE);
        if path.exists() {
            return Err(Error::Exists { path });
        }
        let failed = |source| Error::File { what: WHAT, path: directory.to_owned(), source };
        files::make_private(directory).map_err(failed)?;
        let key = KeyPair::generate()?;
        // Two authorities of one name could be told apart by their signatures only.
        let name = format!("cake authority {}", crate::random_token());
        let mut params = params(&name, SystemTime::now(), AUTHORITY_LIFETIME);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let kept = Kept {
            certificate: params.self_signed(&key)?.der().to_vec(),
            key: key.serialize_der(),
            worker_certificate_seconds: lifetime.as_secs(),
        };
        // The book first: an authority without one has lost it.
        BookFile::in_directory(directory).create()?;
        files::write(&path, WHAT, &kept)?;
        Self::of(directory, kept)
    }

    /// The one in `directory`, if there is one.
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::Damaged`].
    pub fn open(directory: &Path) -> Result<Option<Self>, Error> {
        let kept = files::read(&directory.join(FILE), WHAT)?;
        kept.map(|kept| Self::of(directory, kept)).transpose()
    }

    fn of(directory: &Path, kept: Kept) -> Result<Self, Error> {
        let damaged = |error: rcgen::Error| Error::Damaged {
            what: WHAT,
            path: directory.join(FILE),
            reason: error.to_string(),
        };
        let key = PrivatePkcs8KeyDer::from(kept.key);
        let key = KeyPair::try_from(&key).map_err(damaged)?;
        let certificate = CertificateDer::from(kept.certificate);
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(damaged)?;
        let lifetime = Duration::from_secs(kept.worker_certificate_seconds);
        if lifetime > AUTHORITY_LIFETIME {
            let reason = format!("certificates are to be valid for {} s", lifetime.as_secs());
            return Err(Error::Damaged { what: WHAT, path: directory.join(FILE), reason });
        }
        let telling = Arc::default();
        Ok(Self { directory: directory.to_owned(), certificate, issuer, lifetime, telling })
    }

    /// Its certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// What join tokens pin.
    pub fn fingerprint(&self) -> [u8; 32] {
        fingerprint(&self.certificate)
    }

    /// What its cluster is called where names are short and nothing has to be proved.
    pub fn cluster(&self) -> String {
        cluster(&self.fingerprint())
    }

    /// How long certificates that it gives are valid.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// Its tokens and workers.
    pub fn book(&self) -> BookFile {
        BookFile::in_directory(&self.directory)
    }

    /// A new token, which `uses` workers may join with until `lifetime` has passed.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use cake_identity::{Authority, DEFAULT_LIFETIME, JoinToken};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let home = tempfile::tempdir()?;
    /// let authority = Authority::create(&home.path().join("authority"), DEFAULT_LIFETIME)?;
    /// let token = authority.issue_token(Duration::from_secs(600), 1)?;
    /// // What a person types on the device, where it is the same again.
    /// let typed: JoinToken = token.to_string().parse()?;
    /// assert_eq!(typed.to_string(), token.to_string());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn issue_token(&self, lifetime: Duration, uses: u32) -> Result<JoinToken, Error> {
        let token = JoinToken::new(self.fingerprint());
        let entry = TokenEntry::new(&token, SystemTime::now() + lifetime, uses);
        self.book().update(|book| book.add_token(entry))?;
        Ok(token)
    }

    /// An identity for a master's process: workers do not judge its time.
    ///
    /// # Errors
    /// [`Error::Certificate`].
    pub fn master_identity(&self) -> Result<Identity, Error> {
        let key = KeyPair::generate()?;
        let certificate = self.sign(&key, &Peer::Master, SystemTime::now(), AUTHORITY_LIFETIME)?;
        Ok(Identity::new(certificate, key.serialize_der(), self.certificate.clone()))
    }

    /// A certificate for the worker of this id, whose request proves that it has the key.
    ///
    /// # Errors
    /// [`Error::Certificate`] if the request is none.
    pub fn sign_request(
        &self,
        request: &[u8],
        worker_id: &str,
    ) -> Result<CertificateDer<'static>, Error> {
        self.sign_request_at(SystemTime::now(), request, worker_id)
    }

    /// The same, as if it were `now`.
    pub(crate) fn sign_request_at(
        &self,
        now: SystemTime,
        request: &[u8],
        worker_id: &str,
    ) -> Result<CertificateDer<'static>, Error> {
        let request = CertificateSigningRequestDer::from(request);
        // Of what it asks for only the key counts.
        let request = CertificateSigningRequestParams::from_der(&request)?;
        let peer = Peer::Worker(worker_id.to_owned());
        self.sign(&request.public_key, &peer, now, self.lifetime)
    }

    /// BLAKE3 of the public key in a request, in hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::Certificate`] if the request is none.
    pub(crate) fn requested_key(request: &[u8]) -> Result<String, Error> {
        let request = CertificateSigningRequestDer::from(request);
        let request = CertificateSigningRequestParams::from_der(&request)?;
        Ok(blake3::hash(&request.public_key.subject_public_key_info()).to_string())
    }

    fn sign(
        &self,
        key: &impl PublicKeyData,
        peer: &Peer,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<CertificateDer<'static>, Error> {
        let name = peer.name().unwrap_or_default();
        let mut params = params(&name, now, lifetime);
        params.subject_alt_names = vec![rcgen::SanType::DnsName(name.try_into()?)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Ok(params.signed_by(key, &self.issuer)?.der().clone())
    }
}

/// A certificate of nobody's, for trying what reads it.
pub(crate) fn self_signed_for(name: &str) -> Vec<u8> {
    let made = KeyPair::generate().and_then(|key| {
        let mut params = params(name, SystemTime::now(), DEFAULT_LIFETIME);
        params.subject_alt_names = vec![rcgen::SanType::DnsName(name.try_into()?)];
        params.self_signed(&key)
    });
    made.map_or(Vec::new(), |certificate| certificate.der().to_vec())
}

fn params(name: &str, now: SystemTime, lifetime: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = (now - SLACK).into();
    params.not_after = (now + lifetime).into();
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_kept_where_nobody_else_can_read_it_and_never_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("authority");
        assert!(Authority::open(&path).expect("nothing there").is_none());
        let made = Authority::create(&path, DEFAULT_LIFETIME).expect("made");
        let opened = Authority::open(&path).expect("readable").expect("there");
        assert_eq!(made.fingerprint(), opened.fingerprint());
        assert!(matches!(
            Authority::create(&path, DEFAULT_LIFETIME),
            Err(Error::Exists { path: file }) if file.ends_with(FILE)
        ));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| {
                let facts = std::fs::metadata(path).expect("there");
                facts.permissions().mode() & 0o777
            };
            assert_eq!((mode(&path), mode(&path.join(FILE))), (0o700, 0o600));
        }
    }

    #[test]
    fn a_damaged_file_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join(FILE), "{\"certificate\": 7}").expect("written");
        let error = Authority::open(directory.path()).err().expect("damaged").to_string();
        assert!(error.contains(FILE) && error.contains("not the certificate authority"), "{error}");
    }

    #[test]
    fn nobody_gets_a_certificate_for_what_is_no_request() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(directory.path(), DEFAULT_LIFETIME).expect("made");
        for request in [&b""[..], b"hello", &[0x30; 400]] {
            assert!(authority.sign_request(request, &crate::random_token()).is_err());
        }
    }
}
