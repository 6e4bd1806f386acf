//! Another number of systems, as requested while the job runs. The state machine changes the placement between two
//! steps; the program that runs the agents starts those that the job needs, and ends the others once the journal shows
//! that the job does without them.

use millrace_emulator::time::nominal_placement;
use millrace_engine::coordinator::{Coordinator, CoordinatorEvent};
use millrace_engine::types::AgentId;

use super::super::journal::ResizeCommand;
use super::CoordinatorDriver;
use super::admission::required_agents;
use crate::error::AgentError;

impl CoordinatorDriver {
    /// Executes a command that arrived before the run was prepared.
    pub(super) fn on_early_resize(&mut self) -> Result<(), AgentError> {
        self.events.resize.take().map_or(Ok(()), |command| self.on_resize(command))
    }

    /// Executes a command, unless the job can't run on so many systems.
    pub(super) fn on_resize(&mut self, command: ResizeCommand) -> Result<(), AgentError> {
        let ResizeCommand { systems, min_systems, reply } = command;
        let checked = nominal_placement(&self.compiled.plan, &self.compiled.appliance, systems).map(drop);
        let is_accepted = checked.is_ok();
        if let Err(error) = &checked {
            tracing::warn!("the job is not resized to {systems} systems: {error}");
        }
        // A client that has disconnected sends the command again.
        let _ = reply.send(checked);
        if is_accepted { self.resize(systems, min_systems) } else { Ok(()) }
    }

    fn resize(&mut self, systems: u32, min_systems: u32) -> Result<(), AgentError> {
        let old = self.launch.agent_counts;
        let new = old.resized(systems as usize, min_systems as usize);
        if new == old {
            return Ok(());
        }
        self.launch.agent_counts = new;
        if new.systems != old.systems {
            self.reporter.resizing(new.systems);
        }
        let lost_before = self.lost_agents.len();
        self.lost_agents.retain(|agent, _| new.contains(*agent));
        if self.lost_agents.len() < lost_before {
            self.report_lost_agents();
        }
        if self.machine.is_none() {
            self.report_size();
            return self.admit_if_complete();
        }
        self.handle_event(CoordinatorEvent::Resized(required_agents(&new)))
    }

    /// Reports the number of systems that the job is to use, unless other agents still take part.
    pub(super) fn report_size(&mut self) {
        if self.machine.as_ref().is_none_or(Coordinator::is_within_size) {
            self.reporter.set_requested_systems(self.launch.agent_counts.systems as u32);
        }
    }

    /// Returns whether the job needs `agent`: it may have been resized.
    pub(super) const fn is_needed(&self, agent: AgentId) -> bool {
        self.launch.agent_counts.contains(agent)
    }
}
