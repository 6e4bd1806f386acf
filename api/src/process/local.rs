//! The process backend: stores jobs and runs the control loop over them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use kube::ResourceExt;
use millrace_agents::epoch::Epoch;
use millrace_control::launch::resolved_job;
use millrace_control::metrics::Metrics;
use millrace_control::watchdog::Watchdog;
use millrace_control::{Control, Parts, Streams, World};
use millrace_crds::{Appliance, Resolution, TrainJob};
use millrace_params::{LabelName, ObjectName};
use millrace_store::{Incarnation, Store};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::claim::Claim;
use super::inputs;
use super::objects::{NewObject, Objects};
use super::priorities;
use super::site::Directories;
use super::world::Machine;
use crate::backend::{Backend, Change, Created, Order, Target, Text, Volume};
use crate::compute::Compute;
use crate::document::job_of;
use crate::files::{Exports, Files, LocalFiles};
use crate::plan::{Plan, Planner};
use crate::refusal::{Reason, Refusal, Result};

/// Jobs that are deleted from the database at a time.
const FORGOTTEN: u32 = 16;
/// Time for coordinators to save their state when the server shuts down.
const SAVING: Duration = Duration::from_secs(60);

/// Settings of the backend.
pub struct Settings {
    /// The server's directories.
    pub directories: Directories,
    /// Whether the database is a file of the data directory.
    pub holds_database: bool,
    /// The appliance that is emulated; its name is `default`.
    pub appliance: Appliance,
    /// Threads for planning.
    pub compute: Compute,
    /// Limit on the bytes of exported checkpoints, all together.
    pub export_bytes: u64,
}

/// The process backend.
pub struct Local {
    objects: Arc<Objects>,
    machine: Arc<Machine>,
    control: Arc<Control<Machine>>,
    planner: Planner,
    compute: Compute,
    exports: Exports,
    ending: watch::Sender<bool>,
    running: tokio::sync::Mutex<Vec<JoinHandle<()>>>,
    /// Held as long as the server lives.
    _claim: Claim,
}

impl Local {
    /// Starts the control loop. Unfinished jobs of an earlier server continue as a new attempt.
    ///
    /// # Errors
    /// The database or a directory can't be used.
    pub async fn start(store: Store, settings: Settings) -> Result<Self> {
        let Settings { directories, holds_database, appliance, compute, export_bytes } = settings;
        let claim = Claim::take(&directories.data, holds_database)?;
        directories.make().map_err(|error| Refusal::internal("make the server's directories", &error))?;
        let exports = Exports::new(directories.data.join("exports"), export_bytes);
        exports.clean_up().await;
        let objects = Arc::new(Objects::new(store));
        objects.seed_appliance(appliance, &claim).await?;
        let (visits, wanted) = mpsc::unbounded_channel();
        let machine = Arc::new(Machine::new(objects.clone(), directories.clone(), visits.clone()).await?);
        let (jobs, appliances) = (objects.watch_jobs().await?, objects.watch_appliances().await?);
        let deleted = objects.deleted_jobs();
        let parts = Parts {
            world: machine.clone(),
            site: Arc::new(directories.clone()),
            jobs: jobs.view,
            appliances: appliances.view,
            metrics: Arc::new(Metrics::default()),
            watchdog: Arc::new(Watchdog::default()),
            visits,
            workers: compute.workers().clone(),
        };
        let control = Arc::new(Control::new(parts));
        let understanding = control.understanding.clone();
        let (jobs_view, appliances_view) = (control.jobs.clone(), control.appliances.clone());
        let planner = Planner::new(jobs_view, appliances_view, understanding, compute.clone())?.on_this_host();
        let streams = Streams {
            jobs: jobs.applied,
            appliances: appliances.applied,
            touched_jobs: jobs.touched,
            touched_appliances: appliances.touched,
            wanted,
        };
        let (ending, ended) = watch::channel(false);
        let visiting = tokio::spawn(millrace_control::run(control.clone(), streams, ended, |jobs| jobs));
        let world = machine.clone();
        let ending_jobs = tokio::spawn(deleted.for_each(move |uid| {
            world.end(&uid);
            std::future::ready(())
        }));
        let running = tokio::sync::Mutex::new(vec![visiting, ending_jobs]);
        Ok(Self { objects, machine, control, planner, compute, exports, ending, running, _claim: claim })
    }

    /// Rejects a job whose data files are missing; returns the epoch of its training data and its last step, if they
    /// are known.
    async fn look_at_data(
        &self,
        order: &Order,
        job: &TrainJob,
        resolution: &Resolution,
    ) -> Result<(Option<Epoch>, Option<u64>)> {
        let (mut resolved, _) = resolved_job(resolution).map_err(|error| Refusal::internal("plan a job", &error))?;
        let (directories, job, texts) = (self.machine.directories.clone(), job.clone(), order.texts.clone());
        let looking = self.compute.run_heavy(&order.account, move || {
            let epoch = inputs::look(&directories, &job, &resolved, texts.as_ref());
            let epoch = epoch.map_err(|why| Refusal::new(Reason::BadParams, why))?;
            if let Some(epoch) = epoch {
                resolved.limit_by_epochs(epoch.samples);
            }
            Ok((epoch, resolved.run.known_max_steps()))
        });
        looking.await
    }

    /// Returns the exported checkpoints of the job with this UID, which the server itself has assigned.
    fn exports_of(&self, uid: &str) -> Result<Exports> {
        let uid = ObjectName::new(uid).map_err(|error| Refusal::internal("find the exports of a job", &error))?;
        Ok(self.exports.of_job(&uid))
    }
}

#[async_trait]
impl Backend for Local {
    fn name(&self) -> &'static str {
        "process"
    }

    async fn dry_run(&self, order: &Order) -> Result<TrainJob> {
        let (_, job) = self.planner.admitted(order, &priorities::all()).await?;
        if let Some(known) = order.before(self.objects.store(), None).await? {
            return job_of(&known);
        }
        let resolution = self.planner.understood(&order.account, &job).await?;
        self.look_at_data(order, &job, &resolution).await?;
        let name = job.name_any();
        if self.objects.store().live_job(&order.namespace, &name).await?.is_some() {
            return Err(Refusal::name_taken(&order.namespace, &name));
        }
        Ok(self.planner.with_notes(job, resolution))
    }

    async fn create(&self, order: Order) -> Result<Created> {
        let (object, job) = self.planner.admitted(&order, &priorities::all()).await?;
        if order.before(self.objects.store(), None).await?.is_none() {
            // A job that can never run is rejected now, not at its first reconcile.
            let resolution = self.planner.understood(&order.account, &job).await?;
            self.look_at_data(&order, &job, &resolution).await?;
        }
        if let Some(texts) = &order.texts {
            let namespace = LabelName::new(&*order.namespace)
                .map_err(|error| Refusal::new(Reason::Invalid, format!("metadata.namespace: {error}")))?;
            let dir = self.machine.directories.texts(&namespace, &texts.config_map);
            let kept = keep_texts(&dir, &texts.files).await;
            kept.map_err(|error| Refusal::internal("keep the texts of a job", &error))?;
        }
        let created = self.objects.create_job(object, NewObject { submitter: order.submitter, key: order.key }).await;
        if !matches!(created, Ok(Created::New(_))) && order.texts.is_some() {
            // No job was created. Another job may have the same uploads.
            self.machine.directories.remove_texts(&job, &self.objects.live_jobs().await?).await;
        }
        created
    }

    async fn change(&self, account: &str, target: Target<'_>, change: Change) -> Result<TrainJob> {
        let Target { namespace, name, uid } = target;
        if let (Change::Scale(num_csx), Some(mut job)) = (change, self.objects.job(uid).await?) {
            job.spec.num_csx = num_csx;
            // A job that can never run with this number is rejected.
            self.planner.understood(account, &job).await?;
        }
        let changed = self.objects.change_job(uid, |job| {
            let before = serde_json::to_value(&*job).unwrap_or_default();
            match change {
                Change::Suspend(suspend) => job.spec.suspend = suspend,
                Change::Scale(num_csx) => job.spec.num_csx = num_csx,
            }
            let after = serde_json::to_value(&*job).unwrap_or_default();
            if after["spec"] != before["spec"] {
                self.planner.definition.admit(&after, Some(&before))?;
                job.metadata.generation = job.metadata.generation.map(|generation| generation + 1);
            }
            Ok(())
        });
        changed.await?.ok_or_else(|| Refusal::no_job(namespace, name))
    }

    async fn delete(&self, namespace: &str, name: &str, uid: &str) -> Result<TrainJob> {
        let job = self.objects.job(uid).await?.ok_or_else(|| Refusal::no_job(namespace, name))?;
        self.machine.forget(&job).await?;
        self.exports_of(uid)?.remove().await;
        Ok(job)
    }

    async fn appliance(&self, name: &str) -> Result<Option<Appliance>> {
        self.objects.appliance(name).await
    }

    async fn plan(&self, order: &Order) -> Result<Plan> {
        let priorities = priorities::all();
        let (_, job) = self.planner.admitted(order, &priorities).await?;
        let (plan, resolution) = self.planner.plan_and_resolve(&order.account, job.clone(), &priorities).await?;
        match resolution.filter(|_| order.may_create) {
            Some(resolution) => {
                let (epoch, last_step) = self.look_at_data(order, &job, &resolution).await?;
                Ok(plan.with_epoch(epoch, last_step))
            }
            None => Ok(plan),
        }
    }

    async fn volumes(&self, namespace: &str) -> Result<Vec<Volume>> {
        // No volume is granted to what is not a namespace.
        let Ok(namespace) = LabelName::new(namespace) else { return Ok(Vec::new()) };
        let granted = self.machine.directories.granted(&namespace).into_iter();
        Ok(granted.map(|(name, volume)| Volume { name: name.to_string(), message: volume.described() }).collect())
    }

    /// Always `None`: namespaces are only names in tokens and paths, and can't be recreated.
    async fn incarnation(&self, _: &str) -> Result<Option<Incarnation>> {
        Ok(None)
    }

    fn metrics(&self) -> String {
        self.control.metrics.render()
    }

    fn stuck(&self) -> Option<String> {
        self.control.watchdog.stuck()
    }

    /// Deletes the jobs themselves, too; their files stay.
    async fn forget(&self, before_ms: i64) -> Result<usize> {
        let uids = self.objects.store().forget_before(before_ms, FORGOTTEN).await?;
        let is_forgotten = |job: &Arc<TrainJob>| job.uid().is_some_and(|uid| uids.contains(&uid));
        let (forgotten, others): (Vec<_>, Vec<_>) = self.control.jobs.state().into_iter().partition(is_forgotten);
        let others: Vec<TrainJob> = others.into_iter().map(|job| TrainJob::clone(&job)).collect();
        for uid in &uids {
            self.exports_of(uid)?.remove().await;
        }
        for job in forgotten {
            self.machine.directories.remove_reports(&job).await;
            self.machine.directories.remove_texts(&job, &others).await;
            self.objects.tell_gone(&job);
        }
        Ok(uids.len())
    }

    /// Stops the control loop, and then all jobs: they save their state and their processes end.
    async fn shut_down(&self) {
        let _ = self.ending.send(true);
        let mut running = self.running.lock().await;
        let visiting = running.remove(0);
        // A reconcile in progress may start processes, so it has to end first.
        let _ = visiting.await;
        running.drain(..).for_each(|task| task.abort());
        self.machine.shut_down(SAVING).await;
    }

    async fn files(&self, job: &TrainJob) -> Result<Arc<dyn Files>> {
        let written = job.status.as_ref().and_then(|status| status.resolved.as_ref()?.model_dir.clone());
        let model_dir = written.ok_or_else(Refusal::no_files)?;
        if !self.machine.directories.is_readable(job, Path::new(&model_dir)) {
            return Err(Refusal::new(
                Reason::Gone,
                "the job's files lie in a volume that its namespace may not use any more",
            ));
        }
        let exports = self.exports_of(&job.uid().unwrap_or_default())?;
        Ok(Arc::new(LocalFiles::new(model_dir.into(), exports)))
    }
}

async fn keep_texts(dir: &std::path::Path, texts: &[Text]) -> std::io::Result<()> {
    tokio::fs::create_dir_all(dir).await?;
    for text in texts {
        tokio::fs::write(dir.join(&text.name), &text.content).await?;
    }
    Ok(())
}
