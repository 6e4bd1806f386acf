//! The drivers of the five roles: they carry what the engine's machines decide.

mod activation;
mod coordinator;
mod cs2;
mod last_report;
mod memoryx;
mod swarmx;
mod tree;

use millrace_emulator::numerics::Isa;
use millrace_engine::message::ShardState;
use millrace_engine::types::{AgentId, Role};
use millrace_telemetry::journal::{Outcome, Reason};
use millrace_telemetry::logs::{AgentName, Format, Level, Logger, print_to_stderr};
use millrace_telemetry::metric_definitions::RoleMetrics;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::control::agent::{Introduction, Session};
use crate::failure::{Cause, Failure};
use crate::http::{self, Readiness};
use crate::launch::{Exit, Launch};
use crate::links::{Events, JobCell, Settings};
use crate::member::Member;
pub use last_report::LastReport;

/// How a role process was started.
#[derive(Clone, Debug)]
pub struct RoleArgs {
    /// Which agent it is.
    pub agent: AgentId,
    /// The coordinator's control address; none for the coordinator itself.
    pub coordinator: Option<String>,
    /// Where its data (the coordinator: control) port listens.
    pub listen: String,
    /// Name under which others dial it, where that is not the address it listens on.
    pub advertise: Option<String>,
    /// Where the coordinator's journal listens.
    pub journal_listen: String,
    /// Its identity in the job.
    pub member: Member,
    /// Where `/metrics` and probes listen; none to go without.
    pub metrics_listen: Option<String>,
    /// Compute threads of a system; none shares the machine's cores.
    pub threads: Option<usize>,
    /// Best instruction set it may use; none for the machine's best.
    pub isa: Option<Isa>,
    /// What goes to stderr.
    pub level: Level,
    /// How that is written.
    pub log_format: Format,
    /// The job; the coordinator's only.
    pub launch: Option<Box<Launch>>,
    /// Where the coordinator's last report goes.
    pub last_report: LastReport,
    /// Whether a local launcher runs this process, which shows the user what has to be shown.
    pub by_launcher: bool,
}

/// What agents are called in traces.
pub(crate) const PROGRAM: &str = "millrace-agent";

/// What every driver has at hand.
pub(crate) struct Context {
    args: RoleArgs,
    logger: Logger,
    metrics: RoleMetrics,
    ready: Readiness,
}

/// Runs a role to its end.
pub fn run(args: RoleArgs) -> Exit {
    // Everything but a system's kernels runs on one thread per process: on the data path a second one costs more than
    // it brings.
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
        Ok(exit) => exit,
        Err(failure) => {
            match failure.cause {
                Cause::Own(Reason::Interrupted) | Cause::Asked => {
                    // Work that blocks, such as looking up a name, is nothing that anybody waits for any more.
                    runtime.shutdown_background();
                    eprintln!("{failure}");
                }
                // To the user of a local run a victim says nothing: the cause speaks.
                Cause::Peer if by_launcher => {}
                Cause::Own(_) | Cause::Peer => eprintln!("error: {agent}: {failure}"),
            }
            last_report.write(&Outcome::from(&failure));
            failure.exit()
        }
    }
}

async fn start(args: RoleArgs) -> Result<Exit, Failure> {
    let AgentId { role, index } = args.agent;
    let name = AgentName::new(role.as_str(), index).map_err(Failure::own)?;
    let metrics = RoleMetrics::new(role.as_str(), index, env!("CARGO_PKG_VERSION"));
    // A coordinator's standard output is the user's.
    let announced = args.by_launcher && role != Role::Coordinator;
    let ready = if announced { Readiness::announced() } else { Readiness::default() };
    // From here on SIGTERM is heard: whoever runs this process wants it to end in good order.
    let terminate =
        signal(SignalKind::terminate()).map_err(|error| Failure::own(format!("can't listen for signals: {error}")))?;
    let metrics_address = match &args.metrics_listen {
        Some(address) => http::serve(address, metrics.clone(), ready.clone()).await?,
        None => String::new(),
    };
    if role == Role::Coordinator {
        let equipment = coordinator::Equipment { name, metrics, ready, metrics_address, terminate };
        return coordinator::run(args, equipment).await;
    }
    // In a local run an agent's lines reach the user through the coordinator, its last words by way of `run`.
    let by_launcher = args.by_launcher;
    let console = move |line: &str| {
        if !by_launcher {
            print_to_stderr(line);
        }
    };
    let logger = Logger::new(name, args.level, args.log_format, console);
    let _traces = millrace_traces::install(PROGRAM, logger.layer()).map_err(Failure::own)?;
    let context = Context { args, logger, metrics, ready };
    match role {
        Role::MemoryX => memoryx::run(context, terminate).await?,
        Role::SwarmX => swarmx::run(context, terminate).await?,
        Role::Activation => activation::run(context, terminate).await?,
        Role::Cs2 => cs2::run(context, terminate).await?,
        Role::Coordinator => {}
    }
    Ok(Exit::Done)
}

impl Context {
    fn me(&self) -> AgentId {
        self.args.agent
    }

    /// What this agent's links share.
    fn link_settings(&self, events: Events) -> Settings {
        Settings { events, job: JobCell::default(), metrics: self.metrics.clone(), member: self.args.member.clone() }
    }

    /// Joins the job; `terminate` is SIGTERM.
    async fn join(&self, address: String, shard: Option<ShardState>, terminate: Signal) -> Result<Session, Failure> {
        let coordinator = self.args.coordinator.as_deref();
        let coordinator = coordinator.ok_or_else(|| Failure::bad_input("an agent needs --coordinator HOST:PORT"))?;
        let isa = self.args.isa.unwrap_or_else(Isa::detect);
        let introduction = Introduction { me: self.me(), address, isa, shard, uid: String::new() };
        Session::join(coordinator, self.args.member.clone(), introduction, &self.logger, terminate).await
    }

    /// Opens the data port; returns it with the address others dial.
    async fn listen(&self) -> Result<(tokio::net::TcpListener, String), Failure> {
        let listener = http::listen(&self.args.listen).await?;
        let bound = listener.local_addr().map_err(Failure::own)?;
        let address = match &self.args.advertise {
            Some(host) if host.contains(':') => host.clone(),
            Some(host) => format!("{host}:{}", bound.port()),
            None => bound.to_string(),
        };
        Ok((listener, address))
    }
}
