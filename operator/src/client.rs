//! The connection to the API server.
//!
//! A connection whose packets are dropped by a firewall never reports an error, so every wait on it has a limit: without
//! one, a single lost answer would stop a controller until its process is restarted.

use std::time::Duration;

use anyhow::Context as _;
use http::{Request, Response};
use kube::client::Body;
use kube::{Client, Config};
use tokio::time::timeout;

/// Longest wait for an answer to begin.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time without a byte from the API server. It sends a bookmark to each watch every minute, and a pooled
/// connection may be idle for 90 s before its next request: the limit is longer than both.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// An answer that did not begin in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server has not answered for {} s", ANSWER_TIMEOUT.as_secs())]
pub struct NoAnswer;

/// Connects to the cluster of the pod, or of KUBECONFIG.
///
/// # Errors
/// There is no configuration of a cluster, or it can't be used.
pub async fn connect() -> anyhow::Result<Client> {
    let mut config = Config::infer().await.context("can't find the cluster: run in a pod, or set KUBECONFIG")?;
    config.read_timeout = Some(READ_TIMEOUT);
    let client = Client::try_from(config).context("the configuration of the cluster can't be used")?;
    Ok(limited(client))
}

/// A client whose requests fail with [`NoAnswer`] instead of waiting for ever.
fn limited(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    Client::new(tower::service_fn(move |request| send(client.clone(), request)), namespace)
}

async fn send(client: Client, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
    let answer = timeout(ANSWER_TIMEOUT, client.send(request)).await;
    answer.unwrap_or_else(|_| Err(kube::Error::Service(Box::new(NoAnswer))))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_never_comes_is_given_up() {
        let silent = |_: Request<Body>| std::future::pending::<Result<Response<Body>, kube::Error>>();
        let pods: Api<Pod> = Api::default_namespaced(limited(Client::new(tower::service_fn(silent), "default")));
        let began = Instant::now();
        let answer = pods.get("a").await;
        assert!(matches!(answer, Err(kube::Error::Service(error)) if error.is::<NoAnswer>()));
        assert_eq!(began.elapsed(), ANSWER_TIMEOUT);
    }
}
