//! Agents that are lost while their attempt continues. Each is removed, and the next reconcile creates it again.
//!
//! ```text
//!  an agent ends, is deleted, or does not respond ─► counted once ─► removed after a backoff ─► created by RunAgents
//!                                                               └─► given up: the attempt restarts
//! ```
//!
//! * The rules are those of [`millrace_replacement`]. `status.lostAgents` has the counts, so that another operator
//!   continues with them.
//! * An agent whose removal is overdue is on a lost node. Its object is deleted without waiting for the node; the other
//!   agents have closed their connections to it, and what it writes is of an epoch that has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use millrace_crds::{FailureStatus, LostAgentStatus, Role};
use millrace_outcome::Exit;
use millrace_replacement::{Consequence, Loss, LossCount, Necessity};

use super::failure::final_state;
use super::{Decider, seconds};
use crate::agent::{OUT_OF_MEMORY, failure, root_cause_agent};
use crate::retry::after;
use crate::{AgentState, JobCommand, JobEvent, ObservedAgent, ProcessEnd};

/// Seconds after the end of its grace period at which an agent that still exists is on a lost node.
pub(crate) const NODE_LOST_SECONDS: i64 = 10;
/// Grace period of lost agents, in seconds: they have nothing to save, or can't.
pub(super) const LOST_GRACE_SECONDS: u32 = 1;
/// How long a process must have run when the coordinator lost its agent, in seconds. A younger one is a replacement
/// that has not joined.
const MIN_UNRESPONSIVE_AGE_SECONDS: i64 = 5;
/// Maximum entries of `status.lostAgents`. If so many agents are lost at the same time, the attempt restarts.
const MAX_LOST_AGENTS: usize = 256;
/// Maximum characters of a message in `status.lostAgents`.
const MAX_LOST_MESSAGE_CHARS: usize = 256;
/// Reason of an agent that the coordinator counts as lost although it runs.
const UNRESPONSIVE: &str = "Unresponsive";
/// Reason of an agent that works much more slowly than the others of its role.
const SLOW: &str = "Slow";
/// Reason of an agent whose node does not remove it.
const NODE_LOST: &str = "NodeLost";

/// An agent that is lost, and how.
struct LostAgent<'a> {
    agent: &'a ObservedAgent,
    loss: Loss,
    end: ProcessEnd,
}

impl<'a> Decider<'a> {
    /// Removes lost agents whose attempt continues without them. Returns the failure if the attempt can't continue, and
    /// whether it counts against the retry budget.
    pub(super) fn replace_lost_agents(&mut self) -> Option<(FailureStatus, bool)> {
        if let Some((agent, end)) = self.unrecoverable_end() {
            return Some((failure(agent, end), !agent.is_evicted));
        }
        self.record_missing_agents();
        let lost = self.lost_agents();
        if lost.len() >= MAX_LOST_AGENTS {
            return lost.first().map(|lost| (failure(lost.agent, &lost.end), !lost.agent.is_evicted));
        }
        let instances: BTreeSet<&str> = lost.iter().map(|lost| lost.agent.instance.as_str()).collect();
        let remaining = self.agents_without(|agent| instances.contains(agent.instance.as_str()));
        lost.iter().find_map(|lost| {
            let cause = self.replace(lost, self.necessity((lost.agent.role, lost.agent.index), &remaining))?;
            Some((cause, !lost.agent.is_evicted))
        })
    }

    /// Returns the agents for which `is_lost` is false.
    fn agents_without(&self, is_lost: impl Fn(&ObservedAgent) -> bool) -> Vec<(Role, u32)> {
        let remaining = self.observed.agents.iter().filter(|agent| !is_lost(agent));
        remaining.map(|agent| (agent.role, agent.index)).collect()
    }

    /// Returns the necessity of a lost agent, if these agents remain.
    fn necessity(&self, lost: (Role, u32), remaining: &[(Role, u32)]) -> Necessity {
        let shards = self.observed.memoryx_shards;
        Necessity::of_agent(lost, remaining.iter().copied(), shards, self.spec.min_csx as usize)
    }

    /// Records agents whose objects were deleted between two reconciles, once for each agent. `RunAgents` creates them.
    fn record_missing_agents(&mut self) {
        // Agents that could not be created are not lost.
        if !self.has_begun() || self.observed.creation_error.is_some() {
            return;
        }
        for (role, count) in self.wanted() {
            for index in 0..count {
                let exists = self.observed.agents.iter().any(|agent| (agent.role, agent.index) == (role, index));
                if exists {
                    continue;
                }
                let name = format!("{role}-{index}");
                if !self.status.lost_agents.iter().any(|lost| lost.name == name) {
                    self.record_loss(LostAgentStatus {
                        name,
                        losses: 1,
                        reason: "Deleted".to_owned(),
                        message: "its pod does not exist any more".to_owned(),
                        time: Some(Time(self.observed.now)),
                        ..LostAgentStatus::default()
                    });
                }
            }
        }
    }

    /// Returns the agent that ended in a way that its replacement would repeat, if there is one.
    fn unrecoverable_end(&self) -> Option<(&'a ObservedAgent, &'a ProcessEnd)> {
        let is_repeated = |end: &ProcessEnd| end.exit_code.is_some_and(|code| final_state(code, &end.reason).is_some());
        let ended = |agent: &&ObservedAgent| matches!(&agent.state, AgentState::Ended(end) if is_repeated(end));
        root_cause_agent(self.observed.agents.iter().filter(|agent| self.is_wanted(agent)).filter(ended))
    }

    /// Returns the agents that are lost. Requests a reconcile for agents that may have ended together with the run.
    fn lost_agents(&mut self) -> Vec<LostAgent<'a>> {
        let mut lost = Vec::new();
        let wanted = self.observed.agents.iter().filter(|agent| self.is_wanted(agent));
        for lost_agent in wanted.filter_map(|agent| self.loss_of(agent)).collect::<Vec<_>>() {
            match self.settling_seconds(&lost_agent) {
                remaining @ 1.. => self.requeue_after(remaining),
                _ => lost.push(lost_agent),
            }
        }
        lost
    }

    /// Returns the seconds until the end of an agent counts as its loss.
    fn settling_seconds(&self, LostAgent { agent, loss, end }: &LostAgent<'_>) -> i64 {
        let has_ended = matches!(agent.state, AgentState::Ended(_)) && !agent.is_terminating;
        if !has_ended || self.is_counted(agent) {
            return 0;
        }
        let now = self.observed.now;
        loss.settling_time().as_secs() as i64 - seconds(end.at.unwrap_or(now), now)
    }

    /// Returns how `agent` is lost; `None` if it is not.
    fn loss_of(&self, agent: &'a ObservedAgent) -> Option<LostAgent<'a>> {
        let lost = |loss, reason: &str, message: String| {
            let end = ProcessEnd { reason: reason.to_owned(), message, ..ProcessEnd::default() };
            Some(LostAgent { agent, loss, end })
        };
        let deadline = agent.removal_deadline.filter(|_| agent.is_terminating);
        if let Some(deadline) = deadline.filter(|deadline| is_removal_overdue(*deadline, self.observed.now)) {
            let overdue = seconds(deadline, self.observed.now);
            let node = agent.node.as_deref().unwrap_or("its node");
            return lost(Loss::Killed, NODE_LOST, format!("{node} has not ended the pod for {overdue} s"));
        }
        match &agent.state {
            AgentState::Ended(end) => Some(LostAgent { agent, loss: loss_of_end(end), end: end.clone() }),
            _ if agent.is_evicted && agent.is_terminating => {
                lost(Loss::Killed, "Evicted", "its pod was moved from its node".to_owned())
            }
            _ if agent.is_terminating => lost(Loss::Killed, "Deleted", "its pod was deleted".to_owned()),
            _ if self.is_unresponsive(agent) => {
                lost(Loss::Unresponsive, UNRESPONSIVE, "it does not answer its coordinator".to_owned())
            }
            _ => self.overdue_slowness(agent).and_then(|message| lost(Loss::Unresponsive, SLOW, message)),
        }
    }

    /// Describes why this instance of an agent is replaced, if it has been slow for as long as the job permits. The
    /// only replica of a shard is not replaced: the steps since the newest checkpoint would be lost.
    fn overdue_slowness(&self, agent: &ObservedAgent) -> Option<String> {
        let slow = self.report()?.slow_agents.get(&agent.id())?;
        let bound = i64::from(self.spec.failure_policy.slow_after_seconds?);
        // The report may be about the predecessor of this instance.
        let is_about_it = agent.started.is_some_and(|started| started < slow.since);
        let percent = slow.speed_percent;
        let holds_parameters = agent.role == Role::MemoryX && {
            let others = self.agents_without(|other| other.instance == agent.instance);
            self.necessity((agent.role, agent.index), &others) == Necessity::Required
        };
        (is_about_it && !holds_parameters && seconds(slow.since, self.observed.now) >= bound)
            .then(|| format!("it worked at {percent} % of the speed of the other agents of its role for {bound} s"))
    }

    /// Returns whether the coordinator counts this instance of an agent as lost.
    fn is_unresponsive(&self, agent: &ObservedAgent) -> bool {
        let since = self.report().and_then(|report| report.unresponsive.get(&agent.id()));
        let ran_before = |(since, started)| seconds(started, since) >= MIN_UNRESPONSIVE_AGE_SECONDS;
        since.copied().zip(agent.started).is_some_and(ran_before)
    }

    /// Returns whether the loss of this instance of an agent is counted.
    pub(super) fn is_counted(&self, agent: &ObservedAgent) -> bool {
        self.status.lost_agents.iter().any(|lost| lost.instance == agent.instance)
    }

    /// Counts the loss of an agent once, and removes the agent when its replacement is due. Returns the failure if it
    /// is not replaced.
    fn replace(&mut self, lost: &LostAgent<'_>, necessity: Necessity) -> Option<FailureStatus> {
        let agent = lost.agent;
        if !self.is_counted(agent) {
            let Some((count, due)) = self.count_loss(lost, necessity) else { return Some(failure(agent, &lost.end)) };
            self.record_loss(LostAgentStatus {
                name: agent.id(),
                instance: agent.instance.clone(),
                losses: count.0,
                reason: lost.end.reason.clone(),
                message: lost.end.message.chars().take(MAX_LOST_MESSAGE_CHARS).collect(),
                node: agent.node.clone(),
                time: Some(Time(self.observed.now)),
                replacement_time: Some(Time(due)),
            });
        } else if lost.end.reason == NODE_LOST {
            self.record_lost_node(lost);
        }
        let name = agent.id();
        let due = self.status.lost_agents.iter().find(|lost| lost.name == name)?.replacement_time.clone();
        let wait = due.map_or(0, |due| seconds(self.observed.now, due.0));
        if wait > 0 {
            self.requeue_after(wait);
        } else if !self.is_saving(lost) {
            let grace = if lost.end.reason == NODE_LOST { 0 } else { LOST_GRACE_SECONDS };
            self.commands.push(JobCommand::RemoveAgent { instance: agent.instance.clone(), grace });
        }
        if let Some(deadline) = agent.removal_deadline.filter(|_| agent.is_terminating) {
            self.requeue_after(deadline.as_second() + NODE_LOST_SECONDS - self.observed.now.as_second());
        }
        None
    }

    /// Returns whether the agent was requested to end, and may still be saving what no other agent has. One on a lost
    /// node is not ready.
    fn is_saving(&self, lost: &LostAgent<'_>) -> bool {
        let agent = lost.agent;
        let has_state = matches!(agent.role, Role::Coordinator | Role::MemoryX);
        let is_ready = agent.state == AgentState::Ready;
        agent.is_terminating && has_state && is_ready && lost.end.reason != NODE_LOST && !self.is_unresponsive(agent)
    }

    /// Counts a loss; returns how many losses in a row there are, and when the agent is replaced; `None` if it is given
    /// up.
    fn count_loss(&self, lost: &LostAgent<'_>, necessity: Necessity) -> Option<(LossCount, Timestamp)> {
        let (agent, now, name) = (lost.agent, self.observed.now, lost.agent.id());
        let before = self.status.lost_agents.iter().find(|lost| lost.name == name);
        let mut count = LossCount(before.map_or(0, |before| before.losses));
        let started = agent.started.or(agent.created).unwrap_or(now);
        let uptime = Duration::from_secs(seconds(started, lost.end.at.unwrap_or(now)).unsigned_abs());
        match count.on_loss(lost.loss, necessity, uptime) {
            // Times of a status have whole seconds.
            Consequence::Replace { after: pause } => Some((count, after(now, pause.as_secs_f64().ceil() as u64).0)),
            Consequence::GiveUp(_) => None,
        }
    }

    fn record_loss(&mut self, lost: LostAgentStatus) {
        self.publish_loss(&lost);
        self.status.lost_agents.retain(|known| known.name != lost.name);
        self.status.lost_agents.push(lost);
        let known = &mut self.status.lost_agents;
        if known.len() > MAX_LOST_AGENTS {
            // A loss that is forgotten while the lost instance exists would be counted again.
            let is_over =
                |lost: &LostAgentStatus| self.observed.agents.iter().all(|agent| agent.instance != lost.instance);
            if let Some(oldest) = known.iter().position(is_over) {
                known.remove(oldest);
            }
        }
        self.status.replacements = Some(self.status.replacements.unwrap_or(0).saturating_add(1));
    }

    /// Records that an agent that was lost already does not end, because its node is lost.
    fn record_lost_node(&mut self, lost: &LostAgent<'_>) {
        let name = lost.agent.id();
        let Some(known) = self.status.lost_agents.iter_mut().find(|known| known.name == name) else { return };
        if known.reason != NODE_LOST {
            (known.reason, known.message) = (NODE_LOST.to_owned(), lost.end.message.clone());
            let known = known.clone();
            self.publish_loss(&known);
        }
    }

    fn publish_loss(&mut self, lost: &LostAgentStatus) {
        let event_reason = if lost.reason == NODE_LOST { NODE_LOST } else { "AgentLost" };
        self.events.push(JobEvent {
            warning: true,
            reason: event_reason.to_owned(),
            message: format!("{} was lost and is replaced: {}: {}", lost.name, lost.reason, lost.message),
            attempt: self.status.attempt,
            role: role_of(lost).map(|role| role.to_string()),
            num_csx: None,
        });
    }

    /// Describes the first agent that is lost and whose replacement is not ready; `None` if there is none.
    pub(super) fn pending_replacement(&self) -> Option<PendingReplacement> {
        if self.status.lost_agents.is_empty() {
            return None;
        }
        let ready = self.observed.agents.iter().filter(|agent| agent.state == AgentState::Ready);
        let ready: BTreeMap<String, &str> = ready.map(|agent| (agent.id(), agent.instance.as_str())).collect();
        let is_replaced = |lost: &LostAgentStatus| ready.get(&lost.name).is_some_and(|ready| *ready != lost.instance);
        let pending: Vec<&LostAgentStatus> = self.status.lost_agents.iter().filter(|lost| !is_replaced(lost)).collect();
        let names: BTreeSet<&str> = pending.iter().map(|lost| lost.name.as_str()).collect();
        let remaining = self.agents_without(|agent| names.contains(agent.id().as_str()));
        let is_required = |lost: &&&LostAgentStatus| {
            role_and_index(&lost.name).is_some_and(|agent| self.necessity(agent, &remaining) == Necessity::Required)
        };
        let required = pending.iter().find(is_required);
        let lost = required.or(pending.first())?;
        Some(PendingReplacement {
            is_required: required.is_some(),
            message: format!("{} is being replaced: {}: {}", lost.name, lost.reason, lost.message),
        })
    }
}

/// An agent that is lost and whose replacement is not ready.
pub(super) struct PendingReplacement {
    /// Whether the others wait for it.
    pub is_required: bool,
    pub message: String,
}

/// Returns whether an agent whose grace period ended at `deadline` should have ended long ago: its node is lost.
pub fn is_removal_overdue(deadline: Timestamp, now: Timestamp) -> bool {
    seconds(deadline, now) >= NODE_LOST_SECONDS
}

fn role_of(lost: &LostAgentStatus) -> Option<Role> {
    role_and_index(&lost.name).map(|(role, _)| role)
}

/// Parses the name of an agent, such as `cs2-1`.
pub(super) fn role_and_index(name: &str) -> Option<(Role, u32)> {
    let (role, index) = name.rsplit_once('-')?;
    Some((Role::from_name(role)?, index.parse().ok()?))
}

/// Returns the loss that the end of an agent is.
fn loss_of_end(end: &ProcessEnd) -> Loss {
    match end.exit_code.and_then(Exit::from_code) {
        _ if end.reason == OUT_OF_MEMORY => Loss::OutOfMemory,
        Some(exit) => Loss::Exited(exit),
        None => Loss::Killed,
    }
}
