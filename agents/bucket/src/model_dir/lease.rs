//! The lease on a model_dir in a bucket: one machine at a time writes to it.
//!
//! The lease is an object that names its holder. It is only written on the condition that its present version is the
//! one that the writer knows (`If-Match`, `If-None-Match`), so that of two writers one fails.
//!
//! * The holder writes it again every [`RENEWAL_INTERVAL`]. Another machine takes it over if it did not change for
//!   [`LEASE_EXPIRY`], measured by the clock of that machine: clocks are never compared.
//! * A holder that finds another version has lost the lease, and writes nothing more.
//! * A released lease remains, and says which machine wrote last.

use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{PutMode, UpdateVersion};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::{CopyEvent, ModelDirError, Reporter};
use crate::address::BucketAddress;
use crate::bucket::Bucket;

/// Name of the object.
const LEASE_NAME: &str = ".millrace-lease";
/// Exceeds the length of every lease.
const MAX_LEASE_BYTES: u64 = 4096;
/// Interval of renewals.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which a lease that was not renewed is taken over.
pub const LEASE_EXPIRY: Duration = Duration::from_secs(60);
/// Interval of looks at a lease that another machine holds.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The content of the object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Identifies the copy of the model_dir that the holder uploads.
    pub copy: String,
    /// Name of the holder's host, for messages.
    pub host: String,
    /// Process on that host, for messages.
    pub process: u32,
    /// Number of renewals, so that each renewal is another version.
    renewals: u64,
    released: bool,
}

/// A held lease.
#[derive(Debug)]
pub struct Lease {
    bucket: Bucket,
    address: BucketAddress,
    path: Path,
    record: LeaseRecord,
    version: UpdateVersion,
}

impl Lease {
    /// Takes the lease for the copy `copy`, and returns the copy that held it last; `None` if there was none. Takes a
    /// lease over at once that this copy holds already: the process that took it has ended, because only one process
    /// at a time uses a copy.
    ///
    /// # Errors
    /// Another machine renews the lease, the object is not a lease, or a request failed.
    pub async fn acquire(
        bucket: &Bucket,
        address: &BucketAddress,
        copy: &str,
        report: &Reporter,
    ) -> Result<(Self, Option<String>), ModelDirError> {
        let mut lease = Self::new(bucket, address, copy);
        let (mut seen, mut was_missing) = (None, false);
        loop {
            let current = lease.read().await?;
            if std::mem::replace(&mut was_missing, current.is_none()) && current.is_none() {
                // It can't be created, because it exists, and is longer than a lease.
                return Err(lease.not_a_lease());
            }
            let is_held = |held: &LeaseRecord| !held.released && held.copy != copy;
            if let Some((held, version)) = current.as_ref().filter(|(held, _)| is_held(held))
                && !lease.has_expired(held, version, &mut seen, report)?
            {
                sleep(POLL_INTERVAL).await;
                continue;
            }
            let (mode, last) = match current {
                None => (PutMode::Create, None),
                Some((held, version)) => (PutMode::Update(version), Some(held.copy)),
            };
            if lease.write(mode).await? {
                return Ok((lease, last));
            }
            // Another machine was faster: the next look tells which.
        }
    }

    fn new(bucket: &Bucket, address: &BucketAddress, copy: &str) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let process = std::process::id();
        Self {
            bucket: bucket.clone(),
            address: address.clone(),
            path: bucket.prefix().clone().join(LEASE_NAME),
            record: LeaseRecord { copy: copy.to_owned(), host, process, renewals: 0, released: false },
            version: UpdateVersion { e_tag: None, version: None },
        }
    }

    /// Returns whether the lease that another machine holds has not changed for [`LEASE_EXPIRY`]. `seen` is its version
    /// at the first call, and when that was.
    ///
    /// # Errors
    /// It has changed since: that machine is alive.
    fn has_expired(
        &self,
        held: &LeaseRecord,
        version: &UpdateVersion,
        seen: &mut Option<(UpdateVersion, Instant)>,
        report: &Reporter,
    ) -> Result<bool, ModelDirError> {
        match seen {
            None => {
                report(CopyEvent::WaitingForLease(self.in_use(held).to_string()));
                *seen = Some((version.clone(), Instant::now()));
                Ok(false)
            }
            Some((before, since)) if before == version => Ok(since.elapsed() >= LEASE_EXPIRY),
            Some(_) => Err(self.in_use(held)),
        }
    }

    fn not_a_lease(&self) -> ModelDirError {
        ModelDirError::NotALease { object: self.path.to_string() }
    }

    fn in_use(&self, held: &LeaseRecord) -> ModelDirError {
        let (address, host) = (self.address.to_string(), held.host.clone());
        ModelDirError::InUse { address, host, process: held.process }
    }

    async fn read(&self) -> Result<Option<(LeaseRecord, UpdateVersion)>, ModelDirError> {
        let Some((content, meta)) = self.bucket.get(&self.path, MAX_LEASE_BYTES).await? else { return Ok(None) };
        let record = serde_json::from_slice(&content);
        let record = record.map_err(|_| self.not_a_lease())?;
        Ok(Some((record, UpdateVersion { e_tag: meta.e_tag, version: meta.version })))
    }

    /// Writes the record. Returns false if the object has another version than that of `mode`.
    async fn write(&mut self, mode: PutMode) -> Result<bool, ModelDirError> {
        self.record.renewals += 1;
        let content = serde_json::to_vec(&self.record).unwrap_or_default();
        let put = self.bucket.put_if(&self.path, Bytes::from(content), mode).await?;
        let is_written = put.is_some();
        if let Some(put) = put {
            self.version = UpdateVersion { e_tag: put.e_tag, version: put.version };
        }
        Ok(is_written)
    }

    /// Writes the record of a lease that is held.
    async fn write_again(&mut self) -> Result<(), ModelDirError> {
        while !self.write(PutMode::Update(self.version.clone())).await? {
            // A request of this process may have succeeded although no response was received.
            match self.read().await? {
                Some((found, version)) if self.is_own(&found) => self.version = version,
                _ => return Err(ModelDirError::LeaseLost { address: self.address.to_string() }),
            }
        }
        Ok(())
    }

    fn is_own(&self, found: &LeaseRecord) -> bool {
        let (copy, process) = (&self.record.copy, self.record.process);
        (&found.copy, found.process, found.released) == (copy, process, false)
    }

    /// Renews the lease again and again. Returns only if it is lost. A bucket that does not respond is no reason: if it
    /// was taken over meanwhile, the next renewal tells.
    pub async fn keep(&mut self) -> ModelDirError {
        loop {
            sleep(RENEWAL_INTERVAL).await;
            if let Err(error @ ModelDirError::LeaseLost { .. }) = self.write_again().await {
                return error;
            }
        }
    }

    /// Checks with the bucket that the lease is still held.
    ///
    /// # Errors
    /// It is lost, or the request failed.
    pub async fn check_held(bucket: &Bucket, address: &BucketAddress, copy: &str) -> Result<(), ModelDirError> {
        let path = bucket.prefix().clone().join(LEASE_NAME);
        let found = bucket.get(&path, MAX_LEASE_BYTES).await?;
        let record = found.and_then(|(content, _)| serde_json::from_slice::<LeaseRecord>(&content).ok());
        match record {
            Some(record) if record.copy == copy && !record.released => Ok(()),
            _ => Err(ModelDirError::LeaseLost { address: address.to_string() }),
        }
    }

    /// Gives the lease up.
    ///
    /// # Errors
    /// It was lost, or the request failed.
    pub async fn release(&mut self) -> Result<(), ModelDirError> {
        self.record.released = true;
        self.write_again().await
    }
}
