//! The chart on a real API server, without nodes: `charts/test` brings one. Nothing else may be installed there.

use serde_json::{Value, json};

use crate::tools::{NAMESPACE, RELEASE, appliance, chart, everything, find, helm, root, run, template};

fn kubectl(arguments: &[&str], input: &Value) -> Result<String, String> {
    run("kubectl", arguments, &input.to_string())
}

fn get(arguments: &[&str]) -> Value {
    let text = kubectl(&[&["get", "--output=json"], arguments].concat(), &Value::Null).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Every value but those whose kinds this API server does not have.
fn everything_here() -> Value {
    let mut values = everything();
    for kind in ["serviceMonitor", "podMonitor"] {
        values["monitoring"][kind]["enabled"] = json!(false);
    }
    values["rbac"]["aggregate"] = json!(true);
    values
}

/// One release for all that is tried on it: a cluster has no second one.
#[test]
#[ignore = "needs helm and an API server"]
fn from_install_to_uninstall() {
    let restricted = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    });
    kubectl(&["apply", "-f", "-"], &restricted).unwrap();
    let path = chart();
    let path = path.to_str().unwrap();
    helm(&["install", RELEASE, path], &json!({})).unwrap();
    let again = helm(&["install", "second", path], &json!({})).unwrap_err();
    assert!(again.contains("exists and cannot be imported"), "a cluster has one release: {again}");

    the_appliance_is_applied_without_its_status();
    the_operator_may_do_what_it_does_and_no_more();
    people_may_do_what_their_role_says();
    the_example_is_accepted();

    helm(&["upgrade", RELEASE, path], &everything_here()).unwrap();
    assert_eq!(get(&["--namespace", NAMESPACE, "deployment/millrace-operator"])["spec"]["replicas"], 2);
    pods_are_restricted();
    an_upgrade_brings_new_definitions(path);

    kubectl(&["delete", "trainjob.millrace.dev", "--all", "--namespace=default"], &Value::Null).unwrap();
    run("helm", &["uninstall", RELEASE, "--namespace", NAMESPACE], "").unwrap();
    get(&["customresourcedefinitions", "trainjobs.millrace.dev"]);
    let grants = &get(&["appliance.millrace.dev", "default"])["status"]["grants"];
    assert_eq!(grants[0]["uid"], "a", "the ledger outlives the release");
    helm(&["install", RELEASE, path], &json!({})).unwrap();
}

/// The user that the operator is to the API server.
fn operator() -> String {
    format!("system:serviceaccount:{NAMESPACE}:millrace-operator")
}

/// As the operator does it, with its rights.
fn the_appliance_is_applied_without_its_status() {
    let apply = |document: &Value| {
        let arguments = [
            "apply",
            "--server-side",
            "--field-manager=millrace-chart",
            "--force-conflicts",
            "--as",
            &operator(),
            "--validate=strict",
            "-f",
            "-",
        ];
        kubectl(&arguments, document).unwrap();
    };
    kubectl(
        &["wait", "--for=condition=Established", "crd/appliances.millrace.dev", "crd/trainjobs.millrace.dev"],
        &Value::Null,
    )
    .unwrap();
    apply(&appliance(&template(&chart(), &everything()).1));
    let grant = json!({"status": {"grants": [{"uid": "a", "namespace": "default", "name": "a"}]}});
    let patch = ["patch", "appliance.millrace.dev/default", "--subresource=status", "--type=merge"];
    kubectl(&[&patch[..], &["--patch", &grant.to_string()]].concat(), &Value::Null).unwrap();
    apply(&appliance(&template(&chart(), &json!({})).1));
    let stored = get(&["appliance.millrace.dev", "default"]);
    assert_eq!(stored["spec"]["systems"], 16);
    assert!(
        stored["spec"]["wafer"].is_null(),
        "what is no longer in the values is no longer there: {}",
        stored["spec"]
    );
    assert_eq!(stored["status"]["grants"][0]["uid"], "a");
}

/// A question to the API server's authorizer, and the answer that is right.
struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    namespace: &'static str,
    name: &'static str,
    allowed: bool,
}

fn right(verb: &'static str, resource: &'static str, allowed: bool) -> Right {
    let (resource, name) = resource.split_once(':').unwrap_or((resource, ""));
    let (resource, group) = resource.split_once('@').unwrap_or((resource, ""));
    let group = if group == "millrace" { "millrace.dev" } else { group };
    Right { verb, group, resource, namespace: "team", name, allowed }
}

fn assert_rights(user: &str, rights: &[Right]) {
    let questions: Vec<Value> = rights
        .iter()
        .map(|right| {
            let (resource, subresource) = right.resource.split_once('/').unwrap_or((right.resource, ""));
            json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"user": user, "resourceAttributes": {
                    "verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource,
                    "namespace": right.namespace, "name": right.name,
                }},
            })
        })
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": questions});
    let text = kubectl(&["create", "--output=json", "-f", "-"], &list).unwrap();
    let answers: Vec<Value> = serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(answers.len(), rights.len());
    for (right, answer) in rights.iter().zip(&answers) {
        let Right { verb, resource, namespace, name, allowed, .. } = right;
        assert_eq!(answer["status"]["allowed"] == true, *allowed, "{user}: {verb} {resource} {name} in {namespace}");
    }
}

fn the_operator_may_do_what_it_does_and_no_more() {
    let own = |right: Right| Right { namespace: NAMESPACE, ..right };
    let mut rights = Vec::new();
    for (resource, verbs) in [
        ("trainjobs@millrace", "list watch delete"),
        ("trainjobs/status@millrace", "patch"),
        ("trainjobs/finalizers@millrace", "update"),
        ("appliances@millrace", "list watch create"),
        ("appliances@millrace:default", "list watch create patch"),
        ("appliances/status@millrace", "patch"),
        ("pods", "list watch create delete"),
        ("pods/exec", ""),
        ("pods/log", ""),
        ("services", "list watch create patch"),
        ("networkpolicies@networking.k8s.io", "create patch"),
        ("persistentvolumeclaims", "create"),
        ("configmaps", "get create delete"),
        ("secrets", "create delete"),
        ("secrets:millrace-authority", "create delete"),
        ("priorityclasses@scheduling.k8s.io", "list"),
        ("events@events.k8s.io", "create patch"),
        ("leases@coordination.k8s.io", ""),
        ("clusterroles@rbac.authorization.k8s.io", ""),
        ("serviceaccounts/token", ""),
        ("nodes", ""),
    ] {
        for verb in ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"] {
            rights.push(right(verb, resource, verbs.split(' ').any(|may| may == verb)));
        }
    }
    rights.extend([
        own(right("get", "secrets:millrace-authority", true)),
        own(right("get", "secrets:other", false)),
        own(right("list", "secrets", false)),
        own(right("create", "leases@coordination.k8s.io", true)),
        own(right("get", "leases@coordination.k8s.io:millrace-operator", true)),
        own(right("update", "leases@coordination.k8s.io:millrace-operator", true)),
        own(right("update", "leases@coordination.k8s.io:other", false)),
    ]);
    assert_rights(&operator(), &rights);
}

fn people_may_do_what_their_role_says() {
    for (role, own) in [("viewer", "view"), ("editor", "edit"), ("admin", "admin")] {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": format!("chart-test-{role}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("millrace-{role}")},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role}],
        });
        kubectl(&["apply", "-f", "-"], &binding).unwrap();
        let (edits, rules) = (role != "viewer", role == "admin");
        let rights = [
            right("get", "trainjobs@millrace", true),
            right("watch", "trainjobs@millrace", true),
            right("get", "trainjobs/status@millrace", true),
            right("get", "trainjobs/logs@millrace", true),
            right("get", "trainjobs/files@millrace", edits),
            right("create", "trainjobs@millrace", edits),
            right("update", "trainjobs@millrace", edits),
            right("delete", "trainjobs@millrace", edits),
            right("patch", "trainjobs/scale@millrace", edits),
            right("patch", "trainjobs/status@millrace", false),
            right("update", "trainjobs/status@millrace", false),
            right("list", "appliances@millrace", true),
            right("patch", "appliances@millrace", rules),
            right("patch", "appliances/status@millrace", false),
            right("get", "secrets", false),
        ];
        assert_rights(role, &rights);
        kubectl(&["delete", "clusterrolebinding", &format!("chart-test-{role}")], &Value::Null).unwrap();
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{own}");
        assert_eq!(get(&["clusterrole", &format!("millrace-{role}")])["metadata"]["labels"][&label], "true");
    }
}

fn the_example_is_accepted() {
    let file = root().join("examples/trainjob.yaml");
    let apply = ["apply", "--namespace=default", "--validate=strict", "-f", file.to_str().unwrap()];
    kubectl(&apply, &Value::Null).unwrap();
}

/// The API server's own judgement: a pod as the Deployment's, in a namespace that enforces `restricted`.
fn pods_are_restricted() {
    for values in [json!({}), everything_here()] {
        let (_, documents) = template(&chart(), &values);
        let template = &find(&documents, "Deployment", "millrace-operator")["spec"]["template"];
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "operator", "namespace": NAMESPACE, "labels": template["metadata"]["labels"]},
            "spec": template["spec"],
        });
        let create = ["create", "--dry-run=server", "--validate=strict", "-f", "-"];
        kubectl(&create, &pod).unwrap();
        let mut loose = pod;
        loose["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
        let refused = kubectl(&create, &loose).unwrap_err();
        assert!(refused.contains("violates PodSecurity"), "{refused}");
    }
}

/// A definition of an older version is there, and objects of it: `helm upgrade` brings the new one.
fn an_upgrade_brings_new_definitions(path: &str) {
    let old = json!({"metadata": {"labels": {"helm.sh/chart": "millrace-0.0.0"}}, "spec": {"names": {"shortNames": ["old"]}}});
    let patch = ["patch", "crd/trainjobs.millrace.dev", "--type=merge", "--patch", &old.to_string()];
    let new = get(&["customresourcedefinitions", "trainjobs.millrace.dev"])["spec"]["names"]["shortNames"].clone();
    kubectl(&patch, &Value::Null).unwrap();
    helm(&["upgrade", RELEASE, path, "--force-conflicts"], &everything_here()).unwrap();
    let upgraded = get(&["customresourcedefinitions", "trainjobs.millrace.dev"]);
    assert_eq!(upgraded["spec"]["names"]["shortNames"], new);
    assert_eq!(upgraded["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    assert_eq!(get(&["--namespace=default", "trainjob.millrace.dev/gpt2-kjv"])["spec"]["numCsx"], 2);
}
