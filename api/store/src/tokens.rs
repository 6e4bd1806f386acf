//! API tokens. Their secrets are made, shown once and hashed by the caller; here are the hashes.

use sqlx::any::AnyRow;

use crate::Store;
use crate::error::{Error, Result};
use crate::sql::{Columns, Sql, sql};

/// How much later a use must be than the one that is noted, ms: a busy client is not a write a request.
const TOUCH_MS: i64 = 60_000;

/// A token as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it is called in lists and when it is revoked.
    pub id: String,
    /// A digest of the secret, as the caller writes it.
    pub hash: String,
    /// Whose it is.
    pub name: String,
    /// What its owner may do.
    pub role: String,
    /// Where; `*` is the caller's to understand.
    pub namespaces: Vec<String>,
    /// When it was made, ms.
    pub created_ms: i64,
    /// When it ends to be good, ms; none: never.
    pub expires_ms: Option<i64>,
    /// When it was revoked, ms.
    pub revoked_ms: Option<i64>,
    /// When it was used, to a minute or so, ms.
    pub last_used_ms: Option<i64>,
}

fn select() -> Sql {
    sql("SELECT id, hash, name, role, namespaces, created_ms, expires_ms, revoked_ms, last_used_ms FROM tokens")
}

impl Token {
    fn read(row: &AnyRow) -> Result<Self> {
        let namespaces = serde_json::from_str(&row.text("namespaces")?);
        Ok(Self {
            id: row.text("id")?,
            hash: row.text("hash")?,
            name: row.text("name")?,
            role: row.text("role")?,
            namespaces: namespaces.map_err(|error| Error::Damaged(format!("the namespaces of a token: {error}")))?,
            created_ms: row.time("created_ms")?,
            expires_ms: row.maybe_time("expires_ms")?,
            revoked_ms: row.maybe_time("revoked_ms")?,
            last_used_ms: row.maybe_time("last_used_ms")?,
        })
    }
}

impl Store {
    /// Adds a token; false where one of its id or hash is there.
    ///
    /// # Errors
    /// As [`Store::replace_job`].
    pub async fn add_token(&self, token: &Token) -> Result<bool> {
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
        transaction.commit().await?;
        Ok(added == 1)
    }

    /// All tokens, also those that are no longer good, oldest first.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn tokens(&self) -> Result<Vec<Token>> {
        select().push(" ORDER BY created_ms, id").all(&self.inner.read, Token::read).await
    }

    /// The token of this hash, whether it is still good or not: that is the caller's to see.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn token_by_hash(&self, hash: &str) -> Result<Option<Token>> {
        let found = select().push(" WHERE hash = ").value(hash).first(&self.inner.read).await?;
        found.as_ref().map(Token::read).transpose()
    }

    /// Revokes a token; false where it was revoked before, or is not there.
    ///
    /// # Errors
    /// As [`Store::replace_job`].
    pub async fn revoke_token(&self, id: &str, at_ms: i64) -> Result<bool> {
        let mut transaction = self.begin().await?;
        let revoked = sql("UPDATE tokens SET revoked_ms = $1 WHERE id = $2 AND revoked_ms IS NULL");
        let revoked = revoked.bind(at_ms).bind(id).execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(revoked == 1)
    }

    /// Forgets tokens that ended, by expiry or revocation, before `before_ms`; with `mark` those alone whose id has it. How many.
    ///
    /// # Errors
    /// As [`Store::replace_job`].
    pub async fn forget_tokens(&self, mark: Option<&str>, before_ms: i64) -> Result<u64> {
        let mut over = sql("DELETE FROM tokens WHERE (expires_ms < $1 OR revoked_ms < $1)").bind(before_ms);
        if let Some(mark) = mark {
            over = over.push(" AND replace(id, ").value(mark).push(", '') <> id");
        }
        let mut transaction = self.begin().await?;
        let forgotten = over.execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(forgotten)
    }

    /// Notes that a token, as it was just read, is used; not more often than once a minute.
    ///
    /// # Errors
    /// As [`Store::replace_job`].
    pub async fn touch_token(&self, token: &Token, at_ms: i64) -> Result<()> {
        if token.last_used_ms.is_some_and(|last| at_ms < last.saturating_add(TOUCH_MS)) {
            return Ok(());
        }
        let mut transaction = self.begin().await?;
        sql("UPDATE tokens SET last_used_ms = $1 WHERE id = $2 AND (last_used_ms IS NULL OR last_used_ms < $1)")
            .bind(at_ms)
            .bind(&token.id)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }
}
