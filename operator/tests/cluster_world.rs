//! Checks the contract of `World` on a real API server without nodes, with the operator's rights of the chart. Run by
//! `tests/run operator`. No operator may run there.

#[path = "../control/tests/conformance/mod.rs"]
mod conformance;
mod service_account;

use std::sync::Arc;

use clap::Parser;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::KubeConfigOptions;
use kube::runtime::events::Reporter;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Config, ResourceExt};
use millrace_cluster::pod_site::PodSite;
use millrace_control::JobSite;
use millrace_control::metrics::Metrics;
use millrace_crds::{Appliance, ApplianceSpec, TrainJob, definitions, internal_definitions};
use millrace_operator::authority::CertificateManager;
use millrace_operator::cli::OperatorArgs;
use millrace_operator::events::EventPublisher;
use millrace_operator::world::ClusterWorld;

const IMAGE: &str = "localhost/millrace:test";

struct ClusterFixture {
    /// Has the operator's rights.
    world: ClusterWorld,
    /// Has all rights.
    client: Client,
}

impl ClusterFixture {
    fn jobs(&self, job: &TrainJob) -> Api<TrainJob> {
        Api::namespaced(self.client.clone(), &job.namespace().unwrap())
    }
}

impl conformance::Fixture for ClusterFixture {
    type World = ClusterWorld;

    fn world(&self) -> &ClusterWorld {
        &self.world
    }

    fn site(&self) -> Arc<dyn JobSite> {
        Arc::new(PodSite::without_uploads(IMAGE.to_owned()))
    }

    async fn create(&self, job: &TrainJob) -> TrainJob {
        self.jobs(job).create(&PostParams::default(), job).await.unwrap()
    }

    async fn newest(&self, job: &TrainJob) -> Option<TrainJob> {
        let found = self.jobs(job).get_opt(&job.name_any()).await.unwrap();
        found.filter(|found| found.uid() == job.uid())
    }

    async fn appliance(&self) -> Appliance {
        Api::all(self.client.clone()).get("conformance").await.unwrap()
    }
}

async fn install(client: &Client) {
    let all = Api::<CustomResourceDefinition>::all(client.clone());
    for definition in definitions().into_iter().chain(internal_definitions()) {
        let name = definition.name_any();
        let params = PatchParams::apply("conformance").force();
        all.patch(&name, &params, &Patch::Apply(&definition)).await.unwrap();
        await_condition(all.clone(), &name, conditions::is_crd_established()).await.unwrap();
    }
    for name in [service_account::NAMESPACE, "conformance"] {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        let params = PatchParams::apply("conformance");
        Api::<Namespace>::all(client.clone()).patch(name, &params, &Patch::Apply(&namespace)).await.unwrap();
    }
    let appliance = Appliance::new("conformance", ApplianceSpec::default());
    Api::all(client.clone()).create(&PostParams::default(), &appliance).await.unwrap();
}

#[tokio::test]
#[ignore = "needs an API server"]
async fn cluster_world_keeps_the_contract() {
    let client = Client::try_default().await.unwrap();
    install(&client).await;
    let context = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(service_account::create(), &context).await.unwrap();
    let operator = Client::try_from(config).unwrap();
    let args = OperatorArgs::parse_from(["operator", "--namespace", service_account::NAMESPACE, "--image", IMAGE]);
    let metrics = Arc::new(Metrics::default());
    let (authority, identity) = (&args.authority, &args.api_identity);
    let keeper = CertificateManager::load_or_create(&operator, &args.namespace, authority, identity, metrics).await;
    let events = EventPublisher::start(operator.clone(), Reporter::from("conformance"));
    let world = ClusterWorld::new(operator, Arc::new(keeper.unwrap()), events.clone(), 1, &args);
    conformance::check_world(&ClusterFixture { world, client }).await;
    events.flush().await;
}
