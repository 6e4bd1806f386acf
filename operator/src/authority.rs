//! The operator's certificate authority: it issues the identities of each attempt's agents, and of the services of the
//! control plane that follow them.
//!
//! The authority lives in one Secret of the operator's own namespace. It is valid for [`LIFETIME`], and when less than
//! [`RENEW_BEFORE`] of that is left, another one takes its place; the previous one is trusted until it expires.
//!
//! ```text
//!   day 0              185             365             550
//!   ├── A: issues ──────┼── A: trusted ─┤
//!                       ├── B: issues ──────────────────┤ …
//!   agents' identities:  the newest authority signs them; they expire with it, after 180 days at least
//!   services' identities: the oldest authority that is valid signs them, since every attempt that can still be
//!   followed
//!                         knows it; they are short, and renewed
//! ```
//!
//! An attempt whose pods live longer than its identities can make no new connections: it fails and restarts from its
//! last checkpoint, with new ones.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use millrace_control::metrics::Metrics;
use millrace_protocol::security::{
    Authority, Credentials, Identity, IdentityError, IssueError, Name, Service, Validity,
};

use crate::children::credentials_secret;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long an authority is valid.
pub const LIFETIME: Duration = DAY.saturating_mul(365);
/// What is left of it when another one is made: as long as an attempt's identities are valid at least.
pub const RENEW_BEFORE: Duration = DAY.saturating_mul(180);
/// How long a service's identity is valid; it is renewed when half of that is left.
pub const SERVICE_LIFETIME: Duration = DAY.saturating_mul(7);
/// Between two looks whether something is to be renewed.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Keys of the authority's Secret. A Secret of 0.1.0 has the first two, of an authority that never expires.
const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";
const EXPIRES: &str = "ca.expires";
const PREVIOUS: [&str; 3] = ["previous.crt", "previous.key", "previous.expires"];
/// Key of a service's Secret: when its identity expires, in seconds since 1970.
const SERVICE_EXPIRES: &str = "tls.expires";

/// The names of the certificates in metrics.
const AUTHORITY_METRIC: &str = "authority";
const REST_SERVER_METRIC: &str = "rest-server-identity";

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The API server refused.
    #[error("the secret {name} can't be read or written: {cause}")]
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
    #[error(transparent)]
    Certificate(#[from] IssueError),
    /// A certificate that was just made can't be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// An authority and its end; none for one of 0.1.0.
struct Term {
    authority: Authority,
    expires: Option<SystemTime>,
}

impl Term {
    fn new(now: SystemTime) -> Result<Self, IssueError> {
        let validity = Validity::starting(now, LIFETIME);
        Ok(Self { authority: Authority::new(validity)?, expires: Some(validity.until) })
    }

    fn is_valid(&self, now: SystemTime) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    /// Whether it is time for another one.
    fn is_due(&self, now: SystemTime) -> bool {
        self.expires.is_none_or(|expires| expires < now + RENEW_BEFORE)
    }

    /// No longer than the authority itself.
    fn validity(&self, now: SystemTime, lifetime: Duration) -> Validity {
        let validity = Validity::starting(now, lifetime);
        Validity { until: self.expires.map_or(validity.until, |expires| expires.min(validity.until)), ..validity }
    }
}

/// The authorities that are trusted: the newest, and the one before it while that is valid.
pub struct Authorities {
    newest: Term,
    previous: Option<Term>,
}

impl Authorities {
    /// One new authority.
    ///
    /// # Errors
    /// It can't be made.
    pub fn new(now: SystemTime) -> Result<Self, IssueError> {
        Ok(Self { newest: Term::new(now)?, previous: None })
    }

    /// What has to change at `now`; `None` while nothing has to.
    fn renewed(&self, now: SystemTime) -> Result<Option<Self>, AuthorityError> {
        let keep = |term: &Term| -> Result<Term, IssueError> {
            let authority = Authority::from_pem(term.authority.certificate(), &term.authority.key())?;
            Ok(Term { authority, expires: term.expires })
        };
        if self.newest.is_due(now) {
            let previous = self.newest.is_valid(now).then(|| keep(&self.newest)).transpose()?;
            return Ok(Some(Self { newest: Term::new(now)?, previous }));
        }
        match &self.previous {
            Some(previous) if !previous.is_valid(now) => Ok(Some(Self { newest: keep(&self.newest)?, previous: None })),
            _ => Ok(None),
        }
    }

    /// The certificates of all of them, PEM.
    fn bundle(&self) -> String {
        let previous = self.previous.as_ref().map_or("", |previous| previous.authority.certificate());
        format!("{}{previous}", self.newest.authority.certificate())
    }

    /// The identity of a member of an attempt, or of what serves a job's files, valid for as long as the newest
    /// authority is. The certificate names `hosts`, too.
    ///
    /// # Errors
    /// It can't be made.
    pub fn member(&self, name: &Name, hosts: &[String], now: SystemTime) -> Result<Credentials, IssueError> {
        let validity = self.newest.validity(now, LIFETIME);
        let issued = self.newest.authority.issue_for_hosts(name, hosts, validity)?;
        Ok(Credentials { authority: self.bundle(), ..issued })
    }

    /// The identity of a service of the control plane, and when it expires.
    ///
    /// # Errors
    /// It can't be made.
    pub fn service(&self, service: Service, now: SystemTime) -> Result<(Credentials, SystemTime), IssueError> {
        let oldest = self.previous.as_ref().filter(|previous| previous.is_valid(now)).unwrap_or(&self.newest);
        let validity = oldest.validity(now, SERVICE_LIFETIME);
        let issued = oldest.authority.issue(&Name::Service(service), validity)?;
        Ok((Credentials { authority: self.bundle(), ..issued }, validity.until))
    }

    fn read(secret: &Secret) -> Option<Self> {
        let text = |key: &str| String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok();
        let term = |[certificate, key, expires]: [&str; 3]| {
            let authority = Authority::from_pem(&text(certificate)?, &text(key)?).ok()?;
            Some(Term { authority, expires: text(expires).and_then(|text| parse_time(&text)) })
        };
        Some(Self { newest: term([CERTIFICATE, KEY, EXPIRES])?, previous: term(PREVIOUS) })
    }

    fn data(&self) -> BTreeMap<String, ByteString> {
        let terms = [(Some(&self.newest), [CERTIFICATE, KEY, EXPIRES]), (self.previous.as_ref(), PREVIOUS)];
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

/// When the service's identity in `data` expires, where that is known.
fn service_expires(data: &BTreeMap<String, ByteString>) -> Option<SystemTime> {
    std::str::from_utf8(&data.get(SERVICE_EXPIRES)?.0).ok().and_then(parse_time)
}

/// Whether a service's identity in `data` is to be made anew.
fn is_stale(data: &BTreeMap<String, ByteString>, bundle: &str, now: SystemTime) -> bool {
    let text = |key: &str| data.get(key).and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
    let fresh = service_expires(data).is_some_and(|expires| now + SERVICE_LIFETIME / 2 < expires);
    !fresh || text(Credentials::AUTHORITY_FILE) != Some(bundle)
}

/// The authorities in their Secret, and the REST server's identity in another; both are kept in time while this
/// operator leads.
pub struct Keeper {
    secrets: Api<Secret>,
    authority_name: String,
    rest_server_name: String,
    held: RwLock<Arc<Authorities>>,
    metrics: Arc<Metrics>,
}

impl Keeper {
    /// The authorities in the secret `authority_name` of `namespace`, made where there are none yet; and sees to it
    /// that the secret `rest_server_name` holds an identity of the REST server. `metrics` show when both expire.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub async fn load_or_make(
        client: &Client,
        namespace: &str,
        authority_name: &str,
        rest_server_name: &str,
        metrics: Arc<Metrics>,
    ) -> Result<Self, AuthorityError> {
        let secrets = Api::namespaced(client.clone(), namespace);
        let (authority_name, rest_server_name) = (authority_name.to_owned(), rest_server_name.to_owned());
        let held = RwLock::new(Arc::new(Authorities::new(SystemTime::now())?));
        let keeper = Self { secrets, authority_name, rest_server_name, held, metrics };
        keeper.renew(SystemTime::now()).await?;
        Ok(keeper)
    }

    /// The authorities of now.
    pub fn authorities(&self) -> Arc<Authorities> {
        self.held.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The operator's own identity, made anew each time.
    ///
    /// # Errors
    /// It can't be made.
    pub fn operator(&self) -> Result<Identity, AuthorityError> {
        let (credentials, _) = self.authorities().service(Service::Operator, SystemTime::now())?;
        Ok(Identity::new(&credentials)?)
    }

    /// Renews what is due, for ever.
    pub async fn keep(self: Arc<Self>) {
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
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = authorities.clone();
        if let Some(expires) = authorities.newest.expires {
            self.metrics.set_certificate(AUTHORITY_METRIC, expires);
        }
        self.renew_rest_server(&authorities, now).await
    }

    /// The authorities in the secret, renewed if that is due.
    async fn load(&self, now: SystemTime) -> Result<Authorities, AuthorityError> {
        let name = &self.authority_name;
        let failed = |cause| AuthorityError::Secret { name: name.clone(), cause };
        loop {
            let there = self.secrets.get_opt(name).await.map_err(failed)?;
            let (found, renewed) = match &there {
                Some(secret) => {
                    let found = Authorities::read(secret).ok_or_else(|| AuthorityError::Damaged(name.clone()))?;
                    let renewed = found.renewed(now)?;
                    (Some(found), renewed)
                }
                None => (None, Some(Authorities::new(now)?)),
            };
            let Some(renewed) = renewed else { return found.ok_or_else(|| AuthorityError::Damaged(name.clone())) };
            if write_secret(&self.secrets, name, there.as_ref(), None, renewed.data()).await? {
                tracing::info!("a new certificate authority is in the secret {name}");
                return Ok(renewed);
            }
            // Another operator was first.
        }
    }

    /// Sees to it that the REST server's secret holds an identity that is valid for a while.
    async fn renew_rest_server(&self, authorities: &Authorities, now: SystemTime) -> Result<(), AuthorityError> {
        let name = &self.rest_server_name;
        let there = self.secrets.get_opt(name).await;
        let there = there.map_err(|cause| AuthorityError::Secret { name: name.clone(), cause })?;
        let data = there.as_ref().and_then(|secret| secret.data.clone()).unwrap_or_default();
        if !is_stale(&data, &authorities.bundle(), now) {
            if let Some(expires) = service_expires(&data) {
                self.metrics.set_certificate(REST_SERVER_METRIC, expires);
            }
            return Ok(());
        }
        let (credentials, expires) = authorities.service(Service::RestServer, now)?;
        let secret = credentials_secret(&credentials, ObjectMeta::default());
        let mut data = secret.data.unwrap_or_default();
        data.insert(SERVICE_EXPIRES.to_owned(), ByteString(time_text(expires).into_bytes()));
        // Where another operator was first, it has the same authority.
        if write_secret(&self.secrets, name, there.as_ref(), secret.type_, data).await? {
            self.metrics.set_certificate(REST_SERVER_METRIC, expires);
        }
        Ok(())
    }
}

/// Writes a secret from the version of it that was read. Returns `false` where another operator wrote it meanwhile.
///
/// # Errors
/// The API server refuses.
pub(crate) async fn write_secret(
    secrets: &Api<Secret>,
    name: &str,
    there: Option<&Secret>,
    type_: Option<String>,
    data: BTreeMap<String, ByteString>,
) -> Result<bool, AuthorityError> {
    let written = match there {
        None => {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let secret = Secret { metadata, type_, data: Some(data), ..Secret::default() };
            secrets.create(&PostParams::default(), &secret).await
        }
        Some(there) => {
            let secret = Secret { data: Some(data), ..there.clone() };
            secrets.replace(&there.name_any(), &PostParams::default(), &secret).await
        }
    };
    match written {
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

    fn launcher() -> Name {
        Name::Launcher(AttemptName::new("job", 1).unwrap())
    }

    /// Reads back what is in the secret, `days` after `start`, renewed where it has to be.
    fn after(authorities: &Authorities, start: SystemTime, days: u32) -> Option<Authorities> {
        Authorities::read(&secret(authorities)).unwrap().renewed(start + days * DAY).unwrap()
    }

    #[test]
    fn an_authority_is_followed_by_another_while_it_is_still_trusted() {
        let start = SystemTime::now();
        let first = Authorities::new(start).unwrap();
        assert!(after(&first, start, 184).is_none());
        let second = after(&first, start, 186).unwrap();
        let (old, new) = (first.newest.authority.certificate(), second.newest.authority.certificate());
        assert_ne!(old, new);
        assert_eq!(second.bundle(), format!("{new}{old}"));
        let early = first.member(&launcher(), &[], start).unwrap();
        assert_eq!(early.authority, old, "an attempt that began before knows the first authority only");
        assert!(after(&second, start, 364).is_none(), "the old one is trusted until it expires");
        let third = after(&second, start, 366).unwrap();
        assert_eq!(third.bundle(), new);
        // One that stood still for years.
        let late = after(&second, start, 4_000).unwrap();
        assert!(late.previous.is_none() && late.newest.is_valid(start + 4_000 * DAY));
    }

    #[test]
    fn an_authority_of_0_1_0_that_never_expires_is_replaced_at_once_and_trusted_once_more() {
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
    fn a_services_identity_is_short_and_renewed_in_time() {
        let start = SystemTime::now();
        let authorities = Authorities::new(start).unwrap();
        let (credentials, expires) = authorities.service(Service::RestServer, start).unwrap();
        assert_eq!(expires, start + SERVICE_LIFETIME);
        let mut data = credentials_secret(&credentials, ObjectMeta::default()).data.unwrap();
        assert!(is_stale(&data, &authorities.bundle(), start), "of 0.1.0: nothing says when it expires");
        data.insert(SERVICE_EXPIRES.to_owned(), ByteString(time_text(expires).into_bytes()));
        assert!(!is_stale(&data, &authorities.bundle(), start + 3 * DAY));
        assert!(is_stale(&data, &authorities.bundle(), start + 4 * DAY));
        let renewed = after(&authorities, start, 186).unwrap();
        assert!(is_stale(&data, &renewed.bundle(), start), "another authority is trusted since");
        // In the last days of an authority nothing outlives it.
        let (_, expires) = renewed.service(Service::Operator, start + 363 * DAY).unwrap();
        assert!(expires <= start + LIFETIME);
        let (_, expires) = renewed.service(Service::Operator, start + 366 * DAY).unwrap();
        assert!(expires > start + 370 * DAY, "it is the newest authority's by then");
    }
}
