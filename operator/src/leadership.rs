//! Runs one leadership: the controllers that run jobs, maintain the ledgers of appliances and serve readers of files,
//! from the election until the lease is lost or the process ends.
//!
//! A leadership has threads of its own. However it ends, all tasks that it started end with it, so that nothing is left
//! when the same process leads again.

use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::runtime::Controller;
use millrace_cluster::client::connect;
use millrace_cluster::pod_site::{GraphDocuments, PodSite};
use millrace_control::metrics::Metrics;
use millrace_control::watchdog::Watchdog;
use millrace_control::{ContextParts, ControllerContext, WatchStreams, WorkerPool};
use millrace_crds::{Appliance, TrainJob};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};

use crate::authority::CertificateManager;
use crate::chart_appliance::ChartAppliance;
use crate::cli::OperatorArgs;
use crate::events::EventPublisher;
use crate::graph_documents::RemoteDocuments;
use crate::readers;
use crate::serving_certificate::ServingCertificate;
use crate::term::LeaderTerm;
use crate::watch::{changes, children, store_of};
use crate::world::ClusterWorld;

/// Threads of a leadership, in addition to those of planning.
const LEADER_THREADS: usize = 2;

/// Everything that a leadership needs.
pub struct Leadership {
    pub args: OperatorArgs,
    pub events: EventPublisher,
    pub metrics: Arc<Metrics>,
    /// Detects that this leadership is stuck.
    pub watchdog: Arc<Watchdog>,
    /// The term, after which nothing is written.
    pub term: LeaderTerm,
    /// The fencing epoch, which every write of a status contains.
    pub epoch: u64,
}

impl Leadership {
    /// Leads until `shutdown` becomes true; running reconciles are then completed. Dropping the future ends everything.
    ///
    /// # Errors
    /// The certificate authority can't be read or created, the chart's values can't be read, the threads can't be
    /// started, or a task panicked.
    pub async fn run(self, shutdown: watch::Receiver<bool>) -> anyhow::Result<()> {
        let runtime =
            Builder::new_multi_thread().worker_threads(LEADER_THREADS).thread_name("leader").enable_all().build();
        let runtime = runtime.context("can't start the threads of a leader")?;
        let control = runtime.spawn(self.control(shutdown));
        let _abandoned = BackgroundRuntime(Some(runtime));
        control.await.context("the control loop failed")?
    }

    async fn control(self, shutdown: watch::Receiver<bool>) -> anyhow::Result<()> {
        let Self { args, events, metrics, watchdog, term, epoch } = self;
        // The client must belong to these threads, so that the tasks of its connections end with them.
        let client = term.client(&connect().await?);
        let certificates = CertificateManager::load_or_create(
            &client,
            &args.namespace,
            &args.authority,
            &args.api_identity,
            metrics.clone(),
        );
        let certificates = certificates.await?;
        let certificates = Arc::new(certificates);
        tokio::spawn(certificates.clone().run_renewal());
        if !args.api_hosts.is_empty() {
            let (secret, hosts) = (&args.api_certificate, &args.api_hosts);
            tokio::spawn(ServingCertificate::new(&client, &args.namespace, secret, hosts).run_renewal());
        }
        let (jobs, changed_jobs) = store_of::<TrainJob>(&client, events.clone());
        let (appliances, changed_appliances) = store_of::<Appliance>(&client, events.clone());
        let reading = readers::run(
            client.clone(),
            events.clone(),
            certificates.clone(),
            appliances.clone(),
            args.image.clone(),
            shutdown.clone(),
        );
        let values = args.appliance.as_deref().map(ChartAppliance::read).transpose()?;
        let documents = args.upload_server().map(|server| {
            Arc::new(RemoteDocuments::new(server.address, certificates.clone())) as Arc<dyn GraphDocuments>
        });
        let world = ClusterWorld::new(client.clone(), certificates, events, epoch, &args).with_values(values);
        let site = Arc::new(PodSite { image: args.image, documents });
        let (reconcile_requests, received_requests) = mpsc::unbounded_channel();
        let workers = WorkerPool::for_this_machine();
        let world = Arc::new(world);
        let control = ControllerContext::new(ContextParts {
            world,
            site,
            jobs,
            appliances,
            metrics,
            watchdog,
            reconcile_requests,
            workers,
        });
        let streams = WatchStreams {
            jobs: changed_jobs,
            appliances: changed_appliances,
            touched_jobs: changes(&client),
            touched_appliances: changes(&client),
            reconcile_requests: received_requests,
        };
        let children = |jobs: Controller<TrainJob>| {
            jobs.owns_stream(children::<Pod>(&client)).owns_stream(children::<Service>(&client))
        };
        futures::join!(millrace_control::run(Arc::new(control), streams, shutdown, children), reading);
        Ok(())
    }
}

/// A runtime that is shut down without waiting when it is dropped: its tasks end at their next await.
struct BackgroundRuntime(Option<Runtime>);

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
