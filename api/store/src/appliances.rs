//! Appliances of a server without Kubernetes: spec and ledger in one document.

use sqlx::any::AnyRow;

use crate::Store;
use crate::error::Result;
use crate::failures::count_failure;
use crate::sql::{RowColumns, signed, sql};

/// The row of an appliance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplianceRecord {
    pub name: String,
    /// 1 at creation, raised by every write.
    pub version: u64,
    /// The Appliance as JSON.
    pub document: String,
}

impl ApplianceRecord {
    fn read(row: &AnyRow) -> Result<Self> {
        Self::from_columns(row).map_err(|error| error.in_table("appliances"))
    }

    fn from_columns(row: &AnyRow) -> Result<Self> {
        Ok(Self { name: row.text("name")?, version: row.number("version")?, document: row.text("document")? })
    }
}

impl Store {
    /// Returns the appliance with this name.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn appliance(&self, name: &str) -> Result<Option<ApplianceRecord>> {
        let statement = sql("SELECT name, version, document FROM appliances WHERE name = $1");
        statement.bind(name).first(&self.inner.read).await?.as_ref().map(ApplianceRecord::read).transpose()
    }

    /// Returns all appliances, ordered by name.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn appliances(&self) -> Result<Vec<ApplianceRecord>> {
        let all = sql("SELECT name, version, document FROM appliances ORDER BY name");
        all.all(&self.inner.read, ApplianceRecord::read).await
    }

    /// Adds an appliance with version 1; returns false and changes nothing if one of this name exists.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn create_appliance(&self, name: &str, document: &str) -> Result<bool> {
        let mut transaction = self.begin().await?;
        let added = sql("INSERT INTO appliances (name, version, document) VALUES ($1, 1, $2) ON CONFLICT DO NOTHING")
            .bind(name)
            .bind(document)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await.map_err(count_failure)?;
        Ok(added == 1)
    }

    /// Replaces the document of an appliance with version `expected`, and returns its new version. Returns `None` and
    /// writes nothing if the version differs or the appliance does not exist.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn replace_appliance(&self, name: &str, expected: u64, document: &str) -> Result<Option<u64>> {
        let mut transaction = self.begin().await?;
        let replaced =
            sql("UPDATE appliances SET document = $1, version = version + 1 WHERE name = $2 AND version = $3")
                .bind(document)
                .bind(name)
                .bind(signed("the version", expected)?)
                .execute(&mut *transaction)
                .await?;
        transaction.commit().await.map_err(count_failure)?;
        Ok((replaced == 1).then_some(expected + 1))
    }
}
