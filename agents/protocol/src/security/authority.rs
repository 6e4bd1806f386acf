//! A certificate authority: issues the credentials of a job's members.

use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use super::identity::Credentials;
use super::name::Name;

/// How far clocks may be apart: certificates are valid from so long before they are issued.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// A certificate can't be made.
#[derive(Debug, thiserror::Error)]
#[error("can't make a certificate: {0}")]
pub struct IssueError(#[from] rcgen::Error);

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// From when on.
    pub from: SystemTime,
    /// Until when.
    pub until: SystemTime,
}

impl Validity {
    /// From now on for `lifetime`; clocks of other machines may be an hour behind.
    pub fn starting(now: SystemTime, lifetime: Duration) -> Self {
        Self { from: now - CLOCK_SKEW, until: now + lifetime }
    }

    /// The part of it that ends no later than `other`.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        Self { from: self.from, until: self.until.min(other.until) }
    }
}

/// See the module text.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority with a new key.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn new(validity: Validity) -> Result<Self, IssueError> {
        let key = KeyPair::generate()?;
        let mut params = params();
        (params.not_before, params.not_after) = (validity.from.into(), validity.until.into());
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, issuer: Issuer::new(params, key) })
    }

    /// The authority with this certificate and key, both PEM.
    ///
    /// # Errors
    /// The key is none.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, IssueError> {
        Ok(Self { certificate: certificate.to_owned(), issuer: Issuer::new(params(), KeyPair::from_pem(key)?) })
    }

    /// Its certificate, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its private key, PEM.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Credentials of `name`, which trust this authority alone.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue(&self, name: &Name, validity: Validity) -> Result<Credentials, IssueError> {
        self.issue_for_hosts(name, &[], validity)
    }

    /// As [`Authority::issue`]; the certificate also names these hosts, for clients that look for a host.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue_for_hosts(
        &self,
        name: &Name,
        hosts: &[String],
        validity: Validity,
    ) -> Result<Credentials, IssueError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(hosts)?;
        params.subject_alt_names.push(SanType::URI(Ia5String::try_from(name.uri())?));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "millrace member");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = purposes(name);
        (params.not_before, params.not_after) = (validity.from.into(), validity.until.into());
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Credentials { certificate, key: key.serialize_pem(), authority: self.certificate.clone() })
    }
}

/// Only agents both dial and accept.
fn purposes(name: &Name) -> Vec<ExtendedKeyUsagePurpose> {
    match name {
        Name::Agent(..) => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        Name::Reader { .. } => vec![ExtendedKeyUsagePurpose::ServerAuth],
        Name::Launcher(_) | Name::Service(_) => vec![ExtendedKeyUsagePurpose::ClientAuth],
    }
}

/// What every authority says of itself, whenever it was made.
fn params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "millrace jobs");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}
