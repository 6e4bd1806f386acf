use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::random::Random;
use crate::{SystemRequest, schedule};

fn systems(indices: &[u32]) -> Vec<String> {
    indices.iter().map(|index| format!("csx-{index}")).collect()
}

fn grant(uid: &str, attempt: u32, indices: &[u32]) -> Grant {
    Grant {
        uid: uid.to_owned(),
        namespace: "team".to_owned(),
        name: uid.to_owned(),
        attempt,
        systems: systems(indices),
        ..Grant::default()
    }
}

fn job(uid: &str, attempt: u32, indices: &[u32]) -> JobAllocation {
    JobAllocation {
        uid: uid.to_owned(),
        namespace: "team".to_owned(),
        name: uid.to_owned(),
        attempt,
        systems: systems(indices),
        ..JobAllocation::default()
    }
}

#[test]
fn allocations_follow_from_records() {
    let deleted = JobAllocation { is_deleted: true, ..job("a", 1, &[0]) };
    let finished = JobAllocation { finished: true, ..job("a", 0, &[]) };
    struct Row {
        name: &'static str,
        jobs: Vec<JobAllocation>,
        confirmed: Vec<Grant>,
        recorded: Vec<Grant>,
        left_behind: Vec<Grant>,
        still_running: &'static [&'static str],
        allocations: Vec<Grant>,
        adopted: usize,
        rejected: usize,
    }
    let row = |name: &'static str, jobs: Vec<JobAllocation>, recorded: Vec<Grant>, allocations: Vec<Grant>| Row {
        name,
        jobs,
        confirmed: Vec::new(),
        recorded,
        left_behind: Vec::new(),
        still_running: &[],
        allocations,
        adopted: 0,
        rejected: 0,
    };
    let one = grant("a", 1, &[0]);
    let full = Grant { memoryx_bytes: 7, swarmx_nodes: 3, ..one.clone() };
    let more = Grant { resizes: 1, ..grant("a", 1, &[0, 1]) };
    let resized = JobAllocation { resizes: 1, ..job("a", 1, &[0]) };
    let table = [
        row("a grant that is taken up", vec![job("a", 1, &[0])], vec![one.clone()], vec![one.clone()]),
        row("a restart keeps it", vec![job("a", 4, &[0])], vec![one.clone()], vec![one.clone()]),
        row("a pending one stays", vec![job("a", 0, &[])], vec![one.clone()], vec![one.clone()]),
        row("one that is let go of", vec![job("a", 1, &[])], vec![one.clone()], vec![]),
        row("one of a job that is over", vec![finished], vec![one.clone()], vec![]),
        row("one of another attempt", vec![job("a", 0, &[])], vec![grant("a", 7, &[0])], vec![]),
        row("one of a job that is gone", vec![], vec![one.clone()], vec![]),
        Row { still_running: &["a"], ..row("of which agents are left", vec![], vec![one.clone()], vec![one.clone()]) },
        Row { adopted: 1, ..row("the appliance was created anew", vec![job("a", 1, &[0])], vec![], vec![one.clone()]) },
        Row {
            adopted: 1,
            ..row("its status was edited", vec![job("a", 1, &[0])], vec![grant("a", 1, &[5])], vec![one.clone()])
        },
        Row {
            adopted: 1,
            still_running: &["a"],
            ..row("created anew while a deleted job ends", vec![deleted.clone()], vec![], vec![one.clone()])
        },
        row("a deleted job whose agents are gone", vec![deleted], vec![one.clone()], vec![]),
        Row {
            rejected: 1,
            ..row(
                "a forged grant of what another holds",
                vec![job("a", 1, &[0]), job("b", 0, &[])],
                vec![one.clone(), grant("b", 1, &[0])],
                vec![one.clone()],
            )
        },
        Row {
            confirmed: vec![one.clone()],
            ..row("a pending grant outlives the appliance", vec![job("a", 0, &[])], vec![], vec![one.clone()])
        },
        Row {
            confirmed: vec![one.clone()],
            rejected: 1,
            ..row(
                "what is confirmed comes before what is written",
                vec![job("a", 0, &[]), job("b", 0, &[])],
                vec![grant("b", 1, &[0])],
                vec![one.clone()],
            )
        },
        row("more systems, not used yet", vec![job("a", 1, &[0])], vec![more.clone()], vec![more.clone()]),
        Row {
            confirmed: vec![more.clone()],
            ..row("and confirmed", vec![job("a", 1, &[0])], vec![one.clone()], vec![more.clone()])
        },
        row("used and given up", vec![resized.clone()], vec![more.clone()], vec![Grant { resizes: 1, ..one.clone() }]),
        row(
            "of an earlier attempt",
            vec![job("a", 2, &[0])],
            vec![more.clone()],
            vec![Grant { attempt: 2, ..one.clone() }],
        ),
        Row {
            rejected: 1,
            adopted: 1,
            ..row(
                "more systems that another holds",
                vec![job("a", 1, &[0]), job("b", 1, &[1])],
                vec![more.clone()],
                vec![one.clone(), grant("b", 1, &[1])],
            )
        },
        // The labels of agents name no MemoryX and no SwarmX.
        Row {
            left_behind: vec![one.clone()],
            ..row("a new leader finds the agents of a job", vec![job("a", 1, &[0])], vec![full.clone()], vec![full])
        },
        Row {
            left_behind: vec![one.clone()],
            still_running: &["a"],
            ..row("known by its agents alone", vec![], vec![], vec![one.clone()])
        },
    ];
    for row in table {
        let records = LedgerInputs {
            jobs: &row.jobs,
            confirmed: &row.confirmed,
            recorded: &row.recorded,
            departed_agents_grants: &row.left_behind,
        };
        let still_running = row.still_running.iter().map(|uid| (*uid).to_owned()).collect();
        let allocations = compute_allocations(&records, &still_running);
        assert_eq!(allocations.grants, row.allocations, "{}", row.name);
        assert_eq!(
            (allocations.adopted.len(), allocations.rejected.len()),
            (row.adopted, row.rejected),
            "{}",
            row.name
        );
    }
}

#[test]
fn over_commitment_is_described() {
    let capacity = |systems| ResourceAmounts { systems, memoryx_bytes: 10, swarmx_nodes: Some(1) };
    let ledger = [grant("a", 1, &[0, 1]), grant("b", 1, &[2])];
    assert_eq!(over_commitment_message(&capacity(3), &ledger), None);
    let message = over_commitment_message(&capacity(2), &ledger).unwrap();
    assert!(message.starts_with("3 systems are in use, but the appliance has 2:"), "{message}");
    assert!(message.ends_with("used by team/a (csx-0 csx-1), team/b (csx-2)"), "{message}");
    let message = over_commitment_message(&capacity(2), &ledger[1..]).unwrap();
    assert!(message.starts_with("systems beyond the first 2"), "{message}");
    let large = [Grant { memoryx_bytes: 11, ..grant("a", 1, &[0]) }];
    assert!(over_commitment_message(&capacity(2), &large).unwrap().contains("of MemoryX"));
}

/// A job of the simulation, whose agents may exist longer than its object.
#[derive(Clone, Debug)]
struct Model {
    job: JobAllocation,
    asks: u32,
    exists: bool,
    /// The systems that its agents run on.
    agents: Vec<String>,
}

/// A cluster: jobs, the appliance's object, and the state of its leader.
struct World {
    random: Random,
    jobs: BTreeMap<String, Model>,
    /// Size and grants of the appliance; `None` if it does not exist.
    appliance: Option<(u32, Vec<Grant>)>,
    confirmed: Option<Vec<Grant>>,
    created: u32,
    /// Number of grants of more systems for running jobs.
    extended: usize,
}

impl World {
    fn pick(&mut self) -> Option<String> {
        let count = self.jobs.len() as u64;
        if count == 0 {
            return None;
        }
        let index = self.random.below(count) as usize;
        self.jobs.keys().nth(index).cloned()
    }

    /// Updates the ledger once; the write may fail, before or after it is applied.
    fn look(&mut self) {
        let Some((size, recorded)) = self.appliance.clone() else { return };
        let existing: Vec<&Model> = self.jobs.values().filter(|model| model.exists).collect();
        let jobs: Vec<JobAllocation> = existing.iter().map(|model| model.job.clone()).collect();
        let running = |model: &&Model| !model.agents.is_empty();
        let left_behind: Vec<Grant> = match &self.confirmed {
            Some(_) => Vec::new(),
            None => self
                .jobs
                .values()
                .filter(running)
                .map(|model| Grant { systems: model.agents.clone(), ..grant(&model.job.uid, model.job.attempt, &[]) })
                .collect(),
        };
        let confirmed = self.confirmed.clone().unwrap_or_default();
        let records = LedgerInputs {
            jobs: &jobs,
            confirmed: &confirmed,
            recorded: &recorded,
            departed_agents_grants: &left_behind,
        };
        let running = self.jobs.values().filter(running).map(|model| model.job.uid.clone()).collect();
        let mut ledger = compute_allocations(&records, &running).grants;
        let requests: Vec<SystemRequest> = existing
            .iter()
            .filter(|model| model.asks as usize > model.job.systems.len())
            .filter(|model| !model.job.finished && !model.job.is_deleted)
            .map(|model| SystemRequest {
                uid: model.job.uid.clone(),
                namespace: "team".to_owned(),
                name: model.job.name.clone(),
                attempt: model.job.attempt + u32::from(model.job.systems.is_empty()),
                held: ledger
                    .iter()
                    .find(|grant| grant.uid == model.job.uid && grant.systems == model.job.systems)
                    .cloned(),
                priority: 0,
                created: Timestamp::UNIX_EPOCH,
                systems: model.asks,
                memoryx_bytes: 0,
                swarmx_nodes: 0,
            })
            .collect();
        let capacity = ResourceAmounts { systems: size, memoryx_bytes: 0, swarmx_nodes: None };
        let granted = schedule(&capacity, &ledger, &requests).grants;
        if !granted.is_empty() {
            self.extended += granted.iter().filter(|grant| grant.resizes > 0).count();
            ledger.retain(|held| granted.iter().all(|grant| grant.uid != held.uid));
            ledger.extend(granted);
            assert!(used_resources(&ledger).systems <= size, "nothing is granted above the size");
        }
        match self.random.below(8) {
            // Rejected: a write conflict.
            0 => {}
            // The write is applied, but the answer is lost with the leader.
            1 => {
                self.appliance = Some((size, ledger));
                self.confirmed = None;
            }
            _ => {
                self.appliance = Some((size, ledger.clone()));
                self.confirmed = Some(ledger);
            }
        }
    }

    /// Reconciles a job: it uses the confirmed grant of its next attempt, is resized, or releases its attempt.
    fn visit(&mut self, uid: &str) {
        let confirmed = self.confirmed.clone().unwrap_or_default();
        let chance = self.random.below(8);
        let asks = 1 + self.random.below(4) as u32;
        let Some(model) = self.jobs.get_mut(uid).filter(|model| model.exists) else { return };
        if model.job.is_deleted {
            return;
        }
        if model.job.systems.is_empty() {
            let grant = confirmed.iter().find(|grant| grant.uid == uid && grant.attempt == model.job.attempt + 1);
            if let Some(grant) = grant.filter(|_| !model.job.finished && model.agents.is_empty()) {
                model.job.attempt = grant.attempt;
                if chance > 0 {
                    model.job.systems.clone_from(&grant.systems);
                    model.agents.clone_from(&grant.systems);
                }
            }
        } else if chance == 0 {
            // The last agent has ended: the job has finished, or waits again.
            model.agents.clear();
            model.job.systems.clear();
            model.job.finished = uid.len().is_multiple_of(2);
        } else if chance == 1 {
            (model.job.attempt, model.job.resizes) = (model.job.attempt + 1, 0);
        } else if chance <= 3 {
            model.asks = asks;
        } else if let Some(grant) = confirmed.iter().find(|grant| model.job.is_extended_by(grant)) {
            (model.job.systems, model.job.resizes) = (grant.systems.clone(), grant.resizes);
            model.agents.clone_from(&grant.systems);
        } else if (model.asks as usize) < model.job.systems.len() {
            model.job.systems.truncate(model.asks as usize);
            model.agents.truncate(model.asks as usize);
            model.job.resizes += 1;
        }
    }

    fn step(&mut self) {
        match self.random.below(18) {
            0 => {
                self.created += 1;
                let uid = format!("{:0width$}", self.created, width = 3 + self.created as usize % 2);
                let systems = 1 + self.random.below(4) as u32;
                let model = Model { job: job(&uid, 0, &[]), asks: systems, exists: true, agents: Vec::new() };
                self.jobs.insert(uid, model);
            }
            1 => {
                if let Some(model) = self.pick().and_then(|uid| self.jobs.get_mut(&uid)) {
                    // Marked as deleted first, then removed; its agents end later.
                    model.exists = !model.job.is_deleted;
                    model.job.is_deleted = true;
                }
            }
            2 => {
                if let Some(model) =
                    self.pick().and_then(|uid| self.jobs.get_mut(&uid)).filter(|model| model.job.is_deleted)
                {
                    model.agents.clear();
                }
            }
            3 => self.appliance = None,
            4 => self.appliance = Some((1 + self.random.below(16) as u32, Vec::new())),
            5 => {
                let size = 1 + self.random.below(16) as u32;
                if let Some(appliance) = &mut self.appliance {
                    appliance.0 = size;
                }
            }
            6 => self.forge(),
            7 if self.random.below(3) == 0 => self.confirmed = None,
            8..=12 => self.look(),
            _ => {
                if let Some(uid) = self.pick() {
                    self.visit(&uid);
                }
            }
        }
        self.jobs.retain(|_, model| model.exists || !model.agents.is_empty());
    }

    /// Edits the ledger as a user may.
    fn forge(&mut self) {
        let (victim, index) = (self.pick(), self.random.below(16) as u32);
        let drop = self.random.below(2) == 0;
        let Some((_, grants)) = &mut self.appliance else { return };
        if drop && !grants.is_empty() {
            grants.remove(index as usize % grants.len());
        } else if let Some(model) = victim.and_then(|uid| self.jobs.get(&uid)) {
            grants.retain(|grant| grant.uid != model.job.uid);
            grants.push(grant(&model.job.uid, model.job.attempt + 1, &[index]));
        }
    }

    fn check(&self, seed: u64, step: u32) {
        let mut holders: BTreeMap<&String, &String> = BTreeMap::new();
        for (uid, model) in &self.jobs {
            let systems: BTreeSet<&String> = model.job.systems.iter().chain(&model.agents).collect();
            for system in systems.into_iter().filter(|_| model.exists || !model.agents.is_empty()) {
                if model.job.is_deleted && model.agents.is_empty() {
                    continue;
                }
                let other = holders.insert(system, uid);
                assert_eq!(other, None, "seed {seed}, step {step}: {system} is also held by {uid}");
            }
        }
    }
}

#[test]
fn no_system_is_granted_twice() {
    let (mut taken_up, mut extended) = (0, 0);
    for seed in 0..300 {
        let mut world = World {
            random: Random(seed),
            jobs: BTreeMap::new(),
            appliance: Some((4, Vec::new())),
            confirmed: None,
            created: 0,
            extended: 0,
        };
        for step in 0..300 {
            world.step();
            world.check(seed, step);
            taken_up += world.jobs.values().filter(|model| !model.job.systems.is_empty()).count();
        }
        extended += world.extended;
    }
    assert!(taken_up > 10_000 && extended > 200, "the jobs ran at all: {taken_up}, {extended}");
}
