//! Log records: their format, where they are printed and where they are stored.
//!
//! A role logs through the macros of `tracing`. Its [`Logger`] prints records to stderr and passes them to the role,
//! which forwards them to the coordinator. The coordinator stores them in [`LogFiles`], one file per attempt and agent.
//! A record is one line, whatever it contains:
//!
//! ```text
//! 2026-02-28T23:59:59.042Z INFO    memoryx-0 update applied step=12 seconds=0.031
//! ```
//!
//! The operator and the REST server, which belong to no job, log by [`server_layer`].

mod files;
mod format;
mod logger;
mod server;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, de};
use tracing::level_filters::LevelFilter;

pub use files::LogFiles;
pub use format::{LogFormat, UnknownFormat};
pub use logger::{Logger, print_to_stderr};
pub use server::server_layer;

use crate::error::{Error, Result};
use crate::time::{rfc3339, unix_ms};

/// Maximum bytes of a message, longer ones are truncated: a record must fit well into one message on the wire.
const MAX_MESSAGE_BYTES: usize = 16 << 10;

/// The verbosity of logging: `--logging`. Each level includes those before it.
///
/// In code, `error!` to `info!` have the levels of the same name, `debug!` is VERBOSE and `trace!` is DEBUG. The five
/// levels of users and of `tracing` thereby have the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// A failure that needs an operator.
    Error,
    /// Something unusual; training continues.
    Warning,
    /// Information for users.
    Info,
    /// Details that explain a slow or unusual run.
    Verbose,
    /// Everything, and records of other crates up to VERBOSE.
    Debug,
}

impl Level {
    /// All levels, the most severe first.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warning, Self::Info, Self::Verbose, Self::Debug];

    /// Returns the name of the level as `--logging` accepts it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Warning => "WARNING",
            Self::Info => "INFO",
            Self::Verbose => "VERBOSE",
            Self::Debug => "DEBUG",
        }
    }
}

impl From<tracing::Level> for Level {
    fn from(level: tracing::Level) -> Self {
        match level {
            tracing::Level::ERROR => Self::Error,
            tracing::Level::WARN => Self::Warning,
            tracing::Level::INFO => Self::Info,
            tracing::Level::DEBUG => Self::Verbose,
            tracing::Level::TRACE => Self::Debug,
        }
    }
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => Self::ERROR,
            Level::Warning => Self::WARN,
            Level::Info => Self::INFO,
            Level::Verbose => Self::DEBUG,
            Level::Debug => Self::TRACE,
        }
    }
}

/// The name is not that of a level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a logging level; the levels are ERROR, WARNING, INFO, VERBOSE and DEBUG")]
pub struct UnknownLevel(String);

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(name: &str) -> Result<Self, UnknownLevel> {
        Self::ALL
            .into_iter()
            .find(|level| level.as_str().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownLevel(name.into()))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Name of an agent, such as `cs2-0`, which is safe in file names and log lines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct AgentName(String);

impl AgentName {
    /// Returns the name of the agent `role`-`index`.
    ///
    /// # Errors
    /// [`Error::AgentName`] unless the role begins with a lower-case letter, has only lower-case letters, digits and
    /// `-`, and the name has at most 64 bytes.
    pub fn new(role: &str, index: u32) -> Result<Self> {
        format!("{role}-{index}").parse()
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AgentName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let safe = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.starts_with(|c: char| c.is_ascii_lowercase()) && name.len() <= 64 && name.chars().all(safe) {
            Ok(Self(name.to_owned()))
        } else {
            Err(Error::AgentName(name.to_owned()))
        }
    }
}

impl<'de> Deserialize<'de> for AgentName {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One log record of one agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    /// Time of the record by the agent's clock, in milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
    pub level: Level,
    /// The agent that logged it.
    pub agent: AgentName,
    /// Text of the record; at most 16 KiB if created by [`LogRecord::new`].
    pub message: String,
    /// Values by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

impl LogRecord {
    /// Creates a record with the current time. A message of more than 16 KiB is truncated.
    pub fn new(level: Level, agent: AgentName, mut message: String) -> Self {
        if message.len() > MAX_MESSAGE_BYTES {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
            message.push('…');
        }
        Self { unix_ms: unix_ms(), level, agent, message, fields: BTreeMap::new() }
    }
}

impl LogRecord {
    /// Formats the record as one line of JSON. Its fields are at the same level as `timestamp`, `level`, `agent` and
    /// `message`, which take precedence.
    pub fn to_json(&self) -> String {
        let Self { unix_ms, level, agent, message, fields } = self;
        let mut line: BTreeMap<&str, &str> = fields.iter().map(|(key, value)| (&**key, &**value)).collect();
        let timestamp = rfc3339(*unix_ms);
        line.extend([
            ("timestamp", &*timestamp),
            ("level", level.as_str()),
            ("agent", agent.as_str()),
            ("message", &**message),
        ]);
        // A map of strings can always be serialized.
        serde_json::to_string(&line).unwrap_or_default()
    }
}

/// Formats the record as one line, without a line feed. Control characters are escaped, so that text from a peer can't
/// forge another line or move a terminal's cursor.
impl fmt::Display for LogRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unix_ms, level, agent, message, fields } = self;
        write!(f, "{} {level:<7} {agent} ", rfc3339(*unix_ms))?;
        write_escaped(f, message)?;
        for (key, value) in fields {
            f.write_str(" ")?;
            write_escaped(f, key)?;
            if value.is_empty() || value.contains([' ', '"', '=']) {
                write!(f, "={value:?}")?;
            } else {
                f.write_str("=")?;
                write_escaped(f, value)?;
            }
        }
        Ok(())
    }
}

fn write_escaped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() {
            write!(f, "{}", c.escape_default())?;
        } else {
            fmt::Write::write_char(f, c)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_record_is_one_line() {
        let mut record = LogRecord::new(
            Level::Info,
            AgentName::new("memoryx", 0).unwrap(),
            "update applied\n2026 ERROR forged\x1b[2J é".into(),
        );
        record.unix_ms = 951_782_399_999;
        for (key, value) in [("seconds", "0.031"), ("why", "a \"b\"\n"), ("z", "")] {
            record.fields.insert(key.into(), value.into());
        }
        assert_eq!(
            record.to_string(),
            r#"2000-02-28T23:59:59.999Z INFO    memoryx-0 update applied\n2026 ERROR forged\u{1b}[2J é seconds=0.031 why="a \"b\"\n" z="""#
        );
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.contains(r#""level":"INFO","agent":"memoryx-0""#));
        assert_eq!(serde_json::from_str::<LogRecord>(&json).unwrap(), record);

        let agent = record.agent.clone();
        let long = LogRecord::new(Level::Info, agent, "é".repeat(MAX_MESSAGE_BYTES));
        assert!(long.message.len() < MAX_MESSAGE_BYTES + 8);
    }

    #[test]
    fn names_from_peers_stay_within_their_directory() {
        for name in ["cs2-0", "swarmx-12"] {
            assert_eq!(name.parse::<AgentName>().unwrap().as_str(), name);
        }
        for name in ["", "../x-0", "a/b", "-x", "Cs2-0", ".", "a b", "a\n"] {
            assert!(name.parse::<AgentName>().is_err(), "{name:?}");
        }
        assert!(serde_json::from_str::<AgentName>("\"../x\"").is_err());
    }

    #[test]
    fn levels_by_name() {
        for level in Level::ALL {
            assert_eq!(level.as_str().parse(), Ok(level));
            let filter = LevelFilter::from(level);
            assert_eq!(filter.into_level().map(Level::from), Some(level));
        }
        assert_eq!("info".parse(), Ok(Level::Info));
        let unknown = "LOUD".parse::<Level>().unwrap_err();
        assert!(unknown.to_string().contains("VERBOSE"));
    }
}
