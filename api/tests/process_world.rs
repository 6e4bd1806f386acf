//! Checks the contract of `World` on the processes of this machine. The agents are this program, started again, so it
//! has a `main` of its own.

#[path = "../../operator/control/tests/conformance/mod.rs"]
mod conformance;

use std::process::ExitCode;
use std::sync::Arc;

use kube::ResourceExt;
use millrace_agents::role_process;
use millrace_api::process::{DataDirClaim, NewObject, ObjectStore, ProcessWorld, ServerDirectories};
use millrace_api::submission::SubmitResult;
use millrace_control::JobSite;
use millrace_crds::{Appliance, ApplianceSpec, TrainJob};
use millrace_store::{Store, StoreOptions};
use tokio::sync::mpsc;

struct ProcessFixture {
    world: ProcessWorld,
    objects: Arc<ObjectStore>,
    directories: ServerDirectories,
}

impl conformance::Fixture for ProcessFixture {
    type World = ProcessWorld;

    fn world(&self) -> &ProcessWorld {
        &self.world
    }

    fn site(&self) -> Arc<dyn JobSite> {
        Arc::new(self.directories.clone())
    }

    async fn create(&self, job: &TrainJob) -> TrainJob {
        let new = NewObject { submitter: "ann".to_owned(), key: None };
        match self.objects.create_job(serde_json::to_value(job).unwrap(), new).await.unwrap() {
            SubmitResult::New(job) | SubmitResult::Replayed(job) => *job,
        }
    }

    async fn newest(&self, job: &TrainJob) -> Option<TrainJob> {
        self.objects.job(&job.uid()?).await.unwrap()
    }

    async fn appliance(&self) -> Appliance {
        self.objects.appliance("default").await.unwrap().unwrap()
    }
}

async fn process_world_keeps_the_contract() {
    let place = tempfile::TempDir::new().unwrap();
    let data = place.path().canonicalize().unwrap();
    let directories = ServerDirectories { data: data.clone(), inputs: None, volumes: [].into() };
    let claim = DataDirClaim::acquire(&data, true).unwrap();
    directories.make().unwrap();
    let url = format!("sqlite:{}", data.join("test.db").display());
    let objects = Arc::new(ObjectStore::new(Store::open(&url, StoreOptions::default()).await.unwrap()));
    objects.ensure_appliance(Appliance::new("default", ApplianceSpec::default()), &claim).await.unwrap();
    let (reconcile_requests, _received) = mpsc::unbounded_channel();
    let world =
        ProcessWorld::new(objects.clone(), directories.clone(), None, None, None, reconcile_requests).await.unwrap();
    conformance::check_world(&ProcessFixture { world, objects, directories }).await;
}

fn main() -> ExitCode {
    if let Some(exit) = role_process() {
        return exit;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(process_world_keeps_the_contract());
    println!("test process_world_keeps_the_contract ... ok");
    ExitCode::SUCCESS
}
