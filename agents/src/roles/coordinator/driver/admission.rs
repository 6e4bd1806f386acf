//! Admitting agents: all wait until everyone has said hello; who comes later is admitted at once.

use std::sync::Arc;

use millrace_emulator::numerics::Isa;
use millrace_engine::coordinator::{Coordinator, Done, Event, Wanted};
use millrace_engine::types::Role;
use millrace_protocol::proto;

use super::super::policy::policy;
use super::super::resume::{check_profile, evaluated};
use super::super::saver::Saver;
use super::Driver;
use crate::control::job::JobDocument;
use crate::control::server::{Hello, StreamNumber};
use crate::failure::Failure;

impl Driver {
    /// An agent waits until all have said hello, so that the job can be pinned to an instruction set they all have.
    pub(super) fn hello(&mut self, number: StreamNumber, hello: Box<Hello>) -> Result<(), Failure> {
        if self.machine.is_some() {
            return self.admit(number, &hello);
        }
        self.waiting.insert(hello.agent, (number, hello));
        let wanted = &self.launch.wanted;
        let of = |role| self.waiting.keys().filter(|agent| agent.role == role).count();
        let complete = of(Role::MemoryX) >= wanted.shards
            && of(Role::SwarmX) >= wanted.swarmx
            && of(Role::Activation) >= wanted.activation_servers
            && of(Role::Cs2) >= wanted.systems;
        if !complete {
            return Ok(());
        }
        self.pin()?;
        for (number, hello) in std::mem::take(&mut self.waiting).into_values() {
            self.admit(number, &hello)?;
        }
        Ok(())
    }

    /// Everyone is there: pins the profile and makes the machine.
    fn pin(&mut self) -> Result<(), Failure> {
        let Self { launch, compiled, beginning, eval_batches, lock, .. } = self;
        let members = self.waiting.values().map(|(_, hello)| hello.isa);
        let isa = members.min().unwrap_or(Isa::Portable).min(compiled.profile.isa);
        compiled.profile.isa = isa;
        let note = check_profile(launch, compiled, beginning.profile.as_deref())?;
        self.saver = Some(Arc::new(Saver::new(lock.clone(), compiled.clone(), note.into_iter().collect())));
        let policy = policy(compiled, launch.mode, *eval_batches);
        let wanted = Wanted {
            systems: launch.wanted.systems as u32,
            least_systems: launch.wanted.least_systems as u32,
            shards: launch.wanted.shards as u32,
            fan_out: launch.wanted.fan_out,
            activation_servers: launch.wanted.activation_servers as u32,
        };
        let done = Done { evaluated: evaluated(&launch.model_dir, beginning.step), saved: beginning.saved };
        let done = if launch.mode.trains() { done } else { Done::default() };
        let source = beginning.source.clone();
        self.machine = Some(Coordinator::new(compiled.plan.clone(), policy, wanted, source, lock.attempt(), done));
        self.teller.gathered(launch.wanted.systems);
        Ok(())
    }

    fn admit(&mut self, number: StreamNumber, hello: &Hello) -> Result<(), Failure> {
        let compiled = &self.compiled;
        if hello.isa < compiled.profile.isa {
            hello.post.refuse(&format!(
                "the job is pinned to {}, which {}'s machine has not got; mixed fleets are refused",
                compiled.profile.isa, hello.agent
            ));
            return Ok(());
        }
        let document = JobDocument { job: (*compiled.job).clone(), appliance: (*compiled.appliance).clone() };
        hello.post.welcome(proto::Welcome {
            job: serde_json::to_string(&document).map_err(Failure::own)?,
            plan: compiled.hash.0,
            attempt: self.lock.attempt(),
            isa: compiled.profile.isa.to_string(),
        });
        self.joined.insert(hello.agent, (number, hello.post.clone()));
        if self.shard_lost.is_some_and(|(agent, _)| agent == hello.agent) {
            self.shard_lost = None;
        }
        self.event(Event::Joined { agent: hello.agent, address: hello.address.clone(), shard: hello.shard })
    }
}
