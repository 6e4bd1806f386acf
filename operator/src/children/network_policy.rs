//! The network rules of a job. Allowed are only connections among its agents, from the operator and the API to the
//! coordinator's journal, from anywhere to the metrics, and to the cluster's DNS.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use millrace_cluster::address::ports;
use millrace_cluster::names::ChildNames;
use millrace_control::AttemptContext;

use super::meta;

/// Label of the pods that may follow journals, in any namespace; the chart sets it on its own pods.
const FOLLOWS_JOURNALS_LABEL: (&str, &str) = ("millrace.dev/follows-journals", "true");

pub(super) fn tcp(port: u16) -> NetworkPolicyPort {
    port_of("TCP", port)
}

fn port_of(protocol: &str, port: u16) -> NetworkPolicyPort {
    NetworkPolicyPort {
        protocol: Some(protocol.to_owned()),
        port: Some(IntOrString::Int(port.into())),
        ..NetworkPolicyPort::default()
    }
}

pub(super) fn labelled(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }
}

/// Selects the operator and the API server, in any namespace.
pub(super) fn followers() -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector::default()),
        pod_selector: Some(labelled(BTreeMap::from([(
            FOLLOWS_JOURNALS_LABEL.0.to_owned(),
            FOLLOWS_JOURNALS_LABEL.1.to_owned(),
        )]))),
        ..NetworkPolicyPeer::default()
    }
}

/// Builds the policy for all agents of the job.
pub fn network_policy(attempt: &AttemptContext<'_>) -> NetworkPolicy {
    let names = ChildNames::for_job(attempt.job);
    let selector = labelled(names.selector());
    let peers = NetworkPolicyPeer { pod_selector: Some(selector.clone()), ..NetworkPolicyPeer::default() };
    let from = |peer: Option<NetworkPolicyPeer>, ports: Vec<NetworkPolicyPort>| NetworkPolicyIngressRule {
        from: peer.map(|peer| vec![peer]),
        ports: Some(ports),
    };
    NetworkPolicy {
        metadata: meta(attempt, names.network_policy()),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selector),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(vec![
                from(Some(peers.clone()), vec![tcp(ports::CONTROL_PORT), tcp(ports::DATA_PORT)]),
                from(Some(followers()), vec![tcp(ports::JOURNAL_PORT)]),
                from(None, vec![tcp(ports::METRICS_PORT)]),
            ]),
            egress: Some(vec![
                NetworkPolicyEgressRule {
                    to: Some(vec![peers]),
                    ports: Some(vec![tcp(ports::CONTROL_PORT), tcp(ports::DATA_PORT)]),
                },
                NetworkPolicyEgressRule { to: None, ports: Some(vec![port_of("UDP", 53), tcp(53)]) },
            ]),
        }),
    }
}
