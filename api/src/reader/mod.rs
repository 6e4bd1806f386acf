//! The program that reads one job's files where they lie: a short-lived server beside a model_dir, which the REST server asks.
//!
//! It has no rights but to read the directory it is given, and no clients but those of one authority, over mutual TLS. It serves
//! the job's files and, of its journal, what stands in files; and it ends by itself when nobody asks any more.

mod activity;
mod service;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use millrace_control::program::{end_signals, ended};
use millrace_protocol::proto::files_server::FilesServer;
use millrace_protocol::proto::journal_server::JournalServer;
use millrace_protocol::security::{Admit, Identity, Protection, listen};
use millrace_protocol::transport;
use millrace_telemetry::logs::Format;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing::level_filters::LevelFilter;

use crate::files::{DEFAULT_EXPORT_BYTES, Exports};
use activity::Activity;

use crate::{private, serve};
use service::{FilesService, JournalService};

/// For streams that are open when it is told to end.
const DRAINING: Duration = Duration::from_secs(5);

/// Flags of `reader`.
#[derive(Clone, Debug, clap::Args)]
pub struct Reader {
    /// The job's model_dir; nothing is written there
    #[arg(long, value_name = "DIR")]
    model_dir: PathBuf,
    /// Where exported checkpoints are kept
    #[arg(long, value_name = "DIR")]
    exports: PathBuf,
    /// Bytes that these have at most, together
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_EXPORT_BYTES)]
    export_bytes: u64,
    /// Holds tls.crt, tls.key and ca.crt: what it shows, and whose certificate a client must have
    #[arg(long, value_name = "DIR")]
    identity: PathBuf,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// The job; of a model_dir that another has by now, its journal is not told
    #[arg(long, value_name = "UID")]
    job_uid: String,
    /// It ends when nobody has asked for anything for so long
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    idle_seconds: u64,
    /// How lines of the log are written: text or json
    #[arg(long, env = Format::VARIABLE, default_value_t)]
    log_format: Format,
}

/// What a reader reads.
#[derive(Clone, Debug)]
struct Reads {
    model_dir: PathBuf,
    /// Exported checkpoints.
    exports: Exports,
    /// The job.
    uid: String,
}

/// Serves until nobody asks any more, or it is told to end.
///
/// # Errors
/// It can't begin: a sentence.
pub async fn run(args: Reader) -> anyhow::Result<()> {
    let _traces = serve::log(LevelFilter::INFO, args.log_format)?;
    let ending = end_signals().context("can't listen for signals")?;
    let Reader { model_dir, exports, export_bytes, identity, listen, job_uid: uid, idle_seconds, .. } = args;
    private::make_all_private();
    millrace_roots::restrict_process([there(&model_dir), there(&exports)])
        .context("can't use a directory of the job")?;
    let identity = Identity::read(&identity)?;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("can't listen on {listen}"))?;
    tracing::info!("{} is read at {}", model_dir.display(), listener.local_addr()?);
    let exports = Exports::new(exports, export_bytes);
    serve(listener, identity, Reads { model_dir, exports, uid }, Duration::from_secs(idle_seconds), ended(ending)).await
}

/// The directory, or, where it is not made yet, the nearest one above it that is there.
fn there(dir: &Path) -> &Path {
    dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(dir)
}

/// Serves until nobody has asked for `patience`, or it has `ended`.
async fn serve(
    listener: TcpListener,
    identity: Identity,
    reads: Reads,
    patience: Duration,
    ended: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let activity = Activity::default();
    let (over, is_over) = oneshot::channel::<()>();
    let incoming = listen(listener, "files", identity, Admit::RestServer, Protection::Encrypted);
    let serving = transport::server()
        .add_service(FilesServer::new(FilesService::new(&reads, activity.clone())))
        .add_service(JournalServer::new(JournalService::new(&reads, activity.clone())))
        .serve_with_incoming_shutdown(incoming, async { drop(is_over.await) });
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return served.context("can't serve any more"),
        () = activity.idle(patience) => tracing::info!("nobody has asked for {} s", patience.as_secs()),
        () = ended => tracing::info!("told to end"),
    }
    drop(over);
    // Whose connection does not end is not waited for.
    let _ = tokio::time::timeout(DRAINING, serving).await;
    Ok(())
}
