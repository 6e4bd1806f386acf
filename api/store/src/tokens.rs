//! API tokens. The caller generates and hashes the secrets; only the hashes are stored.

use sqlx::any::AnyRow;

use crate::Store;
use crate::error::Result;
use crate::failures::count_failure;
use crate::sql::{RowColumns, Sql, damaged_value, sql};

/// Minimum interval between two updates of a token's last use, in ms, so that not every request is a write.
const MIN_TOUCH_INTERVAL_MS: i64 = 60_000;

/// The row of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    /// Identifier in lists and for revocation.
    pub id: String,
    /// Digest of the secret, in a format of the caller.
    pub hash: String,
    pub name: String,
    pub role: String,
    /// Namespaces in which it is valid; the caller interprets `*`.
    pub namespaces: Vec<String>,
    /// Time of creation, in ms.
    pub created_ms: i64,
    /// Time of expiry, in ms; `None` means never.
    pub expires_ms: Option<i64>,
    /// Time of revocation, in ms.
    pub revoked_ms: Option<i64>,
    /// Time of the last use, in ms, exact to about a minute.
    pub last_used_ms: Option<i64>,
}

fn select() -> Sql {
    sql("SELECT id, hash, name, role, namespaces, created_ms, expires_ms, revoked_ms, last_used_ms FROM tokens")
}

impl TokenRecord {
    fn read(row: &AnyRow) -> Result<Self> {
        Self::from_columns(row).map_err(|error| error.in_table("tokens"))
    }

    fn from_columns(row: &AnyRow) -> Result<Self> {
        let namespaces = row.text("namespaces")?;
        let namespaces = serde_json::from_str(&namespaces).map_err(|error| {
            damaged_value(row, "namespaces", &namespaces, "a JSON list of namespaces").with_parse_error(error)
        })?;
        Ok(Self {
            id: row.text("id")?,
            hash: row.text("hash")?,
            name: row.text("name")?,
            role: row.text("role")?,
            namespaces,
            created_ms: row.time("created_ms")?,
            expires_ms: row.maybe_time("expires_ms")?,
            revoked_ms: row.maybe_time("revoked_ms")?,
            last_used_ms: row.maybe_time("last_used_ms")?,
        })
    }
}

impl Store {
    /// Adds a token; returns false if its id or hash exists.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn add_token(&self, token: &TokenRecord) -> Result<bool> {
        let namespaces = serde_json::Value::from(token.namespaces.clone());
        let mut transaction = self.begin().await?;
        let added = sql("INSERT INTO tokens \
                         (id, hash, name, role, namespaces, created_ms, expires_ms, revoked_ms, last_used_ms) \
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING")
        .bind(&token.id)
        .bind(&token.hash)
        .bind(&token.name)
        .bind(&token.role)
        .bind(namespaces.to_string())
        .bind(token.created_ms)
        .bind(token.expires_ms)
        .bind(token.revoked_ms)
        .bind(token.last_used_ms)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await.map_err(count_failure)?;
        Ok(added == 1)
    }

    /// Returns all tokens, oldest first, including expired and revoked ones.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        select().push(" ORDER BY created_ms, id").all(&self.inner.read, TokenRecord::read).await
    }

    /// Returns the token with this hash. The caller checks whether it is expired or revoked.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn token_by_hash(&self, hash: &str) -> Result<Option<TokenRecord>> {
        let found = select().push(" WHERE hash = ").value(hash).first(&self.inner.read).await?;
        found.as_ref().map(TokenRecord::read).transpose()
    }

    /// Revokes a token; returns false if it is revoked already or does not exist.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn revoke_token(&self, id: &str, at_ms: i64) -> Result<bool> {
        let mut transaction = self.begin().await?;
        let revoked = sql("UPDATE tokens SET revoked_ms = $1 WHERE id = $2 AND revoked_ms IS NULL");
        let revoked = revoked.bind(at_ms).bind(id).execute(&mut *transaction).await?;
        transaction.commit().await.map_err(count_failure)?;
        Ok(revoked == 1)
    }

    /// Deletes tokens that expired or were revoked before `before_ms`; with `mark`, only those whose id contains it.
    /// Returns their number.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn delete_expired_tokens(&self, mark: Option<&str>, before_ms: i64) -> Result<u64> {
        let mut expired = sql("DELETE FROM tokens WHERE (expires_ms < $1 OR revoked_ms < $1)").bind(before_ms);
        if let Some(mark) = mark {
            expired = expired.push(" AND replace(id, ").value(mark).push(", '') <> id");
        }
        let mut transaction = self.begin().await?;
        let forgotten = expired.execute(&mut *transaction).await?;
        transaction.commit().await.map_err(count_failure)?;
        Ok(forgotten)
    }

    /// Records the use of a token, which was just read, at most once a minute.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn touch_token(&self, token: &TokenRecord, at_ms: i64) -> Result<()> {
        if token.last_used_ms.is_some_and(|last| at_ms < last.saturating_add(MIN_TOUCH_INTERVAL_MS)) {
            return Ok(());
        }
        let mut transaction = self.begin().await?;
        sql("UPDATE tokens SET last_used_ms = $1 WHERE id = $2 AND (last_used_ms IS NULL OR last_used_ms < $1)")
            .bind(at_ms)
            .bind(&token.id)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await.map_err(count_failure)?;
        Ok(())
    }
}
