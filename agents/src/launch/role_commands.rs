//! Determines the processes of a local run and their command lines, without starting any.

use std::path::PathBuf;

use millrace_engine::types::{AgentId, Role};
use millrace_params::LogLevel;
use millrace_protocol::launch::{DocumentSource, PACKAGE_PYTHON, RoleCommand};
use millrace_protocol::security::Protection;
use millrace_telemetry::logs::Level;

use super::{LaunchError, LocalRun};
use crate::host;

/// The listen address of every port of a local run.
const LOOPBACK: &str = "127.0.0.1";
/// Number of ports per process if ports are fixed: control or data, metrics, and the coordinator's journal.
const PORTS_PER_PROCESS: u16 = 3;

/// Returns the command line of every process of `run` in the order in which they are started; the coordinator is first.
/// The address of the coordinator is missing, because it is not known before the coordinator listens.
///
/// # Errors
/// The fixed ports exceed the highest port, or a system would have too many threads.
pub fn role_commands(run: &LocalRun) -> Result<Vec<RoleCommand>, LaunchError> {
    let agents = run.launch.agent_counts.agents();
    agents.enumerate().map(|(position, agent)| role_command(run, agent, ports(run.base_port, position)?)).collect()
}

fn role_command(
    run: &LocalRun,
    agent: AgentId,
    ports: [u16; PORTS_PER_PROCESS as usize],
) -> Result<RoleCommand, LaunchError> {
    let [listen, metrics, journal] = ports.map(|port| Some(format!("{LOOPBACK}:{port}")));
    let common = RoleCommand {
        identity: Some(DocumentSource::Stdin),
        // The traffic does not leave this machine.
        data_encryption: Some(Protection::Authenticated),
        shared_memory: Some(true),
        listen,
        metrics_listen: metrics,
        logging: Some(level(run.launch.job.run.logging)),
        roots: run.roots.clone(),
        isa: run.launch.isa,
        ..RoleCommand::new(agent.role, agent.index)
    };
    Ok(match agent.role {
        Role::Coordinator => RoleCommand {
            journal_listen: journal,
            launch: Some(DocumentSource::Stdin),
            termination_log: run.last_report.clone(),
            ..common
        },
        Role::Cs2 => {
            let requested = run.threads.unwrap_or(run.launch.appliance.threads);
            let threads = host::threads_per_system(requested, run.launch.agent_counts.systems, host::cores());
            let threads = u16::try_from(threads).map_err(|_| LaunchError::Threads { threads })?;
            RoleCommand { threads: Some(threads), ..common }
        }
        // One thread adds, copies and updates at the speed of memory.
        Role::MemoryX | Role::SwarmX => RoleCommand { threads: Some(1), ..common },
        Role::Activation => RoleCommand { threads: Some(1), python: Some(python(run)), ..common },
    })
}

/// Returns the interpreter with which activation servers read Python datasets.
fn python(run: &LocalRun) -> PathBuf {
    run.python.clone().unwrap_or_else(|| PACKAGE_PYTHON.into())
}

/// Converts the log level of a job to that of telemetry.
const fn level(level: LogLevel) -> Level {
    match level {
        LogLevel::Debug => Level::Debug,
        LogLevel::Verbose => Level::Verbose,
        LogLevel::Info => Level::Info,
        LogLevel::Warning => Level::Warning,
        LogLevel::Error => Level::Error,
    }
}

/// Returns the ports of process number `position`; all are 0 (any free port) if ports are not fixed.
fn ports(base: Option<u16>, position: usize) -> Result<[u16; PORTS_PER_PROCESS as usize], LaunchError> {
    let Some(base) = base else { return Ok([0; PORTS_PER_PROCESS as usize]) };
    let first =
        u16::try_from(position).ok().and_then(|position| position.checked_mul(PORTS_PER_PROCESS)?.checked_add(base));
    let last = first.and_then(|first| first.checked_add(PORTS_PER_PROCESS - 1));
    first
        .zip(last)
        .map(|(first, _)| std::array::from_fn(|index| first + index as u16))
        .ok_or(LaunchError::Ports { base })
}

#[cfg(test)]
mod tests {
    use super::super::testing::local_run;
    use super::*;

    #[test]
    fn run_has_all_roles_with_distinct_ports() {
        let mut run = local_run();
        run.launch.agent_counts.systems = 3;
        run.launch.agent_counts.swarmx = 3;
        run.launch.agent_counts.shards = 2;
        run.launch.agent_counts.activation_servers = 3;
        run.base_port = Some(7000);
        let commands = role_commands(&run).unwrap();
        let names: Vec<_> = commands.iter().map(|command| command.agent().to_string()).collect();
        let expected = "coordinator-0 memoryx-0 memoryx-1 swarmx-0 swarmx-1 swarmx-2 \
                        activation-0 activation-1 activation-2 cs2-0 cs2-1 cs2-2";
        assert_eq!(names.join(" "), expected);
        let listens = |command: &RoleCommand| {
            [command.listen.clone(), command.metrics_listen.clone(), command.journal_listen.clone()]
        };
        let mut addresses: Vec<String> = commands.iter().flat_map(listens).flatten().collect();
        let all = addresses.len();
        addresses.sort();
        addresses.dedup();
        assert_eq!((addresses.len(), all), (25, 25), "two for each agent, three for the coordinator");
        assert_eq!(addresses[0], "127.0.0.1:7000");
    }

    #[test]
    fn ports_are_free_ones_unless_fixed_and_end_at_the_highest() {
        assert_eq!(ports(None, 9).unwrap(), [0, 0, 0]);
        assert_eq!(ports(Some(65_530), 1).unwrap(), [65_533, 65_534, 65_535]);
        assert!(matches!(ports(Some(65_530), 2), Err(LaunchError::Ports { base: 65_530 })));
    }

    #[test]
    fn threads_of_the_run_precede_those_of_the_appliance() {
        let mut run = local_run();
        let threads = |run: &LocalRun| role_commands(run).unwrap().pop().unwrap().threads;
        run.launch.appliance.threads = 3;
        assert_eq!(threads(&run), Some(3));
        run.threads = Some(6);
        assert_eq!(threads(&run), Some(6));
        run.threads = Some(65_536);
        assert!(matches!(role_commands(&run), Err(LaunchError::Threads { threads: 65_536 })));
    }
}
