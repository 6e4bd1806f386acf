//! The connection to the API server.
//!
//! A connection whose packets are lost without a word is silent for ever, so every wait on it has a limit: without one, a
//! single lost answer would stop a controller until the process is restarted.

use std::time::Duration;

use anyhow::Context as _;
use kube::{Client, Config};

/// Longest silence on a connection. The API server writes to a watch every minute, and a connection may be idle for 90 s
/// before its next request: both count.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// Connects to the cluster of the pod, or of KUBECONFIG.
///
/// # Errors
/// There is no configuration of a cluster, or it can't be used.
pub async fn connect() -> anyhow::Result<Client> {
    let mut config = Config::infer().await.context("can't find the cluster: run in a pod, or set KUBECONFIG")?;
    config.read_timeout = Some(READ_TIMEOUT);
    Client::try_from(config).context("the configuration of the cluster can't be used")
}
