//! A certificate authority that issues the credentials of a job's members.

use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use super::identity::Credentials;
use super::name::{MemberName, Service};

/// Tolerated difference of clocks: certificates are valid from this long before they are issued.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// A certificate can't be created.
#[derive(Debug, thiserror::Error)]
#[error("can't make a certificate: {0}")]
pub struct IssueError(#[from] rcgen::Error);

/// The period in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Start of the period.
    pub from: SystemTime,
    /// End of the period.
    pub until: SystemTime,
}

impl Validity {
    /// Returns the period from `now` for `lifetime`. It starts an hour earlier, because clocks of other machines may be
    /// behind.
    pub fn starting(now: SystemTime, lifetime: Duration) -> Self {
        Self { from: now - CLOCK_SKEW, until: now + lifetime }
    }

    /// Returns this period, shortened to end no later than `other`.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        Self { from: self.from, until: self.until.min(other.until) }
    }
}

/// A certificate and the key that signs with it.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates an authority with a new key.
    ///
    /// # Errors
    /// [`IssueError`] if key or certificate can't be generated.
    pub fn new(validity: Validity) -> Result<Self, IssueError> {
        let key = KeyPair::generate()?;
        let mut params = params();
        (params.not_before, params.not_after) = (validity.from.into(), validity.until.into());
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, issuer: Issuer::new(params, key) })
    }

    /// Returns the authority with this certificate and key, both PEM. The certificate is not checked.
    ///
    /// # Errors
    /// `key` is not a private key.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, IssueError> {
        Ok(Self { certificate: certificate.to_owned(), issuer: Issuer::new(params(), KeyPair::from_pem(key)?) })
    }

    /// Returns the authority's certificate as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Returns the authority's private key as PEM.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues credentials of `name`, which trust this authority only.
    ///
    /// # Errors
    /// [`IssueError`] if the certificate can't be created.
    pub fn issue(&self, name: &MemberName, validity: Validity) -> Result<Credentials, IssueError> {
        self.issue_for_hosts(name, &[], validity)
    }

    /// Issues credentials like [`Authority::issue`]. The certificate is also valid for these host names, for clients
    /// that verify the host.
    ///
    /// # Errors
    /// [`IssueError`] if the certificate can't be created, for example because a host name is invalid.
    pub fn issue_for_hosts(
        &self,
        name: &MemberName,
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

/// Returns the key usages of `name`: only agents and the REST server both dial and accept connections.
fn purposes(name: &MemberName) -> Vec<ExtendedKeyUsagePurpose> {
    match name {
        MemberName::Agent(..) | MemberName::Service(Service::RestServer) => {
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
        }
        MemberName::Reader { .. } => vec![ExtendedKeyUsagePurpose::ServerAuth],
        MemberName::Launcher(_) | MemberName::Fetcher { .. } | MemberName::Service(Service::Operator) => {
            vec![ExtendedKeyUsagePurpose::ClientAuth]
        }
    }
}

/// Returns the parameters that the certificates of all authorities share.
fn params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "millrace jobs");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}
