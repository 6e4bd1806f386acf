//! What jobs come to: compiled once for each number of systems, and remembered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_crds::{ClusterSpec, Resolution, TrainJob};

use crate::resolve::{self, Needs, Unable};
use crate::world::Site;

/// See the module text.
pub struct Understanding {
    site: Arc<dyn Site>,
    known: Mutex<HashMap<String, Known>>,
}

/// What a job comes to on a number of systems.
#[derive(Clone)]
struct Known {
    num_csx: u32,
    /// The appliance it was understood on.
    cluster: ClusterSpec,
    result: Result<Arc<(Resolution, Needs)>, Unable>,
}

impl Understanding {
    /// Of jobs whose paths lie at `site`.
    pub fn new(site: Arc<dyn Site>) -> Self {
        Self { site, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        // A map of finished values: whole after any panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `job` comes to on `num_csx` systems: its record, or what it would become.
    ///
    /// # Errors
    /// The job can never run as it is.
    pub fn of(
        &self,
        job: &TrainJob,
        uid: &str,
        cluster: &ClusterSpec,
        num_csx: u32,
    ) -> Result<Arc<(Resolution, Needs)>, Unable> {
        let record = job.status.as_ref().and_then(|status| status.resolved.clone());
        // What is on record no change of the appliance concerns.
        let holds = |known: &&Known| known.num_csx == num_csx && (record.is_some() || known.cluster == *cluster);
        if let Some(known) = self.known().get(uid).filter(holds) {
            return known.result.clone();
        }
        let resolution = record.map_or_else(|| resolve::resolve(job, cluster, &*self.site), Ok);
        let result = resolution.and_then(|resolution| {
            let needs = resolve::needs(&resolution, num_csx)?;
            Ok(Arc::new((resolution, needs)))
        });
        self.known().insert(uid.to_owned(), Known { num_csx, cluster: cluster.clone(), result: result.clone() });
        result
    }

    /// What a job that does not exist yet would come to; nothing of it is remembered.
    ///
    /// # Errors
    /// As [`Understanding::of`].
    pub fn of_new(&self, job: &TrainJob, cluster: &ClusterSpec) -> Result<Needs, Unable> {
        resolve::needs(&resolve::resolve(job, cluster, &*self.site)?, job.spec.num_csx)
    }

    /// Remembers only these jobs any more.
    pub fn keep(&self, which: impl Fn(&str) -> bool) {
        self.known().retain(|uid, _| which(uid));
    }
}
