//! The drivers of the five roles. A driver connects a state machine of `millrace-engine` to links, files and signals.

mod activation;
mod coordinator;
mod cs2;
mod link_senders;
mod memoryx;
mod parent;
mod process;
mod samples;
mod swarmx;
mod termination_report;
mod thread_policy;
mod watchdog;
mod work_meter;
mod work_queue;

use millrace_bucket::BucketAddress;
use millrace_emulator::numerics::{Isa, IsaSet};
use millrace_engine::message::ShardState;
use millrace_engine::payload::max_sum_bytes;
use millrace_engine::types::{AgentId, Role};
use millrace_protocol::security::random_number;
use millrace_shared_memory::SharedMemory;
use millrace_telemetry::journal::{AttemptOutcome, OutcomeReason};
use millrace_telemetry::logs::{AgentName, Level, LogFormat, Logger, print_to_stderr};
use millrace_telemetry::metric_definitions::RoleMetrics;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::control::client::{AgentInfo, ControlSession};
use crate::control::job::CompiledJob;
use crate::error::{AgentError, ErrorOrigin};
use crate::http::{self, Readiness};
use crate::launch::{Exit, LaunchDocument, print_failure};
use crate::links::{LinkEventSender, LinkJobWatch, LinkSettings};
use crate::loader_args::LoaderArgs;
use crate::member::Member;
pub use process::role_process;
pub use termination_report::TerminationReport;

/// Settings of a role process: its command line, with defaults for what is missing, and the documents that it names.
#[derive(Clone, Debug)]
pub struct RoleArgs {
    /// The agent that this process runs.
    pub agent: AgentId,
    /// The coordinator's control address; `None` for the coordinator itself.
    pub coordinator: Option<String>,
    /// Listen address of the data port; of the control port for the coordinator.
    pub listen: String,
    /// Host, or host and port, that other agents dial; `None` if it is the address of the data port.
    pub advertise: Option<String>,
    /// Listen address of the coordinator's journal.
    pub journal_listen: String,
    /// Identity of the agent in the job.
    pub member: Member,
    /// Whether payloads are shared with other agents of this machine.
    pub shared_memory: bool,
    /// Listen address of `/metrics` and probes; `None` to serve neither.
    pub metrics_listen: Option<String>,
    /// Compute threads of a system; `None` for an equal share of the machine's cores.
    pub threads: Option<usize>,
    /// The best instruction set that the agent may use; `None` for the machine's best.
    pub isa: Option<Isa>,
    /// The least severe level of log lines that goes to stderr.
    pub level: Level,
    pub log_format: LogFormat,
    /// How an activation server reads Python datasets.
    pub loader: LoaderArgs,
    /// The launch document; only the coordinator has one.
    pub launch: Option<Box<LaunchDocument>>,
    /// Bucket to which a coordinator uploads its model_dir; `None` if another process does, or none.
    pub model_dir_bucket: Option<BucketAddress>,
    /// File for the last report of this process.
    pub last_report: TerminationReport,
    /// Whether a local launcher started this process. The user then receives an agent's log lines from the coordinator.
    pub by_launcher: bool,
}

/// Slots of the payload memory for each slot that may be in flight on one link: agents below a SwarmX node hold
/// payloads that this agent's peer has granted again. Without a free slot a payload is created on the heap.
const SLOTS_PER_WINDOW_SLOT: usize = 4;
/// Bounds of the number of slots. A slot takes memory when it is used for the first time.
const MIN_SLOTS: usize = 16;
/// See [`MIN_SLOTS`].
const MAX_SLOTS: usize = 1024;

/// Name of the program in traces.
pub(crate) const TRACE_SERVICE_NAME: &str = "millrace-agent";

/// State that every driver has.
pub(crate) struct RoleContext {
    args: RoleArgs,
    logger: Logger,
    metrics: RoleMetrics,
    ready: Readiness,
    /// Memory for the payloads that the agent creates.
    memory: SharedMemory,
}

/// Runs a role until the process is to end. Blocks.
pub fn run(args: RoleArgs) -> Exit {
    // Transfers wait for computations. A system's compute thread sets the normal policy for itself.
    thread_policy::use_batch_policy();
    // Everything except a system's kernels runs on one thread per process: on the data path a second thread costs more
    // than it gains.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {} can't start its runtime: {error}", args.agent);
            return Exit::Failed;
        }
    };
    millrace_emulator::kernels::ftz::enable();
    let (agent, by_launcher, last_report) = (args.agent, args.by_launcher, args.last_report.clone());
    match runtime.block_on(start(args)) {
        Ok(Exit::Interrupted) => {
            // Blocking work has no result that anything still waits for.
            runtime.shutdown_background();
            Exit::Interrupted
        }
        Ok(exit) => exit,
        Err(failure) => {
            match failure.cause {
                ErrorOrigin::Local(OutcomeReason::Interrupted) | ErrorOrigin::Shutdown => {
                    // As above; it may also be a name lookup.
                    runtime.shutdown_background();
                    eprintln!("{failure}");
                }
                // The failure of a peer is a consequence; the failed process prints the cause.
                ErrorOrigin::Peer if by_launcher => {}
                ErrorOrigin::Local(_) | ErrorOrigin::Peer => print_failure(&format!("error: {agent}: {failure}")),
            }
            last_report.write(&AttemptOutcome::from(&failure));
            failure.exit()
        }
    }
}

async fn start(args: RoleArgs) -> Result<Exit, AgentError> {
    let AgentId { role, index } = args.agent;
    let name = AgentName::new(role.as_str(), index).map_err(AgentError::local)?;
    let metrics = RoleMetrics::new(role.as_str(), index, env!("CARGO_PKG_VERSION"));
    // Standard output of a coordinator is for the user.
    let announced = args.by_launcher && role != Role::Coordinator;
    let ready = if announced { Readiness::announce_on_stdout() } else { Readiness::default() };
    // From here on SIGTERM is handled: the process ends in order.
    let terminate = signal(SignalKind::terminate())
        .map_err(|error| AgentError::local(error).context("can't listen for signals"))?;
    let metrics_address = match &args.metrics_listen {
        Some(address) => http::serve(address, metrics.clone(), ready.clone()).await?,
        None => String::new(),
    };
    if role == Role::Coordinator {
        let context = coordinator::CoordinatorContext { name, metrics, ready, metrics_address, terminate };
        return coordinator::run(args, context).await;
    }
    // In a local run the user receives an agent's log lines from the coordinator, and its last error from `run`.
    let by_launcher = args.by_launcher;
    let console = move |line: &str| {
        if !by_launcher {
            print_to_stderr(line);
        }
    };
    let logger = Logger::new(name, args.level, args.log_format, console);
    let _traces = millrace_traces::install(TRACE_SERVICE_NAME, logger.layer()).map_err(AgentError::local)?;
    let memory = if args.shared_memory { SharedMemory::new(random_number()) } else { SharedMemory::disabled() };
    let context = RoleContext { args, logger, metrics, ready, memory };
    match role {
        Role::MemoryX => memoryx::run(context, terminate).await?,
        Role::SwarmX => swarmx::run(context, terminate).await?,
        Role::Activation => activation::run(context, terminate).await?,
        Role::Cs2 => cs2::run(context, terminate).await?,
        Role::Coordinator => {}
    }
    Ok(Exit::Success)
}

impl RoleContext {
    fn me(&self) -> AgentId {
        self.args.agent
    }

    /// Returns the settings that all links of this agent share.
    fn link_settings(&self, events: LinkEventSender) -> LinkSettings {
        LinkSettings {
            events,
            job: LinkJobWatch::default(),
            metrics: self.metrics.clone(),
            member: self.args.member.clone(),
            memory: self.memory.clone(),
        }
    }

    /// Begins an epoch of the payload memory. For each payload in flight to the next agent, several may be in flight
    /// from there to its children.
    fn begin_memory_epoch(&self, job: &CompiledJob) {
        let elements = job.plan.chunks.iter().map(|chunk| chunk.elements).max().unwrap_or(0);
        let window = usize::try_from(job.window()).unwrap_or(usize::MAX);
        let slots = window.saturating_mul(SLOTS_PER_WINDOW_SLOT).clamp(MIN_SLOTS, MAX_SLOTS);
        self.memory.begin_epoch(max_sum_bytes(elements), slots);
    }

    /// Joins the job. `terminate` receives SIGTERM.
    async fn join(
        &self,
        address: String,
        shard: Option<ShardState>,
        terminate: Signal,
    ) -> Result<ControlSession, AgentError> {
        let coordinator = self.args.coordinator.as_deref();
        let coordinator = coordinator.ok_or_else(|| AgentError::bad_input("an agent needs --coordinator HOST:PORT"))?;
        let isas = self.args.isa.map_or_else(IsaSet::detect, |isa| IsaSet::detect().up_to(isa));
        let introduction = AgentInfo { me: self.me(), address, isas, shard, uid: String::new() };
        let stall = self.metrics.stall().clone();
        ControlSession::join(coordinator, self.args.member.clone(), introduction, &self.logger, stall, terminate).await
    }

    /// Opens the data port; returns the listener and the address that other agents dial.
    async fn listen(&self) -> Result<(tokio::net::TcpListener, String), AgentError> {
        let listener = http::listen(&self.args.listen).await?;
        let bound = listener.local_addr().map_err(AgentError::local)?;
        let address = match &self.args.advertise {
            Some(host) if host.contains(':') => host.clone(),
            Some(host) => format!("{host}:{}", bound.port()),
            None => bound.to_string(),
        };
        Ok((listener, address))
    }
}
