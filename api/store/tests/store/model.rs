//! Compares jobs, names and keys with a model in memory, over pseudo-random operations.

use std::cmp::Reverse;

use millrace_store::{CreateResult, IdempotencyKey, JobContent, JobFilter, JobRecord, NewJob, Store};

use crate::random::Random;
use crate::scratch::Scratch;

behaviours![jobs_agree_with_the_model];

const DAY: i64 = 24 * 3_600_000;

#[derive(Default)]
struct Model {
    jobs: Vec<JobRecord>,
}

impl Model {
    fn live(&self, namespace: &str, name: &str) -> Option<&JobRecord> {
        self.jobs.iter().find(|job| job.deleted_ms.is_none() && job.namespace == namespace && job.name == name)
    }

    fn get(&mut self, uid: &str) -> Option<&mut JobRecord> {
        self.jobs.iter_mut().find(|job| job.uid == uid)
    }

    fn add(&mut self, new: &NewJob, deleted_ms: Option<i64>) -> JobRecord {
        let NewJob { uid, namespace, name, created_ms, submitted_by, key, content } = new.clone();
        self.jobs.push(JobRecord {
            uid,
            namespace,
            name,
            created_ms,
            submitted_by,
            key,
            version: 1,
            deleted_ms,
            namespace_uid: None,
            content,
        });
        self.jobs.last().unwrap().clone()
    }

    fn take_key(&mut self, new: &NewJob) {
        let key = |key: &Option<IdempotencyKey>| key.as_ref().map(|key| key.key.clone());
        for job in self.jobs.iter_mut().filter(|job| job.namespace == new.namespace) {
            if key(&job.key) == key(&new.key) {
                job.key = None;
            }
        }
    }

    fn create(&mut self, new: &NewJob) -> CreateResult {
        let young = |job: &&JobRecord| job.namespace == new.namespace && job.created_ms > new.created_ms - DAY;
        for job in self.jobs.iter().filter(young) {
            match (&job.key, &new.key) {
                (Some(one), Some(other)) if one == other => return CreateResult::Replayed(job.clone()),
                (Some(one), Some(other)) if one.key == other.key => return CreateResult::KeyReused,
                _ => {}
            }
        }
        if self.live(&new.namespace, &new.name).is_some() {
            return CreateResult::NameTaken;
        }
        self.take_key(new);
        CreateResult::New(self.add(new, None))
    }

    fn put(&mut self, new: &NewJob, now: i64) -> bool {
        if let Some(job) = self.get(&new.uid) {
            let changed = job.content.document != new.content.document;
            if changed {
                job.content = new.content.clone();
                job.version += 1;
            }
            return changed;
        }
        let mut deleted_ms = None;
        if let Some(uid) = self.live(&new.namespace, &new.name).map(|job| job.uid.clone()) {
            let holder = self.get(&uid).unwrap();
            if holder.created_ms <= new.created_ms {
                holder.deleted_ms = Some(now);
                holder.version += 1;
            } else {
                deleted_ms = Some(now);
            }
        }
        let same = |job: &&JobRecord| {
            let keys = (job.key.as_ref().map(|key| &key.key), new.key.as_ref().map(|key| &key.key));
            job.namespace == new.namespace && keys.0.is_some() && keys.0 == keys.1
        };
        let young = |job: &&JobRecord| job.created_ms > new.created_ms - DAY && job.created_ms <= new.created_ms;
        if self.jobs.iter().filter(same).any(|job| young(&job)) {
            self.add(&NewJob { key: None, ..new.clone() }, deleted_ms);
        } else {
            self.take_key(new);
            self.add(new, deleted_ms);
        }
        true
    }

    fn replace(&mut self, uid: &str, expected: u64, content: &JobContent) -> Option<u64> {
        let job = self.get(uid).filter(|job| job.version == expected && job.deleted_ms.is_none())?;
        job.content = content.clone();
        job.version += 1;
        Some(job.version)
    }

    fn mark_deleted(&mut self, uid: &str, now: i64) -> bool {
        let Some(job) = self.get(uid).filter(|job| job.deleted_ms.is_none()) else { return false };
        job.deleted_ms = Some(now);
        job.version += 1;
        true
    }

    fn forget_before(&mut self, before_ms: i64) -> usize {
        let over = |at: Option<i64>| at.is_some_and(|at| at < before_ms);
        let count = self.jobs.len();
        self.jobs.retain(|job| !over(job.deleted_ms) && !over(job.content.finished_ms));
        count - self.jobs.len()
    }

    fn newest(&self, namespace: &str, name: &str) -> Option<&JobRecord> {
        let named = self.jobs.iter().filter(|job| job.namespace == namespace && job.name == name);
        named.max_by_key(|job| (job.deleted_ms.is_none(), job.created_ms, &job.uid))
    }
}

/// Returns a job with one of few names and keys, so that they collide.
fn any_job(random: &mut Random, number: u64, now: i64) -> NewJob {
    let pick = |random: &mut Random, words: &[&str]| words[random.below(words.len() as u64) as usize].to_owned();
    let key = IdempotencyKey { key: pick(random, &["k1", "k2", "k3"]), body_hash: pick(random, &["x", "y"]) };
    NewJob {
        uid: format!("uid-{number:03}"),
        namespace: pick(random, &["a", "b"]),
        name: pick(random, &["gpt2", "gpt3", "bert"]),
        created_ms: now,
        submitted_by: None,
        key: (random.below(3) > 0).then_some(key),
        content: any_content(random, now),
    }
}

fn any_content(random: &mut Random, now: i64) -> JobContent {
    let finished_ms = (random.below(4) == 0).then_some(now);
    JobContent { document: random.below(3).to_string(), state: None, finished_ms }
}

/// Checks that all reads have the same results.
async fn agree(store: &Store, model: &mut Model, namespace: &str, name: &str) {
    assert_eq!(store.live_job(namespace, name).await.unwrap().as_ref(), model.live(namespace, name));
    assert_eq!(store.newest_job(namespace, name).await.unwrap().as_ref(), model.newest(namespace, name));
    model.jobs.sort_by_key(|job| Reverse((job.created_ms, job.uid.clone())));
    let all = JobFilter { include_deleted: true, ..JobFilter::default() };
    assert_eq!(store.jobs(&all, None, 1000).await.unwrap().items, model.jobs);
}

async fn jobs_agree_with_the_model(Scratch { store, .. }: &Scratch) {
    let (mut random, mut model, mut now) = (Random(42), Model::default(), 0);
    let mut outcomes = Vec::new();
    for number in 1..=500 {
        // A day has about twenty operations.
        now += random.below(DAY as u64 / 10) as i64;
        // Prefers the newest jobs; sometimes one that does not exist.
        let back = random.below(1 + model.jobs.len() as u64).min(random.below(9)) as usize;
        let uid = model.jobs.get(back).map_or("none".to_owned(), |job| job.uid.clone());
        let new = any_job(&mut random, number, now);
        let (namespace, name) = (new.namespace.clone(), new.name.clone());
        match random.below(16) {
            0..=5 => {
                let expected = model.create(&new);
                assert_eq!(store.create_job(&new).await.unwrap(), expected);
                outcomes.push(std::mem::discriminant(&expected));
            }
            6 | 7 => {
                // An observation that is late, or was made before.
                let late = NewJob { created_ms: now - random.below(DAY as u64) as i64, ..new };
                assert_eq!(store.upsert_job(&late, now).await.unwrap(), model.put(&late, now));
            }
            8 | 9 => {
                let again = NewJob { uid, ..new };
                if model.get(&again.uid).is_some() {
                    assert_eq!(store.upsert_job(&again, now).await.unwrap(), model.put(&again, now));
                }
            }
            10 => {
                let version = model.get(&uid).map_or(1, |job| job.version) - random.below(2);
                let written = store.replace_job(&uid, version, &new.content).await.unwrap();
                assert_eq!(written, model.replace(&uid, version, &new.content));
            }
            11..=14 => assert_eq!(store.mark_deleted(&uid, now).await.unwrap(), model.mark_deleted(&uid, now)),
            _ => {
                let forgotten = store.delete_finished_before(now - 4 * DAY, 1000).await.unwrap();
                assert_eq!(forgotten.len(), model.forget_before(now - 4 * DAY));
            }
        }
        agree(store, &mut model, &namespace, &name).await;
    }
    let often = |outcome| outcomes.iter().filter(|one| **one == outcome).count();
    let counts = outcomes.iter().map(|outcome| often(*outcome)).collect::<std::collections::BTreeSet<_>>();
    assert!(counts.len() == 4 && counts.first() > Some(&5), "it was worth the while {counts:?}");
}
