//! Namespaces as they are now: one that was deleted and made anew under the same name, perhaps for others, has another UID, and
//! the history of the former is none of its users' business.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt};
use millrace_store::Incarnation;

use super::answer::refused;
use crate::refusal::Result;

/// How long an answer is good. Making a namespace anew takes longer than this: what is in the former goes first.
const ANSWER_TTL: Duration = Duration::from_secs(2);
/// Most answers that are remembered; then all are forgotten.
const MAX_REMEMBERED: usize = 10_000;

/// When each namespace was looked up, and what was found.
type Answers = HashMap<String, (Instant, Option<Incarnation>)>;

/// See the module text. Clones share what is remembered.
#[derive(Clone)]
pub struct Namespaces {
    client: Client,
    known: Arc<Mutex<Answers>>,
}

impl Namespaces {
    /// Those of the cluster of `client`, which must let this program get them.
    pub fn new(client: Client) -> Self {
        Self { client, known: Arc::default() }
    }

    /// The cluster.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// The namespace of this name.
    ///
    /// # Errors
    /// The API server's.
    pub async fn now(&self, name: &str) -> Result<Option<Incarnation>> {
        // A map of answers: whole after any panic.
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some((_, incarnation)) = known.filter(|(at, _)| at.elapsed() < ANSWER_TTL) {
            return Ok(incarnation);
        }
        let asked = Instant::now();
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let found = namespaces.get_metadata_opt(name).await.map_err(refused("look at a namespace"))?;
        let incarnation = found.and_then(|namespace| {
            Some(Incarnation {
                namespace: name.to_owned(),
                uid: namespace.uid()?,
                since_ms: namespace.creation_timestamp()?.0.as_millisecond(),
            })
        });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(name.to_owned(), (asked, incarnation.clone()));
        Ok(incarnation)
    }
}
