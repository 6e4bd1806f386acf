//! Everything put together: watches, election, the two controllers, and a graceful end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::runtime::Controller;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Api, Client};
use millrace_control::metrics::Metrics;
use millrace_control::program::{self, end_signals};
use millrace_control::{Control, Parts, Streams, Workers};
use millrace_crds::{Appliance, TrainJob};
use tokio::sync::{mpsc, watch};

use crate::authority::Keeper;
use crate::children::MANAGER;
use crate::cli::Args;
use crate::cluster::Cluster;
use crate::leader::Candidate;
use crate::site::Pods;
use crate::watch::{changes, children, keep};
use crate::{http, readers, seed};

/// Why an operator ends that led.
const LOST: &str = "the leadership is lost: another operator has it, or the API server could not be reached in time";

/// Runs until SIGTERM or until the leadership is lost, whichever is first.
///
/// # Errors
/// The cluster can't be reached, or refuses what the operator must be allowed.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("can't find the cluster: run in a pod, or set KUBECONFIG")?;
    let metrics = Arc::new(Metrics::default());
    let ready = Arc::new(AtomicBool::new(false));
    http::serve(&args.listen, metrics.clone(), ready.clone()).await.context("can't serve metrics and probes")?;
    client.apiserver_version().await.context("the API server can't be reached")?;
    let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(args.identity.clone()) };
    if let Some(path) = &args.appliance {
        seed::apply(&client, path, &Recorder::new(client.clone(), reporter.clone())).await?;
    }
    ready.store(true, Ordering::Relaxed);

    let ending = end_signals().context("can't listen for signals")?;
    let candidate = Candidate::new(client.clone(), &args.namespace, &args.lease, &args.identity);
    let mut end = ending.clone();
    let (epoch, term) = tokio::select! {
        elected = candidate.elected() => elected,
        _ = end.wait_for(|ended| *ended) => return Ok(()),
    };
    // The term goes on while all jobs are read, however many they are.
    let seen = tokio::select! {
        biased;
        () = candidate.lead(&term) => anyhow::bail!(LOST),
        seen = highest_epoch(&client) => seen.context("the appliances and jobs can't be read")?,
    };
    let epoch = match seen {
        seen if seen >= epoch => candidate.raise(seen + 1).await.context("the lease can't be written")?,
        _ => epoch,
    };
    log::info!("this operator leads, with fencing epoch {epoch}");
    metrics.set_leads(true);
    let fenced = term.client(&client);
    let recorder = Recorder::new(fenced.clone(), reporter);
    let leading = lead(fenced, recorder, args, epoch, metrics, ending);
    let lost = tokio::select! {
        biased;
        () = candidate.lead(&term) => true,
        led = leading => { led?; false }
    };
    // Whatever still runs changes nothing any more; only then may another lead.
    term.end();
    if lost {
        anyhow::bail!(LOST);
    }
    candidate.resign().await;
    Ok(())
}

/// The highest epoch that stands in a status, whatever else the object says.
async fn highest_epoch(client: &Client) -> Result<u64, kube::Error> {
    let mut highest = 0;
    for kind in [ApiResource::erase::<Appliance>(&()), ApiResource::erase::<TrainJob>(&())] {
        let objects = Api::<DynamicObject>::all_with(client.clone(), &kind).list(&ListParams::default()).await?;
        let epochs = objects.items.iter().filter_map(|object| object.data.pointer("/status/leaderEpoch")?.as_u64());
        highest = epochs.fold(highest, u64::max);
    }
    Ok(highest)
}

/// What the leader does, until it is told to end.
async fn lead(
    client: Client,
    recorder: Recorder,
    args: Args,
    epoch: u64,
    metrics: Arc<Metrics>,
    ending: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let keeper = Keeper::load_or_make(&client, &args.namespace, &args.authority, &args.api_identity).await?;
    let keeper = Arc::new(keeper);
    let renewing = tokio::spawn(keeper.clone().keep());
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
    let world = Cluster::new(client.clone(), keeper, recorder, epoch, args.rest_server);
    let site = Arc::new(Pods { image: args.image });
    let (visits, wanted) = mpsc::unbounded_channel();
    let workers = Workers::for_this_machine();
    let control = Control::new(Parts { world: Arc::new(world), site, jobs, appliances, metrics, visits, workers });
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
    renewing.abort();
    Ok(())
}

/// Logs to standard error. What kube tells is for those who ask for more than usual.
pub fn log_to_stderr(level: log::LevelFilter) {
    program::log_to_stderr(level, |metadata| {
        log::max_level() > log::LevelFilter::Info || !metadata.target().starts_with("kube")
    });
}
