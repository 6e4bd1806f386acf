//! Stores jobs and appliances as an API server does: versioned, with streams of changes. The database is authoritative;
//! a change is sent to the streams after it is committed, in the order of the writes.

use std::sync::Mutex;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::{self, Store as View};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher::Result as Watched};
use kube::{Resource, ResourceExt};
use millrace_crds::{Appliance, TrainJob};
use millrace_store::{CreateResult, NewEvent, NewJob, Store};
use serde_json::Value;
use tokio::sync::Mutex as AsyncMutex;

use super::claim::DataDirClaim;
use crate::document::{content, from_json_text, job_of, to_json_text, version};
use crate::error::{ApiError, ErrorReason, Result};

/// Tries of a change whose object is being changed concurrently.
const MAX_WRITE_TRIES: usize = 16;

/// Jobs and appliances, with the streams of their changes.
pub struct ObjectStore {
    store: Store,
    jobs: ChangeFeed<TrainJob>,
    appliances: ChangeFeed<Appliance>,
    /// Held from a write until its event is sent, so that events have the order of the writes.
    writing: AsyncMutex<()>,
}

/// Sends changes to all listeners.
struct ChangeFeed<K> {
    listeners: Mutex<Vec<UnboundedSender<Event<K>>>>,
}

/// A view of all objects of a kind, and the streams that a controller needs.
pub struct Watch<K: Resource<DynamicType = ()> + 'static> {
    /// Every object; kept up to date by the stream of applied ones.
    pub view: View<K>,
    /// Objects that were created or changed; polling it updates the view.
    pub applied: BoxStream<'static, Watched<K>>,
    /// Objects that were created, changed or deleted.
    pub touched: BoxStream<'static, Watched<K>>,
}

impl<K: Clone> ChangeFeed<K> {
    fn new() -> Self {
        Self { listeners: Mutex::default() }
    }

    fn listen(&self) -> UnboundedReceiver<Event<K>> {
        let (sender, receiver) = unbounded();
        self.listeners.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(sender);
        receiver
    }

    fn publish(&self, event: &Event<K>) {
        let mut all = self.listeners.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.retain(|listener| listener.unbounded_send(event.clone()).is_ok());
    }
}

impl<K> ChangeFeed<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + Sync + 'static,
{
    fn watch(&self, existing: Vec<K>) -> Watch<K> {
        let (view, mut writer) = reflector::store();
        let (to_view, touched) = (self.listen(), self.listen());
        let initial_events: Vec<Event<K>> = std::iter::once(Event::Init)
            .chain(existing.into_iter().map(Event::InitApply))
            .chain([Event::InitDone])
            .collect();
        // The view is complete from the beginning, whether or not the stream is polled. If several tasks waited for it,
        // only one of them would be woken.
        initial_events.iter().for_each(|event| writer.apply_watcher_event(event));
        let applied = futures::stream::iter(initial_events.clone()).chain(to_view).map(Ok::<_, watcher::Error>);
        let touched = futures::stream::iter(initial_events).chain(touched).map(Ok);
        Watch {
            view,
            applied: reflector::reflector(writer, applied).applied_objects().boxed(),
            touched: touched.touched_objects().boxed(),
        }
    }
}

impl ObjectStore {
    /// Stores objects in `store`.
    pub fn new(store: Store) -> Self {
        Self { store, jobs: ChangeFeed::new(), appliances: ChangeFeed::new(), writing: AsyncMutex::default() }
    }

    /// Returns the database.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Returns all live jobs and their changes from now on.
    ///
    /// # Errors
    /// The database fails.
    pub async fn watch_jobs(&self) -> Result<Watch<TrainJob>> {
        let _guard = self.writing.lock().await;
        Ok(self.jobs.watch(self.live_jobs().await?))
    }

    /// Returns all live jobs. One that this version can't read is skipped, with a warning in the log.
    ///
    /// # Errors
    /// The database fails.
    pub async fn live_jobs(&self) -> Result<Vec<TrainJob>> {
        let rows = self.store.live_jobs().await?;
        Ok(rows.iter().filter_map(|row| from_json_text(&row.name, &row.content.document)).collect())
    }

    /// Returns all appliances and their changes from now on.
    ///
    /// # Errors
    /// The database fails.
    pub async fn watch_appliances(&self) -> Result<Watch<Appliance>> {
        let _guard = self.writing.lock().await;
        let rows = self.store.appliances().await?;
        Ok(self.appliances.watch(rows.iter().filter_map(|row| from_json_text(&row.name, &row.document)).collect()))
    }

    /// Returns a stream of the UIDs of jobs that are deleted from now on.
    pub fn deleted_jobs(&self) -> BoxStream<'static, String> {
        let deleted = self.jobs.listen().filter_map(|event| {
            std::future::ready(match event {
                Event::Delete(job) => job.uid(),
                _ => None,
            })
        });
        deleted.boxed()
    }

    /// Stores a new job. `object` is complete except for UID, version, generation and creation time, which are set
    /// here.
    ///
    /// # Errors
    /// The job can't be parsed, or the database fails. A name or key in use is a result: [`ErrorReason::AlreadyExists`],
    /// [`ErrorReason::IdempotencyKeyReused`].
    pub async fn create_job(&self, object: Value, new: NewObject) -> Result<crate::submission::SubmitResult> {
        let now = Timestamp::now();
        let mut job: TrainJob =
            serde_json::from_value(object).map_err(|error| ApiError::internal("store an admitted job", error))?;
        job.metadata.uid = Some(uuid::Uuid::new_v4().to_string());
        job.metadata.creation_timestamp = Some(Time(now));
        job.metadata.generation = Some(1);
        job.metadata.resource_version = Some("1".to_owned());
        let row = NewJob {
            uid: job.uid().unwrap_or_default(),
            namespace: job.namespace().unwrap_or_default(),
            name: job.name_any(),
            created_ms: now.as_millisecond(),
            submitted_by: Some(new.submitter),
            key: new.key,
            content: content(&job)?,
        };
        let _guard = self.writing.lock().await;
        match self.store.create_job(&row).await? {
            CreateResult::New(_) => {
                self.jobs.publish(&Event::Apply(job.clone()));
                Ok(crate::submission::SubmitResult::New(Box::new(job)))
            }
            CreateResult::Replayed(before) => Ok(crate::submission::SubmitResult::Replayed(Box::new(job_of(&before)?))),
            CreateResult::KeyReused => Err(ApiError::idempotency_key_reused()),
            CreateResult::NameTaken => Err(ApiError::name_taken(&row.namespace, &row.name)),
        }
    }

    /// Returns the live job with this UID.
    ///
    /// # Errors
    /// The database fails.
    pub async fn job(&self, uid: &str) -> Result<Option<TrainJob>> {
        let row = self.store.job(uid).await?.filter(|row| row.deleted_ms.is_none());
        Ok(row.and_then(|row| from_json_text(&row.name, &row.content.document)))
    }

    /// Changes the job with this UID, whatever its version; `None` if it does not exist. `change` may be called more
    /// than once.
    ///
    /// # Errors
    /// Those of `change`; the database fails; [`ErrorReason::Conflict`] after too many concurrent changes.
    pub async fn change_job(
        &self,
        uid: &str,
        mut change: impl FnMut(&mut TrainJob) -> Result<()>,
    ) -> Result<Option<TrainJob>> {
        for _ in 0..MAX_WRITE_TRIES {
            let Some(job) = self.job(uid).await? else { return Ok(None) };
            let mut changed = job.clone();
            change(&mut changed)?;
            if changed == job {
                return Ok(Some(job));
            }
            if let Some(written) = self.replace_job(changed).await? {
                return Ok(Some(written));
            }
        }
        Err(ApiError::new(ErrorReason::Conflict, "write conflict: the job keeps changing; try again"))
    }

    /// Replaces the version that `job` was made from; `None` if the database has another version by now.
    ///
    /// # Errors
    /// The database fails.
    pub async fn replace_job(&self, mut job: TrainJob) -> Result<Option<TrainJob>> {
        let (uid, version) = (job.uid().unwrap_or_default(), version(&job));
        job.metadata.resource_version = Some((version + 1).to_string());
        let content = content(&job)?;
        let _guard = self.writing.lock().await;
        if self.store.replace_job(&uid, version, &content).await?.is_none() {
            return Ok(None);
        }
        self.jobs.publish(&Event::Apply(job.clone()));
        Ok(Some(job))
    }

    /// Marks a job deleted; returns false if it was already.
    ///
    /// # Errors
    /// The database fails.
    pub async fn delete_job(&self, job: &TrainJob) -> Result<bool> {
        let _guard = self.writing.lock().await;
        let deleted =
            self.store.mark_deleted(&job.uid().unwrap_or_default(), Timestamp::now().as_millisecond()).await?;
        if deleted {
            self.jobs.publish(&Event::Delete(job.clone()));
        }
        Ok(deleted)
    }

    /// Sends the deletion of `job` to the streams.
    pub fn publish_deleted(&self, job: &TrainJob) {
        self.jobs.publish(&Event::Delete(job.clone()));
    }

    /// Returns the appliance with this name.
    ///
    /// # Errors
    /// The database fails.
    pub async fn appliance(&self, name: &str) -> Result<Option<Appliance>> {
        Ok(self.store.appliance(name).await?.and_then(|row| from_json_text(&row.name, &row.document)))
    }

    /// Creates `appliance`, or updates the spec of the existing one, whose ledger stays. Its UID ties the database to
    /// the directory of `claim`.
    ///
    /// # Errors
    /// The database fails, and those of [`DataDirClaim`].
    pub async fn ensure_appliance(&self, mut appliance: Appliance, claim: &DataDirClaim) -> Result<()> {
        let name = appliance.name_any();
        loop {
            if let Some(mut existing) = self.appliance(&name).await? {
                claim.check_bound(&existing)?;
                let before = existing.clone();
                claim.bind(&mut existing)?;
                if existing.spec != appliance.spec {
                    existing.spec = appliance.spec.clone();
                    existing.metadata.generation = existing.metadata.generation.map(|generation| generation + 1);
                }
                if existing != before && self.replace_appliance(existing).await?.is_none() {
                    continue;
                }
                return Ok(());
            }
            if self.store.appliance(&name).await?.is_some() {
                return Err(ApiError::new(
                    ErrorReason::Conflict,
                    format!(
                        "the appliance {name} in the database can't be read: run the release that wrote it, or a later one"
                    ),
                ));
            }
            appliance.metadata.uid = Some(uuid::Uuid::new_v4().to_string());
            claim.bind(&mut appliance)?;
            appliance.metadata.generation = Some(1);
            appliance.metadata.resource_version = Some("1".to_owned());
            self.store.create_appliance(&name, &to_json_text(&appliance)?).await?;
        }
    }

    /// Like [`ObjectStore::replace_job`], for an appliance.
    ///
    /// # Errors
    /// The database fails.
    pub async fn replace_appliance(&self, mut appliance: Appliance) -> Result<Option<()>> {
        let version = version(&appliance);
        appliance.metadata.resource_version = Some((version + 1).to_string());
        let document = to_json_text(&appliance)?;
        let _guard = self.writing.lock().await;
        if self.store.replace_appliance(&appliance.name_any(), version, &document).await?.is_none() {
            return Ok(None);
        }
        self.appliances.publish(&Event::Apply(appliance));
        Ok(Some(()))
    }

    /// Adds an event to a job.
    ///
    /// # Errors
    /// The database fails.
    pub async fn add_event(&self, uid: &str, warning: bool, reason: &str, message: &str) -> Result<()> {
        let at_ms = Timestamp::now().as_millisecond();
        let event = NewEvent { at_ms, warning, reason: reason.to_owned(), message: message.to_owned() };
        self.store.add_event(uid, &event).await?;
        Ok(())
    }
}

/// The attributes of a new job that are not in its document.
#[derive(Clone, Debug)]
pub struct NewObject {
    /// Name of the user who submitted it.
    pub submitter: String,
    /// Idempotency key of the request.
    pub key: Option<millrace_store::IdempotencyKey>,
}
