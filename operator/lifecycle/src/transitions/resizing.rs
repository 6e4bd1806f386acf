//! A running attempt that is resized: it continues on more or fewer systems, without a restart.
//!
//! ```text
//!              ┌─ more ──► the ledger extends the grant ─► status.systems, numCsx ─► the new agents are created
//! spec.numCsx ─┤
//!              └─ fewer ─► status.numCsx ─► the coordinator does without the others ─► their agents are removed
//!                                                                                   ─► status.systems
//! ```
//!
//! * Agents are numbered: a smaller attempt keeps the first ones of each role, and the first systems.
//! * Systems are released only after their agents are gone.
//! * A job always takes systems that it was granted, also if it no longer needs them, and then releases them: only the
//!   job's status shows the ledger what became of a grant.

use millrace_crds::{Role, TrainJob, TrainJobStatus};

use super::losses::{LOST_GRACE_SECONDS, role_and_index};
use super::{Decider, is_removal_overdue};
use crate::ledger::HeldSystems;
use crate::{JobCommand, JobEvent, LedgerEntry, ObservedAgent, ResizedAttempt};

/// Returns the number of systems that the running attempt of `job` is to have: `spec.numCsx`, or as many as it holds if
/// these are fewer. `None` if no attempt runs.
pub fn target_systems(job: &TrainJob, grant: Option<&LedgerEntry>) -> Option<u32> {
    let status = job.status.as_ref().filter(|status| status.num_csx.is_some())?;
    Some(target(job.spec.num_csx, status, grant))
}

fn target(requested: u32, status: &TrainJobStatus, grant: Option<&LedgerEntry>) -> u32 {
    let held = extension(status, grant).map_or(&status.systems, |grant| &grant.systems);
    requested.min(u32::try_from(held.len()).unwrap_or(u32::MAX))
}

/// Returns the grant if it has more systems for the running attempt than its status.
fn extension<'a>(status: &TrainJobStatus, grant: Option<&'a LedgerEntry>) -> Option<&'a LedgerEntry> {
    let (attempt, resizes) = (status.attempt.unwrap_or(0), status.resizes.unwrap_or(0));
    let held = HeldSystems { attempt, resizes, systems: &status.systems };
    grant.filter(|grant| {
        let LedgerEntry { attempt, resizes, ref systems } = **grant;
        held.is_extended_by(&HeldSystems { attempt, resizes, systems })
    })
}

impl Decider<'_> {
    /// Resizes the attempt to `spec.numCsx`, as far as it holds that many systems.
    pub(super) fn resize(&mut self) {
        let grant = self.observed.grant.as_ref();
        let target = target(self.spec.num_csx, &self.status, grant);
        let resized = match &self.observed.resized_attempt {
            Some(Ok(resized)) if resized.num_csx == target => resized.clone(),
            Some(Err(error)) if !error.is_temporary && self.status.num_csx != Some(target) => {
                let (requested, message) = (self.spec.num_csx, &error.message);
                self.rejection = Some(format!(
                    "numCsx is {requested}, but {message}; until it is changed, the job keeps its number of systems"
                ));
                return;
            }
            _ => return,
        };
        if let Some(LedgerEntry { systems, resizes, .. }) = extension(&self.status, grant).cloned() {
            (self.status.systems, self.status.resizes) = (systems, Some(resizes));
        }
        if let Some(before) = self.status.num_csx.replace(target).filter(|before| *before != target) {
            self.events.push(JobEvent {
                reason: "Resized".to_owned(),
                message: format!(
                    "the attempt continues on {target} system(s) instead of {before}, from the next step on"
                ),
                attempt: self.status.attempt,
                num_csx: Some(target),
                ..JobEvent::default()
            });
        }
        self.status.lost_agents.retain(|lost| {
            role_and_index(&lost.name).is_none_or(|(role, index)| is_one_of(&resized.agents, role, index))
        });
        self.release_excess(&resized);
        self.resized_agents = Some(resized.agents);
    }

    /// Removes agents that the attempt no longer needs, once its coordinator does without them, then releases their
    /// systems.
    fn release_excess(&mut self, resized: &ResizedAttempt) {
        let has_adopted = self.report().is_some_and(|report| report.requested_csx == Some(resized.num_csx));
        if !has_adopted {
            return;
        }
        let mut has_excess = false;
        for agent in &self.observed.agents {
            if is_one_of(&resized.agents, agent.role, agent.index) {
                continue;
            }
            has_excess = true;
            let is_lost =
                agent.removal_deadline.is_some_and(|deadline| is_removal_overdue(deadline, self.observed.now));
            let grace = if is_lost { 0 } else { LOST_GRACE_SECONDS };
            self.commands.push(JobCommand::RemoveAgent { instance: agent.instance.clone(), grace });
        }
        if !has_excess && self.status.systems.len() > resized.num_csx as usize {
            self.status.systems.truncate(resized.num_csx as usize);
            self.status.resizes = Some(self.status.resizes.unwrap_or(0).saturating_add(1));
        }
    }

    /// Returns whether the attempt needs this agent: it may have been resized.
    pub(super) fn is_wanted(&self, agent: &ObservedAgent) -> bool {
        let wanted = self.wanted();
        wanted.is_empty() || is_one_of(&wanted, agent.role, agent.index)
    }

    /// Describes what a resize of the attempt waits for; `None` if the attempt has the requested size, or can't have
    /// it.
    pub(super) fn describe_resize(&self) -> Option<String> {
        let (requested, held) = (self.spec.num_csx, self.status.systems.len());
        let used = self.status.num_csx? as usize;
        if self.rejection.is_some() {
            // A condition reports it.
            return None;
        }
        if let Some(released) = self.status.systems.get(used..).filter(|released| !released.is_empty()) {
            return Some(format!("{} will be released", released.join(" ")));
        }
        let place = self.observed.queue_place.as_ref().and_then(|place| place.message.clone());
        let waits = place.unwrap_or_else(|| "waits for more systems".to_owned());
        (held < requested as usize).then(|| format!("{requested} are requested: {waits}"))
    }
}

/// Returns whether `agents` include this agent: those of each role are numbered from 0.
fn is_one_of(agents: &[(Role, u32)], role: Role, index: u32) -> bool {
    agents.iter().any(|&(other, count)| other == role && index < count)
}
