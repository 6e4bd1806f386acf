//! Namespaces that were deleted and created again under the same name, perhaps for other users.

use super::JobRecord;
use crate::Store;
use crate::error::Result;
use crate::failures::count_failure;
use crate::sql::sql;

/// A namespace as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceVersion {
    pub namespace: String,
    pub uid: String,
    /// Time of creation, in ms.
    pub since_ms: i64,
}

impl NamespaceVersion {
    /// Whether `job` belongs to this namespace, not to an earlier one of the same name. A live job always does; for a
    /// row without the namespace's UID, the time of creation decides.
    pub fn contains(&self, job: &JobRecord) -> bool {
        let known = job.namespace_uid.as_ref().map(|uid| *uid == self.uid);
        job.deleted_ms.is_none() || known.unwrap_or(job.created_ms >= self.since_ms)
    }
}

impl Store {
    /// Records the namespace of a job, unless it is recorded already.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn put_namespace_uid(&self, job: &str, namespace_uid: &str) -> Result<()> {
        let mut transaction = self.begin().await?;
        let put = sql("UPDATE jobs SET namespace_uid = $1 WHERE uid = $2 AND namespace_uid IS NULL");
        put.bind(namespace_uid).bind(job).execute(&mut *transaction).await?;
        transaction.commit().await.map_err(count_failure)?;
        Ok(())
    }
}
