//! helm and kubectl, and the documents they print.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Namespace and name of the release that is rendered.
pub const NAMESPACE: &str = "millrace-system";
pub const RELEASE: &str = "millrace";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("millrace")
}

/// A file of the chart.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(chart().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Runs a program; what it said on standard output, or on standard error where it failed.
pub fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} can't be run ({error}): run charts/test, which brings it"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Runs `helm COMMAND... --values VALUES`.
pub fn helm(command: &[&str], values: &Value) -> Result<String, String> {
    run("helm", &[command, &["--namespace", NAMESPACE, "--values", "-"]].concat(), &values.to_string())
}

/// Runs kubectl with a document on its standard input.
pub fn kubectl(arguments: &[&str], input: &Value) -> Result<String, String> {
    run("kubectl", arguments, &input.to_string())
}

/// What `kubectl get` has.
pub fn get(arguments: &[&str]) -> Value {
    let text = kubectl(&[&["get", "--output=json"], arguments].concat(), &Value::Null).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// What a chart, a folder or a package, comes to with `values`: text, and its documents; or why it comes to nothing.
pub fn render(chart: &Path, values: &Value) -> Result<(String, Vec<Value>), String> {
    let text = helm(&["template", RELEASE, chart.to_str().unwrap(), "--kube-version", "1.35.0"], values)?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    Ok((text, documents.into_iter().filter(|document| !document.is_null()).collect()))
}

/// The same, of values that are good.
pub fn template(chart: &Path, values: &Value) -> (String, Vec<Value>) {
    render(chart, values).unwrap()
}

pub fn find<'a>(documents: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is = |document: &&Value| document["kind"] == kind && document["metadata"]["name"] == name;
    documents.iter().find(is).unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

/// The Appliance that the operator is given.
pub fn appliance(documents: &[Value]) -> Value {
    let text = find(documents, "ConfigMap", "millrace-appliance")["data"]["appliance.json"].as_str().unwrap();
    serde_json::from_str(text).unwrap()
}

/// Every option at another value than its default.
pub fn everything() -> Value {
    let quantities = json!({"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "2Gi"}});
    let tolerations = json!([{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]);
    json!({
        "image": {
            "repository": "registry.example/millrace", "tag": format!("sha256:{}", "0".repeat(64)),
            "pullPolicy": "Always", "pullSecrets": [{"name": "registry"}],
        },
        "appliance": {
            "systems": 4,
            "wafer": {
                "memoryBytes": "1GB", "memoryBandwidth": 1e15, "fabricBandwidth": 1e15, "cores": 1000, "clockHz": 1e9,
                "peakFlops": 1e15, "utilisation": 0.5, "linkBytesPerS": 1e9,
            },
            "memoryx": {"shards": 3, "replicas": 2, "memoryBytes": "64GB", "memoryBandwidth": 1e12},
            "swarmx": {"fanOut": 2},
            "link": {"chunkBytes": "1MiB", "windowChunks": 2},
            "activationServers": 2,
            "threads": 1,
            "encryptData": false,
            "storage": {"storageClassName": "fast", "size": "20Gi", "accessMode": "ReadWriteMany"},
            "resources": {
                "coordinator": quantities, "memoryx": quantities, "swarmx": quantities, "activation": quantities,
                "cs2": quantities,
            },
            "priorityClasses": ["urgent"],
            "maxDeadlines": {"startupSeconds": 600, "progressSeconds": 7200, "gracePeriodSeconds": 60},
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "tolerations": tolerations,
        },
        "operator": {
            "replicas": 2, "logLevel": "debug", "resources": {"limits": {"cpu": 1}},
            "nodeSelector": {"kubernetes.io/os": "linux"}, "tolerations": tolerations,
            "priorityClassName": "system-cluster-critical",
            "networkPolicy": {"enabled": true, "apiServerPorts": [16443]},
        },
        "api": {
            "replicas": 2, "logLevel": "debug", "retentionDays": 30, "maxHistoryBytes": 1073741824, "trustedProxies": ["10.0.0.0/8", "fd00::/8"], "database": {"secretName": "history"}, "tls": {"secretName": "certificate"},
            "service": {"type": "LoadBalancer"}, "resources": quantities,
            "nodeSelector": {"kubernetes.io/os": "linux"}, "tolerations": tolerations,
            "priorityClassName": "system-cluster-critical",
            "networkPolicy": {
                "enabled": true, "apiServerPorts": [16443], "databasePorts": [6432], "bucketPorts": [9000],
            },
            "uploads": {
                "bucket": {
                    "url": "s3://uploads/millrace", "endpoint": "https://minio.example.org:9000", "region": "eu-1",
                    "secretName": "bucket", "caConfigMapName": "bucket-authority",
                },
            },
        },
        "logFormat": "json",
        "tracing": {
            "endpoint": "http://collector.monitoring:14317", "ports": [14317], "sampleRatio": 0.25,
            "collector": {"namespace": "monitoring", "podLabels": {"app": "collector"}},
        },
        "rbac": {"aggregate": false},
        "priorities": {"create": false},
        "monitoring": {
            "labels": {"release": "prometheus"}, "namespaces": ["monitoring"], "interval": "30s",
            "serviceMonitor": {"enabled": true}, "podMonitor": {"enabled": true},
            "prometheusRule": {"enabled": true},
            "dashboard": {"enabled": true, "labels": {"grafana": "yes"}},
        },
    })
}

/// The options of a REST server that has neither a database nor a certificate from elsewhere.
pub fn alone() -> Value {
    json!({
        "operator": {"networkPolicy": {"enabled": false}},
        "api": {
            "keepDays": 30, "keepBytes": 1073741824, "maxUploadBytes": 2147483648_u64,
            "storage": {"size": "20Gi", "storageClassName": "fast"},
            "tls": {"names": ["millrace.example.org", "192.0.2.1", "2001:db8::1"]},
            "networkPolicy": {"enabled": false},
        },
        "tracing": {
            "endpoint": "https://192.0.2.7:4317", "caConfigMapName": "collector-authority",
            "collector": {"cidr": "192.0.2.0/24"},
        },
    })
}

/// The tolerations of a Deployment's pods in which a lost node is put up with for half a minute, and these.
pub fn tolerations(others: &Value) -> Value {
    let mut all: Vec<Value> = ["not-ready", "unreachable"]
        .map(|taint| {
            let key = format!("node.kubernetes.io/{taint}");
            json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30})
        })
        .into();
    all.extend(others.as_array().into_iter().flatten().cloned());
    all.into()
}
