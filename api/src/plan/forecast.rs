//! Forecasts when a job starts, by simulating the real scheduler: whenever the next running job ends, its systems
//! become free and the scheduler decides again, until it grants the job.

use k8s_openapi::jiff::Timestamp;
use millrace_crds::{Grant, ResourceAmounts};
use millrace_lifecycle::{QueueEntry, SystemRequest, schedule};

/// A running job: its grant and its expected end.
#[derive(Clone, Debug)]
pub struct RunningJob {
    /// The systems and other resources that it holds.
    pub grant: Grant,
    /// Expected end; `None` if unknown.
    pub until: Option<Timestamp>,
}

/// Returns the grant of `request`, or its place in the queue, and its expected start; no start if that is unknown.
///
/// # Errors
/// The grant is a [`QueueEntry`] if the job has to wait or can never run; its entry without a position means never.
pub fn forecast(
    capacity: &ResourceAmounts,
    running: &[RunningJob],
    waiting: &[SystemRequest],
    request: &SystemRequest,
    now: Timestamp,
) -> (Result<Grant, QueueEntry>, Option<Timestamp>) {
    let mut requests: Vec<SystemRequest> = waiting.to_vec();
    requests.push(request.clone());
    let mut ledger: Vec<RunningJob> = running.to_vec();
    let mut first = None;
    let mut time = now;
    loop {
        let held: Vec<Grant> = ledger.iter().map(|running| running.grant.clone()).collect();
        let decided = schedule(capacity, &held, &requests);
        if let Some(grant) = decided.grants.iter().find(|grant| grant.uid == request.uid) {
            return (first.map_or_else(|| Ok(grant.clone()), Err), Some(time));
        }
        let entry = decided.places.into_iter().find(|entry| entry.uid == request.uid);
        let Some(entry) = first.clone().or(entry) else { return (Err(not_queued(request)), None) };
        let never = entry.position.is_none();
        first = Some(entry.clone());
        // How long waiting jobs run is unknown: once one of them is granted, it never releases its systems here.
        requests.retain(|request| !decided.grants.iter().any(|grant| grant.uid == request.uid));
        for grant in decided.grants {
            match ledger.iter_mut().find(|running| running.grant.uid == grant.uid) {
                Some(resized) => resized.grant = grant,
                None => ledger.push(RunningJob { grant, until: None }),
            }
        }
        let next = ledger.iter().filter_map(|running| running.until).min().filter(|_| !never);
        let Some(next) = next else { return (Err(entry), None) };
        time = time.max(next);
        ledger.retain(|running| running.until.is_none_or(|until| until > next));
    }
}

fn not_queued(request: &SystemRequest) -> QueueEntry {
    QueueEntry {
        uid: request.uid.clone(),
        position: None,
        reason: millrace_crds::QueueReason::Waiting,
        message: "the job is not in the queue".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn request_of(uid: &str, systems: u32, created: i64) -> SystemRequest {
        SystemRequest {
            uid: uid.to_owned(),
            namespace: "n".to_owned(),
            name: uid.to_owned(),
            attempt: 1,
            held: None,
            priority: 0,
            created: at(created),
            systems,
            memoryx_bytes: 1,
            swarmx_nodes: 1,
        }
    }

    #[test]
    fn forecast_start_matches_the_scheduler() {
        let capacity = ResourceAmounts { systems: 4, memoryx_bytes: 100, swarmx_nodes: None };
        let running = |uid: &str, systems: u32, until: Option<i64>| {
            let grant = schedule(&capacity, &[], &[request_of(uid, systems, 0)]).grants.remove(0);
            let systems = grant.systems.iter().enumerate().map(|(at, _)| format!("{uid}-{at}")).collect();
            RunningJob { grant: Grant { systems, ..grant }, until: until.map(at) }
        };
        let plan = |running: &[RunningJob], waiting: &[SystemRequest], systems| {
            forecast(&capacity, running, waiting, &request_of("new", systems, 50), at(100))
        };
        assert_eq!(plan(&[], &[], 4).0.unwrap().systems.len(), 4);
        let (place, start) = plan(&[running("a", 2, Some(200)), running("b", 2, Some(300))], &[], 2);
        assert_eq!((place.unwrap_err().position, start), (Some(1), Some(at(200))));
        let (_, start) = plan(&[running("a", 2, Some(200)), running("b", 2, Some(300))], &[], 4);
        assert_eq!(start, Some(at(300)));
        let (place, start) = plan(&[running("a", 4, Some(200))], &[request_of("w", 4, 10)], 2);
        assert_eq!((place.unwrap_err().position, start), (Some(2), None), "the duration of `w` is unknown");
        let (place, start) = plan(&[], &[], 5);
        assert_eq!((place.unwrap_err().position, start), (None, None));
    }
}
