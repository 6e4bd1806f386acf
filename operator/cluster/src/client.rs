//! The connection to the API server.
//!
//! A connection whose packets a firewall drops never reports an error. Therefore every wait on it has a timeout;
//! otherwise a single lost answer would stop a controller until its process restarts.

use std::time::Duration;

use anyhow::Context as _;
use http::{Request, Response};
use kube::client::Body;
use kube::{Client, Config};
use tokio::time::{Instant, sleep, timeout};

/// Bounds the time until an answer begins.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bounds the time without a byte from the API server. It sends a bookmark to each watch every minute, and a pooled
/// connection may be idle for 90 s before its next request: the bound is longer than both.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// Delay between attempts to reach the API server.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of log lines about an unreachable API server.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Error for an answer that did not begin in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server has not responded for {} s", RESPONSE_TIMEOUT.as_secs())]
pub struct RequestTimeout;

/// Connects to the cluster of the pod, or of KUBECONFIG.
///
/// # Errors
/// There is no cluster configuration, or it is invalid.
pub async fn connect() -> anyhow::Result<Client> {
    let mut config = Config::infer().await.context("can't find the cluster: run in a pod, or set KUBECONFIG")?;
    config.read_timeout = Some(READ_TIMEOUT);
    let client = Client::try_from(config).context("can't use the configuration of the cluster")?;
    Ok(with_timeout(client))
}

/// Waits until the API server answers. Logs the first failure, then one a minute.
pub async fn wait_for_api_server(client: &Client) {
    let mut logged: Option<Instant> = None;
    while let Err(error) = client.apiserver_version().await {
        if logged.is_none_or(|logged_at| logged_at.elapsed() >= LOG_INTERVAL) {
            tracing::warn!("can't reach the API server, retrying every 2 s: {}", api_message(&error));
            logged = Some(Instant::now());
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Returns the API server's own message; kube's `Display` adds the whole answer.
pub fn api_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Returns a client whose requests fail with [`RequestTimeout`] instead of waiting without a bound.
fn with_timeout(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    Client::new(tower::service_fn(move |request| send(client.clone(), request)), namespace)
}

async fn send(client: Client, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
    let response = timeout(RESPONSE_TIMEOUT, client.send(request)).await;
    response.unwrap_or_else(|_| Err(kube::Error::Service(Box::new(RequestTimeout))))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;

    #[tokio::test(start_paused = true)]
    async fn connect_waits_for_the_api_server() {
        let attempts = Arc::new(AtomicUsize::new(0));
        let counted = attempts.clone();
        let unavailable_twice = move |_: Request<Body>| {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            let version = r#"{"major":"1","minor":"35","gitVersion":"","gitCommit":"","gitTreeState":"","buildDate":"",
                "goVersion":"","compiler":"","platform":""}"#;
            let response = match number {
                0 | 1 => Err(kube::Error::Service("connection refused".into())),
                _ => Ok(Response::new(Body::from(version.as_bytes().to_vec()))),
            };
            std::future::ready(response)
        };
        wait_for_api_server(&Client::new(tower::service_fn(unavailable_twice), "default")).await;
        assert_eq!(attempts.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn request_times_out() {
        let unresponsive = |_: Request<Body>| std::future::pending::<Result<Response<Body>, kube::Error>>();
        let pods: Api<Pod> =
            Api::default_namespaced(with_timeout(Client::new(tower::service_fn(unresponsive), "default")));
        let began = Instant::now();
        let result = pods.get("a").await;
        assert!(matches!(result, Err(kube::Error::Service(error)) if error.is::<RequestTimeout>()));
        assert_eq!(began.elapsed(), RESPONSE_TIMEOUT);
    }
}
