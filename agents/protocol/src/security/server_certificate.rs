//! The certificate of an HTTPS server, issued by an authority of its own.
//!
//! * Clients are given the authority's certificate once and trust it for ten years.
//! * The server's certificate is valid for a year and renewed 120 days before it expires. The same authority issues the
//!   new one, so clients do not notice.
//! * Names and validity are read from the certificates; they are stored nowhere else.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use super::authority::{IssueError, Validity};

const ONE_DAY: Duration = Duration::from_secs(24 * 3600);
/// Validity of the server's certificate.
const CERTIFICATE_LIFETIME: Duration = ONE_DAY.saturating_mul(365);
/// The certificate is renewed if less than this is left of its [`CERTIFICATE_LIFETIME`].
const RENEW_BEFORE: Duration = ONE_DAY.saturating_mul(120);
/// Validity of the authority. After it clients must be given a new authority's certificate.
const AUTHORITY_LIFETIME: Duration = ONE_DAY.saturating_mul(3650);

/// The certificates of a server and its authority, with their keys, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerCertificate {
    /// The server's certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// The authority's certificate, which clients trust.
    pub authority: String,
    /// The authority's private key; `None` if it was not kept, so that this authority can't issue another certificate.
    pub authority_key: Option<String>,
}

impl ServerCertificate {
    /// Creates an authority and issues a certificate for `names` (host names and IP addresses).
    ///
    /// # Errors
    /// A name can't be written in a certificate, or a key can't be generated.
    pub fn new(names: &[String], now: SystemTime) -> Result<Self, IssueError> {
        let key = KeyPair::generate()?;
        let params = authority(now);
        let certificate = params.self_signed(&key)?.pem();
        let key_text = key.serialize_pem();
        Self::issue(names, now, certificate, key_text, &Issuer::new(params, key))
    }

    /// Returns the certificate that must replace this one. `None` if this one is for `names`, has a usable key and is
    /// valid for more than 120 days after `now`. The authority stays the same unless it expires within a year or its
    /// key is missing.
    ///
    /// # Errors
    /// A name can't be written in a certificate, or a key can't be generated.
    pub fn renew_if_due(&self, names: &[String], now: SystemTime) -> Result<Option<Self>, IssueError> {
        let current = read(self.certificate.as_bytes()).filter(|(of, _)| *of == normalize_names(names));
        let current = current.filter(|_| KeyPair::from_pem(&self.key).is_ok());
        if current.is_some_and(|(_, expires)| expires > now + RENEW_BEFORE) {
            return Ok(None);
        }
        let lasting =
            certificate_expiry(self.authority.as_bytes()).is_some_and(|expires| expires > now + CERTIFICATE_LIFETIME);
        let key = self.authority_key.as_deref().filter(|_| lasting).and_then(|pem| KeyPair::from_pem(pem).ok());
        match key {
            Some(key) => {
                let key_text = key.serialize_pem();
                let issuer = Issuer::new(authority(now), key);
                Self::issue(names, now, self.authority.clone(), key_text, &issuer).map(Some)
            }
            None => Self::new(names, now).map(Some),
        }
    }

    /// Returns the certificates that the server sends, its own first.
    pub fn chain(&self) -> String {
        format!("{}{}", self.certificate, self.authority)
    }

    fn issue(
        names: &[String],
        now: SystemTime,
        authority: String,
        authority_key: String,
        issuer: &Issuer<'_, KeyPair>,
    ) -> Result<Self, IssueError> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "millrace-api");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let validity = Validity::starting(now, CERTIFICATE_LIFETIME);
        (params.not_before, params.not_after) = (validity.from.into(), validity.until.into());
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, issuer)?.pem();
        Ok(Self { certificate, key: key.serialize_pem(), authority, authority_key: Some(authority_key) })
    }
}

/// Returns the authority's parameters. Certificates refer to an authority only by its name and key, so these parameters
/// are also used to issue for an authority that was created earlier.
fn authority(now: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "millrace-api authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let validity = Validity::starting(now, AUTHORITY_LIFETIME);
    (params.not_before, params.not_after) = (validity.from.into(), validity.until.into());
    params
}

/// Returns when the first certificate of `pem` expires; `None` if there is no certificate.
pub fn certificate_expiry(pem: &[u8]) -> Option<SystemTime> {
    read(pem).map(|(_, expires)| expires)
}

/// Returns the names in the first certificate of `pem` and when it expires; `None` if there is no certificate.
fn read(pem: &[u8]) -> Option<(BTreeSet<String>, SystemTime)> {
    let (_, block) = parse_x509_pem(pem).ok()?;
    let certificate = block.parse_x509().ok()?;
    let expires = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    let expires = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(expires))?;
    Some((subject_names(&certificate), expires))
}

fn subject_names(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    names.iter().filter_map(name_of).collect()
}

fn name_of(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

/// Returns the names spelled like [`name_of`] spells them: an IP address has more than one spelling.
fn normalize_names(names: &[String]) -> BTreeSet<String> {
    let address = |name: &String| name.parse::<IpAddr>().map(|address| address.to_string());
    names.iter().map(|name| address(name).unwrap_or_else(|_| name.clone())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

    use super::*;

    fn names(name: &str) -> Vec<String> {
        vec![name.to_owned(), "0:0::1".to_owned()]
    }

    /// Returns whether a client that trusts `authority` accepts the certificates of `served` for `name` at the time
    /// `at`.
    fn accepts(authority: &str, served: &ServerCertificate, name: &'static str, at: SystemTime) -> bool {
        let certificates = |pem: &str| -> Vec<CertificateDer<'static>> {
            CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
        };
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(certificates(authority));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let served = certificates(&served.chain());
        let at = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).unwrap());
        let name = ServerName::try_from(name).unwrap();
        verifier.verify_server_cert(&served[0], &served[1..], &name, &[], at).is_ok()
    }

    #[test]
    fn certificate_is_renewed_and_clients_still_trust_it() {
        let start = SystemTime::now();
        let first = ServerCertificate::new(&names("a.example"), start).unwrap();
        let trusted = &first.authority;
        for name in ["a.example", "::1"] {
            assert!(accepts(trusted, &first, name, start), "{name}");
        }
        assert!(!accepts(trusted, &first, "b.example", start));
        assert!(!accepts(trusted, &first, "a.example", start + 366 * ONE_DAY), "it expires");

        assert!(first.renew_if_due(&names("a.example"), start + 200 * ONE_DAY).unwrap().is_none(), "there is time");
        let second = first.renew_if_due(&names("a.example"), start + 300 * ONE_DAY).unwrap().unwrap();
        assert!(accepts(trusted, &second, "a.example", start + 366 * ONE_DAY));
        let third = second.renew_if_due(&names("b.example"), start + 301 * ONE_DAY).unwrap().unwrap();
        assert!(accepts(trusted, &third, "b.example", start + 400 * ONE_DAY), "other names, the same authority");

        let fourth = third.renew_if_due(&names("b.example"), start + 3400 * ONE_DAY).unwrap().unwrap();
        assert!(!accepts(trusted, &fourth, "b.example", start + 3400 * ONE_DAY), "the authority is near its end");
        assert!(accepts(&fourth.authority, &fourth, "b.example", start + 3400 * ONE_DAY));
    }

    #[test]
    fn certificate_without_authority_key_is_kept_until_due() {
        let start = SystemTime::now();
        let whole = ServerCertificate::new(&names("a.example"), start).unwrap();
        let foreign = ServerCertificate { authority_key: None, ..whole.clone() };
        assert!(foreign.renew_if_due(&names("a.example"), start + 200 * ONE_DAY).unwrap().is_none());
        let replaced = foreign.renew_if_due(&names("a.example"), start + 300 * ONE_DAY).unwrap().unwrap();
        assert_ne!(replaced.authority, foreign.authority);
        let without_certificate = ServerCertificate { certificate: String::new(), ..whole.clone() };
        let without_key = ServerCertificate { key: "none".to_owned(), ..whole.clone() };
        for damaged in [without_certificate, without_key] {
            let mended = damaged.renew_if_due(&names("a.example"), start).unwrap().unwrap();
            assert!(accepts(&whole.authority, &mended, "a.example", start));
        }
    }
}
