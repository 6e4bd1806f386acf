//! Work of requests that takes long to compute: reading large forms, matching patterns, checking and planning jobs. It is done
//! by [`Workers`], apart from the async threads, and each account has a budget.

mod budget;

use std::sync::Arc;
use std::time::Duration;

use millrace_control::Workers;
use tokio::sync::oneshot;

use crate::refusal::{Refusal, Result};
use budget::{Budget, Place};

/// How long a request waits for its turn.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// How long work takes.
#[derive(Clone, Copy)]
enum Weight {
    Light,
    Heavy,
}

/// See the module text. Clones share threads and budgets.
#[derive(Clone)]
pub struct Compute {
    workers: Workers,
    budget: Arc<Budget>,
}

impl Compute {
    /// With these threads.
    pub fn new(workers: Workers) -> Self {
        Self { workers, budget: Arc::default() }
    }

    /// The threads.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Does `work` for an account when it is its turn, and gives its result.
    ///
    /// # Errors
    /// Those of `work`; [`TooManyRequests`](crate::refusal::Reason::TooManyRequests): too much is under way for the account or for all.
    pub async fn run<T: Send + 'static>(
        &self,
        account: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_as(Weight::Light, self.enter(account)?, work).await
    }

    /// Counts a request of `account` before its body is read, to be given to [`Compute::run_entered`]: no account can
    /// have more bodies in memory than it may have requests under way.
    ///
    /// # Errors
    /// [`TooManyRequests`](crate::refusal::Reason::TooManyRequests).
    pub fn enter(&self, account: &str) -> Result<Place> {
        self.budget.enter(account)
    }

    /// As [`Compute::run`], for a request that is counted already.
    ///
    /// # Errors
    /// As [`Compute::run`].
    pub async fn run_entered<T: Send + 'static>(
        &self,
        place: Place,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_as(Weight::Light, place, work).await
    }

    /// As [`Compute::run`], for work that takes seconds.
    ///
    /// # Errors
    /// As [`Compute::run`].
    pub async fn run_heavy<T: Send + 'static>(
        &self,
        account: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_as(Weight::Heavy, self.enter(account)?, work).await
    }

    async fn run_as<T: Send + 'static>(
        &self,
        weight: Weight,
        place: Place,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let owner = format!("account/{}", place.account());
        let (begun, begins) = oneshot::channel();
        let work = move || {
            // Counted until it is done, also if nobody waits for it any more.
            let _place = place;
            // Nobody waits where it took too long to begin.
            let _ = begun.send(());
            work()
        };
        let working = async {
            match weight {
                Weight::Light => self.workers.run(&owner, work).await,
                Weight::Heavy => self.workers.run_heavy(&owner, work).await,
            }
        };
        tokio::pin!(working);
        let waiting = tokio::time::timeout(MAX_WAIT, begins);
        let done = tokio::select! {
            biased;
            done = &mut working => done,
            begun = waiting => match begun {
                Ok(_) => working.await,
                Err(_) => return Err(budget::overloaded()),
            },
        };
        done.map_err(|error| Refusal::internal("check or plan a job", &error))?
    }

    /// Counts a plan of `account` that takes `bytes` of memory while it is made.
    ///
    /// # Errors
    /// [`TooManyRequests`](crate::refusal::Reason::TooManyRequests).
    pub fn charge(&self, account: &str, bytes: u64) -> Result<()> {
        self.budget.charge(account, bytes)
    }
}
