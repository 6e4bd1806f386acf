//! The coordinator's service: the address that all other agents and the operator connect to.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use millrace_cluster::address::ports;
use millrace_cluster::names::{ChildNames, ROLE_LABEL};
use millrace_control::AttemptContext;
use millrace_crds::Role;

use super::meta;

pub fn service(attempt: &AttemptContext<'_>) -> Service {
    let names = ChildNames::for_job(attempt.job);
    let mut selector = names.selector();
    selector.insert(ROLE_LABEL.to_owned(), Role::Coordinator.to_string());
    let port = |name: &str, port: u16| ServicePort {
        name: Some(name.to_owned()),
        port: port.into(),
        target_port: Some(IntOrString::Int(port.into())),
        ..ServicePort::default()
    };
    Service {
        metadata: meta(attempt, names.coordinator()),
        spec: Some(ServiceSpec {
            selector: Some(selector),
            ports: Some(vec![port("control", ports::CONTROL_PORT), port("journal", ports::JOURNAL_PORT)]),
            // Agents join before the coordinator is ready: it becomes ready when they have joined.
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}
