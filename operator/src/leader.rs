//! One leader among the operators, by a Lease.
//!
//! The number of changes of leadership is the *fencing epoch* that goes with every status write: the API server refuses
//! one that is lower than what stands there, so that a leader that was asleep while another took over changes nothing. An
//! operator that can't renew in time ends its process; it is started again as a candidate.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::error::said;

/// How long a leader counts as one without renewing.
const LEASE: SignedDuration = SignedDuration::from_secs(15);
/// A leader that has not renewed for so long steps down, before others may take over.
const RENEW_WITHIN: Duration = Duration::from_secs(10);
/// Between two tries.
const RETRY: Duration = Duration::from_secs(2);

/// A place in the election.
#[derive(Clone)]
pub struct Candidate {
    leases: Api<Lease>,
    name: String,
    me: String,
}

impl Candidate {
    /// A candidate called `me`, unique among all, for the lease `name` in `namespace`.
    pub fn new(client: Client, namespace: &str, name: &str, me: &str) -> Self {
        Self { leases: Api::namespaced(client, namespace), name: name.to_owned(), me: me.to_owned() }
    }

    /// Waits until this one leads; the fencing epoch, from 1.
    pub async fn elected(&self) -> u64 {
        loop {
            match self.try_lead().await {
                Ok(Some(epoch)) => return epoch,
                Ok(None) => {}
                Err(error) => log::warn!("the lease can't be read or written: {}", said(&error)),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Raises the epoch of a leader to at least `epoch`: what was written under a lease that is lost must not outrank it for
    /// ever. Returns the epoch that holds.
    ///
    /// # Errors
    /// The lease can't be written, or is another's by now.
    pub async fn raise(&self, epoch: u64) -> Result<u64, kube::Error> {
        let mut lease = self.leases.get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        let transitions = spec.lease_transitions.unwrap_or(0).max(i32::try_from(epoch).unwrap_or(i32::MAX));
        spec.lease_transitions = Some(transitions);
        // Refused where another has written meanwhile: the version is that which was read.
        self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
        Ok(u64::try_from(transitions).unwrap_or(0))
    }

    /// Keeps leading; returns when that is over.
    pub async fn lead(&self) {
        let mut renewed = tokio::time::Instant::now();
        while renewed.elapsed() < RENEW_WITHIN {
            tokio::time::sleep(RETRY).await;
            match tokio::time::timeout(RENEW_WITHIN, self.try_lead()).await {
                Ok(Ok(Some(_))) => renewed = tokio::time::Instant::now(),
                Ok(Ok(None)) => return,
                Ok(Err(error)) => log::warn!("the lease could not be renewed: {}", said(&error)),
                Err(_) => {}
            }
        }
    }

    /// Gives the lease back, so that the next one need not wait for it to run out.
    pub async fn resign(&self) {
        let Ok(Some(mut lease)) = self.leases.get_opt(&self.name).await else { return };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&*self.me) {
            spec.holder_identity = None;
            spec.renew_time = None;
            if let Err(error) = self.leases.replace(&self.name, &PostParams::default(), &lease).await {
                log::warn!("the lease could not be given back: {}", said(&error));
            }
        }
    }

    /// Takes or renews the lease; the epoch, or `None` where another holds it.
    async fn try_lead(&self) -> Result<Option<u64>, kube::Error> {
        let now = Timestamp::now();
        let found = self.leases.get_opt(&self.name).await?;
        let Some((lease, epoch)) = claim(found, &self.name, &self.me, now) else { return Ok(None) };
        let written = match lease.metadata.resource_version {
            None => self.leases.create(&PostParams::default(), &lease).await,
            Some(_) => self.leases.replace(&self.name, &PostParams::default(), &lease).await,
        };
        match written {
            Ok(_) => Ok(Some(epoch)),
            // Another was first.
            Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The lease as `me` would write it, with the epoch that then holds; `None` while another one's is valid.
fn claim(found: Option<Lease>, name: &str, me: &str, now: Timestamp) -> Option<(Lease, u64)> {
    let mut lease = found.unwrap_or_else(|| Lease {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..Lease::default()
    });
    let old = lease.spec.take().unwrap_or_default();
    let mine = old.holder_identity.as_deref() == Some(me);
    let held = old.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty());
    let ends = old.renew_time.as_ref().and_then(|renewed| renewed.0.checked_add(LEASE).ok());
    if held && !mine && ends.is_some_and(|ends| now < ends) {
        return None;
    }
    let transitions = old.lease_transitions.unwrap_or(0) + i32::from(!mine);
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(LEASE.as_secs()).ok(),
        acquire_time: if mine { old.acquire_time } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions),
        ..old
    });
    Some((lease, u64::try_from(transitions).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn one_leads_at_a_time_and_every_change_raises_the_epoch() {
        let (lease, epoch) = claim(None, "l", "a", at(100)).unwrap();
        assert_eq!(epoch, 1);
        assert!(claim(Some(lease.clone()), "l", "b", at(114)).is_none(), "a's lease is valid");
        let (renewed, epoch) = claim(Some(lease), "l", "a", at(114)).unwrap();
        assert_eq!(epoch, 1, "renewing changes no leader");
        assert!(claim(Some(renewed.clone()), "l", "b", at(128)).is_none());
        let (taken, epoch) = claim(Some(renewed), "l", "b", at(129)).unwrap();
        assert_eq!(epoch, 2);
        let mut given_back = taken;
        given_back.spec.as_mut().unwrap().holder_identity = None;
        assert_eq!(claim(Some(given_back), "l", "a", at(130)).unwrap().1, 3, "at once, once it is given back");
    }
}
