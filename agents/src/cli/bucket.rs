//! model_dirs and checkpoints in a bucket, for commands that run on this machine.
//!
//! ```text
//! millrace-agent train -p gpt2.yaml -o s3://runs/gpt2
//! millrace-agent generate -c s3://runs/gpt2 --prompt "In the beginning"
//! ```
//!
//! Agents work in directories: a run in a copy of its model_dir, which is uploaded meanwhile, other commands in a copy
//! of a checkpoint. Copies are in the cache directory of the user.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace_bucket::{Bucket, BucketAddress, BucketError, CopyEvent, Reporter, WantedCheckpoints, fetch_checkpoints};
use millrace_checkpoint::step_of_checkpoint;
use millrace_data::default_cache_dir;
use millrace_params::{Mode, RunSpec};
use tokio::sync::watch;

use super::error::CliError;
use super::job::PreparedJob;
use crate::error::AgentError;
use crate::launch::Exit;
use crate::model_dir_uploads::{ModelDirUploads, UploadSettings, bucket_failure, connect, runtime, wanted_by};

/// Characters of the digest of an address that distinguish the copies of a user.
const DIGEST_CHARACTERS: usize = 16;

/// A model_dir in a bucket whose copy on this machine is uploaded while a run works in it.
pub struct BucketRun {
    dir: PathBuf,
    uploads: ModelDirUploads,
}

impl BucketRun {
    /// Opens the model_dir of a job that lies in a bucket, and changes the paths of the `phases` to those of its copy.
    /// Returns `None` if it lies in a directory. A checkpoint in a bucket that the job starts from is fetched, too.
    ///
    /// # Errors
    /// The address is none, the bucket can't be used, or another run uses the model_dir.
    pub fn open(phases: &mut [PreparedJob]) -> Result<Option<Self>, CliError> {
        let Some(first) = phases.first().map(|phase| phase.resolved.job.run.clone()) else { return Ok(None) };
        let address = parse(&first.model_dir)?;
        let (mut wanted, mut start) = (vec![wanted_by(&first)], None);
        if let Some(checkpoint) = first.checkpoint_path.as_deref().map(parse).transpose()?.flatten() {
            match checkpoint.split_last() {
                Some((parent, name)) if Some(&parent) == address.as_ref() => {
                    wanted.extend(step_of_checkpoint(&name).map(WantedCheckpoints::Step));
                    start = Some(Path::new(&name).to_owned());
                }
                _ => start = Some(fetch(&checkpoint, wanted_of_named(&first))?),
            }
        }
        let run = address.map(|address| Self::start(address, wanted, &first)).transpose()?;
        for phase in phases {
            let spec = &mut phase.resolved.job.run;
            if let Some(run) = &run {
                spec.summary_dir = run.path_of(&spec.summary_dir, &spec.model_dir)?;
                spec.model_dir = run.dir.to_string_lossy().into_owned();
                start = start.map(|path| run.dir.join(path));
            }
            if let (Some(path), Some(start)) = (&mut spec.checkpoint_path, &start) {
                *path = start.to_string_lossy().into_owned();
            }
        }
        Ok(run)
    }

    /// Returns the path of a directory of summaries in the copy, if it is in the model_dir; any other path as it is.
    fn path_of(&self, summary_dir: &str, model_dir: &str) -> Result<String, CliError> {
        if !BucketAddress::is_meant(summary_dir) {
            return Ok(summary_dir.to_owned());
        }
        let inside = Path::new(summary_dir).strip_prefix(model_dir);
        let inside = inside.map_err(|_| {
            CliError::bad_input(format!("runconfig.summary_dir {summary_dir} is not in the model_dir {model_dir}"))
                .hint("name a directory in the model_dir, or of this machine")
        });
        Ok(self.dir.join(inside?).to_string_lossy().into_owned())
    }

    fn start(address: BucketAddress, wanted: Vec<WantedCheckpoints>, run: &RunSpec) -> Result<Self, CliError> {
        let dir = copy_dir("runs", &address)?;
        let (uploads, opened) = ModelDirUploads::start(UploadSettings {
            address,
            dir: dir.clone(),
            wanted,
            max_checkpoints: run.checkpoint_limit(),
            open_timeout: Duration::ZERO,
            report: run_reporter(),
        })?;
        opened.blocking_recv().map_err(AgentError::local)?.map_err(bucket_failure)?;
        Ok(Self { dir, uploads })
    }

    /// Becomes true if the uploads have ended before the run: another machine has taken the model_dir over.
    pub fn has_ended(&self) -> watch::Receiver<bool> {
        self.uploads.has_ended()
    }

    /// Waits until everything is uploaded.
    ///
    /// # Errors
    /// Not everything could be uploaded.
    pub fn finish(self, exit: Exit) -> Result<Exit, CliError> {
        self.uploads.finish()?;
        Ok(exit)
    }
}

/// Checks that the bucket of a job's model_dir can be used. Returns whether the model_dir lies in one.
///
/// # Errors
/// The address is none, or the bucket can't be used.
pub fn check(run: &RunSpec) -> Result<bool, CliError> {
    let Some(address) = parse(&run.model_dir)? else { return Ok(false) };
    print_note(&runtime()?.block_on(connect(&address)).map_err(bucket_failure)?);
    Ok(true)
}

/// Returns the path of a checkpoint that a command names, or of the directory of a run: that of a copy, if it is in a
/// bucket. Of a run the newest checkpoint is fetched.
///
/// # Errors
/// There is no undamaged checkpoint, or the bucket can't be used.
pub fn local_checkpoint(path: &Path) -> Result<PathBuf, CliError> {
    match path.to_str().map(parse).transpose()?.flatten() {
        Some(address) => fetch(&address, WantedCheckpoints::Newest),
        None => Ok(path.to_owned()),
    }
}

/// Returns the address if a path is one.
fn parse(path: &str) -> Result<Option<BucketAddress>, CliError> {
    if !BucketAddress::is_meant(path) {
        return Ok(None);
    }
    path.parse().map(Some).map_err(|error: BucketError| bucket_failure(error.into()).into())
}

/// Returns the checkpoints that a run needs of the directory that it names to start from.
fn wanted_of_named(run: &RunSpec) -> WantedCheckpoints {
    if run.mode == Mode::EvalAll { WantedCheckpoints::All } else { WantedCheckpoints::Newest }
}

/// Fetches a checkpoint, or `wanted` checkpoints of the directory of a run.
fn fetch(address: &BucketAddress, wanted: WantedCheckpoints) -> Result<PathBuf, CliError> {
    let of_step = address.split_last().and_then(|(parent, name)| Some((parent, step_of_checkpoint(&name)?)));
    let (run, wanted) = match of_step {
        Some((parent, step)) => (parent, WantedCheckpoints::Step(step)),
        None => (address.clone(), wanted),
    };
    let dir = copy_dir("checkpoints", &run)?;
    let fetched = runtime()?.block_on(async {
        let bucket = connect(&run).await?;
        print_note(&bucket);
        fetch_checkpoints(&bucket, address, &dir, wanted, &warning_reporter()).await
    });
    Ok(fetched.map_err(bucket_failure)?)
}

/// Prints a note if requests to a bucket are not encrypted.
fn print_note(bucket: &Bucket) {
    if !bucket.is_encrypted() {
        eprintln!("note: requests to {} are not encrypted, because its endpoint begins with http://", bucket.label());
    }
}

/// Returns the directory for copies of this kind of what is at `address`.
fn copy_dir(kind: &str, address: &BucketAddress) -> Result<PathBuf, AgentError> {
    let digest = blake3::hash(address.to_string().as_bytes()).to_hex();
    let name = format!("{}-{}", address.bucket(), &digest[..DIGEST_CHARACTERS]);
    let cache = default_cache_dir().ok_or_else(|| {
        AgentError::bad_input(format!("there is no directory for a copy of {address}"))
            .hint("set XDG_CACHE_HOME or HOME to an absolute path")
    })?;
    Ok(cache.join("buckets").join(kind).join(name))
}

/// Prints what happens to the copy of a run.
fn run_reporter() -> Reporter {
    Arc::new(|event: CopyEvent| if event.is_warning() { print_warning(&event) } else { super::print_line(event) })
}

/// Prints warnings about a fetched checkpoint. Standard output belongs to the result of the command.
fn warning_reporter() -> Reporter {
    Arc::new(|event: CopyEvent| {
        if event.is_warning() {
            print_warning(&event);
        }
    })
}

fn print_warning(event: &CopyEvent) {
    eprintln!("warning: {event}");
}
