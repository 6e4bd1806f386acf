//! The life of an operator: it waits for the API server, becomes a candidate, leads, and becomes a candidate again when
//! it loses the lease.
//!
//! ```text
//!   prepare ──► candidate ──► leads ──► SIGTERM: the lease is released, and the process ends
//!                  ▲            │
//!                  └── 2 s ◄────┘ the lease is lost, or the API server rejects a request that a leader needs
//! ```
//!
//! An unreachable API server never ends the process: Kubernetes would restart it with a growing backoff, up to five
//! minutes after the API server is reachable again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::runtime::events::Reporter;
use kube::{Api, Client};
use millrace_cluster::client::{connect, wait_for_api_server};
use millrace_cluster::names::FIELD_MANAGER;
use millrace_control::metrics::Metrics;
use millrace_control::shutdown::{shutdown_signals, wait_for_shutdown};
use millrace_control::watchdog::Watchdog;
use millrace_crds::{Appliance, TrainJob};
use millrace_protocol::error_chain;
use millrace_telemetry::logs::server_layer;
use millrace_traces::Traces;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::level_filters::LevelFilter;

use crate::cli::OperatorArgs;
use crate::events::EventPublisher;
use crate::leader::Candidate;
use crate::leadership::Leadership;
use crate::{chart_appliance, http};

/// Delay before becoming a candidate again.
const ELECTION_RETRY_INTERVAL: Duration = Duration::from_secs(2);

enum LeadershipEnd {
    /// The process was requested to end.
    Shutdown,
    /// Another operator has the lease, or the lease could not be renewed in time.
    LeaseLost,
}

/// Runs until SIGTERM or Ctrl-C.
///
/// # Errors
/// There is no cluster configuration, the port is in use, signals can't be handled, or the API server rejects the
/// chart's Appliance.
pub async fn run(args: OperatorArgs) -> anyhow::Result<()> {
    let client = connect().await?;
    let metrics = Arc::new(Metrics::default().with_process());
    let ready = Arc::new(AtomicBool::new(false));
    let watchdog = Arc::new(Watchdog::default());
    let served = http::serve(&args.listen, metrics.clone(), watchdog.clone(), ready.clone()).await;
    served.context("can't serve metrics and probes")?;
    let shutdown = shutdown_signals().context("can't listen for signals")?;
    let reporter = Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(args.identity.clone()) };
    let events = EventPublisher::start(client.clone(), reporter);
    let operator = OperatorProcess { args, client, events, metrics, watchdog, ready };
    tokio::select! {
        prepared = operator.prepare() => prepared?,
        () = wait_for_shutdown(shutdown.clone()) => return Ok(()),
    }
    loop {
        let led = operator.lead_once(shutdown.clone()).await;
        operator.metrics.set_leader(false);
        operator.watchdog.clear();
        match led {
            Ok(LeadershipEnd::Shutdown) => break,
            Ok(LeadershipEnd::LeaseLost) => {
                tracing::warn!("lost leadership: another operator holds the lease, or it was not renewed in time")
            }
            Err(error) => {
                operator.ready.store(false, Ordering::Relaxed);
                tracing::error!("leader election failed, retrying: {}", error_chain(&*error));
            }
        }
        tokio::select! {
            () = sleep(ELECTION_RETRY_INTERVAL) => {}
            () = wait_for_shutdown(shutdown.clone()) => break,
        }
    }
    operator.events.flush().await;
    Ok(())
}

/// State that is kept between leaderships.
struct OperatorProcess {
    args: OperatorArgs,
    client: Client,
    /// Outlives leaderships.
    events: EventPublisher,
    metrics: Arc<Metrics>,
    watchdog: Arc<Watchdog>,
    ready: Arc<AtomicBool>,
}

impl OperatorProcess {
    /// Waits for the API server, and applies the Appliance of the chart's values.
    async fn prepare(&self) -> anyhow::Result<()> {
        wait_for_api_server(&self.client).await;
        if let Some(path) = &self.args.appliance {
            chart_appliance::apply(&self.client, path, &self.events).await?;
        }
        self.ready.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Waits for the lease, and leads until the lease is lost or `shutdown` becomes true.
    async fn lead_once(&self, shutdown: watch::Receiver<bool>) -> anyhow::Result<LeadershipEnd> {
        let OperatorArgs { namespace, lease, identity, .. } = &self.args;
        let candidate = Candidate::new(self.client.clone(), namespace, lease, identity);
        let (epoch, term) = tokio::select! {
            elected = candidate.elected() => elected,
            () = wait_for_shutdown(shutdown.clone()) => return Ok(LeadershipEnd::Shutdown),
        };
        // The term is renewed while all jobs are read, however many there are.
        let recorded = tokio::select! {
            biased;
            () = candidate.keep_leading(&term) => return Ok(LeadershipEnd::LeaseLost),
            recorded = highest_epoch(&self.client) => recorded.context("can't read the appliances and jobs")?,
        };
        let epoch = match recorded {
            recorded if recorded >= epoch => {
                candidate.raise_epoch(recorded + 1).await.context("can't write the lease")?
            }
            _ => epoch,
        };
        tracing::info!(epoch, "this operator is the leader, with fencing epoch {epoch}");
        self.metrics.set_leader(true);
        self.ready.store(true, Ordering::Relaxed);
        let leadership = Leadership {
            args: self.args.clone(),
            events: self.events.clone(),
            metrics: self.metrics.clone(),
            watchdog: self.watchdog.clone(),
            term: term.clone(),
            epoch,
        };
        let led = tokio::select! {
            biased;
            () = candidate.keep_leading(&term) => return Ok(LeadershipEnd::LeaseLost),
            led = leadership.run(shutdown) => led,
        };
        // Tasks that still run can't write any more; only after that may another operator lead.
        term.end_now();
        candidate.resign().await;
        led.map(|()| LeadershipEnd::Shutdown)
    }
}

/// Returns the highest epoch in the status of any appliance or job, readable or not; 0 if there is none.
async fn highest_epoch(client: &Client) -> Result<u64, kube::Error> {
    let mut highest = 0;
    for kind in [ApiResource::erase::<Appliance>(&()), ApiResource::erase::<TrainJob>(&())] {
        let objects = Api::<DynamicObject>::all_with(client.clone(), &kind).list(&ListParams::default()).await?;
        let epochs = objects.items.iter().filter_map(|object| object.data.pointer("/status/leaderEpoch")?.as_u64());
        highest = epochs.fold(highest, u64::max);
    }
    Ok(highest)
}

/// Logs to standard error, and exports traces if the environment names a collector. Messages of kube are logged only at
/// levels more verbose than `info`.
///
/// # Errors
/// The collector's address is invalid, or logging is already installed in this process.
pub fn log(args: &OperatorArgs) -> Result<Traces, millrace_traces::Error> {
    let is_own_target = |target: &str| !target.starts_with("kube");
    let filter: fn(&str) -> bool = if args.log > LevelFilter::INFO { |_| true } else { is_own_target };
    millrace_traces::install("millrace-operator", server_layer(args.log, args.log_format, filter))
}
