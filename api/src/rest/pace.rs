//! How often somebody may ask: each token for itself, and all whose token is no good together, so that nobody's guessing or
//! looping keeps others waiting.

use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::refusal::{Reason, Refusal, Result};

/// Requests a second, and how many at once after a pause. A stream is one.
const RATE: NonZeroU32 = NonZeroU32::new(100).unwrap();
const BURST: NonZeroU32 = NonZeroU32::new(400).unwrap();
/// Who has no token that is good.
const NOBODY: &str = "";

/// See the module text.
pub struct Pace {
    /// By id of the token: there are never more than tokens.
    asked: DefaultKeyedRateLimiter<String>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { asked: RateLimiter::keyed(Quota::per_second(RATE).allow_burst(BURST)) }
    }
}

impl Pace {
    /// Counts a request of the token `id`, or of nobody's.
    ///
    /// # Errors
    /// It is one too many.
    pub fn count(&self, id: Option<&str>) -> Result<()> {
        self.asked.check_key(&id.unwrap_or(NOBODY).to_owned()).map_err(|_| {
            let detail =
                format!("more than {RATE} requests a second, again and again: ask less often, or follow a live stream");
            Refusal::new(Reason::TooManyRequests, detail)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_too_often_is_told_and_nobody_else() {
        let pace = Pace::default();
        let refused = (0..BURST.get() + 200).filter(|_| pace.count(Some("busy")).is_err()).count();
        assert!(refused > 100, "{refused}");
        assert!(pace.count(Some("calm")).is_ok() && pace.count(None).is_ok());
    }
}
