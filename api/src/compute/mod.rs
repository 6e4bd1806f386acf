//! Runs the expensive computations of requests: parsing large forms, matching patterns, checking and planning jobs.
//!
//! * They run on [`WorkerPool`], not on the async threads.
//! * Each account has a budget, see `ComputeBudget`.

mod budget;

use std::sync::Arc;
use std::time::Duration;

use millrace_control::{OverBudget, WorkerPool};
use tokio::sync::oneshot;

use crate::error::{ApiError, Result};
use budget::{ComputeBudget, PendingRequest};
#[cfg(test)]
pub use budget::{MAX_PENDING, MAX_PLAN_BURST_MEGABYTES, MAX_TOTAL_PENDING, PLAN_MEGABYTES_PER_SECOND};

/// Time until a computation must have begun.
pub const QUEUE_TIMEOUT: Duration = Duration::from_secs(20);

/// Cost class of a computation.
#[derive(Clone, Copy)]
enum WorkClass {
    Light,
    Heavy,
}

/// The thread pool and the budgets. Clones share both.
#[derive(Clone)]
pub struct ComputePool {
    workers: WorkerPool,
    budget: Arc<ComputeBudget>,
}

impl ComputePool {
    /// Creates it with these threads.
    pub fn new(workers: WorkerPool) -> Self {
        Self { workers, budget: Arc::default() }
    }

    pub fn workers(&self) -> &WorkerPool {
        &self.workers
    }

    /// Runs `work` for an account when it is its turn, and returns its result.
    ///
    /// # Errors
    /// Those of `work`; [`TooManyRequests`](crate::error::ErrorReason::TooManyRequests) if the account or all
    /// accounts have too many requests, or if the work does not begin in time.
    pub async fn run<T: Send + 'static>(
        &self,
        account: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_as(WorkClass::Light, self.admit(account)?, work).await
    }

    /// Counts a request of `account` before its body is received; pass the result to [`ComputePool::run_admitted`]. It
    /// bounds the bodies of an account in memory.
    ///
    /// # Errors
    /// [`TooManyRequests`](crate::error::ErrorReason::TooManyRequests) if the account or all accounts have too many
    /// requests.
    pub fn admit(&self, account: &str) -> Result<PendingRequest> {
        self.budget.enter(account)
    }

    /// Like [`ComputePool::run`], for a request that is already counted.
    ///
    /// # Errors
    /// Those of [`ComputePool::run`].
    pub async fn run_admitted<T: Send + 'static>(
        &self,
        slot: PendingRequest,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_as(WorkClass::Light, slot, work).await
    }

    /// Like [`ComputePool::run`], for work that takes seconds.
    ///
    /// # Errors
    /// Those of [`ComputePool::run`].
    pub async fn run_heavy<T: Send + 'static>(
        &self,
        account: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_as(WorkClass::Heavy, self.admit(account)?, work).await
    }

    async fn run_as<T: Send + 'static>(
        &self,
        class: WorkClass,
        slot: PendingRequest,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let owner = format!("account/{}", slot.account());
        let (begun, begins) = oneshot::channel();
        let work = move || {
            // The request counts until the work is done, even if the caller has gone.
            let _slot = slot;
            // There is no receiver if the work began too late.
            let _ = begun.send(());
            work()
        };
        let working = async {
            match class {
                WorkClass::Light => self.workers.run(&owner, work).await,
                WorkClass::Heavy => self.workers.run_heavy(&owner, work).await,
            }
        };
        tokio::pin!(working);
        let waiting = tokio::time::timeout(QUEUE_TIMEOUT, begins);
        let done = tokio::select! {
            biased;
            done = &mut working => done,
            begun = waiting => match begun {
                Ok(_) => working.await,
                Err(_) => return Err(budget::overloaded_error()),
            },
        };
        done.map_err(|error| ApiError::internal("check or plan a job", error))?
    }

    /// Charges `account` for a plan that takes `bytes` of memory while it is computed.
    ///
    /// # Errors
    /// [`OverBudget::Account`]: the account's budget is used up.
    pub fn charge(&self, account: &str, bytes: u64) -> Result<(), OverBudget> {
        self.budget.charge(account, bytes)
    }
}
