//! Elects one leader among the operators, by a Lease.
//!
//! * The number of changes of leadership is the *fencing epoch*, which every write of a status contains. The API server
//!   rejects an epoch lower than the stored one, so that a leader that was suspended while another took over can't
//!   write a status.
//! * All other writes but events, especially deletions, are bounded by the [`LeaderTerm`], which ends before the lease
//!   does.
//! * An operator that can't renew in time ends its leadership and becomes a candidate again, for a leadership with an
//!   epoch of its own.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use millrace_cluster::client::api_message;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::term::LeaderTerm;

/// Time without a renewal after which a candidate takes the lease. The candidate measures it on its own clock, because
/// the times in the lease come from other machines, whose clocks differ.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time that a leader may write after it sent its last renewal. The difference to [`LEASE_DURATION`] is for requests
/// that the API server still processes.
const TERM_DURATION: Duration = Duration::from_secs(10);
/// Interval of renewals, and of attempts to take the lease.
const RENEW_INTERVAL: Duration = Duration::from_secs(2);

/// A candidate in the election.
#[derive(Clone)]
pub struct Candidate {
    leases: Api<Lease>,
    name: String,
    me: String,
}

impl Candidate {
    /// Creates a candidate with an `identity`, which must be unique, for the lease `name` in `namespace`.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self { leases: Api::namespaced(client, namespace), name: name.to_owned(), me: identity.to_owned() }
    }

    /// Waits until this candidate leads. Returns the fencing epoch, from 1, and the term, which has begun.
    pub async fn elected(&self) -> (u64, LeaderTerm) {
        let mut observed = ObservedLease::default();
        loop {
            let sent = Instant::now();
            match self.try_lead(LeaseIntent::New, &mut observed).await {
                Ok(Some(epoch)) if sent.elapsed() < TERM_DURATION => {
                    return (epoch, LeaderTerm::begin(sent, TERM_DURATION));
                }
                Ok(Some(_)) => tracing::warn!("the lease had already expired when it was acquired"),
                Ok(None) => {}
                Err(error) => tracing::warn!("can't read or write the lease: {}", api_message(&error)),
            }
            tokio::time::sleep(RENEW_INTERVAL).await;
        }
    }

    /// Raises the epoch of a leader to at least `epoch`, and returns the new epoch. A new lease begins at epoch 1:
    /// without this, the API server would reject the leader's statuses if an earlier lease that was deleted had a
    /// higher epoch.
    ///
    /// # Errors
    /// The lease can't be written, or another operator has it.
    pub async fn raise_epoch(&self, epoch: u64) -> Result<u64, kube::Error> {
        let mut lease = self.leases.get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        let transitions = spec.lease_transitions.unwrap_or(0).max(i32::try_from(epoch).unwrap_or(i32::MAX));
        spec.lease_transitions = Some(transitions);
        // Rejected after a write conflict, because the object has the version that was read.
        self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
        Ok(u64::try_from(transitions).unwrap_or(0))
    }

    /// Renews the lease. Returns when the term has ended, at most `TERM_DURATION` after the last successful renewal was
    /// sent.
    pub async fn keep_leading(&self, term: &LeaderTerm) {
        renew_until_over(term, async || self.try_lead(LeaseIntent::Renewal, &mut ObservedLease::default()).await).await;
    }

    /// Releases the lease, so that the next leader need not wait until it expires.
    pub async fn resign(&self) {
        let Ok(Some(mut lease)) = self.leases.get_opt(&self.name).await else { return };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&*self.me) {
            spec.holder_identity = None;
            spec.renew_time = None;
            if let Err(error) = self.leases.replace(&self.name, &PostParams::default(), &lease).await {
                tracing::warn!("can't release the lease: {}", api_message(&error));
            }
        }
    }

    /// Takes or renews the lease; returns the epoch, or `None` if another operator holds it.
    async fn try_lead(&self, intent: LeaseIntent, observed: &mut ObservedLease) -> Result<Option<u64>, kube::Error> {
        let current = self.leases.get_opt(&self.name).await?;
        let spec = current.as_ref().and_then(|lease| lease.spec.as_ref());
        if held_by_another(spec, &self.me) && !observed.is_over(spec, Instant::now()) {
            return Ok(None);
        }
        let (lease, epoch) = claim_lease(current, &self.name, &self.me, intent, Timestamp::now());
        let result = match lease.metadata.resource_version {
            None => self.leases.create(&PostParams::default(), &lease).await,
            Some(_) => self.leases.replace(&self.name, &PostParams::default(), &lease).await,
        };
        match result {
            Ok(_) => Ok(Some(epoch)),
            // Another candidate was faster.
            Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Renews a term with `renew`, which returns the epoch while this candidate leads, until the term has ended.
async fn renew_until_over(term: &LeaderTerm, mut renew: impl AsyncFnMut() -> Result<Option<u64>, kube::Error>) {
    while !term.is_over() {
        let sent = Instant::now();
        match timeout_at(term.ends(), renew()).await {
            Ok(Ok(Some(_))) => term.renewed(sent, TERM_DURATION),
            Ok(Ok(None)) => term.end_now(),
            Ok(Err(error)) => tracing::warn!("can't renew the lease: {}", api_message(&error)),
            Err(_) => tracing::warn!("the lease was not renewed in time"),
        }
        sleep_until(term.ends().min(Instant::now() + RENEW_INTERVAL)).await;
    }
}

/// The purpose of a candidate's claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeaseIntent {
    /// A new leadership, whose epoch is higher than all earlier ones, those of the same operator included.
    New,
    /// The continuation of a leadership.
    Renewal,
}

/// The lease as a candidate last saw it, and since when it is unchanged.
#[derive(Default)]
struct ObservedLease(Option<(LeaseSpec, Instant)>);

impl ObservedLease {
    /// Returns whether the lease has not been renewed for [`LEASE_DURATION`], as observed by this candidate until
    /// `now`.
    fn is_over(&mut self, spec: Option<&LeaseSpec>, now: Instant) -> bool {
        let spec = spec.cloned().unwrap_or_default();
        match &self.0 {
            Some((observed, observed_at)) if *observed == spec => now.duration_since(*observed_at) >= LEASE_DURATION,
            _ => {
                self.0 = Some((spec, now));
                false
            }
        }
    }
}

fn held_by_another(spec: Option<&LeaseSpec>, me: &str) -> bool {
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
    holder.is_some_and(|holder| !holder.is_empty() && holder != me)
}

/// Builds the lease that the candidate `identity` writes, and returns its epoch.
fn claim_lease(
    current: Option<Lease>,
    name: &str,
    identity: &str,
    intent: LeaseIntent,
    now: Timestamp,
) -> (Lease, u64) {
    let mut lease = current.unwrap_or_else(|| Lease {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..Lease::default()
    });
    let old = lease.spec.take().unwrap_or_default();
    let is_own = old.holder_identity.as_deref() == Some(identity);
    let begins = !is_own || intent == LeaseIntent::New;
    let transitions = old.lease_transitions.unwrap_or(0) + i32::from(begins);
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
        acquire_time: if begins { Some(MicroTime(now)) } else { old.acquire_time },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions),
        ..old
    });
    (lease, u64::try_from(transitions).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Returns how long a leader leads whose renewals take these times; the next one never returns.
    async fn leading_time(renewals: &[Duration]) -> Duration {
        let (began, term) = (Instant::now(), LeaderTerm::begin(Instant::now(), TERM_DURATION));
        let mut delays = renewals.iter().copied();
        let renew = async || {
            match delays.next() {
                Some(delay) => tokio::time::sleep(delay).await,
                None => std::future::pending().await,
            }
            Ok(Some(1))
        };
        renew_until_over(&term, renew).await;
        assert!(term.is_over());
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn leader_steps_down_before_lease_expires() {
        let seconds = Duration::from_secs;
        assert_eq!(leading_time(&[]).await, seconds(10), "no renewal ever answers");
        assert_eq!(leading_time(&[seconds(9)]).await, seconds(10), "it counts from when it was sent, not answered");
        assert_eq!(leading_time(&[seconds(1), seconds(6)]).await, seconds(13), "the second is sent at 3");
        assert!(TERM_DURATION < LEASE_DURATION);
    }

    #[tokio::test(start_paused = true)]
    async fn leader_steps_down_when_lease_is_taken() {
        let (began, term) = (Instant::now(), LeaderTerm::begin(Instant::now(), TERM_DURATION));
        renew_until_over(&term, async || Ok(None)).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[test]
    fn every_leadership_raises_the_epoch_and_a_renewal_does_not() {
        use LeaseIntent::{New, Renewal};
        let (lease, epoch) = claim_lease(None, "l", "a", New, at(100));
        assert_eq!(epoch, 1);
        let (renewed, epoch) = claim_lease(Some(lease), "l", "a", Renewal, at(114));
        assert_eq!(epoch, 1, "renewing changes no leader");
        let (taken, epoch) = claim_lease(Some(renewed), "l", "b", New, at(129));
        assert_eq!(epoch, 2);
        let (_, epoch) = claim_lease(Some(taken), "l", "b", New, at(130));
        assert_eq!(epoch, 3, "a leader that has lost its term begins another");
    }

    #[test]
    fn lease_expiry_is_independent_of_clocks() {
        let (start, seconds) = (Instant::now(), Duration::from_secs);
        let mut observed = ObservedLease::default();
        // The leader's clock is an hour behind.
        let (lease, _) = claim_lease(None, "l", "a", LeaseIntent::New, at(-3_600));
        assert!(held_by_another(lease.spec.as_ref(), "b") && !held_by_another(lease.spec.as_ref(), "a"));
        assert!(!observed.is_over(lease.spec.as_ref(), start));
        assert!(!observed.is_over(lease.spec.as_ref(), start + seconds(14)));
        let (renewed, _) = claim_lease(Some(lease), "l", "a", LeaseIntent::Renewal, at(-3_586));
        assert!(!observed.is_over(renewed.spec.as_ref(), start + seconds(15)), "it was renewed");
        assert!(!observed.is_over(renewed.spec.as_ref(), start + seconds(29)));
        assert!(observed.is_over(renewed.spec.as_ref(), start + seconds(30)));
        let mut given_back = renewed;
        given_back.spec.as_mut().unwrap().holder_identity = None;
        assert!(!held_by_another(given_back.spec.as_ref(), "b"), "at once, once it is given back");
    }
}
