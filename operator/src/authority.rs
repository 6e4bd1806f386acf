//! The operator's certificate authority. It issues the identities of each attempt's agents, and of the services of the
//! control plane that follow them.
//!
//! The authority is stored in one Secret of the operator's own namespace. It is valid for [`AUTHORITY_LIFETIME`]. When
//! less than [`RENEW_BEFORE`] of that is left, a new one replaces it; the previous one is trusted until it expires.
//!
//! ```text
//!   day 0              185             365             550
//!   ├── A: issues ──────┼── A: trusted ─┤
//!                       ├── B: issues ──────────────────┤ …
//! ```
//!
//! * The newest authority signs the identities of agents. They expire with it, after at least 180 days.
//! * The oldest valid authority signs the identities of services, because every attempt that can still be followed
//!   trusts it. These identities are short-lived and renewed.
//! * An attempt whose pods outlive their identities can open no new connections: it fails and restarts from its last
//!   checkpoint, with new identities.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use millrace_cluster::credentials::credentials_secret;
use millrace_control::metrics::Metrics;
use millrace_protocol::security::{
    Authority, Credentials, Identity, IdentityError, IssueError, MemberName, Service, Validity,
};

const DAY: Duration = Duration::from_secs(24 * 3600);
pub const AUTHORITY_LIFETIME: Duration = DAY.saturating_mul(365);
/// Remaining validity at which a new authority is created: the minimum validity of an attempt's identities.
pub const RENEW_BEFORE: Duration = DAY.saturating_mul(180);
/// Validity of a service's identity, which is renewed when half of it is left.
pub const SERVICE_LIFETIME: Duration = DAY.saturating_mul(7);
/// Interval of checks whether something must be renewed.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Keys of the authority's Secret. A Secret of release 0.1.0 has only the first two, of an authority that never
/// expires.
const CERTIFICATE_KEY: &str = "ca.crt";
const PRIVATE_KEY_KEY: &str = "ca.key";
const EXPIRES_KEY: &str = "ca.expires";
const PREVIOUS_KEYS: [&str; 3] = ["previous.crt", "previous.key", "previous.expires"];
/// Key of a service's Secret: expiry of its identity, in seconds since 1970.
const SERVICE_EXPIRES_KEY: &str = "tls.expires";
/// Key of a service's Secret: what its certificate may be used for. Secrets of earlier releases lack it; their
/// certificates are for clients only.
const SERVICE_PURPOSES_KEY: &str = "tls.purposes";
/// The REST server connects to coordinators, and serves uploads.
const REST_SERVER_PURPOSES: &str = "client,server";

/// Names of the certificates in metrics.
const AUTHORITY_METRIC: &str = "authority";
const REST_SERVER_METRIC: &str = "rest-server-identity";

/// Why no authority is available.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The API server rejected a request, or is unreachable.
    #[error("the secret {name} can't be read or written: {cause}")]
    Secret { name: String, cause: kube::Error },
    /// The Secret contains no valid authority.
    #[error("the secret {0} contains no certificate authority: delete it, and the operator creates a new one")]
    Damaged(String),
    /// A certificate can't be created.
    #[error(transparent)]
    Certificate(#[from] IssueError),
    /// A certificate that was just created can't be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// An authority and its expiry; `None` for one of release 0.1.0.
struct AuthorityGeneration {
    authority: Authority,
    expires: Option<SystemTime>,
}

impl AuthorityGeneration {
    fn new(now: SystemTime) -> Result<Self, IssueError> {
        let validity = Validity::starting(now, AUTHORITY_LIFETIME);
        Ok(Self { authority: Authority::new(validity)?, expires: Some(validity.until) })
    }

    fn is_valid(&self, now: SystemTime) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    /// Returns whether a new authority must be created.
    fn is_due(&self, now: SystemTime) -> bool {
        self.expires.is_none_or(|expires| expires < now + RENEW_BEFORE)
    }

    /// Returns the validity of a certificate, which ends no later than that of the authority.
    fn validity(&self, now: SystemTime, lifetime: Duration) -> Validity {
        let validity = Validity::starting(now, lifetime);
        Validity { until: self.expires.map_or(validity.until, |expires| expires.min(validity.until)), ..validity }
    }
}

/// The trusted authorities: the newest, and the previous one while it is valid.
pub struct Authorities {
    newest: AuthorityGeneration,
    previous: Option<AuthorityGeneration>,
}

impl Authorities {
    /// Creates one new authority.
    ///
    /// # Errors
    /// It can't be created.
    pub fn new(now: SystemTime) -> Result<Self, IssueError> {
        Ok(Self { newest: AuthorityGeneration::new(now)?, previous: None })
    }

    /// Returns the authorities that replace these at `now`; `None` if nothing is due.
    fn renewed(&self, now: SystemTime) -> Result<Option<Self>, AuthorityError> {
        let keep = |term: &AuthorityGeneration| -> Result<AuthorityGeneration, IssueError> {
            let authority = Authority::from_pem(term.authority.certificate(), &term.authority.key())?;
            Ok(AuthorityGeneration { authority, expires: term.expires })
        };
        if self.newest.is_due(now) {
            let previous = self.newest.is_valid(now).then(|| keep(&self.newest)).transpose()?;
            return Ok(Some(Self { newest: AuthorityGeneration::new(now)?, previous }));
        }
        match &self.previous {
            Some(previous) if !previous.is_valid(now) => Ok(Some(Self { newest: keep(&self.newest)?, previous: None })),
            _ => Ok(None),
        }
    }

    /// Returns the certificates of all authorities, as PEM.
    fn bundle(&self) -> String {
        let previous = self.previous.as_ref().map_or("", |previous| previous.authority.certificate());
        format!("{}{previous}", self.newest.authority.certificate())
    }

    /// Issues an identity for a member of an attempt, or for a reader of a job's files. It is valid as long as the
    /// newest authority, and also names `hosts`.
    ///
    /// # Errors
    /// It can't be issued.
    pub fn issue_member(
        &self,
        name: &MemberName,
        hosts: &[String],
        now: SystemTime,
    ) -> Result<Credentials, IssueError> {
        let validity = self.newest.validity(now, AUTHORITY_LIFETIME);
        let issued = self.newest.authority.issue_for_hosts(name, hosts, validity)?;
        Ok(Credentials { authority: self.bundle(), ..issued })
    }

    /// Issues the identity of a service of the control plane; also returns its expiry.
    ///
    /// # Errors
    /// It can't be issued.
    pub fn issue_service(&self, service: Service, now: SystemTime) -> Result<(Credentials, SystemTime), IssueError> {
        let oldest = self.previous.as_ref().filter(|previous| previous.is_valid(now)).unwrap_or(&self.newest);
        let validity = oldest.validity(now, SERVICE_LIFETIME);
        let issued = oldest.authority.issue(&MemberName::Service(service), validity)?;
        Ok((Credentials { authority: self.bundle(), ..issued }, validity.until))
    }

    fn read(secret: &Secret) -> Option<Self> {
        let text = |key: &str| String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok();
        let term = |[certificate, key, expires]: [&str; 3]| {
            let authority = Authority::from_pem(&text(certificate)?, &text(key)?).ok()?;
            Some(AuthorityGeneration { authority, expires: text(expires).and_then(|text| parse_time(&text)) })
        };
        Some(Self { newest: term([CERTIFICATE_KEY, PRIVATE_KEY_KEY, EXPIRES_KEY])?, previous: term(PREVIOUS_KEYS) })
    }

    fn data(&self) -> BTreeMap<String, ByteString> {
        let terms = [
            (Some(&self.newest), [CERTIFICATE_KEY, PRIVATE_KEY_KEY, EXPIRES_KEY]),
            (self.previous.as_ref(), PREVIOUS_KEYS),
        ];
        let entries = terms.into_iter().filter_map(|(term, keys)| Some((term?, keys))).flat_map(|(term, keys)| {
            let texts = [
                Some(term.authority.certificate().to_owned()),
                Some(term.authority.key()),
                term.expires.map(time_text),
            ];
            keys.into_iter().zip(texts).filter_map(|(key, text)| Some((key.to_owned(), ByteString(text?.into_bytes()))))
        });
        entries.collect()
    }
}

fn time_text(time: SystemTime) -> String {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs().to_string()
}

fn parse_time(text: &str) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(text.trim().parse().ok()?))
}

/// Returns the expiry of the service's identity in `data`, if it is recorded.
fn service_expires(data: &BTreeMap<String, ByteString>) -> Option<SystemTime> {
    std::str::from_utf8(&data.get(SERVICE_EXPIRES_KEY)?.0).ok().and_then(parse_time)
}

/// Returns whether the REST server's identity in `data` must be renewed.
fn is_stale(data: &BTreeMap<String, ByteString>, bundle: &str, now: SystemTime) -> bool {
    let text = |key: &str| data.get(key).and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
    let fresh = service_expires(data).is_some_and(|expires| now + SERVICE_LIFETIME / 2 < expires);
    let has_purposes = text(SERVICE_PURPOSES_KEY) == Some(REST_SERVER_PURPOSES);
    !fresh || !has_purposes || text(Credentials::AUTHORITY_FILE) != Some(bundle)
}

/// Stores the authorities in their Secret, and the REST server's identity in another; renews both while this operator
/// leads.
pub struct CertificateManager {
    secrets: Api<Secret>,
    authority_name: String,
    rest_server_name: String,
    authorities: RwLock<Arc<Authorities>>,
    metrics: Arc<Metrics>,
}

impl CertificateManager {
    /// Reads the authorities from the Secret `authority_name` of `namespace`, or creates them, and ensures that the
    /// Secret `rest_server_name` contains a valid identity of the REST server. Records the expiry of both in `metrics`.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub async fn load_or_create(
        client: &Client,
        namespace: &str,
        authority_name: &str,
        rest_server_name: &str,
        metrics: Arc<Metrics>,
    ) -> Result<Self, AuthorityError> {
        let secrets = Api::namespaced(client.clone(), namespace);
        let (authority_name, rest_server_name) = (authority_name.to_owned(), rest_server_name.to_owned());
        let authorities = RwLock::new(Arc::new(Authorities::new(SystemTime::now())?));
        let certificates = Self { secrets, authority_name, rest_server_name, authorities, metrics };
        certificates.renew(SystemTime::now()).await?;
        Ok(certificates)
    }

    pub fn authorities(&self) -> Arc<Authorities> {
        self.authorities.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Issues a new identity of the operator itself.
    ///
    /// # Errors
    /// It can't be issued.
    pub fn operator(&self) -> Result<Identity, AuthorityError> {
        let (credentials, _) = self.authorities().issue_service(Service::Operator, SystemTime::now())?;
        Ok(Identity::new(&credentials)?)
    }

    /// Renews what is due. Never returns.
    pub async fn run_renewal(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if let Err(error) = self.renew(SystemTime::now()).await {
                tracing::warn!("certificates could not be renewed; trying again in an hour: {error}");
            }
        }
    }

    /// Renews what is due at `now`.
    async fn renew(&self, now: SystemTime) -> Result<(), AuthorityError> {
        let authorities = Arc::new(self.load(now).await?);
        *self.authorities.write().unwrap_or_else(PoisonError::into_inner) = authorities.clone();
        if let Some(expires) = authorities.newest.expires {
            self.metrics.set_certificate(AUTHORITY_METRIC, expires);
        }
        self.renew_rest_server(&authorities, now).await
    }

    /// Reads the authorities from the Secret, and renews them if that is due.
    async fn load(&self, now: SystemTime) -> Result<Authorities, AuthorityError> {
        let name = &self.authority_name;
        let failed = |cause| AuthorityError::Secret { name: name.clone(), cause };
        loop {
            let secret_object = self.secrets.get_opt(name).await.map_err(failed)?;
            let (authorities, renewed) = match &secret_object {
                Some(secret) => {
                    let authorities = Authorities::read(secret).ok_or_else(|| AuthorityError::Damaged(name.clone()))?;
                    let renewed = authorities.renewed(now)?;
                    (Some(authorities), renewed)
                }
                None => (None, Some(Authorities::new(now)?)),
            };
            let Some(renewed) = renewed else {
                return authorities.ok_or_else(|| AuthorityError::Damaged(name.clone()));
            };
            if write_secret(&self.secrets, name, secret_object.as_ref(), None, renewed.data()).await? {
                tracing::info!("wrote a new certificate authority to the secret {name}");
                return Ok(renewed);
            }
            // Write conflict: another operator was faster.
        }
    }

    /// Ensures that the REST server's Secret contains an identity that is valid for a while.
    async fn renew_rest_server(&self, authorities: &Authorities, now: SystemTime) -> Result<(), AuthorityError> {
        let name = &self.rest_server_name;
        let secret_object = self.secrets.get_opt(name).await;
        let secret_object = secret_object.map_err(|cause| AuthorityError::Secret { name: name.clone(), cause })?;
        let data = secret_object.as_ref().and_then(|secret| secret.data.clone()).unwrap_or_default();
        if !is_stale(&data, &authorities.bundle(), now) {
            if let Some(expires) = service_expires(&data) {
                self.metrics.set_certificate(REST_SERVER_METRIC, expires);
            }
            return Ok(());
        }
        let (credentials, expires) = authorities.issue_service(Service::RestServer, now)?;
        let secret = credentials_secret(&credentials, ObjectMeta::default());
        let mut data = secret.data.unwrap_or_default();
        data.insert(SERVICE_EXPIRES_KEY.to_owned(), ByteString(time_text(expires).into_bytes()));
        data.insert(SERVICE_PURPOSES_KEY.to_owned(), ByteString(REST_SERVER_PURPOSES.into()));
        // After a write conflict, nothing is missing: the other operator has the same authority.
        if write_secret(&self.secrets, name, secret_object.as_ref(), secret.type_, data).await? {
            self.metrics.set_certificate(REST_SERVER_METRIC, expires);
        }
        Ok(())
    }
}

/// Writes a Secret to the version of it that was read. Returns `false` after a write conflict.
///
/// # Errors
/// The API server rejected the request, or is unreachable.
pub(crate) async fn write_secret(
    secrets: &Api<Secret>,
    name: &str,
    secret_object: Option<&Secret>,
    type_: Option<String>,
    data: BTreeMap<String, ByteString>,
) -> Result<bool, AuthorityError> {
    let result = match secret_object {
        None => {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let secret = Secret { metadata, type_, data: Some(data), ..Secret::default() };
            secrets.create(&PostParams::default(), &secret).await
        }
        Some(secret_object) => {
            let secret = Secret { data: Some(data), ..secret_object.clone() };
            secrets.replace(&secret_object.name_any(), &PostParams::default(), &secret).await
        }
    };
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => Ok(false),
        Err(cause) => Err(AuthorityError::Secret { name: name.to_owned(), cause }),
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::security::AttemptName;

    use super::*;

    fn secret(authorities: &Authorities) -> Secret {
        Secret { data: Some(authorities.data()), ..Secret::default() }
    }

    fn launcher() -> MemberName {
        MemberName::Launcher(AttemptName::new("job", 1).unwrap())
    }

    /// Reads the Secret's contents back, `days` after `start`, renewed if that is due.
    fn after(authorities: &Authorities, start: SystemTime, days: u32) -> Option<Authorities> {
        Authorities::read(&secret(authorities)).unwrap().renewed(start + days * DAY).unwrap()
    }

    #[test]
    fn authority_is_rotated_while_the_old_one_is_trusted() {
        let start = SystemTime::now();
        let first = Authorities::new(start).unwrap();
        assert!(after(&first, start, 184).is_none());
        let second = after(&first, start, 186).unwrap();
        let (old, new) = (first.newest.authority.certificate(), second.newest.authority.certificate());
        assert_ne!(old, new);
        assert_eq!(second.bundle(), format!("{new}{old}"));
        let early = first.issue_member(&launcher(), &[], start).unwrap();
        assert_eq!(early.authority, old, "an attempt that began before knows the first authority only");
        assert!(after(&second, start, 364).is_none(), "the old one is trusted until it expires");
        let third = after(&second, start, 366).unwrap();
        assert_eq!(third.bundle(), new);
        // An operator that did not run for years.
        let late = after(&second, start, 4_000).unwrap();
        assert!(late.previous.is_none() && late.newest.is_valid(start + 4_000 * DAY));
    }

    #[test]
    fn authority_of_0_1_0_is_replaced_and_trusted_once_more() {
        let start = SystemTime::now();
        let mut old = Authorities::new(start).unwrap();
        old.newest.expires = None;
        assert_eq!(old.data().len(), 2);
        let renewed = after(&old, start, 0).unwrap();
        assert!(renewed.bundle().ends_with(old.newest.authority.certificate()));
        assert!(after(&renewed, start, 100).is_none());
        let again = after(&renewed, start, 190).unwrap();
        assert!(!again.bundle().contains(old.newest.authority.certificate()));
    }

    #[test]
    fn service_identity_is_short_lived_and_renewed() {
        let start = SystemTime::now();
        let authorities = Authorities::new(start).unwrap();
        let (credentials, expires) = authorities.issue_service(Service::RestServer, start).unwrap();
        assert_eq!(expires, start + SERVICE_LIFETIME);
        let mut data = credentials_secret(&credentials, ObjectMeta::default()).data.unwrap();
        assert!(is_stale(&data, &authorities.bundle(), start), "of 0.1.0: nothing says when it expires");
        data.insert(SERVICE_EXPIRES_KEY.to_owned(), ByteString(time_text(expires).into_bytes()));
        assert!(is_stale(&data, &authorities.bundle(), start), "of 0.2.0: it is for clients only");
        data.insert(SERVICE_PURPOSES_KEY.to_owned(), ByteString(REST_SERVER_PURPOSES.into()));
        assert!(!is_stale(&data, &authorities.bundle(), start + 3 * DAY));
        assert!(is_stale(&data, &authorities.bundle(), start + 4 * DAY));
        let renewed = after(&authorities, start, 186).unwrap();
        assert!(is_stale(&data, &renewed.bundle(), start), "another authority is trusted since");
        // Near the end of an authority, its certificates expire no later than it does.
        let (_, expires) = renewed.issue_service(Service::Operator, start + 363 * DAY).unwrap();
        assert!(expires <= start + AUTHORITY_LIFETIME);
        let (_, expires) = renewed.issue_service(Service::Operator, start + 366 * DAY).unwrap();
        assert!(expires > start + 370 * DAY, "it is the newest authority's by then");
    }
}
