//! Conditions of an appliance, and the events about its ledger.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use millrace_crds::{Appliance, ApplianceStatus, Grant, ResourceAmounts};
use millrace_lifecycle::ledger::{describe_jobs, over_commitment_message};
use millrace_lifecycle::{JobEvent, set_condition, used_resources};

/// Condition: the spec is valid, and jobs are admitted.
const CONDITION_ACCEPTED: &str = "Accepted";
/// Condition: jobs hold more than the appliance has.
const CONDITION_OVER_COMMITTED: &str = "OverCommitted";
/// Condition: the appliance is deleted, and jobs hold systems of it.
const CONDITION_DELETING: &str = "Deleting";
/// Condition: the spec equals the chart's values.
const CONDITION_MATCHES_VALUES: &str = "MatchesValues";

/// Updates the appliance's conditions. `spec_error` is the error in its spec, if any.
pub(super) fn update_conditions(
    status: &mut ApplianceStatus,
    appliance: &Appliance,
    capacity: Option<&ResourceAmounts>,
    ledger: &[Grant],
    spec_error: Option<String>,
    now: Timestamp,
) {
    let mut set = |type_: &str, condition_status: &str, reason: &str, message: String| {
        set_condition(&mut status.conditions, condition(appliance, type_, condition_status, reason, message, now));
    };
    let systems = used_resources(ledger).systems;
    match (spec_error, capacity) {
        (Some(error), _) => set(CONDITION_ACCEPTED, "False", "BadSpec", error),
        (None, capacity) => {
            let all = capacity.map_or(0, |capacity| capacity.systems);
            set(CONDITION_ACCEPTED, "True", "Ready", format!("in use: {systems} system(s) of {all}"));
        }
    }
    match capacity.and_then(|capacity| over_commitment_message(capacity, ledger)) {
        Some(message) => set(CONDITION_OVER_COMMITTED, "True", "Overcommitted", message),
        None => set(CONDITION_OVER_COMMITTED, "False", "Fits", "capacity covers the systems in use".to_owned()),
    }
    if appliance.metadata.deletion_timestamp.is_some() {
        let message = format!(
            "deletion waits until no job uses systems; used by {}: wait until these jobs end, suspend them or delete \
             them",
            describe_jobs(ledger)
        );
        set(CONDITION_DELETING, "True", "SystemsInUse", message);
    }
}

/// Updates the condition about fields that differ from the chart's values; removes it if the appliance has no values.
pub(super) fn update_matches_values(
    status: &mut ApplianceStatus,
    appliance: &Appliance,
    edits: Option<Vec<String>>,
    now: Timestamp,
) {
    let Some(edits) = edits else {
        status.conditions.retain(|condition| condition.type_ != CONDITION_MATCHES_VALUES);
        return;
    };
    let (condition_status, reason, message) = if edits.is_empty() {
        ("True", "MatchesChart", "the appliance matches the chart's values".to_owned())
    } else {
        let list = edits.join(", ");
        let message = format!(
            "edited manually since the chart's values were applied: {list}; the edit is kept until the values change"
        );
        ("False", "EditedManually", message)
    };
    let condition = condition(appliance, CONDITION_MATCHES_VALUES, condition_status, reason, message, now);
    set_condition(&mut status.conditions, condition);
}

/// Creates a condition about the appliance's present generation. `status` is `True` or `False`.
fn condition(
    appliance: &Appliance,
    type_: &str,
    status: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: appliance.metadata.generation,
        last_transition_time: Time(now),
    }
}

/// Returns the events to publish about the appliance.
pub(super) fn appliance_events(
    old: &ApplianceStatus,
    new: &ApplianceStatus,
    adopted: &[String],
    rejected: &[Grant],
) -> Vec<JobEvent> {
    let true_condition = |status: &ApplianceStatus, type_: &str| {
        status.conditions.iter().find(|condition| condition.type_ == type_ && condition.status == "True").cloned()
    };
    let warning = |reason: &str, message: String| JobEvent {
        warning: true,
        reason: reason.to_owned(),
        message,
        ..JobEvent::default()
    };
    let new_conditions =
        [CONDITION_OVER_COMMITTED, CONDITION_DELETING].into_iter().filter(|type_| true_condition(old, type_).is_none());
    let mut events: Vec<JobEvent> = new_conditions
        .filter_map(|type_| true_condition(new, type_))
        .map(|condition| warning(&condition.reason, condition.message))
        .collect();
    let edited = |status: &ApplianceStatus| {
        let mut conditions = status.conditions.iter();
        conditions.find(|condition| condition.type_ == CONDITION_MATCHES_VALUES && condition.status == "False").cloned()
    };
    let before = edited(old).map(|condition| condition.message);
    let edited = edited(new).filter(|condition| Some(&condition.message) != before.as_ref());
    events.extend(edited.map(|condition| warning(&condition.reason, condition.message)));
    if !adopted.is_empty() {
        let jobs = adopted.join(", ");
        let message = format!("rebuilt the ledger: it lacked systems that the status of {jobs} lists");
        events.push(warning("LedgerRebuilt", message));
    }
    events.extend(rejected.iter().map(|grant| {
        let message = format!("removed a grant to {}/{} of systems that other jobs use", grant.namespace, grant.name);
        warning("GrantRemoved", message)
    }));
    events
}
