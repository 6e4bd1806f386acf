//! The identities of an attempt's agents, in one Secret for each number of systems that the attempt has had. Each agent
//! mounts only its own entries, and init containers those of the fetcher. The operator may create such Secrets but
//! never read them: a key exists only in the Secret and in its pod. Garbage collection deletes them with the attempt's
//! launch document.

use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::{ConfigMap, KeyToPath, Secret, SecretVolumeSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::{ByteString, Resource};
use kube::ResourceExt;
use millrace_cluster::address::host;
use millrace_cluster::names::ChildNames;
use millrace_control::AttemptContext;
use millrace_crds::Role;
use millrace_protocol::security::{AttemptName, Credentials, MemberName};

use super::fetcher::FETCHER_IDENTITY;
use super::meta;
use crate::authority::Authorities;
use crate::error::ChildError;

/// Maximum size of a Secret's values, in bytes.
pub const MAX_SECRET_BYTES: usize = 1 << 20;

fn entry(name: &str, text: &str) -> (String, ByteString) {
    (name.to_owned(), ByteString(text.as_bytes().to_vec()))
}

/// Builds the Secret with an identity for every agent of the attempt, and one for its fetchers, issued at `now`. It is
/// owned by the launch document with the UID `launch_uid`.
///
/// # Errors
/// A certificate can't be issued, or there are too many agents for one Secret.
pub fn identities(
    attempt: &AttemptContext<'_>,
    authorities: &Authorities,
    launch_uid: String,
    now: SystemTime,
) -> Result<Secret, ChildError> {
    let (names, namespace) = (ChildNames::for_job(attempt.job), attempt.job.namespace().unwrap_or_default());
    let uid = attempt.job.uid().unwrap_or_default();
    let certified = AttemptName::new(&uid, attempt.number)?;
    let mut data = BTreeMap::new();
    for (role, index) in
        attempt.needs.wanted.iter().flat_map(|&(role, count)| (0..count).map(move |index| (role, index)))
    {
        let agent = format!("{role}-{index}");
        let name = MemberName::for_agent(certified.clone(), &agent)?;
        let hosts = if role == Role::Coordinator { vec![host(&names, &namespace)] } else { Vec::new() };
        let Credentials { certificate, key, authority } = authorities.issue_member(&name, &hosts, now)?;
        data.extend([
            entry(&format!("{agent}.crt"), &certificate),
            entry(&format!("{agent}.key"), &key),
            entry(Credentials::AUTHORITY_FILE, &authority),
        ]);
    }
    if attempt.job.spec.uploads().next().is_some() {
        let fetcher = MemberName::for_fetcher(&uid)?;
        let Credentials { certificate, key, .. } = authorities.issue_member(&fetcher, &[], now)?;
        data.extend([
            entry(&format!("{FETCHER_IDENTITY}.crt"), &certificate),
            entry(&format!("{FETCHER_IDENTITY}.key"), &key),
        ]);
    }
    let bytes: usize = data.values().map(|value| value.0.len()).sum();
    if bytes > MAX_SECRET_BYTES {
        return Err(ChildError::SecretTooLarge { bytes });
    }
    let owner = OwnerReference {
        api_version: ConfigMap::API_VERSION.to_owned(),
        kind: ConfigMap::KIND.to_owned(),
        name: names.launch(attempt.number),
        uid: launch_uid,
        ..OwnerReference::default()
    };
    let metadata = ObjectMeta {
        owner_references: Some(vec![owner]),
        ..meta(attempt, names.identity(attempt.number, attempt.system_count()))
    };
    Ok(Secret { metadata, immutable: Some(true), data: Some(data), ..Secret::default() })
}

/// Returns the part of that Secret that a pod mounts: its own identity.
pub fn identity_volume(attempt: &AttemptContext<'_>, role: Role, index: u32) -> SecretVolumeSource {
    let item = |key: String, path: &str| KeyToPath { key, path: path.to_owned(), mode: None };
    SecretVolumeSource {
        secret_name: Some(ChildNames::for_job(attempt.job).identity(attempt.number, attempt.system_count())),
        items: Some(vec![
            item(format!("{role}-{index}.crt"), Credentials::CERTIFICATE_FILE),
            item(format!("{role}-{index}.key"), Credentials::KEY_FILE),
            item(Credentials::AUTHORITY_FILE.to_owned(), Credentials::AUTHORITY_FILE),
        ]),
        // Readable for the group of the pod's volumes (`fsGroup`), which is the agent's own group.
        default_mode: Some(0o440),
        ..SecretVolumeSource::default()
    }
}
