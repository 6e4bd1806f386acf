use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::random::Random;

const GB: u64 = 1_000_000_000;

fn amounts(systems: u32, gigabytes: u64, swarmx_nodes: Option<u32>) -> ResourceAmounts {
    ResourceAmounts { systems, memoryx_bytes: gigabytes * GB, swarmx_nodes }
}

/// A job that requests `systems` systems, as many gigabytes and as many nodes.
fn request(uid: &str, priority: i32, created: i64, systems: u32) -> SystemRequest {
    SystemRequest {
        attempt: 1,
        held: None,
        uid: uid.into(),
        namespace: "team".into(),
        name: format!("job-{uid}"),
        priority,
        created: Timestamp::from_second(created).unwrap(),
        systems,
        memoryx_bytes: u64::from(systems) * GB,
        swarmx_nodes: systems,
    }
}

fn holds(uid: &str, systems: &[u32]) -> Grant {
    Grant {
        uid: uid.into(),
        systems: systems.iter().map(|index| format!("csx-{index}")).collect(),
        memoryx_bytes: systems.len() as u64 * GB,
        swarmx_nodes: systems.len() as u32,
        ..Grant::default()
    }
}

/// The request of job `uid` for `systems` systems, some of which it holds.
fn resize(held: &Grant, systems: u32) -> SystemRequest {
    SystemRequest { held: Some(held.clone()), ..request(&held.uid, 0, 1, systems) }
}

#[test]
fn running_job_is_granted_the_missing_systems() {
    let held = holds("a", &[5, 2]);
    let capacity = amounts(6, 6, Some(6));
    let decided = schedule(&capacity, std::slice::from_ref(&held), &[resize(&held, 4), request("b", 0, 2, 2)]);
    let granted = |uid: &str| decided.grants.iter().find(|grant| grant.uid == uid).unwrap();
    assert_eq!(granted("a").systems.join(" "), "csx-5 csx-2 csx-0 csx-1");
    assert_eq!((granted("a").resizes, granted("a").memoryx_bytes, granted("a").swarmx_nodes), (1, 4 * GB, 4));
    assert_eq!(granted("b").systems.join(" "), "csx-3 csx-4");

    let other = holds("x", &[0, 1, 3]);
    let decided = schedule(&capacity, &[held.clone(), other.clone()], &[resize(&held, 4), request("b", 0, 2, 1)]);
    let places: Vec<_> = decided.places.iter().map(|place| (place.uid.as_str(), place.message.as_str())).collect();
    assert_eq!(places, [("a", "waits for 2 more systems; 1 of 6 are free"), ("b", "1 job is ahead in the queue"),]);
    let decided = schedule(&capacity, &[held.clone(), other], &[resize(&held, 7)]);
    assert_eq!((decided.places[0].reason, decided.places[0].position), (QueueReason::ExceedsAppliance, None));
    let granted_already = Grant { resizes: 1, ..holds("a", &[5, 2, 0]) };
    assert_eq!(schedule(&capacity, &[granted_already], &[resize(&held, 3)]), SchedulingDecision::default());
}

#[test]
fn grants_and_places() {
    use QueueReason::{ExceedsAppliance, Waiting};
    type Row<'a> = (
        &'a str,
        ResourceAmounts,
        Vec<Grant>,
        Vec<SystemRequest>,
        &'a [(&'a str, &'a str)],
        &'a [(&'a str, Option<u32>, QueueReason, &'a str)],
    );
    let eight = amounts(8, 8, None);
    let table: Vec<Row> = vec![
        ("no job waits", eight, vec![], vec![], &[], &[]),
        ("lowest names first", eight, vec![], vec![request("a", 0, 1, 2)], &[("a", "csx-0 csx-1")], &[]),
        (
            "gaps are filled",
            eight,
            vec![holds("x", &[0, 2])],
            vec![request("a", 0, 1, 2)],
            &[("a", "csx-1 csx-3")],
            &[],
        ),
        (
            "the older first",
            eight,
            vec![],
            vec![request("b", 0, 2, 6), request("a", 0, 1, 6)],
            &[("a", "csx-0 csx-1 csx-2 csx-3 csx-4 csx-5")],
            &[("b", Some(1), Waiting, "waits for 6 systems; 2 of 8 are free")],
        ),
        (
            "priority before age",
            eight,
            vec![holds("x", &[0, 1, 2, 3, 4, 5])],
            vec![request("a", 0, 1, 2), request("b", 5, 9, 2)],
            &[("b", "csx-6 csx-7")],
            &[("a", Some(1), Waiting, "waits for 2 systems; 0 of 8 are free")],
        ),
        (
            "of one moment, by uid",
            amounts(1, 8, None),
            vec![],
            vec![request("b", 0, 1, 1), request("a", 0, 1, 1)],
            &[("a", "csx-0")],
            &[("b", Some(1), Waiting, "waits for 1 system; 0 of 1 are free")],
        ),
        (
            "a small one does not overtake",
            eight,
            vec![holds("x", &[0, 1])],
            vec![request("big", 0, 1, 8), request("small", 0, 2, 1), request("tiny", 0, 3, 1)],
            &[],
            &[
                ("big", Some(1), Waiting, "waits for 8 systems; 6 of 8 are free"),
                ("small", Some(2), Waiting, "1 job is ahead in the queue"),
                ("tiny", Some(3), Waiting, "2 jobs are ahead in the queue"),
            ],
        ),
        (
            "a job that never fits blocks no other",
            eight,
            vec![],
            vec![request("huge", 9, 1, 9), request("a", 0, 2, 1)],
            &[("a", "csx-0")],
            &[("huge", None, ExceedsAppliance, "requests 9 systems, but the appliance has 8: set numCsx to at most 8")],
        ),
        (
            "memory that never fits",
            amounts(8, 1, None),
            vec![],
            vec![request("a", 0, 1, 2)],
            &[],
            &[(
                "a",
                None,
                ExceedsAppliance,
                "needs 2.0 GB of MemoryX, but the appliance has 1.0 GB: choose a smaller model",
            )],
        ),
        (
            "memory that is in use",
            amounts(8, 4, None),
            vec![holds("x", &[0, 1, 2])],
            vec![request("a", 0, 1, 2)],
            &[],
            &[("a", Some(1), Waiting, "waits for 2.0 GB of MemoryX; 1.0 GB of 4.0 GB are free")],
        ),
        (
            "nodes that never suffice",
            amounts(8, 8, Some(1)),
            vec![],
            vec![request("a", 0, 1, 2)],
            &[],
            &[(
                "a",
                None,
                ExceedsAppliance,
                "needs 2 SwarmX nodes, but the appliance has 1: set numCsx to a smaller number",
            )],
        ),
        (
            "nodes that are in use",
            amounts(8, 8, Some(4)),
            vec![holds("x", &[0, 1, 2])],
            vec![request("a", 0, 1, 2)],
            &[],
            &[("a", Some(1), Waiting, "waits for 2 SwarmX nodes; 1 of 4 are free")],
        ),
        ("a job with systems requests no more", eight, vec![holds("a", &[0])], vec![request("a", 0, 1, 2)], &[], &[]),
        (
            "requested twice, granted once",
            eight,
            vec![],
            vec![request("a", 0, 1, 1), request("a", 0, 1, 1)],
            &[("a", "csx-0")],
            &[],
        ),
        (
            "grown smaller, nothing is given",
            amounts(4, 8, None),
            vec![holds("x", &[4, 5, 6, 7])],
            vec![request("a", 0, 1, 1)],
            &[],
            &[("a", Some(1), Waiting, "waits for 1 system; 0 of 4 are free")],
        ),
        (
            "gone altogether",
            amounts(0, 0, None),
            vec![holds("x", &[0])],
            vec![request("a", 0, 1, 1)],
            &[],
            &[("a", None, ExceedsAppliance, "requests 1 system, but the appliance has 0: set numCsx to at most 0")],
        ),
    ];
    for (name, capacity, ledger, requests, grants, queue) in table {
        let decided = schedule(&capacity, &ledger, &requests);
        let granted: Vec<_> =
            decided.grants.iter().map(|grant| (grant.uid.as_str(), grant.systems.join(" "))).collect();
        let expected: Vec<_> = grants.iter().map(|(uid, systems)| (*uid, (*systems).to_owned())).collect();
        assert_eq!(granted, expected, "{name}");
        let found: Vec<_> =
            decided.places.iter().map(|p| (p.uid.as_str(), p.position, p.reason, p.message.as_str())).collect();
        assert_eq!(found, queue, "{name}");
    }
}

fn order(request: &SystemRequest) -> (Reverse<i32>, Timestamp, String) {
    (Reverse(request.priority), request.created, request.uid.clone())
}

/// Checks the invariants of every decision.
fn check(capacity: &ResourceAmounts, ledger: &[Grant], requests: &[SystemRequest], decided: &SchedulingDecision) {
    let by_uid: BTreeMap<&str, &SystemRequest> =
        requests.iter().map(|request| (request.uid.as_str(), request)).collect();
    let after: Vec<Grant> = ledger.iter().chain(&decided.grants).cloned().collect();

    // All or nothing, each system once, no more than free.
    for grant in &decided.grants {
        let request = by_uid[grant.uid.as_str()];
        let granted = (grant.systems.len() as u32, grant.memoryx_bytes, grant.swarmx_nodes);
        assert_eq!(granted, (request.systems, request.memoryx_bytes, request.swarmx_nodes));
    }
    let names: BTreeSet<&String> = after.iter().flat_map(|grant| &grant.systems).collect();
    assert_eq!(
        names.len(),
        after.iter().map(|grant| grant.systems.len()).sum::<usize>(),
        "a system belongs to one job"
    );
    if !decided.grants.is_empty() {
        let used = used_resources(&after);
        assert!(used.systems <= capacity.systems && used.memoryx_bytes <= capacity.memoryx_bytes);
        assert!(capacity.swarmx_nodes.is_none_or(|nodes| used.swarmx_nodes.unwrap() <= nodes));
    }

    // Every request without a grant in the ledger has one result.
    let answered: Vec<&str> =
        decided.grants.iter().map(|g| g.uid.as_str()).chain(decided.places.iter().map(|p| p.uid.as_str())).collect();
    let waiting = by_uid.keys().filter(|uid| ledger.iter().all(|grant| grant.uid != **uid)).count();
    assert_eq!((answered.len(), answered.iter().collect::<BTreeSet<_>>().len()), (waiting, waiting));

    // The order is strict, and places are counted from 1.
    let queue: Vec<&QueueEntry> = decided.places.iter().filter(|entry| entry.position.is_some()).collect();
    for (index, entry) in queue.iter().enumerate() {
        assert_eq!((entry.position, entry.reason), (Some(index as u32 + 1), QueueReason::Waiting));
    }
    let orders: Vec<_> = queue.iter().map(|entry| order(by_uid[entry.uid.as_str()])).collect();
    assert!(orders.is_sorted());
    if let Some(first) = orders.first() {
        assert!(
            decided.grants.iter().all(|grant| order(by_uid[grant.uid.as_str()]) < *first),
            "no later job overtakes"
        );
    }
}

#[test]
fn random_queues_keep_invariants_without_starvation() {
    // Long enough after the last submission for every job to end.
    for seed in 0..60 {
        let mut random = Random(seed);
        let capacity =
            amounts(1 + random.below(12) as u32, 1 + random.below(12), [None, Some(9)][random.below(2) as usize]);
        let mut now = capacity;
        let (mut ledger, mut requests, mut served) =
            (Vec::<Grant>::new(), Vec::<SystemRequest>::new(), BTreeSet::new());
        for step in 0..180 {
            if step < 80 && random.below(2) == 0 {
                let systems = 1 + random.below(u64::from(capacity.systems) + 2) as u32;
                let mut new = request(&format!("{step:03}"), random.below(3) as i32, random.below(50) as i64, systems);
                new.memoryx_bytes = random.below(14) * GB;
                requests.push(new);
            }
            // The appliance loses systems temporarily, and has all of them again in the end.
            now.systems = if step < 80 && random.below(8) == 0 { random.below(12) as u32 } else { capacity.systems };
            let decided = schedule(&now, &ledger, &requests);
            check(&now, &ledger, &requests, &decided);

            let mut shuffled = requests.clone();
            shuffled.rotate_left(random.below(1 + requests.len() as u64) as usize % requests.len().max(1));
            assert_eq!(schedule(&now, &ledger, &shuffled), decided, "the order of the requests does not matter");

            served.extend(decided.grants.iter().map(|grant| grant.uid.clone()));
            ledger.extend(decided.grants);
            assert_eq!(schedule(&now, &ledger, &requests).grants, [], "everything that can be granted is granted");
            if !ledger.is_empty() && (step >= 80 || random.below(3) == 0) {
                let done = ledger.swap_remove(random.below(ledger.len() as u64) as usize);
                requests.retain(|request| request.uid != done.uid);
            }
        }
        let possible = requests.iter().filter(|request| exceeds_capacity(&capacity, request).is_none());
        assert!(
            possible.clone().all(|request| served.contains(&request.uid)),
            "seed {seed}: a job that fits was never started"
        );
    }
}
