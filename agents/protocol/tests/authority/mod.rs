//! Certificates for tests of mutual TLS.

use millrace_protocol::journal::Tls;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// An authority that makes certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// To serve.
    Server,
    /// To dial.
    Client,
}

/// A certificate with its key, PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub cert: String,
    /// Its private key.
    pub key: String,
}

impl Authority {
    /// A new one.
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("random numbers");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Its certificate, PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for `subject` and `usage`.
    pub fn sign(&self, subject: &str, usage: Use) -> Identity {
        let key = KeyPair::generate().expect("random numbers");
        let mut params = CertificateParams::new([subject.to_owned()]).expect("a host's name");
        params.extended_key_usages = vec![match usage {
            Use::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Use::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Identity { cert, key: key.serialize_pem() }
    }

    /// The end of `subject`, which trusts `trusted`.
    pub fn tls(&self, subject: &str, usage: Use, trusted: &Self) -> Tls {
        let Identity { cert, key } = self.sign(subject, usage);
        Tls::new(cert, key, trusted.pem())
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
