//! `millrace-api reader`: a short-lived server that serves the files of one job to the REST server, from where the
//! model_dir is mounted.
//!
//! * It reads only the directories that it is given.
//! * It accepts only clients of one authority, over mutual TLS.
//! * It serves the job's files, and its journal from the files.
//! * It ends by itself when it has been idle for some time.

mod activity;
mod service;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use millrace_control::shutdown::{shutdown_signals, wait_for_shutdown};
use millrace_protocol::proto::files_server::FilesServer;
use millrace_protocol::proto::journal_server::JournalServer;
use millrace_protocol::security::{AdmissionPolicy, Identity, Protection, listen};
use millrace_protocol::transport;
use millrace_telemetry::logs::LogFormat;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing::level_filters::LevelFilter;

use crate::files::{DEFAULT_MAX_EXPORT_BYTES, DEFAULT_MAX_GENERATION_BYTES, ExportCache, Generator};
use activity::RequestActivity;

use crate::{private_dirs, serve};
use service::{FileJournalService, FilesService};

/// Time for open streams to end after the shutdown began.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Flags of `reader`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReaderArgs {
    /// model_dir of the job, which is not written to
    #[arg(long, value_name = "DIR")]
    model_dir: PathBuf,
    /// Directory for exported checkpoints
    #[arg(long, value_name = "DIR")]
    exports: PathBuf,
    /// Maximum total bytes of exported checkpoints
    #[arg(long, alias = "export-bytes", value_name = "BYTES", default_value_t = DEFAULT_MAX_EXPORT_BYTES)]
    max_export_bytes: u64,
    /// Maximum memory for generating a text, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MAX_GENERATION_BYTES)]
    max_generation_bytes: u64,
    /// Directory with tls.crt and tls.key, the reader's certificate, and ca.crt, the authority of its clients
    #[arg(long, value_name = "DIR")]
    identity: PathBuf,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// UID of the job; its journal is not served if another job has taken over the model_dir
    #[arg(long, value_name = "UID")]
    job_uid: String,
    /// Seconds without a request after which the reader ends
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    idle_seconds: u64,
    /// Format of the log: text or json
    #[arg(long, env = LogFormat::LOG_FORMAT_ENV, default_value_t)]
    log_format: LogFormat,
}

/// What a reader serves.
#[derive(Clone, Debug)]
struct ReaderSource {
    model_dir: PathBuf,
    exports: ExportCache,
    generator: Generator,
    uid: String,
}

/// Serves until it is idle, or a signal to shut down.
///
/// # Errors
/// It can't start: a sentence.
pub async fn run(args: ReaderArgs) -> anyhow::Result<()> {
    let _traces = serve::install_logging(LevelFilter::INFO, args.log_format)?;
    let ending = shutdown_signals().context("can't listen for signals")?;
    let ReaderArgs { model_dir, exports, identity, listen, job_uid: uid, idle_seconds, .. } = args;
    let (max_export_bytes, max_generation_bytes) = (args.max_export_bytes, args.max_generation_bytes);
    private_dirs::set_private_umask();
    millrace_roots::restrict_process([nearest_existing(&model_dir), nearest_existing(&exports)])
        .context("can't use a directory of the job")?;
    let identity = Identity::read(&identity)?;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("can't listen on {listen}"))?;
    tracing::info!("{} is read at {}", model_dir.display(), listener.local_addr()?);
    let exports = ExportCache::new(exports, max_export_bytes);
    serve(
        listener,
        identity,
        ReaderSource { model_dir, exports, generator: Generator::new(max_generation_bytes), uid },
        Duration::from_secs(idle_seconds),
        wait_for_shutdown(ending),
    )
    .await
}

/// Returns the directory if it exists, otherwise its nearest existing parent.
fn nearest_existing(dir: &Path) -> &Path {
    dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(dir)
}

/// Serves until it has been idle for `patience`, or `ended` completes.
async fn serve(
    listener: TcpListener,
    identity: Identity,
    reads: ReaderSource,
    idle_timeout: Duration,
    ended: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let activity = RequestActivity::default();
    let (over, is_over) = oneshot::channel::<()>();
    let incoming = listen(listener, "files", identity, AdmissionPolicy::RestServer, Protection::Encrypted);
    let serving = transport::server()
        .add_service(FilesServer::new(FilesService::new(&reads, activity.clone())))
        .add_service(JournalServer::new(FileJournalService::new(&reads, activity.clone())))
        .serve_with_incoming_shutdown(incoming, async { drop(is_over.await) });
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return served.context("the server failed"),
        () = activity.wait_idle(idle_timeout) => tracing::info!("idle for {} s", idle_timeout.as_secs()),
        () = ended => tracing::info!("shutdown requested"),
    }
    drop(over);
    // Connections that do not end are closed after that time.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, serving).await;
    Ok(())
}
