//! The options that say where a server keeps its data, shared by the commands of `millrace-api` that open it.

use std::path::PathBuf;

use millrace_store::{Store, StoreOptions};

use crate::private_dirs;

/// Location of the server's data.
#[derive(Clone, Debug, clap::Args)]
pub struct DatabaseArgs {
    /// Private directory of the server, for the database, model_dirs and uploaded files
    #[arg(long, env = "MILLRACE_DATA", default_value = "millrace-data")]
    pub data: PathBuf,
    /// sqlite:PATH or postgres://…; a file in the data directory if omitted
    #[arg(long, env = "MILLRACE_DATABASE", hide_env_values = true)]
    pub database: Option<String>,
}

impl DatabaseArgs {
    /// Opens the database. Makes the data directory, and restricts it and all files that the process creates from now
    /// on to its user.
    ///
    /// # Errors
    /// The directory or the database can't be opened: a sentence.
    pub async fn open(&self) -> anyhow::Result<Store> {
        private_dirs::set_private_umask();
        private_dirs::make_existing_private(&self.data).map_err(|error| {
            anyhow::anyhow!("can't make the directory {}: {error}; choose another --data", self.data.display())
        })?;
        let url =
            self.database.clone().unwrap_or_else(|| format!("sqlite:{}", self.data.join("millrace.db").display()));
        Ok(Store::open(&url, StoreOptions::default()).await?)
    }
}
