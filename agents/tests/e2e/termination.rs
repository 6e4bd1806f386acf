//! Tests of all ways in which a run can end early.

use std::net::TcpListener;

use rustix::process::Signal;

use super::harness::{TestDir, wait_until_ended};

/// More steps than any test completes.
const MANY_STEPS_FLAG: &str = "--max_steps 1000000";

fn long_params(place: &TestDir) {
    // Checkpoints are written on request only.
    place.params("params.yaml", &[("learning_rate: 1e-2", "learning_rate: 1e-3")]);
}

#[test]
fn ctrl_c_saves_and_the_run_can_resume() {
    let place = TestDir::new();
    long_params(&place);
    let mut run = place.start(&format!("train -p params.yaml -o m --num_csx 2 {MANY_STEPS_FLAG}"));
    run.wait_for("Step=3,");
    let roles = run.roles();
    assert_eq!(roles.len(), 8, "{roles:?}");
    run.signal(Signal::INT);
    let ended = run.end();
    assert_eq!(ended.code(), 130, "{}\n{}", ended.stdout, ended.stderr);
    wait_until_ended(&roles);

    let last = place.train_lines("m").len() as u64;
    assert_eq!(place.info(&format!("m/checkpoint_{last}"))["step"], last);
    place.assert_resumes("m", 3, 2);
}

#[test]
fn no_process_outlives_a_killed_launcher() {
    let place = TestDir::new();
    long_params(&place);
    let mut run = place.start(&format!("train -p params.yaml -o m --num_csx 2 {MANY_STEPS_FLAG}"));
    run.wait_for("Step=2,");
    let roles = run.roles();
    assert_eq!(roles.len(), 8, "{roles:?}");
    run.signal(Signal::KILL);
    assert_eq!(run.end().code(), -1);
    wait_until_ended(&roles);
    // Its lock is released.
    place.succeed("train -p params.yaml -o m --num_csx 1 --max_steps 2");
}

#[test]
fn second_run_on_same_model_dir_is_rejected() {
    let place = TestDir::new();
    long_params(&place);
    let mut run = place.start(&format!("train -p params.yaml -o m --num_csx 1 {MANY_STEPS_FLAG}"));
    run.wait_for("Step=1,");
    let second = place.run("train -p params.yaml -o m --num_csx 1");
    assert_eq!(second.code(), 2, "{}", second.stderr);
    assert!(second.stderr.contains("in use by"), "{}", second.stderr);
    // The error is the last thing that a user sees.
    let (code, shown) = place.run_on_terminal("train -p params.yaml -o m --num_csx 1");
    assert_eq!(code, Some(2), "{shown}");
    let error = shown.find("error: ").unwrap_or_else(|| panic!("{shown}"));
    assert!(shown[..error].contains("Compile was successful"), "{shown}");
    assert!(shown[error..].contains("in use by") && shown[error..].lines().count() == 1, "{shown}");
    run.signal(Signal::TERM);
    assert_eq!(run.end().code(), 130);
}

#[test]
fn port_in_use_is_reported() {
    let place = TestDir::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let ended = place.run(&format!("train -p params.yaml -o m --num_csx 1 --base_port {port}"));
    assert_eq!(ended.code(), 1, "{}", ended.stderr);
    // Any of the coordinator's three ports may be in use, because other processes of this machine use ports, too.
    assert!(ended.stderr.contains("can't listen on 127.0.0.1:"), "{}", ended.stderr);
    assert!(ended.stderr.contains("hint: "), "{}", ended.stderr);
}

#[test]
fn non_finite_loss_stops_run_and_keeps_checkpoints() {
    let place = TestDir::new();
    place.diverging_params("params.yaml", 20);
    let ended = place.run("train -p params.yaml -o m --num_csx 2");
    assert_eq!(ended.code(), 1, "{}\n{}", ended.stdout, ended.stderr);
    let error = ended.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(error.contains("step") && error.contains("layer"), "{}", ended.stderr);
    place.info("m/checkpoint_2");
}
