//! Namespaces that were deleted and made anew under the same name, perhaps for somebody else.

use super::Job;
use crate::Store;
use crate::error::Result;
use crate::sql::sql;

/// A namespace as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Its name.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// When it was made, ms.
    pub since_ms: i64,
}

impl Incarnation {
    /// Whether `job` is or was in this namespace and not in an earlier one of the name. A job that lives always is; of a row
    /// without the namespace's UID the time tells.
    pub fn has(&self, job: &Job) -> bool {
        let known = job.namespace_uid.as_ref().map(|uid| *uid == self.uid);
        job.deleted_ms.is_none() || known.unwrap_or(job.created_ms >= self.since_ms)
    }
}

impl Store {
    /// Notes which namespace a job is in, unless that is known.
    ///
    /// # Errors
    /// As [`Store::replace_job`].
    pub async fn put_namespace_uid(&self, job: &str, namespace_uid: &str) -> Result<()> {
        let mut transaction = self.begin().await?;
        let put = sql("UPDATE jobs SET namespace_uid = $1 WHERE uid = $2 AND namespace_uid IS NULL");
        put.bind(namespace_uid).bind(job).execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(())
    }
}
