//! Makes sure that only one server runs the jobs of a data directory, and of a database.
//!
//! * A lock file protects the directory.
//! * Another server may reach the database, or the directory may be copied or moved together with it, while jobs record
//!   the paths of their files. So directory and database refer to each other: the directory contains the UID of the
//!   Appliance in the database, and the Appliance the path of the directory.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use kube::ResourceExt;
use millrace_crds::Appliance;

use crate::refusal::{Reason, Refusal, Result};

/// Annotation of the Appliance: the directory with the files of its jobs.
const DATA: &str = "millrace.dev/data";
/// File with the Appliance's UID.
const MACHINE: &str = ".machine";
const LOCK: &str = ".lock";

/// Exclusive use of a data directory, as long as this lives.
#[derive(Debug)]
pub struct Claim {
    _lock: File,
    data: PathBuf,
    /// Whether the database is a file of the directory.
    holds_database: bool,
}

impl Claim {
    /// Locks a directory, given by its real path.
    ///
    /// # Errors
    /// [`Reason::Conflict`]: another server uses it. The lock file can't be created or locked.
    pub fn take(data: &Path, holds_database: bool) -> Result<Self> {
        let broken = |error| Refusal::internal(&format!("lock {}", data.join(LOCK).display()), &error);
        let lock = File::create(data.join(LOCK)).map_err(broken)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                let data = data.display();
                conflict(format!("another server uses the directory {data}: end it, or choose another --data"))
            }
            TryLockError::Error(error) => broken(error),
        })?;
        Ok(Self { _lock: lock, data: data.to_owned(), holds_database })
    }

    /// Checks that the database with this Appliance belongs to the directory.
    ///
    /// # Errors
    /// [`Reason::Conflict`]: it does not.
    pub fn check(&self, there: &Appliance) -> Result<()> {
        let here = self.data.display();
        if let Some(data) = there.annotations().get(DATA)
            && !Path::new(data).canonicalize().is_ok_and(|data| data == self.data)
        {
            return Err(conflict(format!(
                "the jobs of this database have their files in {data}, not in {here}: give --data {data}, or another \
                 --database; where they were moved for good, make {data} a link to {here}"
            )));
        }
        let uid = there.uid().unwrap_or_default();
        match std::fs::read_to_string(self.data.join(MACHINE)) {
            Ok(machine) if machine.trim() == uid => Ok(()),
            Err(_) if self.holds_database => Ok(()),
            _ => Err(conflict(format!(
                "the jobs of this database have their files in a directory of another machine, or of another time, than \
                 {here}: give the --data that belongs to it, or another --database; where the files are here all the same, \
                 write {uid} into {}",
                self.data.join(MACHINE).display()
            ))),
        }
    }

    /// Makes directory and database refer to each other; the caller writes the Appliance.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep(&self, appliance: &mut Appliance) -> Result<()> {
        let file = self.data.join(MACHINE);
        let uid = appliance.uid().unwrap_or_default();
        std::fs::write(&file, format!("{uid}\n"))
            .map_err(|error| Refusal::internal(&format!("write {}", file.display()), &error))?;
        // The first path stays: jobs record it, and it may be a link by now.
        appliance.annotations_mut().entry(DATA.to_owned()).or_insert_with(|| self.data.display().to_string());
        Ok(())
    }
}

fn conflict(detail: String) -> Refusal {
    Refusal::new(Reason::Conflict, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_crds::ClusterSpec;

    fn refused(claim: &Claim, appliance: &Appliance) -> String {
        let refusal = claim.check(appliance).unwrap_err();
        assert_eq!(refusal.reason, Reason::Conflict);
        refusal.detail
    }

    #[test]
    fn a_directory_and_a_database_belong_together_and_to_one_server() {
        let home = tempfile::TempDir::new().unwrap();
        let home = home.path().canonicalize().unwrap();
        let [data, other] = ["data", "other"].map(|name| home.join(name));
        for dir in [&data, &other] {
            std::fs::create_dir(dir).unwrap();
        }
        let mut appliance = Appliance::new("default", ClusterSpec::default());
        appliance.metadata.uid = Some("a".to_owned());
        let first = Claim::take(&data, false).unwrap();
        first.keep(&mut appliance).unwrap();
        first.check(&appliance).unwrap();
        assert_eq!(Claim::take(&data, false).unwrap_err().reason, Reason::Conflict, "while the first lives");
        assert!(refused(&Claim::take(&other, true).unwrap(), &appliance).contains("make"), "a copy is none");
        drop(first);

        std::fs::remove_file(data.join(MACHINE)).unwrap();
        assert!(refused(&Claim::take(&data, false).unwrap(), &appliance).contains("write a into"));
        Claim::take(&data, true).unwrap().check(&appliance).expect("its own database says enough");

        std::fs::rename(&data, home.join("moved")).unwrap();
        let moved = Claim::take(&home.join("moved"), true).unwrap();
        assert!(refused(&moved, &appliance).contains("a link to"));
        std::os::unix::fs::symlink(home.join("moved"), &data).unwrap();
        moved.check(&appliance).unwrap();
        moved.keep(&mut appliance).unwrap();
        std::fs::remove_file(&data).unwrap();
        assert!(refused(&moved, &appliance).contains("a link to"), "its jobs are known by the link");
    }
}
