//! Traces of jobs' agents: configures the pods for a collector, and lets them reach it.
//!
//! * Agents send traces only if the operator does so itself and [`Collector`] names the collector's place. The
//!   NetworkPolicy of a job allows connections to that place alone.
//! * Pods get no headers, because these may contain a token, and no certificates.

use std::str::FromStr;

use k8s_openapi::api::core::v1::{EnvVar, Pod};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use millrace_traces::TraceParent;
use serde::Deserialize;

/// Variables of OpenTelemetry that are passed to agents if the operator has them.
const FORWARDED_VARIABLES: [&str; 10] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
];

/// Maximum number of a collector's ports.
const MAX_PORTS: usize = 16;

/// The place of a collector's pods: `{"peer": {"namespaceSelector": {}, "podSelector": {}}, "ports": [4317]}`, or with
/// `{"ipBlock": {"cidr": "192.0.2.0/24"}}` as its peer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collector {
    peer: NetworkPolicyPeer,
    ports: Vec<u16>,
}

/// Why a text names no collector.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// It is not the JSON of a [`Collector`].
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Its peer selects nothing, or in two ways.
    #[error("the peer needs a namespaceSelector, a podSelector or both, or else an ipBlock")]
    Peer,
    /// It has no ports, too many, or port 0.
    #[error("name from 1 to {MAX_PORTS} ports, from 1 to 65535")]
    Ports,
}

/// Why agents send no traces to the operator's own collector.
#[derive(Debug, thiserror::Error)]
pub enum AgentTracesError {
    /// An endpoint contains a user name or password, which every user could read in the pods of their jobs.
    #[error("agents send no traces: the collector's address contains credentials, which jobs must not get")]
    Credentials,
    /// An endpoint uses https.
    #[error("agents send no traces: their pods have no certificates to verify an https collector")]
    Https,
}

impl FromStr for Collector {
    type Err = CollectorError;

    fn from_str(text: &str) -> Result<Self, CollectorError> {
        let collector: Self = serde_json::from_str(text)?;
        let Self { peer, ports } = &collector;
        let selects = peer.namespace_selector.is_some() || peer.pod_selector.is_some();
        if selects == peer.ip_block.is_some() {
            return Err(CollectorError::Peer);
        }
        if !(1..=MAX_PORTS).contains(&ports.len()) || ports.contains(&0) {
            return Err(CollectorError::Ports);
        }
        Ok(collector)
    }
}

/// The variables and the egress rule that agents need to send traces.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentTraces {
    variables: Vec<EnvVar>,
    egress: NetworkPolicyEgressRule,
}

fn variable(name: &str, value: String) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value), ..EnvVar::default() }
}

impl AgentTraces {
    /// Reads the variables for `collector` from the environment of this program.
    ///
    /// # Errors
    /// Agents must not get an endpoint, see [`AgentTracesError`].
    pub fn from_environment(
        collector: Collector,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, AgentTracesError> {
        let value = |name: &str| environment(name).filter(|value| !value.trim().is_empty());
        let variables: Vec<_> = FORWARDED_VARIABLES.into_iter().filter_map(|name| Some((name, value(name)?))).collect();
        if variables.iter().any(|(name, value)| name.ends_with("_ENDPOINT") && value.contains('@')) {
            return Err(AgentTracesError::Credentials);
        }
        if variables.iter().any(|(name, value)| name.ends_with("_ENDPOINT") && value.trim().starts_with("https:")) {
            return Err(AgentTracesError::Https);
        }
        let port = |port: u16| NetworkPolicyPort {
            protocol: Some("TCP".to_owned()),
            port: Some(IntOrString::Int(port.into())),
            ..NetworkPolicyPort::default()
        };
        Ok(Self {
            variables: variables.into_iter().map(|(name, value)| variable(name, value)).collect(),
            egress: NetworkPolicyEgressRule {
                to: Some(vec![collector.peer]),
                ports: Some(collector.ports.into_iter().map(port).collect()),
            },
        })
    }

    /// Makes the agent of `pod` send traces, as children of `parent`.
    pub fn set_environment(&self, pod: &mut Pod, parent: Option<&TraceParent>) {
        let parent = parent.map(|parent| variable(TraceParent::VARIABLE, parent.to_string()));
        for container in pod.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
            container.env.get_or_insert_default().extend(self.variables.iter().cloned().chain(parent.clone()));
        }
    }

    /// Allows the pods of `policy` to connect to the collector.
    pub fn open_egress(&self, policy: &mut NetworkPolicy) {
        if let Some(spec) = &mut policy.spec {
            spec.egress.get_or_insert_default().push(self.egress.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Container, PodSpec};
    use k8s_openapi::api::networking::v1::NetworkPolicySpec;
    use serde_json::json;

    fn collector() -> Collector {
        let peer = json!({"namespaceSelector": {"matchLabels": {"team": "monitoring"}}});
        json!({"peer": peer, "ports": [4317]}).to_string().parse().unwrap()
    }

    #[test]
    fn collector_url_has_host_and_port() {
        let cidr = json!({"ipBlock": {"cidr": "192.0.2.0/24"}});
        let policy = |peer: serde_json::Value, ports: serde_json::Value| {
            json!({"peer": peer, "ports": ports}).to_string().parse::<Collector>()
        };
        assert!(policy(cidr.clone(), json!([4317])).is_ok());
        let any_peer = json!({});
        let both = json!({"ipBlock": {"cidr": "192.0.2.0/24"}, "podSelector": {}});
        for (peer, ports) in [
            (any_peer, json!([4317])),
            (both, json!([4317])),
            (cidr.clone(), json!([])),
            (cidr.clone(), json!([0])),
            (cidr.clone(), json!([65536])),
            (cidr, json!(vec![1; MAX_PORTS + 1])),
        ] {
            assert!(policy(peer.clone(), ports.clone()).is_err(), "{peer} {ports}");
        }
    }

    #[test]
    fn agents_get_the_collector_and_no_secret() {
        let environment = |name: &str| {
            let value = match name {
                "OTEL_EXPORTER_OTLP_ENDPOINT" => "http://collector:4317",
                "OTEL_TRACES_SAMPLER_ARG" => "0.5",
                "OTEL_EXPORTER_OTLP_HEADERS" => "authorization=secret",
                "OTEL_SERVICE_NAME" => "millrace-operator",
                "OTEL_TRACES_SAMPLER" => " ",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let traces = AgentTraces::from_environment(collector(), environment).unwrap();
        let mut pod = Pod {
            spec: Some(PodSpec { containers: vec![Container::default()], ..PodSpec::default() }),
            ..Pod::default()
        };
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap();
        traces.set_environment(&mut pod, Some(&parent));
        let set = pod.spec.unwrap().containers[0].env.clone().unwrap();
        let set: Vec<_> = set.into_iter().map(|variable| (variable.name, variable.value.unwrap())).collect();
        let expected = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317".to_owned()),
            ("OTEL_TRACES_SAMPLER_ARG", "0.5".to_owned()),
            ("TRACEPARENT", parent.to_string()),
        ];
        assert_eq!(set, expected.map(|(name, value)| (name.to_owned(), value)));

        let mut policy = NetworkPolicy { spec: Some(NetworkPolicySpec::default()), ..NetworkPolicy::default() };
        traces.open_egress(&mut policy);
        let rules = serde_json::to_value(policy.spec.unwrap().egress).unwrap();
        let to = json!([{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]);
        assert_eq!(rules, json!([{"to": to, "ports": [{"protocol": "TCP", "port": 4317}]}]));

        let with_password = |name: &str| environment(name).map(|value| value.replace("collector", "a:b@collector"));
        assert!(AgentTraces::from_environment(collector(), with_password).is_err());
        let by_tls = |name: &str| environment(name).map(|value| value.replace("http:", "https:"));
        assert!(AgentTraces::from_environment(collector(), by_tls).is_err());
    }
}
