//! What can go wrong with the database, as sentences for the person who runs the server.

use std::path::PathBuf;

use sqlx::error::{DatabaseError, ErrorKind};

/// A `Result` of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a database can't be opened, read or written. None of these ever tells a password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL names no database of a known kind.
    #[error("{0}; give sqlite:PATH, sqlite::memory: or postgres://USER@HOST/DATABASE")]
    Url(String),
    /// There is no directory where the file shall be.
    #[error("the directory {} for the database does not exist; create it, or name another path", directory.display())]
    NoDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// The file, or its directory, can't be written.
    #[error(
        "the database {location} can't be opened for writing: {cause}; let this program's user write to the file and to its directory"
    )]
    Unwritable {
        /// The database.
        location: String,
        /// What the system or SQLite said.
        cause: String,
    },
    /// The file is there and is something else.
    #[error("{location} is not an SQLite database; name another path, or move the file away")]
    NotADatabase {
        /// The file.
        location: String,
    },
    /// A later version of this program has been here.
    #[error(
        "the database {location} has schema {found}, of a later version; this one knows schemas up to {known}: run the later version, or restore a backup from before the upgrade"
    )]
    Newer {
        /// The database.
        location: String,
        /// The first schema that is not known here.
        found: i64,
        /// The newest schema that is.
        known: i64,
    },
    /// The schema can't be brought up to date. A migration is made whole or not at all.
    #[error(
        "the schema of the database {location} can't be brought up to date: {cause}; nothing of the step that failed was kept, so run the earlier version and report this"
    )]
    Migration {
        /// The database.
        location: String,
        /// What failed.
        cause: String,
    },
    /// The server does not answer, or lets nobody in.
    #[error(
        "the database {location} can't be reached: {cause}; check that it runs and that host, database, user and password are right"
    )]
    Unreachable {
        /// The database, without user and password.
        location: String,
        /// What the system or the server said.
        cause: String,
    },
    /// Others kept the database busy for too long.
    #[error("the database was busy for too long; try again")]
    Busy,
    /// The connection broke, or was closed, in the middle. Whether a write was made is not known.
    #[error("the connection to the database broke: {0}; try again")]
    Broken(String),
    /// There is no space left for the database.
    #[error("no space is left for the database: {0}; free some, or shorten the retention of finished jobs")]
    NoSpace(String),
    /// Something is to be added to a job that is not there.
    #[error("there is no job with uid {0}; it may have been forgotten meanwhile")]
    NoSuchJob(String),
    /// A job of this uid is there, under another name or key.
    #[error("a job with uid {0} is there already; give every job a uid of its own")]
    UidTaken(String),
    /// A uid that could not be part of a cursor or a URL.
    #[error("{0:?} can't be a uid: only 1 to {max} letters, digits and '-' are allowed", max = crate::jobs::UID_MAX)]
    BadUid(String),
    /// Text that is not a cursor of ours.
    #[error("this is not a cursor; pass `next` of the page before as it is, or leave it out to begin anew")]
    BadCursor,
    /// A number beyond what is kept.
    #[error("{0} {1} is too large; the largest is {max}", max = crate::sql::LARGEST)]
    TooLarge(&'static str, u64),
    /// A row that this program can't have written.
    #[error("a row of the database can't be understood: {0}; restore the database from a backup")]
    Damaged(String),
    /// A statement was refused: a defect of ours, or somebody changed the schema by hand.
    #[error("the database refused a statement: {0}; report this, unless the schema was changed by hand")]
    Refused(String),
}

impl Error {
    /// Whether the same call may well succeed later, with nothing changed.
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Busy | Self::Broken(_) | Self::NoSpace(_))
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error as E;
        let error = match &error {
            E::PoolTimedOut => Self::Busy,
            E::PoolClosed | E::WorkerCrashed | E::Io(_) | E::Tls(_) | E::Protocol(_) => Self::Broken(error.to_string()),
            E::ColumnDecode { .. } | E::Decode(_) | E::ColumnNotFound(_) | E::AnyDriverError(_) => {
                Self::Damaged(error.to_string())
            }
            E::Database(answer) => match Answer::of(answer.as_ref()) {
                Answer::Busy => Self::Busy,
                Answer::Gone | Answer::Unwritable => Self::Broken(answer.message().to_owned()),
                Answer::NoSpace => Self::NoSpace(answer.message().to_owned()),
                Answer::Damaged | Answer::NotADatabase => Self::Damaged(answer.message().to_owned()),
                Answer::Other => Self::Refused(answer.message().to_owned()),
            },
            _ => Self::Refused(error.to_string()),
        };
        crate::statistics::count(&error);
        error
    }
}

/// What an error code of either database means to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Somebody else holds what is needed, or two waited for each other.
    Busy,
    /// The server goes, or can't serve.
    Gone,
    /// A disk is full.
    NoSpace,
    /// The file can't be opened or written.
    Unwritable,
    /// The file is something else.
    NotADatabase,
    /// The file is torn.
    Damaged,
    /// Anything else.
    Other,
}

impl Answer {
    /// Reads the code. SQLite's are numbers, with more detail above the low byte; PostgreSQL's are five characters, the first
    /// two of which are a class.
    pub(crate) fn of(answer: &dyn DatabaseError) -> Self {
        if answer.kind() != ErrorKind::Other {
            return Self::Other;
        }
        let code = answer.code().unwrap_or_default();
        if code.len() == 5 {
            return match &*code {
                "40001" | "40P01" | "55P03" => Self::Busy,
                "53100" => Self::NoSpace,
                class if ["08", "53", "57"].iter().any(|gone| class.starts_with(gone)) => Self::Gone,
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
