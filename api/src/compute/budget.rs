//! Limits the computations of an account: planning takes seconds of CPU time and hundreds of megabytes, and every
//! account that may list jobs may request it.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use millrace_control::OverBudget;

use crate::error::{ApiError, ErrorReason, Result};

/// Requests of one account that are being received, queued or computed.
pub const MAX_PENDING: usize = 8;
/// Requests of all accounts that are being received, queued or computed. Each holds a job of at most one megabyte and
/// its uploads.
pub const MAX_TOTAL_PENDING: usize = 64;
/// Megabytes of plans per second of one account. A model of ten thousand layers counts 230, a usual one 2; one megabyte
/// is about ten milliseconds of CPU time.
pub const PLAN_MEGABYTES_PER_SECOND: NonZeroU32 = NonZeroU32::new(32).unwrap();
/// Megabytes of plans of one account in a burst after a pause.
pub const MAX_PLAN_BURST_MEGABYTES: NonZeroU32 = NonZeroU32::new(1024).unwrap();
/// Number of accounts that are tracked before entries without recent plans are removed.
const MAX_ACCOUNTS: usize = 10_000;

/// Counts requests and plans by account.
pub struct ComputeBudget {
    pending: Mutex<PendingCounts>,
    planned: DefaultKeyedRateLimiter<String>,
}

#[derive(Default)]
struct PendingCounts {
    total: usize,
    of: HashMap<String, usize>,
}

impl Default for ComputeBudget {
    fn default() -> Self {
        let quota = Quota::per_second(PLAN_MEGABYTES_PER_SECOND).allow_burst(MAX_PLAN_BURST_MEGABYTES);
        Self { pending: Mutex::default(), planned: RateLimiter::keyed(quota) }
    }
}

impl ComputeBudget {
    /// Counts a request of `account` until the result is dropped.
    ///
    /// # Errors
    /// [`ErrorReason::TooManyRequests`]: too many requests of the account or of all accounts.
    pub fn enter(self: &Arc<Self>, account: &str) -> Result<PendingRequest> {
        // Counters can't be left inconsistent by a panic.
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.total >= MAX_TOTAL_PENDING {
            return Err(overloaded_error());
        }
        let own = pending.of.entry(account.to_owned()).or_default();
        if *own >= MAX_PENDING {
            let detail = format!(
                "{MAX_PENDING} of your requests are already being checked or planned: wait until one has finished"
            );
            return Err(ApiError::new(ErrorReason::TooManyRequests, detail));
        }
        *own += 1;
        pending.total += 1;
        Ok(PendingRequest { budget: self.clone(), account: account.to_owned() })
    }

    /// Charges a plan that takes `bytes` of memory while it is computed. At least one megabyte is charged.
    ///
    /// # Errors
    /// [`OverBudget::Account`]: the account's budget is used up.
    pub fn charge(&self, account: &str, bytes: u64) -> Result<(), OverBudget> {
        if self.planned.len() > MAX_ACCOUNTS {
            self.planned.retain_recent();
        }
        let megabytes = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        let megabytes = NonZeroU32::new(megabytes).unwrap_or(NonZeroU32::MIN).min(MAX_PLAN_BURST_MEGABYTES);
        match self.planned.check_key_n(&account.to_owned(), megabytes) {
            Ok(Ok(())) => Ok(()),
            _ => Err(OverBudget::Account),
        }
    }
}

/// Returns the error for too many requests of all accounts together.
pub fn overloaded_error() -> ApiError {
    let detail = "the server is busy checking and planning other jobs: try again in a few seconds";
    ApiError::new(ErrorReason::TooManyRequests, detail)
}

/// A counted request; dropping it ends the count.
pub struct PendingRequest {
    budget: Arc<ComputeBudget>,
    account: String,
}

impl PendingRequest {
    pub fn account(&self) -> &str {
        &self.account
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let mut pending = self.budget.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.total -= 1;
        if let Some(own) = pending.of.get_mut(&self.account) {
            *own -= 1;
            if *own == 0 {
                pending.of.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_account_over_its_budget_is_limited_alone() {
        let budget = Arc::new(ComputeBudget::default());
        let places: Vec<PendingRequest> = (0..MAX_PENDING).map(|_| budget.enter("busy").unwrap()).collect();
        assert_eq!(budget.enter("busy").err().map(|error| error.reason), Some(ErrorReason::TooManyRequests));
        assert!(budget.enter("calm").is_ok());
        drop(places);
        assert!(budget.enter("busy").is_ok());
        assert!(budget.pending.lock().unwrap().of.is_empty(), "nothing is remembered of who has nothing under way");

        let charged = (0..20).filter(|_| budget.charge("busy", 230 << 20).is_ok()).count();
        assert_eq!(charged, 4);
        assert!(budget.charge("calm", 230 << 20).is_ok());
    }

    #[test]
    fn all_accounts_together_have_a_limit() {
        let budget = Arc::new(ComputeBudget::default());
        let places: Vec<PendingRequest> =
            (0..MAX_TOTAL_PENDING).map(|at| budget.enter(&at.to_string()).unwrap()).collect();
        assert!(budget.enter("another").is_err());
        drop(places);
        assert!(budget.enter("another").is_ok());
    }
}
