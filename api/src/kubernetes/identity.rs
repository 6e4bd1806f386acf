//! This server's identity, which the operator writes into a Secret and renews.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use millrace_cluster::credentials::{MissingKey, credentials_of};
use millrace_protocol::error_chain;
use millrace_protocol::security::{Identity, IdentityError};
use tokio::sync::{Mutex, watch};
use tokio::time::sleep;

/// Validity of the cached identity.
const IDENTITY_TTL: Duration = Duration::from_secs(30);
/// Delay between tries to read the Secret, which the operator may not have written yet.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Why the Secret with this server's identity can't be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentitySecretError {
    /// It can't be read.
    #[error("the secret {name} of {namespace}")]
    Get {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Error of the API server.
        source: kube::Error,
    },
    /// It lacks a key.
    #[error("the secret {name} has {missing}")]
    Incomplete {
        /// Its name.
        name: String,
        /// The rest of the sentence.
        missing: MissingKey,
    },
    /// Its certificate or key can't be used.
    #[error("the secret {name}")]
    Invalid {
        /// Its name.
        name: String,
        /// The part that can't be used.
        source: IdentityError,
    },
}

/// The Secret with this server's identity.
pub struct IdentitySecret {
    client: Client,
    namespace: String,
    name: String,
    cache: Mutex<Option<(Instant, Identity)>>,
}

impl IdentitySecret {
    /// Names the Secret `name` of `namespace`.
    pub fn new(client: Client, namespace: String, name: String) -> Self {
        Self { client, namespace, name, cache: Mutex::default() }
    }

    /// Returns the identity, at most [`IDENTITY_TTL`] old.
    ///
    /// # Errors
    /// The Secret can't be read, or contains no identity.
    pub async fn get(&self) -> Result<Identity, IdentitySecretError> {
        let mut known = self.cache.lock().await;
        if let Some((_, identity)) = known.as_ref().filter(|(at, _)| at.elapsed() < IDENTITY_TTL) {
            return Ok(identity.clone());
        }
        let Self { client, namespace, name, .. } = self;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let secret = secrets.get(name).await.map_err(|source| IdentitySecretError::Get {
            namespace: namespace.clone(),
            name: name.clone(),
            source,
        })?;
        let credentials = credentials_of(&secret)
            .map_err(|missing| IdentitySecretError::Incomplete { name: name.clone(), missing })?;
        let identity = Identity::new(&credentials)
            .map_err(|source| IdentitySecretError::Invalid { name: name.clone(), source })?;
        *known = Some((Instant::now(), identity.clone()));
        Ok(identity)
    }

    /// Waits for the first identity.
    pub async fn wait(&self) -> Identity {
        let mut is_logged = false;
        loop {
            match self.get().await {
                Ok(identity) => return identity,
                Err(error) if !is_logged => {
                    is_logged = true;
                    tracing::warn!("uploads are not served to jobs until this is fixed: {}", error_chain(&error));
                }
                Err(_) => {}
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Sends every renewed identity, in time before the old one expires. Never returns while `identity` has receivers.
    pub async fn send_renewals(&self, identity: watch::Sender<Identity>) {
        while !identity.is_closed() {
            sleep(IDENTITY_TTL).await;
            match self.get().await {
                Ok(newest) => drop(identity.send_replace(newest)),
                // The identity is renewed days before it expires, and this is tried again soon.
                Err(error) => tracing::debug!("can't read this server's identity: {}", error_chain(&error)),
            }
        }
    }
}
