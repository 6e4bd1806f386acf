//! Objects and the expected results of the rules: one table for a CEL interpreter and a real API server.

use millrace_crds::StoredParams;
use millrace_params::Params;
use serde_json::{Value, json};

/// An object, or a change of one, and the expected message if it is rejected.
pub struct Case {
    /// The name of the object, also used in messages.
    pub name: &'static str,
    /// The object before a change; `None` if it is created.
    pub before: Option<Value>,
    /// The submitted object.
    pub after: Value,
    /// Part of the error message; `None` if the object is accepted.
    pub expected_error: Option<&'static str>,
}

impl Case {
    /// Returns whether the change is one of the status.
    pub fn of_status(&self) -> bool {
        self.after.get("status").is_some()
    }
}

/// Reads the params of a shipped example, as JSON.
pub fn example(name: &str) -> Value {
    let path = format!("{}/../examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    StoredParams::from(&Params::parse_yaml(&text).unwrap()).0
}

/// Builds a job `name`, with `change` applied to it.
pub fn job(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut job = json!({
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"numCsx": 2, "params": example("gpt2-kjv")},
    });
    change(&mut job);
    job
}

/// Builds an appliance with every field set.
pub fn appliance(name: &str) -> Value {
    json!({
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "Appliance",
        "metadata": {"name": name},
        "spec": {
            "systems": 8,
            "wafer": {
                "memoryBytes": "4GiB", "memoryBandwidth": 20e15, "fabricBandwidth": 28e15, "cores": 1000, "clockHz": 1.1e9,
                "peakFlops": 7.5e15, "utilisation": 0.3, "linkBytesPerS": 150e9,
            },
            "memoryx": {"shards": 2, "memoryBytes": 64_000_000_000_u64, "memoryBandwidth": 4e12},
            "swarmx": {"fanOut": 2, "nodes": 16},
            "activationServers": 1,
            "threads": 1,
            "link": {"chunkBytes": "1MiB", "windowChunks": 2},
            "image": "registry.example/millrace:1",
            "loaderImage": "registry.example/datasets:1",
            "imagePullPolicy": "IfNotPresent",
            "imagePullSecrets": [{"name": "registry"}],
            "storage": {"storageClassName": "fast", "size": "20Gi", "accessMode": "ReadWriteMany"},
            "resources": {"cs2": {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"memory": "2Gi"}}},
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        },
    })
}

/// Returns cases that satisfy and violate every rule.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    new_objects(&mut cases);
    buckets(&mut cases);
    changes(&mut cases);
    statuses(&mut cases);
    cases
}

fn new_objects(cases: &mut Vec<Case>) {
    let mut new = |name: &'static str, expected_error: Option<&'static str>, change: &dyn Fn(&mut Value)| {
        cases.push(Case { name, before: None, after: job(name, change), expected_error });
    };
    let volumes = json!([
        {"name": "data", "configMap": {"name": "text"}},
        {"name": "out", "persistentVolumeClaim": {"claimName": "out"}},
    ]);
    let mounts = json!([
        {"path": "/data", "volume": "data"},
        {"path": "/out", "volume": "out", "subPath": "a/b"},
    ]);
    new("minimal", None, &|_| ());
    new("min-csx", Some("minCsx must not be greater than numCsx"), &|job| job["spec"]["minCsx"] = json!(1000));
    new("spikes", None, &|job| job["spec"]["failurePolicy"] = json!({"lossSpike": {"factor": 3, "action": "Skip"}}));
    new("with-volumes", None, &|job| {
        job["spec"]["volumes"] = volumes.clone();
        job["spec"]["mountDirs"] = mounts.clone();
    });
    new("unmounted", Some("each of the volumes must be mounted"), &|job| job["spec"]["volumes"] = volumes.clone());
    new("unknown-volume", Some("must name one of the volumes"), &|job| job["spec"]["mountDirs"] = mounts.clone());
    new("two-sources", Some("a volume has one source"), &|job| {
        job["spec"]["volumes"] = volumes.clone();
        job["spec"]["volumes"][0]["persistentVolumeClaim"] = json!({"claimName": "other"});
        job["spec"]["mountDirs"] = mounts.clone();
    });
    new("no-source", Some("a volume has one source"), &|job| {
        job["spec"]["volumes"] = json!([{"name": "data"}]);
        job["spec"]["mountDirs"] = json!([{"path": "/data", "volume": "data"}]);
    });
    new("with-labels", None, &|job| job["spec"]["labels"] = json!({"team": "a", "example.org/cost": "7"}));
    new("bad-label", Some("a label's key is a name"), &|job| job["spec"]["labels"] = json!({"no spaces": "a"}));
    new("our-label", Some("other than millrace.dev"), &|job| job["spec"]["labels"] = json!({"millrace.dev/role": "a"}));
    new("a23456789-123456789-123456789-123456789-123456789-123456789-123", None, &|_| ());
    new("a23456789-123456789-123456789-123456789-123456789-123456789-1234", Some("at most 63"), &|_| ());
    new("7up", Some("begins with a letter"), &|_| ());
    new("dotted.name", Some("lower-case letters, digits and hyphens"), &|_| ());
}

fn buckets(cases: &mut Vec<Case>) {
    let mut new = |name: &'static str, expected_error: Option<&'static str>, settings: Value| {
        let mut after = appliance(name);
        let mut bucket = json!({"url": "s3://runs/millrace", "secretName": "s3"});
        bucket.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        after["spec"]["storage"]["bucket"] = bucket;
        cases.push(Case { name, before: None, after, expected_error });
    };
    new("bucket-by-https", None, json!({"caConfigMapName": "authorities", "region": "eu-1"}));
    new("bucket-by-http", None, json!({"endpoint": "http://minio:9000"}));
    let no_authorities = Some("the image has no certificate authorities");
    new("bucket-without-authorities", no_authorities, json!({"endpoint": "https://minio:9000"}));
    new("bucket-of-aws", no_authorities, json!({}));
}

fn changes(cases: &mut Vec<Case>) {
    let mut change = |name: &'static str, expected_error: Option<&'static str>, change: &dyn Fn(&mut Value)| {
        let before = job(name, |job| job["spec"]["resources"] = json!({"cs2": {"requests": {"cpu": 1}}}));
        let mut after = before.clone();
        change(&mut after["spec"]);
        cases.push(Case { name, before: Some(before), after, expected_error });
    };
    change("scaled", None, &|spec| spec["numCsx"] = json!(4));
    change("suspended", None, &|spec| spec["suspend"] = json!(true));
    change("prioritised", None, &|spec| spec["priorityClassName"] = json!("high"));
    change("extended", None, &|spec| spec["deadlines"] = json!({"activeSeconds": 60}));
    change("forgiven", None, &|spec| spec["failurePolicy"] = json!({"maxRestarts": 99}));
    change("spike-bounded", Some("lossSpike is immutable"), &|spec| {
        spec["failurePolicy"] = json!({"lossSpike": {"factor": 3}});
    });
    change("to-be-deleted", None, &|spec| spec["ttlSecondsAfterFinished"] = json!(0));
    for (name, path, value) in [
        ("other-model", "/params/model/hidden_size", json!(256)),
        // Open in the schema, but still immutable.
        ("other-rate", "/params/optimizer/learning_rate/0/end_learning_rate", json!(0.1)),
    ] {
        change(name, Some("params is immutable"), &|spec| *spec.pointer_mut(path).unwrap() = value.clone());
    }
    change("late-phase", Some("laterPhases is immutable"), &|spec| spec["laterPhases"] = json!([{"runconfig": {}}]));
    change("other-mode", Some("mode is immutable"), &|spec| spec["mode"] = json!("eval"));
    change("other-appliance", Some("appliance is immutable"), &|spec| spec["appliance"] = json!("other"));
    change("other-labels", Some("labels is immutable"), &|spec| spec["labels"] = json!({"a": "b"}));
    change("other-cpu", Some("resources is immutable"), &|spec| {
        spec["resources"]["cs2"]["requests"]["cpu"] = json!("2")
    });
    change("late-loader", Some("loaderImage is immutable"), &|spec| spec["loaderImage"] = json!("python:3"));
    change("no-resources", Some("resources is immutable"), &|spec| {
        spec.as_object_mut().unwrap().remove("resources");
    });
    change("late-mount", Some("mountDirs is immutable"), &|spec| {
        spec["mountDirs"] = json!([{"path": "/data", "volume": "data"}]);
    });
    let digest = format!("blake3:{}", "0".repeat(64));
    change("late-model", Some("model is immutable"), &|spec| spec["model"] = json!({"graph": digest}));
    change("late-file", Some("files is immutable"), &|spec| {
        spec["files"] = json!([{"path": "train/x.npy", "digest": digest}]);
    });
    change("late-volume", Some("volumes is immutable"), &|spec| {
        spec["volumes"] = json!([{"name": "data", "configMap": {"name": "text"}}]);
        spec["mountDirs"] = json!([{"path": "/data", "volume": "data"}]);
    });
}

fn statuses(cases: &mut Vec<Case>) {
    let condition = |type_name: &str, status: &str| {
        json!({
            "type": type_name, "status": status, "reason": "Because", "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let mut status = |name: &'static str, expected_error: Option<&'static str>, before: Value, after: Value| {
        let with = |status: Value| job(name, |job| job["status"] = status);
        cases.push(Case { name, before: Some(with(before)), after: with(after), expected_error });
    };
    let resolved = json!({"mode": "train", "job": "{}", "appliance": {"systems": 2, "wafer": {"memoryBytes": "40GB"}}});
    status("first-visit", None, json!({}), json!({"leaderEpoch": 1, "attempt": 1, "resolved": resolved}));
    status("next-leader", None, json!({"leaderEpoch": 1}), json!({"leaderEpoch": 2}));
    status("old-leader", Some("is no longer the leader"), json!({"leaderEpoch": 2}), json!({"leaderEpoch": 1}));
    status("no-leader", Some("is no longer the leader"), json!({"leaderEpoch": 2}), json!({"attempt": 1}));
    status("attempt-back", Some("attempt must not decrease"), json!({"attempt": 2}), json!({"attempt": 1}));
    status("restart-back", Some("restarts must not decrease"), json!({"restarts": 2}), json!({"restarts": 0}));
    let mut other = resolved.clone();
    other["appliance"]["wafer"]["memoryBytes"] = json!("41GB");
    status(
        "resolved-again",
        Some("status.resolved is immutable"),
        json!({"resolved": resolved}),
        json!({"resolved": other}),
    );
    status("unresolved", Some("status.resolved is immutable"), json!({"resolved": resolved}), json!({"attempt": 1}));
    let ongoing = json!({"conditions": [condition("Finished", "False"), condition("Succeeded", "Unknown")]});
    let finished = json!({"conditions": [condition("Finished", "True"), condition("Succeeded", "True")]});
    status("finishing", None, ongoing.clone(), finished.clone());
    status("risen", Some("Finished must not change back"), finished.clone(), ongoing.clone());
    let mut change =
        |name: &'static str, status: &Value, expected_error: Option<&'static str>, field: &str, value: Value| {
            let before = job(name, |job| job["status"] = status.clone());
            let after = job(name, |job| job["spec"][field] = value);
            cases.push(Case { name, before: Some(before), after, expected_error });
        };
    change("scaled-late", &finished, Some("numCsx has no effect"), "numCsx", json!(4));
    change("suspended-late", &finished, Some("suspend has no effect"), "suspend", json!(true));
    change("kept-for-an-hour", &finished, None, "ttlSecondsAfterFinished", json!(3600));
    change("scaled-in-time", &ongoing, None, "numCsx", json!(4));
}
