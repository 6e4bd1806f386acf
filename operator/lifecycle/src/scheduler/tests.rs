use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::random::Random;

const GB: u64 = 1_000_000_000;

fn amounts(systems: u32, gigabytes: u64, swarmx_nodes: Option<u32>) -> ResourceAmounts {
    ResourceAmounts { systems, memoryx_bytes: gigabytes * GB, swarmx_nodes }
}

/// A job that requests `systems` systems, as many gigabytes and as many nodes.
fn ask(uid: &str, priority: i32, created: i64, systems: u32) -> SystemRequest {
    SystemRequest {
        attempt: 1,
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
        ("lowest names first", eight, vec![], vec![ask("a", 0, 1, 2)], &[("a", "csx-0 csx-1")], &[]),
        ("gaps are filled", eight, vec![holds("x", &[0, 2])], vec![ask("a", 0, 1, 2)], &[("a", "csx-1 csx-3")], &[]),
        (
            "the older first",
            eight,
            vec![],
            vec![ask("b", 0, 2, 6), ask("a", 0, 1, 6)],
            &[("a", "csx-0 csx-1 csx-2 csx-3 csx-4 csx-5")],
            &[("b", Some(1), Waiting, "waits for 6 systems; 2 of 8 are free")],
        ),
        (
            "priority before age",
            eight,
            vec![holds("x", &[0, 1, 2, 3, 4, 5])],
            vec![ask("a", 0, 1, 2), ask("b", 5, 9, 2)],
            &[("b", "csx-6 csx-7")],
            &[("a", Some(1), Waiting, "waits for 2 systems; 0 of 8 are free")],
        ),
        (
            "of one moment, by uid",
            amounts(1, 8, None),
            vec![],
            vec![ask("b", 0, 1, 1), ask("a", 0, 1, 1)],
            &[("a", "csx-0")],
            &[("b", Some(1), Waiting, "waits for 1 system; 0 of 1 are free")],
        ),
        (
            "a small one does not overtake",
            eight,
            vec![holds("x", &[0, 1])],
            vec![ask("big", 0, 1, 8), ask("small", 0, 2, 1), ask("tiny", 0, 3, 1)],
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
            vec![ask("huge", 9, 1, 9), ask("a", 0, 2, 1)],
            &[("a", "csx-0")],
            &[("huge", None, ExceedsAppliance, "requests 9 systems, but the appliance has 8: set numCsx to at most 8")],
        ),
        (
            "memory that never fits",
            amounts(8, 1, None),
            vec![],
            vec![ask("a", 0, 1, 2)],
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
            vec![ask("a", 0, 1, 2)],
            &[],
            &[("a", Some(1), Waiting, "waits for 2.0 GB of MemoryX; 1.0 GB of 4.0 GB are free")],
        ),
        (
            "nodes that never suffice",
            amounts(8, 8, Some(1)),
            vec![],
            vec![ask("a", 0, 1, 2)],
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
            vec![ask("a", 0, 1, 2)],
            &[],
            &[("a", Some(1), Waiting, "waits for 2 SwarmX nodes; 1 of 4 are free")],
        ),
        ("who has systems asks no more", eight, vec![holds("a", &[0])], vec![ask("a", 0, 1, 2)], &[], &[]),
        ("asked twice, given once", eight, vec![], vec![ask("a", 0, 1, 1), ask("a", 0, 1, 1)], &[("a", "csx-0")], &[]),
        (
            "grown smaller, nothing is given",
            amounts(4, 8, None),
            vec![holds("x", &[4, 5, 6, 7])],
            vec![ask("a", 0, 1, 1)],
            &[],
            &[("a", Some(1), Waiting, "waits for 1 system; 0 of 4 are free")],
        ),
        (
            "gone altogether",
            amounts(0, 0, None),
            vec![holds("x", &[0])],
            vec![ask("a", 0, 1, 1)],
            &[],
            &[("a", None, ExceedsAppliance, "requests 1 system, but the appliance has 0: set numCsx to at most 0")],
        ),
    ];
    for (name, capacity, ledger, asks, grants, places) in table {
        let decided = schedule(&capacity, &ledger, &asks);
        let given: Vec<_> = decided.grants.iter().map(|grant| (grant.uid.as_str(), grant.systems.join(" "))).collect();
        let expected: Vec<_> = grants.iter().map(|(uid, systems)| (*uid, (*systems).to_owned())).collect();
        assert_eq!(given, expected, "{name}");
        let found: Vec<_> =
            decided.places.iter().map(|p| (p.uid.as_str(), p.position, p.reason, p.message.as_str())).collect();
        assert_eq!(found, places, "{name}");
    }
}

fn order(ask: &SystemRequest) -> (Reverse<i32>, Timestamp, String) {
    (Reverse(ask.priority), ask.created, ask.uid.clone())
}

/// Checks the invariants of every decision.
fn check(capacity: &ResourceAmounts, ledger: &[Grant], asks: &[SystemRequest], decided: &SchedulingDecision) {
    let asked: BTreeMap<&str, &SystemRequest> = asks.iter().map(|ask| (ask.uid.as_str(), ask)).collect();
    let after: Vec<Grant> = ledger.iter().chain(&decided.grants).cloned().collect();

    // All or nothing, each system once, no more than free.
    for grant in &decided.grants {
        let ask = asked[grant.uid.as_str()];
        let got = (grant.systems.len() as u32, grant.memoryx_bytes, grant.swarmx_nodes);
        assert_eq!(got, (ask.systems, ask.memoryx_bytes, ask.swarmx_nodes));
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
    let waiting = asked.keys().filter(|uid| ledger.iter().all(|grant| grant.uid != **uid)).count();
    assert_eq!((answered.len(), answered.iter().collect::<BTreeSet<_>>().len()), (waiting, waiting));

    // The order is strict, and places are counted from 1.
    let queue: Vec<&QueueEntry> = decided.places.iter().filter(|place| place.position.is_some()).collect();
    for (index, place) in queue.iter().enumerate() {
        assert_eq!((place.position, place.reason), (Some(index as u32 + 1), QueueReason::Waiting));
    }
    let orders: Vec<_> = queue.iter().map(|place| order(asked[place.uid.as_str()])).collect();
    assert!(orders.is_sorted());
    if let Some(first) = orders.first() {
        assert!(decided.grants.iter().all(|grant| order(asked[grant.uid.as_str()]) < *first), "no later job overtakes");
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
        let (mut ledger, mut asks, mut served) = (Vec::<Grant>::new(), Vec::<SystemRequest>::new(), BTreeSet::new());
        for step in 0..180 {
            if step < 80 && random.below(2) == 0 {
                let systems = 1 + random.below(u64::from(capacity.systems) + 2) as u32;
                let mut new = ask(&format!("{step:03}"), random.below(3) as i32, random.below(50) as i64, systems);
                new.memoryx_bytes = random.below(14) * GB;
                asks.push(new);
            }
            // The appliance loses systems temporarily, and has all of them again in the end.
            now.systems = if step < 80 && random.below(8) == 0 { random.below(12) as u32 } else { capacity.systems };
            let decided = schedule(&now, &ledger, &asks);
            check(&now, &ledger, &asks, &decided);

            let mut shuffled = asks.clone();
            shuffled.rotate_left(random.below(1 + asks.len() as u64) as usize % asks.len().max(1));
            assert_eq!(schedule(&now, &ledger, &shuffled), decided, "the order of the asks is nothing to it");

            served.extend(decided.grants.iter().map(|grant| grant.uid.clone()));
            ledger.extend(decided.grants);
            assert_eq!(schedule(&now, &ledger, &asks).grants, [], "all that can be given has been given");
            if !ledger.is_empty() && (step >= 80 || random.below(3) == 0) {
                let done = ledger.swap_remove(random.below(ledger.len() as u64) as usize);
                asks.retain(|ask| ask.uid != done.uid);
            }
        }
        let possible = asks.iter().filter(|ask| exceeds_capacity(&capacity, ask).is_none());
        assert!(
            possible.clone().all(|ask| served.contains(&ask.uid)),
            "seed {seed}: a job that fits was never started"
        );
    }
}
