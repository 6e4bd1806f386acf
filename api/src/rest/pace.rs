//! How often somebody may ask: each token for itself, and of those who have none that is good each network for itself, so that
//! nobody's guessing or looping keeps others waiting, neither here nor at a cluster that is asked whose a token is.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::refusal::{Reason, Refusal, Result};

/// Requests a second, and how many at once after a pause. A stream is one.
const RATE: NonZeroU32 = NonZeroU32::new(100).unwrap();
const BURST: NonZeroU32 = NonZeroU32::new(400).unwrap();
/// Tokens or networks that are remembered before those that have been quiet are forgotten.
const REMEMBERED: usize = 10_000;

/// See the module text.
pub struct Pace {
    /// By id of the token or session.
    asked: DefaultKeyedRateLimiter<String>,
    strangers: DefaultKeyedRateLimiter<IpAddr>,
}

impl Default for Pace {
    fn default() -> Self {
        let quota = Quota::per_second(RATE).allow_burst(BURST);
        Self { asked: RateLimiter::keyed(quota), strangers: RateLimiter::keyed(quota) }
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
    fn who_guesses_keeps_only_neighbours_waiting() {
        let (pace, at) = (Pace::default(), |text: &str| text.parse::<IpAddr>().unwrap());
        let refused = (0..BURST.get() + 200).filter(|_| pace.count_stranger(at("2001:db8::1")).is_err()).count();
        assert!(refused > 100, "{refused}");
        assert!(pace.count_stranger(at("2001:db8::ffff:2")).is_err(), "another address of the same network");
        for other in ["2001:db8:0:1::1", "192.0.2.1"] {
            assert!(pace.count_stranger(at(other)).is_ok(), "{other}");
        }
        assert!(pace.count("known").is_ok(), "a good token from there");
    }
}
