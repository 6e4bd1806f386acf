//! The processes of one attempt, for a program that runs many jobs: reports the status of each process, replaces those
//! that are lost, and leaves other decisions to the caller.
//!
//! * A process is replaced by the rules of [`Replacements`], while the group is to run and its coordinator has not
//!   ended the attempt. Meanwhile it counts as starting.
//! * A coordinator is replaced if it was killed, also because it did not respond. One that ends by itself has ended the
//!   attempt.
//! * Processes are added and removed when the job is resized.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::journal::JournalEndpoint;
use tokio::sync::{mpsc, watch};

use super::children::{ChildEvent, Children};
use super::process::{DesiredState, LastLines, OutputMode};
use super::replacements::{Replacements, describe_end, is_coordinator_lost};
use super::supervise::ProcessExit;
use super::{LaunchError, LocalRun};

/// Called whenever the status of a process has changed.
type ChangeCallback = Arc<dyn Fn() + Send + Sync>;

/// The processes of one attempt. Dropping it kills every process.
pub struct ProcessGroup {
    processes: Arc<Processes>,
    journal: Option<JournalEndpoint>,
    desired_state: watch::Sender<DesiredState>,
    requests: mpsc::UnboundedSender<GroupRequest>,
    /// Number of processes that run or are being replaced.
    alive: watch::Sender<usize>,
}

/// A request to the task of a group.
enum GroupRequest {
    /// Start the agents of this run that do not exist.
    Add(Box<LocalRun>),
    /// End the process of an agent that the job no longer needs.
    Remove(AgentId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The agent that the process runs.
    pub agent: AgentId,
    /// Whether the process has joined the job and is ready.
    pub ready: bool,
    /// How and when the process ended; `None` while it runs or is being replaced.
    pub ended: Option<(ProcessExit, SystemTime)>,
    /// The last lines that it wrote to standard error.
    pub last_lines: Vec<String>,
}

/// The states of all processes, in the order in which they were started.
#[derive(Default)]
struct Processes(Mutex<Vec<ProcessState>>);

struct ProcessState {
    agent: AgentId,
    ready: bool,
    ended: Option<(ProcessExit, SystemTime)>,
    last_lines: LastLines,
}

impl Processes {
    fn lock(&self) -> MutexGuard<'_, Vec<ProcessState>> {
        // The states are complete values, so they are consistent after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an agent whose process is about to be started, unless it has a state; `alive` counts it.
    fn add(&self, agent: AgentId, alive: &watch::Sender<usize>) {
        let mut states = self.lock();
        if states.iter().all(|state| state.agent != agent) {
            states.push(ProcessState { agent, ready: false, ended: None, last_lines: LastLines::default() });
            alive.send_modify(|alive| *alive += 1);
        }
    }

    fn change(&self, agent: AgentId, change: impl FnOnce(&mut ProcessState)) {
        if let Some(state) = self.lock().iter_mut().find(|state| state.agent == agent) {
            change(state);
        }
    }
}

impl ProcessGroup {
    /// Starts the coordinator of `run`, and all other processes once it listens. If the coordinator ends before it
    /// listens, no other process is started. `changed` is called, from any thread, whenever a process has become ready
    /// or has ended.
    ///
    /// # Errors
    /// A process can't be started. The processes started before are killed. They are also killed if this future is
    /// dropped.
    pub async fn start(run: &LocalRun, changed: ChangeCallback) -> Result<Self, LaunchError> {
        let mut children = Children::new(run, OutputMode::Pipes)?;
        let has_started = children.start_all().await?;
        let started = children.agents().take(if has_started { usize::MAX } else { 1 });
        let state = |agent: AgentId| ProcessState {
            agent,
            ready: has_started && agent.role == Role::Coordinator,
            ended: None,
            last_lines: children.last_lines(agent),
        };
        let states: Vec<ProcessState> = started.map(state).collect();
        let alive = watch::Sender::new(states.len());
        let (requests, received_requests) = mpsc::unbounded_channel();
        let processes = Arc::new(Processes(Mutex::new(states)));
        let (desired_state, desired) = watch::channel(DesiredState::Run);
        let journal = children.journal().cloned();
        let task = GroupTask {
            children,
            replacements: Replacements::new(&run.launch.agent_counts, has_started),
            replacing: HashMap::new(),
            removing: HashSet::new(),
            processes: processes.clone(),
            changed,
            alive: alive.clone(),
            requests: received_requests,
            desired,
            is_ending: false,
        };
        tokio::spawn(task.run());
        Ok(Self { processes, journal, desired_state, requests, alive })
    }

    /// Starts the agents of `run` that do not exist, because the job was resized. They count as starting from now on.
    pub fn add_agents(&self, run: LocalRun) {
        run.launch.agent_counts.agents().for_each(|agent| self.processes.add(agent, &self.alive));
        // The receiver is dropped when the server shuts down.
        let _ = self.requests.send(GroupRequest::Add(Box::new(run)));
    }

    /// Ends the process of the agent of this name, such as `cs2-1`, which the job no longer needs. The agent has no
    /// status once its process has ended. Does nothing for other names.
    pub fn remove_agent(&self, name: &str) {
        if let Some(agent) = AgentId::parse(name) {
            let _ = self.requests.send(GroupRequest::Remove(agent));
        }
    }

    /// Returns the connection to the coordinator's journal; `None` if the coordinator ended before it listened.
    pub const fn journal(&self) -> Option<&JournalEndpoint> {
        self.journal.as_ref()
    }

    /// Returns the status of each process, in the order in which they were started.
    pub fn statuses(&self) -> Vec<ProcessStatus> {
        let status = |state: &ProcessState| {
            let ProcessState { agent, ready, ended, ref last_lines } = *state;
            ProcessStatus { agent, ready, ended, last_lines: last_lines.get() }
        };
        self.processes.lock().iter().map(status).collect()
    }

    /// Returns whether every process has ended.
    pub fn has_ended(&self) -> bool {
        self.processes.lock().iter().all(|state| state.ended.is_some())
    }

    /// Waits until every process has ended.
    pub async fn wait(&self) {
        // An error means that the sender was dropped, so the count can't change.
        let _ = self.alive.subscribe().wait_for(|alive| *alive == 0).await;
    }

    /// Requests every running process to end and returns at once; see [`ProcessGroup::wait`]. The coordinator saves the
    /// last committed step first.
    pub fn terminate(&self) {
        self.desired_state.send_if_modified(|state| {
            let is_running = *state == DesiredState::Run;
            if is_running {
                *state = DesiredState::Terminate;
            }
            is_running
        });
    }

    pub fn kill(&self) {
        self.desired_state.send_replace(DesiredState::Kill);
    }
}

/// The task that handles what happens to the processes of a group. Ends, and kills them, when the group is dropped.
struct GroupTask {
    children: Children,
    replacements: Replacements,
    /// Processes that are being replaced, and how and when they ended.
    replacing: HashMap<AgentId, (ProcessExit, SystemTime)>,
    /// Agents that the job no longer needs, and whose processes have not ended.
    removing: HashSet<AgentId>,
    processes: Arc<Processes>,
    changed: ChangeCallback,
    alive: watch::Sender<usize>,
    requests: mpsc::UnboundedReceiver<GroupRequest>,
    desired: watch::Receiver<DesiredState>,
    /// Whether no process is replaced any more.
    is_ending: bool,
}

impl GroupTask {
    async fn run(mut self) {
        loop {
            tokio::select! {
                event = self.children.next_event() => self.on_event(event).await,
                Some(request) = self.requests.recv() => self.on_request(request).await,
                changed = self.desired.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let state = *self.desired.borrow_and_update();
                    self.children.set_all_states(state);
                    self.stop_replacing();
                }
            }
            (self.changed)();
        }
    }

    async fn on_request(&mut self, request: GroupRequest) {
        match request {
            GroupRequest::Add(run) => self.add_agents(&run).await,
            GroupRequest::Remove(agent) if !self.has_process(agent) => self.forget(agent),
            GroupRequest::Remove(agent) => {
                // It has nothing to save.
                self.children.set_state(agent, DesiredState::Kill);
                self.removing.insert(agent);
            }
        }
    }

    async fn add_agents(&mut self, run: &LocalRun) {
        self.replacements.set_least_systems(run.launch.agent_counts.least_systems);
        // The process of an agent that is needed again is replaced when it has ended.
        self.removing.retain(|agent| !run.launch.agent_counts.contains(*agent));
        let known: HashSet<AgentId> = self.children.agents().collect();
        let new: Vec<AgentId> = run.launch.agent_counts.agents().filter(|agent| !known.contains(agent)).collect();
        let is_added = self.children.add_agents(run).inspect_err(|error| tracing::error!("can't resize: {error}"));
        for agent in new {
            if is_added.is_ok() && !self.is_ending {
                // Its state is gone if an earlier request has removed it meanwhile.
                self.processes.add(agent, &self.alive);
                self.start_later(agent).await;
            } else {
                self.forget(agent);
            }
        }
    }

    /// Returns whether a process of `agent` runs.
    fn has_process(&self, agent: AgentId) -> bool {
        let has_ended = |state: &ProcessState| state.agent == agent && state.ended.is_some();
        !self.replacing.contains_key(&agent) && !self.processes.lock().iter().any(has_ended)
    }

    /// Starts a process of an agent that has none; returns whether its predecessor was killed because it did not
    /// respond.
    async fn start_later(&mut self, agent: AgentId) -> bool {
        let was_unresponsive = self.replacements.on_started(agent);
        self.children.start_later(agent).await;
        let last_lines = self.children.last_lines(agent);
        // A coordinator listens when it starts, and does not print that it is ready.
        let ready = agent.role == Role::Coordinator;
        self.processes.change(agent, |state| (state.last_lines, state.ready) = (last_lines, ready));
        was_unresponsive
    }

    /// Removes an agent that has no process and that the job does not need.
    fn forget(&mut self, agent: AgentId) {
        self.replacing.remove(&agent);
        self.children.remove_agent(agent);
        let mut states = self.processes.lock();
        if let Some(at) = states.iter().position(|state| state.agent == agent)
            && states.remove(at).ended.is_none()
        {
            self.alive.send_modify(|alive| *alive = alive.saturating_sub(1));
        }
    }

    async fn on_event(&mut self, event: ChildEvent) {
        match event {
            ChildEvent::Ended(agent, exit, uptime) => self.on_ended(agent, exit, uptime),
            ChildEvent::ReplacementDue(agent) => {
                let Some((exit, _)) = self.replacing.remove(&agent) else { return };
                let end = describe_end(exit, self.start_later(agent).await);
                tracing::warn!("{agent} {end}; a new {agent} is started");
            }
            ChildEvent::Unresponsive(agent, uptime) => {
                if !self.is_ending && self.replacements.kills_unresponsive(agent, uptime) {
                    self.children.set_state(agent, DesiredState::Kill);
                }
            }
            ChildEvent::Ready(agent, ready) => self.processes.change(agent, |state| state.ready = ready),
        }
    }

    fn on_ended(&mut self, agent: AgentId, exit: ProcessExit, uptime: Duration) {
        let ended = (exit, SystemTime::now());
        self.replacements.on_ended(agent);
        if self.removing.remove(&agent) {
            self.forget(agent);
            return;
        }
        self.processes.change(agent, |state| state.ready = false);
        let has_ended_attempt = agent.role == Role::Coordinator && !is_coordinator_lost(exit);
        if !has_ended_attempt
            && !self.is_ending
            && let Some(after) = self.replacements.replace_after(agent, exit, uptime)
        {
            self.replacing.insert(agent, ended);
            self.children.schedule_replacement(agent, after);
            return;
        }
        self.record_end(agent, ended);
        if agent.role == Role::Coordinator {
            self.stop_replacing();
        }
    }

    /// Lets the processes that are being replaced count as ended.
    fn stop_replacing(&mut self) {
        self.is_ending = true;
        for (agent, ended) in std::mem::take(&mut self.replacing) {
            self.record_end(agent, ended);
        }
    }

    fn record_end(&self, agent: AgentId, ended: (ProcessExit, SystemTime)) {
        self.processes.change(agent, |state| state.ended = Some(ended));
        self.alive.send_modify(|alive| *alive = alive.saturating_sub(1));
    }
}
