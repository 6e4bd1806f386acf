//! Reads objects that are newer than the program, damaged, or written by a user.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::core::DeserializeGuard;
use millrace_crds::{ConditionType, JobState, StoredParams, TrainJob, TrainJobSpec, TrainJobStatus};
use serde_json::{Value, json};

use crate::cases::{appliance, example, job};

#[test]
fn unknown_fields_are_ignored_and_damaged_objects_are_tolerated() {
    let newer = job("newer", |job| {
        job["spec"]["minCsx"] = json!(1);
        job["spec"]["params"]["model"]["of_tomorrow"] = json!(1);
        job["status"] = json!({"roles": [{"name": "cs2", "zone": "a"}], "of_tomorrow": {}});
    });
    let newer: TrainJob = serde_json::from_value(newer).unwrap();
    assert_eq!(newer.spec.num_csx, 2);
    let error = newer.spec.params.read().unwrap_err();
    assert_eq!(error.key(), "model.of_tomorrow", "what would be trained is not what was asked for");

    let open = job("open", |job| job["spec"]["params"]["optimizer"]["learning_rate"] = json!("fast"));
    let open: TrainJob = serde_json::from_value(open).unwrap();
    let error = open.spec.params.read().unwrap_err();
    assert_eq!(error.to_string(), "optimizer.learning_rate must be a finite number, not the string \"fast\"");

    let damaged = job("damaged", |job| job["spec"]["numCsx"] = json!("two"));
    let damaged: DeserializeGuard<TrainJob> = serde_json::from_value(damaged).unwrap();
    assert_eq!(damaged.0.unwrap_err().metadata.name.as_deref(), Some("damaged"));
}

#[test]
fn defaults_are_those_of_api_server() {
    let params = StoredParams(example("gpt2-tiny"));
    let job = TrainJob::new("made", TrainJobSpec::new(3, params.clone()));
    let written = json!({"metadata": {"name": "made"}, "spec": {"numCsx": 3, "params": params}});
    let mut written: Value = written;
    written["apiVersion"] = json!("millrace.dev/v1alpha1");
    written["kind"] = json!("TrainJob");
    assert_eq!(serde_json::from_value::<TrainJob>(written).unwrap().spec, job.spec);
}

/// One file describes the machine to a cluster and to a local run.
#[test]
fn local_run_reads_complete_appliance() {
    let complete = appliance("default");
    let machine = millrace_params::MachineSpec::parse_yaml(&complete.to_string()).unwrap();
    let resource: millrace_crds::Appliance = serde_json::from_value(complete).unwrap();
    assert_eq!(resource.spec.machine.resolve().unwrap(), machine);
    assert_eq!((machine.systems, machine.wafer.memory_bytes), (8, 4 << 30));
    let cpu = &resource.spec.resources.unwrap().cs2.unwrap().requests.unwrap().0["cpu"];
    assert_eq!(cpu.0, "2", "a number is an amount too");
}

#[test]
fn resolved_appliance_round_trips() {
    for spec in [
        millrace_params::MachineSpec::default(),
        millrace_params::MachineSpec::parse_yaml(&appliance("default").to_string()).unwrap(),
    ] {
        let record = serde_json::to_value(spec.to_document()).unwrap();
        let back: millrace_params::MachineDocument = serde_json::from_value(record).unwrap();
        assert_eq!(back.resolve().unwrap(), spec);
    }
}

fn condition(condition_type: ConditionType, status: &str, reason: &str) -> Condition {
    Condition {
        type_: condition_type.as_str().into(),
        status: status.into(),
        reason: reason.into(),
        message: String::new(),
        observed_generation: Some(1),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

#[test]
fn job_state_is_read_from_conditions() {
    use ConditionType::{Finished, Succeeded};
    let mut status = TrainJobStatus::default();
    assert_eq!(status.state(), None);
    status.conditions = vec![condition(Succeeded, "True", "Succeeded"), condition(Finished, "False", "Active")];
    assert_eq!(status.state(), Some(JobState::Succeeded));
    assert!(status.is(Succeeded) && !status.is(Finished));
    for state in JobState::ALL {
        assert_eq!(JobState::from_name(state.as_str()), Some(state));
        assert!(!state.is_failure() || state.is_final());
    }
}

#[test]
fn example_job_has_example_params() {
    let read = |name: &str| {
        std::fs::read_to_string(format!("{}/../examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let (job, params) = (read("trainjob"), read("gpt2-kjv"));
    let (head, inlined) = job.split_once("\n    params:\n").unwrap();
    let inlined: String =
        inlined.lines().map(|line| format!("{}\n", line.strip_prefix("        ").unwrap_or(line))).collect();
    assert_eq!(inlined, params[params.find("train_input:").unwrap()..], "comments and all");
    let run = millrace_params::Params::parse_yaml(&inlined).unwrap().runconfig.unwrap();
    assert!(head.ends_with(&format!("\nspec:\n    numCsx: {}", run.num_csx.unwrap())), "no difference to tell of");
}
