//! Tests the operator on a real API server without nodes, with the rights that the chart gives it: run by `tests/run
//! operator`. Nothing else may run there. Pods never start, so jobs stay in the state Starting, in which they hold
//! systems.

mod service_account;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_crds::{definitions, internal_definitions};
use serde_json::{Value, json};

const TEAM_NAMESPACE: &str = "team";
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of the deletion of a job without history.
const DELETION_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs kubectl in the namespace of the jobs; returns its output, as an error if it failed.
fn try_kubectl(arguments: &[&str], input: &Value) -> Result<String, String> {
    let mut child = Command::new("kubectl")
        .args(["--namespace", TEAM_NAMESPACE])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl is in PATH");
    child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn kubectl(arguments: &[&str], input: &Value) -> String {
    try_kubectl(arguments, input).unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}"))
}

/// Returns an object; null if it does not exist.
fn get(kind: &str, name: &str) -> Value {
    let output = kubectl(&["get", kind, name, "--ignore-not-found", "-o", "json"], &Value::Null);
    serde_json::from_str(&output).unwrap_or_default()
}

/// Waits until `poll` returns a value. There is no delay between tries, because kubectl takes a while.
fn until<T>(description: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "timed out after {TEST_TIMEOUT:?}: {description}");
    }
}

/// An operator process, ended when this is dropped.
struct Operator(Child);

impl Operator {
    /// Starts an operator that reads the chart's values from `appliance`, and waits until it leads.
    fn start(identity: &str, appliance: &Path) -> Self {
        let kubeconfig = appliance.with_file_name("kubeconfig");
        std::fs::write(&kubeconfig, serde_json::to_vec(&service_account::create()).unwrap()).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_millrace-operator"))
            .args([
                "--namespace",
                service_account::NAMESPACE,
                "--identity",
                identity,
                "--image",
                "localhost/millrace:test",
            ])
            .args(["--listen", "127.0.0.1:0", "--rest-server", "false", "--appliance"])
            .arg(appliance)
            .env("KUBECONFIG", kubeconfig)
            .spawn()
            .unwrap();
        until(&format!("{identity} leads"), || {
            let lease = kubectl(
                &[
                    "get",
                    "lease",
                    "millrace-operator",
                    "-n",
                    service_account::NAMESPACE,
                    "--ignore-not-found",
                    "-o",
                    "json",
                ],
                &Value::Null,
            );
            let lease: Value = serde_json::from_str(&lease).unwrap_or_default();
            (lease["spec"]["holderIdentity"] == identity).then_some(())
        });
        Self(child)
    }

    /// Ends the process with SIGTERM, so that the next leader need not wait for the lease to expire.
    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes the chart's values as the operator reads them.
fn write_values(path: &Path, systems: u32) {
    let document = json!({
        "apiVersion": "millrace.dev/v1alpha1", "kind": "Appliance", "metadata": {"name": "default"},
        "spec": {"systems": systems},
    });
    std::fs::write(path, document.to_string()).unwrap();
}

fn create_job(name: &str, systems: u32) {
    create_job_with_class(name, systems, None);
}

fn create_job_with_class(name: &str, systems: u32, class: Option<&str>) {
    let params = json!({
        "train_input": {
            "data_processor": "SyntheticDataProcessor", "batch_size": 4, "micro_batch_size": 1, "max_sequence_length": 8,
        },
        "model": {
            "name": "gpt2", "vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 1, "num_heads": 1,
            "max_position_embeddings": 8,
        },
        "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1},
        "runconfig": {"max_steps": 1},
    });
    let mut job = json!({
        "apiVersion": "millrace.dev/v1alpha1", "kind": "TrainJob",
        "metadata": {"name": name, "finalizers": ["millrace.dev/archive"]},
        "spec": {"numCsx": systems, "params": params},
    });
    if let Some(class) = class {
        job["spec"]["priorityClassName"] = json!(class);
    }
    kubectl(&["create", "-f", "-"], &job);
}

/// Returns the systems in a job's status; `None` if there are none.
fn systems(job: &str) -> Option<BTreeSet<String>> {
    let systems = get("trainjob", job)["status"]["systems"].clone();
    serde_json::from_value(systems).ok().filter(|systems: &BTreeSet<String>| !systems.is_empty())
}

/// Returns a job's systems in the ledger, after checking that none is granted twice.
fn granted(job: &str) -> Option<BTreeSet<String>> {
    let appliance = get("appliance", "default");
    let grants = appliance["status"]["grants"].as_array().cloned().unwrap_or_default();
    let all: Vec<&Value> = grants.iter().flat_map(|grant| grant["systems"].as_array().unwrap()).collect();
    let once: BTreeSet<&str> = all.iter().filter_map(|system| system.as_str()).collect();
    assert_eq!(all.len(), once.len(), "a system is granted twice: {grants:?}");
    let grant = grants.iter().find(|grant| grant["name"] == job)?;
    serde_json::from_value(grant["systems"].clone()).ok()
}

fn condition(object: &Value, condition_type: &str) -> Value {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == condition_type).cloned().unwrap_or_default()
}

fn patch_appliance(patch: &Value) {
    kubectl(&["patch", "appliance", "default", "--type=merge", "--patch", &patch.to_string()], &Value::Null);
}

fn install() {
    for definition in definitions().into_iter().chain(internal_definitions()) {
        kubectl(&["apply", "--server-side", "-f", "-"], &serde_json::to_value(definition).unwrap());
    }
    let kinds = ["crd/trainjobs.millrace.dev", "crd/appliances.millrace.dev", "crd/filereaders.millrace.dev"];
    kubectl(&[&["wait", "--for=condition=Established"][..], &kinds].concat(), &Value::Null);
    for name in [service_account::NAMESPACE, TEAM_NAMESPACE] {
        kubectl(&["create", "namespace", name], &Value::Null);
    }
}

#[test]
#[ignore = "needs an API server"]
fn ledger_survives_edits_and_restarts() {
    install();
    let folder = tempfile::tempdir().unwrap();
    let values = folder.path().join("appliance.json");
    write_values(&values, 4);
    let operator = Operator::start("one", &values);
    create_job("a", 2);
    let systems = until("a has systems", || systems("a"));
    lost_status_is_rebuilt(&systems);
    deleted_appliance_stays_while_in_use();
    recreated_appliance_grants_nothing_twice(&systems);
    let operator = manual_edit_is_kept(operator, &values);
    let operator = changed_values_replace_the_edit(operator, &values);
    rejected_start_is_reported_and_releases_systems();
    missing_priority_class_prevents_admission();
    jobs_without_steps_are_deleted_immediately();
    until("the appliance has no finalizer", || {
        get("appliance", "default")["metadata"]["finalizers"].is_null().then_some(())
    });
    operator.end();
    kubectl(&["delete", "appliance", "default", "--timeout=5s"], &Value::Null);
}

fn lost_status_is_rebuilt(own: &BTreeSet<String>) {
    let lost = ["patch", "appliance", "default", "--subresource=status", "--type=merge", "--patch"];
    kubectl(&[&lost[..], &[r#"{"status":{"grants":[]}}"#]].concat(), &Value::Null);
    until("the ledger is rebuilt", || (granted("a").as_ref() == Some(own)).then_some(()));
}

fn deleted_appliance_stays_while_in_use() {
    kubectl(&["delete", "appliance", "default", "--wait=false"], &Value::Null);
    until("the condition Deleting names the job", || {
        let message = condition(&get("appliance", "default"), "Deleting")["message"].clone();
        message.as_str()?.contains("team/a (csx-0 csx-1)").then_some(())
    });
    create_job("b", 2);
    until("the deleted appliance grants nothing", || {
        (condition(&get("trainjob", "b"), "Admitted")["reason"] == "NoAppliance").then_some(())
    });
}

fn recreated_appliance_grants_nothing_twice(own: &BTreeSet<String>) {
    let before = get("appliance", "default");
    patch_appliance(&json!({"metadata": {"finalizers": null}}));
    until("the appliance is deleted", || get("appliance", "default").is_null().then_some(()));
    let recreated = json!({
        "apiVersion": before["apiVersion"], "kind": "Appliance", "spec": before["spec"],
        "metadata": {"name": "default", "annotations": before["metadata"]["annotations"]},
    });
    kubectl(&["create", "-f", "-"], &recreated);
    let others = until("b has systems", || systems("b"));
    assert!(others.is_disjoint(own), "{others:?} and {own:?}");
    until("the ledger has the systems of both jobs", || {
        (granted("a").as_ref() == Some(own) && granted("b").is_some()).then_some(())
    });
}

fn manual_edit_is_kept(operator: Operator, values: &Path) -> Operator {
    patch_appliance(&json!({"spec": {"systems": 1}}));
    until("the overcommitment is reported", || {
        (condition(&get("appliance", "default"), "OverCommitted")["status"] == "True").then_some(())
    });
    create_job("c", 1);
    operator.end();
    let operator = Operator::start("two", values);
    until("c is queued", || get("trainjob", "c")["status"]["queue"]["position"].as_u64());
    assert_eq!(get("appliance", "default")["spec"]["systems"], 1, "a manual edit is kept");
    assert!(systems("a").is_some() && systems("b").is_some(), "jobs keep their systems");
    let edited = condition(&get("appliance", "default"), "MatchesValues");
    let message = edited["message"].as_str().unwrap_or_default();
    assert_eq!(edited["status"], "False");
    assert!(message.contains("spec.systems is 1, but 4 in the values"), "{message}");
    operator
}

fn changed_values_replace_the_edit(operator: Operator, values: &Path) -> Operator {
    operator.end();
    write_values(values, 5);
    let operator = Operator::start("three", values);
    assert_eq!(get("appliance", "default")["spec"]["systems"], 5);
    let list_events = ["get", "events.events.k8s.io", "-n", "default", "-o", "json"];
    until("an event names the replaced field", || {
        let events: Value = serde_json::from_str(&kubectl(&list_events, &Value::Null)).unwrap();
        let notes = events["items"].as_array()?.iter().filter(|event| event["reason"] == "ManualEditReplaced");
        notes
            .clone()
            .any(|event| event["note"].as_str().is_some_and(|note| note.contains("spec.systems")))
            .then_some(())
    });
    until("c has a system", || systems("c"));
    until("the appliance matches the values", || {
        (condition(&get("appliance", "default"), "MatchesValues")["status"] == "True").then_some(())
    });
    granted("c").unwrap();
    operator
}

/// A LimitRange rejects the pods: the API server's message is in a condition and an event. Then the job starts.
fn rejected_start_is_reported_and_releases_systems() {
    kubectl(&["delete", "trainjob", "a", "b", "c"], &Value::Null);
    let range = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "1Ki"}}]},
    });
    kubectl(&["create", "-f", "-"], &range);
    let rejection = "maximum memory usage per Container is 1Ki";
    create_job("refused", 4);
    let next = until("the rejected start is reported", || {
        let job = get("trainjob", "refused");
        let admitted = condition(&job, "Admitted");
        let is_reported = admitted["reason"] == "BackingOff" && admitted["message"].as_str()?.contains(rejection);
        assert!(!is_reported || job["status"]["systems"].is_null(), "systems are held: {job}");
        job["status"]["retry"]["nextAttemptTime"].as_str().filter(|_| is_reported).map(str::to_owned)
    });
    let rows = kubectl(&["get", "trainjobs", "-o", "wide"], &Value::Null);
    assert!(rows.contains(&next), "{rows}");
    until("an event has the rejection", || {
        let output = kubectl(&["get", "events.events.k8s.io", "-o", "json"], &Value::Null);
        let events: Value = serde_json::from_str(&output).unwrap();
        let mut events = events["items"].as_array()?.iter().filter(|event| event["reason"] == "StartRejected");
        events.any(|event| event["note"].as_str().is_some_and(|note| note.contains(rejection))).then_some(())
    });
    create_job("other", 4);
    // It is rejected as well, but only after it was granted the systems.
    until("another job is granted the systems", || get("trainjob", "other")["status"]["attempt"].as_u64());
    kubectl(&["delete", "trainjob", "other"], &Value::Null);
    kubectl(&["delete", "limitrange", "small"], &Value::Null);
    until("the job starts", || systems("refused"));
    until("the pods exist", || {
        let job = get("trainjob", "refused");
        (condition(&job, "RolesReady")["reason"] == "Starting" && job["status"]["roles"].is_array()).then_some(())
    });
    kubectl(&["delete", "trainjob", "refused"], &Value::Null);
}

fn missing_priority_class_prevents_admission() {
    create_job_with_class("urgent", 1, Some("p1"));
    let message = until("the missing class is named", || {
        let admitted = condition(&get("trainjob", "urgent"), "Admitted");
        (admitted["reason"] == "PriorityNotFound").then(|| admitted["message"].clone())
    });
    assert!(message.as_str().unwrap().contains("PriorityClass p1 of spec.priorityClassName not found"), "{message}");
    assert!(get("trainjob", "urgent")["status"]["attempt"].is_null(), "the job was never admitted");
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "p1"}, "value": 300,
    });
    kubectl(&["create", "-f", "-"], &class);
    until("the job is admitted", || systems("urgent"));
    kubectl(&["delete", "trainjob", "urgent"], &Value::Null);
    for job in ["a", "b", "c"] {
        create_job(job, 1);
        until("the job has a system", || systems(job));
    }
}

fn jobs_without_steps_are_deleted_immediately() {
    for job in ["a", "b", "c"] {
        let began = Instant::now();
        kubectl(&["delete", "trainjob", job], &Value::Null);
        assert!(began.elapsed() < DELETION_TIMEOUT, "deleting {job} took {:?}", began.elapsed());
    }
}
