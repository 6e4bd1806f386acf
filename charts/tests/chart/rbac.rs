//! Who may do what, asked of an API server's authorizer.

use serde_json::{Value, json};

use crate::tools::{NAMESPACE, get, kubectl};

/// A question to the authorizer, and the answer that is right.
struct AccessCheck {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    namespace: &'static str,
    name: &'static str,
    allowed: bool,
}

/// In the namespace of a job; `resource` is `RESOURCE[/SUBRESOURCE][@GROUP][:NAME]`.
fn right(verb: &'static str, resource: &'static str, allowed: bool) -> AccessCheck {
    let (resource, name) = resource.split_once(':').unwrap_or((resource, ""));
    let (resource, group) = resource.split_once('@').unwrap_or((resource, ""));
    let group = if group == "millrace" { "millrace.dev" } else { group };
    AccessCheck { verb, group, resource, namespace: "team", name, allowed }
}

/// In the namespace of the chart.
fn own(verb: &'static str, resource: &'static str, allowed: bool) -> AccessCheck {
    AccessCheck { namespace: NAMESPACE, ..right(verb, resource, allowed) }
}

/// In no namespace.
fn global(verb: &'static str, resource: &'static str, allowed: bool) -> AccessCheck {
    AccessCheck { namespace: "", ..right(verb, resource, allowed) }
}

/// These verbs of each resource, and none of the others.
fn exactly(resources: &[(&'static str, &str)]) -> Vec<AccessCheck> {
    let all = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate"];
    let of = |&(resource, verbs): &(&'static str, &str)| {
        let may: Vec<&str> = verbs.split(' ').collect();
        all.map(|verb| right(verb, resource, may.contains(&verb)))
    };
    resources.iter().flat_map(of).collect()
}

fn assert_rights(user: &str, rights: &[AccessCheck]) {
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
        let AccessCheck { verb, resource, namespace, name, allowed, .. } = right;
        assert_eq!(answer["status"]["allowed"] == true, *allowed, "{user}: {verb} {resource} {name} in {namespace}");
    }
}

/// The REST server creates and changes only the ConfigMaps with the texts of jobs.
pub fn rest_server_writes_only_text_config_maps() {
    let api = user("api");
    let namespace = "default";
    let map = |name: &str, component: &str, immutable: bool| {
        let owner = json!({
            "apiVersion": "millrace.dev/v1alpha1", "kind": "TrainJob", "name": "job",
            "uid": "6a0c1c3e-0000-4000-8000-000000000001",
        });
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": name, "namespace": namespace, "ownerReferences": [owner],
                "labels": {"app.kubernetes.io/managed-by": "millrace-api", "app.kubernetes.io/component": component},
            },
            "data": {"text": "of a job"}, "immutable": immutable,
        })
    };
    let create = ["create", "--as", &api, "-f", "-"];
    // A policy takes effect some moments after it is there.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let dry = ["create", "--dry-run=server", "--as", &api, "-f", "-"];
    while kubectl(&dry, &map("other", "other", true)).is_ok() {
        assert!(std::time::Instant::now() < deadline, "the policy does not take effect");
    }
    for refused in [map("other", "other", true), map("texts", "texts", false)] {
        let why = kubectl(&create, &refused).unwrap_err();
        assert!(why.contains("millrace-api-texts"), "{why}");
    }
    kubectl(&create, &map("texts", "texts", true)).unwrap();
    kubectl(&["create", "-f", "-"], &map("foreign", "other", false)).unwrap();
    // By an apply: kubectl's patch would read the object first, which this account may not.
    let adopt = |name: &str| {
        let mut adopted = map(name, "texts", true);
        adopted["metadata"]["ownerReferences"][0]["uid"] = json!("6a0c1c3e-0000-4000-8000-000000000002");
        kubectl(&["apply", "--server-side", "--force-conflicts", "--as", &api, "-f", "-"], &adopted)
    };
    let why = adopt("foreign").unwrap_err();
    assert!(why.contains("changes no ConfigMaps but the texts of jobs"), "{why}");
    adopt("texts").unwrap();
    kubectl(&["delete", "configmap", "texts", "foreign", "--namespace", namespace], &Value::Null).unwrap();
}

/// Returns the user name of a component's service account.
pub fn user(component: &str) -> String {
    format!("system:serviceaccount:{NAMESPACE}:millrace-{component}")
}

pub fn operator_has_least_privilege() {
    let mut rights = exactly(&[
        ("trainjobs@millrace", "list watch patch delete"),
        ("trainjobs/status@millrace", "patch"),
        ("trainjobs/finalizers@millrace", "update"),
        ("appliances@millrace", "list watch create patch"),
        ("appliances@millrace:default", "get list watch create patch"),
        ("appliances/status@millrace", "patch"),
        ("filereaders@millrace", "list watch delete"),
        ("filereaders/status@millrace", "patch"),
        ("pods", "list watch create delete"),
        ("pods/exec", ""),
        ("pods/log", ""),
        ("services", "list watch create patch"),
        ("networkpolicies@networking.k8s.io", "create patch"),
        ("persistentvolumeclaims", "create"),
        ("configmaps", "get create delete"),
        ("secrets", "create"),
        ("secrets:millrace-authority", "create"),
        ("secrets:millrace-api-identity", "create"),
        ("secrets:millrace-api-tls", "create"),
        ("priorityclasses@scheduling.k8s.io", "list"),
        ("events@events.k8s.io", "create patch"),
        ("leases@coordination.k8s.io", ""),
        ("clusterroles@rbac.authorization.k8s.io", ""),
        ("serviceaccounts/token", ""),
        ("serviceaccounts", ""),
        ("nodes", ""),
    ]);
    for secret in ["secrets:millrace-authority", "secrets:millrace-api-identity", "secrets:millrace-api-tls"] {
        rights.extend([own("get", secret, true), own("update", secret, true), own("delete", secret, false)]);
    }
    rights.extend([
        own("get", "secrets:other", false),
        own("list", "secrets", false),
        own("create", "leases@coordination.k8s.io", true),
        own("get", "leases@coordination.k8s.io:millrace-operator", true),
        own("update", "leases@coordination.k8s.io:millrace-operator", true),
        own("update", "leases@coordination.k8s.io:other", false),
    ]);
    assert_rights(&user("operator"), &rights);
}

pub fn rest_server_has_least_privilege() {
    let mut rights = exactly(&[
        ("trainjobs@millrace", "get list watch create patch delete"),
        ("trainjobs/status@millrace", ""),
        ("trainjobs/logs@millrace", ""),
        ("tokens@millrace", ""),
        ("appliances@millrace", "list watch"),
        ("appliances/status@millrace", ""),
        ("filereaders@millrace", "get list watch create delete"),
        ("filereaders/status@millrace", ""),
        ("pods", "get list watch"),
        ("pods/exec", ""),
        ("pods/log", ""),
        ("services", ""),
        ("networkpolicies@networking.k8s.io", ""),
        ("persistentvolumeclaims", "list"),
        ("configmaps", "create patch"),
        ("secrets", ""),
        ("secrets:millrace-api-identity", ""),
        ("events", "list watch"),
        ("events@events.k8s.io", "list watch"),
        ("priorityclasses@scheduling.k8s.io", "list"),
        ("namespaces", "get"),
        ("tokenreviews@authentication.k8s.io", "create"),
        ("subjectaccessreviews@authorization.k8s.io", "create"),
        ("leases@coordination.k8s.io", ""),
        ("clusterroles@rbac.authorization.k8s.io", ""),
        ("serviceaccounts/token", ""),
        ("serviceaccounts", ""),
        ("users", ""),
    ]);
    rights.extend([
        own("get", "secrets:millrace-api-identity", true),
        own("get", "secrets:millrace-authority", false),
        own("get", "secrets:millrace-api-tls", false),
        own("list", "secrets", false),
    ]);
    assert_rights(&user("api"), &rights);
}

pub fn user_roles_grant_their_verbs() {
    for (role, part_of) in [("viewer", "view"), ("editor", "edit"), ("admin", "admin")] {
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
            right("get", "persistentvolumeclaims", true),
            right("list", "persistentvolumeclaims", true),
            right("watch", "persistentvolumeclaims", true),
            right("delete", "persistentvolumeclaims", false),
            // What `kubectl describe` and `kubectl logs` read, which charts/millrace/README.md promises.
            right("list", "pods", true),
            right("watch", "pods", true),
            right("get", "pods/log", true),
            right("create", "pods/exec", false),
            right("delete", "pods", false),
            right("list", "events", true),
            right("list", "events@events.k8s.io", true),
            right("create", "events", false),
            right("get", "trainjobs/scale@millrace", true),
            right("list", "appliances@millrace", true),
            right("patch", "appliances@millrace", rules),
            right("patch", "appliances/status@millrace", false),
            global("list", "tokens@millrace", rules),
            global("create", "tokens@millrace", rules),
            global("delete", "tokens@millrace", rules),
            right("get", "secrets", false),
        ];
        assert_rights(role, &rights);
        kubectl(&["delete", "clusterrolebinding", &format!("chart-test-{role}")], &Value::Null).unwrap();
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{part_of}");
        assert_eq!(get(&["clusterrole", &format!("millrace-{role}")])["metadata"]["labels"][&label], "true");
    }
}
