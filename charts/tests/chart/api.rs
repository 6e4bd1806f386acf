//! The REST server, as helm makes it.

use std::time::SystemTime;

use millrace_protocol::security::ServerCertificate;
use serde_json::{Value, json};

use crate::rendered::environment;
use crate::tools::{NAMESPACE, alone, chart, everything, find, helm, run, template, tolerations};

const NAME: &str = "millrace-api";
/// As in operator/cluster/src/address.rs, by which jobs' network policies know it.
const UPLOADS_PORT: u16 = 7300;

fn pod(documents: &[Value]) -> &Value {
    &find(documents, "Deployment", NAME)["spec"]["template"]["spec"]
}

/// The volume of this name, without it.
fn volume(pod: &Value, name: &str) -> Value {
    let mut volumes = pod["volumes"].as_array().unwrap().iter();
    let mut volume = volumes.find(|volume| volume["name"] == name).unwrap().clone();
    volume.as_object_mut().unwrap().remove("name");
    volume
}

fn has(documents: &[Value], kind: &str) -> bool {
    documents.iter().any(|document| document["kind"] == kind && document["metadata"]["name"] == NAME)
}

#[test]
#[ignore = "needs helm"]
fn default_is_one_replica_with_sqlite() {
    let (_, documents) = template(&chart(), &json!({}));
    let deployment = find(&documents, "Deployment", NAME);
    assert_eq!(deployment["spec"]["replicas"], 1);
    assert_eq!(deployment["spec"]["strategy"], json!({"type": "Recreate"}), "SQLite and the claim belong to one pod");
    assert_eq!(deployment["spec"]["template"]["metadata"]["labels"]["millrace.dev/follows-journals"], "true");
    let pod = pod(&documents);
    let container = &pod["containers"][0];
    assert_eq!(container["command"], json!(["millrace-api"]));
    let arguments: Vec<&str> = container["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(arguments[..2], ["serve", "--backend=kubernetes"]);
    assert!(arguments.contains(&"--retention-days=365"), "{arguments:?}");
    assert_eq!(environment(pod, "MILLRACE_IMAGE"), container["image"]);
    assert_eq!(environment(pod, "MILLRACE_DATA"), "/var/lib/millrace");
    assert!(!container["env"].to_string().contains("MILLRACE_DATABASE"));
    assert_eq!(volume(pod, "data"), json!({"persistentVolumeClaim": {"claimName": NAME}}));
    assert_eq!(volume(pod, "tls")["secret"]["secretName"], "millrace-api-tls");

    let claim = find(&documents, "PersistentVolumeClaim", NAME);
    assert_eq!(claim["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    assert_eq!(
        claim["spec"],
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}})
    );
    let service = &find(&documents, "Service", NAME)["spec"];
    assert_eq!(service["type"], "ClusterIP");
    assert_eq!(service["ports"][0]["port"], 443);
    assert_eq!(service["ports"][0]["targetPort"], container["ports"][0]["name"]);
    assert_eq!(service["selector"], deployment["spec"]["selector"]["matchLabels"]);

    assert_eq!(environment(pod, "MILLRACE_UPLOADS_LISTEN"), "0.0.0.0:7300");
    assert!(arguments.contains(&"--max-blob-bytes=4294967296"), "{arguments:?}");

    let (_, documents) = template(&chart(), &alone());
    let claim = &find(&documents, "PersistentVolumeClaim", NAME)["spec"];
    assert_eq!(claim["storageClassName"], "fast");
    assert_eq!(claim["resources"]["requests"]["storage"], "20Gi");
}

#[test]
#[ignore = "needs helm"]
fn replicas_with_a_database_need_no_claim() {
    let values = everything();
    let (_, documents) = template(&chart(), &values);
    let deployment = find(&documents, "Deployment", NAME);
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(deployment["spec"]["strategy"]["type"], "RollingUpdate");
    find(&documents, "PodDisruptionBudget", NAME);
    assert!(!has(&documents, "PersistentVolumeClaim") && !has(&documents, "Secret"));
    let pod = pod(&documents);
    let container = &pod["containers"][0];
    let variables = container["env"].as_array().unwrap();
    let url = variables.iter().find(|variable| variable["name"] == "MILLRACE_DATABASE").unwrap();
    assert_eq!(url["valueFrom"]["secretKeyRef"], json!({"name": "history", "key": "url"}));
    let authority = json!({"secretName": "history", "items": [{"key": "ca.crt", "path": "ca.crt"}], "optional": true});
    assert_eq!(volume(pod, "database")["secret"], authority, "for a URL with sslrootcert");
    assert!(container["args"].as_array().unwrap().contains(&json!("--retention-days=30")));
    assert_eq!(volume(pod, "data"), json!({"emptyDir": {}}));
    assert_eq!(volume(pod, "tls")["secret"]["secretName"], "certificate");
    assert_eq!(pod["nodeSelector"], values["api"]["nodeSelector"]);
    assert_eq!(pod["tolerations"], tolerations(&values["api"]["tolerations"]));
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    assert_eq!(container["resources"]["requests"]["memory"], "1Gi");
    assert_eq!(find(&documents, "Service", NAME)["spec"]["type"], "LoadBalancer");

    let policy = &find(&documents, "NetworkPolicy", NAME)["spec"];
    let ports = |rule: &Value| -> Vec<Value> {
        rule["ports"].as_array().unwrap().iter().map(|port| port["port"].clone()).collect()
    };
    assert_eq!(policy["ingress"].as_array().unwrap().len(), 3);
    assert_eq!(ports(&policy["ingress"][0]), ["https"]);
    assert_eq!(ports(&policy["ingress"][1]), ["uploads"], "the bucket stores them");
    assert_eq!(policy["ingress"][2], metrics_rule("monitoring"));
    let out: Vec<Vec<Value>> = policy["egress"].as_array().unwrap().iter().map(ports).collect();
    let wanted = json!([[53, 53], [16443], [14317], ["journal"], [7200], [9000], [6432]]);
    let peers = "DNS, the API server, the collector of traces, journals, readers, the bucket, the database";
    assert_eq!(json!(out), wanted, "{peers}");
    let (_, documents) = template(&chart(), &json!({"api": {"networkPolicy": {"enabled": true}}}));
    let out = &find(&documents, "NetworkPolicy", NAME)["spec"]["egress"];
    assert_eq!(out.as_array().unwrap().len(), 4, "without a database there is none to talk to");
}

#[test]
#[ignore = "needs helm"]
fn uploads_have_a_port_for_pods_if_there_is_a_claim() {
    let (_, documents) = template(&chart(), &json!({}));
    let port = json!({"name": "uploads", "containerPort": UPLOADS_PORT});
    assert!(pod(&documents)["containers"][0]["ports"].as_array().unwrap().contains(&port));
    let service = &find(&documents, "Service", "millrace-api-uploads")["spec"];
    assert_eq!(service["type"], Value::Null, "no client outside of the cluster");
    assert_eq!(service["selector"], find(&documents, "Service", NAME)["spec"]["selector"]);
    let operator = &find(&documents, "Deployment", "millrace-operator")["spec"]["template"];
    let address = format!("millrace-api-uploads.{NAMESPACE}.svc:{}", service["ports"][0]["port"]);
    assert_eq!(environment(&operator["spec"], "MILLRACE_UPLOAD_SERVER"), address);

    let ingress = &find(&documents, "NetworkPolicy", NAME)["spec"]["ingress"];
    let from = &ingress[1]["from"];
    assert_eq!(ingress[1]["ports"], json!([{"protocol": "TCP", "port": "uploads"}]));
    assert_eq!(
        from[0],
        json!({"podSelector": {"matchLabels": operator["metadata"]["labels"].as_object().unwrap()
        .iter().filter(|(key, _)| key.starts_with("app.")).collect::<std::collections::BTreeMap<_, _>>()}})
    );
    assert_eq!(from[1]["podSelector"]["matchExpressions"][0]["values"], json!(["coordinator", "activation"]));
    let egress = &find(&documents, "NetworkPolicy", "millrace-operator")["spec"]["egress"];
    let to_uploads = |rule: &&Value| rule["ports"] == json!([{"protocol": "TCP", "port": "uploads"}]);
    assert_eq!(egress.as_array().unwrap().iter().filter(to_uploads).count(), 1);

    let mut without_bucket = everything();
    without_bucket["api"]["uploads"]["bucket"]["url"] = json!("");
    for values in [without_bucket, json!({"api": {"enabled": false}})] {
        let (_, mut documents) = template(&chart(), &values);
        documents.retain(|document| document["kind"] != "CustomResourceDefinition");
        assert!(!json!(documents).to_string().contains("uploads"), "there is no claim to store them");
    }
}

#[test]
#[ignore = "needs helm"]
fn bucket_is_for_the_rest_server_only() {
    let (_, documents) = template(&chart(), &everything());
    let pod = pod(&documents);
    for (name, value) in [
        ("MILLRACE_BLOB_STORE", "s3://uploads/millrace"),
        ("AWS_ENDPOINT_URL", "https://minio.example.org:9000"),
        ("AWS_REGION", "eu-1"),
        ("SSL_CERT_FILE", "/etc/millrace/bucket/ca.crt"),
        ("MILLRACE_UPLOADS_LISTEN", "0.0.0.0:7300"),
    ] {
        assert_eq!(environment(pod, name), value);
    }
    assert_eq!(pod["containers"][0]["envFrom"], json!([{"secretRef": {"name": "bucket"}}]));
    let operator = find(&documents, "Deployment", "millrace-operator").to_string();
    assert!(!operator.contains("AWS_") && !operator.contains("secretRef"), "{operator}");
    let egress = &find(&documents, "NetworkPolicy", NAME)["spec"]["egress"];
    assert!(egress.as_array().unwrap().contains(&json!({"ports": [{"protocol": "TCP", "port": 9000}]})));
}

/// Who reads metrics, and nothing else.
fn metrics_rule(namespace: &str) -> Value {
    let named = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace]});
    json!({
        "from": [{"namespaceSelector": {"matchExpressions": [named]}}],
        "ports": [{"protocol": "TCP", "port": "metrics"}],
    })
}

#[test]
#[ignore = "needs helm"]
fn metrics_port_admits_only_named_namespaces() {
    let (_, documents) = template(&chart(), &json!({}));
    let ingress = |documents: &[Value], name: &str| find(documents, "NetworkPolicy", name)["spec"]["ingress"].clone();
    assert_eq!(ingress(&documents, "millrace-operator"), json!([]));
    assert_eq!(ingress(&documents, NAME)[0], json!({"ports": [{"protocol": "TCP", "port": "https"}]}));
    assert_eq!(ingress(&documents, NAME)[1]["ports"][0]["port"], "uploads");
    assert_eq!(ingress(&documents, NAME)[2], Value::Null);
    let (_, named) = template(&chart(), &json!({"monitoring": {"namespaces": ["prometheus"]}}));
    assert_eq!(ingress(&named, "millrace-operator"), json!([metrics_rule("prometheus")]));
    assert_eq!(ingress(&named, NAME)[2], metrics_rule("prometheus"));

    let monitored = json!({"monitoring": {"serviceMonitor": {"enabled": true}, "namespaces": ["prometheus"]}});
    let (_, documents) = template(&chart(), &monitored);
    let container = &pod(&documents)["containers"][0];
    assert_eq!(environment(pod(&documents), "MILLRACE_METRICS_LISTEN"), "0.0.0.0:8080");
    assert!(container["ports"].as_array().unwrap().contains(&json!({"name": "metrics", "containerPort": 8080})));
    let service = find(&documents, "Service", NAME);
    let ports = service["spec"]["ports"].as_array().unwrap();
    let targets: Vec<&Value> = ports.iter().map(|port| &port["targetPort"]).collect();
    assert_eq!(targets, ["https"], "an Ingress over it leads to no other port");
    let endpoints = &find(&documents, "ServiceMonitor", NAME)["spec"]["endpoints"];
    assert_eq!(endpoints[0]["port"], "metrics");
    let scraped = &find(&documents, "Service", "millrace-api-metrics")["spec"];
    assert_eq!((&scraped["clusterIP"], &scraped["ports"][0]["name"]), (&json!("None"), &endpoints[0]["port"]));

    let nobody = json!({"monitoring": {"serviceMonitor": {"enabled": true}}});
    let refused = helm(&["template", "millrace", chart().to_str().unwrap()], &nobody).unwrap_err();
    assert!(refused.contains("name the namespaces of Prometheus in monitoring.namespaces"), "{refused}");
}

#[test]
#[ignore = "needs helm"]
fn several_with_sqlite_are_refused() {
    let several = |more: Value| {
        let mut values = json!({"api": {"replicas": 2}});
        values["api"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        helm(&["template", "millrace", chart().to_str().unwrap()], &values)
    };
    let refused = several(json!({})).unwrap_err();
    assert!(refused.contains("SQLite belongs to one server: name a Secret"), "{refused}");
    several(json!({"database": {"secretName": "history"}})).unwrap();
    several(json!({"enabled": false})).unwrap();
}

#[test]
#[ignore = "needs helm"]
fn disabled_rest_server_renders_nothing() {
    let mut values = everything();
    values["api"]["enabled"] = json!(false);
    let (_, documents) = template(&chart(), &values);
    let named = |document: &&Value| document["metadata"]["name"].as_str().unwrap().starts_with(NAME);
    assert_eq!(documents.iter().find(named), None);
}

/// As clients check it: OpenSSL's strict rules are those of newer Pythons.
#[test]
#[ignore = "needs helm"]
fn certificate_has_names_of_values() {
    let (_, documents) = template(&chart(), &alone());
    let operator = &find(&documents, "Deployment", "millrace-operator")["spec"]["template"]["spec"];
    let hosts: Vec<String> = environment(operator, "MILLRACE_API_HOSTS").split(',').map(str::to_owned).collect();
    let made = ServerCertificate::new(&hosts, SystemTime::now()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(&path, text).unwrap();
        path
    };
    let (authority, certificate) = (file("ca.crt", &made.authority), file("tls.crt", &made.certificate));
    let verify = |check: &str, name: &str| {
        run("openssl", &["verify", "-x509_strict", "-CAfile", &authority, check, name, &certificate], "")
    };
    for name in [NAME, "localhost", "millrace.example.org"] {
        verify("-verify_hostname", name).unwrap();
    }
    for domain in ["", ".svc", ".svc.cluster.local"] {
        verify("-verify_hostname", &format!("{NAME}.{NAMESPACE}{domain}")).unwrap();
    }
    for address in ["127.0.0.1", "192.0.2.1", "2001:db8::1"] {
        verify("-verify_ip", address).unwrap();
    }
    assert!(verify("-verify_hostname", "other.example.org").unwrap_err().contains("mismatch"));
    assert!(verify("-verify_ip", "192.0.2.2").unwrap_err().contains("mismatch"));
}
