//! How the agents and readers of a job are reached, and by which certificate its coordinator is recognised.

use k8s_openapi::api::core::v1::Pod;
use millrace_crds::Role;
use millrace_protocol::security::{AttemptName, ExpectedPeer, MemberName};

use crate::names::ChildNames;

/// Ports of pods. They are the same in every pod, because each pod has an address of its own.
pub mod ports {
    /// A coordinator's control port.
    pub const CONTROL_PORT: u16 = 7000;
    /// A coordinator's journal.
    pub const JOURNAL_PORT: u16 = 7001;
    /// Data port of the other roles.
    pub const DATA_PORT: u16 = 7100;
    /// The only port of a reader.
    pub const READER_PORT: u16 = 7200;
    /// The REST server's port for uploads.
    pub const UPLOADS_PORT: u16 = 7300;
    /// `/metrics` and probes.
    pub const METRICS_PORT: u16 = 9090;
}

/// Returns the DNS name of the coordinator of a job in `namespace`.
pub fn host(names: &ChildNames, namespace: &str) -> String {
    format!("{}.{namespace}.svc", names.coordinator())
}

/// Returns the address at which agents join.
pub fn control_address(names: &ChildNames, namespace: &str) -> String {
    format!("{}:{}", host(names, namespace), ports::CONTROL_PORT)
}

/// Returns the address at which the operator follows the journal.
pub fn journal_address(names: &ChildNames, namespace: &str) -> String {
    format!("{}:{}", host(names, namespace), ports::JOURNAL_PORT)
}

/// Returns the expected certificate of an attempt's coordinator; `None` for a UID that can't be part of a name.
pub fn expected_coordinator(names: &ChildNames, namespace: &str, uid: &str, attempt: u32) -> Option<ExpectedPeer> {
    let attempt = AttemptName::new(uid, attempt).ok()?;
    let name = MemberName::for_agent(attempt, &format!("{}-0", Role::Coordinator)).ok()?;
    Some(ExpectedPeer::with_host_fallback(name, host(names, namespace)))
}

/// Returns `IP:port` of a pod that has an address.
pub fn pod_address(pod: &Pod, port: u16) -> Option<String> {
    let ip = pod.status.as_ref()?.pod_ip.as_deref()?;
    Some(if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_ipv6_pods_have_brackets() {
        let address_of =
            |status| pod_address(&serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap(), 7001);
        assert_eq!(address_of(json!({"podIP": "10.0.0.1"})).as_deref(), Some("10.0.0.1:7001"));
        assert_eq!(address_of(json!({"podIP": "fd00::1"})).as_deref(), Some("[fd00::1]:7001"));
        assert_eq!(address_of(json!({"phase": "Pending"})), None);
    }
}
