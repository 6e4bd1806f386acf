//! What clients may do: the roles of API tokens, and the actions that require a permission.

use crate::authorizer::ResourceAttributes;

const TRAINJOBS_RESOURCE: &str = "trainjobs";
const CLAIMS_RESOURCE: &str = "persistentvolumeclaims";

/// Role of an API token. Each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenRole {
    /// May read jobs, events, metrics and logs.
    Viewer,
    /// May submit and change jobs, and read their files.
    Editor,
    /// May manage API tokens.
    Admin,
}

impl TokenRole {
    /// All roles, in ascending order.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Editor, Self::Admin];

    /// Returns the name of the role in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Editor => "editor",
            Self::Admin => "admin",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// An action that requires a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// List jobs, read the queue, plan a job.
    List,
    /// Read a job, its events and its curves.
    Read,
    /// Read the logs of its agents.
    ReadLogs,
    /// Read its checkpoints and artifacts.
    ReadFiles,
    Create,
    /// Suspend or resume it.
    Change,
    /// Change the number of its systems.
    Scale,
    Delete,
    /// List the volumes that a job can mount.
    ListVolumes,
    ReadAppliance,
    ListTokens,
    CreateToken,
    DeleteToken,
}

impl Action {
    /// Returns the lowest role of an API token that may perform the action.
    pub const fn required_role(self) -> TokenRole {
        match self {
            Self::List | Self::Read | Self::ReadLogs | Self::ListVolumes | Self::ReadAppliance => TokenRole::Viewer,
            Self::ReadFiles | Self::Create | Self::Change | Self::Scale | Self::Delete => TokenRole::Editor,
            Self::ListTokens | Self::CreateToken | Self::DeleteToken => TokenRole::Admin,
        }
    }

    /// Returns verb, resource and subresource of the permission in Kubernetes.
    const fn resource_rule(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::List => ("list", TRAINJOBS_RESOURCE, ""),
            Self::Read => ("get", TRAINJOBS_RESOURCE, ""),
            Self::ReadLogs => ("get", TRAINJOBS_RESOURCE, "logs"),
            Self::ReadFiles => ("get", TRAINJOBS_RESOURCE, "files"),
            Self::Create => ("create", TRAINJOBS_RESOURCE, ""),
            Self::Change => ("patch", TRAINJOBS_RESOURCE, ""),
            Self::Scale => ("patch", TRAINJOBS_RESOURCE, "scale"),
            Self::Delete => ("delete", TRAINJOBS_RESOURCE, ""),
            Self::ListVolumes => ("list", CLAIMS_RESOURCE, ""),
            Self::ReadAppliance => ("get", "appliances", ""),
            Self::ListTokens => ("list", "tokens", ""),
            Self::CreateToken => ("create", "tokens", ""),
            Self::DeleteToken => ("delete", "tokens", ""),
        }
    }

    /// Returns the attributes of a SubjectAccessReview. An empty `name` means all objects of `namespace`, an empty
    /// `namespace` all namespaces and cluster-scoped objects.
    pub fn resource_attributes(self, namespace: &str, name: &str) -> ResourceAttributes {
        let (verb, resource, subresource) = self.resource_rule();
        let group = if resource == CLAIMS_RESOURCE { "" } else { "millrace.dev" };
        ResourceAttributes {
            verb,
            group,
            resource,
            subresource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}
