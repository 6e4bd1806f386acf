//! The ledger of an appliance, rebuilt at every look from what the jobs themselves record.
//!
//! The status of a job names the systems it holds. That is the source of truth: the appliance's status may be lost (the
//! object was deleted and created again), behind or edited by hand. What it adds are *pending* grants, which a job has not
//! taken up yet. [`held`] joins four records, the strongest first:
//!
//! 1. jobs whose status names systems;
//! 2. grants that this leader has confirmed: jobs take up no others;
//! 3. systems named by agents of jobs that are gone, where no leader remembers them;
//! 4. grants in the appliance's status.
//!
//! A grant of the last two is rejected where one of its systems is held already. So no system is ever granted twice,
//! whatever becomes of the appliance's object, and a smaller appliance takes nothing away.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::used;
use crate::{Amounts, Grant};

/// Most jobs that a message names.
const MAX_NAMED_JOBS: usize = 8;

/// A job as the ledger sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holder {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The attempt in its status; 0 before the first.
    pub attempt: u32,
    /// The systems in its status.
    pub systems: Vec<String>,
    /// MemoryX bytes that these systems came with.
    pub memoryx_bytes: u64,
    /// SwarmX nodes that these systems came with.
    pub swarmx_nodes: u32,
    /// When the attempt got its systems.
    pub since: Option<Time>,
    /// Whether it is over.
    pub finished: bool,
    /// Whether it is deleted. Its agents may outlive it.
    pub deleted: bool,
}

/// What is known of who holds what.
#[derive(Clone, Copy, Debug, Default)]
pub struct Records<'a> {
    /// Every job of the appliance.
    pub jobs: &'a [Holder],
    /// The grants that this leader has confirmed.
    pub confirmed: &'a [Grant],
    /// The grants in the appliance's status.
    pub recorded: &'a [Grant],
    /// What agents of jobs that are gone hold by their own labels.
    pub left_behind: &'a [Grant],
}

/// Who holds what.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held {
    /// One grant for each job.
    pub grants: Vec<Grant>,
    /// Jobs whose systems the appliance's status did not have, as `namespace/name`.
    pub adopted: Vec<String>,
    /// Grants of the appliance's status whose systems others hold.
    pub rejected: Vec<Grant>,
}

impl Records<'_> {
    /// Jobs that are deleted or gone and hold something by some record, as UID and namespace: their systems are theirs as
    /// long as agents of them are left.
    pub fn absent_jobs(&self) -> BTreeMap<String, String> {
        let of_grants = self.all().filter(|grant| self.job(&grant.uid).is_none_or(|job| job.deleted));
        let of_jobs = self.jobs.iter().filter(|job| job.deleted && !job.systems.is_empty());
        let grants = of_grants.map(|grant| (grant.uid.clone(), grant.namespace.clone()));
        grants.chain(of_jobs.map(|job| (job.uid.clone(), job.namespace.clone()))).collect()
    }

    /// Whether a grant with the systems that the status of `job` names is on record.
    pub fn has(&self, job: &Holder) -> bool {
        self.all().any(|grant| grant.uid == job.uid && grant.systems == job.systems)
    }

    fn all(&self) -> impl Iterator<Item = &Grant> {
        self.confirmed.iter().chain(self.left_behind).chain(self.recorded)
    }

    fn job(&self, uid: &str) -> Option<&Holder> {
        self.jobs.iter().find(|job| job.uid == uid)
    }

    /// The grant a holder's status comes to. What a status does not say is taken from the grant it was made from.
    fn grant_of(&self, job: &Holder) -> Grant {
        let known = self.all().find(|grant| grant.uid == job.uid && grant.systems == job.systems);
        known.cloned().unwrap_or_else(|| Grant {
            uid: job.uid.clone(),
            namespace: job.namespace.clone(),
            name: job.name.clone(),
            attempt: job.attempt,
            systems: job.systems.clone(),
            memoryx_bytes: job.memoryx_bytes,
            swarmx_nodes: job.swarmx_nodes,
            since: job.since.clone(),
        })
    }

    /// Whether `grant`, of a job that names no systems, still stands: it is pending, or the job's agents are left.
    fn stands(&self, grant: &Grant, left: &BTreeSet<String>) -> bool {
        match self.job(&grant.uid) {
            Some(job) if !job.deleted => grant.attempt == job.attempt + 1 && !job.finished,
            _ => left.contains(&grant.uid),
        }
    }
}

/// Who holds what. `left` are the UIDs of deleted or gone jobs of which agents are left.
pub fn held(records: &Records<'_>, left: &BTreeSet<String>) -> Held {
    let mut held = Held::default();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut holders: BTreeSet<String> = BTreeSet::new();
    let holding = records.jobs.iter().filter(|job| !job.systems.is_empty());
    for job in holding.filter(|job| !job.deleted || left.contains(&job.uid)) {
        let grant = records.grant_of(job);
        if !records.recorded.contains(&grant) {
            held.adopted.push(format!("{}/{}", job.namespace, job.name));
        }
        taken.extend(grant.systems.iter().cloned());
        holders.insert(grant.uid.clone());
        held.grants.push(grant);
    }
    let confirmed = records.confirmed.iter().map(|grant| (grant, true));
    let others = records.left_behind.iter().chain(records.recorded).map(|grant| (grant, false));
    for (grant, confirmed) in confirmed.chain(others) {
        if holders.contains(&grant.uid) || !records.stands(grant, left) {
            continue;
        }
        if !confirmed && grant.systems.iter().any(|system| taken.contains(system)) {
            held.rejected.push(grant.clone());
            continue;
        }
        taken.extend(grant.systems.iter().cloned());
        holders.insert(grant.uid.clone());
        held.grants.push(grant.clone());
    }
    held
}

/// Why an appliance is over-committed, as a sentence; `None` where what is used fits.
pub fn over_committed(capacity: &Amounts, ledger: &[Grant]) -> Option<String> {
    let used = used(ledger);
    let nodes = capacity.swarmx_nodes.zip(used.swarmx_nodes);
    let exists = |system: &str| {
        let index: Option<u32> = system.strip_prefix("csx-").and_then(|index| index.parse().ok());
        index.is_some_and(|index| index < capacity.systems)
    };
    let beyond = ledger.iter().flat_map(|grant| &grant.systems).any(|system| !exists(system));
    let what = if used.systems > capacity.systems {
        format!("{} systems are in use, and the appliance has {}", used.systems, capacity.systems)
    } else if beyond {
        format!("systems beyond the first {}, which the appliance has, are in use", capacity.systems)
    } else if used.memoryx_bytes > capacity.memoryx_bytes {
        let [used, have] = [used.memoryx_bytes, capacity.memoryx_bytes].map(super::schedule::gigabytes);
        format!("{used} of MemoryX are in use, and the appliance has {have}")
    } else if nodes.is_some_and(|(have, used)| used > have) {
        let (have, used) = nodes.unwrap_or_default();
        format!("{used} SwarmX nodes are in use, and the appliance has {have}")
    } else {
        return None;
    };
    Some(format!(
        "{what}: the jobs that hold them go on, and nothing is granted beyond what there is; {}",
        names(ledger)
    ))
}

/// The jobs of a ledger with their systems, for a person.
pub fn names(ledger: &[Grant]) -> String {
    let named = ledger.iter().take(MAX_NAMED_JOBS);
    let mut names: Vec<String> =
        named.map(|grant| format!("{}/{} ({})", grant.namespace, grant.name, grant.systems.join(" "))).collect();
    if let Some(more) = ledger.len().checked_sub(MAX_NAMED_JOBS).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    format!("held by {}", names.join(", "))
}

#[cfg(test)]
mod tests;
