//! Makes sure that only one server runs the jobs of a data directory, and of a database.
//!
//! * A lock file protects the directory.
//! * Another server may reach the database, or the directory may be copied or moved together with it, while jobs record
//!   the paths of their files. So directory and database refer to each other: the directory contains the UID of the
//!   Appliance in the database, and the Appliance the path of the directory.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use kube::ResourceExt;
use millrace_crds::Appliance;

use crate::error::{ApiError, ErrorReason, Result};

/// Annotation of the Appliance: the directory with the files of its jobs.
const DATA_DIR_ANNOTATION: &str = "millrace.dev/data";
/// File with the Appliance's UID.
const MACHINE_ID_FILE: &str = ".machine";
const LOCK_FILE: &str = ".lock";

/// Exclusive use of a data directory, as long as this lives.
#[derive(Debug)]
pub struct DataDirClaim {
    _lock: File,
    data: PathBuf,
    /// Whether the database is a file of the directory.
    holds_database: bool,
}

impl DataDirClaim {
    /// Locks a directory, given by its real path.
    ///
    /// # Errors
    /// [`ErrorReason::Conflict`]: another server uses it. The lock file can't be created or locked.
    pub fn acquire(data: &Path, holds_database: bool) -> Result<Self> {
        let broken =
            |error: io::Error| ApiError::internal(format_args!("lock {}", data.join(LOCK_FILE).display()), error);
        let lock = File::create(data.join(LOCK_FILE)).map_err(broken)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                let data = data.display();
                conflict(format!("another server uses the directory {data}: stop it, or choose another --data"))
            }
            TryLockError::Error(error) => broken(error),
        })?;
        Ok(Self { _lock: lock, data: data.to_owned(), holds_database })
    }

    /// Checks that the database with this Appliance belongs to the directory.
    ///
    /// # Errors
    /// [`ErrorReason::Conflict`]: it does not.
    pub fn check_bound(&self, stored: &Appliance) -> Result<()> {
        let data_dir = self.data.display();
        if let Some(data) = stored.annotations().get(DATA_DIR_ANNOTATION)
            && !Path::new(data).canonicalize().is_ok_and(|data| data == self.data)
        {
            return Err(conflict(format!(
                "the jobs of this database have their files in {data}, not in {data_dir}: give --data {data}, or \
                 another --database; if they were moved permanently, make {data} a link to {data_dir}"
            )));
        }
        let uid = stored.uid().unwrap_or_default();
        match std::fs::read_to_string(self.data.join(MACHINE_ID_FILE)) {
            Ok(bound_uid) if bound_uid.trim() == uid => Ok(()),
            Err(_) if self.holds_database => Ok(()),
            _ => Err(conflict(format!(
                "the jobs of this database have their files in a different directory than {data_dir}, on another \
                 machine or from another installation: give the --data that belongs to it, or another --database; if \
                 the files are here nevertheless, write {uid} into {}",
                self.data.join(MACHINE_ID_FILE).display()
            ))),
        }
    }

    /// Makes directory and database refer to each other; the caller writes the Appliance.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn bind(&self, appliance: &mut Appliance) -> Result<()> {
        let file = self.data.join(MACHINE_ID_FILE);
        let uid = appliance.uid().unwrap_or_default();
        std::fs::write(&file, format!("{uid}\n"))
            .map_err(|error| ApiError::internal(format_args!("write {}", file.display()), error))?;
        // The first path stays: jobs record it, and it may be a link by now.
        appliance
            .annotations_mut()
            .entry(DATA_DIR_ANNOTATION.to_owned())
            .or_insert_with(|| self.data.display().to_string());
        Ok(())
    }
}

fn conflict(detail: String) -> ApiError {
    ApiError::new(ErrorReason::Conflict, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_crds::ApplianceSpec;

    fn conflict_detail(claim: &DataDirClaim, appliance: &Appliance) -> String {
        let error = claim.check_bound(appliance).unwrap_err();
        assert_eq!(error.reason, ErrorReason::Conflict);
        error.detail
    }

    #[test]
    fn data_dir_and_database_belong_to_one_server() {
        let home = tempfile::TempDir::new().unwrap();
        let home = home.path().canonicalize().unwrap();
        let [data, other] = ["data", "other"].map(|name| home.join(name));
        for dir in [&data, &other] {
            std::fs::create_dir(dir).unwrap();
        }
        let mut appliance = Appliance::new("default", ApplianceSpec::default());
        appliance.metadata.uid = Some("a".to_owned());
        let first = DataDirClaim::acquire(&data, false).unwrap();
        first.bind(&mut appliance).unwrap();
        first.check_bound(&appliance).unwrap();
        assert_eq!(
            DataDirClaim::acquire(&data, false).unwrap_err().reason,
            ErrorReason::Conflict,
            "while the first lives"
        );
        assert!(
            conflict_detail(&DataDirClaim::acquire(&other, true).unwrap(), &appliance).contains("make"),
            "a copy is none"
        );
        drop(first);

        std::fs::remove_file(data.join(MACHINE_ID_FILE)).unwrap();
        assert!(conflict_detail(&DataDirClaim::acquire(&data, false).unwrap(), &appliance).contains("write a into"));
        DataDirClaim::acquire(&data, true).unwrap().check_bound(&appliance).expect("its own database says enough");

        std::fs::rename(&data, home.join("moved")).unwrap();
        let moved = DataDirClaim::acquire(&home.join("moved"), true).unwrap();
        assert!(conflict_detail(&moved, &appliance).contains("a link to"));
        std::os::unix::fs::symlink(home.join("moved"), &data).unwrap();
        moved.check_bound(&appliance).unwrap();
        moved.bind(&mut appliance).unwrap();
        std::fs::remove_file(&data).unwrap();
        assert!(conflict_detail(&moved, &appliance).contains("a link to"), "its jobs are known by the link");
    }
}
