//! The operator's certificate authority: it vouches for each attempt's coordinator and for the operator itself.
//!
//! The authority lives in one Secret of the operator's own namespace, so that coordinators know an operator that was
//! restarted. A coordinator's certificate serves only, the operator's only dials: a pod's can't be used to follow another
//! job.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use millrace_protocol::journal::Tls;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::children::Identity;

/// Name under which the operator dials.
const OPERATOR: &str = "millrace-operator";
const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The API server refused.
    #[error("the secret {name} can't be read or made: {cause}")]
    Secret {
        /// Its name.
        name: String,
        /// What the API server said.
        cause: kube::Error,
    },
    /// It holds something else.
    #[error("the secret {0} holds no authority: delete it, and the operator makes another")]
    Damaged(String),
    /// A certificate can't be made.
    #[error("can't make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}

/// See the module text.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, which nobody but its maker has: what it vouches for is trusted for as long as the maker lives.
    ///
    /// # Errors
    /// It can't be made.
    pub fn new() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let certificate = params().self_signed(&key)?.pem();
        Ok(Self { certificate, issuer: Issuer::new(params(), key) })
    }

    /// The authority in secret `name` of `namespace`; made, where there is none yet.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub async fn load_or_make(client: &Client, namespace: &str, name: &str) -> Result<Self, AuthorityError> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let failed = |cause| AuthorityError::Secret { name: name.to_owned(), cause };
        loop {
            if let Some(secret) = secrets.get_opt(name).await.map_err(failed)? {
                return Self::read(&secret).ok_or_else(|| AuthorityError::Damaged(name.to_owned()));
            }
            match secrets.create(&PostParams::default(), &make(name)?).await {
                Ok(_) => {}
                // Another operator was first.
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(cause) => return Err(failed(cause)),
            }
        }
    }

    fn read(secret: &Secret) -> Option<Self> {
        let text = |key| String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok();
        let key = KeyPair::from_pem(&text(KEY)?).ok()?;
        Some(Self { certificate: text(CERTIFICATE)?, issuer: Issuer::new(params(), key) })
    }

    /// Sees to it that the secret `name` of `namespace` holds an identity of this authority, under which another program may
    /// follow coordinators.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub async fn vouch(&self, client: &Client, namespace: &str, name: &str) -> Result<(), AuthorityError> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let failed = |cause| AuthorityError::Secret { name: name.to_owned(), cause };
        if let Some(there) = secrets.get_opt(name).await.map_err(failed)? {
            let data = there.data.unwrap_or_default();
            if data.get(CERTIFICATE).is_some_and(|authority| authority.0 == self.certificate.as_bytes()) {
                return Ok(());
            }
            // Of an authority that is no more.
            secrets.delete(name, &DeleteParams::default()).await.map_err(failed)?;
        }
        let identity = self.issue(name, ExtendedKeyUsagePurpose::ClientAuth)?;
        let secret = identity.secret(ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() });
        match secrets.create(&PostParams::default(), &secret).await {
            Ok(_) => Ok(()),
            // An operator that leads no more was first: it has the same authority.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(cause) => Err(failed(cause)),
        }
    }

    /// A certificate for a server called `host`.
    ///
    /// # Errors
    /// It can't be made.
    pub fn server(&self, host: &str) -> Result<Identity, AuthorityError> {
        self.issue(host, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a client called `name`.
    ///
    /// # Errors
    /// It can't be made.
    pub fn client_identity(&self, name: &str) -> Result<Identity, AuthorityError> {
        self.issue(name, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// The identity under which the operator dials.
    ///
    /// # Errors
    /// It can't be made.
    pub fn client(&self) -> Result<Tls, AuthorityError> {
        let Identity { certificate, key, authority } = self.issue(OPERATOR, ExtendedKeyUsagePurpose::ClientAuth)?;
        Ok(Tls::new(certificate, key, authority))
    }

    fn issue(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> Result<Identity, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.extended_key_usages = vec![purpose];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem(), authority: self.certificate.clone() })
    }
}

fn params() -> CertificateParams {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, "millrace jobs");
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn make(name: &str) -> Result<Secret, AuthorityError> {
    let Authority { certificate, issuer } = Authority::new()?;
    let entry = |key: &str, text: String| (key.to_owned(), ByteString(text.into_bytes()));
    Ok(Secret {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([entry(CERTIFICATE, certificate), entry(KEY, issuer.key().serialize_pem())])),
        ..Secret::default()
    })
}
