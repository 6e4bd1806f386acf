//! The coordinator: prepares the run, drives the engine's state machine, and writes the run's files and progress
//! output.

mod agent_speeds;
mod checkpoint_writer;
mod console;
mod driver;
mod file_writer;
mod files;
mod heartbeat;
mod held_parameters;
mod inputs;
mod journal;
mod model_metrics;
mod reporter;
mod resume;
mod run_end;
mod run_policy;
mod spans;
mod storage_condition;
mod summary;
mod uploads;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_bucket::BucketAddress;
use millrace_checkpoint::lock::LOCK_LEASE;
use millrace_checkpoint::{LockError, LockRequest, ModelDirLock, VerificationLevel};
use millrace_data::Dataset;
use millrace_emulator::compile::CompileError;
use millrace_emulator::numerics::Isa;
use millrace_emulator::report::{PlanReport, format_rough_duration};
use millrace_emulator::sparsity::SparsityMasks;
use millrace_protocol::proto;
use millrace_protocol::security::{AttemptName, AuthenticatedIncoming};
use millrace_protocol::transport::{self, KeepAlive};
use millrace_telemetry::journal::{AttemptOutcome, OutcomeReason};
use millrace_telemetry::logs::{AgentName, LogRecord, Logger};
use millrace_telemetry::metric_definitions::RoleMetrics;
use tokio::net::TcpListener;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, watch};

use super::{RoleArgs, TRACE_SERVICE_NAME, TerminationReport};
use crate::checkpoints::checkpoint_failure;
use crate::control::client::MAX_CONTROL_MESSAGE_BYTES;
use crate::control::job::{CompiledJob, JobDocument};
use crate::control::server::{ControlEvents, ControlService};
use crate::error::AgentError;
use crate::host;
use crate::http::{self, Readiness};
use crate::launch::{Exit, LaunchDocument, ListenAddresses, announce};
use crate::model_dir_uploads::ModelDirUploads;
use console::Console;
use driver::CoordinatorDriver;
use file_writer::FileWriter;
use held_parameters::are_parameters_held;
use journal::{JobJournal, JournalService, ResizeCommand, RunCommand};
use model_metrics::ModelMetrics;

/// How long to wait until the lock of a dead coordinator of the same job expires: twice the lease of the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2 * LOCK_LEASE.as_secs());
/// How long followers of the journal have to receive its last entry.
const JOURNAL_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum log records of the coordinator that wait to be written to its files.
const MAX_QUEUED_LOG_RECORDS: usize = 4096;
/// Interval between two tries to take the lock.
const LOCK_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a run that begins on a full disk waits for space. A restart by the control loop costs about as much.
const FULL_DISK_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two tries to write to a full disk.
const FULL_DISK_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Values that every role process creates, and that the coordinator needs besides its arguments.
pub struct CoordinatorContext {
    pub name: AgentName,
    pub metrics: RoleMetrics,
    pub ready: Readiness,
    /// Address at which `/metrics` is served; empty if it is not served.
    pub metrics_address: String,
    /// SIGTERM.
    pub terminate: Signal,
}

/// Runs the job to its end.
pub async fn run(args: RoleArgs, context: CoordinatorContext) -> Result<Exit, AgentError> {
    let CoordinatorContext { name, metrics, ready, metrics_address, mut terminate } = context;
    let launch = args.launch.ok_or_else(|| AgentError::bad_input("a coordinator needs its launch document"))?;
    let member = args.member;
    check_attempt(&launch, member.attempt())?;
    let console = Console::new();
    let log_console = console.clone();
    let logger = Logger::new(name, args.level, args.log_format, move |line| log_console.log(line));
    let _traces = millrace_traces::install(TRACE_SERVICE_NAME, logger.layer()).map_err(AgentError::local)?;

    let control = http::listen(&args.listen).await?;
    let journal_port = http::listen(&args.journal_listen).await?;
    if args.by_launcher {
        let address = |listener: &TcpListener| listener.local_addr().map(|a| a.to_string()).map_err(AgentError::local);
        let listening =
            ListenAddresses { control: address(&control)?, journal: address(&journal_port)?, metrics: metrics_address };
        announce(&listening).map_err(AgentError::local)?;
    }

    let (service, mut agents) = ControlService::new();
    serve_control(member.accept_control(control), service);
    // Agents find the coordinator by a name that resolves to ready processes only. It is ready as soon as agents may
    // join, and stays ready.
    ready.set(true);
    let (journal, journal_ready) = watch::channel(None);
    let (commands, mut user) = mpsc::channel(journal::MAX_QUEUED_COMMANDS);
    let served = JournalService::serve(member.accept_journal(journal_port), journal_ready, commands);

    let run = RunSettings {
        last_report: args.last_report.clone(),
        by_launcher: args.by_launcher,
        model_dir_bucket: args.model_dir_bucket,
    };
    let mut resize = None;
    let prepared = tokio::select! {
        prepared = prepare(*launch, run, &console, &mut agents) => {
            match prepared {
                Err(complete) if complete.reason() == OutcomeReason::Succeeded => {
                    console.line(complete.to_string());
                    args.last_report.write(&AttemptOutcome::from(&complete));
                    return Ok(Exit::Success);
                }
                prepared => prepared?,
            }
        }
        request = wait_for_stop_request(&mut terminate, &mut user, &mut resize) => {
            console.end();
            if request == StopRequest::Signal && !args.by_launcher {
                return Ok(Exit::Interrupted);
            }
            return Err(AgentError::with_reason(OutcomeReason::Interrupted, "Stopped before the run began."));
        }
    };
    let owner = prepared.lock.owner().clone();
    let _ = journal.send(Some(JobJournal { journal: prepared.files.journal().clone(), owner }));
    let (records, logs) = mpsc::channel::<LogRecord>(MAX_QUEUED_LOG_RECORDS);
    logger.forward(move |record| {
        // Records beyond the capacity of the channel are printed to stderr only.
        let _ = records.try_send(record);
    });
    let (exit, uploads) = CoordinatorDriver::new(
        prepared,
        console,
        metrics,
        driver::DriverEvents { agents, user, resize, logs, terminate },
    )
    .run()
    .await;
    served.finish(JOURNAL_DRAIN_TIMEOUT).await;
    if let Some(uploads) = uploads {
        uploads::finish(uploads).await;
    }
    Ok(exit)
}

/// Checks that the launch document is for the job and attempt that the coordinator's certificate names.
fn check_attempt(launch: &LaunchDocument, certified: &AttemptName) -> Result<(), AgentError> {
    let job = launch.job_uid.as_deref().unwrap_or(certified.job());
    let attempt = launch.attempt.unwrap_or(certified.attempt());
    if (job, attempt) == (certified.job(), certified.attempt()) {
        return Ok(());
    }
    let sentence = format!("the launch document is of attempt {attempt} of job {job}, the identity of {certified}");
    Err(AgentError::bad_input(sentence).hint("start the coordinator with the identity of its attempt"))
}

/// What requested the coordinator to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopRequest {
    /// SIGTERM. In a pod, another coordinator continues the attempt, so this one reports no outcome.
    Signal,
    User,
}

/// Waits until SIGTERM or a user's stop command, while there is nothing to save yet. Answers checkpoint commands, and
/// keeps the last resize command for the run.
async fn wait_for_stop_request(
    terminate: &mut Signal,
    user: &mut mpsc::Receiver<RunCommand>,
    resize: &mut Option<ResizeCommand>,
) -> StopRequest {
    loop {
        tokio::select! {
            Some(()) = terminate.recv() => return StopRequest::Signal,
            Some(command) = user.recv() => match command {
                RunCommand::Stop { reply, .. } => {
                    let _ = reply.send(proto::CommandReply::default());
                    return StopRequest::User;
                }
                RunCommand::Checkpoint(reply) => {
                    let _ = reply.send(proto::CommandReply::default());
                }
                RunCommand::Resize(command) => *resize = Some(command),
            },
            else => std::future::pending().await,
        }
    }
}

fn serve_control(incoming: AuthenticatedIncoming, service: ControlService) {
    let service = proto::control_server::ControlServer::new(service)
        .max_decoding_message_size(MAX_CONTROL_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_CONTROL_MESSAGE_BYTES);
    tokio::spawn(async move {
        if let Err(error) =
            transport::server_with(KeepAlive::CONTROL).add_service(service).serve_with_incoming(incoming).await
        {
            tracing::error!("the control port is no longer served: {error}");
        }
    });
}

/// What a run needs besides its launch document.
struct RunSettings {
    last_report: TerminationReport,
    /// Whether a launcher on this machine started the agents.
    by_launcher: bool,
    /// Bucket to which this coordinator uploads model_dir.
    model_dir_bucket: Option<BucketAddress>,
}

/// The result of all checks and preparations before the first agent receives a command.
pub struct PreparedRun {
    pub launch: LaunchDocument,
    /// Whether a launcher on this machine started the agents.
    pub by_launcher: bool,
    /// The uploads of model_dir, if it is kept in a bucket.
    pub uploads: Option<ModelDirUploads>,
    /// The job, compiled for the best instruction set that it may use. The instruction set is pinned when all agents
    /// have joined.
    pub compiled: CompiledJob,
    /// The job as every agent receives it.
    pub job_json: String,
    /// What evaluations report.
    pub model_metrics: ModelMetrics,
    /// The checkpoint or initial values that the run begins with.
    pub start_point: resume::StartPoint,
    /// The checkpoints that are evaluated afterwards, if the run evaluates more than one.
    pub remaining_checkpoints: VecDeque<resume::StartPoint>,
    /// Number of batches of one evaluation; 0 if the run does not evaluate.
    pub eval_batches: u64,
    /// Estimated seconds of a training step; `None` unless the job trains with all agents on this host.
    pub step_estimate: Option<f64>,
    pub lock: Arc<ModelDirLock>,
    pub files: FileWriter,
}

/// Checks all input of the user before anything is written to model_dir. Then takes the lock of model_dir, chooses the
/// checkpoint and opens the run's files. If the shards hold the parameters of an earlier coordinator, which has checked
/// the same input, opens only what this one needs: no data of checkpoints, and data only to count them.
async fn prepare(
    launch: LaunchDocument,
    RunSettings { last_report, by_launcher, model_dir_bucket }: RunSettings,
    console: &Console,
    agents: &mut ControlEvents,
) -> Result<PreparedRun, AgentError> {
    print_notes(&launch, console);
    let (output, bar) = (console.clone(), console.clone());
    let (mut launch, mut compiled, step_estimate) = run_blocking(move || {
        let document = JobDocument::new(launch.job.clone(), launch.appliance.clone())?;
        let compiled = document.compile(launch.isa.unwrap_or_else(Isa::detect))?;
        let step_estimate = print_plan(&launch, &compiled, by_launcher, &output)?;
        Ok((launch, compiled, step_estimate))
    })
    .await?;
    let is_held = continues_run(&launch, agents).await;
    let opened = inputs::OpenedInputs::for_job(&compiled.job, is_held);
    bar.begin("Tokenizing", 1);
    let inputs = run_blocking(move || {
        let inputs = opened.open(|done, total| bar.advance(done, total));
        bar.end();
        inputs
    })
    .await?;
    inputs.check(&compiled.graph)?;
    inputs::end_with_epochs(&mut launch, &mut compiled, &inputs, console);
    let eval_batches = inputs::eval_batches(&launch, &inputs)?;
    let entity_classes = inputs.eval.as_ref().and_then(Dataset::entity_classes);
    let (launch, compiled, start) = run_blocking(move || {
        let start = if is_held { None } else { resume::named_start(&launch, &compiled)? };
        Ok((launch, compiled, start))
    })
    .await?;
    let uploads = match model_dir_bucket {
        Some(address) => Some(uploads::start(address, &launch, is_held).await?),
        None => None,
    };
    let lock = Arc::new(lock_model_dir(&launch).await?);
    let held = lock.clone();
    let (launch, compiled, start_point, remaining_checkpoints) = run_blocking(move || {
        for removed in millrace_checkpoint::clean_up(&held).map_err(checkpoint_failure)? {
            tracing::info!("cleaned up after an earlier run: {removed}");
        }
        let mut checkpoints = if is_held {
            [resume::newest_of_run(&launch, &compiled, VerificationLevel::Quick, &held)?].into()
        } else {
            resume::choose_checkpoint(&launch, &compiled, start, &held)?
        };
        // There is always one: a checkpoint or the initial values.
        let mut first = checkpoints
            .pop_front()
            .ok_or_else(|| AgentError::local("there is neither a checkpoint nor an initial state"))?;
        let compiled = resume::recompile_with_checkpoint_cuts(&launch, compiled, &mut first)?;
        Ok((launch, compiled, first, checkpoints))
    })
    .await?;
    let job_json = compiled.document_json()?;
    let model_metrics = ModelMetrics::new(&compiled, entity_classes);
    let files = retry_while_disk_is_full(|| files::RunFiles::open(&launch, lock.attempt())).await?;
    let files = FileWriter::start(files, last_report)?;
    if !is_held {
        start_point.report.iter().for_each(|sentence| console.line(sentence));
    }
    Ok(PreparedRun {
        launch,
        by_launcher,
        uploads,
        compiled,
        job_json,
        model_metrics,
        start_point,
        remaining_checkpoints,
        eval_batches,
        step_estimate,
        lock,
        files,
    })
}

/// Returns whether this coordinator continues a training run whose parameters the shards hold.
async fn continues_run(launch: &LaunchDocument, agents: &mut ControlEvents) -> bool {
    let had_owner = matches!(ModelDirLock::last_owner(&launch.model_dir), Ok(Some(_)));
    launch.mode.trains() && had_owner && are_parameters_held(agents, &launch.agent_counts).await
}

/// Runs `work`, which may take minutes, on another thread: this one continues to answer pings and probes.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AgentError> + Send + 'static,
) -> Result<T, AgentError> {
    tokio::task::spawn_blocking(work).await.map_err(AgentError::local)?
}

/// Takes the lock of model_dir. A coordinator of the same job may still hold it although it died on another host, where
/// this process can't see that. In this case the lock is free when its lease has expired.
async fn lock_model_dir(launch: &LaunchDocument) -> Result<ModelDirLock, AgentError> {
    let request = match (&launch.job_uid, launch.attempt) {
        (Some(uid), Some(attempt)) => LockRequest::job(uid, attempt),
        (Some(uid), None) => LockRequest::next_attempt_of(uid),
        (None, _) => LockRequest::local(),
    };
    let deadline = Instant::now() + LOCK_TIMEOUT;
    let acquire = || match ModelDirLock::acquire(&launch.model_dir, &request) {
        Err(LockError::InUse { owner, .. })
            if owner.job.is_some() && owner.job == launch.job_uid && Instant::now() < deadline =>
        {
            tracing::info!("waiting for {owner} to release model_dir");
            Ok(None)
        }
        result => result.map(Some).map_err(|error| checkpoint_failure(error.into())),
    };
    loop {
        match retry_while_disk_is_full(acquire).await? {
            Some(lock) => return Ok(lock),
            None => tokio::time::sleep(LOCK_POLL_INTERVAL).await,
        }
    }
}

/// Repeats `write` while the disk is full, for at most [`FULL_DISK_TIMEOUT`]: a full disk at the start of a run is as
/// temporary as one later, when checkpoints are written again and again.
async fn retry_while_disk_is_full<T>(write: impl Fn() -> Result<T, AgentError>) -> Result<T, AgentError> {
    let deadline = Instant::now() + FULL_DISK_TIMEOUT;
    let mut is_logged = false;
    loop {
        match write() {
            Err(error) if error.reason() == OutcomeReason::OutOfSpace && Instant::now() < deadline => {
                if !std::mem::replace(&mut is_logged, true) {
                    let seconds = FULL_DISK_TIMEOUT.as_secs();
                    tracing::warn!("{}; waiting up to {seconds} s for space", error.message());
                }
                tokio::time::sleep(FULL_DISK_RETRY_INTERVAL).await;
            }
            done => return done,
        }
    }
}

fn print_notes(launch: &LaunchDocument, console: &Console) {
    console.line(format!("Effective batch size is {}.", launch.job.train_input.batch_size));
    launch.notes.iter().for_each(|note| console.line(format!("Note: {note}")));
    if !launch.ignored_keys.is_empty() {
        console.line(format!("Without effect on this appliance: {}.", launch.ignored_keys.join(", ")));
    }
}

/// Prints the plan. Returns the estimated seconds of a training step if all agents run on this host and the job trains.
fn print_plan(
    launch: &LaunchDocument,
    compiled: &CompiledJob,
    all_on_this_host: bool,
    console: &Console,
) -> Result<Option<f64>, AgentError> {
    console.line("Compiling the model. This may take a few minutes.");
    let systems = u32::try_from(launch.agent_counts.systems).unwrap_or(u32::MAX);
    let report = PlanReport::new(&compiled.plan, &compiled.appliance, systems).map_err(AgentError::bad_input)?;
    console.line(format!("Compile was successful! Compile hash is: {}", compiled.hash));
    console.line(format!(
        "{} parameters in {} layers and {} chunks; {} leaves of {} sample(s); {}",
        report.parameters,
        report.layers.len(),
        report.chunks,
        report.leaves.count,
        report.leaves.samples,
        compiled.profile
    ));
    let zeros = SparsityMasks::new(&compiled.job, &compiled.plan.graph).map_err(CompileError::from)?.zeros();
    if zeros > 0 {
        console.line(format!("{zeros} of the parameters are masked: they are zero."));
    }
    console.line(format!(
        "Projection (not a measurement): {systems} real system(s) would take {:.1} ms a step, {:.1} samples/sec.",
        1e3 * report.projection.step_seconds,
        report.projection.samples_per_second
    ));
    let estimate = (all_on_this_host && launch.mode.trains()).then(|| report.host_work.seconds(host::measured_rate()));
    if let Some(seconds) = estimate {
        console.line(format!(
            "Estimate (not a measurement): this host takes about {} a step at its present speed; other load lowers it.",
            format_rough_duration(seconds)
        ));
    }
    Ok(estimate)
}
