//! Preferences of pods for nodes. None is a requirement: a cluster may have a single node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, PodAffinity, PodAffinityTerm, PodAntiAffinity, WeightedPodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use millrace_cluster::names::{ChildNames, INDEX_LABEL, JOB_UID_LABEL, ROLE_LABEL};
use millrace_control::AttemptContext;
use millrace_crds::Role;
use millrace_params::shard_of_agent;

/// Prefers the node of the job's coordinator, if one runs, because storage may be mountable on one node at a time only.
pub fn near_coordinator(job_uid: &str) -> Affinity {
    let coordinator =
        [(JOB_UID_LABEL.to_owned(), job_uid.to_owned()), (ROLE_LABEL.to_owned(), Role::Coordinator.to_string())];
    Affinity {
        pod_affinity: Some(PodAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![same_node(coordinator.into(), None)]),
            ..PodAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// Prefers nodes without another replica of the same MemoryX shard: the loss of a node is to cost at most one. `None`
/// for other agents, and if the shards have one replica each.
pub fn apart_from_replicas(attempt: &AttemptContext<'_>, role: Role, index: u32) -> Option<Affinity> {
    let needs = attempt.needs;
    let agents = needs.wanted.iter().find(|(wanted, _)| *wanted == role).map_or(0, |(_, count)| *count);
    if role != Role::MemoryX {
        return None;
    }
    let shard = |index| shard_of_agent(index, needs.memoryx_shards);
    let is_replica = |other: &u32| *other != index && shard(*other) == shard(index);
    let replicas: Vec<String> = (0..agents).filter(is_replica).map(|other| other.to_string()).collect();
    if replicas.is_empty() {
        return None;
    }
    let mut labels = ChildNames::for_job(attempt.job).selector();
    labels.insert(ROLE_LABEL.to_owned(), role.to_string());
    let is_one_of =
        LabelSelectorRequirement { key: INDEX_LABEL.to_owned(), operator: "In".to_owned(), values: Some(replicas) };
    Some(Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![same_node(labels, Some(is_one_of))]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    })
}

/// Returns the preference for, or against, the nodes of pods with these labels.
fn same_node(labels: BTreeMap<String, String>, also: Option<LabelSelectorRequirement>) -> WeightedPodAffinityTerm {
    let selector = LabelSelector { match_labels: Some(labels), match_expressions: also.map(|also| vec![also]) };
    let pod_affinity_term = PodAffinityTerm {
        label_selector: Some(selector),
        topology_key: "kubernetes.io/hostname".to_owned(),
        ..PodAffinityTerm::default()
    };
    WeightedPodAffinityTerm { pod_affinity_term, weight: 100 }
}
