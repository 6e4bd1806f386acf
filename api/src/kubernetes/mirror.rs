//! Copies TrainJobs into the database: the row of a job is its last observed version, and stays after the job is
//! deleted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt};
use millrace_crds::{ConditionType, JobState, TrainJob};
use millrace_protocol::error_chain;
use millrace_store::{IdempotencyKey, JobRecord, NewJob, Store};
use tokio::sync::Mutex;

use super::api_errors::api_error;
use super::loops::{Loops, Working};
use super::namespaces::Namespaces;
use crate::document::{content, is_held, job_of, version};
use crate::error::{ApiError, ErrorReason, Result};
use crate::submission::{BODY_DIGEST_ANNOTATION, KEY_ANNOTATION, SUBMITTED_BY_ANNOTATION};

/// Interval of retries while the database does not respond.
const DATABASE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time for one response of the API server: much less than the bound of the watchdog.
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(30);

/// Copies watch events of TrainJobs into the database.
pub struct JobMirror<T> {
    store: Store,
    source: T,
    loops: Arc<Loops>,
    /// By UID.
    seen: Mutex<HashMap<String, MirroredVersion>>,
}

/// The copied state of a job.
#[derive(Clone, Copy, Debug, Default)]
struct MirroredVersion {
    /// The newest version that was written: older ones that a watch delivers late are ignored.
    version: u64,
    /// Whether the job's history is complete.
    is_archived: bool,
}

/// The source of jobs and namespaces.
pub trait JobSource: Send + Sync + 'static {
    /// Whether the job of a row still exists.
    fn exists(&self, row: &JobRecord) -> impl Future<Output = Result<bool>> + Send;

    /// Returns the UID of a namespace that contains jobs; `None` if it does not exist.
    fn namespace_uid(&self, namespace: &str) -> impl Future<Output = Result<Option<String>>> + Send;
}

impl JobSource for Namespaces {
    async fn exists(&self, row: &JobRecord) -> Result<bool> {
        let jobs: Api<TrainJob> = Api::namespaced(self.client().clone(), &row.namespace);
        let there = jobs.get_metadata_opt(&row.name).await.map_err(api_error("get a job"))?;
        Ok(there.is_some_and(|job| job.metadata.uid.as_deref() == Some(&row.uid)))
    }

    async fn namespace_uid(&self, namespace: &str) -> Result<Option<String>> {
        Ok(self.current(namespace).await?.map(|namespace| namespace.uid))
    }
}

impl<T: JobSource> JobMirror<T> {
    /// Copies from `source` to `store`; `loops` records its progress.
    pub fn new(store: Store, source: T, loops: Arc<Loops>) -> Self {
        Self { store, source, loops, seen: Mutex::default() }
    }

    /// Writes the observed version of a job, unless a newer one was written. The end of a job that is already in the
    /// database is written only when its history is complete.
    ///
    /// # Errors
    /// The database or the API server fails.
    pub async fn upsert(&self, job: &TrainJob) -> Result<()> {
        self.write(job, false).await
    }

    /// Writes a job whose history is complete.
    ///
    /// # Errors
    /// Those of [`JobMirror::upsert`].
    pub async fn upsert_archived(&self, job: &TrainJob) -> Result<()> {
        self.write(job, true).await
    }

    async fn write(&self, job: &TrainJob, is_archived: bool) -> Result<()> {
        let (uid, version) = (job.uid().unwrap_or_default(), version(job));
        // Locked until the row is written, so that of two versions the newer one is written last.
        let mut seen = self.seen.lock().await;
        let known = seen.get(&uid).copied().unwrap_or_default();
        let is_archived = is_archived || known.is_archived;
        let is_finished = job.status.as_ref().is_some_and(|status| status.is(ConditionType::Finished));
        let waits = is_finished
            && !is_archived
            && job.metadata.deletion_timestamp.is_none()
            && self.store.job(&uid).await?.is_some();
        if version <= known.version || waits {
            return Ok(());
        }
        let now = Timestamp::now().as_millisecond();
        self.store.upsert_job(&row(job)?, now).await?;
        if known.version == 0
            && job.metadata.deletion_timestamp.is_none()
            && let Some(namespace) = in_time(self.source.namespace_uid(&job.namespace().unwrap_or_default())).await?
        {
            self.store.put_namespace_uid(&uid, &namespace).await?;
        }
        // A finished job that finalizers hold is still listed, with its state, until it is gone.
        if let Some(deleted) = &job.metadata.deletion_timestamp
            && !(is_finished && is_held(job))
        {
            self.store.mark_deleted(&uid, deleted.0.as_millisecond().min(now)).await?;
        }
        seen.insert(uid, MirroredVersion { version, is_archived });
        Ok(())
    }

    /// Marks a job deleted that no longer exists, at the time of its deletion if that was observed.
    ///
    /// # Errors
    /// The database fails.
    pub async fn mark_deleted(&self, uid: &str) -> Result<()> {
        let now = Timestamp::now();
        let mut observed = self.store.job(uid).await?.and_then(|row| job_of(&row).ok());
        let deleted = observed.as_mut().map(|job| job.metadata.deletion_timestamp.get_or_insert(Time(now)).0);
        self.store.mark_deleted(uid, deleted.unwrap_or(now).min(now).as_millisecond()).await?;
        // The last observed version has the finalizers that held the job. With them its state would stay `Deleting`.
        if let Some(mut job) = observed
            && job.metadata.finalizers.take().is_some()
        {
            self.store.upsert_job(&row(&job)?, now.as_millisecond()).await?;
        }
        self.seen.lock().await.remove(uid);
        Ok(())
    }

    /// Marks jobs as deleted that are live or held in the database and not in `listed`. Live jobs are looked up first:
    /// a request may have created them after the list.
    async fn mark_unlisted_deleted(&self, listed: &HashSet<String>, working: &Working<'_>) -> Result<()> {
        for row in self.store.deleted_jobs(JobState::Deleting.as_str()).await? {
            if !listed.contains(&row.uid) {
                self.mark_deleted(&row.uid).await?;
            }
            working.record_progress();
        }
        for row in self.store.live_jobs().await? {
            if !listed.contains(&row.uid) && !in_time(self.source.exists(&row)).await? {
                self.mark_deleted(&row.uid).await?;
            }
            working.record_progress();
        }
        Ok(())
    }

    /// Writes all `events` in their order, until the stream ends. After each, `then` is called with the UIDs of the
    /// current list. While the database fails, events wait.
    pub async fn follow(
        self: Arc<Self>,
        events: impl Stream<Item = Event<TrainJob>> + Send,
        then: impl Fn(&Event<TrainJob>, &HashSet<String>) + Send,
    ) {
        let mut listed = HashSet::new();
        tokio::pin!(events);
        while let Some(event) = events.next().await {
            match &event {
                Event::Init => listed.clear(),
                Event::InitApply(job) => drop(listed.insert(job.uid().unwrap_or_default())),
                _ => {}
            }
            let mut is_logged = false;
            while let Err(error) = self.put_event(&event, &listed).await {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!("can't write observed jobs to the database, retrying: {}", error_chain(&error));
                }
                tokio::time::sleep(DATABASE_RETRY_INTERVAL).await;
            }
            then(&event, &listed);
        }
    }

    async fn put_event(&self, event: &Event<TrainJob>, listed: &HashSet<String>) -> Result<()> {
        let working = self.loops.jobs.begin();
        match event {
            Event::Init => Ok(()),
            Event::InitApply(job) | Event::Apply(job) => self.upsert(job).await,
            Event::InitDone => self.mark_unlisted_deleted(listed, &working).await,
            Event::Delete(job) => self.mark_deleted(&job.uid().unwrap_or_default()).await,
        }
    }
}

/// Limits the wait for the API server, so that its outage does not count as a stuck loop of this server.
async fn in_time<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    let late = || ApiError::new(ErrorReason::Unavailable, "the cluster's API server did not respond in time");
    tokio::time::timeout(API_SERVER_TIMEOUT, answer).await.unwrap_or_else(|_| Err(late()))
}

fn row(job: &TrainJob) -> Result<NewJob> {
    let mut plain = job.clone();
    // Managed fields are of no use to clients, and as long as the rest.
    plain.metadata.managed_fields = None;
    let annotation = |name: &str| job.annotations().get(name).cloned();
    Ok(NewJob {
        uid: job.uid().unwrap_or_default(),
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        created_ms: job.creation_timestamp().map_or(0, |time| time.0.as_millisecond()),
        submitted_by: annotation(SUBMITTED_BY_ANNOTATION),
        key: annotation(KEY_ANNOTATION)
            .zip(annotation(BODY_DIGEST_ANNOTATION))
            .map(|(key, body_hash)| IdempotencyKey { key, body_hash }),
        content: content(&plain)?,
    })
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use millrace_crds::{StoredParams, TrainJobSpec};
    use millrace_store::{JobFilter, StoreOptions};
    use serde_json::json;

    use super::*;

    fn seen(uid: &str, name: &str, version: u64, num_csx: u32) -> TrainJob {
        let mut job = TrainJob::new(name, TrainJobSpec::new(num_csx, StoredParams::default()));
        job.metadata.namespace = Some("team".to_owned());
        job.metadata.uid = Some(uid.to_owned());
        job.metadata.resource_version = Some(version.to_string());
        job.metadata.creation_timestamp = Some(Time(Timestamp::from_second(i64::try_from(version).unwrap()).unwrap()));
        job
    }

    /// A source in which only the jobs with these UIDs exist.
    struct Only(&'static [&'static str]);

    impl JobSource for Only {
        async fn exists(&self, row: &JobRecord) -> Result<bool> {
            Ok(self.0.contains(&row.uid.as_str()))
        }

        async fn namespace_uid(&self, namespace: &str) -> Result<Option<String>> {
            Ok(Some(format!("uid of {namespace}")))
        }
    }

    async fn mirrored(store: &Store, events: Vec<Event<TrainJob>>) {
        // A request creates `d` while the list is being read.
        Arc::new(JobMirror::new(store.clone(), Only(&["d"]), Arc::default()))
            .follow(stream::iter(events), |_, _| {})
            .await;
    }

    #[tokio::test]
    async fn mirror_keeps_the_newest_version() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("db").display());
        let store = Store::open(&url, StoreOptions::default()).await.unwrap();
        let systems = async |uid: &str| {
            let row = store.job(uid).await.unwrap().unwrap();
            let job: TrainJob = serde_json::from_str(&row.content.document).unwrap();
            (job.spec.num_csx, row.deleted_ms.is_some())
        };
        let late = || Event::Apply(seen("a", "one", 5, 1));
        mirrored(
            &store,
            vec![
                Event::Init,
                Event::InitApply(seen("a", "one", 5, 1)),
                Event::InitApply(seen("b", "two", 6, 1)),
                Event::InitDone,
                Event::Apply(seen("a", "one", 7, 4)),
                late(),
            ],
        )
        .await;
        assert_eq!(systems("a").await, (4, false), "the older version changed nothing");
        assert_eq!(store.job("a").await.unwrap().unwrap().namespace_uid.as_deref(), Some("uid of team"));
        JobMirror::new(store.clone(), Only(&[]), Arc::default()).upsert(&seen("d", "new", 8, 1)).await.unwrap();
        // The server was restarted: meanwhile one job was deleted and another of its name created.
        mirrored(&store, vec![Event::Init, Event::InitApply(seen("c", "two", 9, 2)), Event::InitDone]).await;
        assert_eq!((systems("a").await, systems("b").await, systems("c").await), ((4, true), (1, true), (2, false)));
        assert_eq!(systems("d").await, (1, false), "what is not listed may be newer than the list");
        // A held job is deleted for its user; its last entries still count.
        let mut going = seen("c", "two", 10, 3);
        going.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(100).unwrap()));
        going.metadata.finalizers = Some(vec!["millrace.dev/archive".to_owned()]);
        let held = async || {
            let row = store.job("c").await.unwrap().unwrap();
            (row.content.state.clone(), job_of(&row).unwrap().metadata.finalizers.is_some())
        };
        mirrored(&store, vec![Event::Apply(going.clone())]).await;
        assert_eq!(held().await, (Some("Deleting".to_owned()), true));
        // It was deleted while no server was watching.
        mirrored(&store, vec![Event::Init, Event::InitDone]).await;
        assert_eq!(held().await, (None, false));
        mirrored(&store, vec![Event::Apply(going), Event::Delete(seen("c", "two", 11, 3))]).await;
        assert_eq!((systems("c").await, held().await), ((3, true), (None, false)));
        assert_eq!(store.job("c").await.unwrap().unwrap().deleted_ms, Some(100_000));
    }

    fn finished_job(uid: &str, version: u64) -> TrainJob {
        let mut job = seen(uid, "one", version, 1);
        let condition = |of: &str| {
            let time = "2026-01-01T00:00:00Z";
            json!({"type": of, "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": time})
        };
        let conditions = [condition("Finished"), condition("Succeeded")];
        let status = json!({"conditions": conditions, "finishTime": "2026-01-01T00:00:00Z"});
        job.status = Some(serde_json::from_value(status).unwrap());
        job
    }

    #[tokio::test]
    async fn finished_job_is_listed_while_finalizers_hold_it() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("db").display());
        let store = Store::open(&url, StoreOptions::default()).await.unwrap();
        let listed = async || {
            let page = store.jobs(&JobFilter::default(), None, 9).await.unwrap();
            page.items.iter().map(|row| (row.uid.clone(), row.content.state.clone())).collect::<Vec<_>>()
        };
        let mut held = finished_job("a", 2);
        held.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(100).unwrap()));
        held.metadata.finalizers = Some(vec!["example.org/billing".to_owned()]);
        mirrored(&store, vec![Event::Apply(finished_job("a", 1)), Event::Apply(held.clone())]).await;
        assert_eq!(listed().await, [("a".to_owned(), Some("Succeeded".to_owned()))]);
        mirrored(&store, vec![Event::Apply(held.clone()), Event::Delete(held)]).await;
        assert_eq!(listed().await, []);
        assert_eq!(store.job("a").await.unwrap().unwrap().deleted_ms, Some(100_000));
    }

    #[tokio::test]
    async fn job_is_finished_when_its_history_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("db").display());
        let store = Store::open(&url, StoreOptions::default()).await.unwrap();
        let mirror = JobMirror::new(store.clone(), Only(&[]), Arc::default());
        let over = |version| finished_job("a", version);
        let finished = async || store.job("a").await.unwrap().unwrap().content.finished_ms.is_some();
        mirror.upsert(&seen("a", "one", 1, 1)).await.unwrap();
        mirror.upsert(&over(2)).await.unwrap();
        assert!(!finished().await, "what it wrote is not copied yet");
        mirror.upsert_archived(&over(2)).await.unwrap();
        assert!(finished().await);
        mirror.upsert(&over(3)).await.unwrap();
        assert_eq!(store.job("a").await.unwrap().unwrap().version, 3, "it stays whole");
    }
}
