//! The certificate that a REST server makes for itself: of an authority of its own, which clients trust for ten years, and renewed
//! well before it expires, without a word to them.
//!
//! ```text
//!   DIR/certificate.pem     the server's certificate (a year), and that of the authority: what is served, and what clients trust
//!   DIR/key.pem             the server's key
//!   DIR/authority-key.pem   the authority's key
//!   DIR/made.json           for which names they were made, and until when they are valid
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

use crate::tls::Files;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long the server's certificate is valid, and what is left of that when it is renewed.
const LIFETIME: Duration = DAY.saturating_mul(365);
const RENEW_BEFORE: Duration = DAY.saturating_mul(120);
/// The same of the authority. Clients have to be given the next one.
const AUTHORITY_LIFETIME: Duration = DAY.saturating_mul(3650);
/// How far clocks of clients may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
/// Between two looks whether it is to be renewed.
const CHECK_INTERVAL: Duration = DAY;

/// What was made, beside it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    names: Vec<String>,
    /// Seconds since 1970.
    expires: u64,
    authority: String,
    authority_expires: u64,
}

/// See the module text.
#[derive(Clone, Debug)]
pub struct OwnCertificate {
    dir: PathBuf,
    names: Vec<String>,
}

impl OwnCertificate {
    /// The one in `dir` for these names.
    pub fn new(dir: &Path, names: &[String]) -> Self {
        Self { dir: dir.to_owned(), names: names.to_vec() }
    }

    /// Its files.
    pub fn files(&self) -> Files {
        Files { certificate: self.dir.join("certificate.pem"), key: self.dir.join("key.pem") }
    }

    /// Sees to it that there is a certificate for the names that is valid for a while after `now`.
    ///
    /// # Errors
    /// It can't be made or kept.
    pub fn renew(&self, now: SystemTime) -> anyhow::Result<()> {
        let now = seconds(now);
        let made = self.made();
        if made.is_none() && self.is_of_0_1_0() {
            log::warn!(
                "the certificate in {} never expires: delete that directory for one that does, and give clients the new \
                 certificate.pem",
                self.dir.display()
            );
            return Ok(());
        }
        let current = made.filter(|made| made.authority_expires > now + LIFETIME.as_secs());
        if current.as_ref().is_some_and(|made| made.names == self.names && made.expires > now + RENEW_BEFORE.as_secs())
        {
            return Ok(());
        }
        std::fs::create_dir_all(&self.dir)
            .with_context(|| format!("can't make the directory {}", self.dir.display()))?;
        self.make(current, now)
    }

    /// Renews it whenever that is due, for ever; who serves it sees that the files have changed.
    pub async fn keep(self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if let Err(error) = self.renew(SystemTime::now()) {
                log::error!("the server's certificate could not be renewed; trying again in a day: {error:#}");
            }
        }
    }

    fn made(&self) -> Option<Made> {
        let text = std::fs::read_to_string(self.dir.join("made.json")).ok()?;
        let whole = self.files().certificate.exists() && self.files().key.exists();
        serde_json::from_str(&text).ok().filter(|_| whole)
    }

    /// Whether there is a certificate for the same names that this program made before certificates expired.
    fn is_of_0_1_0(&self) -> bool {
        let names = std::fs::read_to_string(self.dir.join("names"));
        let same = names.is_ok_and(|names| names == self.names.join("\n"));
        same && self.files().certificate.exists() && self.files().key.exists()
    }

    /// Makes a certificate, of the authority there is if that is good for it.
    fn make(&self, current: Option<Made>, now: u64) -> anyhow::Result<()> {
        let key_file = self.dir.join("authority-key.pem");
        let known = std::fs::read_to_string(&key_file).ok().and_then(|pem| KeyPair::from_pem(&pem).ok());
        let (authority, authority_expires, issuer) = match (current, known) {
            (Some(made), Some(key)) => {
                let issuer = Issuer::new(authority(now, made.authority_expires), key);
                (made.authority, made.authority_expires, issuer)
            }
            _ => {
                let (key, until) = (KeyPair::generate()?, now + AUTHORITY_LIFETIME.as_secs());
                let params = authority(now, until);
                let certificate = params.self_signed(&key).context("can't make an authority")?.pem();
                write(&key_file, &key.serialize_pem(), 0o600)?;
                (certificate, until, Issuer::new(params, key))
            }
        };
        let expires = now + LIFETIME.as_secs();
        let mut params =
            CertificateParams::new(self.names.clone()).context("the names can't stand in a certificate")?;
        params.distinguished_name.push(DnType::CommonName, "millrace-api");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = validity(now, expires);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer).context("can't make a certificate")?.pem();
        let Files { certificate: certificate_file, key: server_key } = self.files();
        write(&server_key, &key.serialize_pem(), 0o600)?;
        write(&certificate_file, &format!("{certificate}{authority}"), 0o644)?;
        // Last: what is not whole is made again.
        let made = Made { names: self.names.clone(), expires, authority, authority_expires };
        write(&self.dir.join("made.json"), &serde_json::to_string_pretty(&made)?, 0o644)
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn validity<T: From<SystemTime>>(now: u64, until: u64) -> (T, T) {
    let time = |seconds| T::from(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    (time(now.saturating_sub(CLOCK_SKEW.as_secs())), time(until))
}

fn authority(now: u64, until: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "millrace-api authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = validity(now, until);
    params
}

/// Replaces a file as a whole, so that nobody reads half of it.
fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let half = path.with_extension("new");
    let open = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&half);
    let written = open.and_then(|mut file| file.write_all(text.as_bytes())).and_then(|()| std::fs::rename(&half, path));
    written.with_context(|| format!("can't write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

    use super::*;

    fn certificates(file: &Path) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(file).unwrap().map(Result::unwrap).collect()
    }

    /// Whether a client that was given `trusted` once takes what is served now for `name` at `at`.
    fn trusts(trusted: &[CertificateDer<'static>], own: &OwnCertificate, name: &'static str, at: SystemTime) -> bool {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(trusted.iter().cloned());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let served = certificates(&own.files().certificate);
        let at = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).unwrap());
        let name = ServerName::try_from(name).unwrap();
        verifier.verify_server_cert(&served[0], &served[1..], &name, &[], at).is_ok()
    }

    #[test]
    fn it_is_renewed_before_it_expires_and_clients_do_not_notice() {
        let dir = tempfile::tempdir().unwrap();
        let start = SystemTime::now();
        let own = OwnCertificate::new(dir.path(), &["a.example".to_owned()]);
        own.renew(start).unwrap();
        let trusted = certificates(&own.files().certificate);
        own.files().config().unwrap();
        assert!(trusts(&trusted, &own, "a.example", start));
        assert!(!trusts(&trusted, &own, "b.example", start));
        assert!(!trusts(&trusted, &own, "a.example", start + 366 * DAY), "it expires");

        own.renew(start + 200 * DAY).unwrap();
        assert_eq!(certificates(&own.files().certificate), trusted, "there is time");
        own.renew(start + 300 * DAY).unwrap();
        assert!(trusts(&trusted, &own, "a.example", start + 366 * DAY));
        own.files().config().unwrap();

        let other = OwnCertificate::new(dir.path(), &["b.example".to_owned()]);
        other.renew(start + 301 * DAY).unwrap();
        assert!(trusts(&trusted, &other, "b.example", start + 400 * DAY), "other names, the same authority");

        // In its last year the authority is followed by another one.
        other.renew(start + 3400 * DAY).unwrap();
        assert!(!trusts(&trusted, &other, "b.example", start + 3400 * DAY));
        let trusted = certificates(&other.files().certificate);
        assert!(trusts(&trusted, &other, "b.example", start + 3400 * DAY));
    }

    #[test]
    fn keys_are_private_and_what_is_half_made_is_made_again() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let own = OwnCertificate::new(dir.path(), &["a.example".to_owned()]);
        own.renew(SystemTime::now()).unwrap();
        for key in ["key.pem", "authority-key.pem"] {
            assert_eq!(dir.path().join(key).metadata().unwrap().permissions().mode() & 0o777, 0o600, "{key}");
        }
        std::fs::remove_file(own.files().key).unwrap();
        own.renew(SystemTime::now()).unwrap();
        own.files().config().unwrap();
        // One that 0.1.0 made is left to those who trust it.
        std::fs::remove_file(dir.path().join("made.json")).unwrap();
        std::fs::write(dir.path().join("names"), "a.example").unwrap();
        let before = certificates(&own.files().certificate);
        own.renew(SystemTime::now()).unwrap();
        assert_eq!(certificates(&own.files().certificate), before);
    }
}
