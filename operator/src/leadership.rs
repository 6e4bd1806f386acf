//! Runs one leadership: the controllers that run jobs, maintain the ledgers of appliances and serve readers of files,
//! from the election until the lease is lost or the process ends.
//!
//! A leadership has threads of its own. However it ends, all tasks that it started end with it, so that nothing is left
//! when the same process leads again.

use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::runtime::Controller;
use kube::runtime::events::{Recorder, Reporter};
use millrace_control::metrics::Metrics;
use millrace_control::watchdog::Watchdog;
use millrace_control::{Control, Parts, Streams, Workers};
use millrace_crds::{Appliance, TrainJob};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};

use crate::authority::Keeper;
use crate::cli::Args;
use crate::client::connect;
use crate::cluster::Cluster;
use crate::readers;
use crate::seed::Values;
use crate::serving::ServingCertificate;
use crate::site::Pods;
use crate::term::Term;
use crate::watch::{changes, children, keep};

/// Threads of a leadership, in addition to those of planning.
const THREADS: usize = 2;

/// Everything that a leadership needs.
pub struct Leadership {
    /// The operator's command line.
    pub args: Args,
    /// Reporter of events.
    pub reporter: Reporter,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Detects that this leadership is stuck.
    pub watchdog: Arc<Watchdog>,
    /// The term, after which nothing is written.
    pub term: Term,
    /// The fencing epoch, which every write of a status contains.
    pub epoch: u64,
}

impl Leadership {
    /// Leads until `ending` becomes true; running reconciles are then completed. Dropping the future ends everything.
    ///
    /// # Errors
    /// The certificate authority can't be read or created, the chart's values can't be read, the threads can't be
    /// started, or a task panicked.
    pub async fn run(self, ending: watch::Receiver<bool>) -> anyhow::Result<()> {
        let runtime = Builder::new_multi_thread().worker_threads(THREADS).thread_name("leader").enable_all().build();
        let runtime = runtime.context("can't start the threads of a leader")?;
        let control = runtime.spawn(self.control(ending));
        let _abandoned = Abandoned(Some(runtime));
        control.await.context("the control loop failed")?
    }

    async fn control(self, ending: watch::Receiver<bool>) -> anyhow::Result<()> {
        let Self { args, reporter, metrics, watchdog, term, epoch } = self;
        // The client must belong to these threads, so that the tasks of its connections end with them.
        let client = term.client(&connect().await?);
        let recorder = Recorder::new(client.clone(), reporter);
        let keeper =
            Keeper::load_or_make(&client, &args.namespace, &args.authority, &args.api_identity, metrics.clone());
        let keeper = keeper.await?;
        let keeper = Arc::new(keeper);
        tokio::spawn(keeper.clone().keep());
        if !args.api_hosts.is_empty() {
            let (secret, hosts) = (&args.api_certificate, &args.api_hosts);
            tokio::spawn(ServingCertificate::new(&client, &args.namespace, secret, hosts).keep());
        }
        let (jobs, changed_jobs) = keep::<TrainJob>(&client, recorder.clone());
        let (appliances, changed_appliances) = keep::<Appliance>(&client, recorder.clone());
        let reading = readers::run(
            client.clone(),
            recorder.clone(),
            keeper.clone(),
            appliances.clone(),
            args.image.clone(),
            ending.clone(),
        );
        let values = args.appliance.as_deref().map(Values::read).transpose()?;
        let world = Cluster::new(client.clone(), keeper, recorder, epoch, &args).with_values(values);
        let site = Arc::new(Pods { image: args.image });
        let (visits, wanted) = mpsc::unbounded_channel();
        let workers = Workers::for_this_machine();
        let world = Arc::new(world);
        let control = Control::new(Parts { world, site, jobs, appliances, metrics, watchdog, visits, workers });
        let streams = Streams {
            jobs: changed_jobs,
            appliances: changed_appliances,
            touched_jobs: changes(&client),
            touched_appliances: changes(&client),
            wanted,
        };
        let children = |jobs: Controller<TrainJob>| {
            jobs.owns_stream(children::<Pod>(&client)).owns_stream(children::<Service>(&client))
        };
        futures::join!(millrace_control::run(Arc::new(control), streams, ending, children), reading);
        Ok(())
    }
}

/// A runtime that is shut down without waiting when it is dropped: its tasks end at their next await.
struct Abandoned(Option<Runtime>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
