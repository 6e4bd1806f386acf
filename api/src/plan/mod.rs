//! Plans a job that is not created yet: whether it is valid, whether it can run, on which systems, when it would start
//! and how long it would take. Both backends use it, over views of the existing jobs and appliances.

mod forecast;

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store as View};
use millrace_agents::dataset_epoch::DatasetEpoch;
use millrace_agents::host::{self, HostMemory, HostPlan};
use millrace_control::record::resolved_job;
use millrace_control::requirements::ProjectedTime;
use millrace_control::{
    OverBudget, PlanCache, PriorityValues, ResolveError, ResourceRequirements, ledger, reject_heavy,
};
use millrace_crds::{Appliance, FILES_DIR, Grant, QueueReason, QueueStatus, ResolvedJob, TrainJob};
use millrace_lifecycle::{QueueEntry, SystemRequest, is_waiting};
use millrace_params::JobSpec;
use millrace_protocol::error_chain;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::admission::AdmissionSchema;
use crate::compute::ComputePool;
use crate::error::{ApiError, ErrorReason, FieldError, Result};
use crate::submission::{SubmitRequest, UPLOADS_DIR};
use forecast::{RunningJob, forecast};

/// UID of a job that is only planned.
const PLANNED_JOB_UID: &str = "planned";

/// The plan of a job: its needs and its start if it were submitted now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobPlan {
    /// Whether the appliance could run the job if no other job used it.
    pub fits: bool,
    /// Why the job does not fit or would wait; the values are those of `queue.reason`. If the model is too large for
    /// the appliance, needs and times are unknown.
    pub reason: Option<String>,
    /// The reason as a sentence.
    pub message: String,
    /// Systems that the job would get now; empty if it would wait.
    pub systems: Vec<String>,
    /// Position in the queue, if the job would wait.
    pub queue: Option<QueueStatus>,
    /// Estimated start; omitted if the end of a job ahead in the queue is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub estimated_start: Option<Timestamp>,
    /// Projected times on real systems, from the time model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projected: Option<ProjectedTime>,
    /// Agents of each role and their bytes.
    pub needs: Value,
    /// Needs on this server's host, if agents are processes of that host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostPlan>,
    /// Size of an epoch of the training data, if known without tokenizing the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<DatasetEpoch>,
    /// What was not checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Reason of a plan whose job is too large for the host of the server.
const REASON_EXCEEDS_HOST: &str = "ExceedsHost";
/// Note of a plan whose data files this server can't read.
const DATA_UNCHECKED_NOTE: &str = "data files are not checked here, because this server does not mount the volumes of \
    the cluster: a job fails at its start if one is missing";

impl JobPlan {
    /// Completes a plan with the epoch of the training data and the last step, from which the total time follows.
    #[must_use]
    pub fn with_epoch(self, epoch: Option<DatasetEpoch>, last_step: Option<u64>) -> Self {
        let steps = last_step.map(|steps| steps as f64);
        let projected = self.projected.map(|projected| ProjectedTime {
            seconds: steps.map_or(projected.seconds, |steps| projected.step_seconds * steps),
            ..projected
        });
        Self { epoch, projected, ..self }
    }
}

/// Plans jobs.
pub struct Planner {
    /// Admission of TrainJobs.
    pub definition: Arc<AdmissionSchema>,
    /// Every job.
    pub jobs: View<TrainJob>,
    /// Every appliance.
    pub appliances: View<Appliance>,
    plan_cache: PlanCache,
    compute: ComputePool,
    /// Whether agents are processes of this server's host.
    is_on_this_host: bool,
}

impl Planner {
    /// Creates a planner over these jobs and appliances.
    ///
    /// # Errors
    /// Those of [`AdmissionSchema::load_all`].
    pub fn new(
        jobs: View<TrainJob>,
        appliances: View<Appliance>,
        plan_cache: PlanCache,
        compute: ComputePool,
    ) -> Result<Self> {
        let (_, definition) = AdmissionSchema::load_all()?;
        Ok(Self { definition: Arc::new(definition), jobs, appliances, plan_cache, compute, is_on_this_host: false })
    }

    /// Makes it plan for agents on this host: they must fit into its memory.
    #[must_use]
    pub fn on_this_host(self) -> Self {
        Self { is_on_this_host: true, ..self }
    }

    /// Returns the job as it would be stored, as JSON and parsed.
    ///
    /// # Errors
    /// [`ErrorReason::Invalid`]: it violates its schema, names an unknown priority, or a priority or deadline that its
    /// appliance does not allow. [`ErrorReason::TooManyRequests`].
    pub async fn admitted(&self, request: &SubmitRequest, priorities: &PriorityValues) -> Result<(Value, TrainJob)> {
        let (definition, requested) = (self.definition.clone(), request.object.clone());
        let admitting = self.compute.run(&request.account, move || {
            let object = definition.admit(&requested, None)?;
            let job: TrainJob = serde_json::from_value(object.clone())
                .map_err(|error| ApiError::new(ErrorReason::Invalid, format!("the TrainJob can't be read: {error}")))?;
            Ok((object, job))
        });
        let (object, job) = admitting.await?;
        self.check_priority(&job, priorities)?;
        self.check_deadlines(&job)?;
        Ok((object, job))
    }

    /// Rejects a PriorityClass that does not exist, or that the job's appliance does not allow.
    fn check_priority(&self, job: &TrainJob, priorities: &PriorityValues) -> Result<()> {
        let Some(class) = job.spec.priority_class_name.as_deref() else { return Ok(()) };
        let appliance = self.appliances.get(&ObjectRef::new(&job.spec.appliance));
        let allowed = appliance.map(|appliance| appliance.spec.priority_classes.clone()).unwrap_or_default();
        let message = if priorities.values.contains_key(class) {
            let Some(message) = allowed.rejection_message(Some(class)) else { return Ok(()) };
            message
        } else {
            let mut known: Vec<(&String, &i32)> =
                priorities.values.iter().filter(|(name, _)| allowed.allows(name)).collect();
            known.sort_by_key(|(name, value)| (-**value, *name));
            let known: Vec<&str> = known.into_iter().map(|(name, _)| name.as_str()).collect();
            format!("unknown PriorityClass: choose one of {}", known.join(", "))
        };
        Err(ApiError::invalid(vec![FieldError { field: "spec.priorityClassName".to_owned(), message }]))
    }

    /// Rejects a deadline that the job's appliance does not allow.
    fn check_deadlines(&self, job: &TrainJob) -> Result<()> {
        let appliance = self.appliances.get(&ObjectRef::new(&job.spec.appliance));
        let bounds = appliance.map(|appliance| appliance.spec.max_deadlines).unwrap_or_default();
        let Some((field, message)) = bounds.find_violation(&job.spec) else { return Ok(()) };
        Err(ApiError::invalid(vec![FieldError { field: field.to_owned(), message }]))
    }

    /// Rejects a job of `account` that can never run, with the message that its status would have; returns the resolved
    /// job.
    ///
    /// # Errors
    /// [`ErrorReason::Invalid`]: there is no such appliance. [`ErrorReason::TooManyRequests`]. [`ErrorReason::BadParams`]: it can
    /// never run.
    pub async fn check_runnable(&self, account: &str, job: &TrainJob) -> Result<ResolvedJob> {
        let appliance = self.appliance_of(job)?;
        let (resolution, needs) = self.needs(account, job, &appliance).await?.map_err(never_runs)?;
        match self.insufficient_host_memory(&needs) {
            Some(why) => {
                Err(ApiError::new(ErrorReason::BadParams, format!("the job does not fit on this host: {why}")))
            }
            None => Ok(resolution),
        }
    }

    /// Returns `job` with notes for its user in `status.resolved`: notes of resolving it, fields of the spec that
    /// override params, and that its data was not checked.
    pub fn with_notes(&self, mut job: TrainJob, resolution: ResolvedJob) -> TrainJob {
        let mut resolved = ResolvedJob {
            notes: resolution.notes.clone(),
            differences: resolution.differences.clone(),
            ..ResolvedJob::default()
        };
        resolved.notes.extend(self.data_note(&resolution));
        job.status.get_or_insert_default().resolved = Some(resolved);
        job
    }

    /// Returns the note that the data of a job was not checked, if this server can't read it.
    fn data_note(&self, resolution: &ResolvedJob) -> Option<String> {
        let names_files =
            || resolution.phases().any(|phase| resolved_job(&phase).is_ok_and(|(job, _)| names_files_of_volumes(&job)));
        (!self.is_on_this_host && names_files()).then(|| DATA_UNCHECKED_NOTE.to_owned())
    }

    /// Returns why the agents of a job can never run on this host, if so.
    fn insufficient_host_memory(&self, needs: &ResourceRequirements) -> Option<String> {
        let memory = HostMemory::read().filter(|_| self.is_on_this_host)?;
        host::insufficient_memory(needs.host_bytes(), memory)
    }

    /// Resolves a job that does not exist yet and returns its needs, or why it can never run.
    async fn needs(
        &self,
        account: &str,
        job: &TrainJob,
        appliance: &Arc<Appliance>,
    ) -> Result<Result<(ResolvedJob, ResourceRequirements), ResolveError>> {
        let (plan_cache, compute) = (self.plan_cache.clone(), self.compute.clone());
        let (job, appliance, owner) = (job.clone(), appliance.clone(), account.to_owned());
        let plan = move |limit: fn(u64) -> Result<(), OverBudget>| {
            let charge = |bytes| compute.charge(&owner, bytes);
            plan_cache.plan_uncached(&job, &appliance.spec, &|bytes| limit(bytes).and_then(|()| charge(bytes)))
        };
        let light = plan.clone();
        match self.compute.run(account, move || Ok(light(reject_heavy))).await? {
            Err(ResolveError::Overloaded(_)) => {}
            found => return Ok(found),
        }
        // It is heavy, or the budget of the account is used up, which the second call returns.
        let planning = self.compute.run_heavy(account, move || match plan(|_| Ok(())) {
            Err(ResolveError::Overloaded(error)) => Err(ApiError::new(ErrorReason::TooManyRequests, error.to_string())),
            found => Ok(found),
        });
        planning.await
    }

    fn appliance_of(&self, job: &TrainJob) -> Result<Arc<Appliance>> {
        let name = &job.spec.appliance;
        self.appliances.get(&ObjectRef::new(name)).ok_or_else(|| {
            let message = format!("appliance {name} not found: leave the field out for the default one");
            ApiError::invalid(vec![FieldError { field: "spec.appliance".to_owned(), message }])
        })
    }

    /// Plans this new job of `account`.
    ///
    /// # Errors
    /// Those of [`Planner::check_runnable`], except that a job that is too large has a plan.
    pub async fn plan(&self, account: &str, job: TrainJob, priorities: &PriorityValues) -> Result<JobPlan> {
        Ok(self.plan_and_resolve(account, job, priorities).await?.0)
    }

    /// Like [`Planner::plan`], and returns the resolved job unless it is too large for the appliance.
    ///
    /// # Errors
    /// Those of [`Planner::plan`].
    pub async fn plan_and_resolve(
        &self,
        account: &str,
        mut job: TrainJob,
        priorities: &PriorityValues,
    ) -> Result<(JobPlan, Option<ResolvedJob>)> {
        let appliance = self.appliance_of(&job)?;
        let (resolution, needs) = match self.needs(account, &job, &appliance).await? {
            Ok(resolved) => resolved,
            Err(ResolveError::TooLarge(error)) => return Ok((too_large_plan(error_chain(&error)), None)),
            Err(why) => return Err(never_runs(why)),
        };
        let plan = match self.insufficient_host_memory(&needs) {
            Some(why) => exceeds_host(why, &needs),
            None => self.queue_position(&mut job, &appliance, &needs, priorities)?,
        };
        let plan = if self.is_on_this_host {
            JobPlan { host: Some(HostPlan::new(needs.host_bytes(), needs.host_work)), ..plan }
        } else {
            JobPlan { notes: self.data_note(&resolution).into_iter().collect(), ..plan }
        };
        Ok((plan, Some(resolution)))
    }

    /// Returns the plan of a job with these needs, from its place in the queue.
    fn queue_position(
        &self,
        job: &mut TrainJob,
        appliance: &Appliance,
        needs: &ResourceRequirements,
        priorities: &PriorityValues,
    ) -> Result<JobPlan> {
        let now = Timestamp::now();
        // As if it were created now.
        job.metadata.uid = Some(PLANNED_JOB_UID.to_owned());
        job.metadata.creation_timestamp = Some(Time(now));
        let machine = appliance.spec.machine.resolve();
        let machine = machine.map_err(|error| ApiError::internal("read the appliance", error.report()))?;
        let wanted = ledger::system_request(job, None, needs.memoryx_bytes, needs.swarmx_nodes, priorities)
            .ok_or_else(|| ApiError::internal("plan a job", "it has no UID"))?;
        let (running, waiting) = (self.running_jobs(appliance), self.pending_requests(appliance, priorities));
        let (found, start) = forecast(&ledger::capacity(&machine), &running, &waiting, &wanted, now);
        let plan = plan_of_placement(found, start, needs);
        Ok(if job.spec.suspend { until_resumed(plan) } else { plan })
    }

    /// Returns the requests of the jobs that wait for systems of this appliance, or for more of them.
    fn pending_requests(&self, appliance: &Appliance, priorities: &PriorityValues) -> Vec<SystemRequest> {
        let name = appliance.name_any();
        let waits = |job: &Arc<TrainJob>| {
            let requests = is_waiting(job) || ledger::resized_grant(job, grants_of(appliance)).is_some();
            job.spec.appliance == name && requests && !job.spec.suspend
        };
        let jobs = self.jobs.state();
        let uids: HashSet<String> = jobs.iter().filter_map(|job| job.uid()).collect();
        self.plan_cache.retain(|uid| uids.contains(uid));
        jobs.into_iter().filter(waits).filter_map(|job| self.system_request(&job, appliance, priorities)).collect()
    }

    /// Returns the request of a waiting job. If it is not planned yet, only its systems count, and planning it is
    /// started.
    fn system_request(
        &self,
        job: &TrainJob,
        appliance: &Appliance,
        priorities: &PriorityValues,
    ) -> Option<SystemRequest> {
        let known = self.plan_cache.get_or_plan(job, &job.uid()?, &appliance.spec, job.spec.num_csx, None).ready();
        let (memoryx_bytes, swarmx_nodes) = match known {
            Some(Ok(planned)) => (planned.needs.memoryx_bytes, planned.needs.swarmx_nodes),
            Some(Err(_)) => return None,
            None => (0, 0),
        };
        let held = ledger::resized_grant(job, grants_of(appliance)).cloned();
        ledger::system_request(job, held, memoryx_bytes, swarmx_nodes, priorities)
    }

    /// Returns the jobs of the ledger, with their expected ends.
    fn running_jobs(&self, appliance: &Appliance) -> Vec<RunningJob> {
        let grants = appliance.status.iter().flat_map(|status| &status.grants);
        let jobs = self.jobs.state();
        let until = |uid: &str| {
            let job = jobs.iter().find(|job| job.uid().as_deref() == Some(uid))?;
            let progress = job.status.as_ref()?.progress.as_ref()?;
            Some(progress.estimated_finish_time.as_ref()?.0)
        };
        grants.map(|grant| RunningJob { until: until(&grant.uid), grant: grant.clone() }).collect()
    }
}

/// Returns the error of a job that can never run, or can't be planned at present.
fn never_runs(error: ResolveError) -> ApiError {
    let reason = match error {
        ResolveError::Unavailable(_) => ErrorReason::Unavailable,
        _ => ErrorReason::BadParams,
    };
    ApiError::new(reason, error_chain(&error))
}

fn too_large_plan(message: String) -> JobPlan {
    JobPlan { reason: Some(QueueReason::ExceedsAppliance.as_str().to_owned()), message, ..JobPlan::default() }
}

/// Returns the grants in the status of an appliance.
fn grants_of(appliance: &Appliance) -> &[Grant] {
    appliance.status.as_ref().map(|status| status.grants.as_slice()).unwrap_or_default()
}

/// Returns the plan of a job that is created suspended.
fn until_resumed(plan: JobPlan) -> JobPlan {
    if !plan.fits {
        return plan;
    }
    let message =
        format!("the job would be suspended, and queued when it is resumed; if it were resumed now, {}", plan.message);
    JobPlan { message, systems: Vec::new(), queue: None, estimated_start: None, ..plan }
}

/// Whether a job reads other files than its uploads.
fn names_files_of_volumes(job: &JobSpec) -> bool {
    let mut paths = job.active_inputs().flat_map(|(_, input)| input.paths());
    paths.any(|path| ![UPLOADS_DIR, FILES_DIR].iter().any(|dir| path.starts_with(dir)))
}

/// Returns the plan of a job that the appliance could run and this host can't.
fn exceeds_host(why: String, needs: &ResourceRequirements) -> JobPlan {
    JobPlan {
        reason: Some(REASON_EXCEEDS_HOST.to_owned()),
        message: why,
        projected: Some(needs.projected),
        needs: agents_json(needs),
        ..JobPlan::default()
    }
}

/// Returns the number of agents of each role, and their bytes.
fn agents_json(needs: &ResourceRequirements) -> Value {
    let agents = needs.wanted.iter().map(|(role, count)| {
        let bytes = needs.bytes.get(role).copied().unwrap_or_default();
        (role.to_string(), json!({"count": count, "bytes": bytes}))
    });
    Value::Object(agents.collect::<Map<_, _>>())
}

fn plan_of_placement(
    found: Result<Grant, QueueEntry>,
    estimated_start: Option<Timestamp>,
    needs: &ResourceRequirements,
) -> JobPlan {
    let plan =
        JobPlan { estimated_start, projected: Some(needs.projected), needs: agents_json(needs), ..JobPlan::default() };
    match found {
        Ok(grant) => JobPlan {
            fits: true,
            message: "the job would start immediately".to_owned(),
            systems: grant.systems,
            ..plan
        },
        Err(entry) => JobPlan {
            fits: entry.position.is_some(),
            reason: Some(entry.reason.as_str().to_owned()),
            queue: entry.position.map(|position| QueueStatus {
                position: Some(position),
                reason: Some(entry.reason.as_str().to_owned()),
                message: Some(entry.message.clone()),
            }),
            message: entry.message,
            ..plan
        },
    }
}
