//! That one server alone runs the jobs of a data directory, and those of a database.
//!
//! Of the directory it is a lock. A database may be elsewhere, where another server can reach it, too: so a directory and a
//! database belong together for good, by the UID of the Appliance, which both of them keep.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::refusal::{Reason, Refusal, Result};

/// The file that is locked, and has the UID.
const FILE: &str = ".lock";

/// A data directory that is this server's for as long as this lives.
#[derive(Debug)]
pub struct Claim {
    file: File,
    data: PathBuf,
    /// The UID in the file, where it has one.
    machine: Option<String>,
}

impl Claim {
    /// Takes a directory.
    ///
    /// # Errors
    /// [`Reason::Conflict`]: another server has it. The file can't be written.
    pub fn take(data: &Path) -> Result<Self> {
        let broken = |error| Refusal::internal(&format!("lock {}", data.join(FILE).display()), &error);
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).open(data.join(FILE)).map_err(broken)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                let data = data.display();
                let detail = format!("another server uses the directory {data}: end it, or choose another --data");
                Refusal::new(Reason::Conflict, detail)
            }
            TryLockError::Error(error) => broken(error),
        })?;
        let mut machine = String::new();
        file.read_to_string(&mut machine).map_err(broken)?;
        let machine = Some(machine.trim().to_owned()).filter(|machine| !machine.is_empty());
        Ok(Self { file, data: data.to_owned(), machine })
    }

    /// The machine whose data this is; none in a new directory.
    pub fn machine(&self) -> Option<&str> {
        self.machine.as_deref()
    }

    /// Whether the jobs of a database, whose Appliance has this UID, are those of the directory.
    ///
    /// # Errors
    /// [`Reason::Conflict`]: they are not.
    pub fn agree(&self, database: &str) -> Result<()> {
        if self.machine.as_deref() == Some(database) {
            return Ok(());
        }
        let detail = format!(
            "the jobs of this database have their files elsewhere than in {}: give the --data that belongs to it, or another \
             --database; where that directory is gone for good, write {database} into {}",
            self.data.display(),
            self.data.join(FILE).display()
        );
        Err(Refusal::new(Reason::Conflict, detail))
    }

    /// Says whose data this is.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep(&mut self, machine: &str) -> Result<()> {
        if self.machine.as_deref() != Some(machine) {
            let written = writeln!(self.file, "{machine}").and_then(|()| self.file.sync_all());
            written.map_err(|error| Refusal::internal(&format!("write {}", self.data.join(FILE).display()), &error))?;
            self.machine = Some(machine.to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_and_a_database_belong_together_and_to_one_server() {
        let data = tempfile::TempDir::new().unwrap();
        let mut first = Claim::take(data.path()).unwrap();
        assert_eq!(first.machine(), None);
        assert!(first.agree("a").is_err(), "a new directory has no jobs");
        first.keep("a").unwrap();
        assert_eq!(Claim::take(data.path()).unwrap_err().reason, Reason::Conflict, "while the first lives");
        drop(first);
        let again = Claim::take(data.path()).unwrap();
        assert_eq!(again.machine(), Some("a"));
        again.agree("a").unwrap();
        let refused = again.agree("b").unwrap_err();
        assert_eq!(refused.reason, Reason::Conflict);
        assert!(refused.detail.contains("write b into"), "{}", refused.detail);
    }
}
