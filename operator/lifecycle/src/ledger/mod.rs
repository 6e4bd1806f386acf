//! Rebuilds the ledger of an appliance at every reconcile, from the records of the jobs.
//!
//! The status of a job names the systems that it holds, and is the source of truth. The appliance's status may be lost
//! (the object was deleted and created again), stale or edited by hand; it adds the *pending* grants, which a job does
//! not use yet. [`compute_allocations`] joins four records, the strongest first:
//!
//! 1. jobs whose status names systems;
//! 2. grants that this leader has confirmed: jobs use no others;
//! 3. systems named by agents of deleted jobs, if no leader has confirmed them;
//! 4. grants in the appliance's status.
//!
//! * A grant of the last two records is rejected if one of its systems is held already. Therefore no system is granted
//!   twice, whatever happens to the appliance's object.
//! * A pending grant is never taken back: a job that does not need it any more first takes it and then gives it up. A
//!   job whose status names systems may have a pending grant of more systems: it *extends* the ones in the status, and
//!   is for the next value of the status's `resizes`.
//! * A smaller appliance takes no systems away.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use millrace_crds::{Grant, ResourceAmounts};

use crate::used_resources;

/// Maximum number of jobs that a message names.
const MAX_LISTED_JOBS: usize = 8;

/// The ledger's view of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobAllocation {
    /// UID of the job.
    pub uid: String,
    /// Namespace of the job.
    pub namespace: String,
    /// Name of the job.
    pub name: String,
    /// The attempt in its status; 0 before the first.
    pub attempt: u32,
    /// The systems in its status.
    pub systems: Vec<String>,
    /// How often the systems of the attempt have changed.
    pub resizes: u32,
    /// MemoryX bytes that were granted with these systems.
    pub memoryx_bytes: u64,
    /// SwarmX nodes that were granted with these systems.
    pub swarmx_nodes: u32,
    /// When the attempt got its systems.
    pub since: Option<Time>,
    /// Whether the job has finished.
    pub finished: bool,
    /// Whether the job is deleted. Its agents may still exist.
    pub is_deleted: bool,
}

impl JobAllocation {
    /// Returns whether `grant` gives the running attempt more systems, which its status does not name yet.
    fn is_extended_by(&self, grant: &Grant) -> bool {
        let Self { attempt, resizes, ref systems, .. } = *self;
        let granted = HeldSystems { attempt: grant.attempt, resizes: grant.resizes, systems: &grant.systems };
        !self.is_deleted && grant.uid == self.uid && HeldSystems { attempt, resizes, systems }.is_extended_by(&granted)
    }
}

/// The systems of an attempt, by the status of a job or by a grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldSystems<'a> {
    pub(crate) attempt: u32,
    /// How often the systems of the attempt had changed before.
    pub(crate) resizes: u32,
    pub(crate) systems: &'a [String],
}

impl HeldSystems<'_> {
    /// Returns whether `granted` adds systems to these, as the next change of the attempt.
    pub(crate) fn is_extended_by(&self, granted: &HeldSystems<'_>) -> bool {
        let is_next = (granted.attempt, granted.resizes) == (self.attempt, self.resizes.saturating_add(1));
        let has_more = granted.systems.len() > self.systems.len() && granted.systems.starts_with(self.systems);
        is_next && has_more && !self.systems.is_empty()
    }
}

/// All records of allocations.
#[derive(Clone, Copy, Debug, Default)]
pub struct LedgerInputs<'a> {
    /// Every job of the appliance.
    pub jobs: &'a [JobAllocation],
    /// The grants that this leader has confirmed.
    pub confirmed: &'a [Grant],
    /// The grants in the appliance's status.
    pub recorded: &'a [Grant],
    /// Grants of deleted jobs, as recorded in the labels of their agents.
    pub departed_agents_grants: &'a [Grant],
}

/// The allocations of an appliance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocations {
    /// One grant for each job.
    pub grants: Vec<Grant>,
    /// Jobs, as `namespace/name`, whose systems the appliance's status lacked.
    pub adopted: Vec<String>,
    /// Grants of the appliance's status whose systems belong to other grants.
    pub rejected: Vec<Grant>,
}

impl LedgerInputs<'_> {
    /// Returns UID and namespace of the deleted jobs that hold something by some record, whether their objects still
    /// exist or not: their systems stay allocated for as long as agents of them exist.
    pub fn departed_jobs(&self) -> BTreeMap<String, String> {
        let of_grants = self.all().filter(|grant| self.job(&grant.uid).is_none_or(|job| job.is_deleted));
        let of_jobs = self.jobs.iter().filter(|job| job.is_deleted && !job.systems.is_empty());
        let grants = of_grants.map(|grant| (grant.uid.clone(), grant.namespace.clone()));
        grants.chain(of_jobs.map(|job| (job.uid.clone(), job.namespace.clone()))).collect()
    }

    /// Returns whether a complete grant with the systems in the status of `job` is on record, perhaps with more.
    pub fn has(&self, job: &JobAllocation) -> bool {
        self.complete_grant(job).is_some() || self.confirmed_extension(job).is_some()
    }

    /// Returns the grant of the systems in the status of `job` that has everything that was granted with them. The
    /// labels of agents name only the systems.
    fn complete_grant(&self, job: &JobAllocation) -> Option<&Grant> {
        let is_that_grant = |grant: &&Grant| grant.uid == job.uid && grant.systems == job.systems;
        self.confirmed.iter().chain(self.recorded).find(is_that_grant)
    }

    /// Returns the confirmed grant of more systems, if `job` has one that it does not use yet.
    fn confirmed_extension(&self, job: &JobAllocation) -> Option<&Grant> {
        self.confirmed.iter().find(|grant| job.is_extended_by(grant))
    }

    fn all(&self) -> impl Iterator<Item = &Grant> {
        self.confirmed.iter().chain(self.departed_agents_grants).chain(self.recorded)
    }

    /// Returns whether `grant` extends the systems of a job.
    fn extends_a_holder(&self, grant: &Grant) -> bool {
        self.job(&grant.uid).is_some_and(|job| job.is_extended_by(grant))
    }

    fn job(&self, uid: &str) -> Option<&JobAllocation> {
        self.jobs.iter().find(|job| job.uid == uid)
    }

    /// Returns the grant that the status of `job` implies. Values that the status lacks are taken from the recorded
    /// grant of the same systems.
    fn grant_of(&self, job: &JobAllocation) -> Grant {
        let complete = self.complete_grant(job).cloned().map(|grant| Grant { resizes: job.resizes, ..grant });
        complete.unwrap_or_else(|| Grant {
            uid: job.uid.clone(),
            namespace: job.namespace.clone(),
            name: job.name.clone(),
            attempt: job.attempt,
            systems: job.systems.clone(),
            resizes: job.resizes,
            memoryx_bytes: job.memoryx_bytes,
            swarmx_nodes: job.swarmx_nodes,
            since: job.since.clone(),
        })
    }

    /// Returns whether `grant`, of a job that names no systems, is valid: it is pending, or agents of the deleted job
    /// exist.
    fn is_still_held(&self, grant: &Grant, still_running: &BTreeSet<String>) -> bool {
        match self.job(&grant.uid) {
            Some(job) if !job.is_deleted => grant.attempt == job.attempt + 1 && !job.finished,
            _ => still_running.contains(&grant.uid),
        }
    }
}

/// Computes the allocations. `still_running` has the UIDs of deleted jobs that still have agents.
pub fn compute_allocations(records: &LedgerInputs<'_>, still_running: &BTreeSet<String>) -> Allocations {
    let mut allocations = Allocations::default();
    let mut used_systems: BTreeSet<String> = BTreeSet::new();
    let mut holders: BTreeSet<String> = BTreeSet::new();
    let holding = records.jobs.iter().filter(|job| !job.systems.is_empty());
    for job in holding.filter(|job| !job.is_deleted || still_running.contains(&job.uid)) {
        let is_recorded = |grant: &Grant| grant.uid == job.uid && grant.systems.starts_with(&job.systems);
        if !records.recorded.iter().any(is_recorded) {
            allocations.adopted.push(format!("{}/{}", job.namespace, job.name));
        }
        let grant = records.confirmed_extension(job).cloned().unwrap_or_else(|| records.grant_of(job));
        used_systems.extend(grant.systems.iter().cloned());
        holders.insert(grant.uid.clone());
        allocations.grants.push(grant);
    }
    let confirmed = records.confirmed.iter().map(|grant| (grant, true));
    let others = records.departed_agents_grants.iter().chain(records.recorded).map(|grant| (grant, false));
    for (grant, confirmed) in confirmed.chain(others) {
        if records.extends_a_holder(grant) && !confirmed {
            extend_holder(&mut allocations, &mut used_systems, grant);
            continue;
        }
        if holders.contains(&grant.uid) || !records.is_still_held(grant, still_running) {
            continue;
        }
        if !confirmed && grant.systems.iter().any(|system| used_systems.contains(system)) {
            allocations.rejected.push(grant.clone());
            continue;
        }
        used_systems.extend(grant.systems.iter().cloned());
        holders.insert(grant.uid.clone());
        allocations.grants.push(grant.clone());
    }
    allocations
}

/// Adds the systems that a recorded grant adds to that of a job, unless another job has one of them.
fn extend_holder(allocations: &mut Allocations, used_systems: &mut BTreeSet<String>, extension: &Grant) {
    let Some(held) = allocations.grants.iter_mut().find(|grant| grant.uid == extension.uid) else { return };
    if held.resizes >= extension.resizes {
        return;
    }
    let mut added = extension.systems.iter().filter(|system| !held.systems.contains(system));
    if added.any(|system| used_systems.contains(system)) {
        allocations.rejected.push(extension.clone());
        return;
    }
    used_systems.extend(extension.systems.iter().cloned());
    held.clone_from(extension);
}

/// Returns why an appliance is overcommitted, as a sentence; `None` if the allocations fit.
pub fn over_commitment_message(capacity: &ResourceAmounts, ledger: &[Grant]) -> Option<String> {
    let used = used_resources(ledger);
    let nodes = capacity.swarmx_nodes.zip(used.swarmx_nodes);
    let exists = |system: &str| {
        let index: Option<u32> = system.strip_prefix("csx-").and_then(|index| index.parse().ok());
        index.is_some_and(|index| index < capacity.systems)
    };
    let has_unknown_system = ledger.iter().flat_map(|grant| &grant.systems).any(|system| !exists(system));
    let excess = if used.systems > capacity.systems {
        format!("{} systems are in use, but the appliance has {}", used.systems, capacity.systems)
    } else if has_unknown_system {
        format!("systems beyond the first {}, which the appliance has, are in use", capacity.systems)
    } else if used.memoryx_bytes > capacity.memoryx_bytes {
        let [used, available] = [used.memoryx_bytes, capacity.memoryx_bytes].map(crate::scheduler::gigabytes);
        format!("{used} of MemoryX are in use, but the appliance has {available}")
    } else if nodes.is_some_and(|(available, used)| used > available) {
        let (available, used) = nodes.unwrap_or_default();
        format!("{used} SwarmX nodes are in use, but the appliance has {available}")
    } else {
        return None;
    };
    Some(format!(
        "{excess}: the jobs that use them continue, and nothing beyond the capacity is granted; {}",
        describe_jobs(ledger)
    ))
}

/// Lists the jobs of a ledger with their systems, for a message.
pub fn describe_jobs(ledger: &[Grant]) -> String {
    let listed = ledger.iter().take(MAX_LISTED_JOBS);
    let mut names: Vec<String> =
        listed.map(|grant| format!("{}/{} ({})", grant.namespace, grant.name, grant.systems.join(" "))).collect();
    if let Some(more) = ledger.len().checked_sub(MAX_LISTED_JOBS).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    format!("used by {}", names.join(", "))
}

#[cfg(test)]
mod tests;
