//! A running attempt: its agents, its outcome, and the state that follows from them.

use millrace_crds::{JobState, RoleStatus};

use super::failure::final_state;
use super::reports::describe_stall;
use super::{Decider, IDLE_GRACE_SECONDS, REQUEUE_SECONDS, StateAndMessage};
use crate::{AgentState, JobCommand, ObservedAgent, ReportedOutcome};

impl Decider<'_> {
    /// Handles a running attempt.
    pub(super) fn continue_attempt(&mut self) -> StateAndMessage {
        let attempt = self.attempt();
        self.reset_retries_on_progress();
        if let Some(finished) = self.finished_outcome() {
            return finished;
        }
        if self.observed.agents.iter().any(|agent| agent.attempt != attempt) {
            // Agents of this attempt can't be created while agents of an older one have the same names.
            self.commands.push(JobCommand::RemoveAgents { grace: IDLE_GRACE_SECONDS });
            return (JobState::Starting, "agents of an earlier attempt are being removed".to_owned());
        }
        if let Some(error) = self.unusable_record.clone().filter(|_| self.observed.agents.is_empty()) {
            // No agent runs, and none can be started.
            self.end_attempt();
            self.requeue_after = Some(REQUEUE_SECONDS);
            return (JobState::Queued, error.message);
        }
        if let Some(rejected) = self.handle_rejected_start() {
            return rejected;
        }
        if let Some((cause, counted)) = self.find_failure() {
            return self.restart(cause, counted);
        }
        if self.observed.is_resizable && self.obstacle().is_none() && !self.spec.suspend {
            self.resize();
        }
        let ready = self.count_ready();
        let pending = self.pending_replacement();
        if let Some(exceeded) = self.check_deadlines(ready) {
            return exceeded;
        }
        if self.spec.suspend {
            return self.stop(JobState::Suspending, "saving the job's state before it is suspended".to_owned());
        }
        let num_csx = self.status.num_csx.unwrap_or(self.spec.num_csx);
        let is_resizing = self.spec.num_csx != num_csx && self.obstacle().is_none() && !self.exceeds_largest_num_csx();
        if is_resizing && !self.observed.is_resizable {
            let requested = self.spec.num_csx;
            return self.stop(
                JobState::Resizing,
                format!("saving the job's state to resume it with {requested} system(s) instead of {num_csx}"),
            );
        }
        self.commands.push(match self.unusable_record {
            None => JobCommand::RunAgents { attempt, num_csx },
            Some(_) => JobCommand::FollowCoordinator { attempt },
        });
        self.requeue_after = Some(self.requeue_after.unwrap_or(REQUEUE_SECONDS).min(REQUEUE_SECONDS));
        let report = self.report();
        let reported = report.is_some_and(|report| report.advanced.is_some());
        if ready || reported {
            self.reset_failed_starts();
        }
        if let Some(pending) = pending.as_ref().filter(|pending| pending.is_required) {
            return (JobState::Starting, format!("attempt {attempt} waits: {}", pending.message));
        }
        let systems = self.describe_systems(num_csx);
        let degraded = pending.map(|pending| pending.message).or_else(|| self.describe_storage_stall());
        let degraded = degraded.or_else(|| self.describe_slow_agent());
        let degraded = degraded.or_else(|| self.describe_resize());
        let degraded = degraded.map_or_else(String::new, |message| format!("; {message}"));
        if reported && report.is_some_and(|report| report.evaluating) {
            (JobState::Evaluating, format!("attempt {attempt} is evaluating on {systems}{degraded}"))
        } else if reported {
            let resumed = self.resumed();
            (JobState::Training, format!("attempt {attempt} is training on {systems}{resumed}{degraded}"))
        } else if self.has_begun() || (ready && self.is_report_overdue()) {
            (JobState::Training, self.last_training_message(attempt, num_csx))
        } else {
            let (reason, message) = self.start_blocker.clone().unwrap_or_else(|| {
                ("Preparing".to_owned(), "all agents are ready; the first step is being prepared".to_owned())
            });
            (JobState::Starting, format!("attempt {attempt} is starting on {num_csx} system(s); {reason}: {message}"))
        }
    }

    fn describe_storage_stall(&self) -> Option<String> {
        self.report()?.storage.as_ref()?.as_ref().err().map(describe_stall)
    }

    /// Describes the slowest of the agents that are slow; `None` if there is none.
    fn describe_slow_agent(&self) -> Option<String> {
        let (agent, slow) = self.report()?.slow_agents.iter().min_by_key(|(_, slow)| slow.speed_percent)?;
        let percent = slow.speed_percent;
        Some(format!("{agent} is slow: it works at {percent} % of the speed of the other agents of its role"))
    }

    /// Describes the systems that work, of `num_csx` that the attempt has.
    fn describe_systems(&self, num_csx: u32) -> String {
        match self.report().and_then(|report| report.systems).filter(|systems| *systems < num_csx) {
            Some(systems) => format!("{systems} of {num_csx} system(s)"),
            None => format!("{num_csx} system(s)"),
        }
    }

    /// Returns the final state, if the coordinator has reported its outcome and no retry is possible.
    pub(super) fn finished_outcome(&mut self) -> Option<StateAndMessage> {
        let outcome = self.outcome()?.clone();
        if outcome.exit_code == 0 {
            return Some(self.complete_phase(outcome.message));
        }
        let state = final_state(i32::from(outcome.exit_code), &outcome.reason)?;
        self.record_failure(&outcome);
        Some(self.finish(state, outcome.message))
    }

    /// Returns the outcome that this attempt's coordinator reported.
    pub(super) fn outcome(&self) -> Option<&ReportedOutcome> {
        let report = self.report()?;
        report.outcome.as_ref()
    }

    /// Counts the ready agents into the status, records what prevents the first of the others from being ready, and
    /// returns whether all are ready.
    pub(super) fn count_ready(&mut self) -> bool {
        let required = self.wanted();
        let agents = &self.observed.agents;
        let report = self.report();
        // The coordinator may report steps before the last probe has answered. A step requires every agent.
        let is_running = report.is_some_and(|report| report.advanced.is_some());
        let count = |role, is: &dyn Fn(&ObservedAgent) -> bool| {
            agents.iter().filter(|agent| agent.role == role && self.is_wanted(agent) && is(agent)).count() as u32
        };
        let is_ready = |agent: &ObservedAgent| match agent.state {
            _ if agent.is_terminating || self.is_counted(agent) => false,
            AgentState::Ready => true,
            AgentState::Starting => is_running && !self.status.lost_agents.iter().any(|lost| lost.name == agent.id()),
            AgentState::Waiting { .. } | AgentState::Ended(_) => false,
        };
        let has_failed =
            |agent: &ObservedAgent| matches!(&agent.state, AgentState::Ended(end) if end.exit_code != Some(0));
        let roles = required.into_iter().map(|(role, desired)| RoleStatus {
            name: role.to_string(),
            desired,
            ready: count(role, &is_ready),
            failed: count(role, &has_failed),
        });
        self.status.roles = roles.collect();
        let waiting = agents.iter().filter(|agent| self.is_wanted(agent)).find_map(|agent| match &agent.state {
            AgentState::Waiting { reason, message } => Some((reason.clone(), format!("{}: {message}", agent.name))),
            _ => None,
        });
        let incomplete = self.status.roles.iter().find(|role| role.ready < role.desired);
        self.start_blocker = self.temporary_creation_error().or(waiting).or_else(|| {
            let role = incomplete?;
            Some(("Starting".to_owned(), format!("{} of {} {} agents are ready", role.ready, role.desired, role.name)))
        });
        // Nothing is ready if the required agents are not known.
        incomplete.is_none() && !self.status.roles.is_empty()
    }
}
