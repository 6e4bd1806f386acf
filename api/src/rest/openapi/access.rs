//! The access that a route requires, in the OpenAPI document: a sentence for readers, and an extension for programs,
//! such as the tests that compare it with the roles of the chart.

use serde_json::{Value, json};

use super::super::auth::{Access, Action, ObjectSource, Permission};

pub const EXTENSION: &str = "x-millrace-access";

/// Describes the access in a sentence.
pub fn describe(access: Access) -> String {
    match access {
        Access::Public => "Needs no token.".to_owned(),
        Access::Authenticated => "Needs a token or a session.".to_owned(),
        Access::BearerToken => "Needs a token; a session is not accepted.".to_owned(),
        Access::Permission(Permission { action, object, .. }) => {
            let attributes = action.resource_attributes("", "");
            let slash = if attributes.subresource.is_empty() { "" } else { "/" };
            let place = match object {
                ObjectSource::ApplianceQuery => "in any namespace",
                _ if action.required_role() == super::super::TokenRole::Admin => "in all namespaces",
                _ => "in the namespace",
            };
            format!(
                "Needs the role {} {place}, or as an account of a cluster the permission to {} {}{slash}{}.",
                action.required_role().as_str(),
                attributes.verb,
                attributes.resource,
                attributes.subresource,
            )
        }
    }
}

/// Returns the value of the extension:
///
/// * `kind`: `public`, `authenticated`, `bearer` or `permission`; for the last also
/// * `role`: the lowest role of an API token,
/// * `permission`: the permission of an account of a cluster, `verb`, `group`, `resource` and `subresource`,
/// * `object`: where the object of the action is named, `path`, `path or visible namespaces` or `query`,
/// * `optional`: permissions on which the content of the response depends.
pub fn extension(access: Access) -> Value {
    let Permission { action, object, optional } = match access {
        Access::Public => return json!({"kind": "public"}),
        Access::Authenticated => return json!({"kind": "authenticated"}),
        Access::BearerToken => return json!({"kind": "bearer"}),
        Access::Permission(permission) => permission,
    };
    let object = match object {
        ObjectSource::Path => "path",
        ObjectSource::PathOrVisibleNamespaces => "path or visible namespaces",
        ObjectSource::ApplianceQuery => "query",
    };
    json!({
        "kind": "permission",
        "role": action.required_role().as_str(),
        "permission": permission(action),
        "object": object,
        "optional": optional.iter().map(|action| permission(*action)).collect::<Vec<_>>(),
    })
}

fn permission(action: Action) -> Value {
    let attributes = action.resource_attributes("", "");
    json!({
        "verb": attributes.verb,
        "group": attributes.group,
        "resource": attributes.resource,
        "subresource": attributes.subresource,
    })
}
