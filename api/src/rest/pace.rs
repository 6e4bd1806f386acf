//! How often somebody may ask: each token for itself, and of those who have none that is good each network for itself, so that
//! nobody's guessing or looping keeps others waiting, neither here nor at a cluster that is asked whose a token is.
//!
//! One bad token that is sent again and again, as by a program that was forgotten, is counted by its digest: against its network
//! it counts once, so that behind a proxy it does not use up what others need for their first request.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::refusal::{Reason, Refusal, Result};

/// Requests a second, and how many at once after a pause. A stream is one.
const RATE: NonZeroU32 = NonZeroU32::new(100).unwrap();
const BURST: NonZeroU32 = NonZeroU32::new(400).unwrap();
/// Tokens or networks that are remembered before those that have been quiet are forgotten.
const REMEMBERED: usize = 10_000;

/// Requests a second with one bad token, and how many at once: a client whose token has expired must hear that, on every
/// route it tries, before it hears that it asks too often.
const BAD_TOKEN_RATE: NonZeroU32 = NonZeroU32::new(5).unwrap();
const BAD_TOKEN_BURST: NonZeroU32 = NonZeroU32::new(200).unwrap();

/// See the module text.
pub struct Pace {
    /// By id of the token or session.
    asked: DefaultKeyedRateLimiter<String>,
    strangers: DefaultKeyedRateLimiter<IpAddr>,
    /// By the digest of a token that is nobody's.
    bad_tokens: DefaultKeyedRateLimiter<blake3::Hash>,
    /// Digests that were counted against their network.
    counted: Mutex<HashSet<blake3::Hash>>,
}

impl Default for Pace {
    fn default() -> Self {
        let quota = Quota::per_second(RATE).allow_burst(BURST);
        let bad_tokens = Quota::per_second(BAD_TOKEN_RATE).allow_burst(BAD_TOKEN_BURST);
        Self {
            asked: RateLimiter::keyed(quota),
            strangers: RateLimiter::keyed(quota),
            bad_tokens: RateLimiter::keyed(bad_tokens),
            counted: Mutex::default(),
        }
    }
}

impl Pace {
    /// Counts a request of the token `id`.
    ///
    /// # Errors
    /// It is one too many.
    pub fn count(&self, id: &str) -> Result<()> {
        if self.asked.len() > REMEMBERED {
            self.asked.retain_recent();
        }
        self.asked.check_key(&id.to_owned()).map_err(|_| {
            let detail =
                format!("more than {RATE} requests a second, again and again: ask less often, or follow a live stream");
            Refusal::new(Reason::TooManyRequests, detail)
        })
    }

    /// Counts a request from `address` with a token that is nobody's, or of which is not known yet whose it is: each token by
    /// itself, and against the network once.
    ///
    /// # Errors
    /// It is one too many.
    pub fn count_token(&self, token: &str, address: IpAddr) -> Result<()> {
        let digest = blake3::hash(token.as_bytes());
        if self.bad_tokens.len() > REMEMBERED {
            self.bad_tokens.retain_recent();
        }
        if self.bad_tokens.check_key(&digest).is_err() {
            let detail =
                "this token is not known here and was sent many times: make a new one, or try again in a moment";
            return Err(Refusal::new(Reason::TooManyRequests, detail));
        }
        // A set of digests: whole after any panic.
        let is_counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner).contains(&digest);
        if is_counted {
            return Ok(());
        }
        self.count_stranger(address)?;
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.len() >= REMEMBERED {
            counted.clear();
        }
        counted.insert(digest);
        Ok(())
    }

    /// Counts a request from `address` of which is not known whose it is.
    ///
    /// # Errors
    /// It is one too many.
    pub fn count_stranger(&self, address: IpAddr) -> Result<()> {
        if self.strangers.len() > REMEMBERED {
            self.strangers.retain_recent();
        }
        self.strangers.check_key(&network(address)).map_err(|_| {
            let detail = "too many tokens that are not known here have come from where you are: try again in a moment";
            Refusal::new(Reason::TooManyRequests, detail)
        })
    }
}

/// Whoever has one address of version 6 has all of its last half.
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
    fn who_asks_too_often_is_told_and_nobody_else() {
        let pace = Pace::default();
        let refused = (0..BURST.get() + 200).filter(|_| pace.count("busy").is_err()).count();
        assert!(refused > 100, "{refused}");
        assert!(pace.count("calm").is_ok());
    }

    #[test]
    fn a_bad_token_keeps_nobody_waiting_behind_the_same_proxy() {
        let (pace, proxy) = (Pace::default(), "192.0.2.1".parse().unwrap());
        let refused = (0..10_000).filter(|_| pace.count_token("expired", proxy).is_err()).count();
        assert!(refused > 9_000, "{refused}");
        assert!(pace.count_token("another", proxy).is_ok(), "the first request of a new token");
        let guessed = (0..1000).filter(|guess| pace.count_token(&format!("guess-{guess}"), proxy).is_err()).count();
        assert!(guessed > 500, "{guessed}: guesses count against their network");
    }

    #[test]
    fn who_guesses_keeps_only_neighbours_waiting() {
        let (pace, at) = (Pace::default(), |text: &str| text.parse::<IpAddr>().unwrap());
        let refused = (0..BURST.get() + 200).filter(|_| pace.count_stranger(at("2001:db8::1")).is_err()).count();
        assert!(refused > 100, "{refused}");
        // One more is let in each hundredth of a second: some of many are refused however slow the machine is.
        let neighbour = at("2001:db8::ffff:2");
        assert!((0..BURST.get()).any(|_| pace.count_stranger(neighbour).is_err()), "an address of the same network");
        for other in ["2001:db8:0:1::1", "192.0.2.1"] {
            assert!(pace.count_stranger(at(other)).is_ok(), "{other}");
        }
        assert!(pace.count("known").is_ok(), "a good token from there");
    }
}
