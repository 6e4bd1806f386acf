//! Schedules jobs: decides on new grants, and on the places of the other jobs in the queue.
//!
//! * The order is strict: by priority, then age. A job that does not fit yet blocks all jobs behind it, so that small
//!   jobs never starve a large one.
//! * A job that can never fit has no place in the queue, and blocks no other.
//! * All or nothing: a queued job holds nothing. A running job that requests more systems keeps those that it has while
//!   it waits for all of the others.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use millrace_crds::{ConditionType, Grant, QueueReason, ResourceAmounts, TrainJob};

/// Returns whether a job is neither admitted nor finished.
pub fn is_waiting(job: &TrainJob) -> bool {
    !job.status.as_ref().is_some_and(|status| status.is(ConditionType::Finished) || status.is(ConditionType::Admitted))
}

/// A job's request for its next attempt, or for more systems for the attempt that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct SystemRequest {
    /// UID of the job.
    pub uid: String,
    /// Namespace of the job.
    pub namespace: String,
    /// Name of the job.
    pub name: String,
    /// The attempt that the request is for.
    pub attempt: u32,
    /// The systems of the running attempt that requests more; `None` for the next attempt.
    pub held: Option<Grant>,
    /// Value of its PriorityClass; higher values are first.
    pub priority: i32,
    /// Creation time of the job; earlier ones are first. Jobs of the same time are ordered by UID.
    pub created: Timestamp,
    /// Number of systems, including those that it holds.
    pub systems: u32,
    /// Bytes of MemoryX, including those that it holds.
    pub memoryx_bytes: u64,
    /// Nodes of the SwarmX tree, including those that it holds.
    pub swarmx_nodes: u32,
}

impl SystemRequest {
    /// Returns the amounts that the request adds to those that its job holds.
    fn added(&self) -> AddedAmounts {
        let held = self
            .held
            .as_ref()
            .map_or((0, 0, 0), |held| (count(held.systems.len()), held.memoryx_bytes, held.swarmx_nodes));
        AddedAmounts {
            systems: self.systems.saturating_sub(held.0),
            memoryx_bytes: self.memoryx_bytes.saturating_sub(held.1),
            swarmx_nodes: self.swarmx_nodes.saturating_sub(held.2),
        }
    }
}

/// The amounts that a grant takes from the free part of an appliance.
struct AddedAmounts {
    systems: u32,
    memoryx_bytes: u64,
    swarmx_nodes: u32,
}

/// A job's place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    /// UID of the job.
    pub uid: String,
    /// The place, counted from 1; `None` for a job that is not in the queue because it can never fit, or may not be
    /// admitted now.
    pub position: Option<u32>,
    /// Why the job waits.
    pub reason: QueueReason,
    /// The reason as a sentence without a full stop.
    pub message: String,
}

/// The result of scheduling.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SchedulingDecision {
    /// New grants of the ledger, without the time, which the caller adds. A grant of more systems replaces the one that
    /// its job has.
    pub grants: Vec<Grant>,
    /// The places of all other requests, in the order of the queue; those that can never fit are last.
    pub places: Vec<QueueEntry>,
}

/// Returns the sum of all grants of a ledger.
pub fn used_resources(ledger: &[Grant]) -> ResourceAmounts {
    ledger.iter().fold(ResourceAmounts { swarmx_nodes: Some(0), ..ResourceAmounts::default() }, |sum, grant| {
        ResourceAmounts {
            systems: sum.systems.saturating_add(count(grant.systems.len())),
            memoryx_bytes: sum.memoryx_bytes.saturating_add(grant.memoryx_bytes),
            swarmx_nodes: sum.swarmx_nodes.map(|nodes| nodes.saturating_add(grant.swarmx_nodes)),
        }
    })
}

/// Decides which requests get systems now, and the places of the others. Requests of jobs that are in the ledger
/// already are ignored, so that deciding again after a write of unknown result is harmless; so are requests for more
/// systems than in a grant that the ledger does not have.
///
/// A smaller appliance takes nothing away: it grants nothing until the allocations fit again.
pub fn schedule(capacity: &ResourceAmounts, ledger: &[Grant], requests: &[SystemRequest]) -> SchedulingDecision {
    let holders: BTreeSet<&str> = ledger.iter().map(|grant| grant.uid.as_str()).collect();
    let is_new = |request: &&SystemRequest| match &request.held {
        Some(held) => ledger.contains(held),
        None => !holders.contains(request.uid.as_str()),
    };
    let mut queue: Vec<&SystemRequest> = requests.iter().filter(is_new).collect();
    queue.sort_by_key(|request| (Reverse(request.priority), request.created, &request.uid));
    queue.dedup_by_key(|request| &request.uid);

    let mut free = FreeResources::remaining(capacity, ledger);
    let mut decided = SchedulingDecision::default();
    let mut exceeding = Vec::new();
    for request in queue {
        if let Some(message) = exceeds_capacity(capacity, request) {
            let reason = QueueReason::ExceedsAppliance;
            exceeding.push(QueueEntry { uid: request.uid.clone(), position: None, reason, message });
            continue;
        }
        let before = decided.places.len();
        let shortage = match before {
            0 => free.first_shortage(request),
            1 => Some("1 job is ahead in the queue".into()),
            _ => Some(format!("{before} jobs are ahead in the queue")),
        };
        match shortage {
            None => decided.grants.push(free.allocate(request)),
            Some(message) => {
                let position = Some(count(before + 1));
                decided.places.push(QueueEntry {
                    uid: request.uid.clone(),
                    position,
                    reason: QueueReason::Waiting,
                    message,
                });
            }
        }
    }
    decided.places.extend(exceeding);
    decided
}

/// The free part of an appliance.
struct FreeResources {
    /// Names of free systems, the next one last.
    names: Vec<String>,
    memoryx_bytes: u64,
    /// `None` if the appliance has as many nodes as jobs need.
    swarmx_nodes: Option<u32>,
    of: ResourceAmounts,
}

impl FreeResources {
    fn remaining(capacity: &ResourceAmounts, ledger: &[Grant]) -> Self {
        let used = used_resources(ledger);
        let allocated: BTreeSet<&str> = ledger.iter().flat_map(|grant| &grant.systems).map(String::as_str).collect();
        let free = capacity.systems.saturating_sub(used.systems) as usize;
        let names = (0..capacity.systems).map(|index| format!("csx-{index}"));
        let mut names: Vec<String> = names.filter(|name| !allocated.contains(name.as_str())).take(free).collect();
        names.reverse();
        Self {
            names,
            memoryx_bytes: capacity.memoryx_bytes.saturating_sub(used.memoryx_bytes),
            swarmx_nodes: capacity.swarmx_nodes.map(|nodes| nodes.saturating_sub(used.swarmx_nodes.unwrap_or(0))),
            of: *capacity,
        }
    }

    /// Returns what `ask` has to wait for; `None` if it fits.
    fn first_shortage(&self, request: &SystemRequest) -> Option<String> {
        let (systems, added) = (count(self.names.len()), request.added());
        if added.systems > systems {
            let noun = if request.held.is_some() { "more system" } else { "system" };
            let (requested, all) = (plural(added.systems, noun), self.of.systems);
            return Some(format!("waits for {requested}; {systems} of {all} are free"));
        }
        if added.memoryx_bytes > self.memoryx_bytes {
            let [requested, free, all] =
                [added.memoryx_bytes, self.memoryx_bytes, self.of.memoryx_bytes].map(gigabytes);
            return Some(format!("waits for {requested} of MemoryX; {free} of {all} are free"));
        }
        match self.swarmx_nodes {
            Some(free) if added.swarmx_nodes > free => {
                let all = self.of.swarmx_nodes.unwrap_or(free);
                let requested = plural(added.swarmx_nodes, "SwarmX node");
                Some(format!("waits for {requested}; {free} of {all} are free"))
            }
            _ => None,
        }
    }

    /// Allocates what `ask` requests; the caller has checked that it fits.
    fn allocate(&mut self, request: &SystemRequest) -> Grant {
        let added = request.added();
        let mut names = self.names.split_off(self.names.len().saturating_sub(added.systems as usize));
        names.reverse();
        self.memoryx_bytes = self.memoryx_bytes.saturating_sub(added.memoryx_bytes);
        self.swarmx_nodes = self.swarmx_nodes.map(|nodes| nodes.saturating_sub(added.swarmx_nodes));
        let held = request.held.as_ref();
        let systems = held.into_iter().flat_map(|held| &held.systems).cloned().chain(names).collect();
        Grant {
            uid: request.uid.clone(),
            namespace: request.namespace.clone(),
            name: request.name.clone(),
            attempt: request.attempt,
            systems,
            resizes: held.map_or(0, |held| held.resizes.saturating_add(1)),
            memoryx_bytes: request.memoryx_bytes,
            swarmx_nodes: request.swarmx_nodes,
            since: held.and_then(|held| held.since.clone()),
        }
    }
}

/// Returns the part of `ask` that exceeds the whole appliance, with the remedy; `None` if it can fit.
fn exceeds_capacity(capacity: &ResourceAmounts, request: &SystemRequest) -> Option<String> {
    if request.systems > capacity.systems {
        let (requested, available) = (plural(request.systems, "system"), capacity.systems);
        return Some(format!(
            "requests {requested}, but the appliance has {available}: set numCsx to at most {available}"
        ));
    }
    if request.memoryx_bytes > capacity.memoryx_bytes {
        let [requested, available] = [request.memoryx_bytes, capacity.memoryx_bytes].map(gigabytes);
        return Some(format!(
            "needs {requested} of MemoryX, but the appliance has {available}: choose a smaller model"
        ));
    }
    match capacity.swarmx_nodes {
        Some(available) if request.swarmx_nodes > available => {
            let requested = plural(request.swarmx_nodes, "SwarmX node");
            Some(format!("needs {requested}, but the appliance has {available}: set numCsx to a smaller number"))
        }
        _ => None,
    }
}

fn plural(number: u32, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

pub(crate) fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
