//! `millrace-api serve`: starts database, backend and routes, and stops them in order.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use axum_server::{Handle, Server};
use hyper_util::rt::TokioTimer;
use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use millrace_bucket::BucketAddress;
use millrace_control::WorkerPool;
use millrace_control::shutdown::{shutdown_signals, wait_for_shutdown};
use millrace_crds::{Appliance, ApplianceSpec};
use millrace_params::{MachineDocument, MachineSpec, ObjectName};
use millrace_protocol::error_chain;
use millrace_store::{NewEvent, Store};
use millrace_telemetry::logs::{LogFormat, server_layer};
use millrace_traces::Traces;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tracing::level_filters::LevelFilter;

use crate::admission::AdmissionSchema;
use crate::backend::Backend;
use crate::blobs::bucket;
use crate::blobs::{BlobFetcher, BlobStore, DEFAULT_MAX_BLOB_BYTES};
use crate::compute::ComputePool;
use crate::database_args::DatabaseArgs;
use crate::error::ApiError;
use crate::files::{DEFAULT_MAX_EXPORT_BYTES, DEFAULT_MAX_GENERATION_BYTES};
use crate::kubernetes::{self, BlobSettings, KubernetesAuthorizer, KubernetesBackend};
use crate::metrics::ServerMetrics;
use crate::process::{
    BucketModelDirs, ProcessBackend, ProcessSettings, ServerDirectories, ServerVolume, VOLUME_SYNTAX, all_volumes,
    parse_volume,
};
use crate::rest::{
    AppState, AuthMode, RequestLimiter, TrustedProxies, delete_expired_sessions, metrics_router, router,
};
use crate::self_signed::SelfIssuedCertificate;
use crate::tls::{self, CertificateFiles};

/// Time to receive the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for running requests to end after the shutdown began.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of deleting old history.
const RETENTION_INTERVAL: Duration = Duration::from_secs(600);
/// Systems of the default appliance: as many jobs as one computer can run.
const DEFAULT_SYSTEMS: u64 = 8;

/// Backend that runs jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BackendKind {
    /// On this machine: each agent is a process
    Process,
    /// On the cluster of this server or of KUBECONFIG: each agent is a pod
    Kubernetes,
}

/// Flags of `serve`.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    /// Backend that runs jobs
    #[arg(long, value_enum, env = "MILLRACE_BACKEND", default_value = "process")]
    backend: BackendKind,
    /// Address to listen on
    #[arg(
        long, env = "MILLRACE_LISTEN", value_name = "HOST:PORT", default_value = "127.0.0.1:8080",
        value_parser = parse_address
    )]
    listen: SocketAddr,
    /// Address on which to serve /metrics for Prometheus, without TLS and authentication; not served if omitted
    #[arg(long, env = "MILLRACE_METRICS_LISTEN", value_name = "HOST:PORT", value_parser = parse_address)]
    metrics_listen: Option<SocketAddr>,
    /// Require a token even for requests from this machine
    #[arg(long)]
    require_token: bool,
    /// Certificate for HTTPS, in PEM
    #[arg(long, requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Name in a self-signed certificate for HTTPS, which is stored in the data directory; may be repeated
    #[arg(long = "tls-self-signed-name", alias = "tls-self-made", value_name = "NAME", conflicts_with = "tls_cert")]
    tls_names: Vec<String>,
    /// Proxy, or network of proxies, whose X-Forwarded-For or Forwarded is trusted; may be repeated
    #[arg(long = "trusted-proxy", env = "MILLRACE_TRUSTED_PROXIES", value_name = "CIDR", value_delimiter = ',', value_parser = parse_network)]
    trusted_proxies: Vec<IpNet>,
    /// YAML file with the spec of the Appliance; a default machine if omitted
    #[arg(long)]
    appliance: Option<PathBuf>,
    /// Days after which the history of finished jobs and expired API tokens are deleted; files of jobs are kept
    #[arg(long, alias = "keep-days", default_value_t = 365)]
    retention_days: u32,
    /// Approximate maximum bytes of the logs and curves of all jobs; those of finished jobs are deleted first, the
    /// oldest before others
    #[arg(long, alias = "keep-bytes", value_name = "BYTES", default_value_t = 4 << 30)]
    max_history_bytes: u64,
    /// Maximum total bytes of checkpoints exported for downloads; not used on Kubernetes, where file readers store them
    #[arg(long, alias = "export-bytes", value_name = "BYTES", default_value_t = DEFAULT_MAX_EXPORT_BYTES)]
    max_export_bytes: u64,
    /// Maximum memory for generating a text, in bytes; not used on Kubernetes, where file readers generate texts
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MAX_GENERATION_BYTES)]
    max_generation_bytes: u64,
    /// Maximum bytes of the uploads of a namespace
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MAX_BLOB_BYTES)]
    max_blob_bytes: u64,
    /// Bucket for uploads, with the settings and credentials of the environment (AWS_*); they are stored in the data
    /// directory if omitted
    #[arg(long, env = "MILLRACE_BLOB_STORE", value_name = "s3://BUCKET/PREFIX")]
    blob_store: Option<BucketAddress>,
    /// Bucket in which the model_dirs of jobs are stored, except those on volumes, with the settings of the environment
    /// (AWS_*); agents work in copies in the data directory; rejected on Kubernetes
    #[arg(long, env = "MILLRACE_MODEL_DIR_STORE", value_name = "s3://BUCKET/PREFIX")]
    model_dir_store: Option<BucketAddress>,
    /// Interpreter that reads Python datasets of jobs, with the rights of this server's user. If omitted, it is that of
    /// the client, and only this server's user may submit such jobs, without a token
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Directory of relative data paths in params, readable by every job; relative paths are rejected if omitted
    #[arg(long, alias = "inputs", value_name = "DIR")]
    input_dir: Option<PathBuf>,
    /// Directory that jobs can mount; `ro` makes it read-only, names of namespaces limit it to their jobs; may be
    /// repeated
    #[arg(long = "volume", value_name = VOLUME_SYNTAX, value_parser = parse_volume)]
    volumes: Vec<(ObjectName, ServerVolume)>,
    /// On Kubernetes: namespace of this server and of the operator
    #[arg(long, env = "POD_NAMESPACE", default_value = "millrace-system")]
    namespace: String,
    /// On Kubernetes: image of file readers, which must be this server's own
    #[arg(long, env = "MILLRACE_IMAGE", default_value = "")]
    image: String,
    /// On Kubernetes: Secret with this server's identity, which the operator writes
    #[arg(long, default_value = "millrace-api-identity")]
    identity: String,
    /// On Kubernetes: address on which uploads are served to the pods of jobs, from the data directory, which must be
    /// on a claim, or from the bucket; uploads are rejected if omitted
    #[arg(long, env = "MILLRACE_UPLOADS_LISTEN", value_name = "HOST:PORT", value_parser = parse_address)]
    uploads_listen: Option<SocketAddr>,
    /// Level of the log: error, warn, info, debug or trace
    #[arg(long, env = "MILLRACE_LOG", default_value = "info")]
    log: LevelFilter,
    /// Format of the log: text or json
    #[arg(long, env = LogFormat::LOG_FORMAT_ENV, default_value_t)]
    log_format: LogFormat,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Parses an address to listen on, such as `127.0.0.1:8080`, or `localhost:8080`. Of the addresses of a host name the
/// first of version 4 is preferred.
fn parse_address(text: &str) -> Result<SocketAddr, InvalidAddress> {
    let resolved = text.to_socket_addrs().map_err(|source| InvalidAddress { text: text.to_owned(), source })?;
    let addresses: Vec<SocketAddr> = resolved.collect();
    let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    first.copied().ok_or_else(|| InvalidAddress { text: text.to_owned(), source: ErrorKind::NotFound.into() })
}

/// The text is not an address to listen on.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not an address, {source}: write HOST:PORT, such as 127.0.0.1:8080")]
struct InvalidAddress {
    text: String,
    source: std::io::Error,
}

/// Parses a network such as `10.0.0.0/8`, or a single address.
fn parse_network(text: &str) -> Result<IpNet, InvalidNetwork> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| address()).map_err(|_| InvalidNetwork(text.to_owned()))
}

/// The text is neither a network nor an address.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a network: write it as 10.0.0.0/8 or fd00::/8")]
struct InvalidNetwork(String);

/// Logs messages of our own crates to standard error, and exports traces if the environment names a collector.
///
/// # Errors
/// The collector's address is invalid, or logging is already installed in this process.
pub fn install_logging(level: LevelFilter, format: LogFormat) -> Result<Traces, millrace_traces::Error> {
    let is_own = |target: &str| target.starts_with("millrace");
    millrace_traces::install("millrace-api", server_layer(level, format, is_own))
}

/// Serves until a signal to shut down.
///
/// # Errors
/// The server can't start.
pub async fn run(args: ServeArgs) -> anyhow::Result<()> {
    let _traces = install_logging(args.log, args.log_format)?;
    let shutdown = shutdown_signals().context("can't listen for signals")?;
    let certificate = certificate_files(&args)?;
    let listeners = bind(&args, certificate.is_some())?;
    let store = args.database.open().await?;
    let compute = ComputePool::new(WorkerPool::for_this_machine());
    let (backend, access) = tokio::select! {
        started = start_backend(&args, &store, &compute) => started?,
        // Starting may wait for a cluster. The shutdown kills the jobs that the process backend has already started.
        () = wait_for_shutdown(shutdown.clone()) => return Ok(()),
    };
    let limits = RetentionLimits { days: args.retention_days, bytes: args.max_history_bytes };
    let retention = tokio::spawn(run_retention(backend.clone(), store.clone(), limits));
    let api = AppState {
        backend: backend.clone(),
        store: store.clone(),
        access,
        pace: RequestLimiter::default(),
        port: listeners.api.local_addr()?.port(),
        proxies: TrustedProxies::new(args.trusted_proxies.clone()),
        compute,
        traffic: ServerMetrics::new(certificate.as_ref().map(|files| files.certificate.clone())),
    };
    let server = serve(listeners, certificate, Arc::new(api))?;
    wait_for_shutdown(shutdown).await;
    retention.abort();
    shut_down(server, &*backend, &store).await;
    Ok(())
}

/// The sockets of the server.
struct Listeners {
    api: std::net::TcpListener,
    metrics: Option<std::net::TcpListener>,
}

/// Listens on the addresses of `args`. An address that other machines can reach needs HTTPS.
fn bind(args: &ServeArgs, is_secure: bool) -> anyhow::Result<Listeners> {
    if !args.listen.ip().is_loopback() && !is_secure {
        anyhow::bail!(
            "listening on {} would send tokens and weights in the clear: give --tls-cert and --tls-key, or \
             --tls-self-signed-name NAME, or listen on 127.0.0.1",
            args.listen
        );
    }
    let api = listen(args.listen, "--listen")?;
    let metrics = args.metrics_listen.map(|address| listen(address, "--metrics-listen")).transpose()?;
    Ok(Listeners { api, metrics })
}

async fn start_backend(
    args: &ServeArgs,
    store: &Store,
    compute: &ComputePool,
) -> anyhow::Result<(Arc<dyn Backend>, AuthMode)> {
    match args.backend {
        BackendKind::Process => start_process_backend(args, store, compute).await,
        BackendKind::Kubernetes => start_kubernetes_backend(args, store, compute).await,
    }
}

/// The task that serves the API.
struct RunningServer {
    handle: Handle<SocketAddr>,
    serving: JoinHandle<std::io::Result<()>>,
}

/// Serves the API and its metrics, and prints their addresses.
fn serve(
    listeners: Listeners,
    certificate: Option<CertificateFiles>,
    api: Arc<AppState>,
) -> anyhow::Result<RunningServer> {
    let metrics = listeners.metrics.map(|listener| serve_metrics(listener, &api)).transpose()?;
    let address = listeners.api.local_addr()?;
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let handle = Handle::new();
    let routes = router(api).into_make_service_with_connect_info::<SocketAddr>();
    let serving = match certificate {
        None => {
            let server = build_server(axum_server::from_tcp(listeners.api)?, &handle);
            tokio::spawn(server.serve(routes))
        }
        Some(files) => {
            let server = axum_server::from_tcp_rustls(listeners.api, tls::reloading_config(files)?)?;
            tokio::spawn(build_server(server, &handle).serve(routes))
        }
    };
    // The first line of the output is for scripts: port 0 selects a free port.
    println!("listening on {scheme}://{address}");
    if let Some(metrics) = metrics {
        println!("metrics on http://{metrics}/metrics");
    }
    Ok(RunningServer { handle, serving })
}

/// Stops accepting requests, then shuts down the backend, and closes the database when the running requests have ended,
/// or after [`DRAIN_TIMEOUT`].
async fn shut_down(server: RunningServer, backend: &dyn Backend, store: &Store) {
    server.handle.graceful_shutdown(None);
    backend.shut_down().await;
    // Live streams do not end by themselves.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, server.serving).await;
    store.close().await;
}

/// Listens on the address of option `option`.
fn listen(address: SocketAddr, option: &str) -> anyhow::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address);
    let listener = listener
        .map_err(|error| anyhow::anyhow!("can't listen on {address}: {error}; choose another address with {option}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves metrics as long as the process lives; returns the address.
fn serve_metrics(listener: std::net::TcpListener, api: &Arc<AppState>) -> anyhow::Result<SocketAddr> {
    let address = listener.local_addr()?;
    let server = build_server(axum_server::from_tcp(listener)?, &Handle::new());
    let serving = server.serve(metrics_router(api.clone()).into_make_service());
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!("metrics are no longer served: {error}");
        }
    });
    Ok(address)
}

/// Configures a server that is stopped by `handle` and closes connections that are slow to send the head of a request.
fn build_server<A>(server: Server<SocketAddr, A>, handle: &Handle<SocketAddr>) -> Server<SocketAddr, A> {
    let mut server = server.http1_only().handle(handle.clone());
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    server
}

/// Starts the process backend. On a loopback address it needs no token unless one is required.
async fn start_process_backend(
    args: &ServeArgs,
    store: &Store,
    compute: &ComputePool,
) -> anyhow::Result<(Arc<dyn Backend>, AuthMode)> {
    // Real paths, so that no directory can be reached through another one by a link.
    let real = |path: &Path| {
        let real = path.canonicalize().with_context(|| format!("can't use the directory {}", path.display()))?;
        anyhow::ensure!(real.is_dir(), "{} is not a directory", path.display());
        Ok(real)
    };
    let directories = ServerDirectories {
        data: real(&args.database.data)?,
        inputs: args.input_dir.as_deref().map(real).transpose().context("--input-dir")?,
        volumes: all_volumes(&args.volumes)?,
    };
    directories.make()?;
    millrace_roots::restrict_process(directories.roots()).context("can't use a directory of the server")?;
    let blobs = blob_store(args, directories.blobs()).await?;
    let fetcher = args.blob_store.as_ref().map(|_| BlobFetcher::new(blobs.clone(), directories.blobs()));
    let model_dirs = match &args.model_dir_store {
        Some(address) => Some(BucketModelDirs::connect(address.clone(), directories.data.join("model_dirs")).await?),
        None => None,
    };
    let local = ProcessBackend::start(
        store.clone(),
        ProcessSettings {
            directories,
            holds_database: args.database.database.is_none(),
            appliance: appliance(args)?,
            compute: compute.clone(),
            export_bytes: args.max_export_bytes,
            generation_bytes: args.max_generation_bytes,
            blobs,
            fetcher,
            model_dirs,
            python: args.python.clone(),
        },
    )
    .await?;
    let open = args.listen.ip().is_loopback() && !args.require_token;
    Ok((Arc::new(local), if open { AuthMode::Open } else { AuthMode::Tokens }))
}

/// Starts the Kubernetes backend. An account of the cluster has the permissions that the cluster grants it.
async fn start_kubernetes_backend(
    args: &ServeArgs,
    store: &Store,
    compute: &ComputePool,
) -> anyhow::Result<(Arc<dyn Backend>, AuthMode)> {
    if args.image.is_empty() {
        anyhow::bail!("file readers need an image: give this server's own image with --image");
    }
    if args.model_dir_store.is_some() {
        anyhow::bail!(
            "--model-dir-store is for a server on one machine: on a cluster, name the bucket in storage.bucket of the Appliance"
        );
    }
    let client = millrace_cluster::client::connect().await?;
    millrace_cluster::client::wait_for_api_server(&client).await;
    let settings = kubernetes::KubernetesSettings {
        namespace: args.namespace.clone(),
        image: args.image.clone(),
        identity: args.identity.clone(),
        compute: compute.clone(),
        blobs: blob_settings(args).await?,
    };
    let cluster = KubernetesBackend::start(client.clone(), store.clone(), settings).await?;
    Ok((Arc::new(cluster), AuthMode::Cluster(Arc::new(KubernetesAuthorizer::new(client)))))
}

/// Returns the store of uploads: the bucket, or the directory `dir` if none is named.
async fn blob_store(args: &ServeArgs, dir: PathBuf) -> anyhow::Result<BlobStore> {
    match &args.blob_store {
        None => Ok(BlobStore::new(dir, args.max_blob_bytes)),
        Some(address) => {
            let storage = bucket::connect(address).await?;
            Ok(BlobStore::with_storage(Arc::new(storage), args.max_blob_bytes))
        }
    }
}

/// Returns where the uploads of a cluster are stored and served; `None` if they are rejected.
async fn blob_settings(args: &ServeArgs) -> anyhow::Result<Option<BlobSettings>> {
    let Some(address) = args.uploads_listen else { return Ok(None) };
    let listener = listen(address, "--uploads-listen")?;
    let data = &args.database.data;
    let dir = data.canonicalize().with_context(|| format!("can't use the directory {}", data.display()))?;
    let store = blob_store(args, dir.join("blobs")).await?;
    Ok(Some(BlobSettings { store, listener }))
}

/// Limits on the history that is kept.
#[derive(Clone, Copy, Debug)]
struct RetentionLimits {
    /// Days after the end of a job.
    days: u32,
    /// Bytes of logs and curves.
    bytes: u64,
}

/// Thins long curves, and removes logs and curves beyond the limit.
async fn limit_history(store: &Store, bytes: u64) -> Result<(), ApiError> {
    let thinned = store.thin_curves().await?;
    if thinned > 0 {
        tracing::info!("thinned long curves by {thinned} point(s); the model_dirs still have all points");
    }
    for uid in store.shrink_history(bytes).await? {
        tracing::info!(
            %uid,
            "removed old logs and curves of a job: the history of all jobs exceeded {bytes} bytes"
        );
        let message =
            "old logs and curves were removed because the history of all jobs is limited; model_dir still has them";
        let (reason, at_ms) = ("HistoryRemoved".to_owned(), Timestamp::now().as_millisecond());
        store.add_event(&uid, &NewEvent { at_ms, warning: false, reason, message: message.to_owned() }).await?;
    }
    Ok(())
}

/// Periodically deletes jobs and tokens that ended more than `days` days ago and expired sessions, and bounds the rest.
async fn run_retention(backend: Arc<dyn Backend>, store: Store, RetentionLimits { days, bytes }: RetentionLimits) {
    loop {
        if let Err(error) = limit_history(&store, bytes).await {
            tracing::warn!("can't limit the history: {}", error_chain(&error));
        }
        match backend.remove_unused_blobs().await {
            Ok(0) => {}
            Ok(removed) => tracing::info!("removed {removed} upload(s) that no job names"),
            Err(error) => tracing::warn!("can't remove unused uploads: {}", error_chain(&error)),
        }
        let before = Timestamp::now().as_millisecond() - i64::from(days) * 86_400_000;
        let mut deleted = 0;
        loop {
            match backend.delete_history_before(before).await {
                Ok(0) => break,
                Ok(jobs) => deleted += jobs,
                Err(error) => {
                    tracing::warn!("can't delete old history: {}", error_chain(&error));
                    break;
                }
            }
        }
        if deleted > 0 {
            tracing::info!("deleted {deleted} job(s) that finished more than {days} day(s) ago");
        }
        let tokens = async {
            delete_expired_sessions(&store).await?;
            Result::<_, ApiError>::Ok(store.delete_expired_tokens(None, before).await?)
        };
        match tokens.await {
            Ok(0) => {}
            Ok(deleted) => {
                tracing::info!("deleted {deleted} token(s) that expired or were revoked more than {days} day(s) ago");
            }
            Err(error) => tracing::warn!("can't delete expired sessions and tokens: {}", error_chain(&error)),
        }
        tokio::time::sleep(RETENTION_INTERVAL).await;
    }
}

/// Returns the certificate files for HTTPS; `None` if the server uses HTTP.
fn certificate_files(args: &ServeArgs) -> anyhow::Result<Option<CertificateFiles>> {
    let files = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => CertificateFiles { certificate: certificate.clone(), key: key.clone() },
        _ if args.tls_names.is_empty() => return Ok(None),
        _ => {
            let own = SelfIssuedCertificate::new(&args.database.data.join("tls"), &args.tls_names);
            own.renew_if_due(SystemTime::now())?;
            let files = own.files();
            tokio::spawn(own.run_renewal());
            tracing::info!("clients can verify this server with --ca {}", files.certificate.display());
            files
        }
    };
    Ok(Some(files))
}

/// Returns the appliance that is emulated.
fn appliance(args: &ServeArgs) -> anyhow::Result<Appliance> {
    let spec = match &args.appliance {
        None => ApplianceSpec {
            machine: MachineDocument { systems: Some(DEFAULT_SYSTEMS), ..Default::default() },
            ..ApplianceSpec::default()
        },
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
            read_appliance(&text).with_context(|| format!("{} is not the spec of an Appliance", path.display()))?
        }
    };
    Ok(Appliance::new("default", spec))
}

/// Parses the spec in a file, alone or in a whole document. Unknown fields are errors.
fn read_appliance(text: &str) -> anyhow::Result<ApplianceSpec> {
    // The machine's part is parsed first because its errors have lines and hints; the rest is checked as by an API
    // server.
    MachineSpec::parse_yaml(text).map_err(|error| anyhow::anyhow!("{}", error.report().trim_end()))?;
    let mut document: Value = serde_saphyr::from_str(text)?;
    let whole = ["apiVersion", "kind", "spec"].iter().any(|key| document.get(key).is_some());
    let (kind, version) = (Appliance::kind(&()), Appliance::api_version(&()));
    let is = |key: &str, wanted: &str| document.get(key).is_none_or(|value| value == wanted);
    if whole && !(is("kind", &kind) && is("apiVersion", &version)) {
        anyhow::bail!("the object has a different kind: give an {kind} of {version}");
    }
    let spec = match (whole, document.is_null()) {
        (true, _) => document["spec"].take(),
        (false, true) => json!({}),
        (false, false) => document,
    };
    let (definition, _) = AdmissionSchema::load_all()?;
    let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "default"}, "spec": spec});
    definition.admit(&object, None)?;
    Ok(serde_json::from_value(spec)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_have_host_names() {
        assert_eq!(parse_address("localhost:8082").unwrap(), "127.0.0.1:8082".parse().unwrap());
        assert_eq!(parse_address("[::1]:0").unwrap(), "[::1]:0".parse().unwrap());
        let error = parse_address("8082").unwrap_err().to_string();
        assert!(error.ends_with("write HOST:PORT, such as 127.0.0.1:8080"), "{error}");
        let used = listen("127.0.0.1:0".parse().unwrap(), "--listen").unwrap();
        let error = listen(used.local_addr().unwrap(), "--listen").unwrap_err().to_string();
        assert!(error.contains(": Address already in use") && error.ends_with("with --listen"), "{error}");
    }

    #[test]
    fn unknown_appliance_key_is_reported() {
        let read = |text: &str| read_appliance(text).map_err(|error| format!("{error:#}"));
        assert_eq!(read("systems: 2\nstorage: {size: 3Gi}").unwrap().machine.systems, Some(2));
        assert_eq!(
            read("apiVersion: millrace.dev/v1alpha1\nkind: Appliance\nspec: {systems: 3}").unwrap().machine.systems,
            Some(3)
        );
        assert_eq!(read("# nothing").unwrap(), ApplianceSpec::default());
        let near = read("systems: 2\nwafer: {memoryByte: 1GB}").unwrap_err();
        assert!(near.contains("line 2") && near.contains("did you mean memoryBytes?"), "{near}");
        assert!(read("kind: Pod\napiVersion: v1\nspec: {}").unwrap_err().contains("a different kind"));
        let below = read("storage: {sise: 3Gi}").unwrap_err();
        assert!(below.contains("spec.storage.sise: unknown field"), "{below}");
    }
}
