//! The command line of `millrace-api`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use millrace_protocol::error_chain;

use crate::backup::{self, BackupArgs, RestoreArgs};
use crate::database_args::DatabaseArgs;
use crate::reader::{self, ReaderArgs};
use crate::serve::{self, ServeArgs};

/// Time after everything else has ended in which blocking tasks, such as the export of a checkpoint, may finish.
const BLOCKING_TASKS_TIMEOUT: Duration = Duration::from_secs(5);

/// Bounds on the threads that serve requests. Expensive computations have threads of their own.
const MIN_THREADS: usize = 2;
const MAX_THREADS: usize = 8;

/// REST server: runs jobs and serves their state, history and files
#[derive(Clone, Debug, Parser)]
#[command(name = "millrace-api", version)]
pub struct ApiArgs {
    #[command(subcommand)]
    task: ApiCommand,
}

#[derive(Clone, Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "read once, when the program starts")]
enum ApiCommand {
    /// Runs the server until SIGTERM or Ctrl-C; running jobs save their state and resume when the server starts again
    Serve(Box<ServeArgs>),
    /// Serves the files of one job to a remote REST server, until it is idle
    Reader(ReaderArgs),
    /// Writes the data of a server, which may be running, into one file; without checkpoints
    Backup(BackupArgs),
    /// Restores a backup into an empty data directory
    Restore(RestoreArgs),
    /// Prints the OpenAPI document
    Openapi,
    /// Creates a token and prints its secret, which is not shown again
    Token(TokenArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct TokenArgs {
    /// Name of the token's owner
    #[arg(long)]
    name: String,
    /// Role: viewer, editor or admin
    #[arg(long, default_value = "editor")]
    role: String,
    /// Namespace in which it is valid; may be repeated; * for all namespaces
    #[arg(long = "namespace", default_value = "default")]
    namespaces: Vec<String>,
    /// Seconds until it expires; never if omitted
    #[arg(long)]
    expires_in_seconds: Option<u32>,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Runs the command and returns the exit code.
pub fn run(args: ApiArgs) -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(MIN_THREADS, usize::from).clamp(MIN_THREADS, MAX_THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let result = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let result = runtime.block_on(async {
            match args.task {
                ApiCommand::Openapi => {
                    println!("{}", serde_json::to_string_pretty(&crate::rest::openapi::document())?);
                    Ok(())
                }
                ApiCommand::Serve(args) => serve::run(*args).await,
                ApiCommand::Reader(args) => reader::run(args).await,
                ApiCommand::Token(args) => make_token(args).await,
                ApiCommand::Backup(args) => backup::backup(args).await,
                ApiCommand::Restore(args) => backup::restore(&args),
            }
        });
        runtime.shutdown_timeout(BLOCKING_TASKS_TIMEOUT);
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error_chain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn make_token(args: TokenArgs) -> anyhow::Result<()> {
    let TokenArgs { name, role, namespaces, expires_in_seconds, database } = args;
    let store = database.open().await?;
    let (token, secret) = crate::rest::TokenRequest { name, role, namespaces, expires_in_seconds }.generate()?;
    store.add_token(&token).await?;
    store.close().await;
    println!("{secret}");
    Ok(())
}
