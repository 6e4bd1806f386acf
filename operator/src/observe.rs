//! Converts pods to the agents that decisions are made from: state, exit, and the coordinator's last report. Pure: the
//! world has fetched the pods.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use millrace_cluster::names::{ATTEMPT_LABEL, INDEX_LABEL, ROLE_LABEL};
use millrace_control::report::report_from_outcome;
use millrace_crds::Role;
use millrace_lifecycle::{
    AgentState, CoordinatorReport, OUT_OF_MEMORY, ObservedAgent, ProcessEnd, ReportedOutcome, describe_exit,
};

use crate::children::{CONTAINER_NAME, FETCHER_NAME, LOADER_NAME};

/// Maximum lines of a log in the status.
const MAX_STATUS_LOG_LINES: usize = 20;
/// Maximum characters of such a line.
const MAX_STATUS_LOG_LINE_CHARS: usize = 512;

/// A process that was ended by a signal has an exit code above this.
const SIGNAL_EXIT_OFFSET: i32 = 128;
/// The scheduler's message for a pod whose binding it retries at once, after a write conflict.
const CONFLICT_MESSAGE: &str = "the object has been modified";
/// Reason of an agent that waits for the init container which fetches its uploads.
const FETCHING_UPLOADS: &str = "FetchingUploads";

/// Returns the agent that runs in `pod`; `None` for a pod without the labels of an agent.
pub fn agent(pod: &Pod) -> Option<ObservedAgent> {
    let label = |key: &str| pod.labels().get(key).map(String::as_str);
    Some(ObservedAgent {
        role: Role::from_name(label(ROLE_LABEL)?)?,
        index: label(INDEX_LABEL)?.parse().ok()?,
        attempt: label(ATTEMPT_LABEL)?.parse().ok()?,
        name: pod.name_any(),
        instance: pod.uid().unwrap_or_default(),
        created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        started: container(pod).and_then(|status| start_time(status.state.as_ref()?)),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        is_terminating: pod.metadata.deletion_timestamp.is_some(),
        removal_deadline: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        is_evicted: has_condition(pod, "DisruptionTarget"),
        state: state(pod),
    })
}

/// Returns the condition of this type, if the pod has it.
pub fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == type_)
}

/// Returns whether a condition of a pod is true.
pub fn has_condition(pod: &Pod, type_: &str) -> bool {
    condition(pod, type_).is_some_and(|condition| condition.status == "True")
}

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    let all = pod.status.as_ref()?.container_statuses.as_ref()?;
    all.iter().find(|status| status.name == CONTAINER_NAME)
}

/// Returns when the process of a container started, if it runs or has ended.
fn start_time(state: &ContainerState) -> Option<Timestamp> {
    let running = state.running.as_ref().and_then(|running| running.started_at.as_ref());
    let ended = || state.terminated.as_ref().and_then(|ended| ended.started_at.as_ref());
    running.or_else(ended).map(|time| time.0)
}

/// Returns the state of the init container `name`, if the pod has one.
fn init_container<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerState> {
    let all = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    all.iter().find(|status| status.name == name)?.state.as_ref()
}

/// Returns how fetching the uploads failed; `None` if it has not.
fn fetch_failure(pod: &Pod, state: &ContainerState) -> Option<ProcessEnd> {
    let end = process_end(pod, state).filter(|end| end.exit_code != Some(0))?;
    let reason = match end.reason.as_str() {
        OUT_OF_MEMORY => "it exceeded its memory limit",
        _ => end.message.trim_start_matches("error: "),
    };
    let message = format!("fetching the uploads of the job failed: {reason}");
    Some(ProcessEnd { message, ..end })
}

fn state(pod: &Pod) -> AgentState {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let current = container(pod).and_then(|status| status.state.as_ref());
    let fetching = init_container(pod, FETCHER_NAME);
    if let Some(failed) = fetching.and_then(|state| fetch_failure(pod, state)) {
        return AgentState::Ended(failed);
    }
    if let Some(ended) = current.and_then(|state| process_end(pod, state)) {
        return AgentState::Ended(ended);
    }
    if matches!(phase, Some("Failed" | "Succeeded")) {
        return AgentState::Ended(pod_end(pod));
    }
    // As long as an init container runs or can't start, the state of the agent's own container says nothing.
    let has_begun = current.is_some_and(|state| state.waiting.is_none());
    let loader = init_container(pod, LOADER_NAME).filter(|state| state.waiting.is_some() && !has_begun);
    let current = fetching.filter(|state| state.terminated.is_none()).or(loader).or(current);
    if let Some(waiting) = waiting_reason(pod, current) {
        return waiting;
    }
    if has_condition(pod, "Ready") { AgentState::Ready } else { AgentState::Starting }
}

/// Returns how the container's process ended; `None` if it has not.
fn process_end(pod: &Pod, state: &ContainerState) -> Option<ProcessEnd> {
    let terminated = state.terminated.as_ref()?;
    let text = terminated.message.clone().unwrap_or_default();
    let reason = terminated.reason.clone().unwrap_or_else(|| "Error".to_owned());
    let outcome = outcome(&text);
    let message = match &outcome {
        Some(outcome) => outcome.message.clone(),
        // The log ends before the process was killed, so it does not name the cause.
        None if reason == OUT_OF_MEMORY => out_of_memory(pod),
        None if terminated.exit_code > SIGNAL_EXIT_OFFSET => describe_exit(terminated.exit_code),
        None => last_line(&text).unwrap_or_else(|| describe_exit(terminated.exit_code)),
    };
    Some(ProcessEnd {
        exit_code: Some(terminated.exit_code),
        reason: outcome.filter(|_| reason == "Error").map_or(reason, |outcome| outcome.reason.to_string()),
        message,
        log_tail: tail(&text),
        at: terminated.finished_at.as_ref().map(|time| time.0),
    })
}

fn out_of_memory(pod: &Pod) -> String {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limit = containers.find_map(|container| container.resources.as_ref()?.limits.as_ref()?.get("memory"));
    let limit = limit.map_or_else(String::new, |limit| format!(" of {}", limit.0));
    let role = pod.labels().get(ROLE_LABEL).map_or("ROLE", String::as_str);
    format!("it exceeded its memory limit{limit}: raise spec.resources.{role}.limits.memory")
}

/// Describes the end of a pod without a process: evicted, or not admitted by its node.
fn pod_end(pod: &Pod) -> ProcessEnd {
    let status = pod.status.as_ref();
    let reason = status.and_then(|status| status.reason.clone()).unwrap_or_else(|| "Failed".to_owned());
    let message = status.and_then(|status| status.message.clone());
    ProcessEnd {
        message: message.unwrap_or_else(|| format!("the pod ended: {reason}")),
        reason,
        ..ProcessEnd::default()
    }
}

/// Returns what prevents a pod from starting.
fn waiting_reason(pod: &Pod, current: Option<&ContainerState>) -> Option<AgentState> {
    let agent_waiting = |reason: &str, message: Option<&String>| AgentState::Waiting {
        reason: reason.to_owned(),
        message: message.cloned().unwrap_or_default(),
    };
    if let Some(waiting) = current.and_then(|state| state.waiting.as_ref()) {
        let reason = waiting.reason.as_deref().unwrap_or("Waiting");
        // The normal states of a starting pod are not reported.
        let ordinary = matches!(reason, "ContainerCreating" | "PodInitializing");
        return (!ordinary).then(|| agent_waiting(reason, waiting.message.as_ref()));
    }
    if init_container(pod, FETCHER_NAME).is_some_and(|state| state.running.is_some()) {
        return Some(agent_waiting(FETCHING_UPLOADS, Some(&"the uploads of the job are being fetched".to_owned())));
    }
    let is_lasting = |condition: &&PodCondition| {
        let message = condition.message.as_deref().unwrap_or_default();
        condition.status == "False" && !message.contains(CONFLICT_MESSAGE)
    };
    let scheduled = condition(pod, "PodScheduled").filter(is_lasting)?;
    Some(agent_waiting(scheduled.reason.as_deref().unwrap_or("Unschedulable"), scheduled.message.as_ref()))
}

fn last_line(text: &str) -> Option<String> {
    tail(text).pop()
}

fn tail(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines
        .iter()
        .skip(lines.len().saturating_sub(MAX_STATUS_LOG_LINES))
        .map(|line| line.chars().take(MAX_STATUS_LOG_LINE_CHARS).collect())
        .collect()
}

/// Parses the coordinator's outcome in a termination message.
fn outcome(text: &str) -> Option<millrace_telemetry::journal::AttemptOutcome> {
    text.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// Returns the report in the status of the coordinator's pod, for a loop that did not receive it from the coordinator.
pub fn termination_report(pods: &[Pod], attempt: u32) -> Option<CoordinatorReport> {
    let coordinator = pods
        .iter()
        .find(|pod| agent(pod).is_some_and(|agent| agent.role == Role::Coordinator && agent.attempt == attempt))?;
    let terminated = container(coordinator)?.state.as_ref()?.terminated.as_ref()?;
    let ended = terminated.finished_at.as_ref().map(|time| time.0);
    let outcome = match outcome(terminated.message.as_deref().unwrap_or_default()) {
        Some(outcome) => return Some(report_from_outcome(attempt, outcome, ended)),
        // Without an outcome, exit code 0 means success.
        None if terminated.exit_code == 0 => ReportedOutcome {
            reason: "Succeeded".to_owned(),
            message: "the coordinator exited normally".to_owned(),
            ..ReportedOutcome::default()
        },
        None => return None,
    };
    Some(CoordinatorReport { attempt, outcome: Some(outcome), ..CoordinatorReport::default() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: serde_json::Value) -> Pod {
        let pod = json!({
            "metadata": {
                "name": "job-cs2-1",
                "labels": {ROLE_LABEL: "cs2", INDEX_LABEL: "1", ATTEMPT_LABEL: "2"},
            },
            "spec": {
                "nodeName": "worker",
                "containers": [{"name": CONTAINER_NAME, "resources": {"limits": {"memory": "14Mi"}}}],
            },
            "status": status,
        });
        serde_json::from_value(pod).unwrap()
    }

    fn state_of(status: serde_json::Value) -> AgentState {
        agent(&pod(status)).unwrap().state
    }

    fn container(state: serde_json::Value) -> serde_json::Value {
        json!([{"name": CONTAINER_NAME, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
    }

    #[test]
    fn pods_become_agents() {
        let observed = agent(&pod(json!({"phase": "Pending"}))).unwrap();
        assert_eq!(
            (observed.role, observed.index, observed.attempt, observed.state),
            (Role::Cs2, 1, 2, AgentState::Starting)
        );
        let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        assert_eq!(state_of(ready), AgentState::Ready);
        assert!(agent(&Pod::default()).is_none());
    }

    #[test]
    fn waiting_reason_is_reported() {
        let pulling = container(json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}));
        let waiting =
            |reason: &str, message: &str| AgentState::Waiting { reason: reason.into(), message: message.into() };
        let state = state_of(json!({"phase": "Pending", "containerStatuses": pulling}));
        assert_eq!(state, waiting("ImagePullBackOff", "no such image"));
        let creating = container(json!({"waiting": {"reason": "ContainerCreating"}}));
        assert_eq!(state_of(json!({"phase": "Pending", "containerStatuses": creating})), AgentState::Starting);
        let unscheduled = json!([{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "persistentvolumeclaim \"data\" not found",
        }]);
        let state = state_of(json!({"phase": "Pending", "conditions": unscheduled}));
        assert_eq!(state, waiting("Unschedulable", "persistentvolumeclaim \"data\" not found"));
        let retried = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulerError",
            "message": "running PreBind plugin \"VolumeBinding\": Operation cannot be fulfilled on \
                persistentvolumeclaims \"data\": the object has been modified; please apply your changes to the latest version",
        }]);
        assert_eq!(state_of(json!({"phase": "Pending", "conditions": retried})), AgentState::Starting);
    }

    #[test]
    fn init_container_is_part_of_the_state() {
        let pod = |phase: &str, state: serde_json::Value| {
            let mut init = container(state);
            init[0]["name"] = FETCHER_NAME.into();
            let initializing = container(json!({"waiting": {"reason": "PodInitializing"}}));
            state_of(json!({"phase": phase, "initContainerStatuses": init, "containerStatuses": initializing}))
        };
        let waiting =
            |reason: &str, message: &str| AgentState::Waiting { reason: reason.into(), message: message.into() };
        let fetching = waiting("FetchingUploads", "the uploads of the job are being fetched");
        assert_eq!(pod("Pending", json!({"running": {}})), fetching);
        let pull = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
        assert_eq!(pod("Pending", pull.clone()), waiting("ImagePullBackOff", "no such image"));
        let mut loader = container(pull);
        loader[0]["name"] = LOADER_NAME.into();
        let initializing = container(json!({"waiting": {"reason": "PodInitializing"}}));
        let status = json!({"initContainerStatuses": loader, "containerStatuses": initializing});
        assert_eq!(state_of(status), waiting("ImagePullBackOff", "no such image"));
        assert_eq!(pod("Pending", json!({"terminated": {"exitCode": 0}})), AgentState::Starting);
        let log = "retrying the upload\nerror: the upload blake3:0 of /x does not exist\n";
        let failed = json!({"terminated": {"exitCode": 2, "reason": "Error", "message": log}});
        match pod("Failed", failed) {
            AgentState::Ended(end) => {
                assert_eq!((end.exit_code, end.reason.as_str()), (Some(2), "Error"));
                let message = "fetching the uploads of the job failed: the upload blake3:0 of /x does not exist";
                assert_eq!(end.message, message);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_pod_end_is_classified() {
        let ended = |exit: i32, reason: &str, message: &str| {
            let state = json!({"terminated": {
                "exitCode": exit, "reason": reason, "message": message, "finishedAt": "2026-01-01T00:00:00Z",
            }});
            match state_of(json!({"phase": "Failed", "containerStatuses": container(state)})) {
                AgentState::Ended(end) => end,
                other => panic!("{other:?}"),
            }
        };
        let failed = ended(1, "Error", "one line\nerror: cs2-1: the disk is full\n");
        assert_eq!((failed.exit_code, failed.reason.as_str()), (Some(1), "Error"));
        assert_eq!((failed.message.as_str(), failed.log_tail.len()), ("error: cs2-1: the disk is full", 2));
        let killed = ended(137, "Error", "| Train Device=CSX, Step=50\n");
        assert_eq!((killed.message.as_str(), killed.log_tail.len()), ("killed by signal 9 (exit code 137)", 1));
        assert_eq!(ended(139, "Error", "").message, "killed by signal 11 (exit code 139)");
        assert_eq!(ended(7, "Error", "").message, "it exited with code 7");
        let starved = ended(137, "OOMKilled", "what it wrote last");
        assert_eq!((starved.reason.as_str(), starved.log_tail.len()), ("OOMKilled", 1));
        assert_eq!(starved.message, "it exceeded its memory limit of 14Mi: raise spec.resources.cs2.limits.memory");
        let termination_message =
            r#"{"exit_code":1,"reason":"NonFiniteLoss","message":"the loss of step 7 is not finite","step":6}"#;
        let end = ended(1, "Error", termination_message);
        assert_eq!((end.reason.as_str(), end.message.as_str()), ("NonFiniteLoss", "the loss of step 7 is not finite"));
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"});
        match state_of(evicted) {
            AgentState::Ended(end) => assert_eq!((end.exit_code, end.reason.as_str()), (None, "Evicted")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn termination_report_is_read_from_coordinator_pod() {
        let report = r#"{"exit_code":130,"reason":"Interrupted","message":"stopped","step":9,"digest":"abc"}"#;
        let state = json!({"terminated": {"exitCode": 130, "message": report}});
        let mut coordinator = pod(json!({"phase": "Failed", "containerStatuses": container(state)}));
        coordinator.metadata.labels.as_mut().unwrap().insert(ROLE_LABEL.into(), "coordinator".into());
        let report = termination_report(&[coordinator.clone()], 2).unwrap();
        assert_eq!((report.saved, report.checkpoint), (true, Some((9, "abc".to_owned()))));
        assert_eq!(report.outcome.unwrap().exit_code, 130);
        assert!(termination_report(&[coordinator], 1).is_none(), "of another attempt");
    }
}
