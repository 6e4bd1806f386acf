//! Log files of all agents of an attempt, written by the coordinator: `model_dir/logs/attempt-<n>/<role>-<index>.log`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{AgentName, LogRecord};
use crate::error::{Error, Result};
use crate::jsonl::{self, Appender};

/// Maximum number of open files. With more agents all are closed when another one is needed.
const MAX_OPEN_FILES: usize = 256;

/// The log files of one attempt.
#[derive(Debug)]
pub struct LogFiles {
    directory: PathBuf,
    files: BTreeMap<AgentName, Appender>,
}

impl LogFiles {
    /// Creates the directory of `attempt` in `model_dir`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(model_dir: &Path, attempt: u64) -> Result<Self> {
        let directory = model_dir.join("logs").join(format!("attempt-{attempt}"));
        millrace_roots::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
        Ok(Self { directory, files: BTreeMap::new() })
    }

    /// Returns the directory of this attempt's files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of an agent's file.
    pub fn path(&self, agent: &AgentName) -> PathBuf {
        self.directory.join(format!("{agent}.log"))
    }

    /// Appends a record to its agent's file. The line has been passed to the operating system when this returns.
    ///
    /// # Errors
    /// [`Error::Io`]; the line is then not in the file.
    pub fn write(&mut self, record: &LogRecord) -> Result<()> {
        let line = format!("{record}\n");
        if let Some(file) = self.files.get_mut(&record.agent) {
            return file.append(line.as_bytes(), false);
        }
        if self.files.len() >= MAX_OPEN_FILES {
            self.files.clear();
        }
        let path = self.path(&record.agent);
        jsonl::truncate_torn_line(&path)?;
        let mut file = Appender::open(path)?;
        file.append(line.as_bytes(), false)?;
        self.files.insert(record.agent.clone(), file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::logs::Level;

    #[test]
    fn one_file_per_agent_beyond_the_open_file_limit() {
        let dir = tempfile::tempdir().unwrap();
        let mut logs = LogFiles::open(dir.path(), 3).unwrap();
        for said in ["one", "two"] {
            for index in 0..=MAX_OPEN_FILES as u32 {
                let agent = AgentName::new("cs2", index).unwrap();
                logs.write(&LogRecord::new(Level::Warning, agent, said.into())).unwrap();
            }
        }
        let path = dir.path().join("logs/attempt-3/cs2-0.log");
        let text = fs::read_to_string(path).unwrap();
        let said: Vec<_> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(said, ["WARNING cs2-0 one", "WARNING cs2-0 two"]);
        assert_eq!(fs::read_dir(logs.directory()).unwrap().count(), MAX_OPEN_FILES + 1);
    }
}
