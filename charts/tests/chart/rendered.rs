//! What helm makes of the chart.

use std::collections::BTreeSet;

use millrace_crds::{Appliance, definitions, internal_definitions};
use serde_json::{Value, json};

use crate::documents::{is_documented_here, paths, schema};
use crate::tools::{
    NAMESPACE, alone, appliance, chart, everything, find, helm, read, render, root, run, template, tolerations, yaml,
};

#[test]
#[ignore = "needs helm"]
fn helm_lint_passes() {
    for values in [json!({}), everything(), alone()] {
        helm(&["lint", "--strict", chart().to_str().unwrap()], &values).unwrap();
    }
}

#[test]
#[ignore = "needs helm"]
fn rendering_is_the_same_every_time_and_from_a_package() {
    let packages = tempfile::tempdir().unwrap();
    let folder = packages.path().to_str().unwrap();
    run("helm", &["package", "--destination", folder, chart().to_str().unwrap()], "").unwrap();
    let package = packages.path().join(format!("millrace-{}.tgz", env!("CARGO_PKG_VERSION")));
    for values in [json!({}), everything()] {
        let once = template(&chart(), &values).1;
        assert_eq!(once, template(&chart(), &values).1);
        assert_eq!(once, template(&package, &values).1);
    }
}

#[test]
#[ignore = "needs helm"]
fn chart_crds_are_the_generated_ones() {
    let (_, documents) = template(&chart(), &json!({}));
    for definition in definitions().into_iter().chain(internal_definitions()) {
        let name = definition.metadata.name.clone().unwrap();
        let rendered = find(&documents, "CustomResourceDefinition", &name);
        assert_eq!(rendered["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
        let generated = std::fs::read_to_string(root().join(format!("crds/{name}.yaml"))).unwrap();
        let mut generated = yaml(&generated)["spec"].take();
        let mut spec = rendered["spec"].clone();
        as_floats(&mut generated);
        as_floats(&mut spec);
        assert_eq!(first_difference(&generated, &spec, "spec"), None, "{name}");
    }
    let (_, documents) = template(&chart(), &json!({"crds": {"install": false}}));
    assert!(documents.iter().all(|document| document["kind"] != "CustomResourceDefinition"));
}

/// Where two documents differ, and how: the whole of a definition is too long to read.
fn first_difference(a: &Value, b: &Value, at: &str) -> Option<String> {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => a.keys().chain(b.keys()).find_map(|key| {
            let of = |fields: &serde_json::Map<String, Value>| fields.get(key).cloned().unwrap_or_default();
            first_difference(&of(a), &of(b), &format!("{at}.{key}"))
        }),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.find_map(|(index, (a, b))| first_difference(a, b, &format!("{at}[{index}]")))
        }
        _ => (a != b).then(|| format!("{at}: {a} and {b}")),
    }
}

/// A bound of 1 and of 1.0 are the same.
fn as_floats(value: &mut Value) {
    match value {
        Value::Number(number) => *value = json!(number.as_f64()),
        Value::Array(items) => items.iter_mut().for_each(as_floats),
        Value::Object(fields) => fields.values_mut().for_each(as_floats),
        _ => {}
    }
}

#[test]
#[ignore = "needs helm"]
fn every_value_arrives() {
    let values = everything();
    let (text, documents) = template(&chart(), &values);
    let spec = appliance(&documents)["spec"].clone();
    let mut wanted = values["appliance"].clone();
    wanted["imagePullPolicy"] = json!("Always");
    wanted["imagePullSecrets"] = json!([{"name": "registry"}]);
    let (mut given, mut wanted) = (spec, wanted);
    as_floats(&mut given);
    as_floats(&mut wanted);
    assert_eq!(given, wanted);
    let typed: Appliance = serde_json::from_value(appliance(&documents)).unwrap();
    assert_eq!(typed.spec.machine.resolve().unwrap().systems, 4);

    let deployment = find(&documents, "Deployment", "millrace-operator");
    let pod = &deployment["spec"]["template"]["spec"];
    let image = format!("registry.example/millrace@sha256:{}", "0".repeat(64));
    assert_eq!(pod["containers"][0]["image"], image);
    assert_eq!(environment(pod, "MILLRACE_IMAGE"), image);
    assert_eq!(environment(pod, "MILLRACE_LOG"), "debug");
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    assert_eq!(pod["nodeSelector"], values["operator"]["nodeSelector"]);
    assert_eq!(pod["tolerations"], tolerations(&values["operator"]["tolerations"]));
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    assert_eq!(deployment["spec"]["replicas"], 2);
    find(&documents, "PodDisruptionBudget", "millrace-operator");
    let policy = find(&documents, "NetworkPolicy", "millrace-operator");
    assert_eq!(policy["spec"]["egress"][1]["ports"][0]["port"], 16443);
    for (kind, name) in
        [("ServiceMonitor", "millrace-operator"), ("ServiceMonitor", "millrace-api"), ("PodMonitor", "millrace-agents")]
    {
        assert_eq!(find(&documents, kind, name)["metadata"]["labels"]["release"], "prometheus");
    }
    let scraped = &find(&documents, "ServiceMonitor", "millrace-operator")["spec"]["endpoints"][0];
    assert_eq!(scraped["honorLabels"], true, "jobs are in their own namespaces, not in the operator's");
    let dashboard = find(&documents, "ConfigMap", "millrace-dashboard");
    assert_eq!(dashboard["data"]["millrace.json"], read("files/dashboard.json"), "nothing is templated away");
    assert!(!text.contains("aggregate-to"));
}

/// Agents send traces only where their NetworkPolicies can name the place to which they may.
#[test]
#[ignore = "needs helm"]
fn agents_send_traces_where_the_collector_is_known() {
    let labels = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "podSelector": {"matchLabels": {"app": "collector"}}});
    let network = json!({"ipBlock": {"cidr": "192.0.2.0/24"}});
    for (values, peer, port) in [(everything(), labels, 14317), (alone(), network, 4317)] {
        let (_, documents) = template(&chart(), &values);
        let pod = &find(&documents, "Deployment", "millrace-operator")["spec"]["template"]["spec"];
        let given: Value = serde_json::from_str(environment(pod, "MILLRACE_AGENTS_COLLECTOR")).unwrap();
        assert_eq!(given, json!({"peer": peer, "ports": [port]}));
        if values["operator"]["networkPolicy"]["enabled"] == true {
            let out = find(&documents, "NetworkPolicy", "millrace-operator")["spec"]["egress"].clone();
            assert_eq!(out[2], json!({"to": [peer], "ports": [{"protocol": "TCP", "port": port}]}));
        }
    }
    let anywhere = json!({"tracing": {"endpoint": "http://collector:4317"}});
    assert!(!template(&chart(), &anywhere).0.contains("MILLRACE_AGENTS_COLLECTOR"));
    let sampled = template(&chart(), &everything()).1;
    let pod = &find(&sampled, "Deployment", "millrace-api")["spec"]["template"]["spec"];
    assert_eq!(environment(pod, "OTEL_TRACES_SAMPLER"), "parentbased_traceidratio");
    assert_eq!(environment(pod, "OTEL_TRACES_SAMPLER_ARG"), "0.25");
}

#[test]
#[ignore = "needs helm"]
fn https_collector_is_verified_by_the_authority_of_the_values() {
    for (values, expected) in [(alone(), true), (everything(), false)] {
        let (_, documents) = template(&chart(), &values);
        for name in ["millrace-operator", "millrace-api"] {
            let pod = &find(&documents, "Deployment", name)["spec"]["template"]["spec"];
            let named = |list: &Value, key: &str| {
                list.as_array().into_iter().flatten().find(|it| it["name"] == key).cloned().unwrap_or_default()
            };
            let variable = named(&pod["containers"][0]["env"], "OTEL_EXPORTER_OTLP_CERTIFICATE");
            let mount = named(&pod["containers"][0]["volumeMounts"], "collector-authority");
            let volume = named(&pod["volumes"], "collector-authority");
            let found = [variable.is_object(), mount.is_object(), volume.is_object()];
            assert_eq!(found, [expected; 3], "{name}: {pod}");
            if expected {
                assert_eq!(variable["value"], format!("{}/ca.crt", mount["mountPath"].as_str().unwrap()));
                assert_eq!(volume["configMap"]["name"], "collector-authority");
                assert_eq!(volume["configMap"]["items"], json!([{"key": "ca.crt", "path": "ca.crt"}]));
            }
        }
    }
}

/// One lost node takes no two replicas with it, and neither keeps the other from being replaced during a rollout.
#[test]
#[ignore = "needs helm"]
fn replicas_use_different_nodes_and_leave_lost_nodes() {
    let affinity = |values: &Value, name: &str| {
        let (_, documents) = template(&chart(), values);
        let pod = find(&documents, "Deployment", name)["spec"]["template"]["spec"].clone();
        assert_eq!(pod["tolerations"].as_array().unwrap()[..2], tolerations(&json!([])).as_array().unwrap()[..]);
        pod["affinity"]["podAntiAffinity"].clone()
    };
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    for (name, other) in [("millrace-operator", "api"), ("millrace-api", "operator")] {
        let alone = affinity(&json!({}), name);
        assert!(alone[required].is_null(), "{name}: one goes anywhere");
        let preferred = &alone["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
        assert_eq!(preferred["labelSelector"]["matchLabels"]["app.kubernetes.io/component"], other);
        let several = &affinity(&everything(), name)[required][0];
        assert_eq!(several["topologyKey"], "kubernetes.io/hostname");
        assert_eq!(several["matchLabelKeys"], json!(["pod-template-hash"]));
        let component = &several["labelSelector"]["matchLabels"]["app.kubernetes.io/component"];
        assert_eq!(format!("millrace-{}", component.as_str().unwrap()), name);
    }
}

/// Of each value there is a release that is another one without it.
#[test]
#[ignore = "needs helm"]
fn every_value_changes_the_output() {
    let all = schema();
    let mut known = BTreeSet::new();
    paths(&all, &all, "", &mut known);
    known.retain(|path| is_documented_here(path));
    let parents: BTreeSet<&str> = known.iter().filter_map(|path| Some(path.rsplit_once('.')?.0)).collect();
    // Those of the appliance arrive as they are: see above.
    let here = |path: &str| !path.starts_with("appliance.") || path == "appliance.create";
    let mut idle: Vec<&str> =
        known.iter().map(String::as_str).filter(|path| here(path) && !parents.contains(path)).collect();
    assert!(idle.len() > 30, "{idle:?}");

    let made = |values: &Value| render(&chart(), values).map(|(_, documents)| documents);
    let off = |part: &str, switch: &str| json!({part: {switch: false}});
    for values in [everything(), alone(), off("api", "enabled"), off("crds", "install"), off("appliance", "create")] {
        let with = made(&values).unwrap();
        idle.retain(|path| {
            let pointer = format!("/{}", path.replace('.', "/"));
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let mut without = values.clone();
            let fields = without.pointer_mut(parent).and_then(Value::as_object_mut);
            fields.and_then(|fields| fields.remove(name)).is_none() || made(&without).as_ref() == Ok(&with)
        });
    }
    assert!(idle.is_empty(), "nothing comes of {idle:?}");
}

/// The value of a variable of a pod's first container.
pub fn environment<'a>(pod: &'a Value, name: &str) -> &'a str {
    let variables = pod["containers"][0]["env"].as_array().unwrap();
    let variable = variables.iter().find(|variable| variable["name"] == name);
    variable.unwrap_or_else(|| panic!("{name} is not set"))["value"].as_str().unwrap()
}

#[test]
#[ignore = "needs helm"]
fn default_needs_no_third_party_crds() {
    let (_, documents) = template(&chart(), &json!({}));
    for absent in ["ServiceMonitor", "PodMonitor", "PrometheusRule", "PodDisruptionBudget", "Appliance"] {
        assert!(documents.iter().all(|document| document["kind"] != absent), "{absent}");
    }
    for component in ["operator", "api"] {
        find(&documents, "NetworkPolicy", &format!("millrace-{component}"));
    }
    assert_eq!(appliance(&documents)["spec"]["priorityClasses"], json!(["p1", "p2", "p3"]));
    let none = template(&chart(), &json!({"appliance": {"priorityClasses": []}})).1;
    assert_eq!(appliance(&none)["spec"]["priorityClasses"], json!([]), "empty, it allows nothing");
    for document in &documents {
        assert_eq!(document["metadata"]["labels"]["app.kubernetes.io/instance"], "millrace", "{document}");
    }
    let operator = &find(&documents, "Deployment", "millrace-operator")["spec"]["template"];
    let image = format!("localhost/millrace:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(operator["spec"]["containers"][0]["image"], image);
    assert_eq!(operator["metadata"]["labels"]["millrace.dev/follows-journals"], "true");
    assert_eq!(environment(&operator["spec"], "MILLRACE_APPLIANCE"), "/etc/millrace/appliance.json");
    let typed: Appliance = serde_json::from_value(appliance(&documents)).unwrap();
    assert_eq!(typed.spec.machine.resolve().unwrap().systems, 16);

    // Other values, another pod: the operator applies the appliance when it starts.
    let (_, others) = template(&chart(), &json!({"appliance": {"systems": 17}}));
    let checksum = |documents: &[Value]| {
        let template = &find(documents, "Deployment", "millrace-operator")["spec"]["template"];
        template["metadata"]["annotations"]["checksum/appliance"].clone()
    };
    assert_ne!(checksum(&documents), checksum(&others));

    let (text, without) = template(&chart(), &json!({"appliance": {"create": false}}));
    assert!(!text.contains("MILLRACE_APPLIANCE") && !text.contains("millrace-appliance"));
    assert!(
        !rules(find(&without, "ClusterRole", "millrace-operator"))
            .any(|(resource, verb, _)| { resource == "appliances" && !["list", "watch", "patch"].contains(&&*verb) })
    );
}

/// Each right of a role: resource, verb, and whether it is of named objects only.
fn rules(role: &Value) -> impl Iterator<Item = (String, String, bool)> {
    let strings = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    role["rules"].as_array().unwrap().iter().flat_map(move |rule| {
        let (verbs, named) = (strings(&rule["verbs"]), !strings(&rule["resourceNames"]).is_empty());
        let rights = strings(&rule["resources"]).into_iter();
        rights.flat_map(move |resource| verbs.clone().into_iter().map(move |verb| (resource.clone(), verb, named)))
    })
}

#[test]
#[ignore = "needs helm"]
fn no_role_reads_secrets() {
    let (text, documents) = template(&chart(), &everything());
    assert!(!text.contains("'*'") && !text.contains("\"*\""), "every right is named");
    let mut roles = 0;
    for role in documents.iter().filter(|document| document["rules"].is_array()) {
        roles += 1;
        let cluster = role["kind"] == "ClusterRole";
        for (resource, verb, named) in rules(role).filter(|(resource, ..)| resource == "secrets") {
            let operators = role["metadata"]["name"] == "millrace-operator";
            let writes = cluster && operators && verb == "create";
            // The operator renews its authority and the certificate of the REST server in place.
            let own = !cluster && named && (verb == "get" || operators && verb == "update");
            assert!(writes || own, "{} may {verb} {resource}", role["metadata"]["name"]);
        }
    }
    assert_eq!(roles, 7, "two of the operator, two of the REST server, three for people");
}

#[test]
#[ignore = "needs helm"]
fn wrong_values_are_refused() {
    for (values, says) in [
        (json!({"systems": 4}), "systems"),
        (json!({"appliance": {"numSystems": 4}}), "numSystems"),
        (json!({"appliance": {"systems": 0}}), "/appliance/systems"),
        (json!({"appliance": {"swarmx": {"fanOut": 3}}}), "/appliance/swarmx/fanOut"),
        (json!({"appliance": {"storage": {"size": "much"}}}), "/appliance/storage/size"),
        (json!({"appliance": {"resources": {"cs3": {}}}}), "cs3"),
        (json!({"operator": {"logLevel": "loud"}}), "/operator/logLevel"),
        (json!({"image": {"pullSecrets": ["registry"]}}), "/image/pullSecrets/0"),
        (json!({"image": {"repository": "registry.example/millrace:0.1.0"}}), "/image/repository"),
        (json!({"appliance": {"priorityClasses": ["system-node-critical"]}}), "/appliance/priorityClasses/0"),
        (json!({"api": {"loglevel": "info"}}), "loglevel"),
        (json!({"api": {"service": {"type": "ExternalName"}}}), "/api/service/type"),
        (
            json!({"api": {"database": {"secretName": "postgres://user:password@host/name"}}}),
            "/api/database/secretName",
        ),
        (json!({"monitoring": {"namespaces": ["Monitoring"]}}), "/monitoring/namespaces/0"),
        (json!({"tracing": {"endpoint": "http://user:password@host:4317"}}), "/tracing/endpoint"),
        (json!({"tracing": {"endpoint": "https://host:4317"}}), "in tracing.caConfigMapName"),
        (json!({"tracing": {"collector": {"cidr": "0.0.0.0/0", "namespace": "a"}}}), "/tracing/collector/namespace"),
        (json!({"api": {"tls": {"names": ["https://millrace.example.org"]}}}), "/api/tls/names/0"),
    ] {
        let refused = helm(&["template", "millrace", chart().to_str().unwrap()], &values).expect_err(says);
        assert!(refused.contains(says), "{values}: {refused}");
    }
    // Several releases share the values of a parent chart.
    helm(&["template", NAMESPACE, chart().to_str().unwrap()], &json!({"global": {"any": 1}})).unwrap();
}
