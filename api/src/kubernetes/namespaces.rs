//! Looks up namespaces. A namespace that is deleted and created again under the same name, perhaps for other users, has
//! another UID; its users must not see the history of its predecessor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt};
use millrace_store::NamespaceVersion;

use super::api_errors::api_error;
use crate::error::Result;

/// Validity of a cached result. Recreating a namespace takes longer, because its content has to be deleted first.
const NAMESPACE_TTL: Duration = Duration::from_secs(2);
/// Limit on the cached results; a full cache is cleared.
const MAX_CACHED_NAMESPACES: usize = 10_000;

/// Time and result of the last look-up of each namespace.
type NamespaceCache = HashMap<String, (Instant, Option<NamespaceVersion>)>;

/// Looks up namespaces, with a cache. Clones share the cache.
#[derive(Clone)]
pub struct Namespaces {
    client: Client,
    known: Arc<Mutex<NamespaceCache>>,
}

impl Namespaces {
    /// Looks up namespaces of the cluster of `client`, whose account must be allowed to get them.
    pub fn new(client: Client) -> Self {
        Self { client, known: Arc::default() }
    }

    /// Returns the client of the cluster.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the current namespace of this name; `None` if there is none.
    ///
    /// # Errors
    /// The API server fails.
    pub async fn current(&self, name: &str) -> Result<Option<NamespaceVersion>> {
        // A map of results can't be left inconsistent by a panic.
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some((_, incarnation)) = known.filter(|(at, _)| at.elapsed() < NAMESPACE_TTL) {
            return Ok(incarnation);
        }
        let requested_at = Instant::now();
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = namespaces.get_metadata_opt(name).await.map_err(api_error("get a namespace"))?;
        let incarnation = namespace.and_then(|namespace| {
            Some(NamespaceVersion {
                namespace: name.to_owned(),
                uid: namespace.uid()?,
                since_ms: namespace.creation_timestamp()?.0.as_millisecond(),
            })
        });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_CACHED_NAMESPACES {
            known.clear();
        }
        known.insert(name.to_owned(), (requested_at, incarnation.clone()));
        Ok(incarnation)
    }
}
