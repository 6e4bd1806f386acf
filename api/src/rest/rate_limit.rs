//! Limits the rate of requests: by token for authenticated clients, by network for all others. A client that guesses
//! tokens or sends requests in a loop slows down neither other clients nor the API server of a cluster, which validates
//! tokens.
//!
//! A bad token that is sent repeatedly, as by a forgotten program, has a limit by its digest and counts once against
//! its network. Behind a proxy it thus does not use up what others need for their first request.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::error::{ApiError, ErrorReason, Result};

/// Requests per second, and the burst after a pause. A stream counts as one.
pub const REQUESTS_PER_SECOND: NonZeroU32 = NonZeroU32::new(100).unwrap();
pub const MAX_REQUEST_BURST: NonZeroU32 = NonZeroU32::new(400).unwrap();
/// Number of tokens or networks that are tracked before entries without recent requests are removed.
const MAX_TRACKED_KEYS: usize = 10_000;

/// Requests per second with one bad token, and the burst: a client whose token has expired should receive 401 on every
/// route that it tries before it receives 429.
pub const BAD_TOKEN_REQUESTS_PER_SECOND: NonZeroU32 = NonZeroU32::new(5).unwrap();
pub const MAX_BAD_TOKEN_BURST: NonZeroU32 = NonZeroU32::new(200).unwrap();

/// Rate limits of a server.
pub struct RequestLimiter {
    /// By id of the token or session.
    authenticated: DefaultKeyedRateLimiter<String>,
    unauthenticated: DefaultKeyedRateLimiter<IpAddr>,
    /// By the digest of a token that is not valid.
    bad_tokens: DefaultKeyedRateLimiter<blake3::Hash>,
    /// Digests that were counted against their network.
    counted: Mutex<HashSet<blake3::Hash>>,
}

impl Default for RequestLimiter {
    fn default() -> Self {
        let quota = Quota::per_second(REQUESTS_PER_SECOND).allow_burst(MAX_REQUEST_BURST);
        let bad_tokens = Quota::per_second(BAD_TOKEN_REQUESTS_PER_SECOND).allow_burst(MAX_BAD_TOKEN_BURST);
        Self {
            authenticated: RateLimiter::keyed(quota),
            unauthenticated: RateLimiter::keyed(quota),
            bad_tokens: RateLimiter::keyed(bad_tokens),
            counted: Mutex::default(),
        }
    }
}

impl RequestLimiter {
    /// Counts a request of the token or session `id`.
    ///
    /// # Errors
    /// The limit of the token is exceeded.
    pub fn check(&self, id: &str) -> Result<()> {
        if self.authenticated.len() > MAX_TRACKED_KEYS {
            self.authenticated.retain_recent();
        }
        self.authenticated.check_key(&id.to_owned()).map_err(|_| {
            let detail = format!(
                "rate limit of {REQUESTS_PER_SECOND} requests per second exceeded: retry less often, or follow a \
                 live stream"
            );
            ApiError::new(ErrorReason::TooManyRequests, detail)
        })
    }

    /// Counts a request from `address` with a token that is not valid or not validated yet: against the limit of the
    /// token, and once against that of the network.
    ///
    /// # Errors
    /// One of the limits is exceeded.
    pub fn check_bad_token(&self, token: &str, address: IpAddr) -> Result<()> {
        let digest = blake3::hash(token.as_bytes());
        if self.bad_tokens.len() > MAX_TRACKED_KEYS {
            self.bad_tokens.retain_recent();
        }
        if self.bad_tokens.check_key(&digest).is_err() {
            let detail = "this unknown token was sent too often: create a new one, or try again in a moment";
            return Err(ApiError::new(ErrorReason::TooManyRequests, detail));
        }
        // A set of digests can't be left inconsistent by a panic.
        let is_counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner).contains(&digest);
        if is_counted {
            return Ok(());
        }
        self.check_unauthenticated(address)?;
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.len() >= MAX_TRACKED_KEYS {
            counted.clear();
        }
        counted.insert(digest);
        Ok(())
    }

    /// Counts a request from `address` without a valid token.
    ///
    /// # Errors
    /// The limit of the network is exceeded.
    pub fn check_unauthenticated(&self, address: IpAddr) -> Result<()> {
        if self.unauthenticated.len() > MAX_TRACKED_KEYS {
            self.unauthenticated.retain_recent();
        }
        self.unauthenticated.check_key(&network(address)).map_err(|_| {
            let detail = "too many unknown tokens from your address: try again in a moment";
            ApiError::new(ErrorReason::TooManyRequests, detail)
        })
    }
}

/// Returns the network of an address. A client with one IPv6 address usually has its whole /64.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_applies_per_token() {
        let pace = RequestLimiter::default();
        let rejected = (0..MAX_REQUEST_BURST.get() + 200).filter(|_| pace.check("busy").is_err()).count();
        assert!(rejected > 100, "{rejected}");
        assert!(pace.check("calm").is_ok());
    }

    #[test]
    fn bad_token_does_not_limit_others_behind_a_proxy() {
        let (pace, proxy) = (RequestLimiter::default(), "192.0.2.1".parse().unwrap());
        let rejected = (0..10_000).filter(|_| pace.check_bad_token("expired", proxy).is_err()).count();
        assert!(rejected > 9_000, "{rejected}");
        assert!(pace.check_bad_token("another", proxy).is_ok(), "the first request of a new token");
        let guessed = (0..1000).filter(|guess| pace.check_bad_token(&format!("guess-{guess}"), proxy).is_err()).count();
        assert!(guessed > 500, "{guessed}: guesses count against their network");
    }

    #[test]
    fn token_guessing_is_limited_per_network() {
        let (pace, at) = (RequestLimiter::default(), |text: &str| text.parse::<IpAddr>().unwrap());
        let rejected = (0..MAX_REQUEST_BURST.get() + 200)
            .filter(|_| pace.check_unauthenticated(at("2001:db8::1")).is_err())
            .count();
        assert!(rejected > 100, "{rejected}");
        // One more request is admitted every hundredth of a second: some of many are rejected however slow the machine
        // is.
        let neighbour = at("2001:db8::ffff:2");
        assert!(
            (0..MAX_REQUEST_BURST.get()).any(|_| pace.check_unauthenticated(neighbour).is_err()),
            "an address of the same network"
        );
        for other in ["2001:db8:0:1::1", "192.0.2.1"] {
            assert!(pace.check_unauthenticated(at(other)).is_ok(), "{other}");
        }
        assert!(pace.check("known").is_ok(), "a good token from there");
    }
}
