//! Stages checkpoints before the shards write them, and publishes them when all shards have.

use std::path::PathBuf;
use std::sync::Arc;

use millrace_checkpoint::{Checkpoint, CheckpointMetadata, Digest, ModelDirLock, Moments, Staging, WriterEpoch};
use millrace_engine::message::{ChunkDigests, SnapshotRequest};
use millrace_engine::types::{CommitRecord, Epoch, TrainingHistory};

use crate::checkpoints::{checkpoint_failure, recorded_history};
use crate::control::job::CompiledJob;
use crate::error::AgentError;
use crate::write_watch::WriteWatch;

/// Stages and publishes checkpoints. The methods block, so they are called on blocking threads.
pub struct CheckpointWriter {
    lock: Arc<ModelDirLock>,
    job: CompiledJob,
    moments: Moments,
    notes: Vec<String>,
    writes: WriteWatch,
}

#[derive(Clone, Debug)]
pub struct PublishedCheckpoint {
    pub path: PathBuf,
    /// Number of updates in it.
    pub step: u64,
    /// Hex digest of its parameters.
    pub digest: String,
}

impl CheckpointWriter {
    /// Creates a saver for the model_dir that `lock` holds. `notes` are written to every manifest.
    pub fn new(lock: Arc<ModelDirLock>, job: CompiledJob, notes: Vec<String>) -> Self {
        let moments = job.moments();
        Self { lock, job, moments, notes, writes: WriteWatch::default() }
    }

    /// Returns what tells whether a checkpoint is being staged or published.
    pub const fn writes(&self) -> &WriteWatch {
        &self.writes
    }

    fn path(&self, step: u64) -> PathBuf {
        self.lock.model_dir().join(format!("checkpoint_{step}"))
    }

    /// Creates the directory that the shards write into.
    ///
    /// # Errors
    /// The directory can't be created, or the lock was lost.
    pub fn stage(&self, step: u64, epoch: Epoch) -> Result<(Staging, SnapshotRequest), AgentError> {
        let epoch = WriterEpoch { attempt: epoch.attempt, number: epoch.number };
        let create = || Staging::create(&self.lock, &self.job.plan, step, epoch, &self.moments);
        let staging = self.writes.watch(&self.path(step), create).map_err(checkpoint_failure)?;
        let path = staging.path().to_string_lossy().into_owned();
        Ok((staging, SnapshotRequest { step, path }))
    }

    /// Publishes the checkpoint. Then deletes checkpoints beyond `max_checkpoints` and earlier recovery checkpoints;
    /// see [`millrace_checkpoint::retain`].
    ///
    /// # Errors
    /// The file system reports an error, or the lock was lost.
    pub fn publish(
        &self,
        staging: Staging,
        digests: Vec<ChunkDigests>,
        record: Option<CommitRecord>,
        history: TrainingHistory,
        recovery: bool,
    ) -> Result<PublishedCheckpoint, AgentError> {
        let path = self.path(staging.step());
        self.writes.watch(&path, || self.publish_staged(staging, digests, record, history, recovery))
    }

    fn publish_staged(
        &self,
        mut staging: Staging,
        digests: Vec<ChunkDigests>,
        record: Option<CommitRecord>,
        history: TrainingHistory,
        recovery: bool,
    ) -> Result<PublishedCheckpoint, AgentError> {
        let failed = checkpoint_failure;
        for (chunk, of_chunk) in digests.into_iter().enumerate() {
            for (section, digest) in self.moments.sections().zip(of_chunk) {
                staging.record_digest(section, chunk, Digest(digest)).map_err(failed)?;
            }
        }
        let step = staging.step();
        let path =
            staging.publish(CheckpointMetadata { recovery, ..self.facts(step, record, history) }).map_err(failed)?;
        let digest = Checkpoint::open(&path).map_err(failed)?.info().parameters_blake3.to_string();
        millrace_checkpoint::retain(&self.lock, self.job.job.run.checkpoint_limit()).map_err(failed)?;
        Ok(PublishedCheckpoint { path, step, digest })
    }

    fn facts(&self, step: u64, record: Option<CommitRecord>, history: TrainingHistory) -> CheckpointMetadata {
        let job = &self.job.job;
        CheckpointMetadata {
            plan: self.job.hash,
            seed: job.run.seed,
            next_sample: (step + history.skipped_batches) * self.job.plan.leaves.batch(),
            numerics_profile: self.job.profile_json(),
            precision: self.job.profile.precision.to_string(),
            optimizer: job.optimizer.kind.name().to_owned(),
            loss: record.map(|record| record.loss),
            grad_norm: record.map(|record| record.norm),
            history: recorded_history(history),
            notes: self.notes.clone(),
            job: job.to_json(),
            recovery: false,
        }
    }
}
