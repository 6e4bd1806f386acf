//! Authenticates and authorizes accounts of the cluster by TokenReview and SubjectAccessReview, so that permissions
//! over REST are the same as with kubectl.
//!
//! Results are cached for a few seconds, because one list of a hundred jobs needs a dozen reviews. A revoked permission
//! takes effect after that time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{self as authorization, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

use super::api_errors::api_error;
use crate::authorizer::{Authorizer, ResourceAttributes};
use crate::error::Result;

/// Validity of a cached review.
const REVIEW_TTL: Duration = Duration::from_secs(10);
/// How long a token that was valid counts as known: its next review is not limited together with those of guessed
/// tokens.
const KNOWN_TOKEN_TTL: Duration = Duration::from_secs(3600);
/// Limit on the reviews in a cache; a full cache is cleared.
const MAX_CACHED_REVIEWS: usize = 10_000;
/// Limit on the length of a token that is reviewed.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// The reviews of a cluster, with their caches.
pub struct KubernetesAuthorizer {
    client: Client,
    /// Accounts by the digest of the token.
    users: TtlCache<blake3::Hash, Option<UserInfo>>,
    known: TtlCache<blake3::Hash, ()>,
    rights: TtlCache<(blake3::Hash, ResourceAttributes), bool>,
}

impl KubernetesAuthorizer {
    /// Uses the API server of `client`, whose account must be allowed to create reviews.
    pub fn new(client: Client) -> Self {
        let (users, known, rights) =
            (TtlCache::new(REVIEW_TTL), TtlCache::new(KNOWN_TOKEN_TTL), TtlCache::new(REVIEW_TTL));
        Self { client, users, known, rights }
    }
}

#[async_trait]
impl Authorizer for KubernetesAuthorizer {
    async fn authenticate(&self, token: &str, may_ask: &(dyn Fn() -> Result<()> + Sync)) -> Result<Option<UserInfo>> {
        if token.len() > MAX_TOKEN_BYTES {
            return Ok(None);
        }
        let digest = blake3::hash(token.as_bytes());
        if let Some(cached) = self.users.get(&digest) {
            return Ok(cached);
        }
        if self.known.get(&digest).is_none() {
            may_ask()?;
        }
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let response = reviews.create(&PostParams::default(), &review).await.map_err(api_error("review a token"))?;
        let status = response.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        match user {
            Some(_) => self.known.insert(digest, ()),
            None => self.known.remove(&digest),
        }
        self.users.insert(digest, user.clone());
        Ok(user)
    }

    async fn authorize(&self, user: &UserInfo, attributes: &ResourceAttributes) -> Result<bool> {
        // Two accounts of the same name can differ in groups and other fields, so all fields are part of the key.
        let account = blake3::hash(serde_json::to_string(user).unwrap_or_default().as_bytes());
        let permission = (account, attributes.clone());
        if let Some(cached) = self.rights.get(&permission) {
            return Ok(cached);
        }
        let review = SubjectAccessReview { spec: spec_of(user, attributes), ..SubjectAccessReview::default() };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let response =
            reviews.create(&PostParams::default(), &review).await.map_err(api_error("check a permission"))?;
        let allowed = response.status.is_some_and(|status| status.allowed);
        self.rights.insert(permission, allowed);
        Ok(allowed)
    }
}

fn spec_of(user: &UserInfo, attributes: &ResourceAttributes) -> SubjectAccessReviewSpec {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    SubjectAccessReviewSpec {
        user: user.username.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: user.extra.clone(),
        resource_attributes: Some(authorization::ResourceAttributes {
            verb: some(attributes.verb),
            group: some(attributes.group),
            resource: some(attributes.resource),
            subresource: some(attributes.subresource),
            namespace: some(&attributes.namespace),
            name: some(&attributes.name),
            ..authorization::ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    }
}

/// A cache whose entries expire.
struct TtlCache<K, V> {
    all: Mutex<HashMap<K, (Instant, V)>>,
    ttl: Duration,
}

impl<K: Eq + Hash, V: Clone> TtlCache<K, V> {
    fn new(life: Duration) -> Self {
        Self { all: Mutex::default(), ttl: life }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<K, (Instant, V)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: &K) -> Option<V> {
        self.all().get(key).filter(|(at, _)| at.elapsed() < self.ttl).map(|(_, value)| value.clone())
    }

    fn remove(&self, key: &K) {
        self.all().remove(key);
    }

    fn insert(&self, key: K, value: V) {
        let mut all = self.all();
        if all.len() >= MAX_CACHED_REVIEWS {
            all.clear();
        }
        all.insert(key, (Instant::now(), value));
    }
}
