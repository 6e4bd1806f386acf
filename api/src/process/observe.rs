//! From processes to agents.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use millrace_agents::launch::{Ending, Hand};
use millrace_crds::TrainJob;
use millrace_crds::decide::{Agent, AgentState, End, Outcome, Role, describe_exit};

/// The agent that a process of `job` is; `told` is what the attempt's coordinator came to, where it has said so.
pub fn agent(job: &TrainJob, attempt: u32, hand: Hand, leaving: bool, told: Option<&Outcome>) -> Agent {
    // Every role of the agents is one of the decisions'.
    let role = Role::from_name(hand.agent.role.as_str()).unwrap_or(Role::Coordinator);
    let told = told.filter(|_| role == Role::Coordinator);
    let state = match &hand.ended {
        Some((ending, at)) => AgentState::Ended(ended(*ending, Timestamp::try_from(*at).ok(), &hand, told)),
        None if hand.ready => AgentState::Ready,
        None => AgentState::Starting,
    };
    Agent {
        role,
        index: hand.agent.index,
        attempt,
        name: format!("{}-{}", job.name_any(), hand.agent),
        node: None,
        leaving: leaving && hand.ended.is_none(),
        moved: false,
        state,
    }
}

fn ended(ending: Ending, at: Option<Timestamp>, hand: &Hand, told: Option<&Outcome>) -> End {
    let exit_code = match ending {
        Ending::Code(code) => code,
        // As a shell and a container runtime have it.
        Ending::Signal(signal) => 128 + signal,
    };
    let (reason, said) = match told {
        _ if exit_code == 0 => ("Completed", None),
        Some(told) => (told.reason.as_str(), Some(told.message.clone())),
        // What a process wrote last has nothing to do with a signal.
        None if matches!(ending, Ending::Signal(_)) => ("Error", Some(describe_exit(exit_code))),
        None => ("Error", hand.last_lines.last().cloned()),
    };
    End {
        exit_code: Some(exit_code),
        reason: reason.to_owned(),
        message: said.unwrap_or_else(|| format!("{} {ending}", hand.agent)),
        log_tail: hand.last_lines.clone(),
        at,
    }
}

/// What is left of an attempt whose processes ended with the server that ran them: nobody's fault, and not counted.
pub fn lost(job: &TrainJob, attempt: u32) -> Agent {
    let end = End {
        reason: "ServerRestarted".to_owned(),
        message: "the server that ran the agents was started anew".to_owned(),
        ..End::default()
    };
    Agent {
        role: Role::Coordinator,
        index: 0,
        attempt,
        name: format!("{}-coordinator-0", job.name_any()),
        node: None,
        leaving: false,
        moved: true,
        state: AgentState::Ended(end),
    }
}
