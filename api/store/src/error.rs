//! Errors of the database, with messages for the operator of the server.

use std::path::PathBuf;

use sqlx::error::{DatabaseError, ErrorKind};

use crate::limits::{MAX_SAFE_INTEGER, MAX_UID_LENGTH};

/// A `Result` of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of opening, reading or writing a database. No message contains a password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL does not name a database of a supported kind.
    #[error("{0}; give sqlite:PATH, sqlite::memory: or postgres://USER@HOST/DATABASE")]
    Url(String),
    /// The directory of the file does not exist.
    #[error("the directory {} for the database does not exist; create it, or name another path", directory.display())]
    NoDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// The file or its directory is not writable.
    #[error(
        "the database {location} can't be opened for writing: {cause}; let this program's user write to the file and to its directory"
    )]
    Unwritable {
        /// The database.
        location: String,
        /// Message of the system or of SQLite.
        cause: String,
    },
    /// The file exists and is not an SQLite database.
    #[error("{location} is not an SQLite database; name another path, or move the file away")]
    NotADatabase {
        /// The file.
        location: String,
    },
    /// A later version of this program has migrated the database.
    #[error(
        "the database {location} has schema {found}, of a later version; this one knows schemas up to {known}: run the later version, or restore a backup from before the upgrade"
    )]
    SchemaTooNew {
        /// The database.
        location: String,
        /// The first schema number that is not known here.
        found: i64,
        /// The newest schema number that is known here.
        known: i64,
    },
    /// A migration failed. Each migration is applied completely or not at all.
    #[error(
        "the schema of the database {location} can't be brought up to date: {cause}; nothing of the step that failed was kept, so run the earlier version and report this"
    )]
    Migration {
        /// The database.
        location: String,
        /// The cause.
        cause: String,
    },
    /// The server does not respond, or rejects the connection.
    #[error(
        "the database {location} can't be reached: {cause}; check that it runs and that host, database, user and password are right"
    )]
    Unreachable {
        /// The database, without user and password.
        location: String,
        /// Message of the system or of the server.
        cause: String,
    },
    /// Other writers kept the database busy for too long.
    #[error("the database was busy for too long; try again")]
    Busy,
    /// The connection broke or was closed during a call. It is unknown whether a write was committed.
    #[error("the connection to the database broke; try again")]
    ConnectionLost(#[source] sqlx::Error),
    /// The disk of the database is full.
    #[error("no space is left for the database; free some, or shorten the retention of finished jobs")]
    NoSpace(#[source] sqlx::Error),
    /// The job that something is to be added to does not exist.
    #[error("job with uid {0} not found; retention may have deleted it")]
    JobNotFound(String),
    /// A job with this UID exists, under another name or key.
    #[error("a job with uid {0} already exists; give every job its own uid")]
    UidTaken(String),
    /// A UID that could not be part of a cursor or of a URL.
    #[error("{0:?} can't be a uid: only 1 to {max} letters, digits and '-' are allowed", max = MAX_UID_LENGTH)]
    BadUid(String),
    /// A text that is not a cursor of this crate.
    #[error("invalid cursor; pass the previous page's `next` unchanged, or omit it to start from the beginning")]
    BadCursor,
    /// A number that exceeds the largest one that can be stored.
    #[error("{0} {1} is too large; the largest is {max}", max = MAX_SAFE_INTEGER)]
    TooLarge(&'static str, u64),
    /// The database has a value that this program can't have written, or its file is corrupt.
    #[error("the database is damaged; restore it from a backup")]
    Damaged(#[source] Damage),
    /// The database rejected a statement: a bug of this program, or a schema that was changed manually.
    #[error("the database rejected a statement; report this, unless the schema was changed by hand")]
    StatementRejected(#[source] sqlx::Error),
}

/// What is damaged in a database.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// A value that this program can't have written.
    #[error("{column} of the row of {table} with {row} is {found:?}, not {expected}")]
    Value {
        /// The table.
        table: &'static str,
        /// Name and value of a column that identifies the row.
        row: String,
        /// The column.
        column: &'static str,
        /// The value.
        found: String,
        /// The values that are valid.
        expected: &'static str,
        /// The error of parsing the value, if it is a document.
        source: Option<serde_json::Error>,
    },
    /// A column is missing, or has another type.
    #[error("a column can't be read")]
    Column(#[source] sqlx::Error),
    /// The file is corrupt, or is not a database.
    #[error("the file can't be read")]
    File(#[source] sqlx::Error),
}

impl Error {
    /// Completes the error of a value with the table that was read.
    pub(crate) fn in_table(mut self, name: &'static str) -> Self {
        if let Self::Damaged(Damage::Value { table, .. }) = &mut self {
            *table = name;
        }
        self
    }

    /// Adds why a value can't be parsed.
    pub(crate) fn with_parse_error(mut self, error: serde_json::Error) -> Self {
        if let Self::Damaged(Damage::Value { source, .. }) = &mut self {
            *source = Some(error);
        }
        self
    }

    /// Whether the same call may succeed later without any change.
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Busy | Self::ConnectionLost(_) | Self::NoSpace(_))
    }

    /// Classifies an error of a connection or a statement.
    pub(crate) fn from_sqlx(error: sqlx::Error) -> Self {
        use sqlx::Error as E;
        match &error {
            E::PoolTimedOut => Self::Busy,
            E::PoolClosed | E::WorkerCrashed | E::Io(_) | E::Tls(_) | E::Protocol(_) => Self::ConnectionLost(error),
            E::ColumnDecode { .. } | E::Decode(_) | E::ColumnNotFound(_) | E::AnyDriverError(_) => {
                Self::Damaged(Damage::Column(error))
            }
            E::Database(answer) => match DatabaseErrorKind::of(answer.as_ref()) {
                DatabaseErrorKind::Busy => Self::Busy,
                DatabaseErrorKind::ConnectionLost | DatabaseErrorKind::Unwritable => Self::ConnectionLost(error),
                DatabaseErrorKind::NoSpace => Self::NoSpace(error),
                DatabaseErrorKind::Damaged | DatabaseErrorKind::NotADatabase => Self::Damaged(Damage::File(error)),
                DatabaseErrorKind::Other => Self::StatementRejected(error),
            },
            _ => Self::StatementRejected(error),
        }
    }
}

/// Meaning of an error code of either database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseErrorKind {
    /// Another connection holds a lock, or there was a deadlock.
    Busy,
    /// The server is shutting down, or can't serve.
    ConnectionLost,
    /// The disk is full.
    NoSpace,
    /// The file can't be opened or written.
    Unwritable,
    /// The file is not a database.
    NotADatabase,
    /// The file is corrupt.
    Damaged,
    /// Any other error.
    Other,
}

impl DatabaseErrorKind {
    /// Classifies the error code. SQLite's codes are numbers whose low byte is the primary code; PostgreSQL's have five
    /// characters, of which the first two are the class.
    pub(crate) fn of(error: &dyn DatabaseError) -> Self {
        if error.kind() != ErrorKind::Other {
            return Self::Other;
        }
        let code = error.code().unwrap_or_default();
        if code.len() == 5 {
            return match &*code {
                "40001" | "40P01" | "55P03" => Self::Busy,
                "53100" => Self::NoSpace,
                class if ["08", "53", "57"].iter().any(|gone| class.starts_with(gone)) => Self::ConnectionLost,
                _ => Self::Other,
            };
        }
        match code.parse::<u32>().map(|code| code & 0xff) {
            Ok(5 | 6) => Self::Busy,
            Ok(8 | 10 | 14) => Self::Unwritable,
            Ok(11) => Self::Damaged,
            Ok(13) => Self::NoSpace,
            Ok(26) => Self::NotADatabase,
            _ => Self::Other,
        }
    }
}
