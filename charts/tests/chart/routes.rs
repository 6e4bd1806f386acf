//! The roles for users grant what the routes of the REST server require.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::tools::{chart, find, root, template};

/// The roles, each of which includes the ones before it, as those of API tokens do.
const ROLES: [&str; 3] = ["viewer", "editor", "admin"];

/// A permission: verb, API group and resource, with the subresource.
type Permission = (String, String, String);

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string")).to_owned()
}

/// Returns the permission that each operation of the OpenAPI document requires, with the role and the operation id.
fn required_permissions() -> Vec<(Permission, String, String)> {
    let document = std::fs::read_to_string(root().join("api/openapi.json")).unwrap();
    let document: Value = serde_json::from_str(&document).unwrap();
    let operations =
        document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    let guarded = operations.filter(|operation| operation["x-millrace-access"]["kind"] == "permission");
    guarded
        .map(|operation| {
            let access = &operation["x-millrace-access"];
            let [verb, group, resource, subresource] =
                ["verb", "group", "resource", "subresource"].map(|key| text(&access["permission"][key]));
            let resource = if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") };
            ((verb, group, resource), text(&access["role"]), text(&operation["operationId"]))
        })
        .collect()
}

fn granted_permissions(role: &Value) -> BTreeSet<Permission> {
    let texts = |list: &Value| -> Vec<String> { list.as_array().unwrap().iter().map(text).collect() };
    let mut granted = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                granted.extend(texts(&rule["verbs"]).into_iter().map(|verb| (verb, group.clone(), resource.clone())));
            }
        }
    }
    granted
}

#[test]
#[ignore = "needs helm"]
fn user_roles_grant_what_routes_require_and_no_more() {
    let (_, documents) = template(&chart(), &json!({}));
    let required = required_permissions();
    assert!(required.len() > 20, "{required:?}");
    for (level, role) in ROLES.into_iter().enumerate() {
        let granted = granted_permissions(find(&documents, "ClusterRole", &format!("millrace-{role}")));
        for (permission, lowest, operation) in &required {
            let lowest = ROLES.iter().position(|known| known == lowest).unwrap();
            let says = format!("{role}: {permission:?} of {operation}");
            assert_eq!(granted.contains(permission), level >= lowest, "{says}");
        }
        // These exist only for the REST server, so a route must require each of them.
        let (known, own): (BTreeSet<_>, BTreeSet<_>) = (
            required.iter().map(|(permission, ..)| permission).collect(),
            granted.iter().filter(|(_, _, resource)| is_of_rest_only(resource)).collect(),
        );
        assert!(own.is_subset(&known), "{role}: no route requires {:?}", own.difference(&known).collect::<Vec<_>>());
    }
}

/// Whether only the REST server checks permissions on this resource.
fn is_of_rest_only(resource: &str) -> bool {
    ["trainjobs/logs", "trainjobs/files", "tokens"].contains(&resource)
}
